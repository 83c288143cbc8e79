"""Slow, obvious twins: the k nearest of all objects in one list, sorted."""

from fedneighbors.methods.fedknn.algorithm import tie_keys


def nearest(tables, query, k, *, key):
    """(distance, provider, name) of the k nearest, ties by the keyed digest of their names."""
    everything = []
    for provider, table in tables.items():
        names = [str(i) for i in range(len(table))]
        for value, name, tie in zip(
            table, names, tie_keys(names, owner=provider, key=key).tolist(), strict=True
        ):
            everything.append((abs(value - query), tie, provider, name))
    return [(d, provider, name) for d, _, provider, name in sorted(everything)[:k]]
