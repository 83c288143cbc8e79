"""Rows and queries that are brought to magnitudes of about one, for products in float32."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from fedneighbors._typing import Floats
from fedneighbors.kernels.vectors._table import ROWS_PER_STEP, TableRows

_SAMPLE_SIZE = 4096
_MAX_QUERY = 2.0**30  # magnitude relative to the rows
_UNDERFLOW = 2.0**-90  # error of products with numbers below 2**-126
_MAX_ERROR = 2.0**60  # bounds of larger errors say nothing: rows have magnitudes of about one
_UNDERFLOW_OF_SQUARES = 2.0**-999
_UNDERFLOW_OF_PRODUCTS = 2.0**-1000


_MAX_FACTOR = 1000  # exponent of a power of two, so that a product with it is exact


@njit(cache=True, nogil=True, error_model="numpy")
def _center(rows: Any, factor: Any, center: Any, limit: Any, out: Any) -> Any:
    """Scale and center rows; count the elements not below a limit."""
    n_beyond = 0
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            value = rows[i, j] * factor - center[j]
            out[i, j] = np.float32(value)
            n_beyond += not abs(value) < limit
    return n_beyond


class Centering:
    """A power of two and a center that bring rows to magnitudes of about one.

    Both are estimated from a sample, of which any result is valid.

    Parameters
    ----------
    rows : array of shape (n_rows, n_columns) or TableRows
        Finite rows, at least one.
    """

    def __init__(self, rows: npt.NDArray[Any] | TableRows) -> None:
        blocks = TableRows.of(rows).blocks()
        largest = max(max(float(block.max()), -float(block.min())) for block in blocks)
        self.exponent = -math.frexp(largest)[1]
        self.center = np.zeros(rows.shape[1])
        self.center = self.sample(rows).mean(axis=0)
        self._rounding = (len(self.center) + 8) * 2.0**-51 * float(np.linalg.norm(self.center))

    def sample(self, rows: npt.NDArray[Any] | TableRows) -> Floats:
        """Return some of the rows, scaled and centered."""
        return self.apply(rows[:: max(1, len(rows) // _SAMPLE_SIZE)])

    def apply(self, rows: npt.NDArray[Any]) -> Floats:
        """Return rows, scaled and centered; infinite if they overflow."""
        scaled = np.ldexp(rows.astype(np.float64, copy=False), self.exponent)
        return np.asarray(scaled - self.center)

    def apply_below(self, rows: Floats, limit: float) -> npt.NDArray[np.float32] | None:
        """Return centered rows as float32, or None beyond a limit."""
        if abs(self.exponent) <= _MAX_FACTOR:
            out = np.empty(rows.shape, np.float32)
            n_beyond = _center(rows, 2.0**self.exponent, self.center, limit, out)
            return None if n_beyond else out
        centered = self.apply(rows)
        is_below = np.abs(centered).max(initial=0.0) < limit
        return centered.astype(np.float32) if is_below else None

    def error_of_products(self, lengths: Floats | float, exponents: Any) -> Floats:
        """Return the errors of products that do not depend on rows.

        With ``q`` a query scaled by a power of two, and ``c`` the center, ``<q, x - c>`` differs
        from a distance in float64 by the number ``<q, c>`` and an error. If the rows have ``n``
        columns, the part of the center in the sum of a distance is rounded by less than
        ``(n / 8 + 12) 2**-53 |q| |c|``, and ``<q, c>`` itself by less than ``n 2**-53 |q| |c|``.
        Products below ``2**-1022`` lose bits, together less than ``2**-1000``.

        Parameters
        ----------
        lengths : float64 array of shape (n_queries,) or float
            Lengths of scaled queries, or of one.
        exponents : int32 array of shape (n_queries,) or int
            Their powers of two.
        """
        lost = np.ldexp(_UNDERFLOW_OF_PRODUCTS, self.exponent + exponents)
        return np.asarray(lengths * self._rounding + lost)


class CenteredRows:
    """Centered rows as float32, and the errors of products with them.

    Parameters
    ----------
    rows : array of shape (n_rows, n_columns) or TableRows
        Finite rows.
    rounding : float
        Twice the error, as a fraction of the squared length.
    of_products : bool
        Bound negative inner products, not half the squared distances.
    """

    def __init__(
        self, rows: npt.NDArray[Any] | TableRows, rounding: float, *, of_products: bool
    ) -> None:
        self._centering = Centering(rows)
        self._of_products = of_products
        self.table = np.empty(rows.shape, np.float32)
        squares = np.empty(len(rows))
        for first in range(0, len(rows), ROWS_PER_STEP):
            block = slice(first, first + ROWS_PER_STEP)
            centered = self._centering.apply(rows[block])
            self.table[block] = centered
            squares[block] = np.einsum("ij,ij->i", centered, centered)
        self._length = math.sqrt(squares.mean())
        errors = rounding * squares / 2 + _UNDERFLOW
        halves = np.zeros(len(rows)) if of_products else squares / 2
        if not of_products:
            # squares below 2**-1022 in the rows' own scale lose bits
            errors += float(np.ldexp(_UNDERFLOW_OF_SQUARES, 2 * self._centering.exponent))
        self._has_bounds = bool(errors.max() < _MAX_ERROR)
        if self._has_bounds:
            self.bounds = (halves - errors).astype(np.float32)
            self.errors = 2 * errors

    def center(self, queries: Floats) -> tuple[npt.NDArray[np.float32] | None, Floats]:
        """Return centered queries and additional errors of each.

        None if products with one may overflow, or if squares of all rows may underflow. Queries of
        inner products are not centered but scaled to the length of the rows, for which their errors
        are smallest.
        """
        if not self._has_bounds:
            return None, np.zeros(len(queries))
        if self._of_products:
            peaks = np.frexp(np.abs(queries).max(axis=1))[1]
            units = np.ldexp(queries, -peaks[:, np.newaxis])
            lengths = np.maximum(np.sqrt(np.einsum("ij,ij->i", units, units)), 0.5)
            exponents = np.frexp(self._length / lengths)[1]
            scaled = np.ldexp(units, exponents[:, np.newaxis])
            lengths = np.ldexp(lengths, exponents)
            errors = self._centering.error_of_products(lengths, exponents - peaks)
            return scaled.astype(np.float32), 2 * errors
        errors, centered = np.zeros(len(queries)), self._centering.apply_below(queries, _MAX_QUERY)
        return centered, errors
