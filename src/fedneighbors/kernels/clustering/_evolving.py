"""Evolving clusters in one pass over rows: narrow dot products propose, wide distances decide.

For every row the dot products with all centers are taken in float32. They bound the distances from
below; only centers that the bound cannot rule out are measured in float64, and those distances
alone decide: the outcome is that of the plain loop, bit for bit. Rows ahead are measured against
the centers as they are, by several threads where wanted. Then the rows are taken in order, and one
is measured again if a center that changed meanwhile could matter to it.

This file checks, scales and shares out the rows; it compiles nothing. The loops are in
``evolvingrows``.
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
    NEVER,
    NarrowFrame,
    PassParameters,
    State,
    enter,
    nearest_rows,
    span,
    take,
)
from fedneighbors.kernels.vectors._dottiles import TILE

_ROOM = 224  # further centers that tables have room for at first
_BLOCK = 256  # rows measured ahead at least
_MAX_BLOCK = 16_384
_CALM = 16  # rows for each change, at least, for measuring ahead to pay
_ROWS_PER_TASK = 512  # fewer are not worth another thread
_UNLIMITED = 1 << 62
# Beyond these the narrow numbers could overflow, vanish or bound nothing: all centers are measured.
_MAX_FEATURES = 1 << 18
_SMALLEST, _LARGEST = 1e-100, 1e100


class Evolved(NamedTuple):
    """Centers after a pass, and where each row went.

    Attributes
    ----------
    centers : float64 array of shape (n_centers, n_features)
        In the order in which they were founded.
    radii : float64 array of shape (n_centers,)
        Of the balls that hold the rows counted there.
    labels : int64 array of shape (n_rows,)
        Center for which each row was counted when it came.
    n_outside : int
        Rows that would have founded a center beyond ``max_centers``.
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
    """Cluster rows in one pass and return the centers.

    Each row joins a ball, stretches one, or founds a center.

    A row joins its nearest center if that center's ball holds it (by the original rule: the nearest
    among the centers whose balls hold it). Otherwise the center of the least distance plus radius
    moves towards it, if that sum is at most ``limit``: half the sum is its new radius, at which it
    comes to lie from the row. Otherwise the row is a new center of radius 0. Ties go to the lower
    center. Rows in pieces, each from the state that the last one left, give the same centers.

    Parameters
    ----------
    x : float64 array of shape (n_rows, n_features)
        Rows in order; finite.
    centers : float64 array of shape (n_centers, n_features)
        Where the pass begins; none at first.
    radii : float64 array of shape (n_centers,)
        Finite, not negative.
    limit : float
        Largest distance plus radius at which a ball is stretched; finite, positive.
    original : bool
        The rule of Song and Kasabov in place of the paper's.
    max_centers : int, optional
        When so many are there, a row that would found another is counted for its nearest center,
        which neither moves nor grows.
    n_threads : int
        The result does not depend on it.
    ahead : int, optional
        Rows measured ahead at a time. By default as many as pay, judged by how often centers
        change. The result does not depend on it.

    Returns
    -------
    Evolved
        New arrays.

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
    >>> found = evolve(rows, rows[:0], np.empty(0), limit=1.0)
    >>> found.centers.tolist(), found.radii.tolist(), found.labels.tolist()
    ([[0.25], [2.0]], [0.25, 0.0], [0, 0, 1, 0])
    """
    rows, centers = _writable(x), _writable(centers)
    _check(rows, centers, radii)
    _check_terms(limit, max_centers, n_threads, ahead)
    n, n_outside, row = len(centers), 0, 0
    out = np.zeros(len(rows), np.int64), np.empty(len(rows))
    block, calm = ahead or _least_block(n_threads), True
    with RowThreads(n_threads) as threads:
        frame = _frame_of(rows, centers, threads)
        state = _state_of(centers, radii, frame, room=_ROOM)
        while row < len(rows):
            last = min(len(rows), row + block)
            terms = PassParameters(
                float(limit), original, max_centers or _UNLIMITED, calm and n > 0
            )
            if terms.ahead:
                among = n, state, frame, *out
                threads.share(partial(_nearest_part, rows, among), row, last)
            begun = row
            row, n, n_changes, more = take(rows, row, last, n, terms, state, frame, *out)
            n_outside += more
            if ahead is None:
                calm = n_changes * _CALM <= row - begun
                block = _next_block(block, n_changes, _least_block(n_threads))
            if n == len(state.radii):
                state = _state_of(state.centers, state.radii, frame, room=n)
    return Evolved(state.centers[:n].copy(), state.radii[:n].copy(), out[0], n_outside)


def nearest(x: Floats, centers: Floats, *, n_threads: int = 1) -> tuple[Integers, Floats]:
    """Return each row's nearest center, ties to the lower, and its distance.

    Parameters
    ----------
    x : float64 array of shape (n_rows, n_features)
        Finite.
    centers : float64 array of shape (n_centers, n_features)
        At least one; finite.
    n_threads : int
        The result does not depend on it.

    Returns
    -------
    labels : int64 array of shape (n_rows,)
    distances : float64 array of shape (n_rows,)
        Root of the mean squared difference.

    Raises
    ------
    ValueError
        If shapes disagree, a value is not finite, or there is no center.
    """
    rows, centers = _writable(x), _writable(centers)
    _check(rows, centers, np.zeros(len(centers)))
    if len(centers) == 0:
        raise ValueError("expected at least one center, got none")
    out = np.zeros(len(rows), np.int64), np.empty(len(rows))
    with RowThreads(n_threads) as threads:
        frame = _frame_of(rows, centers, threads)
        state = _state_of(centers, np.zeros(len(centers)), frame, room=0)
        among = len(centers), state, frame, *out
        threads.share(partial(_nearest_part, rows, among), 0, len(rows))
    return out


