"""Branch and bound for the edit distance of two graphs, with bounds by dual decomposition.

Let a mapping assign each node of the smaller graph a node of the larger one. Its edge cost is the
number of edges of both graphs minus the savings: 1 for each edge that is mapped to an edge, and 1
more if both labels are equal. A cell (r, c) stands for mapping node r to node c; it counts the
maximum savings of a matching of the arcs of r with the arcs of c. An edge that is mapped to an edge
belongs to two cells, and its saving may be split between them in any way. For every split, the cost
of the minimum assignment of the cells is a lower bound. (Splitting in halves gives the branch
bound.)

Sweeps first transfer the slack of cells to other cells; subgradient steps then shift savings
between the two cells of an edge if only one of them uses it. The bound approaches the linear
program F2 of Lerouge, Abu-Aisheh, Raveaux, Heroux, Adam, *New binary linear programming formulation
to compute the graph edit distance*, Pattern Recognition 72 (2017), and exceeds the branch bound by
several edits for molecules. All costs are integer multiples of 1 / `UNIT`, so that bounds are not
rounded.
"""

from typing import Any

from numba import njit

from fedneighbors.kernels.graph_edit._cells import (
    BASE_COST,
    DEPTH,
    FORBIDDEN,
    FOUND_COST,
    IS_BRANCHED,
    MIN_PRUNED,
    UNIT,
    A,
    B,
    M,
    N,
    compute_cell_cost,
    match_arcs,
    solve_assignment,
)  # fmt: skip
from fedneighbors.kernels.graph_edit._paths import BIG, find_largest_image, insert_child

USES = {"graph_edit/paths": "134976efef0d3e88", "graph_edit/cells": "201fb83f0f741a5a"}

_jit: Any = njit(cache=True, nogil=True, _nrt=False)  # type: ignore[call-overload]
_jit_inline: Any = njit(cache=True, nogil=True, forceinline=True, _nrt=False)  # type: ignore[call-overload]

_SWEEPS = 2
_ROOT_STEPS, _NODE_STEPS = 100, 12  # a step takes about 6 microseconds for 30 nodes


@_jit_inline
def has_space(dual: Any, n: int, m: int, n_arcs: int, m_arcs: int) -> bool:
    """Return whether the search of two graphs fits into ``dual``.

    The graphs have ``n`` and ``m`` nodes, and ``n_arcs`` and ``m_arcs`` arcs.
    """
    return (
        (n + 2) * n_arcs * m_arcs <= dual.saving.shape[0]
        and n > 0
        and (n + 2) * (n + 1) * m <= dual.cell_cost.shape[0]
    )


@_jit
def _sweep(small: Any, large: Any, dual: Any, is_backward: bool) -> None:
    """Transfer the slack of each cell of slot 0 along its edges.

    The slack goes to the cells at the other ends of the edges. Cells are processed one after the
    other, each with the transfers of the cells before it.
    """
    n, m, width = dual.state[N], dual.state[M], dual.state[B]
    saving, matching = dual.saving, dual.matching
    for step in range(n * m):
        r, c = divmod(n * m - 1 - step if is_backward else step, m)
        a, b = small.first_arc[r], large.first_arc[c]
        p, q = small.first_arc[r + 1] - a, large.first_arc[c + 1] - b
        if p == 0 or q == 0:
            continue
        savings = match_arcs(saving, width, a, p, b, q, matching)
        relabel = small.label[r] != large.label[c]
        slack = (UNIT if relabel else 0) - savings - dual.row_price[0, r] - dual.column_price[0, c]
        share = 2 * max(slack, 0) // (3 * min(p, q))
        for x in range(p):
            for y in range(q):
                i, j = (x, y) if p <= q else (y, x)
                at = (a + x) * width + b + y
                transfer = share - matching[0, i] - matching[1, j] - saving[at]
                saving[at] += transfer
                saving[dual.reverse[0, a + x] * width + dual.reverse[1, b + y]] -= transfer
    for r in range(n):
        for c in range(m):
            compute_cell_cost(small, large, dual, 0, r, c)


@_jit
def _compute_assignment_cost(small: Any, large: Any, dual: Any, s: int) -> Any:
    """Return the edit cost of the mapping given by a slot's assignment."""
    n, column_of = dual.state[N], dual.column_of[s]
    cost = dual.state[BASE_COST] // UNIT
    for v in range(n):
        cost += small.label[v] != large.label[column_of[v]]
        for t in range(small.first_arc[v], small.first_arc[v + 1]):
            if small.target[t] < v:
                label = large.adjacency[column_of[v], column_of[small.target[t]]]
                cost -= (label > 0) + (label == small.edge_label[t])
    return cost


