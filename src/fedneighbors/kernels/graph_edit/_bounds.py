"""Lower bounds of the graph edit distance of a query to every graph of a table, in one pass."""

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

_BLOCK = 2048  # graphs at a time: their six running sums stay in the first-level cache


@njit(cache=True, nogil=True)
def _add_common(sums: Any, counts: Any, own: int) -> None:
    for i in range(sums.shape[0]):
        sums[i] += min(own, np.int32(counts[i]))


@njit(cache=True, nogil=True)
def _add_excess(more: Any, fewer: Any, counts: Any, own: int) -> None:
    for i in range(more.shape[0]):
        gap = own - np.int32(counts[i])
        more[i] += max(gap, 0)
        fewer[i] += max(-gap, 0)


@njit(cache=True, nogil=True)
def _bounds(
    n_nodes: Any, n_edges: Any, labels: Any, bonds: Any, degrees: Any,
    own_nodes: int, own_edges: int, own_labels: Any, own_bonds: Any, own_degrees: Any, bounds: Any,
) -> None:  # fmt: skip
    sums = np.empty((4, _BLOCK), np.int32)
    for low in range(0, n_nodes.shape[0], _BLOCK):
        high = min(low + _BLOCK, n_nodes.shape[0])
        common, same, more, fewer = sums[:, : high - low]
        sums[:] = 0
        for k in range(labels.shape[0]):
            if own_labels[k] > 0:
                _add_common(common, labels[k, low:high], own_labels[k])
        for k in range(bonds.shape[0]):
            if own_bonds[k] > 0:
                _add_common(same, bonds[k, low:high], own_bonds[k])
        for k in range(degrees.shape[0]):
            _add_excess(more, fewer, degrees[k, low:high], own_degrees[k])
        for i in range(high - low):
            edges = n_edges[low + i]
            deleted, inserted = (more[i] + 1) // 2, (fewer[i] + 1) // 2
            edits = max(max(own_edges, edges) - same[i], deleted + inserted)
            edits = max(edits, deleted + edges - same[i], inserted + own_edges - same[i])
            bounds[low + i] = max(own_nodes, n_nodes[low + i]) - common[i] + edits


def table_bounds(
    n_nodes: npt.NDArray[np.int32],
    n_edges: npt.NDArray[np.int32],
    labels: npt.NDArray[np.uint16],
    bonds: npt.NDArray[np.uint16],
    degrees: npt.NDArray[np.uint16],
    *,
    own_nodes: int,
    own_edges: int,
    own_labels: npt.NDArray[np.int32],
    own_bonds: npt.NDArray[np.int32],
    own_degrees: npt.NDArray[np.int32],
) -> npt.NDArray[np.int32]:
    """Bound each distance by the multisets of labels, of edge labels and of degrees.

    Parameters
    ----------
    n_nodes, n_edges : int32 arrays of shape (n_graphs,)
        Sizes.
    labels : uint16 array of shape (n_labels, n_graphs)
        How many nodes have each label.
    bonds : uint16 array of shape (n_bonds, n_graphs)
        How many edges have each label.
    degrees : uint16 array of shape (n_degrees, n_graphs)
        Row t: how many nodes have a degree of more than t.
    own_nodes, own_edges, own_labels, own_bonds, own_degrees : int or int32 array
        The same of the query: labels that no graph of the table has are left out, and a degree
        above the table's counts in rows of its own, where every graph has zero.

    Returns
    -------
    int32 array of shape (n_graphs,)
        Every edit script relabels or inserts at least as many nodes as have no counterpart by
        label. With D deleted, I inserted edges, D is at least half the degrees that the query has
        in excess (both sorted), I half those that it lacks, and the edges kept are relabelled but
        for those in common: the edge edits are at least each of D + I, D + edges - common,
        I + own edges - common, and the larger number of edges - common.
    """
    bounds = np.empty(n_nodes.shape[0], np.int32)
    _bounds(
        n_nodes, n_edges, labels, bonds, degrees,
        own_nodes, own_edges, own_labels, own_bonds, own_degrees, bounds,
    )  # fmt: skip
    return bounds
