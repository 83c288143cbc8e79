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

USES = {"graph_edit/paths": "64207419a4fff0e3", "graph_edit/cells": "4c2ba608dc828251"}

_jit: Any = njit(cache=True, nogil=True, _nrt=False)  # type: ignore[call-overload]
_jit_inline: Any = njit(cache=True, nogil=True, forceinline=True, _nrt=False)  # type: ignore[call-overload]

_SWEEPS = 2
_ROOT_STEPS, _NODE_STEPS = 100, 12  # a step takes about 6 microseconds for 30 nodes


@_jit_inline
def fits(room: Any, n: int, m: int, arcs: int, others: int) -> bool:
    """Return whether the search of two graphs fits into ``room``.

    ``n`` and ``m`` are their numbers of nodes, ``arcs`` and ``others`` those of arcs.
    """
    return (
        (n + 2) * arcs * others <= room.saving.shape[0]
        and n > 0
        and (n + 2) * (n + 1) * m <= room.price.shape[0]
    )


@_jit
def _sweep(small: Any, large: Any, room: Any, backwards: bool) -> None:
    """Transfer the slack of each cell of slot 0 along its edges.

    The slack goes to the cells at the other ends of the edges. Cells are processed one after the
    other, so that each sees the transfers of those before.
    """
    n, m, width = room.head[N], room.head[M], room.head[B]
    saving, local = room.saving, room.local
    for step in range(n * m):
        r, c = divmod(n * m - 1 - step if backwards else step, m)
        a, b = small.start[r], large.start[c]
        p, q = small.start[r + 1] - a, large.start[c + 1] - b
        if p == 0 or q == 0:
            continue
        most = match_arcs(saving, width, a, p, b, q, local)
        differs = small.label[r] != large.label[c]
        spare = (UNIT if differs else 0) - most - room.row[0, r] - room.column[0, c]
        share = 2 * max(spare, 0) // (3 * min(p, q))
        for x in range(p):
            for y in range(q):
                own, other = (x, y) if p <= q else (y, x)
                at = (a + x) * width + b + y
                gift = share - local[0, own] - local[1, other] - saving[at]
                saving[at] += gift
                saving[room.back[0, a + x] * width + room.back[1, b + y]] -= gift
    for r in range(n):
        for c in range(m):
            price_cell(small, large, room, 0, r, c)


@_jit
def _cost(small: Any, large: Any, room: Any, s: int) -> Any:
    """Return the cost of the map given by a slot's assignment."""
    n, at_row = room.head[N], room.at_row[s]
    cost = room.head[BASE] // UNIT
    for v in range(n):
        cost += small.label[v] != large.label[at_row[v]]
        for t in range(small.start[v], small.start[v + 1]):
            if small.end[t] < v:
                bond = large.adjacent[at_row[v], at_row[small.end[t]]]
                cost -= (bond > 0) + (bond == small.bond[t])
    return cost


@_jit
def _copy_slot(room: Any, source: int, goal: int) -> None:
    n, m, size = room.head[N], room.head[M], room.head[A] * room.head[B]
    for i in range(size):
        room.saving[goal * size + i] = room.saving[source * size + i]
    size = (n + 1) * m
    for i in range(size):
        room.price[goal * size + i] = room.price[source * size + i]
    for i in range(m):
        room.row[goal, i], room.column[goal, i] = room.row[source, i], room.column[source, i]
        room.at_row[goal, i] = room.at_row[source, i]
        room.at_column[goal, i] = room.at_column[source, i]
    room.total[goal] = room.total[source]


@_jit
def _disagreements(small: Any, large: Any, room: Any, s: int) -> Any:
    """Count the arcs that only one of their two cells keeps.

    The arcs kept by the assignment are recorded in ``room.kept``.
    """
    width = room.head[B]
    saving = room.saving[s * room.head[A] * width :]
    kept, local, count = room.kept, room.local, 0
    for r in range(room.head[N]):
        a, c = small.start[r], room.at_row[s, r]
        b = large.start[c]
        p, q = small.start[r + 1] - a, large.start[c + 1] - b
        for x in range(p):
            kept[a + x] = -1
        if p == 0 or q == 0 or room.image[r] >= 0:
            continue
        match_arcs(saving, width, a, p, b, q, local)
        for x in range(min(p, q)):
            y = local[2, x]
            if y >= 0 and p <= q:
                kept[a + x] = b + y
            elif y >= 0:
                kept[a + y] = b + x
    for a in range(room.head[A]):
        b = kept[a]
        if b >= 0 and room.image[small.end[a]] < 0:
            count += kept[room.back[0, a]] != room.back[1, b]
    return count