@_jit
def _copy_slot(dual: Any, source: int, target: int) -> None:
    n, m, size = dual.state[N], dual.state[M], dual.state[A] * dual.state[B]
    for i in range(size):
        dual.saving[target * size + i] = dual.saving[source * size + i]
    size = (n + 1) * m
    for i in range(size):
        dual.cell_cost[target * size + i] = dual.cell_cost[source * size + i]
    for i in range(m):
        dual.row_price[target, i] = dual.row_price[source, i]
        dual.column_price[target, i] = dual.column_price[source, i]
        dual.column_of[target, i] = dual.column_of[source, i]
        dual.row_of[target, i] = dual.row_of[source, i]
    dual.bound[target] = dual.bound[source]


@_jit
def _count_disagreements(small: Any, large: Any, dual: Any, s: int) -> Any:
    """Count the arcs that only one of their two cells matches.

    Only cells of the slot's assignment count; their matchings are stored in ``dual.matched_arc``.
    """
    width = dual.state[B]
    saving = dual.saving[s * dual.state[A] * width :]
    matched_arc, matching, count = dual.matched_arc, dual.matching, 0
    for r in range(dual.state[N]):
        a, c = small.first_arc[r], dual.column_of[s, r]
        b = large.first_arc[c]
        p, q = small.first_arc[r + 1] - a, large.first_arc[c + 1] - b
        for x in range(p):
            matched_arc[a + x] = -1
        if p == 0 or q == 0 or dual.fixed_column[r] >= 0:
            continue
        match_arcs(saving, width, a, p, b, q, matching)
        for x in range(min(p, q)):
            y = matching[2, x]
            if y >= 0 and p <= q:
                matched_arc[a + x] = b + y
            elif y >= 0:
                matched_arc[a + y] = b + x
    for a in range(dual.state[A]):
        b = matched_arc[a]
        if b >= 0 and dual.fixed_column[small.target[a]] < 0:
            count += matched_arc[dual.reverse[0, a]] != dual.reverse[1, b]
    return count


@_jit
def _shift_savings(small: Any, large: Any, dual: Any, s: int, amount: int) -> None:
    """Move savings of disputed arcs to the other cell.

    An arc is disputed if exactly one of its two cells matches it; that cell gives ``amount`` to the
    other. The costs of both cells are updated.
    """
    width = dual.state[B]
    saving = dual.saving[s * dual.state[A] * width :]
    for a in range(dual.state[A]):
        b = dual.matched_arc[a]
        if b >= 0 and dual.fixed_column[small.target[a]] < 0:
            reverse_a, reverse_b = dual.reverse[0, a], dual.reverse[1, b]
            if dual.matched_arc[reverse_a] != reverse_b:
                saving[a * width + b] -= amount
                saving[reverse_a * width + reverse_b] += amount
    for r in range(dual.state[N]):
        is_changed = False
        for a in range(small.first_arc[r], small.first_arc[r + 1]):
            b = dual.matched_arc[a]
            is_agreed = b < 0 or dual.matched_arc[dual.reverse[0, a]] == dual.reverse[1, b]
            if not is_agreed and dual.fixed_column[small.target[a]] < 0:
                is_changed = True
                compute_cell_cost(small, large, dual, s, small.target[a], large.target[b])
        if is_changed:
            compute_cell_cost(small, large, dual, s, r, dual.column_of[s, r])


