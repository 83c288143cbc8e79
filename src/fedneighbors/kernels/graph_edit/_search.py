"""Tables of graphs and the comparison of graph edit distances with a threshold.

Pairs are decided in order, by tree search, or by branch and bound if the tree search takes too
long. Of interchangeable nodes of a graph (twins), the tree search tries only one.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from fedneighbors.kernels.graph_edit._cells import DualRoom
from fedneighbors.kernels.graph_edit._dual import branch_and_bound, fits
from fedneighbors.kernels.graph_edit._tree import (
    LOADED,
    OBJECT,
    TAU,
    GedSearch,
    GedSide,
    GedTree,
    verify,
)

USES = {"graph_edit/tree": "ca4697d0c43a2e04", "graph_edit/dual": "a89a5925fdfd49a0"}


_jit: Any = njit(cache=True, nogil=True, _nrt=False)  # type: ignore[call-overload]


# Indices of `GedTree.head` after those of the tree search: work on this pair, stage of the search,
# and the work after which the tree search gives up.
_SPENT, _STAGE, _PATIENCE = 9, 10, 11
# Nodes of the smaller graph. The patience with the tree search doubles for every two nodes fewer.
_LARGE = 24
_TREE, _HANDED_OVER, _DUAL = range(3)  # stages
_NO_LIMIT = 1 << 62

_MAX_SAVINGS = 1 << 22  # maximum number of savings in a search, enough for pairs of about 90 nodes


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
    end : int32 array of shape (n_arcs,)
        Node to which the arc leads, numbered within its graph; ascending for each node.
    bond : int32 array of shape (n_arcs,)
        Label of the edge, from 0.
    twin : int32 array of shape (n_nodes,)
        Previous interchangeable node, numbered within its graph, or -1. See :func:`find_twins`.
    """

    first_node: npt.NDArray[np.int64]
    label: npt.NDArray[np.int32]
    first_arc: npt.NDArray[np.int64]
    end: npt.NDArray[np.int32]
    bond: npt.NDArray[np.int32]
    twin: npt.NDArray[np.int32]


@njit(cache=True, nogil=True)
def find_twins(first_node: Any, label: Any, first_arc: Any, end: Any, bond: Any) -> Any:
    """Return the previous interchangeable node of each node, or -1.

    Two nodes of a graph are interchangeable (twins) if they have the same label and the same edges
    to all other nodes. There may be an edge between them.

    Parameters
    ----------
    first_node, label, first_arc, end, bond : arrays
        See :class:`GraphTable`.

    Returns
    -------
    int32 array of shape (n_nodes,)
        Nodes, numbered within their graph; -1 for a node without a twin before it.
    """
    twin = np.full(label.shape[0], -1, np.int32)
    for g in range(first_node.shape[0] - 1):
        low, high = first_node[g], first_node[g + 1]
        for a in range(low, high):
            for b in range(a - 1, low - 1, -1):
                if label[a] == label[b] and _are_twins(first_arc, end, bond, a, b, low):
                    twin[a] = b - low
                    break
    return twin


