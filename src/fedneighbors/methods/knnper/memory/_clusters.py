"""Weighted k-means with a fixed order of additions, so that equal rows give equal centers."""

import numpy as np

from fedneighbors._typing import Floats, Integers
from fedneighbors.kernels.vectors._distances import square_sums

MAX_STEPS = 25


def cluster(
    rows: Floats, n_centers: int, *, weights: Floats | None = None, random_state: int = 0
) -> tuple[Floats, Integers]:
    """Return centers of rows, and the center of each row.

    Parameters
    ----------
    rows : float64 array of shape (n_rows, n_columns), C order
        Finite, with finite squared distances.
    n_centers : int
        Maximum number of centers. If there are fewer distinct rows, each is a center.
    weights : float64 array of shape (n_rows,), optional
        Number of rows represented by each row, above 0.
    random_state : int
        Seed of the initial centers.

    Returns
    -------
    centers : float64 array of shape (n, n_columns)
        Each is the nearest of at least one row.
    owners : int64 array of shape (n_rows,)
        The nearest center of each row; ties go to the earlier center.

    Raises
    ------
    ValueError
        If ``n_centers`` is below 1 or a weight is not above 0.
    """
    weights = np.ones(len(rows)) if weights is None else weights
    if n_centers < 1 or not (weights > 0).all():
        raise ValueError(f"expected at least one center and weights above 0, got {n_centers}")
    centers = first_centers(rows, n_centers, weights, np.random.default_rng(random_state))
    owners = _owners(rows, centers)
    for _ in range(MAX_STEPS):
        centers = move_centers(rows, weights, centers, owners)
        before, owners = owners, _owners(rows, centers)
        if np.array_equal(before, owners):
            break
    kept = np.unique(owners)
    return centers[kept], np.searchsorted(kept, owners)


def first_centers(
    rows: Floats, n_centers: int, weights: Floats, random: np.random.Generator
) -> Floats:
    """Choose initial centers by k-means++.

    Rows are drawn by squared distance to the chosen ones.

    Parameters
    ----------
    rows, n_centers, weights
        As in :func:`cluster`.
    random : Generator
        Generator; one number is drawn per center.

    Returns
    -------
    float64 array of shape (n, n_columns)
        Fewer than ``n_centers`` if all remaining rows equal a chosen one.
    """
    chosen: list[int] = []
    squares = np.ones(len(rows))
    while len(chosen) < n_centers and len(rows):
        heights = np.cumsum(weights * squares)
        if not heights[-1] > 0:
            break
        place = int(np.searchsorted(heights, random.random() * heights[-1], side="right"))
        # Rounding can raise the product to the total, which is beyond all rows.
        chosen.append(min(place, int(np.flatnonzero(squares)[-1])))
        apart = square_sums(rows, rows[chosen[-1]])
        squares = apart if len(chosen) == 1 else np.minimum(squares, apart)
    return rows[chosen]


def move_centers(rows: Floats, weights: Floats, centers: Floats, owners: Integers) -> Floats:
    """Move centers to the means of their rows.

    Centers without rows stay in place.

    Parameters
    ----------
    rows, weights
        As in :func:`cluster`.
    centers : float64 array of shape (n, n_columns)
        Positions of the centers.
    owners : int64 array of shape (n_rows,)
        Center of each row.
    """
    sums = np.zeros_like(centers)
    np.add.at(sums, owners, weights[:, None] * rows)  # row by row: a fixed order of additions
    totals = np.bincount(owners, weights, minlength=len(centers))
    full = totals > 0
    sums[full] /= totals[full, None]
    sums[~full] = centers[~full]
    return sums


def _owners(rows: Floats, centers: Floats) -> Integers:
    if not len(rows):
        return np.empty(0, np.int64)
    squares = np.stack([square_sums(rows, center) for center in centers])
    return np.asarray(squares.argmin(axis=0), np.int64)
