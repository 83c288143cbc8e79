"""FlyHash as it is defined: every sum in plain Python, then a sort."""

from functools import reduce
from operator import add

import numpy as np


def winners(x, wiring, n_active):
    """Lists of units by sum, largest first, ties to the lower unit; one list for each row."""
    exact = x.astype(np.float64) if x.dtype.kind == "f" else x
    inputs = wiring.tolist()
    return [best_units(row, inputs, n_active) for row in exact.tolist()]


def best_units(row, inputs, n_active):
    sums = unit_sums(row, inputs)
    return sorted(range(len(sums)), key=lambda unit: (-sums[unit], unit))[:n_active]


def unit_sums(row, inputs):
    """Python integers, or floats added from left to right."""
    return [reduce(add, [row[feature] for feature in unit]) for unit in inputs]
