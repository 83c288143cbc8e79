"""Compiled loops of evolving clustering, with float32 bounds and float64 distances.

A distance is ``sqrt(s / n_features)``, where ``s`` is the sum of squared differences. Element ``k``
is added to accumulator (lane) ``k % 4``, a remainder of fewer than four elements to lane 0; the
lanes are then added as ``(0 + 2) + (1 + 3)``. "Narrow" values are scaled float32 values, see
:class:`Scaler`.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from fedneighbors.kernels._emission import lowest_bit
from fedneighbors.kernels.vectors._dottiles import (
    GROUP,
    TILE,
    highest,
    multiply_group,
    multiply_one,
    positions_from,
)

# Digests of the kernel files used here; Numba's cache does not notice edits in other files.
USES = {"emission": "5e83461cfaba370e", "vectors/dottiles": "b1a59a9f6fdc24a3"}

NO_CENTER = np.float32(-3e38)  # below any dot product with a center
_MAX_CHANGED = 16  # changes of centers after which a new block of rows is measured
_FLOAT32_UNDERFLOW = 2.0**-100  # bound on a sum's underflow: 2**-146 for each of 2**18 features
# Bound on the relative error of a squared distance: below 2**-52 for each of 2**18 features.
_FLOAT64_ERROR = 2.0**-30


class Scaler(NamedTuple):
    """Conversion of rows to narrow values ``(x - shift) * scale`` within [-1, 1]."""

    shift: Any
    scale: float
    square_factor: float  # a squared distance times this is the narrow sum of squared differences
    error: float  # bound on the error of a dot product, relative to the squared norms


class State(NamedTuple):
    """Centers and radii, with space for more, and a table of narrow centers as columns.

    Column ``j`` holds the narrow center ``c`` and, as its last element,
    ``error * |c|**2 - |c|**2 / 2``. The float32 dot product of ``c`` and a narrow row ``x``, plus
    this element, is at least ``x.c - |c|**2 / 2 - error * |x|**2``.
    """

    centers: Any
    radii: Any
    table: Any


class PassParameters(NamedTuple):
    """Parameters of a clustering pass."""

    limit: float  # largest sum of distance and radius for which a ball is enlarged
    original: bool  # True for the rule of Song and Kasabov
    max_centers: int
    is_measured: bool  # True if nearest centers and distances of the rows were computed before


# Small functions are inlined, because a call copies array arguments field by field, which took a
# third of the time of a pass.
@njit(cache=True, nogil=True, inline="always")
def _compute_square_sum(x: Any, i: Any, centers: Any, j: Any) -> Any:
    # Separate lanes allow vector instructions although the order of additions is fixed.
    n = x.shape[1]
    n_in_lanes = n - n % 4
    s0 = s1 = s2 = s3 = 0.0
    for k in range(0, n_in_lanes, 4):
        d0 = x[i, k] - centers[j, k]
        d1 = x[i, k + 1] - centers[j, k + 1]
        d2 = x[i, k + 2] - centers[j, k + 2]
        d3 = x[i, k + 3] - centers[j, k + 3]
        s0 += d0 * d0
        s1 += d1 * d1
        s2 += d2 * d2
        s3 += d3 * d3
    for k in range(n_in_lanes, n):
        d0 = x[i, k] - centers[j, k]
        s0 += d0 * d0
    return (s0 + s2) + (s1 + s3)


@njit(cache=True, nogil=True, inline="always")
def _compute_distance(x: Any, i: Any, centers: Any, j: Any) -> Any:
    return math.sqrt(_compute_square_sum(x, i, centers, j) / x.shape[1])


@njit(cache=True, nogil=True)
def _write_center(state: Any, scaler: Any, j: Any) -> None:
    """Write center ``j`` into its column of the table."""
    n = state.centers.shape[1]
    norm2 = 0.0
    for k in range(n):
        value = (state.centers[j, k] - scaler.shift[k]) * scaler.scale
        state.table[k, j] = value
        norm2 += value * value
    state.table[n, j] = scaler.error * norm2 - 0.5 * norm2


@njit(cache=True, nogil=True)
def write_centers(state: Any, scaler: Any, n: Any) -> None:
    """Write the first ``n`` centers into the table."""
    for j in range(n):
        _write_center(state, scaler, j)


@njit(cache=True, nogil=True, inline="always")
def _write_narrow(x: Any, i: Any, scaler: Any, out: Any) -> Any:
    """Write row ``i`` as narrow values and return their squared norm."""
    n = x.shape[1]
    for k in range(n):
        out[k] = np.float32((x[i, k] - scaler.shift[k]) * scaler.scale)
    n_in_lanes = n - n % 4
    s0 = s1 = s2 = s3 = 0.0
    for k in range(0, n_in_lanes, 4):
        v0, v1, v2, v3 = float(out[k]), float(out[k + 1]), float(out[k + 2]), float(out[k + 3])
        s0 += v0 * v0
        s1 += v1 * v1
        s2 += v2 * v2
        s3 += v3 * v3
    for k in range(n_in_lanes, n):
        s0 += float(out[k]) * float(out[k])
    return (s0 + s2) + (s1 + s3)


@njit(cache=True, nogil=True)
def _allocate_buffers(state: Any) -> Any:
    """Allocate arrays for a group of narrow rows.

    These are the rows, their dot products with all columns, and the largest dot product at each
    offset in a tile.
    """
    height, stride = state.table.shape
    return (
        np.zeros((GROUP, height - 1), np.float32),
        np.zeros((GROUP, stride), np.float32),
        np.zeros((GROUP, TILE), np.float32),
    )


@njit(cache=True, nogil=True, inline="always")
def _bound_dot(norm2: Any, reach: Any, scaler: Any) -> Any:
    """Bound the dot product with any center within ``reach`` from below.

    ``norm2`` is the squared norm of the narrow row. NaN means that no center can be ruled out.
    """
    square = reach * reach * scaler.square_factor * (1.0 + _FLOAT64_ERROR)
    bound = 0.5 * (norm2 * (1.0 - 2.0 * scaler.error) - square)
    return np.float32(bound - abs(bound) * 2.0**-22 - _FLOAT32_UNDERFLOW)


@njit(cache=True, nogil=True, inline="always")
def _find_nearest(
    x: Any, i: Any, n: Any, norm2: Any, state: Any, scaler: Any, arrays: Any, r: Any
) -> Any:
    """Return the nearest of the first ``n`` centers and its distance.

    Ties go to the center with the lower index.
    """
    _, dots, maxima = arrays
    highest_dot = highest(maxima, r)
    offset = lowest_bit(positions_from(maxima, r, highest_dot))
    best = offset
    for j in range(offset, n, TILE):
        best = j if dots[r, j] == highest_dot else best
    distance = _compute_distance(x, i, state.centers, best)
    lowest = _bound_dot(norm2, distance, scaler)
    offsets = positions_from(maxima, r, lowest)
    if offsets & (offsets - 1) == 0:  # often only the best center itself reaches ``lowest``
        n_left = 0
        for j in range(offset, n, TILE):
            n_left += 0 if dots[r, j] < lowest else 1
        if n_left == 1:
            return best, distance
    while offsets:
        for j in range(lowest_bit(offsets), n, TILE):
            if j == best or dots[r, j] < lowest:
                continue
            other = _compute_distance(x, i, state.centers, j)
            if other < distance or (other == distance and j < best):
                best, distance = j, other
        offsets &= offsets - 1
    return best, distance


@njit(cache=True, nogil=True)
def _find_nearest_of_row(x: Any, i: Any, n: Any, state: Any, scaler: Any, arrays: Any) -> Any:
    """Return a row's nearest center, its distance and the narrow squared norm.

    The dot products with all centers are left in ``arrays``.
    """
    rows, dots, maxima = arrays
    n_features, stride = rows.shape[1], state.table.shape[1]
    norm2 = _write_narrow(x, i, scaler, rows[0])
    maxima[0] = NO_CENTER
    for first_column in range(0, n, TILE):
        multiply_one(rows, state.table, first_column, n_features, stride, dots, maxima)
    best, distance = _find_nearest(x, i, n, norm2, state, scaler, arrays, 0)
    return best, distance, norm2


@njit(cache=True, nogil=True)
def find_nearest_centers(
    x: Any, first: Any, end: Any, n: Any, state: Any, scaler: Any, labels: Any, distances: Any
) -> None:
    """Write each row's nearest center and its distance.

    The rows are ``first`` up to, not including, ``end``.
    """
    arrays = _allocate_buffers(state)
    rows, dots, maxima = arrays
    n_features, stride = rows.shape[1], state.table.shape[1]
    norms2 = np.zeros(GROUP)
    for start in range(first, end, GROUP):
        size = min(GROUP, end - start)
        for r in range(size):
            norms2[r] = _write_narrow(x, start + r, scaler, rows[r])
        maxima[:] = NO_CENTER
        for first_column in range(0, n, TILE):
            multiply_group(rows, state.table, first_column, n_features, stride, dots, maxima)
        for r in range(size):
            i = start + r
            labels[i], distances[i] = _find_nearest(x, i, n, norms2[r], state, scaler, arrays, r)


@njit(cache=True, nogil=True)
def _find_ball(x: Any, i: Any, n: Any, norm2: Any, state: Any, scaler: Any, dots: Any) -> Any:
    """Return the nearest center whose ball contains the row, or -1."""
    best, least = -1, np.inf
    for j in range(n):
        radius = state.radii[j]
        if dots[j] < _bound_dot(norm2, radius, scaler):
            continue
        distance = _compute_distance(x, i, state.centers, j)
        if distance <= radius and distance < least:
            best, least = j, distance
    return best


@njit(cache=True, nogil=True)
def _find_least_sum(
    x: Any, i: Any, n: Any, nearest: Any, norm2: Any, state: Any, scaler: Any, dots: Any
) -> Any:
    """Find the center with the least sum of distance and radius.

    Returns the center, the sum and the distance. The search starts from ``nearest``, the nearest
    center and its distance.
    """
    best, best_distance = nearest
    least = best_distance + state.radii[best]
    for j in range(n):
        radius = state.radii[j]
        # distances above this cannot give the least sum, even though ``least`` is rounded
        reach = (least - radius) * (1.0 + 2.0**-50) + least * 2.0**-50
        if reach < 0.0 or dots[j] < _bound_dot(norm2, reach, scaler):
            continue
        distance = _compute_distance(x, i, state.centers, j)
        total = distance + radius
        if total < least or (total == least and j < best):
            best, least, best_distance = j, total, distance
    return best, least, best_distance


@njit(cache=True, nogil=True)
def _add_center(x: Any, i: Any, state: Any, scaler: Any, j: Any) -> None:
    """Make row ``i`` center ``j``."""
    state.centers[j] = x[i]
    state.radii[j] = 0.0
    _write_center(state, scaler, j)


@njit(cache=True, nogil=True)
def _enlarge(x: Any, i: Any, total: Any, distance: Any, state: Any, scaler: Any, j: Any) -> None:
    """Move and extend ball ``j`` until row ``i`` lies on its surface."""
    # Apart from rounding, half the sum is at least the old radius and at most the distance.
    radius = max(0.5 * total, state.radii[j])
    fraction = max(distance - radius, 0.0) / distance
    for k in range(x.shape[1]):
        state.centers[j, k] += (x[i, k] - state.centers[j, k]) * fraction
    state.radii[j] = radius
    _write_center(state, scaler, j)


@njit(cache=True, nogil=True)
def _is_still_nearest(x: Any, i: Any, center: Any, distance: Any, state: Any, changed: Any) -> Any:
    """Return False if a changed center may now be the nearest.

    ``changed`` are the indices of the changed centers.
    """
    is_nearest = True
    # above this sum of squares, no square root is needed
    bound = distance * distance * x.shape[1] * (1.0 + _FLOAT64_ERROR)
    for j in changed:
        is_nearest = (
            is_nearest
            and j != center
            and (
                _compute_square_sum(x, i, state.centers, j) > bound
                or _compute_distance(x, i, state.centers, j) > distance
            )
        )
    return is_nearest


@njit(cache=True, nogil=True)
def _choose_centers(
    x: Any, i: Any, n: Any, original: Any, state: Any, scaler: Any, arrays: Any
) -> Any:
    """Choose a row's center and the center to enlarge.

    Returns both centers, the sum of the distance to the latter and its radius, and that distance.
    If a ball already contains the row, both centers are that ball's, and the sum is -1.
    """
    nearest, distance, norm2 = _find_nearest_of_row(x, i, n, state, scaler, arrays)
    if distance <= state.radii[nearest]:
        return nearest, nearest, -1.0, distance
    dots = arrays[1][0]
    if original:
        containing = _find_ball(x, i, n, norm2, state, scaler, dots)
        if containing >= 0:
            return containing, containing, -1.0, distance
    enlarged, total, distance = _find_least_sum(
        x, i, n, (nearest, distance), norm2, state, scaler, dots
    )
    return nearest, enlarged, total, distance


@njit(cache=True, nogil=True)
def process_rows(
    x: Any,
    first: Any,
    end: Any,
    n: Any,
    parameters: Any,
    state: Any,
    scaler: Any,
    labels: Any,
    distances: Any,
) -> Any:
    """Process the rows from ``first`` up to, not including, ``end`` in order.

    Updates ``state`` and ``labels``; with ``is_measured``, ``labels`` and ``distances`` first
    hold the nearest centers and their distances. Returns the next row and the numbers of centers,
    of changes, and of rows that would have founded a center beyond ``max_centers``.
    """
    arrays = _allocate_buffers(state)
    changed = np.empty(_MAX_CHANGED, np.int64)
    n_changes, n_outside = 0, 0
    for i in range(first, end):
        if n == state.radii.shape[0] or (parameters.is_measured and n_changes == _MAX_CHANGED):
            return i, n, n_changes, n_outside
        if (
            parameters.is_measured
            and distances[i] <= state.radii[labels[i]]
            and (
                n_changes == 0
                or _is_still_nearest(x, i, labels[i], distances[i], state, changed[:n_changes])
            )
        ):
            continue
        center, total, distance = n, np.inf, 0.0
        if n > 0:
            labels[i], center, total, distance = _choose_centers(
                x, i, n, parameters.original, state, scaler, arrays
            )
        if total < 0.0:
            continue
        if total <= parameters.limit:
            _enlarge(x, i, total, distance, state, scaler, center)
        elif n < parameters.max_centers:
            center = n
            n += 1
            _add_center(x, i, state, scaler, center)
        else:
            n_outside += 1
            continue
        labels[i] = center
        if parameters.is_measured:
            changed[n_changes] = center
        n_changes += 1
    return end, n, n_changes, n_outside


@njit(cache=True, nogil=True)
def extend_bounds(x: Any, low: Any, high: Any, nonfinite: Any) -> None:
    """Extend the bounds of columns to all rows.

    ``nonfinite`` stays 0 in columns of finite values and becomes NaN in others.
    """
    for i in range(x.shape[0]):
        row = x[i]
        for k in range(x.shape[1]):
            value = row[k]
            low[k] = value if value < low[k] else low[k]
            high[k] = value if value > high[k] else high[k]
            nonfinite[k] += value - value
