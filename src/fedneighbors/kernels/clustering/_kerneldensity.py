"""Logarithms of kernel sums around the centers of each class, for many rows.

A squared distance is summed over features in groups of four, ``s + ((0 + 1) + (2 + 3))``; the end
group is padded with zeros. All terms are relative to the nearest center of a class, so that sums do
not underflow, even if the kernel is very narrow.
"""

import math
from typing import Any

import numpy as np
from numba import njit

from fedneighbors._typing import Floats, Integers
from fedneighbors.kernels.clustering._evolving import RowThreads

ACTIVATIONS = ("gaussian", "logistic", "cauchy")
_GAUSSIAN, _LOGISTIC = 0, 1
_GROUP = 4  # features that are summed together
# The squares of these bounds, times n_features, neither overflow nor underflow.
_MIN_SIGMA, _MAX_SIGMA = 1e-100, 1e100
_ROUNDING_SHIFT = 1.5 * 2.0**52  # adding it to a number rounds that to an integer, in the low bits
_ONE_OVER_LOG_2 = 1.4426950408889634
# Their sum is log(2) to more bits than a float has; _LOG_2_HIGH times ``power`` is exact,
# because its last 21 bits are 0.
_LOG_2_HIGH, _LOG_2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10


@njit(cache=True, nogil=True)
def _write_squares(x: Any, i: Any, columns: Any, row: Any, out: Any) -> None:
    """Write the sums of squared differences between row ``i`` and all centers."""
    for k in range(x.shape[1]):
        row[k] = x[i, k]
    out[:] = 0.0
    for k in range(0, row.shape[0], _GROUP):
        v0, v1, v2, v3 = row[k], row[k + 1], row[k + 2], row[k + 3]
        c0, c1, c2, c3 = columns[k], columns[k + 1], columns[k + 2], columns[k + 3]
        for j in range(out.shape[0]):
            d0, d1, d2, d3 = v0 - c0[j], v1 - c1[j], v2 - c2[j], v3 - c3[j]
            out[j] += (d0 * d0 + d1 * d1) + (d2 * d2 + d3 * d3)


@njit(cache=True, nogil=True, inline="always")
def _exp_minus(x: Any) -> Any:
    """Return exp(-x) for x of 0 or more.

    The relative error is at most 2**-51; values of x above 700 give exp(-700). Only arithmetic is
    used, so that loops are vectorized: 1.5 ns instead of 5 ns for a call of ``exp``.
    """
    bounded = x if x < 700.0 else 700.0
    shifted = bounded * -_ONE_OVER_LOG_2 + _ROUNDING_SHIFT  # the low bits now hold the power of two
    power = shifted - _ROUNDING_SHIFT
    remainder = (-bounded - power * _LOG_2_HIGH) - power * _LOG_2_LOW
    # the Taylor series up to remainder**12, where |remainder| is below 0.35
    series = remainder * (1.0 / 479001600) + 1.0 / 39916800
    series = series * remainder + 1.0 / 3628800
    series = series * remainder + 1.0 / 362880
    series = series * remainder + 1.0 / 40320
    series = series * remainder + 1.0 / 5040
    series = series * remainder + 1.0 / 720
    series = series * remainder + 1.0 / 120
    series = series * remainder + 1.0 / 24
    series = series * remainder + 1.0 / 6
    series = series * remainder + 1.0 / 2
    series = series * remainder + 1.0
    series = series * remainder + 1.0
    bits = np.float64(series).view(np.int64) + (np.float64(shifted).view(np.int64) << 52)
    return np.int64(bits).view(np.float64)


@njit(cache=True, nogil=True)
def _sum_terms(terms: Any) -> Any:
    n = terms.shape[0]
    n_grouped = n - n % 4
    s0 = s1 = s2 = s3 = 0.0
    for j in range(0, n_grouped, 4):
        s0 += terms[j]
        s1 += terms[j + 1]
        s2 += terms[j + 2]
        s3 += terms[j + 3]
    for j in range(n_grouped, n):
        s0 += terms[j]
    return (s0 + s2) + (s1 + s3)


@njit(cache=True, nogil=True)
def _log_sum_gaussian(squares: Any, least: Any, factor: Any) -> Any:
    """Return the log sum of exp(-u**2 / 2).

    ``u**2`` is an element of ``squares`` times ``factor``; ``least`` is the least element.
    Overwrites ``squares``.
    """
    half = 0.5 * factor
    for j in range(squares.shape[0]):
        squares[j] = _exp_minus((squares[j] - least) * half)
    return math.log(_sum_terms(squares)) - least * half


@njit(cache=True, nogil=True, error_model="numpy")  # divisors are at least 1: no check for 0
def _log_sum_logistic(squares: Any, least: Any, factor: Any) -> Any:
    """Return the log sum of 1 / (exp(u) + 2 + exp(-u)).

    Arguments as for :func:`_log_sum_gaussian`.
    """
    least_u = math.sqrt(least * factor)
    greatest_exp = math.exp(-least_u)
    for j in range(squares.shape[0]):
        ratio = _exp_minus(math.sqrt(squares[j] * factor) - least_u)
        squares[j] = ratio / ((1.0 + ratio * greatest_exp) * (1.0 + ratio * greatest_exp))
    return math.log(_sum_terms(squares)) - least_u


