"""Gower distances of rows with numbers and categories, and lower bounds from bytes.

A cell has a *code* of one byte: a number ``x`` from 0 to 1 the integer nearest to ``254 x``, a
category its number modulo 255, a missing cell 255. With codes ``a`` and ``v`` of two numbers, 254
times their difference is at least ``|a - v| - 1``, since each code is within .5 of its number.
Numbers outside 0 to 1 are clipped first, which increases no difference. Categories of different
codes differ. Codes also show which cells are missing, so that the number ``n`` of common columns,
the divisor of the distance, is exact. The sum of ``max(|a - v| - 1, 0)`` for numbers and of
``254 [a != v]`` for categories over these columns, divided by ``254 n``, is a lower bound of the
distance; it is 1, the distance itself, if ``n`` is 0.

Sums of up to 255 columns fit into 16 bits. They are exact, so that the division, in float32, adds a
relative error of ``2**-24``. The rounding of a code moves ``254 x`` by less than ``2**-45``; this
and the rounding of the distance, of fewer than 260 operations in float64, change it by less than
``2**-40`` of a positive bound. A stored bound is ``2**-20`` of its value lower.
"""

# mypy: allow-untyped-defs
# (the untyped functions are compiled; Numba infers their types)

import numpy as np
import numpy.typing as npt
from numba import njit

from fedneighbors._typing import Floats, Integers
from fedneighbors.kernels.vectors._quantized import RowBounds

Codes = npt.NDArray[np.uint8]
Kinds = npt.NDArray[np.bool_]

CODE_BLOCK = 64
"""Rows whose codes of one column are adjacent."""
MAX_CODED_COLUMNS = 255
_MISSING, _STEPS = 255, 254
MAX_LOSS = 2 / _STEPS
"""Maximum difference of a distance and its bound, apart from rounding, for numbers from 0 to 1."""

_BLOCK = 1024  # rows whose sums stay in the cache while the columns are read


@njit(cache=True, nogil=True, error_model="numpy")  # no check of the divisor, which is not 0
def _gower(columns, is_category, weights, query, start, out):
    totals, counts = np.empty(_BLOCK), np.empty(_BLOCK)
    for first in range(0, out.shape[0], _BLOCK):
        size = min(_BLOCK, out.shape[0] - first)
        begin = start + first
        totals[:] = 0.0
        counts[:] = 0.0
        for j in range(columns.shape[0]):
            column, value = columns[j, begin : begin + size], query[j]
            weight = weights[j]
            if value != value:
                continue
            if is_category[j]:
                for i in range(size):
                    known = column[i] == column[i]
                    totals[i] += weight if known and column[i] != value else 0.0
                    counts[i] += weight if known else 0.0
            else:
                for i in range(size):
                    difference = abs(column[i] - value)
                    known = difference == difference  # NaN: a cell is missing
                    totals[i] += weight * difference if known else 0.0
                    counts[i] += weight if known else 0.0
        for i in range(size):
            out[first + i] = totals[i] / counts[i] if counts[i] > 0 else 1.0


@njit(cache=True, nogil=True, error_model="numpy")
def _gower_at(columns, is_category, weights, query, positions, out):
    for i in range(positions.shape[0]):
        total, count = 0.0, 0.0
        for j in range(columns.shape[0]):
            cell, value = columns[j, positions[i]], query[j]
            if cell == cell and value == value:
                weight = weights[j]
                if is_category[j]:
                    total += weight if cell != value else 0.0
                else:
                    total += weight * abs(cell - value)
                count += weight
        out[i] = total / count if count > 0 else 1.0


