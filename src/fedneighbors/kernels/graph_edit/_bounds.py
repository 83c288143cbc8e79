"""Lower bounds of graph edit distances from a query to all graphs of a table."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

_BLOCK = 2048  # graphs in a block, whose four sums fit into the first-level cache


@njit(cache=True, nogil=True)
def _add_common(sums: Any, counts: Any, own: Any) -> None:
    for i in range(sums.shape[0]):
        sums[i] += min(own, np.int32(counts[i]))


@njit(cache=True, nogil=True)
def _add_excess(more: Any, fewer: Any, counts: Any, own: Any) -> None:
    for i in range(more.shape[0]):
        gap = own - np.int32(counts[i])
        more[i] += max(gap, 0)
        fewer[i] += max(-gap, 0)


class Counts(NamedTuple):
    """Sizes of graphs and counts of their node labels, edge labels and degrees.

    Parameters
    ----------
    n_nodes, n_edges : int32 arrays of shape (n_graphs,)
        Sizes.
    labels : uint16 array of shape (n_labels, n_graphs)
        Number of nodes with each label.
    bonds : uint16 array of shape (n_bonds, n_graphs)
        Number of edges with each label.
    degrees : uint16 array of shape (n_degrees, n_graphs)
        Row t contains the number of nodes with a degree above t.
    """

    n_nodes: npt.NDArray[np.int32]
    n_edges: npt.NDArray[np.int32]
    labels: npt.NDArray[np.uint16]
    bonds: npt.NDArray[np.uint16]
    degrees: npt.NDArray[np.uint16]


@njit(cache=True, nogil=True)
def table_bounds(table: Any, query: Any) -> Any:
    """Bound each distance by multisets of labels, edge labels and degrees.

    Parameters
    ----------
    table : Counts
        Counts of the graphs.
    query : Counts
        Counts of one graph, with the same rows as the table. Labels that no graph of the table has
        are omitted. Degrees above those in the table are counted in additional rows, in which all
        graphs of the table have zeros.

    Returns
    -------
    int32 array of shape (n_graphs,)
        Lower bounds.

    Notes
    -----
    Every edit script relabels or inserts at least as many nodes as have no counterpart with the
    same label. Let D be the number of deleted and I the number of inserted edges. With both degree
    sequences sorted, D is at least half the query's excess in degrees, and I at least half its
    deficit. Kept edges are relabelled, except for common ones. Hence the number of edge edits is at
    least each of D + I, D + edges - common, I + own edges - common, and the larger number of edges
    - common.
    """
    n_nodes, n_edges, labels, bonds, degrees = table
    own_nodes, own_edges = query.n_nodes[0], query.n_edges[0]
    bounds, sums = np.empty(n_nodes.shape[0], np.int32), np.empty((4, _BLOCK), np.int32)
    for low in range(0, n_nodes.shape[0], _BLOCK):
        high = min(low + _BLOCK, n_nodes.shape[0])
        common, same, more, fewer = sums[:, : high - low]
        sums[:] = 0
        for k in range(labels.shape[0]):
            if query.labels[k, 0] > 0:
                _add_common(common, labels[k, low:high], np.int32(query.labels[k, 0]))
        for k in range(bonds.shape[0]):
            if query.bonds[k, 0] > 0:
                _add_common(same, bonds[k, low:high], np.int32(query.bonds[k, 0]))
        for k in range(degrees.shape[0]):
            _add_excess(more, fewer, degrees[k, low:high], np.int32(query.degrees[k, 0]))
        for i in range(high - low):
            edges = n_edges[low + i]
            deleted, inserted = (more[i] + 1) // 2, (fewer[i] + 1) // 2
            edits = max(max(own_edges, edges) - same[i], deleted + inserted)
            edits = max(edits, deleted + edges - same[i], inserted + own_edges - same[i])
            bounds[low + i] = max(own_nodes, n_nodes[low + i]) - common[i] + edits
    return bounds
