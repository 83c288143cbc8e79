"""Costs of cells (pairs of nodes) for the bound in ``_dual``, and their minimum assignment."""

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from fedneighbors.kernels.graph_edit._paths import BIG, find_nearest_column, match_path, relax

USES = {"graph_edit/paths": "134976efef0d3e88"}

_jit: Any = njit(cache=True, nogil=True, _nrt=False)  # type: ignore[call-overload]
_jit_inline: Any = njit(cache=True, nogil=True, forceinline=True, _nrt=False)  # type: ignore[call-overload]

UNIT: Any = np.int32(1024)  # cost of one edit
FORBIDDEN: Any = np.int32(1 << 24)  # cost of a forbidden cell
# Indices of `DualSearch.state`: numbers of nodes (N, M) and of arcs (A, B) of both graphs, depth of
# the current tree node, 1 if its children are listed, lowest bound of all pruned branches, cost
# without savings, and cost of a mapping within the threshold or -1.
N, M, A, B, DEPTH, IS_BRANCHED, MIN_PRUNED, BASE_COST, FOUND_COST = range(9)


class DualSearch(NamedTuple):
    """State of one search by branch and bound.

    Slots 0 to n are the depths of the current path; slot n + 1 is scratch space. Rows are the nodes
    of the smaller graph, columns those of the larger one.
    """

    state: Any  # (9,) see the indices above
    # flat: (slots, small arcs, large arcs) saving that counts in the cell of the arcs' source nodes
    saving: Any
    cell_cost: Any  # flat: (slots, rows + 1, columns); the last row is that of all insertions
    reverse: Any  # (2, arcs) reverse arc, in the smaller and in the larger graph
    source: Any  # (2, arcs) node that the arc leaves
    fixed_column: Any  # (nodes,) column to which a row is mapped, or -1
    fixed_row: Any  # (nodes,) row that is mapped to a column, or -1
    matched_arc: Any  # (arcs,) arc of the larger graph with which a cell matches an arc, or -1
    buffers: Any  # (4, columns) distance, predecessor and blocked of `_paths`; excesses of children
    matching: Any  # (7, degrees) arrays of `match_arcs`
    row_price: Any  # (slots, columns) dual prices; rows beyond the smaller graph's are insertions
    column_price: Any  # (slots, columns) dual prices
    column_of: Any  # (slots, columns) column assigned to each row, or -1
    row_of: Any  # (slots, columns) row assigned to each column, or -1
    children: Any  # (slots, columns) columns, most promising first
    branch_row: Any  # (slots,) row that the children map
    n_children: Any  # (slots,)
    next_child: Any  # (slots,) index of the next child
    bound: Any  # (slots,) lower bound, in units of 1 / UNIT


@_jit_inline
def _sum_savings(row_price: Any, column_price: Any, n_rows: int, n_columns: int) -> Any:
    """Return the savings of a matching: its negative price sum."""
    total = 0
    for x in range(n_rows):
        total -= row_price[x]
    for y in range(n_columns):
        total -= column_price[y]
    return total


@_jit
def match_arcs(saving: Any, width: int, a: int, p: int, b: int, q: int, matching: Any) -> Any:
    """Match arcs of two nodes for maximum savings.

    Matches the ``p`` arcs beginning at ``a`` with the ``q`` arcs beginning at ``b`` and returns the
    savings. The rows of the matching are the arcs of the node that has fewer. Dual prices and pairs
    remain in ``matching``.
    """
    swap = p > q
    n_rows, n_columns = min(p, q), max(p, q)
    row_price, column_price, column_of, row_of, distance, predecessor, visited = matching
    for y in range(n_columns):
        column_price[y], row_of[y] = 0, -1
    n_unassigned = 0
    for x in range(n_rows):
        least, best = 0, -1
        for y in range(n_columns):
            cost = -(saving[(a + y) * width + b + x] if swap else saving[(a + x) * width + b + y])
            if cost < least or (cost == least and best >= 0 and row_of[best] >= 0):
                least, best = cost, y
        row_price[x], column_of[x] = least, -1
        if best >= 0 and row_of[best] >= 0:
            column_of[x], n_unassigned = -2, n_unassigned + 1
        elif best >= 0:
            column_of[x], row_of[best] = best, x
    for start in range(n_rows if n_unassigned > 0 else 0):
        if column_of[start] != -2:
            continue
        for y in range(n_columns):
            distance[y], visited[y] = BIG, 0
        x, least, exit_length, exit_row, sink = start, 0, BIG, -1, -1
        while True:
            if least - row_price[x] < exit_length:  # the row may also stay unmatched
                exit_length, exit_row = least - row_price[x], x
            sink, nearest = -1, BIG
            for y in range(n_columns):
                if visited[y] == 0:
                    at = (a + y) * width + b + x if swap else (a + x) * width + b + y
                    length = least - saving[at] - row_price[x] - column_price[y]
                    if length < distance[y]:
                        distance[y], predecessor[y] = length, x
                    if distance[y] < nearest or (distance[y] == nearest and row_of[y] < 0):
                        nearest, sink = distance[y], y
            if exit_length <= nearest:
                least, sink = exit_length, -1
                break
            least, visited[sink] = nearest, 1
            if row_of[sink] < 0:
                break
            x = row_of[sink]
        row_price[start] += least
        for y in range(n_columns):
            if visited[y] == 1 and y != sink:
                row_price[row_of[y]] += least - distance[y]
                column_price[y] -= least - distance[y]
        if sink < 0:
            previous = column_of[exit_row] if exit_row != start else -1
            sink, column_of[exit_row] = previous, -1
        while sink >= 0:  # the start was not matched before, so the path ends there
            x = predecessor[sink]
            previous = column_of[x] if x != start else -1
            row_of[sink], column_of[x], sink = x, sink, previous
    return _sum_savings(row_price, column_price, n_rows, n_columns)


