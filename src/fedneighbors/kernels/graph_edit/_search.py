"""Comparison of the edit distances between a query and a table of graphs with a threshold.

Each pair is first searched by the tree search of ``_tree``; if that takes too long, by the branch
and bound of ``_dual``. Of equivalent mappings of interchangeable nodes (twins), only one is tried.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from fedneighbors.kernels.graph_edit._cells import DualSearch
from fedneighbors.kernels.graph_edit._dual import branch_and_bound, has_space
from fedneighbors.kernels.graph_edit._tree import (
    IS_QUERY_LOADED,
    OBJECT,
    TAU,
    GedGraph,
    GedSearch,
    GedTree,
    verify,
)

USES = {"graph_edit/tree": "051397a882123f70", "graph_edit/dual": "9ab6adf7b4a1bcd9"}


_jit: Any = njit(cache=True, nogil=True, _nrt=False)  # type: ignore[call-overload]


# Further indices of `GedTree.state`: work on this pair, stage of the search, and work after which
# the tree search gives up.
_SPENT, _STAGE, _PATIENCE = 9, 10, 11
# Nodes of the smaller graph from which on `patience` is used as it is; it doubles for every two
# nodes fewer.
_LARGE_SIZE = 24
_TREE, _HANDED_OVER, _DUAL = range(3)  # stages
_NO_LIMIT = 1 << 62

_MAX_SAVINGS = 1 << 22  # maximum size of `DualSearch.saving`, enough for pairs of about 90 nodes


class GraphTable(NamedTuple):
    """Graphs in contiguous arrays, which compiled code unpacks in this order.

    Parameters
    ----------
    first_node : int64 array of shape (n_graphs + 1,)
        First node of each graph.
    label : int32 array of shape (n_nodes,)
        Node labels, from 0.
    first_arc : int64 array of shape (n_nodes + 1,)
        First arc of each node; an edge is two arcs.
    target : int32 array of shape (n_arcs,)
        Node to which the arc leads, numbered within its graph; ascending for each node.
    edge_label : int32 array of shape (n_arcs,)
        Edge labels, from 0.
    prior_twin : int32 array of shape (n_nodes,)
        Result of :func:`find_twins`.
    """

    first_node: npt.NDArray[np.int64]
    label: npt.NDArray[np.int32]
    first_arc: npt.NDArray[np.int64]
    target: npt.NDArray[np.int32]
    edge_label: npt.NDArray[np.int32]
    prior_twin: npt.NDArray[np.int32]


@njit(cache=True, nogil=True)
def find_twins(first_node: Any, label: Any, first_arc: Any, target: Any, edge_label: Any) -> Any:
    """Return the last interchangeable node before each node, or -1.

    Two nodes of a graph are interchangeable (twins) if they have the same label and the same edges
    to all other nodes. There may be an edge between them.

    Parameters
    ----------
    first_node, label, first_arc, target, edge_label : arrays
        See :class:`GraphTable`.

    Returns
    -------
    int32 array of shape (n_nodes,)
        Nodes, numbered within their graph, or -1.
    """
    prior_twin = np.full(label.shape[0], -1, np.int32)
    for g in range(first_node.shape[0] - 1):
        low, high = first_node[g], first_node[g + 1]
        for a in range(low, high):
            for b in range(a - 1, low - 1, -1):
                if label[a] == label[b] and _are_twins(first_arc, target, edge_label, a, b, low):
                    prior_twin[a] = b - low
                    break
    return prior_twin


@njit(cache=True, nogil=True)
def _are_twins(first_arc: Any, target: Any, edge_label: Any, a: int, b: int, low: int) -> bool:
    i, last_i, j, last_j = first_arc[a], first_arc[a + 1], first_arc[b], first_arc[b + 1]
    if last_i - i != last_j - j:
        return False
    while True:
        if i < last_i and target[i] == b - low:
            i += 1
        if j < last_j and target[j] == a - low:
            j += 1
        if i == last_i or j == last_j:
            return bool(i == last_i and j == last_j)
        if target[i] != target[j] or edge_label[i] != edge_label[j]:
            return False
        i += 1
        j += 1


def new_search(table: GraphTable, query: GraphTable, *, patience: int = 200) -> GedSearch:
    """Allocate working memory for comparing one query with a table's graphs.

    Parameters
    ----------
    table, query : GraphTable
        The query is a table of one graph. Both use the same label numbers.
    patience : int
        Work, in units of roughly a microsecond, after which the tree search for a pair gives up and
        branch and bound with better bounds begins. It is increased if one of the graphs has fewer
        than 23 nodes, since tree search works well for small graphs. Does not affect the distances
        found.

    Returns
    -------
    GedSearch
        Working memory for :func:`verify_many`.
    """
    n = 1 + max(_max_size(table.first_node), _max_size(query.first_node))
    n_arcs = 1 + max(_max_size(part.first_arc[part.first_node]) for part in (table, query))
    node_map, _ = _number_labels(table.label, query.label)
    edge_map, n_edge_labels = _number_labels(table.edge_label, query.edge_label)
    edge_map[edge_map == 0] = n_edge_labels + 1  # 0 means no edge

    def new_graph() -> GedGraph:
        return GedGraph(
            _zeros(n), _zeros(n + 1), _zeros(n_arcs), _zeros(n_arcs), _zeros(n, n),
            _zeros(n), _zeros(n), _zeros(n), _zeros(n), _zeros(n_edge_labels + 2, n),
        )  # fmt: skip

    state = np.array([-1, 0, 0, 0, 0, 0, 0, n_edge_labels, 0, 0, 0, patience], np.int64)
    matrices = [_zeros(n, n) for _ in range(7)]
    vectors = [_zeros(n) for _ in range(8)]
    tree = GedTree(state, *matrices, *vectors)
    return GedSearch(new_graph(), new_graph(), tree, node_map, edge_map, _allocate_dual(n, n_arcs))


def verify_many(
    table: GraphTable,
    query: GraphTable,
    positions: npt.NDArray[np.int64],
    *,
    tau: int,
    lower: npt.NDArray[np.int32],
    upper: npt.NDArray[np.int32],
    search: GedSearch,
    start: int = 0,
    n_wanted: int | None = None,
    budget: int | None = None,
) -> tuple[int, int]:
    """Decide which graphs have a distance of at most a threshold.

    Parameters
    ----------
    table, query : GraphTable
        The query is a table of one graph.
    positions : int64 array
        Indices of graphs, which are processed in this order.
    tau : int
        The threshold.
    lower, upper : int32 arrays of shape (n_graphs,)
        Bounds of each distance, updated for processed graphs: ``upper`` becomes the cost of an edit
        script if that is at most ``tau``, or ``lower`` becomes a bound above ``tau``.
    search : GedSearch
        Result of `new_search` for this table and query.
    start : int
        Index in ``positions`` at which to begin.
    n_wanted : int, optional
        Number of graphs within the threshold after which to stop.
    budget : int, optional
        Maximum work, in units of roughly a microsecond. An interrupted verification is resumed if
        the next call begins with the same graph and threshold.

    Returns
    -------
    tuple of two int
        The index in ``positions`` at which to continue, and the number of graphs found to be within
        the threshold.
    """
    wanted = len(positions) + 1 if n_wanted is None else n_wanted
    limits = start, wanted, _NO_LIMIT if budget is None else budget
    place, n_found = _decide_many(table, query, positions, tau, limits, (lower, upper), search)
    return int(place), int(n_found)


@_jit
def _decide(table: Any, g: int, query: Any, search: Any, tau: int, budget: int) -> Any:
    """Decide whether the edit distance is at most ``tau``.

    Returns (result, work). The result is the cost of a mapping, at most ``tau``, if one was found;
    a lower bound of the distance, above ``tau``, if there is none; or -1 if the search was
    interrupted, in which case another call continues it.
    """
    state, work = search.tree.state, 0
    n_query, n_object = query[1].shape[0], table[0][g + 1] - table[0][g]
    n, m = min(n_query, n_object), max(n_query, n_object)
    if state[OBJECT] != g or state[TAU] != tau:
        state[_SPENT], state[_STAGE] = 0, _TREE
    small = search.query if n_query <= n_object else search.object
    large = search.object if n_query <= n_object else search.query
    if state[_STAGE] == _TREE:
        patience = state[_PATIENCE] << max(0, (_LARGE_SIZE - n) // 2)
        remaining = patience - state[_SPENT]
        result, work = verify(table, g, query, search, tau, min(budget, remaining))
        state[_SPENT] += work
        if result >= 0 or (work > budget and state[_SPENT] <= patience):
            return result, work
        if not has_space(search.dual, n, m, small.first_arc[n], large.first_arc[m]):
            state[_SPENT] = -(1 << 60)
            return -1, work
        state[_STAGE], state[IS_QUERY_LOADED] = _HANDED_OVER, 0
        if work > budget:
            return -1, work
    is_new, state[_STAGE] = state[_STAGE] == _HANDED_OVER, _DUAL
    result, more = branch_and_bound(small, large, search.dual, n, m, tau, budget - work, is_new)
    if result >= 0:
        state[OBJECT] = -1
    return result, work + more


@njit(cache=True, nogil=True)
def _decide_many(
    table: Any, query: Any, positions: Any, tau: int, limits: Any, bounds: Any, search: Any
) -> Any:
    """Run the loop of :func:`verify_many`."""
    (start, n_wanted, budget), (lower, upper) = limits, bounds
    n_found, work = 0, 0
    for i in range(start, positions.shape[0]):
        g = positions[i]
        if lower[g] <= tau < upper[g]:
            result, spent = _decide(table, g, query, search, tau, budget - work)
            work += spent
            while result < 0 and work <= budget:
                result, spent = _decide(table, g, query, search, tau, budget - work)
                work += spent
            if result < 0:
                return i, n_found
            bound = upper if result <= tau else lower
            bound[g] = result
        n_found += upper[g] <= tau
        if n_found == n_wanted:
            return i + 1, n_found
    return positions.shape[0], n_found


def _allocate_dual(n: int, n_arcs: int) -> DualSearch:
    matrices, vectors = [_zeros(n + 2, n) for _ in range(5)], [_zeros(n + 2) for _ in range(4)]
    return DualSearch(
        np.zeros(9, np.int64), _zeros(_MAX_SAVINGS), _zeros(_MAX_SAVINGS // 2),
        _zeros(2, n_arcs), _zeros(2, n_arcs), _zeros(n), _zeros(n), _zeros(n_arcs),
        _zeros(4, n), _zeros(7, n), *matrices, *vectors,
    )  # fmt: skip


def _zeros(*shape: int) -> npt.NDArray[np.int32]:
    return np.zeros(shape, np.int32)


def _max_size(starts: npt.NDArray[np.int64]) -> int:
    return int(np.diff(starts).max(initial=0))


def _number_labels(
    labels: npt.NDArray[np.int32], query_labels: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.int32], int]:
    """Map the query's labels to 1, 2, ..., all others to 0.

    Returns the number of each label and the count of the query's labels.
    """
    numbers = _zeros(1 + max(int(labels.max(initial=0)), int(query_labels.max(initial=0))))
    distinct = np.unique(query_labels)
    numbers[distinct] = np.arange(1, len(distinct) + 1)
    return numbers, len(distinct)
