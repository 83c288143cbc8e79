"""Evolving clustering in one pass over rows, with float32 bounds and float64 distances.

For every row, the dot products with all centers are computed in float32. They give lower bounds of
the distances. Distances are computed in float64 only to centers that the bound cannot rule out, and
all decisions rest on these distances, so the result equals that of the plain loop bit for bit.

A block of rows is measured ahead, optionally by several threads: the nearest of the current centers
is computed for each row. The rows are then processed in order, and a row is measured again if a
center that changed in the meantime could affect it.

This file checks and scales the rows and divides them among threads. The compiled loops are in
``_evolvingrows``.
"""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats, Integers
from fedneighbors.kernels.clustering._evolvingrows import (
    NO_CENTER,
    PassParameters,
    Scaler,
    State,
    extend_bounds,
    find_nearest_centers,
    process_rows,
    write_centers,
)
from fedneighbors.kernels.vectors._dottiles import TILE

_N_SPARE = 224  # additional centers for which the first tables have space
_MIN_BLOCK = 256  # minimum number of rows measured ahead
_MAX_BLOCK = 16_384
_MIN_ROWS_PER_CHANGE = 16  # with fewer, measuring ahead takes longer than it saves
_ROWS_PER_TASK = 512  # minimum number of rows per thread; for fewer, one thread is faster
_UNLIMITED = 1 << 62
# Outside these ranges, float32 values could overflow or underflow, or the bounds could be too wide
# to rule out any center. Distances to all centers are then computed.
_MAX_FEATURES = 1 << 18
_MIN_EXTENT, _MAX_EXTENT = 1e-100, 1e100


class Evolved(NamedTuple):
    """Centers after a pass and the center of each row.

    Attributes
    ----------
    centers : float64 array of shape (n_centers, n_features)
        In the order in which they were founded.
    radii : float64 array of shape (n_centers,)
        Radius of each center's ball.
    labels : int64 array of shape (n_rows,)
        Center to which each row was assigned when it was processed.
    n_outside : int
        Number of rows that would have founded a center beyond ``max_centers``.
    """

    centers: Floats
    radii: Floats
    labels: Integers
    n_outside: int


def evolve(
    x: Floats,
    centers: Floats,
    radii: Floats,
    *,
    limit: float,
    original: bool = False,
    max_centers: int | None = None,
    n_threads: int = 1,
    ahead: int | None = None,
) -> Evolved:
    """Return the centers after one pass over rows.

    A row is assigned to its nearest center if that center's ball contains it (by the original rule:
    to the nearest of the centers whose balls contain it). Otherwise, the center with the smallest
    sum of distance and radius is chosen. If this sum is at most ``limit``, half of it becomes
    the center's radius, and the center moves towards the row until that is their distance. If not,
    the row becomes a new center of radius 0. Ties go to the center with the lower index. Processing
    rows in pieces, each from the state after the previous one, gives the same centers.

    Parameters
    ----------
    x : float64 array of shape (n_rows, n_features)
        Rows in order; finite.
    centers : float64 array of shape (n_centers, n_features)
        Initial centers; may be empty.
    radii : float64 array of shape (n_centers,)
        Finite, non-negative.
    limit : float
        Largest sum of distance and radius for which a ball is enlarged; finite, positive.
    original : bool
        If true, use the rule of Song and Kasabov [2]_ instead of that of [1]_.
    max_centers : int, optional
        Maximum number of centers. Once it is reached, a row that would found another is assigned to
        its nearest center, which neither moves nor grows.
    n_threads : int
        Number of threads. Does not affect the result.
    ahead : int, optional
        Number of rows measured ahead at a time. By default, it is adapted to the frequency of
        changes to centers. Does not affect the result.

    Returns
    -------
    Evolved
        Newly allocated arrays.

    Raises
    ------
    ValueError
        If shapes disagree, a value is not finite, or a number is out of range.

    References
    ----------
    .. [1] Prasad, Vivek and Ravi, "FedPNN", Algorithm 2 and equations 2 to 5.
    .. [2] Song and Kasabov, "ECM - A Novel On-line, Evolving Clustering Method and Its
       Applications", 2001.

    Examples
    --------
    >>> rows = np.array([[0.0], [0.5], [2.0], [0.25]])
    >>> evolved = evolve(rows, rows[:0], np.empty(0), limit=1.0)
    >>> evolved.centers.tolist(), evolved.radii.tolist(), evolved.labels.tolist()
    ([[0.25], [2.0]], [0.25, 0.0], [0, 0, 1, 0])
    """
    rows, centers = _make_writable(x), _make_writable(centers)
    _check_arrays(rows, centers, radii)
    _check_sizes(limit, max_centers, n_threads, ahead)
    n, n_outside, row = len(centers), 0, 0
    out = np.zeros(len(rows), np.int64), np.empty(len(rows))
    block, measures_ahead = ahead or _min_block(n_threads), True
    with RowThreads(n_threads) as threads:
        scaler = _choose_scaler(rows, centers, threads)
        state = _init_state(centers, radii, scaler, n_spare=_N_SPARE)
        while row < len(rows):
            end = min(len(rows), row + block)
            parameters = PassParameters(
                float(limit), original, max_centers or _UNLIMITED, measures_ahead and n > 0
            )
            if parameters.is_measured:
                arguments = n, state, scaler, *out
                threads.share(partial(_write_nearest, rows, arguments), row, end)
            start = row
            row, n, n_changes, n_more = process_rows(
                rows, row, end, n, parameters, state, scaler, *out
            )
            n_outside += n_more
            if ahead is None:
                measures_ahead = n_changes * _MIN_ROWS_PER_CHANGE <= row - start
                block = _next_block(block, n_changes, _min_block(n_threads))
            if n == len(state.radii):
                state = _init_state(state.centers, state.radii, scaler, n_spare=n)
    return Evolved(state.centers[:n].copy(), state.radii[:n].copy(), out[0], n_outside)


