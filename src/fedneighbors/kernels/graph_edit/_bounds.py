"""Lower bounds of graph edit distances from a query to all graphs of a table."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

_BLOCK = 2048  # graphs per block: their four sums fit into the first-level cache


@njit(cache=True, nogil=True)
def _add_min(sums: Any, counts: Any, query_count: Any) -> None:
    for i in range(sums.shape[0]):
        sums[i] += min(query_count, np.int32(counts[i]))


@njit(cache=True, nogil=True)
def _add_excess(excess: Any, deficit: Any, counts: Any, query_count: Any) -> None:
    for i in range(excess.shape[0]):
        gap = query_count - np.int32(counts[i])
        excess[i] += max(gap, 0)
        deficit[i] += max(-gap, 0)


class Counts(NamedTuple):
    """Sizes of graphs and counts of their node labels, edge labels and degrees.

    Parameters
    ----------
    n_nodes, n_edges : int32 arrays of shape (n_graphs,)
        Sizes.
    labels : uint16 array of shape (n_node_labels, n_graphs)
        Number of nodes with each label.
    edge_labels : uint16 array of shape (n_edge_labels, n_graphs)
        Number of edges with each label.
    degrees : uint16 array of shape (n_degrees, n_graphs)
        Row t contains the number of nodes with a degree above t.
    """

    n_nodes: npt.NDArray[np.int32]
    n_edges: npt.NDArray[np.int32]
    labels: npt.NDArray[np.uint16]
    edge_labels: npt.NDArray[np.uint16]
    degrees: npt.NDArray[np.uint16]


@njit(cache=True, nogil=True)
def table_bounds(table: Any, query: Any) -> Any:
    """Bound each distance by counts of node labels, edge labels and degrees.

    Parameters
    ----------
    table : Counts
        Counts of the graphs.
    query : Counts
        Counts of one graph. Its arrays have at least the rows of the table's; further rows of
        labels, which no graph of the table has, are ignored. The degrees of both have the same
        number of rows.

    Returns
    -------
    int32 array of shape (n_graphs,)
        Lower bounds.

    Notes
    -----
    Consider edit scripts that turn the query into a graph. Let ``common`` be the size of the
    intersection of two multisets of labels. The number of node edits is at least the larger number
    of nodes minus the common node labels.

    Let D be the number of deleted and I the number of inserted edges. With both degree sequences
    sorted, D is at least half the sum of the query's excess degrees, and I at least half that of
    its missing degrees. At most ``common`` of the edges that are neither deleted nor inserted keep
    their label; the others are relabelled. The number of edge edits is therefore at least each of
    D + I, D + (edges of the graph) - common, I + (edges of the query) - common, and the larger
    number of edges minus common.
    """
    n_nodes, n_edges, labels, edge_labels, degrees = table
    query_nodes, query_edges = query.n_nodes[0], query.n_edges[0]
    bounds, sums = np.empty(n_nodes.shape[0], np.int32), np.empty((4, _BLOCK), np.int32)
    for low in range(0, n_nodes.shape[0], _BLOCK):
        high = min(low + _BLOCK, n_nodes.shape[0])
        common_nodes, common_edges, excess, deficit = sums[:, : high - low]
        sums[:] = 0
        for k in range(labels.shape[0]):
            if query.labels[k, 0] > 0:
                _add_min(common_nodes, labels[k, low:high], np.int32(query.labels[k, 0]))
        for k in range(edge_labels.shape[0]):
            if query.edge_labels[k, 0] > 0:
                _add_min(common_edges, edge_labels[k, low:high], np.int32(query.edge_labels[k, 0]))
        for k in range(degrees.shape[0]):
            _add_excess(excess, deficit, degrees[k, low:high], np.int32(query.degrees[k, 0]))
        for i in range(high - low):
            edges, common = n_edges[low + i], common_edges[i]
            deleted, inserted = (excess[i] + 1) // 2, (deficit[i] + 1) // 2
            edits = max(max(query_edges, edges) - common, deleted + inserted)
            edits = max(edits, deleted + edges - common, inserted + query_edges - common)
            bounds[low + i] = max(query_nodes, n_nodes[low + i]) - common_nodes[i] + edits
    return bounds
