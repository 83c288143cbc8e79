"""Tree search that compares graph edit distances from a query to many graphs with a threshold.

A node of the search tree maps some nodes of the smaller graph. Its bound is the *branch* bound: the
cost of a minimum assignment of the remaining nodes. The cost of an edge between two remaining nodes
is split between them; the cost of an edge to a mapped node counts in full. All costs are doubled
to avoid fractions. (The bound by multisets of labels is never above the branch bound.)

A child inherits the assignment and dual prices of its parent. The dual prices of neighbors of the
two newly mapped nodes are recomputed, so that they are feasible; their sum is already a bound. One
augmenting path per unassigned ("loose") row then makes the assignment minimal.
"""

from typing import Any, NamedTuple

from numba import njit

from fedneighbors.kernels.graph_edit._paths import (
    BIG,
    insert_child,
    latest_image,
    match_along,
    nearest_column,
    relax,
)

# Digests of the kernel files used here: an edit there must change this file too, so that numba
# discards its cached code.
USES = {"graph_edit/paths": "64207419a4fff0e3"}

# _nrt=False: no reference counts of the arrays in the tuples; measured 32 microseconds, not 56.
_jit: Any = njit(cache=True, nogil=True, _nrt=False)  # type: ignore[call-overload]
_jit_inline: Any = njit(cache=True, nogil=True, forceinline=True, _nrt=False)  # type: ignore[call-overload]

# Indices of `GedTree.head`, the state of the verification in progress; `_search` adds more.
OBJECT, TAU = 0, 1  # graph that is compared, or -1, and the threshold
_N, _M = 2, 3  # numbers of nodes of the smaller and the larger graph
_DEPTH = 4  # number of mapped nodes on the current path
_IS_BRANCHED = 5  # 1 if the children of the current node are listed
_MIN_PRUNED = 6  # lowest bound of all pruned branches, above the threshold
_BONDS = 7  # number of the query's edge labels
LOADED = 8  # 1 if the query side is loaded and none of its nodes is mapped


class GedSide(NamedTuple):
    """One graph of a pair, with labels renumbered: 1, 2, ... are the query's labels."""

    label: Any  # (nodes,) 0 if the query has no such label
    start: Any  # (nodes + 1,) first arc of each node
    end: Any  # (arcs,) node to which the arc leads
    bond: Any  # (arcs,) edge label; one more than the query's number of them for any other label
    adjacent: Any  # (nodes, nodes) bond, or 0
    twin: Any  # (nodes,) previous node that is interchangeable with this one, or -1
    kin: Any  # (nodes,) first of the nodes that are interchangeable with this one
    partner: Any  # (nodes,) node of the other graph, or -1
    free: Any  # (nodes,) number of unmapped neighbors
    inner: Any  # (bonds, nodes) number of unmapped neighbors by bond


class GedTree(NamedTuple):
    """Current path of a tree search.

    Rows are the nodes of the smaller graph, followed by dummy nodes (insertions). Columns are the
    nodes of the larger graph.
    """

    head: Any  # (12,)
    price: Any  # (rows, columns) doubled cost of mapping row to column; one row for all insertions
    anchored: Any  # (rows, columns) part of the price that edges to mapped nodes cause
    row: Any  # (depths, rows) dual prices
    column: Any  # (depths, columns) dual prices, far below zero for mapped columns
    at_row: Any  # (depths, rows) column assigned to each row, or -1
    at_column: Any  # (depths, columns) row assigned to each column, or -1
    children: Any  # (depths, columns) columns, most promising first
    total: Any  # (depths,) sum of the dual prices: a lower bound, doubled
    cost: Any  # (depths,) cost of the mapped nodes
    chosen: Any  # (depths,) row that the children map
    n_children: Any  # (depths,)
    place: Any  # (depths,) index of the next child
    # (columns,) distance from a loose row; when branching, excess (reduced cost) of each child
    distance: Any
    through: Any  # (columns,) row before each column on the path
    passed: Any  # (columns,) 0, or a large number for mapped columns and those already passed


class GedSearch(NamedTuple):
    """Working memory for one verification at a time."""

    query: GedSide
    object: GedSide
    tree: GedTree
    kinds: Any  # (labels,) new numbers of node labels
    bonds: Any  # (labels,) new numbers of edge labels
    dual: Any  # DualRoom of `_cells`: working memory of the dual search


@_jit
def _load(table: Any, g: int, search: Any, side: Any) -> None:
    first_node, label, first_arc, end, bonds, twins = table
    low, high = first_node[g], first_node[g + 1]
    n, arcs = high - low, first_arc[low]
    side.adjacent[:n, :n], side.inner[:, :n] = 0, 0
    side.start[0] = 0
    for v in range(n):
        side.label[v] = search.kinds[label[low + v]]
        twin, first, last = twins[low + v], first_arc[low + v], first_arc[low + v + 1]
        side.twin[v], side.partner[v] = twin, -1
        side.kin[v] = side.kin[twin] if twin >= 0 else v
        side.start[v + 1], side.free[v] = last - arcs, last - first
        for t in range(first, last):
            bond, w = search.bonds[bonds[t]], end[t]
            side.end[t - arcs], side.bond[t - arcs], side.adjacent[v, w] = w, bond, bond
            side.inner[bond, v] += 1


