"""Weighted k-means with a fixed order of additions.

Results are therefore identical bit for bit on every machine and in every run.
"""

import numpy as np

from fedneighbors._typing import Floats, Integers
from fedneighbors.kernels.vectors._distances import square_sums

MAX_STEPS = 25
"""Maximum number of k-means iterations; it bounds the time without convergence."""


def cluster(
    rows: Floats, n_centers: int, *, weights: Floats | None = None, random_state: int = 0
) -> tuple[Floats, Integers]:
    """Return centers of rows, and the index of each row's nearest center.

    Parameters
    ----------
    rows : float64 array of shape (n_rows, n_columns), C order
        Finite, with finite squared distances.
    n_centers : int
        Maximum number of centers.
    weights : float64 array of shape (n_rows,), optional
        Number of rows represented by each row, above 0.
    random_state : int
        Seed of the initial centers.

    Returns
    -------
    centers : float64 array of shape (n, n_columns)
        Each is the nearest center of at least one row.
    nearest : int64 array of shape (n_rows,)
        Index of each row's nearest center; ties go to the lower index.

    Raises
    ------
    ValueError
        If ``n_centers`` is below 1 or a weight is not above 0.
    """
    weights = np.ones(len(rows)) if weights is None else weights
    if n_centers < 1 or not (weights > 0).all():
        raise ValueError(f"expected at least one center (got {n_centers}) and weights above 0")
    centers = draw_centers(rows, n_centers, weights, np.random.default_rng(random_state))
    nearest = _nearest_centers(rows, centers)
    for _ in range(MAX_STEPS):
        centers = move_centers(rows, weights, centers, nearest)
        before, nearest = nearest, _nearest_centers(rows, centers)
        if np.array_equal(before, nearest):
            break
    used = np.unique(nearest)
    return centers[used], np.searchsorted(used, nearest)


def draw_centers(
    rows: Floats, n_centers: int, weights: Floats, random: np.random.Generator
) -> Floats:
    """Draw initial centers by k-means++.

    The first row is drawn in proportion to its weight; each further row in proportion to its weight
    times its squared distance to the nearest row drawn so far.

    Parameters
    ----------
    rows, n_centers, weights
        As in :func:`cluster`.
    random : Generator
        Random generator; it draws one number per center.

    Returns
    -------
    float64 array of shape (n, n_columns)
        Fewer than ``n_centers`` if every other row equals a drawn one.
    """
    indices: list[int] = []
    squares = np.ones(len(rows))
    while len(indices) < n_centers and len(rows):
        sums = np.cumsum(weights * squares)
        if not sums[-1] > 0:
            break
        row = int(np.searchsorted(sums, random.random() * sums[-1], side="right"))
        # random() * sums[-1] can round up to sums[-1]; searchsorted then returns len(rows).
        indices.append(min(row, int(np.flatnonzero(squares)[-1])))
        new_squares = square_sums(rows, rows[indices[-1]])
        squares = new_squares if len(indices) == 1 else np.minimum(squares, new_squares)
    return rows[indices]


def move_centers(rows: Floats, weights: Floats, centers: Floats, nearest: Integers) -> Floats:
    """Return the weighted mean of each center's rows.

    A center without rows is returned unchanged.

    Parameters
    ----------
    rows, weights
        As in :func:`cluster`.
    centers : float64 array of shape (n, n_columns)
        Current centers.
    nearest : int64 array of shape (n_rows,)
        Index of each row's center.
    """
    sums = np.zeros_like(centers)
    np.add.at(sums, nearest, weights[:, None] * rows)  # row by row: a fixed order of additions
    totals = np.bincount(nearest, weights, minlength=len(centers))
    has_rows = totals > 0
    sums[has_rows] /= totals[has_rows, None]
    sums[~has_rows] = centers[~has_rows]
    return sums


def _nearest_centers(rows: Floats, centers: Floats) -> Integers:
    if not len(rows):
        return np.empty(0, np.int64)
    squares = np.stack([square_sums(rows, center) for center in centers])
    return np.asarray(squares.argmin(axis=0), np.int64)
