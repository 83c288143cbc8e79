"""Decides whether graph edit distances are within a threshold; makes the room for doing so."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedneighbors.kernels.graph_edit._ged import GedSearch, GedSide, GedTree
from fedneighbors.kernels.graph_edit._gedcells import DualRoom
from fedneighbors.kernels.graph_edit._geddecide import decide_many


class GraphTable(NamedTuple):
    """Graphs, one after the other. Compiled code knows the arrays by their order.

    Parameters
    ----------
    first_node : int64 array of shape (n_graphs + 1,)
        Where the nodes of each graph begin.
    label : int32 array of shape (n_nodes,)
        Labels, from 0.
    first_arc : int64 array of shape (n_nodes + 1,)
        Where the arcs of each node begin; an edge is two arcs.
    end : int32 array of shape (n_arcs,)
        Node within its graph that the arc leads to, ascending for each node.
    bond : int32 array of shape (n_arcs,)
        Label of the edge, from 0.
    twin : int32 array of shape (n_nodes,)
        The node before, within its graph, that can be exchanged with this one; -1 if none. See
        :func:`~fedneighbors.kernels.graph_edit._gedtwins.find_twins`.
    """

    first_node: npt.NDArray[np.int64]
    label: npt.NDArray[np.int32]
    first_arc: npt.NDArray[np.int64]
    end: npt.NDArray[np.int32]
    bond: npt.NDArray[np.int32]
    twin: npt.NDArray[np.int32]


def new_search(table: GraphTable, query: GraphTable, *, patience: int = 200) -> GedSearch:
    """Return room for the pairs of one query with the graphs of a table.

    Parameters
    ----------
    table, query : GraphTable
        The query is a table of one graph. Labels of both count alike.
    patience : int
        Work, roughly a microsecond each, after which the tree search for a pair gives up and
        branch and bound with better bounds begins; more for graphs of less than 24 nodes, where
        the tree search does well. The distances found do not depend on it.
    """
    n = 1 + max(_largest(table.first_node), _largest(query.first_node))
    n_arcs = 1 + max(_largest(part.first_arc[part.first_node]) for part in (table, query))
    kinds, _ = _names(table.label, query.label)
    bonds, n_bonds = _names(table.bond, query.bond)
    bonds[bonds == 0] = n_bonds + 1  # 0 stands for no edge

    def side() -> GedSide:
        return GedSide(
            _grid(n), _grid(n + 1), _grid(n_arcs), _grid(n_arcs), _grid(n, n),
            _grid(n), _grid(n), _grid(n), _grid(n), _grid(n_bonds + 2, n),
        )  # fmt: skip

    head = np.array([-1, 0, 0, 0, 0, 0, 0, n_bonds, 0, 0, 0, patience], np.int64)
    grids = [_grid(n, n) for _ in range(7)]
    lines = [_grid(n) for _ in range(8)]
    tree = GedTree(head, *grids, *lines)
    return GedSearch(side(), side(), tree, kinds, bonds, _new_dual(n, n_arcs))


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
    """Decide for graphs, in the order given, whether their distance is at most a threshold.

    Parameters
    ----------
    table, query : GraphTable
        The query is a table of one graph.
    positions : int64 array
        Graphs to decide on.
    tau : int
        The threshold.
    lower, upper : int32 arrays of shape (n_graphs,)
        Bounds of each distance. Those decided on are improved: ``upper`` to the cost of some
        edits, at most ``tau``, or ``lower`` to more than ``tau``.
    search : GedSearch
        Room from `new_search` for this table and query.
    start : int
        Place in ``positions`` to begin at.
    n_wanted : int, optional
        Stop when so many lie within the threshold.
    budget : int, optional
        Work after which to stop, roughly a microsecond each; the verification under way goes on
        at the next call if that begins with the same graph and threshold.

    Returns
    -------
    tuple of two int
        The place in ``positions`` to go on at, and how many were found within the threshold.
    """
    wanted = len(positions) + 1 if n_wanted is None else n_wanted
    place, n_found = decide_many(
        table, query, positions, start, tau, wanted, _NO_LIMIT if budget is None else budget,
        lower, upper, search,
    )  # fmt: skip
    return int(place), int(n_found)


_NO_LIMIT = 1 << 62
_ROOM = 1 << 22  # savings that a search may hold: pairs of some 90 nodes


def _new_dual(n: int, n_arcs: int) -> DualRoom:
    grids, lines = [_grid(n + 2, n) for _ in range(5)], [_grid(n + 2) for _ in range(4)]
    return DualRoom(
        np.zeros(9, np.int64), _grid(_ROOM), _grid(_ROOM // 2), _grid(2, n_arcs), _grid(2, n_arcs),
        _grid(n), _grid(n), _grid(n_arcs), _grid(4, n), _grid(7, n), *grids, *lines,
    )  # fmt: skip


def _grid(*shape: int) -> npt.NDArray[np.int32]:
    return np.zeros(shape, np.int32)


def _largest(starts: npt.NDArray[np.int64]) -> int:
    return int(np.diff(starts).max(initial=0))


def _names(
    labels: npt.NDArray[np.int32], own: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.int32], int]:
    """Return for each label its number among those of the query, from 1, or 0."""
    names = _grid(1 + max(int(labels.max(initial=0)), int(own.max(initial=0))))
    distinct = np.unique(own)
    names[distinct] = np.arange(1, len(distinct) + 1)
    return names, len(distinct)
