"""Branch and bound for the edit distance of two graphs, with bounds by dual decomposition.

The edge cost of mapping the smaller graph's nodes is the number of all edges of both graphs minus
the savings of the edges that are kept. Each cell (r, c), which maps node r to node c, counts the
best matching of the arcs of r with the arcs of c. A kept edge belongs to two cells, and its saving
may be split between them arbitrarily. Every split gives a lower bound: the minimum assignment over
the cells. (Splitting in halves gives the branch bound.)

Sweeps first transfer the slack of cells; subgradient steps then shift savings where the two cells
of an edge disagree. The bound approaches the linear program F2 of Lerouge, Abu-Aisheh, Raveaux,
Heroux, Adam, *New binary linear programming formulation to compute the graph edit distance*,
Pattern Recognition 72 (2017), and exceeds the branch bound by several edits for molecules. All
prices are integer multiples of 1 / `UNIT`, so that bounds are not rounded.
"""

from typing import Any

from numba import njit

from fedneighbors.kernels.graph_edit._cells import (
    BASE,
    BEST,
    DEPTH,
    NEVER,
    OPEN,
    REFUSED,
    UNIT,
    A,
    B,
    M,
    N,
    assign,
    match_arcs,
    price_cell,
)  # fmt: skip
from fedneighbors.kernels.graph_edit._paths import BIG, insert_child, latest_image

USES = {"graph_edit/paths": "64207419a4fff0e3", "graph_edit/cells": "3ba38f49576efb02"}

_jit: Any = njit(cache=True, nogil=True, _nrt=False)  # type: ignore[call-overload]
_jit_inline: Any = njit(cache=True, nogil=True, forceinline=True, _nrt=False)  # type: ignore[call-overload]

_SWEEPS = 2
_ROOT_STEPS, _NODE_STEPS = 100, 12  # a step takes about 6 microseconds for 30 nodes


@_jit_inline
def fits(state: Any, n: int, m: int, arcs: int, others: int) -> bool:
    """Return whether the search of two graphs fits into ``state``.

    ``n`` and ``m`` are their numbers of nodes, ``arcs`` and ``others`` those of arcs.
    """
    return (
        (n + 2) * arcs * others <= state.saving.shape[0]
        and n > 0
        and (n + 2) * (n + 1) * m <= state.price.shape[0]
    )


@_jit
def _sweep(small: Any, large: Any, state: Any, backwards: bool) -> None:
    """Transfer the slack of each cell of slot 0 along its edges.

    The slack goes to the cells at the other ends of the edges. Cells are processed one after the
    other, so that each sees the transfers of those before.
    """
    n, m, width = state.head[N], state.head[M], state.head[B]
    saving, local = state.saving, state.local
    for step in range(n * m):
        r, c = divmod(n * m - 1 - step if backwards else step, m)
        a, b = small.start[r], large.start[c]
        p, q = small.start[r + 1] - a, large.start[c + 1] - b
        if p == 0 or q == 0:
            continue
        most = match_arcs(saving, width, a, p, b, q, local)
        differs = small.label[r] != large.label[c]
        spare = (UNIT if differs else 0) - most - state.row[0, r] - state.column[0, c]
        share = 2 * max(spare, 0) // (3 * min(p, q))
        for x in range(p):
            for y in range(q):
                own, other = (x, y) if p <= q else (y, x)
                at = (a + x) * width + b + y
                gift = share - local[0, own] - local[1, other] - saving[at]
                saving[at] += gift
                saving[state.back[0, a + x] * width + state.back[1, b + y]] -= gift
    for r in range(n):
        for c in range(m):
            price_cell(small, large, state, 0, r, c)


@_jit
def _cost(small: Any, large: Any, state: Any, s: int) -> Any:
    """Return the cost of the map given by a slot's assignment."""
    n, at_row = state.head[N], state.at_row[s]
    cost = state.head[BASE] // UNIT
    for v in range(n):
        cost += small.label[v] != large.label[at_row[v]]
        for t in range(small.start[v], small.start[v + 1]):
            if small.end[t] < v:
                bond = large.adjacent[at_row[v], at_row[small.end[t]]]
                cost -= (bond > 0) + (bond == small.bond[t])
    return cost


@_jit
def _copy_slot(state: Any, source: int, goal: int) -> None:
    n, m, size = state.head[N], state.head[M], state.head[A] * state.head[B]
    for i in range(size):
        state.saving[goal * size + i] = state.saving[source * size + i]
    size = (n + 1) * m
    for i in range(size):
        state.price[goal * size + i] = state.price[source * size + i]
    for i in range(m):
        state.row[goal, i], state.column[goal, i] = state.row[source, i], state.column[source, i]
        state.at_row[goal, i] = state.at_row[source, i]
        state.at_column[goal, i] = state.at_column[source, i]
    state.total[goal] = state.total[source]