@njit(cache=True, nogil=True, error_model="numpy")  # divisors are at least 1: no check for 0
def _log_sum_cauchy(squares: Any, least: Any, factor: Any) -> Any:
    """Return the log sum of 1 / (1 + u**2).

    Arguments as for :func:`_log_sum_gaussian`.
    """
    least_divisor = 1.0 + least * factor
    for j in range(squares.shape[0]):
        squares[j] = least_divisor / (1.0 + squares[j] * factor)
    return math.log(_sum_terms(squares)) - math.log(least_divisor)


@njit(cache=True, nogil=True)
def _write_log_sums(
    x: Any, first: Any, end: Any, columns: Any, starts: Any, without: Any, kernel: Any, out: Any
) -> None:
    """Write the log sums of the rows before ``end``, beginning with ``first``."""
    factor, activation = kernel
    row, squares = np.zeros(columns.shape[0]), np.empty(columns.shape[1])
    for i in range(first, end):
        _write_squares(x, i, columns, row, squares)
        if without[i] >= 0:
            squares[without[i]] = np.inf
        for c in range(out.shape[1]):
            class_squares = squares[starts[c] : starts[c + 1]]
            nearest_square = np.inf
            for square in class_squares:
                nearest_square = square if square < nearest_square else nearest_square
            if not nearest_square * factor < np.inf:
                out[i, c] = -np.inf
            elif activation == _GAUSSIAN:
                out[i, c] = _log_sum_gaussian(class_squares, nearest_square, factor)
            elif activation == _LOGISTIC:
                out[i, c] = _log_sum_logistic(class_squares, nearest_square, factor)
            else:
                out[i, c] = _log_sum_cauchy(class_squares, nearest_square, factor)


def log_sums(
    x: Floats,
    centers: Floats,
    starts: Integers,
    *,
    sigma: float,
    activation: str = "gaussian",
    without: Integers | None = None,
    n_threads: int = 1,
) -> Floats:
    """Return log sums of kernels around the centers of each class.

    With ``u = d / sigma`` and ``d`` the root mean squared difference between a row and a center,
    the kernels are ``exp(-u**2 / 2)``, ``1 / (exp(u) + 2 + exp(-u))`` and ``1 / (1 + u**2)``.

    Parameters
    ----------
    x : float64 array of shape (n_rows, n_features)
        Finite.
    centers : float64 array of shape (n_centers, n_features)
        Finite; the centers of a class are contiguous.
    starts : int64 array of shape (n_classes + 1,)
        Index of the first center of each class, followed by ``n_centers``.
    sigma : float
        Width of the kernel, from 1e-100 to 1e100.
    activation : {"gaussian", "logistic", "cauchy"}
        Kernel function.
    without : int64 array of shape (n_rows,), optional
        Center that is left out for each row; -1 for none.
    n_threads : int
        Number of threads. Does not affect the result.

    Returns
    -------
    float64 array of shape (n_rows, n_classes)
        -inf for a class without centers, or if its squared distances overflow.

    Raises
    ------
    ValueError
        If shapes disagree or an argument is out of range.

    Examples
    --------
    >>> x, centers = np.array([[0.0, 0.0]]), np.array([[0.0, 0.0], [2.0, 2.0]])
    >>> log_sums(x, centers, np.array([0, 1, 2]), sigma=1.0)
    array([[ 0., -2.]])
    """
    left_out = np.full(len(x), -1) if without is None else without
    _check_arrays(x, centers, starts, left_out)
    if not _MIN_SIGMA <= sigma <= _MAX_SIGMA:
        raise ValueError(f"expected sigma from {_MIN_SIGMA} to {_MAX_SIGMA}, got {sigma!r}")
    if activation not in ACTIVATIONS:
        raise ValueError(f"expected activation as one of {ACTIVATIONS}, got {activation!r}")
    if n_threads < 1:
        raise ValueError(f"expected n_threads of at least 1, got {n_threads}")
    n_columns = x.shape[1]
    columns = np.zeros((-(-n_columns // _GROUP) * _GROUP, len(centers)))
    columns[:n_columns] = centers.T
    kernel = 1.0 / (n_columns * sigma * sigma), ACTIVATIONS.index(activation)
    out = np.empty((len(x), len(starts) - 1))
    # writable, because the loops are not compiled for read-only arrays
    rows = np.require(x, np.float64, ["C", "W"])
    class_starts, omitted = (np.require(part, np.int64, ["C", "W"]) for part in (starts, left_out))
    arrays = columns, class_starts, omitted, kernel, out
    with RowThreads(n_threads) as threads:
        threads.share(lambda _, first, end: _write_log_sums(rows, first, end, *arrays), 0, len(x))
    return out


def _check_arrays(x: Floats, centers: Floats, starts: Integers, without: Integers) -> None:
    """Check the arrays that the loop reads without checks."""
    if x.ndim != 2 or centers.ndim != 2 or x.shape[1] != centers.shape[1] or x.shape[1] == 0:
        raise ValueError(
            f"expected rows and centers with the same columns, 1 or more, got {x.shape} and "
            f"{centers.shape}"
        )
    if starts.ndim != 1 or len(starts) < 2 or starts[0] != 0 or starts[-1] != len(centers):
        raise ValueError(f"expected starts from 0 to {len(centers)}, got {starts.tolist()[:10]}")
    if (np.diff(starts) < 0).any():
        raise ValueError("expected ascending starts, got a start below its predecessor")
    if without.shape != x.shape[:1] or (without >= len(centers)).any():
        raise ValueError(
            f"expected without to contain a center below {len(centers)}, or -1, for each row"
        )