@njit(cache=True, nogil=True)
def _are_twins(first_arc: Any, end: Any, bond: Any, a: int, b: int, low: int) -> bool:
    i, last_i, j, last_j = first_arc[a], first_arc[a + 1], first_arc[b], first_arc[b + 1]
    if last_i - i != last_j - j:
        return False
    while True:
        if i < last_i and end[i] == b - low:
            i += 1
        if j < last_j and end[j] == a - low:
            j += 1
        if i == last_i or j == last_j:
            return bool(i == last_i and j == last_j)
        if end[i] != end[j] or bond[i] != bond[j]:
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
        branch and bound with better bounds begins. It is increased for graphs of fewer than 24
        nodes, for which the tree search works well. Does not affect the distances found.

    Returns
    -------
    GedSearch
        Working memory for :func:`verify_many`.
    """
    n = 1 + max(_largest(table.first_node), _largest(query.first_node))
    n_arcs = 1 + max(_largest(part.first_arc[part.first_node]) for part in (table, query))
    kinds, _ = _number_labels(table.label, query.label)
    bonds, n_bonds = _number_labels(table.bond, query.bond)
    bonds[bonds == 0] = n_bonds + 1  # 0 means no edge

    def side() -> GedSide:
        return GedSide(
            _grid(n), _grid(n + 1), _grid(n_arcs), _grid(n_arcs), _grid(n, n),
            _grid(n), _grid(n), _grid(n), _grid(n), _grid(n_bonds + 2, n),
        )  # fmt: skip

    head = np.array([-1, 0, 0, 0, 0, 0, 0, n_bonds, 0, 0, 0, patience], np.int64)
    grids = [_grid(n, n) for _ in range(7)]
    lines = [_grid(n) for _ in range(8)]
    tree = GedTree(head, *grids, *lines)
    return GedSearch(side(), side(), tree, kinds, bonds, _allocate_dual(n, n_arcs))


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
        Bounds of each distance, updated for processed graphs: either ``upper`` becomes the cost of
        an edit script of at most ``tau``, or ``lower`` becomes a bound above ``tau``.
    search : GedSearch
        Result of `new_search` for this table and query.
    start : int
        Index in ``positions`` at which to begin.
    n_wanted : int, optional
        Stop when this many graphs are within the threshold.
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

    Returns (result, work). The result is the cost of a map if that is at most ``tau``, a lower
    bound above ``tau``, or -1 if the search was interrupted; another call then continues it.
    """
    head, work = search.tree.head, 0
    n_own, n_object = query[1].shape[0], table[0][g + 1] - table[0][g]
    n, m = min(n_own, n_object), max(n_own, n_object)
    if head[OBJECT] != g or head[TAU] != tau:
        head[_SPENT], head[_STAGE] = 0, _TREE
    small = search.query if n_own <= n_object else search.object
    large = search.object if n_own <= n_object else search.query
    if head[_STAGE] == _TREE:
        patience = head[_PATIENCE] << max(0, (_LARGE - n) // 2)
        left = patience - head[_SPENT]
        result, work = verify(table, g, query, search, tau, min(budget, left))
        head[_SPENT] += work
        if result >= 0 or (work > budget and head[_SPENT] <= patience):
            return result, work
        if not fits(search.dual, n, m, small.start[n], large.start[m]):
            head[_SPENT] = -(1 << 60)
            return -1, work
        head[_STAGE], head[LOADED] = _HANDED_OVER, 0
        if work > budget:
            return -1, work
    fresh, head[_STAGE] = head[_STAGE] == _HANDED_OVER, _DUAL
    result, more = branch_and_bound(small, large, search.dual, n, m, tau, budget - work, fresh)
    if result >= 0:
        head[OBJECT] = -1
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


def _allocate_dual(n: int, n_arcs: int) -> DualRoom:
    grids, lines = [_grid(n + 2, n) for _ in range(5)], [_grid(n + 2) for _ in range(4)]
    return DualRoom(
        np.zeros(9, np.int64), _grid(_MAX_SAVINGS), _grid(_MAX_SAVINGS // 2),
        _grid(2, n_arcs), _grid(2, n_arcs), _grid(n), _grid(n), _grid(n_arcs),
        _grid(4, n), _grid(7, n), *grids, *lines,
    )  # fmt: skip


def _grid(*shape: int) -> npt.NDArray[np.int32]:
    return np.zeros(shape, np.int32)


def _largest(starts: npt.NDArray[np.int64]) -> int:
    return int(np.diff(starts).max(initial=0))


def _number_labels(
    labels: npt.NDArray[np.int32], own: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.int32], int]:
    """Map the query's labels to 1, 2, ..., others to 0.

    Returns the number of each label and the count of the query's labels.
    """
    names = _grid(1 + max(int(labels.max(initial=0)), int(own.max(initial=0))))
    distinct = np.unique(own)
    names[distinct] = np.arange(1, len(distinct) + 1)
    return names, len(distinct)
