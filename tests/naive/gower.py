"""Naive version of ``kernels._gower``: one pair of cells at a time."""

from math import isnan

import numpy as np


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


def bound_distance(row, is_category, query):
    differences = []
    for cell, value, is_word in zip(row, query, is_category, strict=True):
        if isnan(cell) or isnan(value):
            continue
        if is_word:
            differences.append(254 * (int(cell // 1) % 255 != int(value // 1) % 255))
        else:
            code, other = (round(254 * min(max(x, 0.0), 1.0)) for x in (cell, value))
            differences.append(max(abs(code - other) - 1, 0))
    if not differences:
        bound = np.float32(1.0)
    else:
        bound = np.float32(sum(differences)) / (np.float32(254.0) * np.float32(len(differences)))
    return bound * np.float32(1 - 2.0**-20)
