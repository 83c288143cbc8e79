"""Graph edit distance of a query to many graphs, decided against a threshold by tree search.

A node of the tree maps some nodes of the smaller graph. Its bound is the *branch* bound: the least
assignment of the nodes that are left, where an edge between two such nodes is shared half and half
(all costs are doubled, so that they stay whole) and an edge to a mapped node counts in full. A
child inherits its parent's assignment and dual prices, which stay feasible but for the neighbours
of the two nodes that it maps; those prices are lowered (already a bound), and one augmenting path
per loose row repairs the rest.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

__all__ = ["GedPrices", "GedSearch", "GedSide", "GraphTable", "verify_many"]

_BIG = np.int32(1 << 28)  # above any cost, and twice it still fits int32
# Places of `GedSearch.head`: what is under way.
_OBJECT, _TAU, _N, _M, _DEPTH, _NEXT, _REFUSED, _KINDS, _BONDS = range(9)


class GraphTable(NamedTuple):
    """Graphs, one after the other.

    Parameters
    ----------
    first_node : int64 array of shape (n_graphs + 1,)
        Where the nodes of each graph begin.
    label : int32 array of shape (n_nodes,)
        Labels from 0.
    first_arc : int64 array of shape (n_nodes + 1,)
        Where the arcs of each node begin; an edge is two arcs.
    end : int32 array of shape (n_arcs,)
        Node within its graph that the arc leads to, ascending for each node.
    bond : int32 array of shape (n_arcs,)
        Label of the edge, from 0.
    twin : int32 array of shape (n_nodes,)
        The node before, within its graph, that can be exchanged with this one; -1 if none.
    """

    first_node: npt.NDArray[np.int64]
    label: npt.NDArray[np.int32]
    first_arc: npt.NDArray[np.int64]
    end: npt.NDArray[np.int32]
    bond: npt.NDArray[np.int32]
    twin: npt.NDArray[np.int32]


class GedSide(NamedTuple):
    label: Any  # (nodes,) labels that both graphs have come first
    start: Any  # (nodes + 1,)
    end: Any  # (arcs,)
    bond: Any  # (arcs,) from 1; labels that both graphs have come first
    adjacent: Any  # (nodes, nodes) bond or 0
    twin: Any  # (nodes,)
    kin: Any  # (nodes,) the first of the nodes that can be exchanged with this one
    partner: Any  # (nodes,) node of the other graph, or -1
    inner: Any  # (bonds, nodes) unmapped neighbours by bond
    free: Any  # (nodes,) unmapped neighbours


class GedPrices(NamedTuple):
    row: Any  # (depths, nodes) dual price of each row
    column: Any  # (depths, nodes) dual price of each column; far below zero for mapped ones
    at_row: Any  # (depths, nodes) column of each row, or -1
    at_column: Any  # (depths, nodes) row of each column, or -1
    total: Any  # (depths,) sum of the prices: a lower bound, doubled
    cost: Any  # (depths,) of what is mapped
    chosen: Any  # (depths,) row that the children of this node map
    n_children: Any  # (depths,)
    place: Any  # (depths,) of the child under way
    children: Any  # (depths, nodes) columns, the most promising first
    distance: Any  # (nodes,) of each column from a loose row
    through: Any  # (nodes,) row before each column on the way
    left: Any  # (nodes,) columns that are not reached yet, then those that are


class GedSearch(NamedTuple):
    """Room for one verification at a time, which can be interrupted; see `new_search`."""

    head: Any
    small: GedSide
    large: GedSide
    prices: GedPrices
    anchored: Any  # (rows, columns) doubled cost of the edges between the pair and mapped nodes
    price: Any  # (rows, columns) doubled cost of mapping row to column
    tally: (
        Any  # (4, labels) unmapped nodes by label: small, large; edges between such: small, large
    )
    kinds: Any  # (labels,) new names of node labels
    bonds: Any  # (labels,) new names of edge labels


@njit(cache=True, nogil=True, _nrt=False)
def _load(table: Any, g: int, side: Any, kinds: Any, bonds: Any, n_bonds: int) -> int:
    """Copy a graph, its labels renamed to those that the query has, counted from 1."""
    low, high = table.first_node[g], table.first_node[g + 1]
    n, arcs = high - low, table.first_arc[low]
    side.adjacent[:n, :n] = 0
    side.inner[:n_bonds, :n] = 0
    side.start[0] = 0
    for v in range(n):
        side.label[v] = kinds[table.label[low + v]]
        twin = table.twin[low + v]
        side.twin[v] = twin
        side.kin[v] = side.kin[twin] if twin >= 0 else v
        side.partner[v] = -1
        first, last = table.first_arc[low + v], table.first_arc[low + v + 1]
        side.start[v + 1] = last - arcs
        side.free[v] = last - first
        for t in range(first, last):
            bond = bonds[table.bond[t]]
            side.end[t - arcs] = table.end[t]
            side.bond[t - arcs] = bond if bond > 0 else n_bonds + 1
            side.adjacent[v, table.end[t]] = side.bond[t - arcs]
            if bond > 0:
                side.inner[bond - 1, v] += 1
    return n


@njit(cache=True, nogil=True, _nrt=False)
def _begin(table: Any, g: int, query: Any, search: Any, tau: int) -> None:
    """Load a pair, the smaller graph first, and price the root of its tree."""
    head, small, large, prices = search.head, search.small, search.large, search.prices
    low, high = table.first_node[g], table.first_node[g + 1]
    kinds, bonds = search.kinds, search.bonds
    n_bonds = head[_BONDS]
    if query.label.shape[0] <= high - low:
        n = _load(query, 0, small, kinds, bonds, n_bonds)
        m = _load(table, g, large, kinds, bonds, n_bonds)
    else:
        n = _load(table, g, small, kinds, bonds, n_bonds)
        m = _load(query, 0, large, kinds, bonds, n_bonds)
    search.tally[:] = 0
    _count(small, n, search.tally[0], search.tally[2])
    _count(large, m, search.tally[1], search.tally[3])
    search.anchored[: n + 1, :m] = 0
    for r in range(n + 1):
        _price_row(small, large, search.anchored, search.price, r, n, m, n_bonds)
    prices.cost[0] = 0
    prices.total[0] = 0
    for c in range(m):
        prices.column[0, c] = 0
        prices.at_column[0, c] = -1
    for r in range(m):
        prices.at_row[0, r] = -1
        least = _BIG
        for c in range(m):
            least = min(least, search.price[min(r, n), c])
        prices.row[0, r] = least
        prices.total[0] += least
    head[_OBJECT], head[_TAU], head[_N], head[_M] = g, tau, n, m
    head[_DEPTH], head[_NEXT], head[_REFUSED] = 0, 0, _BIG


@njit(cache=True, nogil=True, _nrt=False)
def _count(side: Any, n: int, kinds: Any, bonds: Any) -> None:
    for v in range(n):
        if side.label[v] > 0:
            kinds[side.label[v]] += 1
        for t in range(side.start[v], side.start[v + 1]):
            if side.end[t] > v:
                bonds[side.bond[t]] += 1


@njit(cache=True, nogil=True, forceinline=True, _nrt=False)
def _price_row(
    small: Any, large: Any, anchored: Any, price: Any, r: int, n: int, m: int, n_bonds: int
) -> None:
    """Price the mapping of a row to every column; row ``n`` stands for the insertion of each."""
    line = price[r]
    if r == n:
        for c in range(m):
            line[c] = 2 + 2 * (large.start[c + 1] - large.start[c]) - large.free[c]
        return
    label, free, fixed = small.label[r], small.free[r], anchored[r]
    for c in range(m):
        line[c] = 2 * (large.label[c] != label) + max(free, large.free[c]) + fixed[c]
    for b in range(n_bonds):
        own, theirs = small.inner[b, r], large.inner[b]
        if own > 0:
            for c in range(m):
                line[c] -= min(own, theirs[c])


@njit(cache=True, nogil=True, forceinline=True, _nrt=False)
def _price_column(
    small: Any, large: Any, anchored: Any, price: Any, c: int, n: int, n_bonds: int
) -> None:
    label, free = large.label[c], large.free[c]
    for r in range(n):
        cost = 2 * (small.label[r] != label) + max(free, small.free[r]) + anchored[r, c]
        for b in range(n_bonds):
            cost -= min(small.inner[b, r], large.inner[b, c])
        price[r, c] = cost
    price[n, c] = 2 + 2 * (large.start[c + 1] - large.start[c]) - free


@njit(cache=True, nogil=True, _nrt=False)
def _map(side: Any, v: int, partner: int, kinds: Any, bonds: Any, n_bonds: int, sign: int) -> None:
    """Take a node from the unmapped ones (sign 1), or give it back (sign -1)."""
    side.partner[v] = partner if sign > 0 else -1
    if side.label[v] > 0:
        kinds[side.label[v]] -= sign
    for t in range(side.start[v], side.start[v + 1]):
        w, bond = side.end[t], side.bond[t]
        side.free[w] -= sign
        if bond <= n_bonds:
            side.inner[bond - 1, w] -= sign
        if side.partner[w] < 0:
            bonds[bond] -= sign


@njit(cache=True, nogil=True, _nrt=False)
def _label_bound(small: Any, large: Any, tally: Any, n: int, n_kinds: int, n_bonds: int) -> int:
    """Bound what is left: labels of unmapped nodes, of edges between them, of edges to each mapped."""
    left_small, left_large = 0, 0
    for b in range(1, n_bonds + 2):
        left_small += tally[2, b]
        left_large += tally[3, b]
    bound = max(left_small, left_large)
    for b in range(1, n_bonds + 1):
        bound -= min(tally[2, b], tally[3, b])
    for kind in range(1, n_kinds + 1):
        bound -= min(tally[0, kind], tally[1, kind])
    for v in range(n):
        u = small.partner[v]
        if u >= 0:
            bound += max(small.free[v], large.free[u])
            for b in range(n_bonds):
                bound -= min(small.inner[b, v], large.inner[b, u])
    return bound


@njit(cache=True, nogil=True, _nrt=False)
def _anchor(
    small: Any, large: Any, anchored: Any, price: Any, v: int, u: int,
    n: int, m: int, n_bonds: int, sign: int,
) -> None:  # fmt: skip
    """Price the neighbours of ``v`` and ``u`` anew after `_map` took or gave back the two."""
    for t in range(small.start[v], small.start[v + 1]):
        r = small.end[t]
        if small.partner[r] < 0:
            line = anchored[r]
            for c in range(m):
                line[c] += 2 * sign
    for s in range(large.start[u], large.start[u + 1]):
        c = large.end[s]
        if large.partner[c] < 0:
            for r in range(n):
                anchored[r, c] += 2 * sign
            for t in range(small.start[v], small.start[v + 1]):
                r = small.end[t]
                if small.partner[r] < 0:
                    anchored[r, c] -= sign * (4 if small.bond[t] == large.bond[s] else 2)
            _price_column(small, large, anchored, price, c, n, n_bonds)
    for t in range(small.start[v], small.start[v + 1]):
        r = small.end[t]
        if small.partner[r] < 0:
            _price_row(small, large, anchored, price, r, n, m, n_bonds)


@njit(cache=True, nogil=True, _nrt=False)
def _inherit(
    small: Any, large: Any, prices: Any, price: Any, d: int, v: int, u: int, n: int, m: int
) -> None:
    """Take over the parent's prices at depth ``d`` and lower those that no longer hold."""
    row, column = prices.row[d], prices.column[d]
    at_row, at_column = prices.at_row[d], prices.at_column[d]
    for i in range(m):
        row[i], column[i] = prices.row[d - 1, i], prices.column[d - 1, i]
        at_row[i], at_column[i] = prices.at_row[d - 1, i], prices.at_column[d - 1, i]
    if at_row[v] != u:
        at_column[at_row[v]] = -1
        at_row[at_column[u]] = -1
    column[u] = -_BIG
    row[v] = 0
    for t in range(small.start[v], small.start[v + 1]):
        row[small.end[t]] = -_BIG  # so that they set no column's price
    for s in range(large.start[u], large.start[u + 1]):
        c = large.end[s]
        if large.partner[c] < 0:
            least = _BIG
            for r in range(m):
                if r >= n or small.partner[r] < 0:
                    least = min(least, price[min(r, n), c] - row[r])
            column[c] = least if least < _BIG // 2 else 0
    for t in range(small.start[v], small.start[v + 1]):
        r = small.end[t]
        if small.partner[r] < 0:
            least, line = _BIG, price[r]
            for c in range(m):
                least = min(least, line[c] - column[c])
            row[r] = least


