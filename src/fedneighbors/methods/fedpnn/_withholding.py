"""What of a party's table may enter anything that leaves: nothing that stands for few records.

Few records are fewer than ``min_count`` and more than none. That goes for the rows of a class, for
the cells of a class that a column has, and for those that it lacks.
"""

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats, Integers

Booleans = npt.NDArray[np.bool_]


def in_usual_classes(y: npt.NDArray[np.generic], *, min_count: int) -> Booleans:
    """Return which rows are of classes that have at least ``min_count`` of them."""
    _, label, sizes = np.unique(y, return_inverse=True, return_counts=True)
    return np.asarray(sizes[label] >= min_count)


def without_few_cells(x: Floats, labels: Integers, *, min_count: int) -> Floats:
    """Return the table without the cells of a class in columns that have few of it.

    Parameters
    ----------
    x : float64 array of shape (n_rows, n_features)
        Missing cells are NaN.
    labels : int64 array of shape (n_rows,)
        Positions of the classes, each of at least ``min_count`` rows.
    min_count : int
        Fewer cells are few.

    Returns
    -------
    float64 array of shape (n_rows, n_features)
        NaN where few cells were.

    Examples
    --------
    >>> x = np.array([[1.0, 1.0], [np.nan, 2.0], [np.nan, 3.0]])
    >>> without_few_cells(x, np.zeros(3, int), min_count=2).tolist()
    [[nan, 1.0], [nan, 2.0], [nan, 3.0]]
    """
    kept = x.copy()
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        held = (~np.isnan(x[rows])).sum(axis=0)
        few = np.flatnonzero((held > 0) & (held < min_count))
        kept[np.ix_(rows, few)] = np.nan
    return kept


def cells_left_out(gone: Booleans, *, min_count: int) -> Booleans:
    """Return which cells of one class sums leave out, so that their number tells of few nowhere.

    Where few are missing, the first of the others are left out with them, up to ``min_count``; a
    column of which few would remain is left out whole.

    Parameters
    ----------
    gone : bool array of shape (n_rows, n_features)
        Missing cells.
    min_count : int
        Fewer cells are few.

    Examples
    --------
    >>> gone = np.array([[0, 0], [0, 0], [1, 0], [0, 0], [0, 0]], bool)
    >>> cells_left_out(gone, min_count=2).T.astype(int).tolist()
    [[1, 0, 1, 0, 0], [0, 0, 0, 0, 0]]
    """
    out = gone.copy()
    n_gone = gone.sum(axis=0)
    wanting = np.flatnonzero((n_gone > 0) & (n_gone < min_count))
    others = ~gone[:, wanting]
    out[:, wanting] |= others & (others.cumsum(axis=0) <= min_count - n_gone[wanting])
    out[:, len(gone) - out.sum(axis=0) < min_count] = True
    return out


def without_few_told(told: Floats, labels: Integers, *, min_count: int) -> Floats:
    """Return coordinates that tell missing cells, made equal where they differ for few of a class.

    Parameters
    ----------
    told : float64 array of shape (n_rows, n_coordinates)
        1 where a cell is missing, else 0.
    labels : int64 array of shape (n_rows,)
        Positions of the classes.
    min_count : int
        Fewer rows are few.

    Examples
    --------
    >>> told = np.array([[1.0, 1.0], [0.0, 1.0], [0.0, 1.0], [0.0, 0.0]])
    >>> without_few_told(told, np.zeros(4, int), min_count=2).T.tolist()
    [[0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]]
    """
    even = told.copy()
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        n_told = told[rows].sum(axis=0)
        few, all_but_few = n_told < min_count, len(rows) - n_told < min_count
        even[np.ix_(rows, np.flatnonzero(few))] = 0.0
        even[np.ix_(rows, np.flatnonzero(all_but_few & ~few))] = 1.0
    return even
