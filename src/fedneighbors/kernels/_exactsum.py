"""Exact fixed-point column sums of floats and of their squares, independent of row order.

A value is truncated towards zero to an integer multiple of 2**-200; the square of this truncated
value is an exact multiple of 2**-400. Sums are stored in limbs of 32 bits, each in a signed 64-bit
integer: ``value = sum(limb[k] << 32 * k)``. Limbs of different parties are added element by
element; with fewer than 2**29 rows in total, no limb can overflow.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit, uint64

QUANTUM_BITS = 200
MAX_MAGNITUDE = 2.0**200
# The mantissa of a value below 2**200 begins at bit 200 + 200 - 53 = 347 or lower and spans three
# limbs from limb 347 // 32 = 10. The square is added in three parts, of which the highest begins at
# bit 2 * 347 + 64 = 758 or lower and also spans three limbs, from limb 23.
N_SUM_LIMBS = 13
N_SQUARE_LIMBS = 26

_LOW_32_BITS = np.uint64(0xFFFFFFFF)
_MANTISSA_MASK = np.uint64((1 << 52) - 1)
_IMPLICIT_BIT = np.uint64(1 << 52)


@njit(cache=True, nogil=True, inline="always")
def _add(limbs: Any, value: Any, position: Any, sign: int) -> None:
    """Add ``sign * value * 2**position`` to the limbs.

    ``value`` is a uint64; ``position`` is a bit number, and limb ``position // 32`` contains that
    bit.
    """
    k = position >> 5  # index of the limb
    shift = uint64(position & 31)
    low = (value & _LOW_32_BITS) << shift
    high = (value >> uint64(32)) << shift
    limbs[k] += sign * np.int64(low & _LOW_32_BITS)
    limbs[k + 1] += sign * np.int64((low >> uint64(32)) + (high & _LOW_32_BITS))
    limbs[k + 2] += sign * np.int64(high >> uint64(32))


@njit(cache=True, nogil=True)
def _accumulate(bits: Any, sums: Any, squares: Any) -> None:
    n_rows, n_columns = bits.shape
    for i in range(n_rows):
        for j in range(n_columns):
            word = bits[i, j]
            exponent: Any = np.int64((word >> uint64(52)) & uint64(0x7FF))
            mantissa = word & _MANTISSA_MASK
            if exponent > 0:
                mantissa |= _IMPLICIT_BIT
            else:
                exponent = 1  # zero or denormal
            position: Any = exponent - 1075 + QUANTUM_BITS
            if position < 0:
                if position <= -53:
                    continue
                mantissa >>= uint64(-position)
                position = 0
            sign = -1 if word >> uint64(63) else 1
            _add(sums[j], mantissa, position, sign)
            high = mantissa >> uint64(32)
            low = mantissa & _LOW_32_BITS
            _add(squares[j], low * low, 2 * position, 1)
            _add(squares[j], uint64(2) * high * low, 2 * position + 32, 1)
            _add(squares[j], high * high, 2 * position + 64, 1)


def exact_moments(
    x: npt.NDArray[np.float64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return exact column sums of values and of squares.

    Parameters
    ----------
    x : float64 array of shape (n_rows, n_columns)
        Finite values.

    Returns
    -------
    sums : int64 array of shape (n_columns, 13)
        Limbs of the sum, in units of 2**-200.
    squares : int64 array of shape (n_columns, 26)
        Limbs of the sum of squares, in units of 2**-400.

    Raises
    ------
    ValueError
        If a value is NaN, infinite or at least 2**200 in magnitude, or if there are 2**29 rows or
        more.
    """
    if len(x) >= 1 << 29:
        raise ValueError(f"expected fewer than 2**29 rows, got {len(x)}; use fewer rows")
    if not np.all(np.abs(x) < MAX_MAGNITUDE):
        raise ValueError(
            f"expected finite values below {MAX_MAGNITUDE:.3g} in magnitude; rescale the column"
        )
    sums = np.zeros((x.shape[1], N_SUM_LIMBS), np.int64)
    squares = np.zeros((x.shape[1], N_SQUARE_LIMBS), np.int64)
    _accumulate(np.ascontiguousarray(x, np.float64).view(np.uint64), sums, squares)
    return sums, squares
