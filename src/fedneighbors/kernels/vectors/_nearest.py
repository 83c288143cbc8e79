"""The nearest rows of many queries, exact and in one total order.

Distances are those of :mod:`fedneighbors.kernels.vectors._distances`, bit for bit. Rows of equal
distance are ordered by rank. Rows that cannot be among the nearest are skipped by a lower bound: in
tables of few columns the difference in one column, otherwise a matrix product and its error bound.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from fedneighbors._typing import Floats, Integers
from fedneighbors.kernels.vectors._distances import _sum_of_absolutes, _sum_of_squares

# Digests of the kernel files used here; Numba's cache does not notice edits in other files.
USES = {"vectors/distances": "e7c698b327195082"}

ROOT, PLAIN, HALF, SQUARE = 0, 1, 2, 3
"""Distance: root of the sum of squares, sum of absolute values, half or whole sum of squares."""

MIN_PRODUCT_COLUMNS = 16  # below, sums are faster than a matrix product and its verification
_MAX_PRODUCTS = 1 << 22  # number of products computed at once (32 MiB)


@njit(cache=True, nogil=True, inline="always")
def _distance(kind: Any, x: Any, i: Any, query: Any) -> Any:
    if kind == 1:
        return _sum_of_absolutes(x, i, query)
    total = _sum_of_squares(x, i, query)
    if kind == 0:
        return math.sqrt(total)
    return total * 0.5 if kind == 2 else total


@njit(cache=True, nogil=True, inline="always")
def _limit(kind: Any, distance: Any) -> Any:
    # Sums above the limit have larger distances. A root is rounded, so that several sums have the
    # same one; their relative difference is below 2**-51.
    if kind == 0:
        return distance * distance * (1.0 + 2.0**-50) + 2.0**-1000
    return distance * 2.0 if kind == 2 else distance


@njit(cache=True, nogil=True, inline="always")
def _insert(distances: Any, ranks: Any, items: Any, n: Any, new: Any) -> Any:
    """Insert a (distance, rank, item) into ``n`` sorted ones."""
    distance, rank, item = new
    k = distances.shape[0]
    if n == k and distance == distances[k - 1] and rank >= ranks[k - 1]:
        return n
    slot = min(n, k - 1)
    while slot > 0 and (
        distances[slot - 1] > distance
        or (distances[slot - 1] == distance and ranks[slot - 1] > rank)
    ):
        distances[slot] = distances[slot - 1]
        ranks[slot] = ranks[slot - 1]
        items[slot] = items[slot - 1]
        slot -= 1
    distances[slot], ranks[slot], items[slot] = distance, rank, item
    return min(n + 1, k)


@njit(cache=True, nogil=True)
def _search_sorted_rows(
    kind: Any, x: Any, column: Any, ranks: Any, queries: Any, distances: Any, items: Any
) -> None:
    """Search rows that ascend in a column, from the query's place outwards."""
    n, k = x.shape[0], distances.shape[1]
    found_ranks = np.empty(k, np.int64)
    values = x[:, column].copy()
    for q in range(queries.shape[0]):
        query, found, found_items = queries[q], distances[q], items[q]
        n_found, worst, limit = 0, math.inf, math.inf
        center = query[column]
        high = np.searchsorted(values, center)
        low = high - 1
        while low >= 0 or high < n:
            below = center - values[low] if low >= 0 else math.inf
            above = values[high] - center if high < n else math.inf
            gap = min(below, above)
            # sums add rounded terms that are not negative, so they are at least this one
            if (gap if kind == 1 else gap * gap) > limit:
                break
            is_below = high >= n or (low >= 0 and below <= above)
            row = low if is_below else high
            if is_below:
                low -= 1
            else:
                high += 1
            distance = _distance(kind, x, row, query)
            if distance <= worst:
                new = distance, ranks[row], row
                n_found = _insert(found, found_ranks, found_items, n_found, new)
                if n_found == k:
                    worst = found[k - 1]
                    limit = _limit(kind, worst)


@njit(cache=True, nogil=True)
def _search_products(
    kind: Any, x: Any, norms: Any, ranks: Any, queries: Any, products: Any, errors: Any,
    distances: Any, items: Any,
) -> None:  # fmt: skip
    """Verify the rows whose approximate square may be among the least."""
    k = distances.shape[1]
    found_ranks = np.empty(k, np.int64)
    for q in range(queries.shape[0]):
        query, found, found_items = queries[q], distances[q], items[q]
        n_found, worst, limit = 0, math.inf, math.inf
        for i in range(x.shape[0]):
            if norms[i] - 2.0 * products[q, i] > limit:
                continue
            distance = _distance(kind, x, i, query)
            if distance <= worst:
                new = distance, ranks[i], i
                n_found = _insert(found, found_ranks, found_items, n_found, new)
                if n_found == k:
                    worst = found[k - 1]
                    limit = _limit(kind, worst) + errors[q]