@njit(cache=True, nogil=True, _nrt=False)
def _loosen(small: Any, large: Any, prices: Any, price: Any, d: int, n: int, m: int) -> None:
    """Part the pairs that are no longer tight, and add up the prices."""
    row, column = prices.row[d], prices.column[d]
    at_row, at_column = prices.at_row[d], prices.at_column[d]
    total = 0
    for r in range(m):
        if r >= n or small.partner[r] < 0:
            c = at_row[r]
            total += row[r]
            if c >= 0 and price[min(r, n), c] != row[r] + column[c]:
                at_row[r] = -1
                at_column[c] = -1
    for c in range(m):
        if large.partner[c] < 0:
            total += column[c]
    prices.total[d] = total


@njit(cache=True, nogil=True, _nrt=False)
def _assign(
    small: Any, large: Any, prices: Any, price: Any, d: int, n: int, m: int, limit: int
) -> None:
    """Raise the prices to the least assignment, or until their sum is above the limit."""
    for r in range(m):
        if prices.total[d] > limit:
            return
        if prices.at_row[d, r] < 0 and (r >= n or small.partner[r] < 0):
            _augment(large, prices, price, d, r, n, m, limit)


@njit(cache=True, nogil=True, _nrt=False)
def _augment(
    large: Any, prices: Any, price: Any, d: int, loose: int, n: int, m: int, limit: int
) -> None:
    """Find the shortest augmenting path of a loose row; stop once the bound is above the limit."""
    row, column = prices.row[d], prices.column[d]
    at_row, at_column = prices.at_row[d], prices.at_column[d]
    distance, through, left = prices.distance, prices.through, prices.left
    n_left = 0
    for c in range(m):
        if large.partner[c] < 0:
            left[n_left] = c
            n_left += 1
            distance[c] = _BIG
    n_active, i, length, sink = n_left, loose, 0, -1
    while sink < 0:
        line, offset, least, at = price[min(i, n)], length - row[i], _BIG, -1
        for t in range(n_left):
            c = left[t]
            way = offset + line[c] - column[c]
            if way < distance[c]:
                distance[c], through[c] = way, i
            if distance[c] < least or (distance[c] == least and at_column[c] < 0):
                least, at = distance[c], t
        length = least
        if prices.total[d] + length > limit:
            prices.total[d] += length
            return
        c = left[at]
        n_left -= 1
        left[at], left[n_left] = left[n_left], c
        if at_column[c] < 0:
            sink = c
        else:
            i = at_column[c]
    prices.total[d] += length
    row[loose] += length
    for t in range(n_left, n_active):
        c = left[t]
        if at_column[c] >= 0:
            row[at_column[c]] += length - distance[c]
            column[c] -= length - distance[c]
    while True:
        i, c = through[sink], sink
        at_column[c] = i
        at_row[i], sink = c, at_row[i]
        if i == loose:
            return


