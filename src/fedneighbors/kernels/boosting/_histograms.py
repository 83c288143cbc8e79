"""Sums of integer gradients by bin of each column, and rows on each side of a split."""

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from fedneighbors._typing import Integers


@njit(cache=True, nogil=True)
def _add_rows(bins: Any, starts: Any, rows: Any, gradients: Any, hessians: Any, out: Any) -> None:
    for j in range(starts.size - 1):
        column = bins[j]
        first = starts[j]
        for i in range(rows.size):
            cell = first + column[rows[i]]
            out[cell, 0] += gradients[i]
            out[cell, 1] += hessians[i]
            out[cell, 2] += 1


@njit(cache=True, nogil=True)
def _add_gradients(bins: Any, starts: Any, rows: Any, gradients: Any, out: Any) -> None:
    for j in range(starts.size - 1):
        column = bins[j]
        first = starts[j]
        for i in range(rows.size):
            cell = first + column[rows[i]]
            out[cell, 0] += gradients[i]
            out[cell, 2] += 1


def sum_bins(
    bins: npt.NDArray[np.uint8],
    starts: Integers,
    rows: npt.NDArray[np.intp],
    gradients: Integers,
    hessians: Integers | None,
    *,
    out: Integers,
) -> None:
    """Add the gradients, Hessians and numbers of rows to their bins.

    Parameters
    ----------
    bins : uint8 array of shape (n_features, n_rows)
        Bin of each cell, below the column's number of bins.
    starts : int64 array of shape (n_features + 1,)
        First bin of each column in ``out``, and the total number of bins.
    rows : intp array of shape (n_selected,)
        Indices of the rows to sum.
    gradients, hessians : int64 arrays of shape (n_rows,)
        Integers whose sums fit into 64 bits. None for Hessians of 1 in each row, which are not
        added.
    out : int64 array of shape (n_bins, 3)
        Sum of gradients, sum of Hessians and number of rows of each bin; changed in place.
    """
    if hessians is None:
        _add_gradients(bins, starts, rows, gradients[rows], out)
    else:
        _add_rows(bins, starts, rows, gradients[rows], hessians[rows], out)


@njit(cache=True, nogil=True)
def _split(column: Any, rows: Any, last: int, extra: int) -> Any:
    result, right = np.empty_like(rows), np.empty_like(rows)
    n_left, n_right = 0, 0
    for i in range(rows.size):
        row = rows[i]
        cell = column[row]
        goes_left = cell <= last or cell == extra
        result[n_left] = row
        right[n_right] = row
        n_left += goes_left
        n_right += not goes_left
    result[n_left:] = right[:n_right]
    return result[:n_left], result[n_left:]


def split_rows(
    column: npt.NDArray[np.uint8], rows: npt.NDArray[np.intp], *, last: int, extra: int
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return the rows on the left and right of a split.

    Parameters
    ----------
    column : uint8 array of shape (n_rows,)
        Bin of each row.
    rows : intp array of shape (n_selected,)
        Indices of the rows to split.
    last : int
        Rows up to this bin go left.
    extra : int
        A further bin whose rows go left.

    Returns
    -------
    left, right : intp arrays
        Both in the order of ``rows``.
    """
    left, right = _split(column, rows, last, extra)
    return left, right
