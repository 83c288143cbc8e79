"""Naive search: sort all objects in one list and take the k nearest."""

from fedneighbors.methods.fedknn.algorithm import tie_keys


def nearest(tables, query, k, *, key):
    """Return (distance, provider, name) of the k nearest objects.

    Ties are ordered by the keyed digest of the objects' names.
    """
    everything = []
    for provider, table in tables.items():
        names = [str(i) for i in range(len(table))]
        for value, name, tie in zip(
            table, names, tie_keys(names, owner=provider, key=key).tolist(), strict=True
        ):
            everything.append((abs(value - query), tie, provider, name))
    return [(d, provider, name) for d, _, provider, name in sorted(everything)[:k]]