@_jit
def _raise_bound(small: Any, large: Any, dual: Any, s: int, tau: int, max_steps: int) -> Any:
    """Raise the bound of a slot by subgradient steps.

    Stops when the bound exceeds the threshold ``tau``, no arc is disputed, or a mapping of cost at
    most ``tau`` is found. Returns the number of steps.
    """
    scratch, limit = dual.state[N] + 1, tau * UNIT
    _copy_slot(dual, s, scratch)
    bound, target = dual.bound[s], limit + UNIT + limit // 10
    for step in range(max_steps):
        count = _count_disagreements(small, large, dual, scratch)
        if count == 0:
            return step
        _shift_savings(small, large, dual, scratch, max((target - bound) // count, 1))
        bound = solve_assignment(dual, scratch)
        dual.bound[scratch] = bound
        if bound > dual.bound[s]:
            _copy_slot(dual, scratch, s)
        if bound > limit:
            return step
        cost = _compute_assignment_cost(small, large, dual, scratch)
        if cost <= tau:
            dual.state[FOUND_COST] = cost
            return step
    return max_steps


@_jit
def _init_search(small: Any, large: Any, dual: Any, n: int, m: int, tau: int) -> Any:
    """Set up the search: split savings in halves, then sweep.

    Returns the work.
    """
    state, n_arcs, m_arcs = dual.state, small.first_arc[n], large.first_arc[m]
    state[N], state[M], state[A], state[B] = n, m, n_arcs, m_arcs
    state[DEPTH], state[IS_BRANCHED], state[MIN_PRUNED] = 0, 0, BIG
    state[BASE_COST], state[FOUND_COST] = UNIT * (m - n + (n_arcs + m_arcs) // 2), -1
    for k in range(2):
        graph, size = (small, n) if k == 0 else (large, m)
        for v in range(size):
            for t in range(graph.first_arc[v], graph.first_arc[v + 1]):
                dual.source[k, t] = v
                w = graph.target[t]
                for reverse in range(graph.first_arc[w], graph.first_arc[w + 1]):
                    if graph.target[reverse] == v:
                        dual.reverse[k, t] = reverse
    for a in range(n_arcs):
        for b in range(m_arcs):
            is_same = small.edge_label[a] == large.edge_label[b]
            dual.saving[a * m_arcs + b] = UNIT if is_same else UNIT // 2
    for c in range(m):
        dual.cell_cost[n * m + c] = 0
        dual.column_price[0, c], dual.column_of[0, c], dual.row_of[0, c] = 0, -1, -1
        dual.fixed_row[c] = -1
    for r in range(n):
        dual.fixed_column[r] = -1
        for c in range(m):
            compute_cell_cost(small, large, dual, 0, r, c)
    dual.bound[0] = solve_assignment(dual, 0)
    for i in range(_SWEEPS):
        if dual.bound[0] <= tau * UNIT:
            _sweep(small, large, dual, i % 2 == 1)
            dual.bound[0] = solve_assignment(dual, 0)
    return (1 + _SWEEPS) * n * m // 10


@_jit
def _fix_pair(small: Any, large: Any, dual: Any, s: int, r: int, c: int) -> None:
    """Map a row to a column.

    Savings of its edges move to the cells at the other ends; other cells of the row and of the
    column are forbidden.
    """
    n, m, width = dual.state[N], dual.state[M], dual.state[B]
    saving, cell_cost = dual.saving[s * dual.state[A] * width :], dual.cell_cost[s * (n + 1) * m :]
    for a in range(small.first_arc[r], small.first_arc[r + 1]):
        if dual.fixed_column[small.target[a]] < 0:
            offset = dual.reverse[0, a] * width
            for b in range(width):
                if dual.source[1, b] != c:
                    saving[offset + dual.reverse[1, b]] = -FORBIDDEN
                else:
                    saving[offset + dual.reverse[1, b]] += saving[a * width + b]
                    saving[a * width + b] = 0
    for b in range(large.first_arc[c], large.first_arc[c + 1]):
        if dual.fixed_row[large.target[b]] < 0:
            for a in range(dual.state[A]):
                if dual.source[0, a] != r:
                    saving[dual.reverse[0, a] * width + dual.reverse[1, b]] = -FORBIDDEN
    dual.fixed_column[r], dual.fixed_row[c] = c, r
    for i in range(m):
        cell_cost[r * m + i] = FORBIDDEN
    for i in range(n + 1):
        cell_cost[i * m + c] = FORBIDDEN
    compute_cell_cost(small, large, dual, s, r, c)
    for a in range(small.first_arc[r], small.first_arc[r + 1]):
        if dual.fixed_column[small.target[a]] < 0:
            for i in range(m):
                if dual.fixed_row[i] < 0:
                    compute_cell_cost(small, large, dual, s, small.target[a], i)
    for b in range(large.first_arc[c], large.first_arc[c + 1]):
        if dual.fixed_row[large.target[b]] < 0:
            for i in range(n):
                if dual.fixed_column[i] < 0:
                    compute_cell_cost(small, large, dual, s, i, large.target[b])
    column_of, row_of = dual.column_of[s], dual.row_of[s]
    if column_of[r] != c:
        old_row, old_column = row_of[c], column_of[r]
        row_of[old_column], column_of[old_row] = -1, -1
        column_of[r], row_of[c] = c, r


@_jit
def _list_children(small: Any, large: Any, dual: Any, d: int, tau: int) -> None:
    """List the feasible columns of the row that has the fewest.

    They are the children of the tree node, cheapest first.
    """
    row_price, column_price = dual.row_price[d], dual.column_price[d]
    n, m, slack = dual.state[N], dual.state[M], tau * UNIT - dual.bound[d]
    branch_row, lowest = -1, BIG
    for r in range(n):
        if dual.fixed_column[r] < 0:
            cell = (d * (n + 1) + r) * m
            costs, limit, n_feasible = dual.cell_cost[cell : cell + m], row_price[r] + slack, 0
            for c in range(m):
                n_feasible += costs[c] - column_price[c] <= limit
            degree = small.first_arc[r + 1] - small.first_arc[r]
            score = 4096 * n_feasible - min(degree, 60)
            if score < lowest:
                branch_row, lowest = r, score
    largest = find_largest_image(small, dual.fixed_column, n, branch_row)
    cell = (d * (n + 1) + branch_row) * m
    children, n_children, excesses, min_pruned = dual.children[d], 0, dual.buffers[3], BIG
    for c in range(m):
        excess = dual.cell_cost[cell + c] - row_price[branch_row] - column_price[c]
        if excess > slack:
            min_pruned = min(min_pruned, excess)
        elif c > largest and (large.prior_twin[c] < 0 or dual.fixed_row[large.prior_twin[c]] >= 0):
            insert_child(children, excesses, n_children, c, excess)
            n_children += 1
    _record_pruned(dual, dual.bound[d] + min_pruned)
    dual.branch_row[d], dual.n_children[d], dual.next_child[d] = branch_row, n_children, 0


@_jit_inline
def _record_pruned(dual: Any, bound: int) -> None:
    dual.state[MIN_PRUNED] = min(dual.state[MIN_PRUNED], (bound + UNIT - 1) // UNIT)


@_jit
def _unfix_pair(dual: Any, d: int) -> None:
    r = dual.branch_row[d]
    dual.fixed_row[dual.fixed_column[r]], dual.fixed_column[r] = -1, -1


@_jit
def branch_and_bound(
    small: Any, large: Any, dual: Any, n: int, m: int, tau: int, budget: int, is_new: bool
) -> Any:
    """Decide whether the edit distance is at most ``tau``.

    Returns (result, work). The result is the cost of a mapping, at most ``tau``, if one was found;
    a lower bound of the distance, above ``tau``, if there is none; or -1 if ``work`` exceeded
    ``budget``, in which case another call continues the search unless ``is_new``.
    """
    state, work, limit = dual.state, 0, tau * UNIT
    if is_new:
        work = _init_search(small, large, dual, n, m, tau)
        if dual.bound[0] <= limit:
            work += n // 4 * _raise_bound(small, large, dual, 0, tau, _ROOT_STEPS)
        if dual.bound[0] > limit:
            return (dual.bound[0] + UNIT - 1) // UNIT, work
    while True:
        d = state[DEPTH]
        if state[IS_BRANCHED] == 0:
            if state[FOUND_COST] < 0:
                cost = _compute_assignment_cost(small, large, dual, d)
                state[FOUND_COST] = cost if cost <= tau else -1
            if state[FOUND_COST] >= 0:
                return state[FOUND_COST], work
            _list_children(small, large, dual, d, tau)
            state[IS_BRANCHED] = 1
        if work > budget:
            return -1, work
        k = dual.next_child[d]
        if k < dual.n_children[d]:
            dual.next_child[d] = k + 1
            _copy_slot(dual, d, d + 1)
            _fix_pair(small, large, dual, d + 1, dual.branch_row[d], dual.children[d, k])
            dual.bound[d + 1], work = solve_assignment(dual, d + 1), work + n // 4 + 1
            if dual.bound[d + 1] <= limit:
                work += n // 4 * _raise_bound(small, large, dual, d + 1, tau, _NODE_STEPS)
            if dual.bound[d + 1] > limit:
                _record_pruned(dual, dual.bound[d + 1])
                _unfix_pair(dual, d)
            else:
                state[DEPTH], state[IS_BRANCHED] = d + 1, 0
        elif d == 0:
            return state[MIN_PRUNED], work
        else:
            state[DEPTH] = d - 1
            _unfix_pair(dual, d - 1)
