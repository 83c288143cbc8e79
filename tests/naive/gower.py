"""Naive version of ``kernels._gower``: one pair of cells at a time."""

from math import isnan


def gower_distances(rows, is_category, query):
    return [gower_distance(row, is_category, query) for row in rows]


def gower_distance(row, is_category, query):
    differences = [
        float(a != b) if is_word else abs(a - b)
        for a, b, is_word in zip(row, query, is_category, strict=True)
        if not (isnan(a) or isnan(b))
    ]
    total = 0.0
    for difference in differences:  # sum() would add more precisely
        total += difference
    return total / len(differences) if differences else 1.0
