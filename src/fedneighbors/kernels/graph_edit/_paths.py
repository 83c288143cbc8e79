"""Functions shared by both graph searches: shortest augmenting paths and ordering of branches."""

from typing import Any

import numpy as np
from numba import njit

_jit_inline: Any = njit(cache=True, nogil=True, forceinline=True, _nrt=False)  # type: ignore[call-overload]

BIG: Any = np.int32(1 << 28)  # above any cost; four times this still fits into int32


@_jit_inline
def relax(paths: Any, costs: Any, column_price: Any, m: int, i: int, offset: int) -> Any:
    """Relax the paths to ``m`` columns through row ``i``.

    Returns the least distance of a column that is not blocked.
    """
    distance, predecessor, blocked = paths
    least = 2 * BIG
    for c in range(m):
        length = offset + costs[c] - column_price[c]
        predecessor[c] = i if length < distance[c] else predecessor[c]
        distance[c] = min(length, distance[c])
        least = min(least, distance[c] + blocked[c])
    return least


@_jit_inline
def find_nearest_column(paths: Any, row_of: Any, m: int, least: int) -> Any:
    """Return an unblocked column at the least distance.

    This is the first such column without a row; if all have a row, the last such column.
    """
    distance, _, blocked = paths
    nearest = -1
    for c in range(m):
        if distance[c] + blocked[c] == least:
            nearest = c
            if row_of[c] < 0:
                break
    return nearest


@_jit_inline
def match_path(predecessor: Any, column_of: Any, row_of: Any, start: int, sink: int) -> None:
    """Match rows and columns along a path from an unassigned row."""
    i = -1
    while i != start:
        i, c = predecessor[sink], sink
        row_of[c], sink, column_of[i] = i, column_of[i], c


@_jit_inline
def find_largest_image(graph: Any, images: Any, n: int, v: int) -> Any:
    """Return the largest image of a node's twins, or -1.

    Twins are interchangeable nodes. Of two twins, the one that is mapped later gets the larger
    image, so that equivalent branches are not searched.
    """
    largest = -1
    for w in range(n):
        if graph.first_twin[w] == graph.first_twin[v]:
            largest = max(largest, images[w])
    return largest


@_jit_inline
def insert_child(children: Any, excesses: Any, n_children: int, column: int, excess: int) -> None:
    """Insert a column into the children, which ascend by excess.

    The excess of a column is its reduced cost.
    """
    place = n_children
    while place > 0 and excesses[place - 1] > excess:
        excesses[place], children[place] = excesses[place - 1], children[place - 1]
        place -= 1
    excesses[place], children[place] = excess, column
