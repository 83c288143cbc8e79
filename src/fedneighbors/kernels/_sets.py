"""Common elements of sets and a query, and their similarity in levels."""

from typing import Any

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def count_holders(
    holders: Any, starts: Any, elements: Any, place: Any, common: Any, budget: int
) -> None:
    """Count the elements of a query in the sets that contain them.

    Parameters
    ----------
    holders : int32 array
        Positions of the sets that contain each element, element after element.
    starts : int64 array of shape (n_elements + 1,)
        First index of each element in ``holders``, and its length.
    elements : int64 array
        Elements of the query, distinct.
    place : int64 array of shape (2,)
        Index of the next element, and the number of its sets that are counted; zeros at first,
        updated.
    common : int32 array of shape (n_sets,)
        Number of common elements of each set, updated.
    budget : int
        Maximum number of sets to count, 1 or more.
    """
    while place[0] < elements.size and budget > 0:
        element = elements[place[0]]
        first = starts[element] + place[1]
        end = min(starts[element + 1], first + budget)
        for i in range(first, end):
            common[holders[i]] += np.int32(1)
        budget -= end - first
        place[1] += end - first
        if end == starts[element + 1]:
            place[0] += 1
            place[1] = 0


@njit(cache=True, nogil=True, error_model="numpy")  # no check of the divisor, which is not 0
def measure_sets(common: Any, sizes: Any, n_query: int, positions: Any, distances: Any) -> None:
    """Compute the Jaccard distances of sets that have common elements.

    Parameters
    ----------
    common, sizes, n_query
        As for :func:`rate_sets`.
    positions : int64 array of shape (n,)
        Sets with common elements.
    distances : float64 array of shape (n,)
        Receives the distances.
    """
    for i in range(positions.size):
        p = positions[i]
        union = n_query + sizes[p] - common[p]
        distances[i] = (union - common[p]) / union


@njit(cache=True, nogil=True, error_model="numpy")  # no check of the divisor, which is not 0
def rate_sets(common: Any, sizes: Any, n_query: int, levels: Any, counts: Any) -> None:
    """Store the level of each set, and count sets by level.

    The level is ``floor(255 * similarity)``. The similarity is a fraction of numbers below 2**27,
    so that the quotient is at least 2**-35 of an integer away from the next larger one: rounding
    does not reach it.

    Parameters
    ----------
    common : int32 array of shape (n_sets,)
        Number of common elements of each set and the query.
    sizes : int64 array of shape (n_sets,)
        Number of elements of each set.
    n_query : int
        Number of elements of the query.
    levels : uint8 array of shape (n_sets,)
        Receives the levels.
    counts : int64 array of shape (256,)
        Receives the numbers of sets with common elements.
    """
    for i in range(common.size):
        level = 0
        if common[i] > 0:
            union = n_query + sizes[i] - common[i]
            level = int(255.0 * common[i] / union)
            counts[level] += 1
        levels[i] = level
