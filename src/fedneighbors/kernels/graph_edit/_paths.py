"""Steps of a shortest augmenting path, which both searches take for a row without a column."""

from typing import Any

import numpy as np
from numba import njit

_jit_inline: Any = njit(cache=True, nogil=True, forceinline=True, _nrt=False)  # type: ignore[call-overload]

BIG: Any = np.int32(1 << 28)  # above any cost, and four times it still fits int32


@_jit_inline
def relax(ways: Any, line: Any, column: Any, m: int, i: int, offset: int) -> Any:
    """Shorten the ways to ``m`` columns by those through row ``i``; return the least open one."""
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
    """Return a column at the least distance, the first without a row if there is one."""
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
    """Match the rows and columns on the way from a loose row to a column."""
    i = -1
    while i != loose:
        i, c = through[sink], sink
        at_column[c], sink, at_row[i] = i, at_row[i], c
