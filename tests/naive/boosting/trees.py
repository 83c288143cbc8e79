"""Naive twin of the values of trees."""

import math


def add_values(x, trees, *, first, scores):
    """Return the scores plus the values of trees from number ``first``."""
    result = [list(row) for row in scores]
    for number in range(first, len(trees.roots)):
        for row, sums in zip(x, result, strict=True):
            sums[number % len(sums)] += walk(row, trees, trees.roots[number])
    return result


def walk(row, trees, node):
    """Return the value of the leaf below a node."""
    if trees.features[node] < 0:
        return trees.values[node]
    value = row[trees.features[node]]
    left = trees.missing_left[node] if math.isnan(value) else value <= trees.thresholds[node]
    return walk(row, trees, trees.children[node] + (0 if left else 1))
