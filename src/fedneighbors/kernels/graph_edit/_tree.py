"""Tree search that compares the edit distance of two graphs with a threshold.

A node of the search tree is a partial mapping of the smaller graph's nodes. Its lower bound is the
*branch* bound: the cost of the mapped nodes plus that of a minimum assignment of the remaining
nodes. In the assignment, the cost of an edge between two remaining nodes is split between them; the
cost of an edge to a mapped node counts in full. Costs of assignments are doubled to avoid
fractions. (The bound by counts of labels is never above the branch bound.)

A child inherits the assignment and the dual prices of its parent. The dual prices of neighbors of
the two newly mapped nodes are recomputed, so that they are feasible; their sum is already a lower
bound. One augmenting path per unassigned row then makes the assignment minimal.
"""

from typing import Any, NamedTuple

from numba import njit

from fedneighbors.kernels.graph_edit._paths import (
    BIG,
    find_largest_image,
    find_nearest_column,
    insert_child,
    match_path,
    relax,
)

# Digests of the kernel files used here: an edit there must change this file too, so that numba
# discards its cached code.
USES = {"graph_edit/paths": "134976efef0d3e88"}

# _nrt=False: arrays in tuples are not reference-counted; 32 microseconds per call instead of 56.
_jit: Any = njit(cache=True, nogil=True, _nrt=False)  # type: ignore[call-overload]
_jit_inline: Any = njit(cache=True, nogil=True, forceinline=True, _nrt=False)  # type: ignore[call-overload]

# Indices of `GedTree.state`, the state of the current verification; `_search` adds more.
OBJECT, TAU = 0, 1  # index of the compared graph, or -1, and the threshold
_N, _M = 2, 3  # numbers of nodes of the smaller and the larger graph
_DEPTH = 4  # number of mapped nodes on the current path
_IS_BRANCHED = 5  # 1 if the children of the current tree node are listed
_MIN_PRUNED = 6  # lowest bound of all pruned branches; above the threshold
_N_EDGE_LABELS = 7  # number of distinct edge labels of the query
IS_QUERY_LOADED = 8  # 1 if the query is loaded and none of its nodes is mapped


class GedGraph(NamedTuple):
    """One graph of a pair. Labels are renumbered: 1, 2, ... are the query's labels."""

    label: Any  # (nodes,) node label, or 0 if the query does not have it
    first_arc: Any  # (nodes + 1,) first arc of each node
    target: Any  # (arcs,) node to which the arc leads
    # (arcs,) edge label; labels that the query does not have share the next number after its labels
    edge_label: Any
    adjacency: Any  # (nodes, nodes) edge label, or 0 if there is no edge
    prior_twin: Any  # (nodes,) last node before this one that is interchangeable with it, or -1
    first_twin: Any  # (nodes,) first node that is interchangeable with this one, or the node itself
    partner: Any  # (nodes,) mapped node of the other graph, or -1
    unmapped: Any  # (nodes,) number of unmapped neighbors
    unmapped_by_label: Any  # (edge labels, nodes) number of unmapped neighbors by edge label


class GedTree(NamedTuple):
    """Current path of a tree search; index 0 of ``depths`` is the root.

    Rows are the nodes of the smaller graph, followed by dummy nodes (insertions). Columns are the
    nodes of the larger graph.
    """

    state: Any  # (12,) see the indices above
    # (rows, columns) doubled cost of mapping row to column; one row for all insertions
    pair_cost: Any
    fixed_cost: Any  # (rows, columns) part of ``pair_cost`` due to edges to mapped nodes
    row_price: Any  # (depths, rows) dual prices
    column_price: Any  # (depths, columns) dual prices, far below zero for mapped columns
    column_of: Any  # (depths, rows) column assigned to each row, or -1
    row_of: Any  # (depths, columns) row assigned to each column, or -1
    children: Any  # (depths, columns) columns, most promising first
    price_sum: Any  # (depths,) sum of the dual prices: doubled lower bound for the remaining nodes
    mapped_cost: Any  # (depths,) cost of the mapped nodes and of the edges between them
    branch_row: Any  # (depths,) row that the children map
    n_children: Any  # (depths,)
    next_child: Any  # (depths,) index of the next child
    # (columns,) distance from an unassigned row; when listing children, their reduced costs
    distance: Any
    predecessor: Any  # (columns,) row before each column on its shortest path
    blocked: Any  # (columns,) 0, or a large number for mapped or already visited columns


