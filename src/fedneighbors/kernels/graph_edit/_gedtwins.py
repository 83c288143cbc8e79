"""Nodes of a graph that can be exchanged: a tree search needs to try only one of them."""

from typing import Any

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def find_twins(first_node: Any, label: Any, first_arc: Any, end: Any, bond: Any) -> Any:
    """Return for each node the one before it that it can be exchanged with, -1 if none.

    Two nodes of a graph are twins if they have the same label and the same edges to all others,
    whether or not an edge joins them.

    Parameters
    ----------
    first_node, label, first_arc, end, bond : arrays
        See :class:`~fedneighbors.kernels.graph_edit._ged.GraphTable`.

    Returns
    -------
    int32 array of shape (n_nodes,)
        Nodes within their graph.
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
