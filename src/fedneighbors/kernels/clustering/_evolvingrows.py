"""Compiled loops of evolving clustering, with float32 bounds and float64 distances.

A distance is ``sqrt(s / n_features)``, where ``s`` is the sum of squared differences. Element ``k``
is added to lane ``k % 4``, a remainder of fewer than four elements to lane 0; the lanes are added
as ``(0 + 2) + (1 + 3)``. "Narrow" values are scaled float32 values, see :class:`Scaler`.
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
    lanes_from,
    multiply_group,
    multiply_one,
)

USES = {"emission": "42763a22ce349182", "vectors/dottiles": "0f36eaeb902070ca"}

NEVER = np.float32(-3e38)  # dot product with a column of the table that holds no center
_MAX_CHANGED = 16  # after so many changes, a new block of rows is measured ahead
_UNDERFLOW = 2.0**-100  # float32 underflow: below 2**-146 for each of 2**18 features
_WIDE = 2.0**-30  # rounding of float64 distances: below 2**-52 for each of 2**18 features


class Scaler(NamedTuple):
    """Conversion of rows to narrow values ``(x - shift) * scale`` within [-1, 1]."""

    shift: Any
    scale: float
    to_square: float  # factor from a squared distance to that of the narrow values
    error: float  # bound on the error of a dot product, relative to the squared norms


class State(NamedTuple):
    """Centers and radii, with space for more, and a table of narrow centers as columns.

    Column ``j`` ends with ``error * |c|**2 - |c|**2 / 2``. Its product with a narrow row is at
    least ``x.c - |c|**2 / 2 - error * |x|**2``.
    """

    centers: Any
    radii: Any
    table: Any


class PassParameters(NamedTuple):
    """Parameters of a clustering pass."""

    limit: float
    original: bool
    max_centers: int
    ahead: bool


# Small functions are inlined, because a call copies array arguments field by field, which took a
# third of the time of a pass.
@njit(cache=True, nogil=True, inline="always")
def _square_sum(x: Any, i: Any, centers: Any, j: Any) -> Any:
    # Separate lanes let additions in a fixed order use vector instructions.
    n = x.shape[1]
    whole = n - n % 4
    s0 = s1 = s2 = s3 = 0.0
    for k in range(0, whole, 4):
        d0 = x[i, k] - centers[j, k]
        d1 = x[i, k + 1] - centers[j, k + 1]
        d2 = x[i, k + 2] - centers[j, k + 2]
        d3 = x[i, k + 3] - centers[j, k + 3]
        s0 += d0 * d0
        s1 += d1 * d1
        s2 += d2 * d2
        s3 += d3 * d3
    for k in range(whole, n):
        d0 = x[i, k] - centers[j, k]
        s0 += d0 * d0
    return (s0 + s2) + (s1 + s3)


@njit(cache=True, nogil=True, inline="always")
def _distance(x: Any, i: Any, centers: Any, j: Any) -> Any:
    return math.sqrt(_square_sum(x, i, centers, j) / x.shape[1])


@njit(cache=True, nogil=True)
def _write_center(state: Any, scaler: Any, j: Any) -> None:
    """Write center ``j`` into its column of the table."""
    n = state.centers.shape[1]
    norm = 0.0
    for k in range(n):
        value = (state.centers[j, k] - scaler.shift[k]) * scaler.scale
        state.table[k, j] = value
        norm += value * value
    state.table[n, j] = scaler.error * norm - 0.5 * norm


@njit(cache=True, nogil=True)
def write_centers(state: Any, scaler: Any, n: Any) -> None:
    """Write the first ``n`` centers into the table."""
    for j in range(n):
        _write_center(state, scaler, j)


@njit(cache=True, nogil=True, inline="always")
def _narrow(x: Any, i: Any, scaler: Any, out: Any) -> Any:
    """Write row ``i`` as narrow values and return their squared norm."""
    n = x.shape[1]
    for k in range(n):
        out[k] = np.float32((x[i, k] - scaler.shift[k]) * scaler.scale)
    whole = n - n % 4
    s0 = s1 = s2 = s3 = 0.0
    for k in range(0, whole, 4):
        v0, v1, v2, v3 = float(out[k]), float(out[k + 1]), float(out[k + 2]), float(out[k + 3])
        s0 += v0 * v0
        s1 += v1 * v1
        s2 += v2 * v2
        s3 += v3 * v3
    for k in range(whole, n):
        s0 += float(out[k]) * float(out[k])
    return (s0 + s2) + (s1 + s3)


@njit(cache=True, nogil=True)
def _allocate_space(state: Any) -> Any:
    """Allocate arrays for narrow rows, dot products and their lane maxima."""
    height, stride = state.table.shape
    return (
        np.zeros((GROUP, height - 1), np.float32),
        np.zeros((GROUP, stride), np.float32),
        np.zeros((GROUP, TILE), np.float32),
    )


@njit(cache=True, nogil=True, inline="always")
def _floor(norm: Any, reach: Any, scaler: Any) -> Any:
    """Return the least dot product of any center within distance ``reach``.

    NaN means that no center can be ruled out.
    """
    far = reach * reach * scaler.to_square * (1.0 + _WIDE)
    bound = 0.5 * (norm * (1.0 - 2.0 * scaler.error) - far)
    return np.float32(bound - abs(bound) * 2.0**-22 - _UNDERFLOW)


@njit(cache=True, nogil=True, inline="always")
def _find_nearest(
    x: Any, i: Any, n: Any, norm: Any, state: Any, scaler: Any, space: Any, r: Any
) -> Any:
    """Return the nearest of the first ``n`` centers and its distance.

    Ties go to the center with the lower index.
    """
    _, dots, peaks = space
    high = highest(peaks, r)
    lane = lowest_bit(lanes_from(peaks, r, high))
    best = lane
    for j in range(lane, n, TILE):
        best = j if dots[r, j] == high else best
    distance = _distance(x, i, state.centers, best)
    floor = _floor(norm, distance, scaler)
    lanes = lanes_from(peaks, r, floor)
    if lanes & (lanes - 1) == 0:  # often only the best center itself reaches the floor
        n_left = 0
        for j in range(lane, n, TILE):
            n_left += 0 if dots[r, j] < floor else 1
        if n_left == 1:
            return best, distance
    while lanes:
        for j in range(lowest_bit(lanes), n, TILE):
            if j == best or dots[r, j] < floor:
                continue
            other = _distance(x, i, state.centers, j)
            if other < distance or (other == distance and j < best):
                best, distance = j, other
        lanes &= lanes - 1
    return best, distance


@njit(cache=True, nogil=True)
def _nearest_one(x: Any, i: Any, n: Any, state: Any, scaler: Any, space: Any) -> Any:
    """Return a row's nearest center, its distance and the narrow norm.

    The dot products with all centers are left in ``space``.
    """
    rows, dots, peaks = space
    n_lines, stride = rows.shape[1], state.table.shape[1]
    norm = _narrow(x, i, scaler, rows[0])
    peaks[0] = NEVER
    for place in range(0, n, TILE):
        multiply_one(rows, state.table, place, n_lines, stride, dots, peaks)
    best, distance = _find_nearest(x, i, n, norm, state, scaler, space, 0)
    return best, distance, norm


@njit(cache=True, nogil=True)
def nearest_rows(
    x: Any, first: Any, last: Any, n: Any, state: Any, scaler: Any, labels: Any, far: Any
) -> None:
    """Write the nearest centers of rows ``first`` to ``last`` and their distances."""
    space = _allocate_space(state)
    rows, dots, peaks = space
    n_lines, stride = rows.shape[1], state.table.shape[1]
    norms = np.zeros(GROUP)
    for start in range(first, last, GROUP):
        size = min(GROUP, last - start)
        for r in range(size):
            norms[r] = _narrow(x, start + r, scaler, rows[r])
        peaks[:] = NEVER
        for place in range(0, n, TILE):
            multiply_group(rows, state.table, place, n_lines, stride, dots, peaks)
        for r in range(size):
            i = start + r
            labels[i], far[i] = _find_nearest(x, i, n, norms[r], state, scaler, space, r)


@njit(cache=True, nogil=True)
def _nearest_around(x: Any, i: Any, n: Any, norm: Any, state: Any, scaler: Any, dots: Any) -> Any:
    """Return the nearest center whose ball contains the row, or -1."""
    best, least = -1, np.inf
    for j in range(n):
        radius = state.radii[j]
        if dots[j] < _floor(norm, radius, scaler):
            continue
        distance = _distance(x, i, state.centers, j)
        if distance <= radius and distance < least:
            best, least = j, distance
    return best


@njit(cache=True, nogil=True)
def _cheapest(
    x: Any, i: Any, n: Any, near: Any, norm: Any, state: Any, scaler: Any, dots: Any
) -> Any:
    """Find the center with the least sum of distance and radius.

    Returns the center, the sum and the distance. The search starts from ``near``, the nearest
    center and its distance.
    """
    best, far = near
    least = far + state.radii[best]
    for j in range(n):
        radius = state.radii[j]
        # upper bound of the exact difference, since the sum was rounded
        reach = (least - radius) * (1.0 + 2.0**-50) + least * 2.0**-50
        if reach < 0.0 or dots[j] < _floor(norm, reach, scaler):
            continue
        distance = _distance(x, i, state.centers, j)
        total = distance + radius
        if total < least or (total == least and j < best):
            best, least, far = j, total, distance
    return best, least, far


@njit(cache=True, nogil=True)
def _add_center(x: Any, i: Any, state: Any, scaler: Any, j: Any) -> None:
    """Make row ``i`` center ``j``."""
    state.centers[j] = x[i]
    state.radii[j] = 0.0
    _write_center(state, scaler, j)


@njit(cache=True, nogil=True)
def _stretch(x: Any, i: Any, total: Any, distance: Any, state: Any, scaler: Any, j: Any) -> None:
    """Stretch ball ``j`` so that row ``i`` lies on its surface."""
    # Apart from rounding, half the sum is at least the old radius and at most the distance.
    radius = max(0.5 * total, state.radii[j])
    share = max(distance - radius, 0.0) / distance
    for k in range(x.shape[1]):
        state.centers[j, k] += (x[i, k] - state.centers[j, k]) * share
    state.radii[j] = radius
    _write_center(state, scaler, j)


@njit(cache=True, nogil=True)
def _is_still_nearest(x: Any, i: Any, near: Any, far: Any, state: Any, changed: Any) -> Any:
    """Return whether ``near`` is still the nearest center after changes."""
    stands = True
    clear = far * far * x.shape[1] * (1.0 + _WIDE)  # above this, no square root is needed
    for j in changed:
        stands = (
            stands
            and j != near
            and (
                _square_sum(x, i, state.centers, j) > clear
                or _distance(x, i, state.centers, j) > far
            )
        )
    return stands


@njit(cache=True, nogil=True)
def _choose(x: Any, i: Any, n: Any, original: Any, state: Any, scaler: Any, space: Any) -> Any:
    """Choose a row's center and the center to stretch.

    Returns both centers, the sum of distance and radius, and the distance. The sum is -1 if a ball
    already contains the row.
    """
    near, distance, norm = _nearest_one(x, i, n, state, scaler, space)
    if distance <= state.radii[near]:
        return near, near, -1.0, distance
    dots = space[1][0]
    if original:
        around = _nearest_around(x, i, n, norm, state, scaler, dots)
        if around >= 0:
            return around, around, -1.0, distance
    place, total, distance = _cheapest(x, i, n, (near, distance), norm, state, scaler, dots)
    return near, place, total, distance


@njit(cache=True, nogil=True)
def process_rows(
    x: Any, first: Any, end: Any, n: Any, terms: Any, state: Any, scaler: Any, labels: Any, far: Any
) -> Any:
    """Process rows ``first`` to ``end`` in order.

    Returns the next row and the numbers of centers, changes and rows outside.
    """
    space = _allocate_space(state)
    changed = np.empty(_MAX_CHANGED, np.int64)
    n_changes, n_outside = 0, 0
    for i in range(first, end):
        if n == state.radii.shape[0] or (terms.ahead and n_changes == _MAX_CHANGED):
            return i, n, n_changes, n_outside
        if (
            terms.ahead
            and far[i] <= state.radii[labels[i]]
            and (
                n_changes == 0
                or _is_still_nearest(x, i, labels[i], far[i], state, changed[:n_changes])
            )
        ):
            continue
        place, total, distance = n, np.inf, 0.0
        if n > 0:
            labels[i], place, total, distance = _choose(
                x, i, n, terms.original, state, scaler, space
            )
        if total < 0.0:
            continue
        if total <= terms.limit:
            _stretch(x, i, total, distance, state, scaler, place)
        elif n < terms.max_centers:
            place = n
            n += 1
            _add_center(x, i, state, scaler, place)
        else:
            n_outside += 1
            continue
        labels[i] = place
        if terms.ahead:
            changed[n_changes] = place
        n_changes += 1
    return end, n, n_changes, n_outside


@njit(cache=True, nogil=True)
def extend_bounds(x: Any, low: Any, high: Any, odd: Any) -> None:
    """Extend the bounds of columns to all rows.

    ``odd`` becomes NaN in columns with a value that is not finite.
    """
    for i in range(x.shape[0]):
        row = x[i]
        for k in range(x.shape[1]):
            value = row[k]
            low[k] = value if value < low[k] else low[k]
            high[k] = value if value > high[k] else high[k]
            odd[k] += value - value