def _nearest_part(x: Floats, among: tuple[Any, ...], _part: int, first: int, last: int) -> None:
    """Write the nearest centers of some rows."""
    nearest_rows(x, first, last, *among)


def _next_block(block: int, n_changes: int, least: int) -> int:
    """Return the number of rows to measure ahead.

    Rows behind a change are measured twice.

    That costs 20 ns for each change and row behind it, a block 6 us: one or two changes are best.
    """
    if n_changes == 0:
        return min(2 * block, _MAX_BLOCK)
    return max(block // 2, least) if n_changes > 2 else block


def _least_block(n_threads: int) -> int:
    """Return the minimum number of rows to measure ahead.

    Each of several threads should get a part.
    """
    return _BLOCK if n_threads == 1 else 2 * _ROWS_PER_TASK


def _writable(x: Floats) -> Floats:
    """Return a writable array of the compiled type.

    Read-only arrays have another numba type.
    """
    return np.require(x, np.float64, ["C", "W"])


def _check(x: Floats, centers: Floats, radii: Floats) -> None:
    """Refuse what the loops would misread."""
    if x.ndim != 2 or x.shape[1] == 0:
        raise ValueError(f"expected rows of shape (n_rows, 1 or more), got {x.shape}")
    if centers.ndim != 2 or centers.shape[1] != x.shape[1] or radii.shape != centers.shape[:1]:
        raise ValueError(
            f"expected centers of {x.shape[1]} columns and one radius for each, got {centers.shape}"
            f" and {radii.shape}"
        )
    if not (np.isfinite(radii) & (radii >= 0)).all():
        raise ValueError("expected finite radii of at least 0")


def _check_terms(limit: float, max_centers: int | None, n_threads: int, ahead: int | None) -> None:
    if not 0 < limit < math.inf:
        raise ValueError(f"expected a finite limit above 0, got {limit!r}")
    counts = {"max_centers": max_centers, "n_threads": n_threads, "ahead": ahead}
    for name, count in counts.items():
        if count is not None and count < 1:
            raise ValueError(f"expected {name} of at least 1, got {count}")


def _frame_of(x: Floats, centers: Floats, threads: "RowThreads") -> NarrowFrame:
    """Return a frame in which all rows and centers are small.

    Without such a frame nothing is ruled out.

    Raises
    ------
    ValueError
        If a value is not finite.
    """
    n = x.shape[1]
    outermost = np.inf if len(x) + len(centers) else 0.0
    bounds = [
        (np.full(n, outermost), np.full(n, -outermost), np.zeros(n))
        for _ in range(threads.n_threads)
    ]
    span(centers, *bounds[0])
    threads.share(lambda part, first, last: span(x[first:last], *bounds[part]), 0, len(x))
    low, high, odd = (np.stack(each) for each in zip(*bounds, strict=True))
    if not (odd == 0).all():
        raise ValueError("expected finite numbers, got NaN or infinity; replace them first")
    low, high = low.min(axis=0), high.max(axis=0)
    # |dot - exact| is below this times the squared norms: n + 1 roundings of the sum, two of each
    # product and one of the offset come to (1.04 (n + 1) + 1.6) 2**-24.
    error = 1.1 * (n + 12) * 2.0**-24
    shift = 0.5 * low + 0.5 * high
    with np.errstate(over="ignore"):
        half = float(np.maximum(high - shift, shift - low).max(initial=0.0))
    if n > _MAX_FEATURES or (half > 0 and not _SMALLEST <= half <= _LARGEST):
        return NarrowFrame(np.zeros(n), 0.0, 0.0, error)
    scale = math.ldexp(1.0, -math.frexp(half)[1])  # a power of two rounds nothing
    return NarrowFrame(shift, scale, n * scale * scale, error)


def _state_of(centers: Floats, radii: Floats, frame: NarrowFrame, room: int) -> State:
    """Copy centers to an array with room for more.

    Widths are whole tiles.
    """
    n, n_columns = centers.shape
    capacity = -(-(n + room) // TILE) * TILE
    table = _aligned(n_columns + 1, capacity)
    table[n_columns] = NEVER
    state = State(np.zeros((capacity, n_columns)), np.zeros(capacity), table)
    state.centers[:n], state.radii[:n] = centers, radii
    enter(state, frame, n)
    return state


def _aligned(n_rows: int, n_columns: int) -> npt.NDArray[np.float32]:
    """Return zeros that start at a cache line.

    A tile then loads in half the time.
    """
    spare = np.zeros(n_rows * n_columns + 16, np.float32)
    first = -spare.ctypes.data % 64 // spare.itemsize
    return spare[first : first + n_rows * n_columns].reshape(n_rows, n_columns)


class RowThreads:
    """Shares rows out to several threads, of which the caller's is one."""

    def __init__(self, n_threads: int) -> None:
        self.n_threads = n_threads
        self._pool = ThreadPoolExecutor(n_threads - 1) if n_threads > 1 else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_reason: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def share(self, task: Callable[[int, int, int], None], first: int, last: int) -> None:
        """Call ``task(part, start, end)`` for parts of the rows ``first`` to ``last``."""
        n_parts = max(1, min(self.n_threads, (last - first) // _ROWS_PER_TASK))
        cuts = [first + (last - first) * part // n_parts for part in range(n_parts + 1)]
        waiting = [
            self._pool.submit(task, part, *cuts[part : part + 2])
            for part in range(1, n_parts)
            if self._pool is not None
        ]
        task(0, *cuts[:2])
        for other in waiting:
            other.result()