@_jit
def _shift(small: Any, large: Any, room: Any, s: int, amount: int) -> None:
    """Move savings of disputed arcs to the other cell.

    An arc is disputed if exactly one of its two cells keeps it; that cell gives ``amount`` to the
    other. The prices of both cells are updated.
    """
    width = room.head[B]
    saving = room.saving[s * room.head[A] * width :]
    for a in range(room.head[A]):
        b = room.kept[a]
        if b >= 0 and room.image[small.end[a]] < 0:
            to, there = room.back[0, a], room.back[1, b]
            if room.kept[to] != there:
                saving[a * width + b] -= amount
                saving[to * width + there] += amount
    for r in range(room.head[N]):
        changed = False
        for a in range(small.start[r], small.start[r + 1]):
            b = room.kept[a]
            agreed = b < 0 or room.kept[room.back[0, a]] == room.back[1, b]
            if not agreed and room.image[small.end[a]] < 0:
                changed = True
                price_cell(small, large, room, s, small.end[a], large.end[b])
        if changed:
            price_cell(small, large, room, s, r, room.at_row[s, r])


@_jit
def _ascend(small: Any, large: Any, room: Any, s: int, tau: int, steps: int) -> Any:
    """Raise the bound of a slot by subgradient steps.

    Stops when the bound exceeds the threshold ``tau``, all cells agree, or a map within ``tau`` is
    found. Returns the number of steps.
    """
    work, limit = room.head[N] + 1, tau * UNIT
    _copy_slot(room, s, work)
    value, goal = room.total[s], limit + UNIT + limit // 10
    for step in range(steps):
        count = _disagreements(small, large, room, work)
        if count == 0:
            return step
        _shift(small, large, room, work, max((goal - value) // count, 1))
        value = assign(room, work)
        room.total[work] = value
        if value > room.total[s]:
            _copy_slot(room, work, s)
        if value > limit:
            return step
        cost = _cost(small, large, room, work)
        if cost <= tau:
            room.head[BEST] = cost
            return step
    return steps


@_jit
def _init_search(small: Any, large: Any, room: Any, n: int, m: int, tau: int) -> Any:
    """Set up the search: split savings in halves, then sweep.

    Returns the work.
    """
    head, arcs, others = room.head, small.start[n], large.start[m]
    head[N], head[M], head[A], head[B], head[DEPTH], head[OPEN] = n, m, arcs, others, 0, 0
    head[REFUSED], head[BASE], head[BEST] = BIG, UNIT * (m - n + (arcs + others) // 2), -1
    for k in range(2):
        side, size = (small, n) if k == 0 else (large, m)
        for v in range(size):
            for t in range(side.start[v], side.start[v + 1]):
                room.origin[k, t] = v
                w = side.end[t]
                for back in range(side.start[w], side.start[w + 1]):
                    if side.end[back] == v:
                        room.back[k, t] = back
    for a in range(arcs):
        for b in range(others):
            room.saving[a * others + b] = UNIT if small.bond[a] == large.bond[b] else UNIT // 2
    for c in range(m):
        room.price[n * m + c] = 0
        room.column[0, c], room.at_row[0, c], room.at_column[0, c] = 0, -1, -1
        room.holder[c] = -1
    for r in range(n):
        room.image[r] = -1
        for c in range(m):
            price_cell(small, large, room, 0, r, c)
    room.total[0] = assign(room, 0)
    for i in range(_SWEEPS):
        if room.total[0] <= tau * UNIT:
            _sweep(small, large, room, i % 2 == 1)
            room.total[0] = assign(room, 0)
    return (1 + _SWEEPS) * n * m // 10


@_jit
def _fix(small: Any, large: Any, room: Any, s: int, r: int, c: int) -> None:
    """Map a row to a column.

    Savings of its edges move to the cells at the other ends; other cells of the row and of the
    column are closed.
    """
    n, m, width = room.head[N], room.head[M], room.head[B]
    saving, price = room.saving[s * room.head[A] * width :], room.price[s * (n + 1) * m :]
    for a in range(small.start[r], small.start[r + 1]):
        if room.image[small.end[a]] < 0:
            to = room.back[0, a] * width
            for b in range(width):
                if room.origin[1, b] != c:
                    saving[to + room.back[1, b]] = -NEVER
                else:
                    saving[to + room.back[1, b]] += saving[a * width + b]
                    saving[a * width + b] = 0
    for b in range(large.start[c], large.start[c + 1]):
        if room.holder[large.end[b]] < 0:
            for a in range(room.head[A]):
                if room.origin[0, a] != r:
                    saving[room.back[0, a] * width + room.back[1, b]] = -NEVER
    room.image[r], room.holder[c] = c, r
    for i in range(m):
        price[r * m + i] = NEVER
    for i in range(n + 1):
        price[i * m + c] = NEVER
    price_cell(small, large, room, s, r, c)
    for a in range(small.start[r], small.start[r + 1]):
        if room.image[small.end[a]] < 0:
            for i in range(m):
                if room.holder[i] < 0:
                    price_cell(small, large, room, s, small.end[a], i)
    for b in range(large.start[c], large.start[c + 1]):
        if room.holder[large.end[b]] < 0:
            for i in range(n):
                if room.image[i] < 0:
                    price_cell(small, large, room, s, i, large.end[b])
    at_row, at_column = room.at_row[s], room.at_column[s]
    if at_row[r] != c:
        other, there = at_column[c], at_row[r]
        at_column[there], at_row[other] = -1, -1
        at_row[r], at_column[c] = c, r


@_jit
def _branch(small: Any, large: Any, room: Any, d: int, tau: int) -> None:
    """Choose the row with the fewest feasible columns and list its children.

    The children are feasible columns, cheapest first.
    """
    n, m, row, column = room.head[N], room.head[M], room.row[d], room.column[d]
    slack = tau * UNIT - room.total[d]
    chosen, fewest = -1, BIG
    for r in range(n):
        if room.image[r] < 0:
            at = (d * (n + 1) + r) * m
            line, top, fit = room.price[at : at + m], row[r] + slack, 0
            for c in range(m):
                fit += line[c] - column[c] <= top
            degree = small.start[r + 1] - small.start[r]
            score = 4096 * fit - min(degree, 60)
            if score < fewest:
                chosen, fewest = r, score
    floor = latest_image(small, room.image, n, chosen)
    at = (d * (n + 1) + chosen) * m
    children, n_children, excess, over = room.children[d], 0, room.line[3], BIG
    for c in range(m):
        above = room.price[at + c] - row[chosen] - column[c]
        if above > slack:
            over = min(over, above)
        elif c > floor and (large.twin[c] < 0 or room.holder[large.twin[c]] >= 0):
            insert_child(children, excess, n_children, c, above)
            n_children += 1
    _refuse(room, room.total[d] + over)
    room.chosen[d], room.n_children[d], room.place[d] = chosen, n_children, 0


@_jit_inline
def _refuse(room: Any, bound: int) -> None:
    room.head[REFUSED] = min(room.head[REFUSED], (bound + UNIT - 1) // UNIT)


@_jit
def _release(room: Any, d: int) -> None:
    r = room.chosen[d]
    room.holder[room.image[r]], room.image[r] = -1, -1


@_jit
def branch_and_bound(
    small: Any, large: Any, room: Any, n: int, m: int, tau: int, budget: int, fresh: bool
) -> Any:
    """Decide whether the edit distance is at most ``tau``.

    Returns (result, work). The result is the cost of a map if that is at most ``tau``, a lower
    bound above ``tau``, or -1 if the budget was spent; the next call then continues unless
    ``fresh``.
    """
    head, work, limit = room.head, 0, tau * UNIT
    if fresh:
        work = _init_search(small, large, room, n, m, tau)
        if room.total[0] <= limit:
            work += n // 4 * _ascend(small, large, room, 0, tau, _ROOT_STEPS)
        if room.total[0] > limit:
            return (room.total[0] + UNIT - 1) // UNIT, work
    while True:
        d = head[DEPTH]
        if head[OPEN] == 0:
            if head[BEST] < 0:
                cost = _cost(small, large, room, d)
                head[BEST] = cost if cost <= tau else -1
            if head[BEST] >= 0:
                return head[BEST], work
            _branch(small, large, room, d, tau)
            head[OPEN] = 1
        if work > budget:
            return -1, work
        place = room.place[d]
        if place < room.n_children[d]:
            room.place[d] = place + 1
            _copy_slot(room, d, d + 1)
            _fix(small, large, room, d + 1, room.chosen[d], room.children[d, place])
            room.total[d + 1], work = assign(room, d + 1), work + n // 4 + 1
            if room.total[d + 1] <= limit:
                work += n // 4 * _ascend(small, large, room, d + 1, tau, _NODE_STEPS)
            if room.total[d + 1] > limit:
                _refuse(room, room.total[d + 1])
                _release(room, d)
            else:
                head[DEPTH], head[OPEN] = d + 1, 0
        elif d == 0:
            return head[REFUSED], work
        else:
            head[DEPTH] = d - 1
            _release(room, d - 1)