@_jit_inline
def _price_row(small: Any, large: Any, tree: Any, r: int) -> None:
    """Compute the prices of one row in all columns.

    Row ``n`` represents all insertions.
    """
    line, fixed, m = tree.price[r], tree.anchored[r], tree.head[_M]
    if r == tree.head[_N]:
        for c in range(m):
            line[c] = 2 + 2 * (large.start[c + 1] - large.start[c]) - large.free[c]
        return
    label, free = small.label[r], small.free[r]
    for c in range(m):
        line[c] = 2 * (large.label[c] != label) + max(free, large.free[c]) + fixed[c]
    for b in range(1, tree.head[_BONDS] + 1):
        own, theirs = small.inner[b, r], large.inner[b]
        if own > 0:
            for c in range(m):
                line[c] -= min(own, theirs[c])


@_jit_inline
def _price_column(small: Any, large: Any, tree: Any, c: int) -> None:
    label, free, n = large.label[c], large.free[c], tree.head[_N]
    for r in range(n):
        cost = 2 * (small.label[r] != label) + max(free, small.free[r]) + tree.anchored[r, c]
        for b in range(1, tree.head[_BONDS] + 1):
            cost -= min(small.inner[b, r], large.inner[b, c])
        tree.price[r, c] = cost
    tree.price[n, c] = 2 + 2 * (large.start[c + 1] - large.start[c]) - free


@_jit
def _init_root(small: Any, large: Any, tree: Any) -> None:
    """Set up the root: prices, dual prices and an initial matching.

    The dual price of a row is its minimum; that of a column is the minimum of its reduced costs,
    that is, after the row prices are subtracted. Each row is then matched to its first unmatched
    column of reduced cost 0, if there is one.
    """
    n, m, price = tree.head[_N], tree.head[_M], tree.price
    row, column, at_row, at_column = tree.row[0], tree.column[0], tree.at_row[0], tree.at_column[0]
    tree.anchored[: n + 1, :m] = 0
    for r in range(n + 1):
        _price_row(small, large, tree, r)
    column[:m], at_column[:m] = BIG, -1
    total = 0
    for r in range(m):
        line, least = price[min(r, n)], BIG
        for c in range(m):
            least = min(least, line[c])
        for c in range(m):
            column[c] = min(column[c], line[c] - least)
        row[r], at_row[r] = least, -1
        total += least
    for c in range(m):
        total += column[c]
    for r in range(m):
        line = price[min(r, n)]
        for c in range(m):
            if at_column[c] < 0 and line[c] == row[r] + column[c]:
                at_row[r], at_column[c] = c, r
                break
    tree.total[0], tree.cost[0] = total, 0


@_jit_inline
def _mark_node(side: Any, v: int, partner: int, sign: int) -> None:
    """Mark a node as mapped (sign 1) or unmapped (sign -1).

    Updates the counts of unmapped neighbors.
    """
    side.partner[v] = partner
    for t in range(side.start[v], side.start[v + 1]):
        side.free[side.end[t]] -= sign
        side.inner[side.bond[t], side.end[t]] -= sign


@_jit
def _map_node(small: Any, large: Any, tree: Any, v: int, u: int, sign: int) -> None:
    """Map ``v`` to ``u`` (sign 1) or undo that (sign -1).

    Updates the prices that depend on it.
    """
    n, m, anchored = tree.head[_N], tree.head[_M], tree.anchored
    _mark_node(small, v, u if sign > 0 else -1, sign)
    _mark_node(large, u, v if sign > 0 else -1, sign)
    first, last = small.start[v], small.start[v + 1]
    for s in range(large.start[u], large.start[u + 1]):
        c = large.end[s]
        if large.partner[c] < 0:
            for r in range(n):
                anchored[r, c] += 2 * sign
            for t in range(first, last):
                if small.partner[small.end[t]] < 0:
                    same = small.bond[t] == large.bond[s]
                    anchored[small.end[t], c] -= sign * (4 if same else 2)
            _price_column(small, large, tree, c)
    for t in range(first, last):
        r = small.end[t]
        if small.partner[r] < 0:
            for c in range(m):
                anchored[r, c] += 2 * sign
            _price_row(small, large, tree, r)
    if sign < 0:  # while v and u were mapped, not all of their prices were updated
        _price_row(small, large, tree, v)
        _price_column(small, large, tree, u)


