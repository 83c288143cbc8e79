"""Algorithm 1 of the FlyNN paper, line by line, in rational numbers.

This code is slow and shares nothing with the library except the wiring, which is public.
"""

import math
from fractions import Fraction


def dense_matrix(wiring, n_features):
    """Return the matrix M, one row of zeros and ones per unit."""
    return [[int(j in set(inputs)) for j in range(n_features)] for inputs in wiring.tolist()]


def fly_hash(x, matrix, n_active):
    """Return the units with the largest entries of M x, ascending.

    Ties go to the lower index. Floats are added in float64 from left to right, integers exactly.
    """
    values = [
        sum((value for value, is_input in zip(x, row, strict=True) if is_input), start=0)
        for row in matrix
    ]
    by_value = sorted(range(len(matrix)), key=lambda unit: (-values[unit], unit))
    return sorted(by_value[:n_active])


def train(rows, labels, matrix, *, n_active, gamma, classes):
    """Return the filters w and the number of decays of each unit.

    Both have one list for each class.
    """
    filters = {label: [Fraction(1)] * len(matrix) for label in classes}
    counts = {label: [0] * len(matrix) for label in classes}
    for x, y in zip(rows, labels, strict=True):
        for unit in fly_hash(x, matrix, n_active):
            filters[y][unit] = Fraction(gamma) * filters[y][unit]
            counts[y][unit] += 1
    return filters, counts


def novelty(x, matrix, filters, *, n_active, classes):
    """Return w_l . h(x) for each class."""
    units = fly_hash(x, matrix, n_active)
    return [sum(filters[label][unit] for unit in units) for label in classes]


def infer(x, matrix, filters, *, n_active, classes):
    """Return the class with the lowest novelty, the lower on ties."""
    scores = novelty(x, matrix, filters, n_active=n_active, classes=classes)
    return classes[scores.index(min(scores))]


def normalized_novelty(x, matrix, counts, *, n_active, classes, gamma, sizes):
    """Return the novelty for each class with normalized counts.

    It is the sum of gamma ** (c * n_mean / n_l) over the active units.
    """
    mean = sum(sizes.values()) / len(classes)
    return [
        math.fsum(
            gamma ** (counts[label][unit] * mean / sizes[label])
            for unit in fly_hash(x, matrix, n_active)
        )
        for label in classes
    ]


def mean_and_variance(column):
    """Return the mean and the variance of a column as rational numbers."""
    values = [Fraction(v) for v in column]
    mean = sum(values) / len(values)
    return mean, sum((v - mean) ** 2 for v in values) / len(values)