@_jit_inline
def _max_savings(saving: Any, width: int, a: int, p: int, b: int, q: int, matching: Any) -> Any:
    """Return the maximum savings of a matching of arcs.

    Arguments as for :func:`match_arcs`; no search is needed if a node has at most two arcs.
    """
    if p == 0 or q == 0:
        return 0
    if min(p, q) > 2:
        return match_arcs(saving, width, a, p, b, q, matching)
    along, across = (1, width) if p <= q else (width, 1)
    best, runner_up, best_place = 0, 0, -1
    at = a * width + b
    for y in range(max(p, q)):
        value = saving[at + y * along]
        if value > best:
            best, runner_up, best_place = value, best, y
        elif value > runner_up:
            runner_up = value
    if min(p, q) == 1:
        return best
    # the second arc's savings at the best place of the first arc, and at all other places
    other_there, other_elsewhere = 0, 0
    for y in range(max(p, q)):
        value = saving[at + across + y * along]
        if y == best_place:
            other_there = max(other_there, value)
        else:
            other_elsewhere = max(other_elsewhere, value)
    return max(best + other_elsewhere, runner_up + max(other_there, other_elsewhere))


@_jit_inline
def compute_cell_cost(small: Any, large: Any, dual: Any, s: int, r: int, c: int) -> None:
    """Compute the cost of a cell from its labels and savings."""
    n, m, width = dual.state[N], dual.state[M], dual.state[B]
    saving = dual.saving[s * dual.state[A] * width :]
    a, b = small.first_arc[r], large.first_arc[c]
    p, q = small.first_arc[r + 1] - a, large.first_arc[c + 1] - b
    savings = _max_savings(saving, width, a, p, b, q, dual.matching)
    relabel = small.label[r] != large.label[c]
    dual.cell_cost[(s * (n + 1) + r) * m + c] = (UNIT if relabel else 0) - savings


@_jit
def solve_assignment(dual: Any, s: int) -> Any:
    """Compute the minimum assignment of a slot after costs changed.

    It starts from the slot's previous assignment and column prices. Returns the lower bound.
    """
    row_price, column_price = dual.row_price[s], dual.column_price[s]
    column_of, row_of, n, m = dual.column_of[s], dual.row_of[s], dual.state[N], dual.state[M]
    for r in range(m):
        cell = (s * (n + 1) + min(r, n)) * m
        costs, least = dual.cell_cost[cell : cell + m], 2 * BIG
        for c in range(m):
            least = min(least, costs[c] - column_price[c])
        row_price[r], c = least, column_of[r]
        if c >= 0 and costs[c] - column_price[c] != least:
            column_of[r], row_of[c] = -1, -1
    for r in range(m):
        if column_of[r] < 0:
            _augment(dual, s, r)
    bound = dual.state[BASE_COST]
    for i in range(m):
        bound += row_price[i] + column_price[i]
    return bound


@_jit_inline
def _augment(dual: Any, s: int, start: int) -> None:
    row_price, column_price = dual.row_price[s], dual.column_price[s]
    column_of, row_of, n, m = dual.column_of[s], dual.row_of[s], dual.state[N], dual.state[M]
    distance, predecessor, blocked = dual.buffers[0], dual.buffers[1], dual.buffers[2]
    for c in range(m):
        distance[c], blocked[c] = BIG, 0
    i, least, sink = start, 0, -1
    paths = distance, predecessor, blocked
    while True:
        at = (s * (n + 1) + min(i, n)) * m
        least = relax(paths, dual.cell_cost[at : at + m], column_price, m, i, least - row_price[i])
        sink = find_nearest_column(paths, row_of, m, least)
        if row_of[sink] < 0:
            break
        blocked[sink], i = BIG, row_of[sink]
    row_price[start] += least
    for c in range(m):
        if blocked[c] > 0:
            row_price[row_of[c]] += least - distance[c]
            column_price[c] -= least - distance[c]
    match_path(predecessor, column_of, row_of, start, sink)