@_jit_inline
def _inherit(small: Any, large: Any, tree: Any, d: int, v: int, u: int) -> None:
    """Derive the dual prices at depth ``d`` from the parent's.

    The dual prices of neighbors of ``v`` and ``u`` are recomputed, so that they are feasible. Pairs
    whose reduced cost is no longer 0 are unmatched. ``tree.total[d]`` is set to the sum of prices.
    """
    n, m, price = tree.head[_N], tree.head[_M], tree.price
    row, column, at_row, at_column = tree.row[d], tree.column[d], tree.at_row[d], tree.at_column[d]
    for i in range(m):
        row[i], column[i] = tree.row[d - 1, i], tree.column[d - 1, i]
        at_row[i], at_column[i] = tree.at_row[d - 1, i], tree.at_column[d - 1, i]
    if at_row[v] != u:
        at_column[at_row[v]], at_row[at_column[u]] = -1, -1
    column[u] = -BIG
    for t in range(small.start[v], small.start[v + 1]):
        row[small.end[t]] = -BIG  # so that this row does not affect the columns' prices
    for s in range(large.start[u], large.start[u + 1]):
        c, least = large.end[s], BIG
        if large.partner[c] < 0:
            for r in range(m):
                if r >= n or small.partner[r] < 0:
                    least = min(least, price[min(r, n), c] - row[r])
            column[c] = least if least < BIG // 2 else 0
    for t in range(small.start[v], small.start[v + 1]):
        line, least = price[small.end[t]], BIG
        for c in range(m):
            least = min(least, line[c] - column[c])
        row[small.end[t]] = least
    total = 0
    for i in range(m):
        if i >= n or small.partner[i] < 0:
            c = at_row[i]
            total += row[i]
            if c >= 0 and price[min(i, n), c] != row[i] + column[c]:
                at_row[i], at_column[c] = -1, -1
        if large.partner[i] < 0:
            total += column[i]
    tree.total[d] = total


@_jit
def _assign(small: Any, large: Any, tree: Any, d: int, limit: int) -> None:
    """Match all unassigned rows, which raises the sum of the dual prices.

    Ends with a minimum assignment, or as soon as the sum of the prices is above the limit.
    """
    for r in range(tree.head[_M]):
        loose = tree.at_row[d, r] < 0 and (r >= tree.head[_N] or small.partner[r] < 0)
        if loose and tree.total[d] <= limit:
            _augment(large, tree, d, r, limit)


@_jit_inline
def _augment(large: Any, tree: Any, d: int, loose: int, limit: int) -> None:
    """Match an unassigned (loose) row along the shortest augmenting path.

    Stops once the bound is above the limit.
    """
    n, m, distance, passed = tree.head[_N], tree.head[_M], tree.distance, tree.passed
    row, column, at_row, at_column = tree.row[d], tree.column[d], tree.at_row[d], tree.at_column[d]
    for c in range(m):
        distance[c], passed[c] = BIG, BIG if large.partner[c] >= 0 else 0
    i, least, sink = loose, 0, -1
    paths = distance, tree.through, passed
    while True:
        least = relax(paths, tree.price[min(i, n)], column, m, i, least - row[i])
        if tree.total[d] + least > limit:
            tree.total[d] += least
            return
        sink = nearest_column(paths, at_column, m, least)
        if at_column[sink] < 0:
            break
        passed[sink], i = BIG, at_column[sink]
    tree.total[d], row[loose] = tree.total[d] + least, row[loose] + least
    for c in range(m):
        if passed[c] > 0 and large.partner[c] < 0:
            row[at_column[c]] += least - distance[c]
            column[c] -= least - distance[c]
    match_along(tree.through, at_row, at_column, loose, sink)


@_jit
def _cost_of_assignment(small: Any, large: Any, tree: Any, d: int) -> Any:
    """Return the edit cost if the assignment maps the remaining nodes.

    This is an upper bound of the edit distance.
    """
    n, m, at_row = tree.head[_N], tree.head[_M], tree.at_row[d]
    cost = m - n + (small.start[n] + large.start[m]) // 2
    for v in range(n):
        u = small.partner[v] if small.partner[v] >= 0 else at_row[v]
        cost += small.label[v] != large.label[u]
        for t in range(small.start[v], small.start[v + 1]):
            w = small.end[t]
            if w < v:
                bond = large.adjacent[u, small.partner[w] if small.partner[w] >= 0 else at_row[w]]
                cost -= (bond > 0) + (bond == small.bond[t])
    return cost


