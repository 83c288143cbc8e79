"""A k-d tree of places on the Earth as unit vectors, and the nearest places of a query.

The tree is balanced: node ``i`` has the children ``2 i + 1`` and ``2 i + 2``, and a node's places
``first`` to ``end - 1`` are divided at the middle. Each node has a box that contains its places, so
that a search skips boxes beyond the farthest candidate. Candidates are found by squared chords; the
haversine formula computes the distances that are returned.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from fedneighbors._typing import Floats, Integers
from fedneighbors.kernels.vectors._distances import measure_m, to_angles

# Digests of the kernel files used here; Numba's cache does not notice edits in other files.
USES = {"vectors/distances": "35a00e78ff528aba"}

LEAF_SIZE = 32
_SPARE = 8  # candidates beyond twice those wanted
_STACK = 64  # nodes that wait: at most one more than levels


class PlaceTree(NamedTuple):
    """Places in the order of a tree.

    Parameters
    ----------
    places : float64 array of shape (n_places, 2)
        Longitude and latitude in degrees, in the original order.
    ranks : int64 array of shape (n_places,)
        Rank of each place, in the original order.
    points : float64 array of shape (n_places, 3)
        Unit vectors, in the order of the tree.
    angles : float64 array of shape (n_places, 3)
        Longitude, latitude and its cosine in radians, in the order of the tree.
    order : int64 array of shape (n_places,)
        Original position of each point.
    boxes : float64 array of shape (n_nodes, 6)
        Lowest and highest coordinates in each node.
    """

    places: Floats
    ranks: Integers
    points: Floats
    angles: Floats
    order: Integers
    boxes: Floats


@njit(cache=True, nogil=True)
def _to_point(longitude: Any, latitude: Any) -> Any:
    """Return the unit vector of a place in degrees."""
    east, north = longitude * (math.pi / 180.0), latitude * (math.pi / 180.0)
    radius = math.cos(north)
    return radius * math.cos(east), radius * math.sin(east), math.sin(north)


@njit(cache=True, nogil=True)
def _select(keys: Any, items: Any, first: Any, end: Any, place: Any) -> None:
    """Move the lowest keys of a range before a place (quickselect)."""
    while end - first > 1:
        pivot = keys[(first + end) // 2]
        low, high = first, end - 1
        while low <= high:
            while keys[low] < pivot:
                low += 1
            while keys[high] > pivot:
                high -= 1
            if low <= high:
                keys[low], keys[high] = keys[high], keys[low]
                items[low], items[high] = items[high], items[low]
                low += 1
                high -= 1
        if place <= high:
            end = high + 1
        elif place >= low:
            first = low
        else:
            return


@njit(cache=True, nogil=True)
def _build(places: Any, tree: Any) -> None:
    _, _, points, angles, order, boxes = tree
    keys, original = np.empty(order.size), np.empty((order.size, 3))
    for i in range(order.size):
        order[i] = i
        x, y, z = _to_point(places[i, 0], places[i, 1])
        original[i, 0], original[i, 1], original[i, 2] = x, y, z
    stack = np.empty((_STACK, 3), np.int64)
    stack[0, 0], stack[0, 1], stack[0, 2] = 0, 0, order.size
    n_open = 1
    while n_open > 0:
        n_open -= 1
        node, first, end = stack[n_open, 0], stack[n_open, 1], stack[n_open, 2]
        box = boxes[node]
        box[:3] = math.inf
        box[3:] = -math.inf
        for i in range(first, end):
            for j in range(3):
                box[j] = min(box[j], original[order[i], j])
                box[3 + j] = max(box[3 + j], original[order[i], j])
        if 2 * node + 2 >= boxes.shape[0]:
            continue
        column = 0
        for j in range(1, 3):
            if box[3 + j] - box[j] > box[3 + column] - box[column]:
                column = j
        for i in range(first, end):
            keys[i] = original[order[i], column]
        middle = (first + end) // 2
        _select(keys, order, first, end, middle)
        stack[n_open, 0], stack[n_open, 1], stack[n_open, 2] = 2 * node + 1, first, middle
        stack[n_open + 1, 0], stack[n_open + 1, 1] = 2 * node + 2, middle
        stack[n_open + 1, 2] = end
        n_open += 2
    for i in range(order.size):
        for j in range(3):
            points[i, j] = original[order[i], j]
        longitude, latitude, cosine = to_angles(places[order[i], 0], places[order[i], 1])
        angles[i, 0], angles[i, 1], angles[i, 2] = longitude, latitude, cosine


def build_tree(places: Floats, ranks: Integers) -> PlaceTree:
    """Return the tree of places.

    Parameters
    ----------
    places : float64 array of shape (n_places, 2), C order
        Longitude and latitude in degrees; at least one.
    ranks : int64 array of shape (n_places,)
        Distinct ranks; of places of equal distance, those of lower rank come first.
    """
    n_levels = max(0, math.ceil(math.log2(len(places) / LEAF_SIZE)))
    points, angles = np.empty((2, len(places), 3))
    boxes = np.empty((2 ** (n_levels + 1) - 1, 6))
    tree = PlaceTree(places, ranks, points, angles, np.empty(len(places), np.int64), boxes)
    _build(places, tree)
    return tree


@njit(cache=True, nogil=True)
def _gap(box: Any, node: Any, x: Any, y: Any, z: Any) -> Any:
    """Return the squared distance of a point to a box."""
    dx = max(box[node, 0] - x, x - box[node, 3], 0.0)
    dy = max(box[node, 1] - y, y - box[node, 4], 0.0)
    dz = max(box[node, 2] - z, z - box[node, 5], 0.0)
    return dx * dx + dy * dy + dz * dz


@njit(cache=True, nogil=True)
def _reach(box: Any, node: Any, x: Any, y: Any, z: Any) -> Any:
    """Return the squared distance to the farthest corner of a box."""
    dx = max(box[node, 3] - x, x - box[node, 0])
    dy = max(box[node, 4] - y, y - box[node, 1])
    dz = max(box[node, 5] - z, z - box[node, 2])
    return dx * dx + dy * dy + dz * dz


@njit(cache=True, nogil=True)
def _find_near(
    tree: Any, query: Any, n: Any, limit: Any, squares: Any, items: Any, stack: Any
) -> Any:
    """Find up to ``n`` nearest points below a limit; return their number.

    The highest chord of ``n`` is the last.

    ``squares`` and ``items`` are longer than ``n``: candidates are added at the end, and when they
    are full, the lowest ``n`` are kept.
    """
    points, boxes = tree.points, tree.boxes
    n_nodes, gaps = boxes.shape[0], squares[2 * n + _SPARE :]
    x, y, z = _to_point(query[0], query[1])
    stack[0, 0], stack[0, 1], stack[0, 2] = 0, 0, points.shape[0]
    gaps[0], n_open, n_found = 0.0, 1, 0
    while n_open > 0:
        n_open -= 1
        if gaps[n_open] >= limit:
            continue
        node, first, end = stack[n_open, 0], stack[n_open, 1], stack[n_open, 2]
        while 2 * node + 2 < n_nodes:
            left, middle = 2 * node + 1, (first + end) // 2
            gap, other = _gap(boxes, left, x, y, z), _gap(boxes, left + 1, x, y, z)
            if gap <= other:
                stack[n_open, 0], stack[n_open, 1], stack[n_open, 2] = left + 1, middle, end
                node, end = left, middle
            else:
                stack[n_open, 0], stack[n_open, 1], stack[n_open, 2] = left, first, middle
                node, first = left + 1, middle
                gap, other = other, gap
            if other < limit:
                gaps[n_open] = other
                n_open += 1
            if gap >= limit:
                first = end
                break
        for i in range(first, end):
            dx, dy, dz = points[i, 0] - x, points[i, 1] - y, points[i, 2] - z
            square = dx * dx + dy * dy + dz * dz
            if square < limit:
                squares[n_found], items[n_found] = square, i
                n_found += 1
                if n_found == items.size:
                    _select(squares, items, 0, n_found, n - 1)
                    limit, n_found = squares[n - 1], n
    if n_found >= n:
        _select(squares, items, 0, n_found, n - 1)
    return min(n_found, n)


@njit(cache=True, nogil=True)
def _is_before(metres: Any, ranks: Any, positions: Any, i: Any, j: Any) -> Any:
    if metres[i] != metres[j]:
        return metres[i] < metres[j]
    return ranks[positions[i]] < ranks[positions[j]]


@njit(cache=True, nogil=True)
def _sort(metres: Any, ranks: Any, positions: Any, sorted_metres: Any, sorted_items: Any) -> None:
    """Sort by distance and rank (merge sort)."""
    n = metres.size
    source, target = np.arange(n), np.empty(n, np.int64)
    for first in range(0, n, 8):
        for i in range(first + 1, min(first + 8, n)):
            item, j = source[i], i
            while j > first and _is_before(metres, ranks, positions, item, source[j - 1]):
                source[j] = source[j - 1]
                j -= 1
            source[j] = item
    width = 8
    while width < n:
        for first in range(0, n, 2 * width):
            middle, end = min(first + width, n), min(first + 2 * width, n)
            i, j = first, middle
            for k in range(first, end):
                if j >= end or (
                    i < middle and not _is_before(metres, ranks, positions, source[j], source[i])
                ):
                    target[k] = source[i]
                    i += 1
                else:
                    target[k] = source[j]
                    j += 1
        source, target = target, source
        width *= 2
    for i in range(n):
        sorted_metres[i], sorted_items[i] = metres[source[i]], positions[source[i]]


@njit(cache=True, nogil=True)
def _nearest(tree: Any, queries: Any, distances: Any, found: Any, chords: Any, longest: Any) -> int:
    n = distances.shape[1]
    size = 2 * n + _SPARE
    squares, items = np.empty(size + _STACK), np.empty(size, np.int64)
    positions, metres = np.empty(n, np.int64), np.empty(n)
    stack = np.empty((_STACK, 3), np.int64)
    for q in range(queries.shape[0]):
        if not (math.isfinite(queries[q, 0]) and math.isfinite(queries[q, 1])):
            return q
        m = _find_near(tree, queries[q], n, longest * longest, squares, items, stack)
        chords[q] = math.sqrt(squares[n - 1]) if m == n else longest
        longitude, latitude, cosine = to_angles(queries[q, 0], queries[q, 1])
        for i in range(m):
            p = items[i]
            positions[i] = tree.order[p]
            metres[i] = measure_m(
                longitude, latitude, cosine, tree.angles[p, 0], tree.angles[p, 1], tree.angles[p, 2]
            )
            if math.isnan(metres[i]):  # keeps the compiler from vectorizing, see `_great_circle`
                return q
        _sort(metres[:m], tree.ranks, positions, distances[q], found[q])
        distances[q, m:] = math.inf
        found[q, m:] = -1
    return -1


def nearest_places(
    tree: PlaceTree, queries: Floats, n: int, *, longest: float = math.inf
) -> tuple[Floats, Integers, Floats]:
    """Return the ``n`` places of the shortest chords for each query.

    Parameters
    ----------
    tree : PlaceTree
        The places.
    queries : float64 array of shape (n_queries, 2), C order
        Longitude and latitude in degrees.
    n : int
        Number of places, from 1 to that in the tree.
    longest : float
        Chord on the unit sphere from which places are omitted.

    Returns
    -------
    distances : float64 array of shape (n_queries, n)
        Metres by the haversine formula, ascending; infinite at the end if there are fewer places.
    positions : int64 array of shape (n_queries, n)
        Places, those of equal distance by rank; -1 at the end if there are fewer.
    chords : float64 array of shape (n_queries,)
        Longest of ``n`` chords, otherwise ``longest``; those of all other places are not shorter.

    Raises
    ------
    ValueError
        If a coordinate of a query is not finite.
    """
    shape = len(queries), n
    distances, positions = np.empty(shape), np.empty(shape, np.int64)
    chords = np.empty(len(queries))
    failed = _nearest(tree, queries, distances, positions, chords, longest)
    if failed >= 0:
        raise ValueError(f"query {failed} is not finite; expected degrees")
    return distances, positions, chords


@njit(cache=True, nogil=True)
def _list_within(tree: Any, query: Any, square: Any, found: Any) -> int:
    """Count the points within a squared chord.

    They are listed in ``found`` if it is not empty.
    """
    points, boxes = tree.points, tree.boxes
    x, y, z = _to_point(query[0], query[1])
    stack = np.empty((_STACK, 3), np.int64)
    stack[0, 0], stack[0, 1], stack[0, 2] = 0, 0, points.shape[0]
    n_found, n_open = 0, 1
    while n_open > 0:
        n_open -= 1
        node, first, end = stack[n_open, 0], stack[n_open, 1], stack[n_open, 2]
        if _gap(boxes, node, x, y, z) > square:
            continue
        if found.size == 0 and _reach(boxes, node, x, y, z) <= square:
            n_found += end - first
        elif 2 * node + 2 < boxes.shape[0]:
            middle = (first + end) // 2
            stack[n_open, 0], stack[n_open, 1], stack[n_open, 2] = 2 * node + 1, first, middle
            stack[n_open + 1, 0], stack[n_open + 1, 1] = 2 * node + 2, middle
            stack[n_open + 1, 2] = end
            n_open += 2
        else:
            for i in range(first, end):
                dx, dy, dz = points[i, 0] - x, points[i, 1] - y, points[i, 2] - z
                if dx * dx + dy * dy + dz * dz <= square:
                    if n_found < found.size:
                        found[n_found] = tree.order[i]
                    n_found += 1
    return n_found


def count_within(tree: PlaceTree, query: Floats, chord: float) -> int:
    """Return the number of places within a chord.

    Parameters
    ----------
    tree : PlaceTree
        The places.
    query : float64 array of shape (2,)
        Longitude and latitude in degrees.
    chord : float
        Length on the unit sphere, 0 or more. Places whose chord differs by a rounding error may be
        counted or not.
    """
    return int(_list_within(tree, query, chord * chord, np.empty(0, np.int64)))


def list_within(tree: PlaceTree, query: Floats, chord: float, n: int) -> Integers:
    """Return the places within a chord, in any order.

    Parameters
    ----------
    tree, query, chord
        As for :func:`count_within`.
    n : int
        Number of places within the chord, 1 or more.
    """
    found = np.empty(n, np.int64)
    return found[: _list_within(tree, query, chord * chord, found)]
