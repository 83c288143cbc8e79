"""Gower distances of rows with numbers and categories."""

# mypy: allow-untyped-defs
# (the untyped functions are compiled; Numba infers their types)

import numpy as np
import numpy.typing as npt
from numba import njit

from fedneighbors._typing import Floats

_BLOCK = 1024  # rows whose sums stay in the cache while the columns are read


@njit(cache=True, nogil=True, error_model="numpy")  # no check of the divisor, which is not 0
def _gower(columns, is_category, query, start, out):
    totals, counts = np.empty(_BLOCK), np.empty(_BLOCK)
    for first in range(0, out.shape[0], _BLOCK):
        size = min(_BLOCK, out.shape[0] - first)
        begin = start + first
        totals[:] = 0.0
        counts[:] = 0.0
        for j in range(columns.shape[0]):
            column, value = columns[j, begin : begin + size], query[j]
            if is_category[j]:
                for i in range(size):
                    known = column[i] == column[i] and value == value
                    totals[i] += 1.0 if known and column[i] != value else 0.0
                    counts[i] += 1.0 if known else 0.0
            else:
                for i in range(size):
                    difference = abs(column[i] - value)
                    known = difference == difference  # NaN: a cell is missing
                    totals[i] += difference if known else 0.0
                    counts[i] += 1.0 if known else 0.0
        for i in range(size):
            out[first + i] = totals[i] / counts[i] if counts[i] > 0 else 1.0


def gower_distances(
    columns: Floats,
    is_category: npt.NDArray[np.bool_],
    query: Floats,
    rows: slice = slice(None),
) -> Floats:
    """Return the mean difference of each row and a query.

    Differences of numbers are absolute; those of categories are 0 or 1. Columns in which a cell is
    missing are left out; the distance is 1 if no column remains. Differences are added in the order
    of the columns.

    Parameters
    ----------
    columns : float64 array of shape (n_columns, n_rows), C order
        Numbers from 0 to 1, and numbers of categories; NaN for a missing cell.
    is_category : bool array of shape (n_columns,)
        Whether each column contains categories.
    query : float64 array of shape (n_columns,)
        A row.
    rows : slice
        Consecutive rows to compare; by default all.

    Returns
    -------
    float64 array of shape (n_rows,)
        From 0 to 1.

    Raises
    ------
    ValueError
        If the numbers of columns disagree.
    """
    if not len(columns) == len(is_category) == len(query):
        raise ValueError(f"expected {len(columns)} kinds and cells, got {len(query)} cells")
    first, end, _ = rows.indices(columns.shape[1])
    out = np.empty(max(end - first, 0))
    _gower(columns, is_category, query, first, out)
    return out