class GedSearch(NamedTuple):
    """Working memory for one verification at a time."""

    query: GedGraph
    object: GedGraph
    tree: GedTree
    node_label_map: Any  # (labels,) number in `GedGraph` of each node label
    edge_label_map: Any  # (labels,) number in `GedGraph` of each edge label
    dual: Any  # `DualSearch` of `_cells`


@_jit
def _load_graph(table: Any, g: int, search: Any, graph: Any) -> None:
    first_node, node_labels, first_arc, targets, edge_labels, prior_twins = table
    low, high = first_node[g], first_node[g + 1]
    n, offset = high - low, first_arc[low]
    graph.adjacency[:n, :n], graph.unmapped_by_label[:, :n] = 0, 0
    graph.first_arc[0] = 0
    for v in range(n):
        graph.label[v] = search.node_label_map[node_labels[low + v]]
        twin, first, last = prior_twins[low + v], first_arc[low + v], first_arc[low + v + 1]
        graph.prior_twin[v], graph.partner[v] = twin, -1
        graph.first_twin[v] = graph.first_twin[twin] if twin >= 0 else v
        graph.first_arc[v + 1], graph.unmapped[v] = last - offset, last - first
        for t in range(first, last):
            number, u, k = search.edge_label_map[edge_labels[t]], targets[t], t - offset
            graph.target[k], graph.edge_label[k], graph.adjacency[v, u] = u, number, number
            graph.unmapped_by_label[number, v] += 1


@_jit_inline
def _compute_row_costs(small: Any, large: Any, tree: Any, r: int) -> None:
    """Compute the costs of one row in all columns.

    Row ``n`` represents all insertions.
    """
    costs, fixed, m = tree.pair_cost[r], tree.fixed_cost[r], tree.state[_M]
    if r == tree.state[_N]:
        for c in range(m):
            costs[c] = 2 + 2 * (large.first_arc[c + 1] - large.first_arc[c]) - large.unmapped[c]
        return
    label, unmapped = small.label[r], small.unmapped[r]
    for c in range(m):
        costs[c] = 2 * (large.label[c] != label) + max(unmapped, large.unmapped[c]) + fixed[c]
    for b in range(1, tree.state[_N_EDGE_LABELS] + 1):
        count, counts = small.unmapped_by_label[b, r], large.unmapped_by_label[b]
        if count > 0:
            for c in range(m):
                costs[c] -= min(count, counts[c])


@_jit_inline
def _compute_column_costs(small: Any, large: Any, tree: Any, c: int) -> None:
    label, unmapped, n = large.label[c], large.unmapped[c], tree.state[_N]
    for r in range(n):
        cost = 2 * (small.label[r] != label) + tree.fixed_cost[r, c]
        cost += max(unmapped, small.unmapped[r])
        for b in range(1, tree.state[_N_EDGE_LABELS] + 1):
            cost -= min(small.unmapped_by_label[b, r], large.unmapped_by_label[b, c])
        tree.pair_cost[r, c] = cost
    tree.pair_cost[n, c] = 2 + 2 * (large.first_arc[c + 1] - large.first_arc[c]) - unmapped


@_jit
def _init_root(small: Any, large: Any, tree: Any) -> None:
    """Set up the root: costs, dual prices and an initial assignment.

    The dual price of a row is its minimum cost; that of a column is the minimum of its costs minus
    the row prices. Each row is then matched to its first unmatched column of reduced cost 0, if
    there is one. (The reduced cost of a pair is its cost minus both dual prices.)
    """
    n, m, pair_cost = tree.state[_N], tree.state[_M], tree.pair_cost
    row_price, column_price = tree.row_price[0], tree.column_price[0]
    column_of, row_of = tree.column_of[0], tree.row_of[0]
    tree.fixed_cost[: n + 1, :m] = 0
    for r in range(n + 1):
        _compute_row_costs(small, large, tree, r)
    column_price[:m], row_of[:m] = BIG, -1
    price_sum = 0
    for r in range(m):
        costs, least = pair_cost[min(r, n)], BIG
        for c in range(m):
            least = min(least, costs[c])
        for c in range(m):
            column_price[c] = min(column_price[c], costs[c] - least)
        row_price[r], column_of[r] = least, -1
        price_sum += least
    for c in range(m):
        price_sum += column_price[c]
    for r in range(m):
        costs = pair_cost[min(r, n)]
        for c in range(m):
            if row_of[c] < 0 and costs[c] == row_price[r] + column_price[c]:
                column_of[r], row_of[c] = c, r
                break
    tree.price_sum[0], tree.mapped_cost[0] = price_sum, 0


