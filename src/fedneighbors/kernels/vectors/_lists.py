"""Lists of the nearest objects of queries, in ascending order of (distance, rank or tie key)."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from fedneighbors._typing import Floats, Integers


@njit(cache=True, nogil=True, inline="always")
def _insert(distances: Any, ranks: Any, items: Any, q: Any, n: Any, new: Any) -> Any:
    """Insert a (distance, rank, item) into ``n`` sorted ones."""
    # Indices of a table, not views of its rows: a view counts references, for 10 ns each.
    distance, rank, item = new
    k = distances.shape[1]
    if n == k and distance == distances[q, k - 1] and rank >= ranks[q, k - 1]:
        return n
    slot = min(n, k - 1)
    while slot > 0 and (
        distances[q, slot - 1] > distance
        or (distances[q, slot - 1] == distance and ranks[q, slot - 1] > rank)
    ):
        distances[q, slot] = distances[q, slot - 1]
        ranks[q, slot] = ranks[q, slot - 1]
        items[q, slot] = items[q, slot - 1]
        slot -= 1
    distances[q, slot], ranks[q, slot], items[q, slot] = distance, rank, item
    return min(n + 1, k)


@njit(cache=True, nogil=True)
def _merge(
    distances: Any, positions: Any, ties: Any, rows: Any, n_before: Any, out: Any, out_ties: Any,
    out_rows: Any,
) -> int:  # fmt: skip
    """Merge valid lists into others; return 0 or a fault's code."""
    k, n_objects = out.shape[1], rows.shape[0]
    seen = np.full(n_objects, -1, np.int64)  # the last query with this object
    for q in range(out.shape[0]):
        n, last, last_tie = n_before, -math.inf, np.int64(0)
        for i in range(distances.shape[1]):
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
            if n < k or distance <= out[q, k - 1]:
                n = _insert(out, out_ties, out_rows, q, n, (distance, tie, rows[position]))
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
