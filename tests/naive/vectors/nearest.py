"""Naive version of ``fedneighbors.kernels.vectors._nearest``."""

import math

from tests.naive.vectors import distances


def nearest_rows(x, ranks, query, k, *, kind):
    """Sort all rows by (distance, rank); ``kind`` as in ``kernels.vectors._nearest``."""
    if kind == 1:
        values = distances.absolute_sums(x, query)
    elif kind == 4:
        values = distances.negative_products(x, query)
    else:
        convert = (math.sqrt, None, lambda total: total * 0.5, float)[kind]
        values = [convert(total) for total in distances.square_sums(x, query)]
    order = sorted(range(len(x)), key=lambda row: (values[row], ranks[row]))[:k]
    return [values[row] for row in order], order


def merge_lists(parts, k):
    """Sort the entries of all owners; ``parts`` are lists of (distance, tie, row) of one query."""
    entries = [entry for part in parts for entry in part]
    order = sorted(range(len(entries)), key=lambda at: entries[at][:2])[:k]
    return [entries[at][0] for at in order], [entries[at][2] for at in order]
