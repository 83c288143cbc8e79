"""Vectors that a party releases, and their sensitivity to one row.

There are three vectors, each a sum over rows. The *origin* contains the number of rows and their
sum, after the bounds are scaled to the cube [-1, 1]^d. The *class sums* contain the number of rows
of each class and the sum of their directions from the noised origin. The *cells* contain the number
of rows of each class in each cell of a fixed grid along one noised axis. Clipping and cells depend
on public or noised numbers only, so that one row changes its own summand and nothing else. Parties
and coordinator compute the cost and sensitivity of each release from the agreed terms, so that no
message contains them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import numpy as np

from fedneighbors._typing import Floats, Integers
from fedneighbors.privacy._guarantees import ZCDP, Neighbors, PureDP, Sensitivity
from fedneighbors.privacy._policy import Privacy
from fedneighbors.privacy.noise._calibration import budget_fraction, choose_levels
from fedneighbors.tabular._private import column_bounds

FRACTIONS = {"origin": Fraction(1, 5), "class sums": Fraction(1, 2), "cells": Fraction(3, 10)}
"""Fractions of the budget of one training. With more than two classes there are no cells, and the
class sums get their fraction too."""

N_CELLS = 8
"""Number of cells into which the axis from -1 to 1 is divided."""

_RADIUS_FRACTION = Fraction(4, 5)  # maximum length of a row, relative to the cube's half diagonal
_COUNT_FRACTION = Fraction(2, 5)  # weight of a row's count, relative to the bound on its vector


def public_bounds(privacy: Privacy, n_features: int) -> tuple[Floats, Floats]:
    """Return the declared lowest and highest value of each column.

    Raises
    ------
    ValueError
        If bounds were not declared, or do not fit the columns.
    """
    if privacy.bounds is None:
        raise ValueError(
            "private training clips values to a public range: give bounds, an array of shape "
            "(n_features, 2) with the lowest and highest value of each column. Take them from the "
            "meaning of the columns or from their documentation; bounds computed from the rows "
            "would disclose single rows, and the guarantee would not hold"
        )
    return column_bounds(privacy.bounds, n_features)


def allot_budget(privacy: Privacy, *, release: str, n_classes: int) -> PureDP | ZCDP:
    """Return the part of the budget that one release may use.

    The parts of all releases add up to the budget of the training.

    Parameters
    ----------
    privacy : Privacy
        Budget of one training.
    release : {"origin", "class sums", "cells"}
        Name of the release.
    n_classes : int
        Number of classes; cells are released for two classes only.
    """
    fraction = FRACTIONS[release]
    if release == "class sums" and n_classes > 2:
        fraction += FRACTIONS["cells"]
    return budget_fraction(privacy, fraction)


def max_row_length(n_features: int, levels: int) -> int:
    """Return the maximum length of a row in the cube, in steps."""
    squared = _RADIUS_FRACTION**2 * levels**2 * n_features
    return math.isqrt(squared.numerator // squared.denominator)


def count_weight(max_length: int) -> int:
    """Return the weight of one row in a count, in steps.

    ``max_length`` is that of the vectors that are released with the count, in steps.
    """
    return max(1, int(_COUNT_FRACTION * max_length))


def origin_sensitivity(n_features: int, levels: int, neighbors: Neighbors) -> Sensitivity:
    """Return the sensitivity of :func:`origin_sums` to one row.

    A row adds its weight w to the count and a vector v with norm(v) <= R, abs(v_j) <= levels, so
    that norm(v, 1) <= sqrt(n_features) R by the Cauchy-Schwarz inequality. Replacing a row leaves
    the count and changes the sum by v - v'.
    """
    max_length = max_row_length(n_features, levels)
    largest, squared = min(levels, max_length), max_length**2
    l1 = min(n_features * largest, math.isqrt(n_features * squared))
    if neighbors == "replace_one":
        return Sensitivity("row", neighbors, l1=2 * l1, l2_squared=4 * squared, linf=2 * largest)
    weight = count_weight(max_length)
    return Sensitivity(
        "row",
        neighbors,
        l1=weight + l1,
        l2_squared=weight**2 + squared,
        linf=max(weight, largest),
    )


def class_sums_sensitivity(n_features: int, levels: int, neighbors: Neighbors) -> Sensitivity:
    """Return the sensitivity of :func:`class_sums` to one row.

    A row adds its weight w to the count of its class and a vector v with norm(v) <= levels to the
    sum of its class. Replacing a row by one of the same class changes one sum by v - v'; replacing
    it by one of another class changes two counts by w and two sums by v and v'.
    """
    weight = count_weight(levels)
    l1 = math.isqrt(n_features * levels**2)
    if neighbors == "replace_one":
        return Sensitivity(
            "row",
            neighbors,
            l1=2 * (weight + l1),
            l2_squared=max(4 * levels**2, 2 * (weight**2 + levels**2)),
            linf=2 * levels,
        )
    return Sensitivity(
        "row", neighbors, l1=weight + l1, l2_squared=weight**2 + levels**2, linf=levels
    )


def cell_sensitivity(neighbors: Neighbors) -> Sensitivity:
    """Return the sensitivity of :func:`cell_counts` to one row.

    Adding or removing a row changes one cell by 1; replacing a row changes up to two cells by 1.
    """
    cells = 1 if neighbors == "add_remove" else 2
    return Sensitivity("row", neighbors, l1=cells, l2_squared=cells, linf=1)


def scale_to_cube(x: Floats, bounds: tuple[Floats, Floats]) -> Floats:
    """Clip rows to public bounds and scale them to [-1, 1].

    Missing cells and constant bounds become 0, the middle of the bounds.

    Parameters
    ----------
    x : float64 array of shape (n_rows, n_features)
        Rows; missing cells are NaN.
    bounds : pair of float64 arrays of shape (n_features,)
        Lowest and highest value of each column.

    Examples
    --------
    >>> bounds = (np.array([0.0, 1.0]), np.array([4.0, 9.0]))
    >>> scale_to_cube(np.array([[1.0, np.nan], [9.0, 1.0]]), bounds).tolist()
    [[-0.5, 0.0], [1.0, -1.0]]
    """
    low, high = bounds
    half = (high - low) / 2
    scaled = (np.clip(x, low, high) - low) / np.where(half > 0, half, 1.0) - 1
    scaled = np.where(half > 0, scaled, 0.0)
    return np.asarray(np.clip(np.nan_to_num(scaled, nan=0.0), -1.0, 1.0))


def origin_sums(cube: Floats, levels: int) -> Integers:
    """Return the number of rows and the sum of clipped rows.

    Parameters
    ----------
    cube : float64 array of shape (n_rows, n_features)
        Output of :func:`scale_to_cube`.
    levels : int
        Number of integer steps per unit.

    Returns
    -------
    int64 array of shape (1 + n_features,)
        Weighted count, then sums.
    """
    max_length = max_row_length(cube.shape[1], levels)
    length = np.sqrt((cube**2).sum(axis=1, keepdims=True))
    clipped = cube * np.minimum(1.0, max_length / levels / np.maximum(length, 1e-300))
    steps = _truncate_to_steps(clipped, levels, max_length)
    return np.concatenate([[count_weight(max_length) * len(cube)], steps.sum(axis=0)])


def directions(cube: Floats, origin: Floats) -> Floats:
    """Return unit vectors from the origin to rows; zeros at the origin."""
    offsets = cube - origin
    length = np.sqrt((offsets**2).sum(axis=1, keepdims=True))
    return np.asarray(np.divide(offsets, length, out=np.zeros_like(offsets), where=length > 1e-12))


def class_sums(units: Floats, labels: Integers, n_classes: int, levels: int) -> Integers:
    """Return each class's number of rows and sum of unit vectors.

    Parameters
    ----------
    units : float64 array of shape (n_rows, n_features)
        Output of :func:`directions`.
    labels : int64 array of shape (n_rows,)
        Class of each row as a position.
    n_classes, levels : int
        Number of classes; number of integer steps per unit.

    Returns
    -------
    int64 array of shape (n_classes * (1 + n_features),)
        Weighted counts of all classes, then the sums, class by class.
    """
    counts = np.bincount(labels, minlength=n_classes).astype(np.int64) * count_weight(levels)
    sums = np.zeros((n_classes, units.shape[1]), np.int64)
    np.add.at(sums, labels, _truncate_to_steps(units, levels, levels))
    return np.concatenate([counts, sums.ravel()])


def cell_counts(units: Floats, labels: Integers, axis: Floats) -> Integers:
    """Count the rows of two classes in each cell along an axis.

    Parameters
    ----------
    units : float64 array of shape (n_rows, n_features)
        Output of :func:`directions`.
    labels : int64 array of shape (n_rows,)
        Class of each row, 0 or 1.
    axis : float64 array of shape (n_features,)
        Axis of length 1. The grid of cells from -1 to 1 on it does not depend on the rows.

    Returns
    -------
    int64 array of shape (2 * N_CELLS,)
        Counts, class by class.
    """
    positions = (project_onto(units, axis) + 1) / 2 * N_CELLS
    cells = np.clip(np.floor(positions), 0, N_CELLS - 1).astype(np.int64)
    return np.bincount(labels * N_CELLS + cells, minlength=2 * N_CELLS).astype(np.int64)


def project_onto(units: Floats, axis: Floats) -> Floats:
    """Project rows onto an axis, each independently of the other rows.

    The rounding of a matrix product may depend on a row's position in the matrix, so that an
    additional row could move others into the next cell.

    Parameters
    ----------
    units : float64 array of shape (n_rows, n_features)
        Rows.
    axis : float64 array of shape (n_features,)
        Direction.
    """
    return np.asarray(np.ascontiguousarray(units * axis).sum(axis=1))


def _truncate_to_steps(vectors: Floats, levels: int, max_length: int) -> Integers:
    """Truncate vectors to integer steps, with length at most ``max_length``.

    While a vector is too long because of rounding errors, each coordinate is shortened by a step.
    """
    steps = np.trunc(vectors * levels).astype(np.int64)
    while (too_long := (steps**2).sum(axis=1) > max_length**2).any():
        steps[too_long] -= np.sign(steps[too_long])
    return steps


@dataclass(frozen=True)
class Release:
    """Properties of a released vector, computed from the agreed terms.

    Parameters
    ----------
    budget : PureDP or ZCDP
        Maximum cost.
    sensitivity : Sensitivity
        Sensitivity to one row.
    levels : int
        Number of integer steps per unit.
    n_cells : int
        Length of the vector.
    """

    budget: PureDP | ZCDP
    sensitivity: Sensitivity
    levels: int
    n_cells: int


def _make_release(
    budget: PureDP | ZCDP, sensitivity: Callable[[int], Sensitivity], n_cells: int
) -> Release:
    levels = choose_levels(
        budget,
        sensitivity,
        error_end="so many columns; use fewer columns, a larger epsilon, or allow a delta",
    )
    return Release(budget, sensitivity(levels), levels, n_cells)


def origin_release(privacy: Privacy, n_features: int, n_classes: int) -> Release:
    """Describe the release of the number and sum of rows."""
    budget = allot_budget(privacy, release="origin", n_classes=n_classes)
    sensitivity = partial(origin_sensitivity, n_features, neighbors=privacy.neighbors)
    return _make_release(budget, sensitivity, 1 + n_features)


def class_sums_release(privacy: Privacy, n_features: int, n_classes: int) -> Release:
    """Describe the release of row counts and direction sums by class."""
    budget = allot_budget(privacy, release="class sums", n_classes=n_classes)
    sensitivity = partial(class_sums_sensitivity, n_features, neighbors=privacy.neighbors)
    return _make_release(budget, sensitivity, n_classes * (1 + n_features))


def cells_release(privacy: Privacy) -> Release:
    """Describe the release of the cell counts of two classes."""
    budget = allot_budget(privacy, release="cells", n_classes=2)
    return Release(budget, cell_sensitivity(privacy.neighbors), 1, 2 * N_CELLS)
