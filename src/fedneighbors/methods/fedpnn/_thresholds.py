"""Thresholds of clusters: one that leaves few enough, and a word on one that leaves too few or all.

A threshold below the distances of rows makes each row a center of its own, one above all of them a
single center of all rows; neither says anything of where the rows lie.
"""

import math
from collections.abc import Sequence

import numpy as np

from fedneighbors._typing import Floats
from fedneighbors.methods.fedpnn.algorithm import evolve_rows

CENTERS_PER_ROOT = 4
"""A threshold that is chosen leaves about four times the root of the rows as centers."""
_HALVINGS = 14


def chosen_threshold(points: Floats, *, factor: float, n_threads: int = 1) -> float:
    """Return the least threshold, to one part in 2**14, that leaves few enough centers.

    Few enough are :data:`CENTERS_PER_ROOT` times the root of the number of rows, before small
    clusters are merged: enough for a density, and far fewer than records.

    Parameters
    ----------
    points : float64 array of shape (n_rows, n_dimensions)
        At least one row.
    factor : float
        Of the threshold, up to which a ball is stretched.
    n_threads : int
        The result does not depend on it.
    """
    most = CENTERS_PER_ROOT * math.sqrt(len(points))
    return _least(points, most, factor=factor, n_threads=n_threads)


def _least(points: Floats, most: float, *, factor: float, n_threads: int) -> float:
    """Return the least threshold, to one part in 2**14, that leaves at most so many centers."""
    labels = np.zeros(len(points), np.int64)
    spans = points.max(axis=0) - points.min(axis=0)
    high = float(np.sqrt((spans**2).mean())) or 1.0  # of the box that holds all: one center
    below, above = 0.0, high
    for _ in range(_HALVINGS):
        middle = (below + above) / 2
        grown = evolve_rows(points, labels, 1, threshold=middle, factor=factor, n_threads=n_threads)
        if len(grown.centers) > most:
            below = middle
        else:
            above = middle
    return above


def advice_on(groups: Sequence[tuple[Floats, int]], *, threshold: float, factor: float) -> str:
    """Return what a threshold does that leaves one center or all rows, and which would not.

    Parameters
    ----------
    groups : sequence of (points, n_centers)
        Rows that were clustered together, float64 of shape (n_rows, n_dimensions), and how many
        centers they left. Rows that are all the same are no matter of a threshold.
    threshold : float
        What was given.
    factor : float
        Of the threshold, up to which a ball is stretched.

    Returns
    -------
    str
        To follow the name of the threshold; empty where there is nothing to say.

    Examples
    --------
    >>> rows = np.arange(40.0)[:, None]
    >>> advice_on([(rows, 1)], threshold=99.0, factor=2.0)
    '=99 leaves a single center; between about 0.502 (25 centers) and 19.5 (one) lie others'
    """
    spread = [(rows, n) for rows, n in groups if (rows != rows[:1]).any()]
    if spread and all(n == 1 for _, n in spread):
        what = "a single center" if len(spread) == 1 else "a single center of each class"
    elif spread and all(2 * n > len(rows) and n >= _n_distinct(rows) for rows, n in spread):
        what = "every distinct row as a center of its own"
    else:
        return ""
    rows = max((rows for rows, _ in spread), key=len)
    most = min(int(CENTERS_PER_ROOT * math.sqrt(len(rows))), _n_distinct(rows) - 1)
    few = _least(rows, most, factor=factor, n_threads=1)
    one = _least(rows, 1, factor=factor, n_threads=1)
    if most == 1:
        return f"={threshold:g} leaves {what}; two rows are one center from about {one:.3g} on"
    return (
        f"={threshold:g} leaves {what}; between about {few:.3g} ({most} centers) and {one:.3g} "
        "(one) lie others"
    )


def _n_distinct(rows: Floats) -> int:
    return len(np.unique(rows, axis=0))
