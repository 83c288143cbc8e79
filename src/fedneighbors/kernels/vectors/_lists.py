"""Lists of the nearest objects of queries, in ascending order of (distance, rank or tie key)."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from fedneighbors._typing import Floats, Integers

MAX_COUNTED = 64  # more rows are sorted; fewer are compared with one another


@njit(cache=True, nogil=True, inline="always")
def _replace_highest(heap: Any, value: Any) -> None:
    """Insert a value into a heap and drop the root, the highest."""
    k, slot = heap.shape[0], 0
    while True:
        child = 2 * slot + 1
        if child + 1 < k and heap[child + 1] > heap[child]:
            child += 1
        if child >= k or heap[child] <= value:
            break
        heap[slot] = heap[child]
        slot = child
    heap[slot] = value


@njit(cache=True, nogil=True)
def _select_nearest(distances: Any, m: Any, k: Any) -> Any:
    """Return the rows up to the k-th distance, ties included."""
    highest = np.full(k, math.inf)
    for i in range(m):
        if distances[i] < highest[0]:
            _replace_highest(highest, distances[i])
    return np.flatnonzero(distances[:m] <= highest[0])


@njit(cache=True, nogil=True)
def _select_lowest(ranks: Any, tied: Any, n: Any) -> Any:
    """Return the ``n`` tied rows of lowest rank, ascending."""
    own = ranks[tied]
    chosen = tied[own <= np.partition(own, n - 1)[n - 1]]
    return chosen[np.argsort(ranks[chosen])]


@njit(cache=True, nogil=True)
def _sort_few(ranks: Any, tied: Any) -> None:
    """Sort a few tied rows by rank."""
    for end in range(1, tied.shape[0]):
        slot, row = end, tied[end]
        while slot > 0 and ranks[tied[slot - 1]] > ranks[row]:
            tied[slot] = tied[slot - 1]
            slot -= 1
        tied[slot] = row


@njit(cache=True, nogil=True, inline="always")
def _emit(distances: Any, ranks: Any, rows: Any, m: Any, q: Any, out: Any, items: Any) -> None:
    """Store the first of ``m`` rows in the order of (distance, rank)."""
    k = min(m, out.shape[1])
    if m <= MAX_COUNTED:
        for a in range(m):  # without branches, as the order is random
            place = 0
            for b in range(m):
                is_tied = (distances[b] == distances[a]) & (ranks[b] < ranks[a])
                place += (distances[b] < distances[a]) | is_tied
            if place < k:
                out[q, place], items[q, place] = distances[a], rows[a]
        return
    chosen = np.arange(m) if m < 2 * k else _select_nearest(distances, m, k)
    order, start = chosen[np.argsort(distances[chosen])], 0
    while start < k:
        end = start + 1
        while end < len(order) and distances[order[end]] == distances[order[start]]:
            end += 1
        tied = order[start:end]
        if end - start > MAX_COUNTED:
            tied = _select_lowest(ranks, tied, min(end, k) - start)
        else:
            _sort_few(ranks, tied)
        for place in range(start, min(end, k)):
            row = tied[place - start]
            out[q, place], items[q, place] = distances[row], rows[row]
        start = end


@njit(cache=True, nogil=True)
def _limit_of_sample(distances: Any, k: Any) -> Any:
    """Estimate a limit of the ``k`` lowest distances from a sample."""
    n, step = distances.shape[0], distances.shape[0] // 1024
    if step < 4:
        return math.inf
    highest = np.full(k // step * 5 // 4 + 8, math.inf)
    for i in range(0, n, step):
        if distances[i] < highest[0]:
            _replace_highest(highest, distances[i])
    return highest[0]


@njit(cache=True, nogil=True)
def list_nearest(distances: Floats, positions: Integers, ranks: Integers, k: int) -> Any:
    """Return the k nearest objects in the order of (distance, rank).

    Parameters
    ----------
    distances, positions : float64 and int64 array of shape (n,)
        Distances of objects, and their positions among the ranks.
    ranks : int64 array of shape (n_objects,)
        Distinct ranks.
    k : int
        Number of objects, from 1 to ``n``; fast for few.

    Returns
    -------
    distances, positions : float64 and int64 array of shape (k,)
        Ascending.
    """
    out, items = np.empty((1, k)), np.empty((1, k), np.int64)
    limit = _limit_of_sample(distances, k)
    while True:
        highest, n_within = np.full(k, math.inf), 0
        for i in range(distances.shape[0]):
            if distances[i] <= limit:
                n_within += 1
                if distances[i] < highest[0]:
                    _replace_highest(highest, distances[i])
        if n_within >= k:
            break
        limit = math.inf
    near = np.flatnonzero(distances <= highest[0])
    _emit(distances[near], ranks[positions[near]], positions[near], len(near), 0, out, items)
    return out[0], items[0]


@njit(cache=True, nogil=True)
def _merge(
    distances: Any, positions: Any, ties: Any, rows: Any, n_before: Any, out: Any, out_ties: Any,
    out_rows: Any,
) -> int:  # fmt: skip
    """Merge valid lists into others; return 0 or a fault's code."""
    k, n_new, n_objects = out.shape[1], distances.shape[1], rows.shape[0]
    seen = np.full(n_objects, -1, np.int64)  # the last query with this object
    for q in range(out.shape[0]):
        last, last_tie = -math.inf, np.int64(0)
        for i in range(n_new):
            distance, position = distances[q, i], positions[q, i]
            if not -math.inf < distance < math.inf:
                return 1
            if not 0 <= position < n_objects:
                return 2
            tie = ties[position]
            if distance < last or (distance == last and tie <= last_tie):
                return 3
            if seen[position] == q:
                return 4
            seen[position], last, last_tie = q, distance, tie
        a, b = n_before - 1, n_new - 1  # the last ones that are not in their places
        while b >= 0:
            place, distance, tie = a + b + 1, distances[q, b], ties[positions[q, b]]
            is_later = a >= 0 and (
                out[q, a] > distance or (out[q, a] == distance and out_ties[q, a] > tie)
            )
            row = out_rows[q, a] if is_later else rows[positions[q, b]]
            if is_later:
                distance, tie = out[q, a], out_ties[q, a]
                a -= 1
            else:
                b -= 1
            if place < k:
                out[q, place], out_ties[q, place], out_rows[q, place] = distance, tie, row
    return 0