def nearest(x: Floats, centers: Floats, *, n_threads: int = 1) -> tuple[Integers, Floats]:
    """Return each row's nearest center and its distance.

    Ties go to the center with the lower index.

    Parameters
    ----------
    x : float64 array of shape (n_rows, n_features)
        Finite.
    centers : float64 array of shape (n_centers, n_features)
        At least one; finite.
    n_threads : int
        Number of threads. Does not affect the result.

    Returns
    -------
    labels : int64 array of shape (n_rows,)
        Indices of the nearest centers.
    distances : float64 array of shape (n_rows,)
        Root mean squared differences.

    Raises
    ------
    ValueError
        If shapes disagree, a value is not finite, or there is no center.
    """
    rows, centers = _make_writable(x), _make_writable(centers)
    _check_arrays(rows, centers, np.zeros(len(centers)))
    if len(centers) == 0:
        raise ValueError("expected at least one center, got none")
    out = np.zeros(len(rows), np.int64), np.empty(len(rows))
    with RowThreads(n_threads) as threads:
        scaler = _choose_scaler(rows, centers, threads)
        state = _init_state(centers, np.zeros(len(centers)), scaler, n_spare=0)
        arguments = len(centers), state, scaler, *out
        threads.share(partial(_write_nearest, rows, arguments), 0, len(rows))
    return out


def _write_nearest(x: Floats, arguments: tuple[Any, ...], _part: int, first: int, end: int) -> None:
    """Call :func:`find_nearest_centers` as a task of :meth:`RowThreads.share`."""
    find_nearest_centers(x, first, end, *arguments)


