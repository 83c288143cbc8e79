"""Exact sums by Python's rational numbers, one value at a time."""

import math
from fractions import Fraction


def exact_moments(rows, n_columns):
    """Return [(sum in units of 2**-200, sum of squares in units of 2**-400)] per column."""
    result = []
    for j in range(n_columns):
        quanta = [math.trunc(Fraction(float(row[j])) * 2**200) for row in rows]
        result.append((sum(quanta), sum(q * q for q in quanta)))
    return result