_FAULTS = (
    "distances are not finite numbers",
    "it returned an object that it does not have",
    "objects are not in ascending order",
    "an object is returned twice",
)


class NearestLists:
    """The nearest objects of several queries, merged from the lists of their owners.

    Parameters
    ----------
    n_queries, k : int
        Number of lists, and their length when all objects are merged.

    Attributes
    ----------
    distances : float64 array of shape (n_queries, k)
        Ascending.
    rows : int64 array of shape (n_queries, k)
        Row numbers of the objects.
    """

    def __init__(self, n_queries: int, k: int) -> None:
        self.distances = np.empty((n_queries, k))
        self.rows = np.empty((n_queries, k), np.int64)
        self._ties = np.empty((n_queries, k), np.int64)
        self._n = 0

    def add(
        self,
        distances: Floats,
        positions: npt.NDArray[np.int32],
        *,
        ties: Integers,
        rows: Integers,
    ) -> None:
        """Merge an owner's lists, which ascend in distance and tie key.

        Of equal entries the one added first comes first.

        Parameters
        ----------
        distances, positions : float64 and int32 array of shape (n_queries, n_items)
            The nearest objects, as positions among the owner's objects.
        ties, rows : int64 array of shape (n_objects,)
            Tie key and row number of each of the owner's objects.

        Raises
        ------
        ValueError
            If a list is not a valid one of these objects.
        """
        fault = _merge(
            distances, positions, ties, rows, self._n, self.distances, self._ties, self.rows
        )
        if fault:
            raise ValueError(_FAULTS[fault - 1])
        self._n = min(self._n + distances.shape[1], self.distances.shape[1])