def _next_block(block: int, n_changes: int, least: int) -> int:
    """Return the number of rows to measure ahead next.

    After a change, each row of the block is examined again, which takes 20 ns for each change and
    row; each block takes another 6 us. Blocks with one or two changes are fastest.
    """
    if n_changes == 0:
        return min(2 * block, _MAX_BLOCK)
    return max(block // 2, least) if n_changes > 2 else block


def _min_block(n_threads: int) -> int:
    """Return the minimum block size: two tasks if there are several threads."""
    return _MIN_BLOCK if n_threads == 1 else 2 * _ROWS_PER_TASK


def _make_writable(x: Floats) -> Floats:
    """Return a writable array, because loops are not compiled for read-only arrays."""
    return np.require(x, np.float64, ["C", "W"])


def _check_arrays(x: Floats, centers: Floats, radii: Floats) -> None:
    """Check the arrays that the loops read without checks."""
    if x.ndim != 2 or x.shape[1] == 0:
        raise ValueError(f"expected rows of shape (n_rows, 1 or more), got {x.shape}")
    if centers.ndim != 2 or centers.shape[1] != x.shape[1] or radii.shape != centers.shape[:1]:
        raise ValueError(
            f"expected centers of {x.shape[1]} columns and one radius for each, got {centers.shape}"
            f" and {radii.shape}"
        )
    if not (np.isfinite(radii) & (radii >= 0)).all():
        raise ValueError("expected finite radii of at least 0, got a negative, infinite or NaN one")


def _check_sizes(limit: float, max_centers: int | None, n_threads: int, ahead: int | None) -> None:
    if not 0 < limit < math.inf:
        raise ValueError(f"expected a finite limit above 0, got {limit!r}")
    counts = {"max_centers": max_centers, "n_threads": n_threads, "ahead": ahead}
    for name, count in counts.items():
        if count is not None and count < 1:
            raise ValueError(f"expected {name} of at least 1, got {count}")


def _choose_scaler(x: Floats, centers: Floats, threads: "RowThreads") -> Scaler:
    """Return the scaler that maps rows and centers to [-1, 1].

    If no scaling is safe, the scale is 0, and the bounds then rule out no center.

    Raises
    ------
    ValueError
        If a value is not finite.
    """
    n = x.shape[1]
    infinity = np.inf if len(x) + len(centers) else 0.0
    bounds = [
        (np.full(n, infinity), np.full(n, -infinity), np.zeros(n)) for _ in range(threads.n_threads)
    ]
    extend_bounds(centers, *bounds[0])
    threads.share(lambda part, first, end: extend_bounds(x[first:end], *bounds[part]), 0, len(x))
    low, high, nonfinite = (np.stack(each) for each in zip(*bounds, strict=True))
    if not (nonfinite == 0).all():
        raise ValueError("expected finite numbers, got NaN or infinity; replace them first")
    low, high = low.min(axis=0), high.max(axis=0)
    # The error of a dot product is below this times the sum of the squared norms: n + 1 roundings
    # of the sum, two of each product and one of the last element add up to (1.04 (n + 1) + 1.6)
    # 2**-24.
    error = 1.1 * (n + 12) * 2.0**-24
    shift = 0.5 * low + 0.5 * high
    with np.errstate(over="ignore"):
        extent = float(np.maximum(high - shift, shift - low).max(initial=0.0))
    if n > _MAX_FEATURES or (extent > 0 and not _MIN_EXTENT <= extent <= _MAX_EXTENT):
        return Scaler(np.zeros(n), 0.0, 0.0, error)
    scale = math.ldexp(1.0, -math.frexp(extent)[1])  # a power of two rounds nothing
    return Scaler(shift, scale, n * scale * scale, error)


def _init_state(centers: Floats, radii: Floats, scaler: Scaler, n_spare: int) -> State:
    """Copy centers to tables with space for more, padded to whole tiles."""
    n, n_columns = centers.shape
    capacity = -(-(n + n_spare) // TILE) * TILE
    table = _allocate_aligned(n_columns + 1, capacity)
    table[n_columns] = NO_CENTER
    state = State(np.zeros((capacity, n_columns)), np.zeros(capacity), table)
    state.centers[:n], state.radii[:n] = centers, radii
    write_centers(state, scaler, n)
    return state


def _allocate_aligned(n_rows: int, n_columns: int) -> npt.NDArray[np.float32]:
    """Return zeros aligned to cache lines; tiles then load twice as fast."""
    spare = np.zeros(n_rows * n_columns + 16, np.float32)
    first = -spare.ctypes.data % 64 // spare.itemsize
    return spare[first : first + n_rows * n_columns].reshape(n_rows, n_columns)


class RowThreads:
    """Threads, including the caller's, that process parts of the rows."""

    def __init__(self, n_threads: int) -> None:
        self.n_threads = n_threads
        self._pool = ThreadPoolExecutor(n_threads - 1) if n_threads > 1 else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_reason: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def share(self, task: Callable[[int, int, int], None], first: int, end: int) -> None:
        """Call ``task(part, start, end)`` for parts of a range of rows."""
        n_parts = max(1, min(self.n_threads, (end - first) // _ROWS_PER_TASK))
        cuts = [first + (end - first) * part // n_parts for part in range(n_parts + 1)]
        futures = [
            self._pool.submit(task, part, *cuts[part : part + 2])
            for part in range(1, n_parts)
            if self._pool is not None
        ]
        task(0, *cuts[:2])
        for future in futures:
            future.result()
