"""Naive search: sort all objects in one list and take the k nearest."""

from fedneighbors.methods.fedknn.algorithm import tie_keys


def nearest(tables, query, k, *, key):
    """Return (distance, provider, name) of the k nearest objects.

    Ties are ordered by the keyed digest of the objects' names.
    """
    objects = []
    for provider, table in tables.items():
        names = [str(i) for i in range(len(table))]
        for number, name, tie in zip(
            table, names, tie_keys(names, owner=provider, key=key).tolist(), strict=True
        ):
            objects.append((abs(number - query), tie, provider, name))
    return [(distance, provider, name) for distance, _, provider, name in sorted(objects)[:k]]


def certified(parts):
    """Return the sort keys of objects that no unseen object of a provider can precede.

    ``parts`` has for each provider its returned keys, ascending, and the key up to which nothing
    was left out.
    """
    seen = sorted(key for keys, _ in parts for key in keys)
    return [key for key in seen if all(key <= closed for _, closed in parts)]
