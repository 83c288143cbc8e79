"""Cells of the bound in ``_dual``: savings of node pairs, prices of cells, and the assignment."""

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from fedneighbors.kernels.graph_edit._paths import BIG, match_along, nearest_column, relax

USES = {"graph_edit/paths": "64207419a4fff0e3"}

_jit: Any = njit(cache=True, nogil=True, _nrt=False)  # type: ignore[call-overload]
_jit_inline: Any = njit(cache=True, nogil=True, forceinline=True, _nrt=False)  # type: ignore[call-overload]

UNIT: Any = np.int32(1024)  # price of one edit
NEVER: Any = np.int32(1 << 24)  # price of a closed cell
# Indices of `DualRoom.head`: numbers of nodes (N, M) and of arcs (A, B) of both graphs, the depth,
# whether its children are listed, the least refused bound, the cost without savings and the best
# cost found.
N, M, A, B, DEPTH, OPEN, REFUSED, BASE, BEST = range(9)


class DualRoom(NamedTuple):
    """State of one search.

    Slots 0 to n belong to the depths of the current path; the slot after the path is scratch space.
    """

    head: Any  # (9,)
    saving: Any  # flat: (slots, small arcs, large arcs) saving counted in the arc's own cell
    price: Any  # flat: (slots, rows + 1, columns) prices of cells; the last row: any insertion
    back: Any  # (2, arcs) reverse arc, in the smaller and in the larger graph
    origin: Any  # (2, arcs) node that the arc leaves
    image: Any  # (nodes,) column to which a row is fixed, or -1
    holder: Any  # (nodes,) row to which a column is fixed, or -1
    kept: Any  # (arcs,) arc of the larger graph onto which an arc is kept in the relaxation, or -1
    line: Any  # (4, columns) distance, through, passed, excess
    local: Any  # (7, degrees) scratch space of one local matching
    row: Any  # (slots, columns) dual prices; rows beyond the smaller graph's are insertions
    column: Any  # (slots, columns) dual prices
    at_row: Any  # (slots, columns) column assigned to each row, or -1
    at_column: Any  # (slots, columns) row assigned to each column, or -1
    children: Any  # (slots, columns) columns, most promising first
    chosen: Any  # (slots,) row that the children map
    n_children: Any  # (slots,)
    place: Any  # (slots,) index of the next child
    total: Any  # (slots,) lower bound


@_jit_inline
def _sum_savings(on_row: Any, on_column: Any, rows: int, columns: int) -> Any:
    """Return the savings of a matching, the negative sum of its prices."""
    total = 0
    for x in range(rows):
        total -= on_row[x]
    for y in range(columns):
        total -= on_column[y]
    return total


@_jit
def match_arcs(saving: Any, width: int, a: int, p: int, b: int, q: int, local: Any) -> Any:
    """Match arcs of two nodes for maximum savings.

    Matches the ``p`` arcs beginning at ``a`` with the ``q`` arcs beginning at ``b`` and returns the
    savings. Prices and pairs remain in ``local``.
    """
    swap = p > q
    rows, columns = min(p, q), max(p, q)
    on_row, on_column, at_row, at_column, distance, through, passed = local
    for y in range(columns):
        on_column[y], at_column[y] = 0, -1
    loose = 0
    for x in range(rows):
        least, best = 0, -1
        for y in range(columns):
            cost = -(saving[(a + y) * width + b + x] if swap else saving[(a + x) * width + b + y])
            if cost < least or (cost == least and best >= 0 and at_column[best] >= 0):
                least, best = cost, y
        on_row[x], at_row[x] = least, -1
        if best >= 0 and at_column[best] >= 0:
            at_row[x], loose = -2, loose + 1
        elif best >= 0:
            at_row[x], at_column[best] = best, x
    for start in range(rows if loose > 0 else 0):
        if at_row[start] != -2:
            continue
        for y in range(columns):
            distance[y], passed[y] = BIG, 0
        x, least, exit_at, leaver, sink = start, 0, BIG, -1, -1
        while True:
            if least - on_row[x] < exit_at:  # the row may also stay unmatched
                exit_at, leaver = least - on_row[x], x
            sink, nearest = -1, BIG
            for y in range(columns):
                if passed[y] == 0:
                    at = (a + y) * width + b + x if swap else (a + x) * width + b + y
                    way = least - saving[at] - on_row[x] - on_column[y]
                    if way < distance[y]:
                        distance[y], through[y] = way, x
                    if distance[y] < nearest or (distance[y] == nearest and at_column[y] < 0):
                        nearest, sink = distance[y], y
            if exit_at <= nearest:
                least, sink = exit_at, -1
                break
            least, passed[sink] = nearest, 1
            if at_column[sink] < 0:
                break
            x = at_column[sink]
        on_row[start] += least
        for y in range(columns):
            if passed[y] == 1 and y != sink:
                on_row[at_column[y]] += least - distance[y]
                on_column[y] -= least - distance[y]
        if sink < 0:
            before = at_row[leaver] if leaver != start else -1
            sink, at_row[leaver] = before, -1
        while sink >= 0:  # the start was not matched before, so the path ends there
            x = through[sink]
            before = at_row[x] if x != start else -1
            at_column[sink], at_row[x], sink = x, sink, before
    return _sum_savings(on_row, on_column, rows, columns)