@_jit
def _disagreements(small: Any, large: Any, state: Any, s: int) -> Any:
    """Count the arcs that only one of their two cells keeps.

    The arcs kept by the assignment are recorded in ``state.kept``.
    """
    width = state.head[B]
    saving = state.saving[s * state.head[A] * width :]
    kept, local, count = state.kept, state.local, 0
    for r in range(state.head[N]):
        a, c = small.start[r], state.at_row[s, r]
        b = large.start[c]
        p, q = small.start[r + 1] - a, large.start[c + 1] - b
        for x in range(p):
            kept[a + x] = -1
        if p == 0 or q == 0 or state.image[r] >= 0:
            continue
        match_arcs(saving, width, a, p, b, q, local)
        for x in range(min(p, q)):
            y = local[2, x]
            if y >= 0 and p <= q:
                kept[a + x] = b + y
            elif y >= 0:
                kept[a + y] = b + x
    for a in range(state.head[A]):
        b = kept[a]
        if b >= 0 and state.image[small.end[a]] < 0:
            count += kept[state.back[0, a]] != state.back[1, b]
    return count


@_jit
def _shift(small: Any, large: Any, state: Any, s: int, amount: int) -> None:
    """Move savings of disputed arcs to the other cell.

    An arc is disputed if exactly one of its two cells keeps it; that cell gives ``amount`` to the
    other. The prices of both cells are updated.
    """
    width = state.head[B]
    saving = state.saving[s * state.head[A] * width :]
    for a in range(state.head[A]):
        b = state.kept[a]
        if b >= 0 and state.image[small.end[a]] < 0:
            to, there = state.back[0, a], state.back[1, b]
            if state.kept[to] != there:
                saving[a * width + b] -= amount
                saving[to * width + there] += amount
    for r in range(state.head[N]):
        changed = False
        for a in range(small.start[r], small.start[r + 1]):
            b = state.kept[a]
            agreed = b < 0 or state.kept[state.back[0, a]] == state.back[1, b]
            if not agreed and state.image[small.end[a]] < 0:
                changed = True
                price_cell(small, large, state, s, small.end[a], large.end[b])
        if changed:
            price_cell(small, large, state, s, r, state.at_row[s, r])


