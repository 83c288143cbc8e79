"""Distances from one query to rows of a table, summed in a fixed order.

A distance depends on its row and the query alone, not on the machine, the other rows or the row's
position. It is summed in eight accumulators (lanes): element ``j`` is added to lane ``j % 8``, a
remainder of fewer than eight elements to lane 0; the lanes are then added as
``((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7))``. Great-circle distances between points on the Earth
use the haversine formula.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from fedneighbors._typing import Floats

EARTH_RADIUS_M = 6_371_008.8
"""Mean radius of the Earth (IUGG), metres."""

_RADIANS = math.pi / 180.0


@njit(cache=True, nogil=True, inline="always")
def _sum_of_squares(x: Any, i: Any, query: Any) -> Any:
    # Eight separate lanes let additions in a fixed order use vector instructions: 8.6 ms instead of
    # 13.4 ms with one running sum for 20,000 rows of 784 elements.
    n = x.shape[1]
    n_in_lanes = n - n % 8
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = 0.0
    for j in range(0, n_in_lanes, 8):
        d0 = x[i, j] - query[j]
        d1 = x[i, j + 1] - query[j + 1]
        d2 = x[i, j + 2] - query[j + 2]
        d3 = x[i, j + 3] - query[j + 3]
        d4 = x[i, j + 4] - query[j + 4]
        d5 = x[i, j + 5] - query[j + 5]
        d6 = x[i, j + 6] - query[j + 6]
        d7 = x[i, j + 7] - query[j + 7]
        s0 += d0 * d0
        s1 += d1 * d1
        s2 += d2 * d2
        s3 += d3 * d3
        s4 += d4 * d4
        s5 += d5 * d5
        s6 += d6 * d6
        s7 += d7 * d7
    for j in range(n_in_lanes, n):
        d0 = x[i, j] - query[j]
        s0 += d0 * d0
    return ((s0 + s4) + (s2 + s6)) + ((s1 + s5) + (s3 + s7))


@njit(cache=True, nogil=True, inline="always")
def _sum_of_absolutes(x: Any, i: Any, query: Any) -> Any:
    n = x.shape[1]
    n_in_lanes = n - n % 8
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = 0.0
    for j in range(0, n_in_lanes, 8):
        s0 += abs(x[i, j] - query[j])
        s1 += abs(x[i, j + 1] - query[j + 1])
        s2 += abs(x[i, j + 2] - query[j + 2])
        s3 += abs(x[i, j + 3] - query[j + 3])
        s4 += abs(x[i, j + 4] - query[j + 4])
        s5 += abs(x[i, j + 5] - query[j + 5])
        s6 += abs(x[i, j + 6] - query[j + 6])
        s7 += abs(x[i, j + 7] - query[j + 7])
    for j in range(n_in_lanes, n):
        s0 += abs(x[i, j] - query[j])
    return ((s0 + s4) + (s2 + s6)) + ((s1 + s5) + (s3 + s7))


@njit(cache=True, nogil=True)
def _square_sums(x: Any, query: Any, positions: Any, out: Any) -> None:
    for i in range(out.shape[0]):
        row = i if positions is None else positions[i]
        out[i] = _sum_of_squares(x, row, query)


@njit(cache=True, nogil=True)
def _absolute_sums(x: Any, query: Any, positions: Any, out: Any) -> None:
    for i in range(out.shape[0]):
        row = i if positions is None else positions[i]
        out[i] = _sum_of_absolutes(x, row, query)


def square_sums(
    x: npt.NDArray[np.floating[Any]],
    query: Floats,
    positions: npt.NDArray[np.int64] | None = None,
) -> Floats:
    """Return the sums of squared differences between rows and a query.

    Parameters
    ----------
    x : float64 or float32 array of shape (n_rows, n_columns), C order
        Rows. float32 values are converted to float64 first; sums are float64.
    query : float64 array of shape (n_columns,)
        The query.
    positions : int64 array of shape (n,), optional
        Indices of rows, in any order; all rows by default.

    Returns
    -------
    float64 array of shape (n,) or (n_rows,)
        Non-negative; infinite if a square overflows.

    Raises
    ------
    ValueError
        If the lengths disagree or a position is out of range.
    """
    return _sum_rows(_square_sums, x, query, positions)


def absolute_sums(
    x: npt.NDArray[np.floating[Any]],
    query: Floats,
    positions: npt.NDArray[np.int64] | None = None,
) -> Floats:
    """Return the sums of absolute differences between rows and a query.

    Parameters
    ----------
    x : float64 or float32 array of shape (n_rows, n_columns), C order
        Rows. float32 values are converted to float64 first; sums are float64.
    query : float64 array of shape (n_columns,)
        The query.
    positions : int64 array of shape (n,), optional
        Indices of rows, in any order; all rows by default.

    Returns
    -------
    float64 array of shape (n,) or (n_rows,)
        Non-negative.

    Raises
    ------
    ValueError
        If the lengths disagree or a position is out of range.
    """
    return _sum_rows(_absolute_sums, x, query, positions)


def _sum_rows(
    loop: Any,
    x: npt.NDArray[np.floating[Any]],
    query: Floats,
    positions: npt.NDArray[np.int64] | None,
) -> Floats:
    """Check the arguments and run the loop over the rows."""
    if query.shape != x.shape[1:]:
        raise ValueError(f"expected a query of shape {x.shape[1:]}, got {query.shape}")
    if positions is not None:
        _check_positions(positions, len(x))
    out = np.empty(len(x) if positions is None else len(positions))
    loop(x, query, positions, out)
    return out


def _check_positions(positions: npt.NDArray[np.int64], n: int) -> None:
    if len(positions) and not (positions.min() >= 0 and positions.max() < n):
        raise ValueError(f"expected positions from 0 to {n - 1}, got one out of range")


@njit(cache=True, nogil=True)
def _great_circle(places: Any, query: Any, positions: Any, out: Any) -> int:
    # The return on NaN keeps the compiler from vectorizing the loop. If a vector math library was
    # installed, a place's distance could otherwise depend on its position in the loop.
    longitude = query[0] * _RADIANS
    latitude = query[1] * _RADIANS
    for i in range(positions.shape[0]):
        p = positions[i]
        latitude2 = places[p, 1] * _RADIANS
        sine_lat = math.sin((latitude - latitude2) * 0.5)
        sine_lon = math.sin((longitude - places[p, 0] * _RADIANS) * 0.5)
        h = sine_lat * sine_lat + math.cos(latitude) * math.cos(latitude2) * (sine_lon * sine_lon)
        sine = math.sqrt(h)
        if sine > 1.0:  # by rounding; min() would hide NaN
            sine = 1.0
        metres = 2.0 * EARTH_RADIUS_M * math.asin(sine)
        if math.isnan(metres):
            return i
        out[i] = metres
    return -1


def great_circle_m(places: Floats, query: Floats, positions: npt.NDArray[np.int64]) -> Floats:
    """Return the great-circle distances from a query to places, in metres.

    The distance is ``2 R asin(sqrt(h))`` with
    ``h = sin(dlat / 2)**2 + cos(lat1) cos(lat2) sin(dlon / 2)**2``. It is symmetric bit for bit.

    Parameters
    ----------
    places : float64 array of shape (n_places, 2), C order
        Longitude and latitude in degrees.
    query : float64 array of shape (2,)
        Longitude and latitude in degrees.
    positions : int64 array of shape (n,)
        Indices of places.

    Returns
    -------
    float64 array of shape (n,)
        Metres, from 0 to half the circumference.

    Raises
    ------
    ValueError
        If shapes disagree, a position is out of range or a coordinate is not finite.
    """
    if places.shape[1:] != (2,) or query.shape != (2,):
        raise ValueError(
            f"expected places of shape (n, 2) and a query of shape (2,), got {places.shape} and "
            f"{query.shape}"
        )
    _check_positions(positions, len(places))
    out = np.empty(len(positions))
    failed = _great_circle(places, query, positions, out)
    if failed >= 0:
        raise ValueError(f"place {positions[failed]} or the query is not finite; expected degrees")
    return out
