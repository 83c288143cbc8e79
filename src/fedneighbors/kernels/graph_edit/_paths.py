"""Steps shared by both graph searches: shortest augmenting paths and the order of branches."""

from typing import Any

import numpy as np
from numba import njit

_jit_inline: Any = njit(cache=True, nogil=True, forceinline=True, _nrt=False)  # type: ignore[call-overload]

BIG: Any = np.int32(1 << 28)  # above any cost; four times this still fits into int32


@_jit_inline
def relax(ways: Any, line: Any, column: Any, m: int, i: int, offset: int) -> Any:
    """Relax the paths to ``m`` columns through row ``i``.

    Returns the least distance of a column that was not passed yet.
    """
    distance, through, passed = ways
    least = 2 * BIG
    for c in range(m):
        way = offset + line[c] - column[c]
        through[c] = i if way < distance[c] else through[c]
        distance[c] = min(way, distance[c])
        least = min(least, distance[c] + passed[c])
    return least


@_jit_inline
def nearest_column(ways: Any, at_column: Any, m: int, least: int) -> Any:
    """Return a column at the least distance.

    This is the first such column that is matched to no row; if there is none, the last one.
    """
    distance, _, passed = ways
    nearest = -1
    for c in range(m):
        if distance[c] + passed[c] == least:
            nearest = c
            if at_column[c] < 0:
                break
    return nearest


@_jit_inline
def match_along(through: Any, at_row: Any, at_column: Any, loose: int, sink: int) -> None:
    """Match the rows and columns along a path from a loose row."""
    i = -1
    while i != loose:
        i, c = through[sink], sink
        at_column[c], sink, at_row[i] = i, at_row[i], c


@_jit_inline
def latest_image(side: Any, image: Any, n: int, chosen: int) -> Any:
    """Return the largest image of the twins of a node, or -1.

    Of two interchangeable nodes (twins), the one mapped later gets the larger image, which avoids
    equivalent branches.
    """
    floor = -1
    for w in range(n):
        if side.kin[w] == side.kin[chosen]:
            floor = max(floor, image[w])
    return floor


@_jit_inline
def insert_child(children: Any, excess: Any, n_children: int, c: int, above: int) -> None:
    """Insert a column into the children in ascending order of excess.

    The excess is the cost above the least; that of the new column is ``above``.
    """
    place = n_children
    while place > 0 and excess[place - 1] > above:
        excess[place], children[place] = excess[place - 1], children[place - 1]
        place -= 1
    excess[place], children[place] = above, c
