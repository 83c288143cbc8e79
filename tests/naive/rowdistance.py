"""Slow twin of ``fedneighbors.kernels.rowdistance``."""

import numpy as np


def _in_lanes(terms):
    lanes = [0.0] * 8
    whole = len(terms) - len(terms) % 8
    for j, term in enumerate(terms):
        lanes[j % 8 if j < whole else 0] += term
    even = (lanes[0] + lanes[4]) + (lanes[2] + lanes[6])
    odd = (lanes[1] + lanes[5]) + (lanes[3] + lanes[7])
    return even + odd


def square_sums(x, query):
    return [
        _in_lanes(
            [(float(a) - float(b)) * (float(a) - float(b)) for a, b in zip(row, query, strict=True)]
        )
        for row in np.asarray(x)
    ]


def absolute_sums(x, query):
    return [
        _in_lanes([abs(float(a) - float(b)) for a, b in zip(row, query, strict=True)]) for row in x
    ]
