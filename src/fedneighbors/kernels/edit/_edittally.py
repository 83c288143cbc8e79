"""The running k-th smallest of a growing collection of small integers, in constant time."""

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

LIMIT, WITHIN, WANTED = 0, 1, 2
"""Places in the state: values above the limit are of no interest; how many lie within; k."""


def begin(tally: npt.NDArray[np.int64], *, limit: int, wanted: int) -> npt.NDArray[np.int64]:
    """Return the state for the values counted so far.

    Parameters
    ----------
    tally : int64 array of shape (n,)
        How often each value 0, 1, ..., n - 1 came.
    limit : int
        Values above it are of no interest; from -1 to n - 1.
    wanted : int
        The k, 1 or more.

    Returns
    -------
    int64 array of shape (3,)
        The limit is lowered to the k-th smallest value where k are known within it.
    """
    upto = np.cumsum(tally[: limit + 1])
    if limit >= 0 and upto[-1] >= wanted:
        limit = int(np.searchsorted(upto, wanted))
    within = int(upto[limit]) if limit >= 0 else 0
    return np.array([limit, within, wanted], np.int64)


@njit(cache=True, nogil=True)
def admit(tally: Any, state: Any, value: Any) -> Any:
    """Count one value, and lower the limit in ``state`` if the k-th smallest fell."""
    tally[value] += 1
    if value > state[0]:
        return
    state[1] += 1
    while state[1] - tally[state[0]] >= state[2]:
        state[1] -= tally[state[0]]
        state[0] -= 1
