"""Groups of equal rows, so that a search treats each distinct row once."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from fedneighbors._typing import Floats, Integers
from fedneighbors.kernels.vectors._lists import _emit, _select_lowest
from fedneighbors.kernels.vectors._table import ROWS_PER_STEP, TableRows

# Digests of the kernel files used here; Numba's cache does not notice edits in other files.
USES = {"vectors/lists": "82bbca346dcaa8c4"}

_SAMPLE_SIZE = 4096
_MAX_DISTINCT = 0.9  # part of the rows; beyond, groups save nothing


@njit(cache=True, nogil=True)
def _hash_rows(cells: Any, out: Any) -> None:
    for i in range(cells.shape[0]):
        value = np.uint64(14695981039346656037)
        for j in range(cells.shape[1]):
            value = (value ^ np.uint64(cells[i, j])) * np.uint64(1099511628211)
            value ^= value >> np.uint64(29)
        out[i] = value


@njit(cache=True, nogil=True)
def _list_members(
    distances: Any, groups: Any, starts: Any, order: Any, ranks: Any, out: Any, items: Any
) -> None:
    """List the rows of groups in the order of (distance, rank)."""
    k = out.shape[1]
    found_distances = np.empty(2 * k)
    found_ranks, found = np.empty(2 * k, np.int64), np.empty(2 * k, np.int64)
    for q in range(out.shape[0]):
        n, n_nearer, highest = 0, 0, np.iinfo(np.int64).max  # highest rank at the last distance
        for i in range(groups.shape[1]):
            distance, group = distances[q, i], groups[q, i]
            if n and distance > found_distances[n - 1]:
                if n >= k:
                    break
                n_nearer = n
            for member in range(starts[group], min(starts[group] + k, starts[group + 1])):
                row = order[member]
                if ranks[row] > highest:
                    break  # members are in the order of ranks
                found_distances[n], found_ranks[n], found[n] = distance, ranks[row], row
                n += 1
                if n == 2 * k:  # keep k
                    tied = np.arange(n_nearer, n)
                    chosen = _select_lowest(found_ranks, tied, k - n_nearer)
                    highest, n = found_ranks[chosen[-1]], k
                    found_ranks[n_nearer:n], found[n_nearer:n] = found_ranks[chosen], found[chosen]
        _emit(found_distances, found_ranks, found, n, q, out, items)


@dataclass(frozen=True, eq=False)
class DistinctRows:
    """The distinct rows of a table, and the rows equal to each.

    Parameters
    ----------
    first : int64 array of shape (n_distinct,)
        The row of lowest rank in each group.
    groups : int64 array of shape (n_rows,)
        Group of each row.
    order : int64 array of shape (n_rows,)
        Rows by group, then by rank.
    starts : int64 array of shape (n_distinct + 1,)
        First index of each group in ``order``, and the number of rows.
    ranks : int64 array of shape (n_rows,)
        Rank of each row.
    """

    first: Integers
    groups: Integers
    order: Integers
    starts: Integers
    ranks: Integers

    @classmethod
    def find(cls, rows: npt.NDArray[Any] | TableRows, ranks: Integers) -> "DistinctRows | None":
        """Return the groups of equal rows; None for few equal ones.

        Parameters
        ----------
        rows : array of shape (n_rows, n_columns), C order, or TableRows
            Rows; a zero differs from its negative.
        ranks : int64 array of shape (n_rows,)
            Distinct ranks.
        """
        sample = hash_rows(rows[:: max(1, len(rows) // _SAMPLE_SIZE)])
        if len(np.unique(sample)) > _MAX_DISTINCT * len(sample):
            return None
        hashes = np.concatenate([hash_rows(block) for block in TableRows.of(rows).blocks()])
        _, groups = np.unique(hashes, return_inverse=True)
        order = np.lexsort((ranks, groups))
        starts = np.concatenate([[0], np.cumsum(np.bincount(groups))])
        first = order[starts[:-1]]
        for start in range(0, len(rows), ROWS_PER_STEP):
            block = slice(start, start + ROWS_PER_STEP)
            if not np.array_equal(rows[block], rows[first[groups[block]]]):
                return None  # two rows have one hash
        return cls(first, groups, order, starts, ranks)

    def members(self, groups: Integers) -> tuple[Integers, Integers]:
        """Return the rows of groups, and the number in each."""
        counts = self.starts[groups + 1] - self.starts[groups]
        ends = np.cumsum(counts)
        within = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)
        return self.order[np.repeat(self.starts[groups], counts) + within], counts

    def list_members(self, distances: Floats, groups: Integers, k: int) -> tuple[Floats, Integers]:
        """Return distances and positions of the k nearest rows of each query.

        Parameters
        ----------
        distances, groups : float64 and int64 array of shape (n_queries, n_nearest)
            The k nearest distinct rows, or all; the rank of one is the lowest of its rows.
        k : int
            Number of rows; all if there are fewer.
        """
        shape = len(distances), min(k, len(self.groups))
        found, items = np.empty(shape), np.empty(shape, np.int64)
        if found.size:
            _list_members(distances, groups, self.starts, self.order, self.ranks, found, items)
        return found, items


def hash_rows(rows: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """Return a hash of the bytes of each row."""
    rows = np.ascontiguousarray(rows)
    width = math.gcd(rows.shape[1] * rows.itemsize, 8)
    cells = rows.view(f"u{width}")
    hashes = np.empty(len(rows), np.uint64)
    _hash_rows(cells, hashes)
    return hashes
