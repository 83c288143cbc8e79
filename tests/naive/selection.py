"""Slow twin of the column selection of FedPNN: Welch's t in rational numbers."""

import math
from fractions import Fraction


def square_root(value):
    """Return the square root of a non-negative rational number, rounded twice."""
    try:
        return math.sqrt(value.numerator / value.denominator)
    except OverflowError:
        return math.inf


def variance_of_mean(values):
    """Return the unbiased estimate of the variance of the mean."""
    mean = sum(values) / len(values)
    return sum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values)


def welch_t(first, second):
    """Return |t| of two lists, or None if it is undefined."""
    if len(first) < 2 or len(second) < 2:
        return None
    difference = abs(sum(first) / len(first) - sum(second) / len(second))
    variance = variance_of_mean(first) + variance_of_mean(second)
    if variance == 0:
        return math.inf if difference else None
    return square_root(difference * difference / variance)


def statistics(rows, labels):
    """Return each column's largest one-vs-rest |t|; missing cells are NaN."""
    largest = []
    for column in zip(*rows, strict=True):
        cells = [
            (Fraction(float(value)), label)
            for value, label in zip(column, labels, strict=True)
            if not math.isnan(value)
        ]
        t_values = [
            welch_t([v for v, k in cells if k == label], [v for v, k in cells if k != label])
            for label in sorted(set(labels))
        ]
        largest.append(max((t for t in t_values if t is not None), default=None))
    return largest


def select_columns(statistics, n):
    """Return the positions of the n largest statistics.

    Ties go to the lower position; None comes last.
    """

    def sort_key(column):
        t = statistics[column]
        return (t is None, 0.0 if t is None else -t, column)

    return sorted(sorted(range(len(statistics)), key=sort_key)[:n])