@_jit
def _branch(small: Any, large: Any, tree: Any, d: int, tau: int) -> None:
    """Choose the row with the fewest feasible columns and list its children.

    Ties go to the row with the most mapped neighbors, then to that of highest degree. The children
    are feasible columns, cheapest first; equivalent mappings of interchangeable nodes are left out.
    """
    head, row, column, distance = tree.head, tree.row[d], tree.column[d], tree.distance
    n, m = head[_N], head[_M]
    slack = 2 * (tau - tree.cost[d]) - tree.total[d]
    chosen, lowest = -1, BIG
    for r in range(n):
        if small.partner[r] < 0:
            line, top, n_feasible = tree.price[r], row[r] + slack, 0
            for c in range(m):
                n_feasible += line[c] - column[c] <= top
            degree = small.start[r + 1] - small.start[r]
            n_mapped = min(degree - small.free[r], 60)  # at most 60: the three terms do not overlap
            score = 4096 * n_feasible - 64 * n_mapped - min(degree, 60)
            if score < lowest:
                chosen, lowest = r, score
    largest_image = latest_image(small, small.partner, n, chosen)
    children, n_children, min_pruned = tree.children[d], 0, BIG
    for c in range(m):
        excess = tree.price[chosen, c] - row[chosen] - column[c]
        if excess > slack:
            min_pruned = min(min_pruned, excess)
        elif c > largest_image and (large.twin[c] < 0 or large.partner[large.twin[c]] >= 0):
            insert_child(children, distance, n_children, c, excess)
            n_children += 1
    if min_pruned < BIG // 2:
        bound = tree.cost[d] + (tree.total[d] + min_pruned + 1) // 2
        head[_MIN_PRUNED] = min(head[_MIN_PRUNED], bound)
    tree.chosen[d], tree.n_children[d], tree.place[d] = chosen, n_children, 0


@_jit
def _descend(small: Any, large: Any, tree: Any, d: int, u: int, tau: int) -> Any:
    """Map the chosen row of depth ``d`` to column ``u``.

    Returns whether the bound is at most the threshold; if not, the mapping is undone.
    """
    v, head = tree.chosen[d], tree.head
    tree.cost[d + 1] = tree.cost[d] + (small.label[v] != large.label[u]) + tree.anchored[v, u] // 2
    _map_node(small, large, tree, v, u, 1)
    _inherit(small, large, tree, d + 1, v, u)
    _assign(small, large, tree, d + 1, 2 * (tau - tree.cost[d + 1]))
    bound = tree.cost[d + 1] + (tree.total[d + 1] + 1) // 2
    if bound > tau:
        head[_MIN_PRUNED] = min(head[_MIN_PRUNED], bound)
        _map_node(small, large, tree, v, u, -1)
    return bound <= tau


@_jit
def verify(table: Any, g: int, query: Any, search: Any, tau: int, budget: int) -> Any:
    """Decide whether the edit distance is at most ``tau``.

    Returns (result, work). The result is the cost of a mapping, at most ``tau``, if one was found;
    a lower bound of the distance, above ``tau``, if there is none; or -1 if ``work`` exceeded
    ``budget``; a call for the same graph and threshold then continues the search. The graph is that
    with index ``g`` in ``table``; a unit of ``work`` is roughly a microsecond.
    """
    tree, head, work = search.tree, search.tree.head, 0
    n_own, n_object = query[1].shape[0], table[0][g + 1] - table[0][g]
    small = search.query if n_own <= n_object else search.object
    large = search.object if n_own <= n_object else search.query
    if head[OBJECT] != g or head[TAU] != tau:
        if head[LOADED] == 0:
            _load(query, 0, search, search.query)
        _load(table, g, search, search.object)
        head[OBJECT], head[TAU], head[LOADED] = g, tau, 0
        head[_N], head[_M] = min(n_own, n_object), max(n_own, n_object)
        head[_DEPTH], head[_IS_BRANCHED], head[_MIN_PRUNED] = 0, 0, BIG
        _init_root(small, large, tree)
        _assign(small, large, tree, 0, 2 * tau)
        bound, work = (tree.total[0] + 1) // 2, 1 + n_own
        if bound > tau:
            head[OBJECT], head[LOADED] = -1, 1
            return bound, work
    while True:
        d = head[_DEPTH]
        if head[_IS_BRANCHED] == 0:
            cost = _cost_of_assignment(small, large, tree, d)
            if cost <= tau:
                head[OBJECT] = -1
                return cost, work
            _branch(small, large, tree, d, tau)
            head[_IS_BRANCHED] = 1
        if work > budget:
            return -1, work
        k = tree.place[d]
        if k < tree.n_children[d]:
            tree.place[d], work = k + 1, work + 1 + n_own // 8
            if _descend(small, large, tree, d, tree.children[d, k], tau):
                head[_DEPTH], head[_IS_BRANCHED] = d + 1, 0
        elif d == 0:
            head[OBJECT], head[LOADED] = -1, 1
            return head[_MIN_PRUNED], work
        else:
            head[_DEPTH], v = d - 1, tree.chosen[d - 1]
            _map_node(small, large, tree, v, small.partner[v], -1)