@njit(cache=True, nogil=True, _nrt=False)
def _cost_of_assignment(small: Any, large: Any, at_row: Any, n: int, m: int) -> int:
    """Cost of the mapping that the assignment and the nodes mapped so far make up."""
    cost = m - n + (small.start[n] + large.start[m]) // 2
    for v in range(n):
        u = small.partner[v] if small.partner[v] >= 0 else at_row[v]
        cost += small.label[v] != large.label[u]
        for t in range(small.start[v], small.start[v + 1]):
            w = small.end[t]
            if w < v:
                image = small.partner[w] if small.partner[w] >= 0 else at_row[w]
                bond = large.adjacent[u, image]
                if bond > 0:
                    cost -= 2 if bond == small.bond[t] else 1
    return cost


@njit(cache=True, nogil=True, _nrt=False)
def _branch(search: Any, d: int, slack: int) -> None:
    """Choose the row with the fewest columns that may hold, and list these, cheapest first."""
    small, large, prices, price = search.small, search.large, search.prices, search.price
    n, m = search.head[_N], search.head[_M]
    row, column = prices.row[d], prices.column[d]
    chosen, least = -1, _BIG
    for r in range(n):
        if small.partner[r] < 0:
            line, top, fits = price[r], row[r] + slack, 0
            for c in range(m):
                fits += line[c] - column[c] <= top
            degree = small.start[r + 1] - small.start[r]
            score = fits * 4096 - min(degree - small.free[r], 60) * 64 - min(degree, 60)
            if score < least:
                chosen, least = r, score
    floor = -1  # of two nodes that can be exchanged, the one mapped later gets the later image
    for w in range(n):
        if small.kin[w] == small.kin[chosen]:
            floor = max(floor, small.partner[w])
    children, n_children, over = prices.children[d], 0, _BIG
    for c in range(m):
        if large.partner[c] >= 0:
            continue
        excess = price[chosen, c] - row[chosen] - column[c]
        if excess > slack:
            over = min(over, excess)
        elif c > floor and (large.twin[c] < 0 or large.partner[large.twin[c]] >= 0):
            place = n_children
            while place > 0 and prices.distance[place - 1] > excess:
                prices.distance[place], children[place] = (
                    prices.distance[place - 1],
                    children[place - 1],
                )
                place -= 1
            prices.distance[place], children[place] = excess, c
            n_children += 1
    if over < _BIG:
        bound = prices.cost[d] + (prices.total[d] + over + 1) // 2
        search.head[_REFUSED] = min(search.head[_REFUSED], bound)
    prices.chosen[d], prices.n_children[d], prices.place[d] = chosen, n_children, 0


