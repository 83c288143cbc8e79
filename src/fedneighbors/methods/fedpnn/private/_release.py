"""Released vectors of a party's rows, and their sensitivity to one row.

There are three vectors, each a sum over rows. The *origin* has the number of rows and their sum in
the cube that the bounds span. The *class sums* have the number of rows of each class and the sum of
their directions from the noised origin. The *cells* have the number of rows of each class in each
cell of a fixed grid along one noised axis. Clipping and cells depend on public or noised numbers
only, so that one row changes its own summand and nothing else. Parties and coordinator derive the
cost and sensitivity of each release from the agreed terms, so that no message states them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import numpy as np

from fedneighbors._typing import Floats, Integers
from fedneighbors.errors import PrivacyError
from fedneighbors.privacy._guarantees import ZCDP, Neighbors, PureDP, Sensitivity
from fedneighbors.privacy._policy import Privacy
from fedneighbors.privacy.noise._calibration import portion
from fedneighbors.privacy.noise._mechanisms import MAX_TABLE_SCALE, MAX_TABLE_VARIANCE
from fedneighbors.tabular._private import column_bounds

SHARES = {"origin": Fraction(1, 5), "class sums": Fraction(1, 2), "cells": Fraction(3, 10)}
"""Fractions of the budget of one training. With more than two classes there are no cells, and their
fraction goes to the class sums."""

N_CELLS = 8
"""Number of cells of the axis from -1 to 1."""

_RADIUS_FRACTION = Fraction(4, 5)  # maximum length of a row, relative to the cube's half diagonal
_COUNT_FRACTION = Fraction(2, 5)  # weight of a row's count, relative to the bound on its vector
_MAX_LEVELS, _MIN_LEVELS = 1 << 10, 1 << 4


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
            "meaning of the columns or from their documentation; bounds read off the rows would "
            "disclose single records and void the guarantee"
        )
    return column_bounds(privacy.bounds, n_features)


def allot_budget(privacy: Privacy, *, of: str, n_classes: int) -> PureDP | ZCDP:
    """Return the part of the budget that one release may use.

    The parts of all releases add up to the whole budget.

    Parameters
    ----------
    privacy : Privacy
        Budget of one training.
    of : {"origin", "class sums", "cells"}
        The release.
    n_classes : int
        Number of classes; cells are released for two classes only.
    """
    share = SHARES[of]
    if of == "class sums" and n_classes > 2:
        share += SHARES["cells"]
    return portion(privacy, share)


def choose_levels(budget: PureDP | ZCDP, sensitivity: Callable[[int], Sensitivity]) -> int:
    """Return the number of integer steps per unit.

    The result depends on the agreed terms only. Since the noise in the units of the table does not
    depend on it, the finest resolution that the samplers support is used.

    Parameters
    ----------
    budget : PureDP or ZCDP
        Part of the budget.
    sensitivity : callable
        Function from the number of steps to the sensitivity.

    Raises
    ------
    PrivacyError
        If the noise is too large for the samplers even with the coarsest steps, so that it would
        drown the sums anyway.
    """
    levels = _MAX_LEVELS
    while levels >= _MIN_LEVELS:
        stated = sensitivity(levels)
        if isinstance(budget, PureDP):
            fits = stated.l1 / budget.epsilon <= MAX_TABLE_SCALE
        else:
            fits = stated.l2_squared / (2 * budget.rho) <= MAX_TABLE_VARIANCE
        if fits:
            return levels
        levels //= 2
    raise PrivacyError(
        f"sums over so many columns would drown in the noise that {budget} calls for; use fewer "
        "columns, a larger epsilon, or allow a delta"
    )


def origin_reach(n_features: int, levels: int) -> int:
    """Return the maximum length of a row in the cube, in steps."""
    squared = _RADIUS_FRACTION**2 * levels**2 * n_features
    return math.isqrt(squared.numerator // squared.denominator)


def count_weight(reach: int) -> int:
    """Return the weight of one row in a count, in steps.

    ``reach`` is the maximum length of the vectors that are released with the count.
    """
    return max(1, int(_COUNT_FRACTION * reach))


def origin_sensitivity(n_features: int, levels: int, neighbors: Neighbors) -> Sensitivity:
    """Return the sensitivity of :func:`origin_sums` to one row.

    A row adds its weight w to the count and a vector v with norm(v) <= R, abs(v_j) <= levels, so
    that norm(v, 1) <= sqrt(n_features) R by the Cauchy-Schwarz inequality. Replacing a row leaves
    the count and changes the sum by v - v'.
    """
    reach = origin_reach(n_features, levels)
    largest = min(levels, reach)
    l1 = min(n_features * largest, math.isqrt(n_features * reach**2))
    if neighbors == "replace_one":
        return Sensitivity("row", neighbors, l1=2 * l1, l2_squared=4 * reach**2, linf=2 * largest)
    weight = count_weight(reach)
    return Sensitivity(
        "row",
        neighbors,
        l1=weight + l1,
        l2_squared=weight**2 + reach**2,
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

    Missing cells become 0, the middle of the bounds.

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
    places = (np.clip(x, low, high) - low) / np.where(half > 0, half, 1.0) - 1
    places = np.where(half > 0, places, 0.0)
    return np.asarray(np.clip(np.nan_to_num(places, nan=0.0), -1.0, 1.0))


def origin_sums(cube: Floats, levels: int) -> Integers:
    """Return the number and the sum of rows, clipped to a ball.

    Parameters
    ----------
    cube : float64 array of shape (n_rows, n_features)
        Output of :func:`scale_to_cube`.
    levels : int
        Integer steps per unit.

    Returns
    -------
    int64 array of shape (1 + n_features,)
        Weighted count, then sums.
    """
    reach = origin_reach(cube.shape[1], levels)
    length = np.sqrt((cube**2).sum(axis=1, keepdims=True))
    cut = cube * np.minimum(1.0, reach / levels / np.maximum(length, 1e-300))
    steps = _truncate_to_steps(cut, levels, reach)
    return np.concatenate([[count_weight(reach) * len(cube)], steps.sum(axis=0)])


def directions(cube: Floats, origin: Floats) -> Floats:
    """Return unit vectors from the origin to rows; zero at the origin."""
    away = cube - origin
    length = np.sqrt((away**2).sum(axis=1, keepdims=True))
    return np.asarray(np.divide(away, length, out=np.zeros_like(away), where=length > 1e-12))


def class_sums(units: Floats, labels: Integers, n_classes: int, levels: int) -> Integers:
    """Return each class's number of rows and sum of unit vectors.

    Parameters
    ----------
    units : float64 array of shape (n_rows, n_features)
        Output of :func:`directions`.
    labels : int64 array of shape (n_rows,)
        Class of each row as a position.
    n_classes, levels : int
        Number of classes; integer steps per unit.

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
        Axis of length 1; the grid from -1 to 1 on it does not depend on the rows.

    Returns
    -------
    int64 array of shape (2 * N_CELLS,)
        Counts, class by class.
    """
    places = (project_onto(units, axis) + 1) / 2 * N_CELLS
    cells = np.clip(np.floor(places), 0, N_CELLS - 1).astype(np.int64)
    return np.bincount(labels * N_CELLS + cells, minlength=2 * N_CELLS).astype(np.int64)


def project_onto(units: Floats, axis: Floats) -> Floats:
    """Project rows onto an axis, bit-identical regardless of other rows.

    A matrix product rounds each row depending on its position, so that an additional row could move
    others into the next cell.

    Parameters
    ----------
    units : float64 array of shape (n_rows, n_features)
        Rows.
    axis : float64 array of shape (n_features,)
        Direction.
    """
    return np.asarray(np.ascontiguousarray(units * axis).sum(axis=1))


def _truncate_to_steps(vectors: Floats, levels: int, reach: int) -> Integers:
    """Truncate vectors to integer steps of length at most ``reach``.

    Vectors that are still too long because of rounding errors are shortened step by step.
    """
    steps = np.trunc(vectors * levels).astype(np.int64)
    while (far := (steps**2).sum(axis=1) > reach**2).any():
        steps[far] -= np.sign(steps[far])
    return steps


@dataclass(frozen=True)
class Release:
    """Description of a released vector.

    Parameters
    ----------
    budget : PureDP or ZCDP
        Maximum cost.
    sensitivity : Sensitivity
        Sensitivity to one row.
    levels : int
        Integer steps per unit.
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
    levels = choose_levels(budget, sensitivity)
    return Release(budget, sensitivity(levels), levels, n_cells)


def origin_release(privacy: Privacy, n_features: int, n_classes: int) -> Release:
    """Return the release of the number and sum of rows."""
    budget = allot_budget(privacy, of="origin", n_classes=n_classes)
    sensitivity = partial(origin_sensitivity, n_features, neighbors=privacy.neighbors)
    return _make_release(budget, sensitivity, 1 + n_features)


def class_sums_release(privacy: Privacy, n_features: int, n_classes: int) -> Release:
    """Return the release of row counts and direction sums by class."""
    budget = allot_budget(privacy, of="class sums", n_classes=n_classes)
    sensitivity = partial(class_sums_sensitivity, n_features, neighbors=privacy.neighbors)
    return _make_release(budget, sensitivity, n_classes * (1 + n_features))


def cells_release(privacy: Privacy) -> Release:
    """Return the release of the cell counts of two classes."""
    budget = allot_budget(privacy, of="cells", n_classes=2)
    return Release(budget, cell_sensitivity(privacy.neighbors), 1, 2 * N_CELLS)