@_jit_inline
def _mark_node(graph: Any, v: int, partner: int, sign: int) -> None:
    """Mark a node as mapped (sign 1) or unmapped (sign -1).

    Updates the counts of unmapped neighbors.
    """
    graph.partner[v] = partner
    for t in range(graph.first_arc[v], graph.first_arc[v + 1]):
        graph.unmapped[graph.target[t]] -= sign
        graph.unmapped_by_label[graph.edge_label[t], graph.target[t]] -= sign


@_jit
def _map_node(small: Any, large: Any, tree: Any, v: int, u: int, sign: int) -> None:
    """Map ``v`` to ``u`` (sign 1) or undo that (sign -1).

    Updates the costs that depend on it.
    """
    n, m, fixed_cost = tree.state[_N], tree.state[_M], tree.fixed_cost
    _mark_node(small, v, u if sign > 0 else -1, sign)
    _mark_node(large, u, v if sign > 0 else -1, sign)
    first, last = small.first_arc[v], small.first_arc[v + 1]
    for s in range(large.first_arc[u], large.first_arc[u + 1]):
        c = large.target[s]
        if large.partner[c] < 0:
            for r in range(n):
                fixed_cost[r, c] += 2 * sign
            for t in range(first, last):
                if small.partner[small.target[t]] < 0:
                    is_same = small.edge_label[t] == large.edge_label[s]
                    fixed_cost[small.target[t], c] -= sign * (4 if is_same else 2)
            _compute_column_costs(small, large, tree, c)
    for t in range(first, last):
        r = small.target[t]
        if small.partner[r] < 0:
            for c in range(m):
                fixed_cost[r, c] += 2 * sign
            _compute_row_costs(small, large, tree, r)
    if sign < 0:  # while v and u were mapped, not all of their costs were updated
        _compute_row_costs(small, large, tree, v)
        _compute_column_costs(small, large, tree, u)


@_jit_inline
def _inherit_prices(small: Any, large: Any, tree: Any, d: int, v: int, u: int) -> None:
    """Derive the dual prices at depth ``d`` from the parent's.

    The dual prices of neighbors of ``v`` and ``u`` are recomputed, so that they are feasible. Pairs
    whose reduced cost is no longer 0 are unmatched. ``tree.price_sum[d]`` is updated.
    """
    n, m, pair_cost = tree.state[_N], tree.state[_M], tree.pair_cost
    row_price, column_price = tree.row_price[d], tree.column_price[d]
    column_of, row_of = tree.column_of[d], tree.row_of[d]
    for i in range(m):
        row_price[i], column_price[i] = tree.row_price[d - 1, i], tree.column_price[d - 1, i]
        column_of[i], row_of[i] = tree.column_of[d - 1, i], tree.row_of[d - 1, i]
    if column_of[v] != u:
        row_of[column_of[v]], column_of[row_of[u]] = -1, -1
    column_price[u] = -BIG
    for t in range(small.first_arc[v], small.first_arc[v + 1]):
        row_price[small.target[t]] = -BIG  # so that this row does not affect the column prices
    for s in range(large.first_arc[u], large.first_arc[u + 1]):
        c, least = large.target[s], BIG
        if large.partner[c] < 0:
            for r in range(m):
                if r >= n or small.partner[r] < 0:
                    least = min(least, pair_cost[min(r, n), c] - row_price[r])
            column_price[c] = least if least < BIG // 2 else 0
    for t in range(small.first_arc[v], small.first_arc[v + 1]):
        costs, least = pair_cost[small.target[t]], BIG
        for c in range(m):
            least = min(least, costs[c] - column_price[c])
        row_price[small.target[t]] = least
    price_sum = 0
    for i in range(m):
        if i >= n or small.partner[i] < 0:
            c = column_of[i]
            price_sum += row_price[i]
            if c >= 0 and pair_cost[min(i, n), c] != row_price[i] + column_price[c]:
                column_of[i], row_of[c] = -1, -1
        if large.partner[i] < 0:
            price_sum += column_price[i]
    tree.price_sum[d] = price_sum