@_jit
def _ascend(small: Any, large: Any, state: Any, s: int, tau: int, steps: int) -> Any:
    """Raise the bound of a slot by subgradient steps.

    Stops when the bound exceeds the threshold ``tau``, all cells agree, or a map within ``tau`` is
    found. Returns the number of steps.
    """
    work, limit = state.head[N] + 1, tau * UNIT
    _copy_slot(state, s, work)
    value, goal = state.total[s], limit + UNIT + limit // 10
    for step in range(steps):
        count = _disagreements(small, large, state, work)
        if count == 0:
            return step
        _shift(small, large, state, work, max((goal - value) // count, 1))
        value = assign(state, work)
        state.total[work] = value
        if value > state.total[s]:
            _copy_slot(state, work, s)
        if value > limit:
            return step
        cost = _cost(small, large, state, work)
        if cost <= tau:
            state.head[BEST] = cost
            return step
    return steps


@_jit
def _init_search(small: Any, large: Any, state: Any, n: int, m: int, tau: int) -> Any:
    """Set up the search: split savings in halves, then sweep.

    Returns the work.
    """
    head, arcs, others = state.head, small.start[n], large.start[m]
    head[N], head[M], head[A], head[B], head[DEPTH], head[OPEN] = n, m, arcs, others, 0, 0
    head[REFUSED], head[BASE], head[BEST] = BIG, UNIT * (m - n + (arcs + others) // 2), -1
    for k in range(2):
        side, size = (small, n) if k == 0 else (large, m)
        for v in range(size):
            for t in range(side.start[v], side.start[v + 1]):
                state.origin[k, t] = v
                w = side.end[t]
                for back in range(side.start[w], side.start[w + 1]):
                    if side.end[back] == v:
                        state.back[k, t] = back
    for a in range(arcs):
        for b in range(others):
            state.saving[a * others + b] = UNIT if small.bond[a] == large.bond[b] else UNIT // 2
    for c in range(m):
        state.price[n * m + c] = 0
        state.column[0, c], state.at_row[0, c], state.at_column[0, c] = 0, -1, -1
        state.holder[c] = -1
    for r in range(n):
        state.image[r] = -1
        for c in range(m):
            price_cell(small, large, state, 0, r, c)
    state.total[0] = assign(state, 0)
    for i in range(_SWEEPS):
        if state.total[0] <= tau * UNIT:
            _sweep(small, large, state, i % 2 == 1)
            state.total[0] = assign(state, 0)
    return (1 + _SWEEPS) * n * m // 10


@_jit
def _fix(small: Any, large: Any, state: Any, s: int, r: int, c: int) -> None:
    """Map a row to a column.

    Savings of its edges move to the cells at the other ends; other cells of the row and of the
    column are closed.
    """
    n, m, width = state.head[N], state.head[M], state.head[B]
    saving, price = state.saving[s * state.head[A] * width :], state.price[s * (n + 1) * m :]
    for a in range(small.start[r], small.start[r + 1]):
        if state.image[small.end[a]] < 0:
            to = state.back[0, a] * width
            for b in range(width):
                if state.origin[1, b] != c:
                    saving[to + state.back[1, b]] = -NEVER
                else:
                    saving[to + state.back[1, b]] += saving[a * width + b]
                    saving[a * width + b] = 0
    for b in range(large.start[c], large.start[c + 1]):
        if state.holder[large.end[b]] < 0:
            for a in range(state.head[A]):
                if state.origin[0, a] != r:
                    saving[state.back[0, a] * width + state.back[1, b]] = -NEVER
    state.image[r], state.holder[c] = c, r
    for i in range(m):
        price[r * m + i] = NEVER
    for i in range(n + 1):
        price[i * m + c] = NEVER
    price_cell(small, large, state, s, r, c)
    for a in range(small.start[r], small.start[r + 1]):
        if state.image[small.end[a]] < 0:
            for i in range(m):
                if state.holder[i] < 0:
                    price_cell(small, large, state, s, small.end[a], i)
    for b in range(large.start[c], large.start[c + 1]):
        if state.holder[large.end[b]] < 0:
            for i in range(n):
                if state.image[i] < 0:
                    price_cell(small, large, state, s, i, large.end[b])
    at_row, at_column = state.at_row[s], state.at_column[s]
    if at_row[r] != c:
        other, there = at_column[c], at_row[r]
        at_column[there], at_row[other] = -1, -1
        at_row[r], at_column[c] = c, r


@_jit
def _branch(small: Any, large: Any, state: Any, d: int, tau: int) -> None:
    """Choose the row with the fewest feasible columns and list its children.

    The children are feasible columns, cheapest first.
    """
    n, m, row, column = state.head[N], state.head[M], state.row[d], state.column[d]
    slack = tau * UNIT - state.total[d]
    chosen, fewest = -1, BIG
    for r in range(n):
        if state.image[r] < 0:
            at = (d * (n + 1) + r) * m
            line, top, fit = state.price[at : at + m], row[r] + slack, 0
            for c in range(m):
                fit += line[c] - column[c] <= top
            degree = small.start[r + 1] - small.start[r]
            score = 4096 * fit - min(degree, 60)
            if score < fewest:
                chosen, fewest = r, score
    floor = latest_image(small, state.image, n, chosen)
    at = (d * (n + 1) + chosen) * m
    children, n_children, excess, over = state.children[d], 0, state.line[3], BIG
    for c in range(m):
        above = state.price[at + c] - row[chosen] - column[c]
        if above > slack:
            over = min(over, above)
        elif c > floor and (large.twin[c] < 0 or state.holder[large.twin[c]] >= 0):
            insert_child(children, excess, n_children, c, above)
            n_children += 1
    _refuse(state, state.total[d] + over)
    state.chosen[d], state.n_children[d], state.place[d] = chosen, n_children, 0


@_jit_inline
def _refuse(state: Any, bound: int) -> None:
    state.head[REFUSED] = min(state.head[REFUSED], (bound + UNIT - 1) // UNIT)


@_jit
def _release(state: Any, d: int) -> None:
    r = state.chosen[d]
    state.holder[state.image[r]], state.image[r] = -1, -1


@_jit
def branch_and_bound(
    small: Any, large: Any, state: Any, n: int, m: int, tau: int, budget: int, fresh: bool
) -> Any:
    """Decide whether the edit distance is at most ``tau``.

    Returns (result, work). The result is the cost of a map if that is at most ``tau``, a lower
    bound above ``tau``, or -1 if the budget was spent; the next call then continues unless
    ``fresh``.
    """
    head, work, limit = state.head, 0, tau * UNIT
    if fresh:
        work = _init_search(small, large, state, n, m, tau)
        if state.total[0] <= limit:
            work += n // 4 * _ascend(small, large, state, 0, tau, _ROOT_STEPS)
        if state.total[0] > limit:
            return (state.total[0] + UNIT - 1) // UNIT, work
    while True:
        d = head[DEPTH]
        if head[OPEN] == 0:
            if head[BEST] < 0:
                cost = _cost(small, large, state, d)
                head[BEST] = cost if cost <= tau else -1
            if head[BEST] >= 0:
                return head[BEST], work
            _branch(small, large, state, d, tau)
            head[OPEN] = 1
        if work > budget:
            return -1, work
        place = state.place[d]
        if place < state.n_children[d]:
            state.place[d] = place + 1
            _copy_slot(state, d, d + 1)
            _fix(small, large, state, d + 1, state.chosen[d], state.children[d, place])
            state.total[d + 1], work = assign(state, d + 1), work + n // 4 + 1
            if state.total[d + 1] <= limit:
                work += n // 4 * _ascend(small, large, state, d + 1, tau, _NODE_STEPS)
            if state.total[d + 1] > limit:
                _refuse(state, state.total[d + 1])
                _release(state, d)
            else:
                head[DEPTH], head[OPEN] = d + 1, 0
        elif d == 0:
            return head[REFUSED], work
        else:
            head[DEPTH] = d - 1
            _release(state, d - 1)
