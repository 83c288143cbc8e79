"""Naive version of ``fedneighbors.kernels.vectors._nearest``."""

import math

from tests.naive.vectors import distances


def nearest_rows(x, ranks, query, k, *, kind):
    """Sort all rows by (distance, rank); ``kind`` as in ``kernels.vectors._nearest``."""
    if kind == 1:
        values = distances.absolute_sums(x, query)
    else:
        values = [math.sqrt(s) if kind == 0 else s * 0.5 for s in distances.square_sums(x, query)]
    order = sorted(range(len(x)), key=lambda row: (values[row], ranks[row]))[:k]
    return [values[row] for row in order], order


def merge_nearest(parts, k):
    """Sort the entries of all parts; ``parts`` are lists of (distance, tie key) of one query."""
    entries = [entry for part in parts for entry in part]
    order = sorted(range(len(entries)), key=lambda column: entries[column])[:k]
    return [entries[column][0] for column in order], order