@_jit
def _assign_rows(small: Any, large: Any, tree: Any, d: int, limit: int) -> None:
    """Match all unassigned rows, which raises the sum of the dual prices.

    Ends with a minimum assignment, or as soon as the sum is above the limit.
    """
    for r in range(tree.state[_M]):
        is_unassigned = tree.column_of[d, r] < 0 and (r >= tree.state[_N] or small.partner[r] < 0)
        if is_unassigned and tree.price_sum[d] <= limit:
            _augment(large, tree, d, r, limit)


@_jit_inline
def _augment(large: Any, tree: Any, d: int, start: int, limit: int) -> None:
    """Match an unassigned row along the shortest augmenting path.

    Stops once the sum of the dual prices is above the limit.
    """
    n, m, distance, blocked = tree.state[_N], tree.state[_M], tree.distance, tree.blocked
    row_price, column_price = tree.row_price[d], tree.column_price[d]
    column_of, row_of = tree.column_of[d], tree.row_of[d]
    for c in range(m):
        distance[c], blocked[c] = BIG, BIG if large.partner[c] >= 0 else 0
    i, least, sink = start, 0, -1
    paths = distance, tree.predecessor, blocked
    while True:
        least = relax(paths, tree.pair_cost[min(i, n)], column_price, m, i, least - row_price[i])
        if tree.price_sum[d] + least > limit:
            tree.price_sum[d] += least
            return
        sink = find_nearest_column(paths, row_of, m, least)
        if row_of[sink] < 0:
            break
        blocked[sink], i = BIG, row_of[sink]
    tree.price_sum[d], row_price[start] = tree.price_sum[d] + least, row_price[start] + least
    for c in range(m):
        if blocked[c] > 0 and large.partner[c] < 0:
            row_price[row_of[c]] += least - distance[c]
            column_price[c] -= least - distance[c]
    match_path(tree.predecessor, column_of, row_of, start, sink)


@_jit
def _compute_assignment_cost(small: Any, large: Any, tree: Any, d: int) -> Any:
    """Return the edit cost of mapping the remaining nodes as assigned.

    This is an upper bound of the edit distance.
    """
    n, m, column_of = tree.state[_N], tree.state[_M], tree.column_of[d]
    cost = m - n + (small.first_arc[n] + large.first_arc[m]) // 2
    for v in range(n):
        u = small.partner[v] if small.partner[v] >= 0 else column_of[v]
        cost += small.label[v] != large.label[u]
        for t in range(small.first_arc[v], small.first_arc[v + 1]):
            w = small.target[t]
            if w < v:
                x = small.partner[w] if small.partner[w] >= 0 else column_of[w]
                label = large.adjacency[u, x]
                cost -= (label > 0) + (label == small.edge_label[t])
    return cost


@_jit
def _list_children(small: Any, large: Any, tree: Any, d: int, tau: int) -> None:
    """List the feasible columns of the row that has the fewest.

    Ties go to the row with the most mapped neighbors, then to that of highest degree. The columns
    are the children of the tree node, cheapest first. Of equivalent mappings of interchangeable
    nodes, only one is listed.
    """
    row_price, column_price, excesses = tree.row_price[d], tree.column_price[d], tree.distance
    state, n, m = tree.state, tree.state[_N], tree.state[_M]
    slack = 2 * (tau - tree.mapped_cost[d]) - tree.price_sum[d]
    branch_row, lowest = -1, BIG
    for r in range(n):
        if small.partner[r] < 0:
            costs, limit, n_feasible = tree.pair_cost[r], row_price[r] + slack, 0
            for c in range(m):
                n_feasible += costs[c] - column_price[c] <= limit
            degree = small.first_arc[r + 1] - small.first_arc[r]
            # at most 60, so that the three terms of the score do not overlap
            n_mapped = min(degree - small.unmapped[r], 60)
            score = 4096 * n_feasible - 64 * n_mapped - min(degree, 60)
            if score < lowest:
                branch_row, lowest = r, score
    largest = find_largest_image(small, small.partner, n, branch_row)
    children, n_children, min_pruned = tree.children[d], 0, BIG
    for c in range(m):
        excess = tree.pair_cost[branch_row, c] - row_price[branch_row] - column_price[c]
        if excess > slack:
            min_pruned = min(min_pruned, excess)
        elif c > largest and (large.prior_twin[c] < 0 or large.partner[large.prior_twin[c]] >= 0):
            insert_child(children, excesses, n_children, c, excess)
            n_children += 1
    if min_pruned < BIG // 2:
        bound = tree.mapped_cost[d] + (tree.price_sum[d] + min_pruned + 1) // 2
        state[_MIN_PRUNED] = min(state[_MIN_PRUNED], bound)
    tree.branch_row[d], tree.n_children[d], tree.next_child[d] = branch_row, n_children, 0


