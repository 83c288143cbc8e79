"""Exact sums with rational numbers."""

import math
from fractions import Fraction


def exact_moments(rows, n_columns):
    """Return the sum and the sum of squares of each column.

    Units are 2**-200 and 2**-400.
    """
    result = []
    for j in range(n_columns):
        quanta = [math.trunc(Fraction(float(row[j])) * 2**200) for row in rows]
        result.append((sum(quanta), sum(q * q for q in quanta)))
    return result
