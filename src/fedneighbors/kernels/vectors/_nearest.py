"""The nearest rows of many queries, exact and in one total order.

Distances are those of :mod:`fedneighbors.kernels.vectors._distances`, bit for bit. Rows of equal
distance are ordered by rank. Rows that cannot be among the nearest are skipped by a lower bound: in
tables of few columns the difference in one column, otherwise a matrix product in float32 and its
error bound. The difference in a column bounds no inner product, so that small tables are scanned.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numba import njit

from fedneighbors._typing import Floats, Integers
from fedneighbors.kernels.vectors._centering import CenteredRows
from fedneighbors.kernels.vectors._distances import (
    TILE,
    _sum_absolutes_of_tile,
    _sum_of_products,
    _sum_of_squares,
    _sum_products_of_tile,
    _sum_squares_of_tile,
)
from fedneighbors.kernels.vectors._lists import MAX_COUNTED, _emit, _replace_highest
from fedneighbors.kernels.vectors._table import TableRows

# Digests of the kernel files used here; Numba's cache does not notice edits in other files.
USES = {"vectors/distances": "35a00e78ff528aba", "vectors/lists": "82bbca346dcaa8c4"}

ROOT, PLAIN, HALF, SQUARE, PRODUCT = 0, 1, 2, 3, 4
"""Distance: root of the sum of squares, sum of absolute values, half or whole sum of squares, or
negative inner product."""

MIN_PRODUCT_COLUMNS = 16  # below, sums are faster than a matrix product and its verification
MIN_PRODUCT_CELLS = 1 << 13  # likewise
_MAX_PRODUCTS = 1 << 18  # number of products computed at once; they stay in a cache (1 MiB)
_MIN_ROOM = 1024  # least number of candidates that are stored
_MAX_STATE = 1 << 22  # number of bounds and candidates of all queries of a block (80 MiB)
_MAX_VERIFIED = (
    0.5  # part of the rows; beyond, products save nothing, as in rows that are all equal
)
_N_TRIAL = 16  # queries of the first block
# One query takes 6 to 22 us without products, 33 to 66 us with them, in tables of 16,000 to 64,000
# cells.
_MAX_SCANNED_CELLS = 1 << 16
_CHUNK = 16  # number of rows whose sums are computed at once
_BLOCK = 64  # likewise, at first
_GROUPS = 16  # in a block


@njit(cache=True, nogil=True, inline="always")
def _distance(kind: Any, total: Any) -> Any:
    """Return the distance of a sum."""
    if kind == 0:
        return math.sqrt(total)
    return total * 0.5 if kind == 2 else total


@njit(cache=True, nogil=True, inline="always")
def _limit(kind: Any, total: Any) -> Any:
    if kind == 4:
        return total
    # Sums above the limit have larger distances. Roots and halves are rounded, so that several sums
    # have the same one; for roots their relative difference is below 2**-51.
    return total * (1.0 + 2.0**-50) + 2.0**-1000


@njit(cache=True, nogil=True, inline="always")
def _keep_lowest(lowest: Any, value: Any) -> None:
    """Insert a value into ascending ones and drop the highest."""
    # without branches, which a processor would often predict wrongly
    for slot in range(lowest.shape[0] - 1, 0, -1):
        lowest[slot] = max(lowest[slot - 1], min(lowest[slot], value))
    lowest[0] = min(lowest[0], value)


@njit(cache=True, nogil=True, inline="always")
def _find_place(columns: Any, column: Any, n: Any, value: Any) -> Any:
    """Count the elements of an ascending column below a value."""
    low, high = 0, n
    while low < high:
        middle = (low + high) >> 1
        if columns[column, middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True, nogil=True, inline="always")
def _sum_rows(kind: Any, columns: Any, first: Any, n: Any, queries: Any, q: Any, sums: Any) -> None:
    """Compute the sums of adjacent rows."""
    for start in range(0, n, TILE):
        if kind == 1:
            _sum_absolutes_of_tile(columns, first + start, queries, q, sums, start)
        elif kind == 4:
            _sum_products_of_tile(columns, first + start, queries, q, sums, start)
        else:
            _sum_squares_of_tile(columns, first + start, queries, q, sums, start)


@njit(cache=True, nogil=True, inline="always")
def _collect(
    sums: Any, n: Any, first: Any, limit: Any, rows: Any, totals: Any, n_before: Any
) -> Any:
    """Append the rows within a limit; return their new number."""
    for i in range(n):  # without branches; ``rows`` has room for one more
        rows[n_before], totals[n_before] = first + i, sums[i]
        n_before += sums[i] <= limit
    return n_before


@njit(cache=True, nogil=True, inline="always")
def _limit_of_few(sums: Any, n: Any, lowest: Any) -> Any:
    """Return a limit of as many rows as ``lowest`` holds."""
    # the lowest sums of 16 groups belong to different rows
    sums[n:_BLOCK] = math.inf
    for i in range(_GROUPS):
        low = min(sums[i], sums[i + 16])
        _keep_lowest(lowest, min(low, min(sums[i + 32], sums[i + 48])))
    limit = lowest[lowest.shape[0] - 1]
    lowest[:] = math.inf
    return limit


@njit(cache=True, nogil=True, error_model="numpy")
def _has_any_sum_within(sums: Any, limit: Any) -> Any:
    """Return whether one of the first 16 sums is within a limit."""
    n = 0  # vector instructions of a loop without branches
    for i in range(np.uint64(16)):
        n += sums[i] <= limit
    return n > 0


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
def _search_sorted_rows(
    kind: Any, columns: Any, column: Any, ranks: Any, order: Any, queries: Any, distances: Any,
    items: Any,
) -> None:  # fmt: skip
    """Search rows that ascend in a column, from the query's place outwards."""
    n, k = ranks.shape[0], distances.shape[1]
    last_slot = 0 if k > MAX_COUNTED else k - 1  # place of the highest sum: a heap if many
    lowest, sums = np.empty(k), np.empty(_BLOCK)
    candidates, totals = np.empty(n + 1, np.int64), np.empty(n + 1)
    found_ranks, found = np.empty(n, np.int64), np.empty(n, np.int64)
    for q in range(queries.shape[0]):
        lowest[:] = math.inf
        limit, n_candidates, n_read = math.inf, 0, 0
        center = queries[q, column]
        place = _find_place(columns, column, n, center) if n > _BLOCK else 0
        low = max(0, min(place - _BLOCK // 2, n - _BLOCK))
        high = low
        while low > 0 or high < n:
            below = center - columns[column, low - 1] if low > 0 else math.inf
            above = columns[column, high] - center if high < n else math.inf
            gap = min(below, above)
            # sums add rounded terms that are not negative, so they are at least this one
            if kind != 4 and high > low and (gap if kind == 1 else gap * gap) > limit:
                break
            is_below = high > low and (high >= n or (low > 0 and below <= above))
            size = _CHUNK if high > low else _BLOCK
            first = max(0, low - size) if is_below else high
            last = low if is_below else min(n, high + size)
            if is_below:
                low = first
            else:
                high = last
            _sum_rows(kind, columns, first, last - first, queries, q, sums)
            # a limit costs more than it saves where few rows are compared
            if size == _BLOCK and k < n and k <= _GROUPS and n > _CHUNK:
                limit = _limit(kind, _limit_of_few(sums, last - first, lowest))
            elif last - first == _CHUNK and not _has_any_sum_within(sums, limit):
                continue
            n_candidates = _collect(
                sums, last - first, first, limit, candidates, totals, n_candidates
            )
            if k < n:
                for c in range(n_read, n_candidates):
                    if totals[c] < lowest[last_slot]:
                        if last_slot > 0:
                            _keep_lowest(lowest, totals[c])
                        else:
                            _replace_highest(lowest, totals[c])
                n_read, limit = n_candidates, min(limit, _limit(kind, lowest[last_slot]))
        n_found = 0
        for c in range(n_candidates):
            row = candidates[c]
            found_ranks[n_found], found[n_found] = ranks[row], order[row]
            is_near = totals[c] <= limit
            totals[n_found] = _distance(kind, totals[c])
            n_found += is_near
        _emit(totals, found_ranks, found, n_found, q, distances, items)


@njit(cache=True, nogil=True, error_model="numpy")
def _has_any_within(bounds: Any, first: Any, products: Any, q: Any, column: Any, limit: Any) -> Any:
    """Return whether one of 64 rows is within a limit."""
    # vector instructions of a loop without branches and checks of negative indices
    n, first, q, column = np.int32(0), np.uint64(first), np.uint64(q), np.uint64(column)
    for i in range(np.uint64(64)):
        n += np.int32(bounds[first + i] - products[q, column + i] <= limit)
    return n > 0


@njit(cache=True, nogil=True, inline="always")
def _distance_of_row(kind: Any, rows: Any, row: Any, points: Any, q: Any) -> Any:
    """Return the distance of a row and a query."""
    x, position = rows[0], rows[1][row]
    if kind == 4:
        return _sum_of_products(x, position, points, q)
    return _distance(kind, _sum_of_squares(x, position, points, q))


@njit(cache=True, nogil=True, inline="always")
def _verify(
    kind: Any, rows: Any, points: Any, q: Any, candidates: Any, slot: Any, n: Any, found: Any,
    n_found: Any,
) -> Any:  # fmt: skip
    """Compute the distances of candidates; keep the nearest, and return their number."""
    distances, found_ranks, items = found
    k, ranks = distances.shape[1], rows[4]
    if k > MAX_COUNTED:  # the rows are sorted, as an insertion takes O(k)
        both = np.concatenate((items[q, :n_found], candidates[slot, :n]))
        exact = np.empty(n_found + n)
        exact[:n_found] = distances[q, :n_found]
        for c in range(n_found, n_found + n):
            exact[c] = _distance_of_row(kind, rows, both[c], points, q)
        _emit(exact, ranks[both], both, n_found + n, q, distances, items)
        return min(n_found + n, k)
    for c in range(n):
        row = candidates[slot, c]
        distance = _distance_of_row(kind, rows, row, points, q)
        if n_found < k or distance <= distances[q, k - 1]:
            new = distance, ranks[row], row
            n_found = _insert(distances, found_ranks, items, q, n_found, new)
    return n_found


@njit(cache=True, nogil=True, inline="always")
def _drop_beyond(candidates: Any, lowers: Any, q: Any, n: Any, limit: Any) -> Any:
    """Drop the candidates beyond a limit; return the number of the others."""
    n_left = 0
    for c in range(n):
        candidates[q, n_left], lowers[q, n_left] = candidates[q, c], lowers[q, c]
        n_left += lowers[q, c] <= limit
    return n_left


@njit(cache=True, nogil=True)
def _search_tile(
    kind: Any, rows: Any, queries: Any, products: Any, first: Any, found: Any, state: Any
) -> int:
    """Search the next rows; return the number of computed distances."""
    points, centered, errors_of_queries, rounding = queries
    bounds, errors, n = rows[2], rows[3], rows[4].shape[0]
    uppers, limits, candidates, lowers, counts = state
    k, room, n_computed = uppers.shape[1], candidates.shape[1], 0
    last_slot = 0 if k > MAX_COUNTED else k - 1  # place of the highest bound: a heap if many
    end = first + products.shape[1]
    for q in range(points.shape[0]):
        slot = min(q, candidates.shape[0] - 1)  # queries take turns if there is one tile
        if first == 0:
            errors_of_queries[q] -= rounding * _sum_of_products(centered, q, centered, q)
        limit, n_candidates = limits[q], counts[q, 0]
        for start in range(first, end, 64):
            last, column = min(end, start + 64), start - first
            is_full = start + 64 == last
            if is_full and not _has_any_within(bounds, start, products, q, column, limit):
                continue
            if n_candidates + 64 > room:
                n_candidates = _drop_beyond(candidates, lowers, slot, n_candidates, limit)
                if 2 * n_candidates > room:
                    counts[q, 1] = _verify(
                        kind, rows, points, q, candidates, slot, n_candidates, found, counts[q, 1]
                    )
                    n_computed, n_candidates = n_computed + n_candidates, 0
            for i in range(start, last):
                lower = bounds[i] - products[q, i - first]
                if lower > limit:
                    continue
                candidates[slot, n_candidates], lowers[slot, n_candidates] = i, lower
                n_candidates += 1
                upper = np.float64(lower) + errors[i]
                if k < n and upper < uppers[q, last_slot]:
                    if last_slot > 0:
                        _keep_lowest(uppers[q], upper)
                    else:
                        _replace_highest(uppers[q], upper)
                    highest = uppers[q, last_slot] + errors_of_queries[q]
                    limit = np.float32(highest + abs(highest) * 2.0**-23)  # rounded up
        if end == n:
            n_candidates = _drop_beyond(candidates, lowers, slot, n_candidates, limit)
            _verify(kind, rows, points, q, candidates, slot, n_candidates, found, counts[q, 1])
            n_computed += n_candidates
        limits[q], counts[q, 0] = limit, n_candidates
    return n_computed


def _tile_rows(n_queries: int) -> int:
    """Return the number of rows whose products are computed at once."""
    return max(64, _MAX_PRODUCTS // n_queries // 64 * 64)


@dataclass(frozen=True, eq=False)
class RowSearch:
    """Rows in the order in which a search visits them.

    Parameters
    ----------
    kind : int
        ``ROOT``, ``PLAIN``, ``HALF``, ``SQUARE`` or ``PRODUCT``.
    table : float64, float32 or uint8 array, C order
        A table with the rows, which are finite; or, if ``column`` is not -1, their columns as
        float64, one a row of the array, of rows that ascend in this column and are followed by at
        least ``TILE - 1`` others.
    ranks : int64 array of shape (n_rows,)
        Rows of equal distance are ordered by rank, ascending.
    order : int64 array of shape (n_rows,)
        Original position of each row; or, if ``column`` is -1, its position in the table.
    column : int
        The column by which rows are sorted; -1 if they are not.
    """

    kind: int
    table: Floats
    ranks: Integers
    order: Integers
    column: int

    @classmethod
    def of(cls, rows: Floats | TableRows, ranks: Integers, *, kind: int) -> "RowSearch":
        """Sort rows of a small table by their widest column.

        ``ranks`` and ``kind`` are as for the class.
        """
        rows = TableRows.of(rows)
        n, n_columns = rows.shape
        is_small = n_columns < MIN_PRODUCT_COLUMNS or n * n_columns < MIN_PRODUCT_CELLS
        if kind == PLAIN or is_small:
            return cls._sorted(rows[:], ranks, kind)
        positions = np.arange(n) if rows.positions is None else rows.positions
        return cls(kind, rows.table, ranks, positions, -1)

    @classmethod
    def _sorted(cls, rows: Floats, ranks: Integers, kind: int) -> "RowSearch":
        n, n_columns = rows.shape
        column = int(np.ptp(rows, axis=0).argmax()) if n else 0
        order = np.argsort(rows[:, column], kind="stable")
        columns = np.zeros((n_columns, n + TILE))
        columns[:, :n] = rows[order].T
        return cls(kind, columns, ranks[order], order, column)

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
        shape = len(queries), min(k, len(self.ranks))
        distances, items = np.empty(shape), np.empty(shape, np.int64)
        if not distances.size:
            return distances, items
        if self.column >= 0:
            _search_sorted_rows(
                self.kind, self.table, self.column, self.ranks, self.order, queries, distances,
                items,
            )  # fmt: skip
            return distances, items
        n_cells = len(self.ranks) * self.table.shape[1]
        if len(queries) == 1 and n_cells <= _MAX_SCANNED_CELLS:
            return self._scan.nearest(queries, k)
        with np.errstate(over="ignore"):  # queries that are far away
            self._search_blocks(queries, distances, items)
        return distances, items

    @cached_property
    def _centered(self) -> "CenteredRows":
        """Return the rows for products."""
        rows = TableRows(self.table, self.order)
        return CenteredRows(rows, self._rounding, of_products=self.kind == PRODUCT)

    @cached_property
    def _scan(self) -> "RowSearch":
        """Return a search in the same rows without products."""
        return self._sorted(self.table[self.order], self.ranks, self.kind)

    @property
    def _rounding(self) -> float:
        # Half the squared distance of a centered row x and query q is |x|**2 / 2 - x q + a number
        # of the query. Let u = 2**-24. Conversion to float32 and a product of n terms, added in any
        # order, have an error below (n + 4) u |x| |q|; a half square and the difference, below
        # 2 u of their magnitudes. As 2 |x| |q| <= |x|**2 + |q|**2, twice the error is below this
        # fraction of |x|**2 + |q|**2, which also covers the float64 sums of the distances. The
        # negative inner product is - x q + a number of the query, with smaller errors.
        n: int = self.table.shape[1]
        return 2 * (n + 8) * 2.0**-24

    def _search_blocks(self, queries: Floats, distances: Floats, items: Integers) -> None:
        rows, n, k = self._centered, len(self.ranks), items.shape[1]
        room = 128 + min(n, max(4 * k, _MIN_ROOM))  # candidates of a query
        step = min(128 if n < 1024 else 256, max(1, _MAX_STATE // (k + room)), len(queries))
        starts = [0, *range(min(step, _N_TRIAL), len(queries), step), len(queries)]
        products = np.empty(min(step * n, max(_MAX_PRODUCTS, 64 * step)), np.float32)
        n_slots = 1 if n <= _tile_rows(step) else step
        candidates = np.empty((n_slots, room), np.int64)
        lowers = np.empty((n_slots, room), np.float32)
        for first, last in pairwise(starts):
            block, rest, size = slice(first, last), slice(last, None), last - first
            centered, query_errors = rows.center(queries[block])
            if centered is None:  # too far away for products
                distances[block], items[block] = self._scan.nearest(queries[block], k)
                continue
            found = distances[block], np.empty((size, k), np.int64), items[block]
            bounds = np.full((size, k), math.inf), np.full(size, math.inf, np.float32)
            state = *bounds, candidates, lowers, np.zeros((size, 2), np.int64)
            table = self.table, self.order, rows.bounds, rows.errors, self.ranks
            own = queries[block], centered, query_errors, self._rounding
            tile, n_verified = _tile_rows(size), 0
            for start in range(0, n, tile):
                tile_rows = rows.table[start : start + tile]
                out = products[: size * len(tile_rows)].reshape(size, len(tile_rows))
                np.matmul(centered, tile_rows.T, out=out)
                n_verified += _search_tile(self.kind, table, own, out, start, found, state)
            if n_verified > _MAX_VERIFIED * size * n and last < len(queries):
                distances[rest], items[rest] = self._scan.nearest(queries[rest], k)
                return