@njit(cache=True, nogil=True)
def _merge(distances: Any, ties: Any, starts: Any, out: Any, items: Any) -> None:
    k = out.shape[1]
    found_ties = np.empty(k, np.int64)
    for q in range(out.shape[0]):
        n, worst, found, found_items = 0, math.inf, out[q], items[q]
        for part in range(starts.shape[0] - 1):
            for i in range(starts[part], starts[part + 1]):
                if distances[q, i] > worst:
                    break
                new = distances[q, i], ties[q, i], i
                n = _insert(found, found_ties, found_items, n, new)
                if n == k:
                    worst = found[k - 1]


def merge_nearest(parts: list[tuple[Floats, Integers]], k: int) -> tuple[Floats, Integers]:
    """Merge sorted lists of each query by distance and tie key.

    Parameters
    ----------
    parts : list of (float64 array, int64 array), each of shape (n_queries, n_items)
        Ascending distances and their tie keys. Of equal entries the first part's comes first.
    k : int
        Number of items of the result; all if there are fewer.

    Returns
    -------
    distances : float64 array of shape (n_queries, k)
        Ascending.
    columns : int64 array of shape (n_queries, k)
        Column of each entry, in the parts side by side.
    """
    distances = np.concatenate([part[0] for part in parts], axis=1)
    ties = np.concatenate([part[1] for part in parts], axis=1)
    starts = np.cumsum([0, *(part[0].shape[1] for part in parts)])
    shape = len(distances), min(k, distances.shape[1])
    out, items = np.empty(shape), np.empty(shape, np.int64)
    if out.size:
        _merge(distances, ties, starts, out, items)
    return out, items


@dataclass(frozen=True, eq=False)
class RowSearch:
    """Rows in the order in which a search visits them.

    Parameters
    ----------
    kind : int
        ``ROOT``, ``PLAIN``, ``HALF`` or ``SQUARE``.
    rows : float64 array of shape (n_rows, n_columns), C order
        Finite rows; ascending in ``column`` if they have few columns.
    ranks : int64 array of shape (n_rows,)
        Rows of equal distance are ordered by rank, ascending.
    order : int64 array of shape (n_rows,)
        Original position of each row.
    column : int
        The column by which rows are sorted.
    """

    kind: int
    rows: Floats
    ranks: Integers
    order: Integers
    column: int

    @classmethod
    def of(cls, rows: Floats, ranks: Integers, *, kind: int) -> "RowSearch":
        """Sort rows of few columns by the column of the largest range.

        ``ranks`` and ``kind`` are as for the class.
        """
        if kind != PLAIN and rows.shape[1] >= MIN_PRODUCT_COLUMNS:
            return cls(kind, rows, ranks, np.arange(len(rows)), 0)
        column = int(np.ptp(rows, axis=0).argmax()) if len(rows) else 0
        order = np.argsort(rows[:, column], kind="stable")
        return cls(kind, rows[order], ranks[order], order, column)

    def nearest(self, queries: Floats, k: int) -> tuple[Floats, Integers]:
        """Return distances and positions of the k nearest rows of each query.

        Parameters
        ----------
        queries : float64 array of shape (n_queries, n_columns), C order
            Finite queries.
        k : int
            Number of rows; all if there are fewer.

        Returns
        -------
        distances : float64 array of shape (n_queries, k)
            Ascending.
        positions : int64 array of shape (n_queries, k)
            Original positions.
        """
        n, n_columns = self.rows.shape
        shape = len(queries), min(k, n)
        distances, items = np.empty(shape), np.empty(shape, np.int64)
        if not distances.size:
            return distances, items
        if self.kind == PLAIN or n_columns < MIN_PRODUCT_COLUMNS:
            _search_sorted_rows(
                self.kind, self.rows, self.column, self.ranks, queries, distances, items
            )
            return distances, self.order[items]
        norms = np.einsum("ij,ij->i", self.rows, self.rows)
        step = max(1, _MAX_PRODUCTS // n)
        for first in range(0, len(queries), step):
            block = slice(first, first + step)
            with np.errstate(over="ignore", invalid="ignore"):  # then all rows are verified
                self._search_block(queries[block], norms, distances[block], items[block])
        return distances, self.order[items]

    def _search_block(
        self, queries: Floats, norms: Floats, distances: Floats, items: npt.NDArray[np.int64]
    ) -> None:
        products = queries @ self.rows.T
        query_norms = np.einsum("ij,ij->i", queries, queries)
        # Error of a product of n terms, of two sums of squares and of the exact sum, doubled: each
        # rounding is relative to at most the sum of both squared norms. Terms below 2**-1022 lose
        # less than 2**-1000 in all. The search omits the query's norm, which is part of the bound.
        n_roundings = 16 * (queries.shape[1] + 8)
        errors = n_roundings * np.finfo(float).eps * (query_norms + norms.max()) + 2.0**-1000
        _search_products(
            self.kind, self.rows, norms, self.ranks, queries, products, errors - query_norms,
            distances, items,
        )  # fmt: skip