@njit(cache=True, nogil=True, _nrt=False)
def _descend(search: Any, d: int, u: int, tau: int) -> bool:
    """Map the chosen row of depth ``d`` to a column; undo it if a bound is above the threshold."""
    small, large, prices, price = search.small, search.large, search.prices, search.price
    n, m, n_bonds = search.head[_N], search.head[_M], search.head[_BONDS]
    v, tally = prices.chosen[d], search.tally
    cost = prices.cost[d] + (small.label[v] != large.label[u]) + search.anchored[v, u] // 2
    _map(small, v, u, tally[0], tally[2], n_bonds, 1)
    _map(large, u, v, tally[1], tally[3], n_bonds, 1)
    bound = cost + m - d - 1 + _label_bound(small, large, tally, n, search.head[_KINDS], n_bonds)
    if bound <= tau:
        _anchor(small, large, search.anchored, price, v, u, n, m, n_bonds, 1)
        prices.cost[d + 1] = cost
        _inherit(small, large, prices, price, d + 1, v, u, n, m)
        _loosen(small, large, prices, price, d + 1, n, m)
        _assign(small, large, prices, price, d + 1, n, m, 2 * (tau - cost))
        bound = max(bound, cost + (prices.total[d + 1] + 1) // 2)
        if bound <= tau:
            return True
        _ascend(search, v, u, True)
    else:
        _ascend(search, v, u, False)
    search.head[_REFUSED] = min(search.head[_REFUSED], bound)
    return False


@njit(cache=True, nogil=True, _nrt=False)
def _ascend(search: Any, v: int, u: int, anchored: bool) -> None:
    small, large, tally = search.small, search.large, search.tally
    n, m, n_bonds = search.head[_N], search.head[_M], search.head[_BONDS]
    small.partner[v], large.partner[u] = -1, -1
    _map(small, v, u, tally[0], tally[2], n_bonds, -1)
    _map(large, u, v, tally[1], tally[3], n_bonds, -1)
    if anchored:
        _anchor(small, large, search.anchored, search.price, v, u, n, m, n_bonds, -1)
        # while mapped, their prices were set from counts that were not theirs alone
        _price_row(small, large, search.anchored, search.price, v, n, m, n_bonds)
        _price_column(small, large, search.anchored, search.price, u, n, n_bonds)


@njit(cache=True, nogil=True, _nrt=False)
def _verify(table: Any, g: int, query: Any, search: Any, tau: int, budget: int) -> Any:
    """Return a cost up to ``tau``, or a bound above it, or -1 if the budget is spent; and the work."""
    head, small, large, prices = search.head, search.small, search.large, search.prices
    work = 0
    if head[_OBJECT] != g or head[_TAU] != tau:
        _begin(table, g, query, search, tau)
        n, m = head[_N], head[_M]
        _assign(small, large, prices, search.price, 0, n, m, 2 * tau)
        work = 1 + m
        if prices.total[0] > 2 * tau:
            head[_OBJECT] = -1
            return (prices.total[0] + 1) // 2, work
    n, m = head[_N], head[_M]
    while True:
        d = head[_DEPTH]
        if head[_NEXT] == 0:
            cost = _cost_of_assignment(small, large, prices.at_row[d], n, m)
            if cost <= tau:
                head[_OBJECT] = -1
                return cost, work
            _branch(search, d, 2 * (tau - prices.cost[d]) - prices.total[d])
            head[_NEXT] = 1
        if work > budget:
            return -1, work
        place = prices.place[d]
        if place < prices.n_children[d]:
            prices.place[d] += 1
            work += 1 + m // 8
            if _descend(search, d, prices.children[d, place], tau):
                head[_DEPTH], head[_NEXT] = d + 1, 0
        elif d == 0:
            head[_OBJECT] = -1
            return head[_REFUSED], work
        else:
            head[_DEPTH] = d - 1
            v = prices.chosen[d - 1]
            _ascend(search, v, small.partner[v], True)


@njit(cache=True, nogil=True)
def verify_many(
    table: Any, query: Any, positions: Any, start: int, tau: int, n_wanted: int,
    budget: int, lower: Any, upper: Any, search: Any,
) -> Any:  # fmt: skip
    """Decide for graphs, in the order given, whether their distance is at most a threshold.

    Parameters
    ----------
    table, query : Any
        The query is a table of one graph. Labels of both count alike.
    positions : int64 array
        Graphs to decide on.
    start : int
        Place in ``positions`` to begin at.
    tau : int
        The threshold.
    n_wanted : int
        Stop when so many lie within the threshold.
    budget : int
        Work after which to stop, about 0.1 to 1 microseconds each; what is under way goes on at
        the next call with the same graph and threshold.
    lower, upper : int32 arrays of shape (n_graphs,)
        Bounds of each distance. Those decided on are improved: ``upper`` to a cost of at most
        ``tau``, or ``lower`` to more than ``tau``.
    search : Any
        Room from `new_search`, its content kept between calls.

    Returns
    -------
    tuple of three int
        Where to go on, how many were found within the threshold, and the work that was done.
    """
    n_found, work = 0, 0
    for i in range(start, positions.shape[0]):
        g = positions[i]
        if lower[g] <= tau < upper[g]:
            result, spent = _verify(table, g, query, search, tau, budget - work)
            work += spent
            if result < 0:
                return i, n_found, work
            if result <= tau:
                upper[g] = result
            else:
                lower[g] = result
        if upper[g] <= tau:
            n_found += 1
            if n_found == n_wanted:
                return i + 1, n_found, work
    return positions.shape[0], n_found, work
