"""Naive version of ``kernels._gower``: one pair of cells at a time; cells may also be sets."""

from math import isnan

import numpy as np

from tests.naive import sets


def gower_distances(rows, is_category, query, weights=None):
    return [gower_distance(row, is_category, query, weights) for row in rows]


def gower_distance(row, is_category, query, weights=None):
    total = divisor = 0.0
    weights = [1.0] * len(query) if weights is None else weights
    for a, b, is_word, weight in zip(row, query, is_category, weights, strict=True):
        if not (is_missing(a) or is_missing(b)):
            total += weight * cell_distance(a, b, is_word)  # sum() would add more precisely
            divisor += weight
    return total / divisor if divisor else 1.0


def is_missing(cell):
    return cell is None or (not isinstance(cell, frozenset) and isnan(cell))


def cell_distance(a, b, is_word):
    if isinstance(a, frozenset):
        return sets.distances([a], b)[0] if a or b else 0.0
    return float(a != b) if is_word else abs(a - b)


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