@njit(cache=True, nogil=True, error_model="numpy")
def _bound(codes, is_category, query, n_rows, first_block, end_block, bounds, minima):
    totals, counts = np.empty(64, np.uint16), np.empty(64, np.uint8)
    zero, one, full = np.uint8(0), np.uint8(1), np.uint8(254)
    factor = np.float32(1.0 - 2.0**-20)
    for block in range(first_block, end_block):
        totals[:] = 0
        counts[:] = 0
        for j in range(codes.shape[1]):
            column, value = codes[block, j], query[j]
            if value == 255:
                continue
            if is_category[j]:
                for i in range(64):
                    known = column[i] != np.uint8(255)
                    difference = (full if column[i] != value else zero) if known else zero
                    totals[i] = np.uint16(totals[i] + np.uint16(difference))
                    counts[i] = np.uint8(counts[i] + (one if known else zero))
            else:
                for i in range(64):
                    code = column[i]
                    known = code != np.uint8(255)
                    difference = np.uint8(code - value) if code > value else np.uint8(value - code)
                    difference = np.uint8(difference - one) if difference > zero else zero
                    totals[i] = np.uint16(totals[i] + np.uint16(difference if known else zero))
                    counts[i] = np.uint8(counts[i] + (one if known else zero))
        first, lowest = block * 64, np.float32(np.inf)
        for i in range(64):
            divisor = np.float32(254.0) * np.float32(counts[i])
            bound = np.float32(totals[i]) / divisor if counts[i] > 0 else np.float32(1.0)
            bounds[first + i] = bound * factor
        for i in range(n_rows - first, 64):
            bounds[first + i] = np.float32(np.inf)
        for i in range(64):
            lowest = min(lowest, bounds[first + i])
        minima[block] = lowest


def gower_distances(
    columns: Floats,
    is_category: Kinds,
    query: Floats,
    rows: slice | Integers = slice(None),
    *,
    weights: Floats | None = None,
) -> Floats:
    """Return the weighted mean difference of each row and a query.

    Differences of numbers are absolute; those of categories are 0 or 1. Columns in which a cell is
    missing are left out; the distance is 1 if no weight remains. Differences are added in the order
    of the columns.

    Parameters
    ----------
    columns : float64 array of shape (n_columns, n_rows), C order
        Numbers from 0 to 1, and numbers of categories; NaN for a missing cell.
    is_category : bool array of shape (n_columns,)
        Whether each column contains categories.
    query : float64 array of shape (n_columns,)
        A row.
    rows : slice or int64 array
        Consecutive rows to compare, or their positions; by default all.
    weights : float64 array of shape (n_columns,), optional
        Finite, 0 or more; 1 by default.

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
    if weights is None:
        weights = np.ones(len(query))
    if isinstance(rows, slice):
        first, end, _ = rows.indices(columns.shape[1])
        out = np.empty(max(end - first, 0))
        _gower(columns, is_category, weights, query, first, out)
    else:
        out = np.empty(len(rows))
        _gower_at(columns, is_category, weights, query, rows, out)
    return out


def encode_cells(columns: Floats, is_category: Kinds) -> Codes:
    """Return the codes of rows, of shape (n_blocks, n_columns, CODE_BLOCK).

    Parameters
    ----------
    columns, is_category
        As for :func:`gower_distances`; finite or NaN, at most ``MAX_CODED_COLUMNS`` columns.
    """
    n_columns, n_rows = columns.shape
    codes = np.empty((-(-n_rows // CODE_BLOCK), n_columns, CODE_BLOCK), np.uint8)
    padded = np.full(len(codes) * CODE_BLOCK, _MISSING, np.uint8)
    for j, column in enumerate(columns):
        padded[:n_rows] = _encode(column, is_category[j])
        codes[:, j] = padded.reshape(-1, CODE_BLOCK)
    return codes


def _encode(cells: Floats, is_category: Kinds | np.bool_) -> Codes:
    categories = np.floor(np.mod(cells, _MISSING))
    places = np.where(is_category, categories, np.rint(np.clip(cells, 0, 1) * _STEPS))
    return np.where(np.isnan(cells), _MISSING, places).astype(np.uint8)


def bound_distances(codes: Codes, is_category: Kinds, query: Floats, n_rows: int) -> RowBounds:
    """Return lower bounds of Gower distances, to be computed by ``extend``.

    Parameters
    ----------
    codes : uint8 array of shape (n_blocks, n_columns, CODE_BLOCK)
        Codes of the rows.
    is_category, query
        As for :func:`gower_distances`; finite or NaN.
    n_rows : int
        Number of rows. Bounds after the last one are infinite.
    """
    bounds = np.empty(len(codes) * CODE_BLOCK, np.float32)
    minima = np.empty(len(codes), np.float32)
    row = _encode(query, is_category)

    def compute(first: int, end: int) -> None:
        _bound(codes, is_category, row, n_rows, first, end, bounds, minima)

    return RowBounds(bounds, minima, compute)