@_jit
def _descend(small: Any, large: Any, tree: Any, d: int, u: int, tau: int) -> Any:
    """Map the chosen row of depth ``d`` to column ``u``.

    Returns whether the bound is at most the threshold; if not, the mapping is undone.
    """
    v, state = tree.branch_row[d], tree.state
    relabel = small.label[v] != large.label[u]
    tree.mapped_cost[d + 1] = tree.mapped_cost[d] + relabel + tree.fixed_cost[v, u] // 2
    _map_node(small, large, tree, v, u, 1)
    _inherit_prices(small, large, tree, d + 1, v, u)
    _assign_rows(small, large, tree, d + 1, 2 * (tau - tree.mapped_cost[d + 1]))
    bound = tree.mapped_cost[d + 1] + (tree.price_sum[d + 1] + 1) // 2
    if bound > tau:
        state[_MIN_PRUNED] = min(state[_MIN_PRUNED], bound)
        _map_node(small, large, tree, v, u, -1)
    return bound <= tau


@_jit
def verify(table: Any, g: int, query: Any, search: Any, tau: int, budget: int) -> Any:
    """Decide whether the edit distance is at most ``tau``.

    The distance is that of the query to graph ``g`` of the table. Returns (result, work). The
    result is the cost of a mapping, at most ``tau``, if one was found; a lower bound of the
    distance, above ``tau``, if there is none; or -1 if ``work`` exceeded ``budget``, in which case
    another call for the same graph and threshold continues the search. A unit of ``work`` is
    roughly a microsecond.
    """
    tree, state, work = search.tree, search.tree.state, 0
    n_query, n_object = query[1].shape[0], table[0][g + 1] - table[0][g]
    small = search.query if n_query <= n_object else search.object
    large = search.object if n_query <= n_object else search.query
    if state[OBJECT] != g or state[TAU] != tau:
        if state[IS_QUERY_LOADED] == 0:
            _load_graph(query, 0, search, search.query)
        _load_graph(table, g, search, search.object)
        state[OBJECT], state[TAU], state[IS_QUERY_LOADED] = g, tau, 0
        state[_N], state[_M] = min(n_query, n_object), max(n_query, n_object)
        state[_DEPTH], state[_IS_BRANCHED], state[_MIN_PRUNED] = 0, 0, BIG
        _init_root(small, large, tree)
        _assign_rows(small, large, tree, 0, 2 * tau)
        bound, work = (tree.price_sum[0] + 1) // 2, 1 + n_query
        if bound > tau:
            state[OBJECT], state[IS_QUERY_LOADED] = -1, 1
            return bound, work
    while True:
        d = state[_DEPTH]
        if state[_IS_BRANCHED] == 0:
            cost = _compute_assignment_cost(small, large, tree, d)
            if cost <= tau:
                state[OBJECT] = -1
                return cost, work
            _list_children(small, large, tree, d, tau)
            state[_IS_BRANCHED] = 1
        if work > budget:
            return -1, work
        k = tree.next_child[d]
        if k < tree.n_children[d]:
            tree.next_child[d], work = k + 1, work + 1 + n_query // 8
            if _descend(small, large, tree, d, tree.children[d, k], tau):
                state[_DEPTH], state[_IS_BRANCHED] = d + 1, 0
        elif d == 0:
            state[OBJECT], state[IS_QUERY_LOADED] = -1, 1
            return state[_MIN_PRUNED], work
        else:
            state[_DEPTH], v = d - 1, tree.branch_row[d - 1]
            _map_node(small, large, tree, v, small.partner[v], -1)