@_jit_inline
def _savings(saving: Any, width: int, a: int, p: int, b: int, q: int, local: Any) -> Any:
    """Return the maximum savings of a matching of arcs.

    Arguments as for :func:`match_arcs`; at most two arcs on one side need no search.
    """
    if p == 0 or q == 0:
        return 0
    if min(p, q) > 2:
        return match_arcs(saving, width, a, p, b, q, local)
    along, across = (1, width) if p <= q else (width, 1)
    first, second, where = 0, 0, -1
    at = a * width + b
    for y in range(max(p, q)):
        x = saving[at + y * along]
        if x > first:
            first, second, where = x, first, y
        elif x > second:
            second = x
    if min(p, q) == 1:
        return first
    other, elsewhere = 0, 0  # the second arc's saving where the first arc's is best, and elsewhere
    for y in range(max(p, q)):
        x = saving[at + across + y * along]
        if y == where:
            other = max(other, x)
        else:
            elsewhere = max(elsewhere, x)
    return max(first + elsewhere, second + max(other, elsewhere))


@_jit_inline
def price_cell(small: Any, large: Any, room: Any, s: int, r: int, c: int) -> None:
    """Compute the price of a cell from its labels and savings."""
    n, m, width = room.head[N], room.head[M], room.head[B]
    saving = room.saving[s * room.head[A] * width :]
    a, b = small.start[r], large.start[c]
    most = _savings(saving, width, a, small.start[r + 1] - a, b, large.start[c + 1] - b, room.local)
    differs = small.label[r] != large.label[c]
    room.price[(s * (n + 1) + r) * m + c] = (UNIT if differs else 0) - most


@_jit
def assign(room: Any, s: int) -> Any:
    """Repair the dual prices of a slot after cells changed.

    Returns the lower bound.
    """
    n, m = room.head[N], room.head[M]
    row, column, at_row, at_column = room.row[s], room.column[s], room.at_row[s], room.at_column[s]
    for r in range(m):
        at = (s * (n + 1) + min(r, n)) * m
        line, least = room.price[at : at + m], 2 * BIG
        for c in range(m):
            least = min(least, line[c] - column[c])
        row[r], c = least, at_row[r]
        if c >= 0 and line[c] - column[c] != least:
            at_row[r], at_column[c] = -1, -1
    for r in range(m):
        if at_row[r] < 0:
            _augment(room, s, r)
    total = room.head[BASE]
    for i in range(m):
        total += row[i] + column[i]
    return total


@_jit_inline
def _augment(room: Any, s: int, loose: int) -> None:
    n, m = room.head[N], room.head[M]
    row, column, at_row, at_column = room.row[s], room.column[s], room.at_row[s], room.at_column[s]
    distance, through, passed = room.line[0], room.line[1], room.line[2]
    for c in range(m):
        distance[c], passed[c] = BIG, 0
    i, least, sink = loose, 0, -1
    ways = distance, through, passed
    while True:
        at = (s * (n + 1) + min(i, n)) * m
        least = relax(ways, room.price[at : at + m], column, m, i, least - row[i])
        sink = nearest_column(ways, at_column, m, least)
        if at_column[sink] < 0:
            break
        passed[sink], i = BIG, at_column[sink]
    row[loose] += least
    for c in range(m):
        if passed[c] > 0:
            row[at_column[c]] += least - distance[c]
            column[c] -= least - distance[c]
    match_along(through, at_row, at_column, loose, sink)
