"""Common elements of sets and a query, and keys that sort sets by distance."""

from typing import Any

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def count_holders(
    holders: Any, starts: Any, elements: Any, place: Any, common: Any, touched: Any, budget: int
) -> None:
    """Count the elements of a query in the sets that contain them.

    Parameters
    ----------
    holders : uint32 array
        Positions of the sets that contain each element, element after element.
    starts : int64 array of shape (n_elements + 1,)
        First index of each element in ``holders``, and its length.
    elements : int64 array
        Elements of the query, distinct.
    place : int64 array of shape (3,)
        Index of the next element, the number of its sets that are counted, and the number of sets
        in ``touched``; zeros at first, updated.
    common : int32 array of shape (n_sets,)
        Number of common elements of each set, updated.
    touched : uint32 array
        Receives the positions of the sets with common elements.
    budget : int
        Maximum number of sets to count, 1 or more.
    """
    n_touched = np.uint64(place[2])
    while place[0] < elements.size and budget > 0:
        element = elements[place[0]]
        first = starts[element] + place[1]
        end = min(starts[element + 1], first + budget)
        for i in range(np.uint64(first), np.uint64(end)):  # unsigned: no check of negative indices
            holder = holders[i]
            if common[holder] == 0:
                touched[n_touched] = holder
                n_touched += np.uint64(1)
            common[holder] += np.int32(1)
        budget -= end - first
        place[1] += end - first
        if end == starts[element + 1]:
            place[0] += 1
            place[1] = 0
    place[2] = n_touched


@njit(cache=True, nogil=True, error_model="numpy")  # no check of the divisor, which is not 0
def measure_sets(common: Any, sizes: Any, n_query: int, positions: Any, distances: Any) -> None:
    """Compute the Jaccard distances of sets that have common elements.

    An empty set and an empty query have one common element, which neither size counts.

    Parameters
    ----------
    common : int32 array of shape (n_sets,)
        Number of common elements of each set and the query.
    sizes : int32 array of shape (n_sets,)
        Number of elements of each set.
    n_query : int
        Number of elements of the query.
    positions : integer array of shape (n,)
        Sets with common elements.
    distances : float64 array of shape (n,)
        Receives the distances.
    """
    for i in range(positions.size):
        p = positions[i]
        union = max(n_query + sizes[p] - common[p], 1)
        distances[i] = (union - common[p]) / union


@njit(cache=True, nogil=True)
def make_keys(distances: Any, positions: Any, scale: float, n_bits: int, keys: Any) -> None:
    """Store integers that sort like pairs of distance and position.

    Parameters
    ----------
    distances, positions : arrays of shape (n,)
        Distances in [0, 1], and positions below ``2**n_bits``.
    scale : float
        A power of two; different distances differ by ``1 / scale`` at least.
    n_bits : int
        Number of the lower bits, which contain the position.
    keys : int64 array of shape (n,)
        Receives the keys.
    """
    for i in range(distances.size):
        keys[i] = (np.int64(distances[i] * scale) << n_bits) | positions[i]
