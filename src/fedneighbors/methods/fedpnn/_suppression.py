"""Suppression of numbers, and of differences of numbers, that describe few cells.

In this package, "few" means at least one, but fewer than ``min_count``. A party sends no number
that describes few rows of a class, few present or few missing cells of a class in a column, or few
rows of a center. Sums of cells of one column can be subtracted; no linear combination of them
describes few cells either, see :func:`join_parts`.
"""

from dataclasses import replace
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Booleans, Floats, Integers
from fedneighbors.tabular._schema import (
    CLASS_BLOCK_ROWS,
    COORDINATE_LIMIT,
    QUANTA,
    PointMomentsReply,
    quantize,
)


def mask_frequent_classes(y: npt.NDArray[np.generic], *, min_count: int) -> Booleans:
    """Return a mask of rows of classes with ``min_count`` rows or more."""
    _, label, sizes = np.unique(y, return_inverse=True, return_counts=True)
    return np.asarray(sizes[label] >= min_count)


def suppress_few_cells(x: Floats, labels: Integers, *, min_count: int) -> Floats:
    """Set cells to NaN where a class has few values.

    Each column is treated separately.

    Examples
    --------
    >>> x = np.array([[1.0, 1.0], [np.nan, 2.0], [np.nan, 3.0]])
    >>> suppress_few_cells(x, np.zeros(3, int), min_count=2).tolist()
    [[nan, 1.0], [nan, 2.0], [nan, 3.0]]
    """
    result = x.copy()
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        n_present = (~np.isnan(x[rows])).sum(axis=0)
        few = np.flatnonzero((n_present > 0) & (n_present < min_count))
        result[np.ix_(rows, few)] = np.nan
    return result


def suppress_few_indicators(indicators: Floats, labels: Integers, *, min_count: int) -> Floats:
    """Make missing-cell indicators constant where few rows of a class differ.

    Fewer than ``min_count`` ones of a class in a column become 0, fewer zeros become 1.

    Examples
    --------
    >>> indicators = np.array([[1.0, 1.0], [0.0, 1.0], [0.0, 1.0], [0.0, 0.0]])
    >>> suppress_few_indicators(indicators, np.zeros(4, int), min_count=2).T.tolist()
    [[0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]]
    """
    result = indicators.copy()
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        n_set = indicators[rows].sum(axis=0)
        few, all_but_few = n_set < min_count, len(rows) - n_set < min_count
        result[np.ix_(rows, np.flatnonzero(few))] = 0.0
        result[np.ix_(rows, np.flatnonzero(all_but_few & ~few))] = 1.0
    return result


def suppress_few_pairs(
    moments: PointMomentsReply,
    points: Floats,
    base: Floats,
    known: Booleans,
    *,
    n_columns: int,
    min_count: int,
) -> PointMomentsReply:
    """Suppress products of moments that disclose few rows.

    Where two coordinates are both known for fewer than ``min_count`` rows, the products of their
    offsets from ``base`` are subtracted, so that only sums of single coordinates remain. Counts of
    rows that lack the cells of two columns are rounded to multiples of ``min_count``, because their
    differences would disclose few rows.

    Parameters
    ----------
    moments : PointMomentsReply
        Moments of ``points``.
    points : float64 array of shape (n_rows, n_coordinates)
        Scaled rows.
    base : float64 array of shape (n_coordinates,)
        Point of an all-missing row, see :meth:`TableScaling.empty_point`.
    known : bool array of shape (n_rows, n_coordinates)
        True where a coordinate carries information; elsewhere it equals ``base``.
    n_columns : int
        Number of coordinates before the missing-cell indicators.
    min_count : int
        Minimum number of rows that a disclosed number describes.
    """
    n_both, offset_products = np.zeros((2, *moments.products.shape), np.int64)
    for start in range(0, len(points), CLASS_BLOCK_ROWS):
        rows = slice(start, start + CLASS_BLOCK_ROWS)
        block = known[rows].astype(np.float32)  # sums of a block are below 2**24, exact in float32
        n_both += (block.T @ block).astype(np.int64)
        offsets = quantize(points[rows]) - quantize(base)
        # exact where it is used: few rows, at most 2**40 each
        offset_products += (offsets.T @ offsets).astype(np.int64)
    products = moments.products - np.where(n_both < min_count, offset_products, 0)
    missing = products[n_columns:, n_columns:]
    counts = min_count * np.rint(missing / (float(QUANTA) ** 2 * min_count)).astype(np.int64)
    np.fill_diagonal(counts, np.diag(n_both)[n_columns:])
    products[n_columns:, n_columns:] = counts * QUANTA**2
    return replace(moments, products=products)


def share_clipped(points: Floats, labels: Integers) -> Floats:
    """Set coordinates to class means where moments would clip one.

    A clipped cell would be missing in the sum of its class, so that the difference to other sums
    would describe this cell.

    Examples
    --------
    >>> share_clipped(np.array([[1.0, 0.0], [11.0, 4.0]]), np.zeros(2, int)).tolist()
    [[6.0, 0.0], [6.0, 4.0]]
    """
    result = points.copy()
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        clipped = np.flatnonzero((np.abs(points[rows]) > COORDINATE_LIMIT).any(axis=0))
        result[np.ix_(rows, clipped)] = points[np.ix_(rows, clipped)].mean(axis=0)
    return result


def share_means(
    values: Floats,
    released: Floats,
    present: Booleans,
    *,
    clusters: Integers,
    classes: Integers,
    groups: Integers,
    min_count: int,
) -> Floats:
    """Return a column in which clusters share means where needed.

    Clusters share their mean if sums of the column would differ in few cells. The clusters with few
    cells form one further part for each lowest class of a cluster, because the sum of such a part
    is the difference between sums of classes and of the other clusters.

    Parameters
    ----------
    values : float64 array of shape (n_rows,)
        Scaled values.
    released : float64 array of shape (n_rows,)
        Scaled values without the cells of clusters with few cells.
    present : bool array of shape (n_rows,)
        True where the row has a cell in the column.
    clusters, classes, groups : int64 arrays of shape (n_rows,)
        Cluster, class, and group of neighboring values of each row.
    min_count : int
        Minimum number of cells that a difference describes.
    """
    n_present = np.bincount(clusters[present], minlength=len(clusters))
    few = (n_present > 0) & (n_present < min_count)
    lowest_class = np.full(len(few), len(few))
    np.minimum.at(lowest_class, clusters, classes)
    parts = np.where(few, len(few) + lowest_class, np.arange(len(few)))[clusters]
    n_parts = int(parts.max(initial=-1)) + 1
    sums, n_cells = (
        np.bincount(parts[present], weights=weights, minlength=n_parts)
        for weights in (values[present], None)
    )
    into = join_parts(
        parts[present],
        classes[present],
        groups[present],
        sums / np.maximum(n_cells, 1),
        min_count=min_count,
    )
    blocks = into[parts]
    is_shared = np.bincount(into)[blocks] > 1
    means = np.bincount(blocks, weights=values) / np.maximum(np.bincount(blocks), 1)
    return np.where(is_shared, means[blocks], released)


def join_parts(
    parts: Integers, kinds: Integers, others: Integers, positions: Floats, *, min_count: int
) -> Integers:
    """Join parts of cells until no difference of sums describes few cells.

    The sums of all parts and of all sets of a second partition, the others, are known, also those
    of the cells of one kind in a part. A cell is an edge between its part, split by kinds, and its
    other set. This graph is bipartite, so that the linear combinations of the sums are its cut
    space: each one that is not zero describes at least the cells of a cut between two sets of
    vertices. Parts are joined until every cut has no or ``min_count`` cells. Two parts that share a
    kind and are on different sides of a small cut are joined, those with the closest positions
    first; ties go to the lower parts.

    Cuts are found as in [1]_: when a vertex is scanned in a maximum adjacency order, as many
    edge-disjoint paths connect it to each later neighbor as the neighbor has edges to the vertices
    scanned so far, and the last vertex of a component is cut off by its own edges.

    Parameters
    ----------
    parts, kinds, others : int64 arrays of shape (n_cells,)
        Part, kind, and set of the second partition of each cell. In the second partition, every
        set has ``min_count`` cells, and so has every cut that separates no parts of one kind.
    positions : float64 array of shape (n_parts,)
        Position of each part.
    min_count : int
        Minimum number of cells of a cut.

    Returns
    -------
    int64 array of shape (n_parts,)
        Lowest part that each part is joined with.

    References
    ----------
    .. [1] Nagamochi and Ibaraki, "Computing edge-connectivity in multigraphs and capacitated
       graphs", SIAM Journal on Discrete Mathematics 5, 1992.

    Examples
    --------
    >>> parts, others = np.array([0, 0, 0, 1, 1, 1, 1]), np.array([0, 0, 0, 0, 1, 1, 1])
    >>> join_parts(parts, np.zeros(7, int), others, np.zeros(2), min_count=1).tolist()
    [0, 1]
    >>> join_parts(parts, np.zeros(7, int), others, np.zeros(2), min_count=2).tolist()
    [0, 0]
    """
    into = np.arange(len(positions))
    if min_count == 1 or not len(parts):
        return into
    n_kinds = int(kinds.max()) + 1
    pairs, left = np.unique(parts * n_kinds + kinds, return_inverse=True)
    part, kind = pairs // n_kinds, pairs % n_kinds
    right = len(pairs) + others
    vertices = np.arange(right.max() + 1)  # contracted vertex of each vertex
    while True:
        n_vertices = int(vertices.max()) + 1
        isolated, contracted = _scan_vertices(
            vertices[left], vertices[right], n_vertices, min_count
        )
        if not isolated and contracted.max() + 1 == n_vertices:
            return into
        is_inside = vertices[: len(pairs)] == (isolated[0] if isolated else -1)
        vertices = contracted[vertices]
        if isolated:
            first, second = _closest_parts(part, kind, is_inside, positions)
            low, high = sorted((into[first], into[second]))
            into[into == high] = low
            for k in np.unique(kind[into[part] == low]):
                same = np.unique(vertices[: len(pairs)][(into[part] == low) & (kind == k)])
                vertices[np.isin(vertices, same)] = same[0]
        _, vertices = np.unique(vertices, return_inverse=True)


def _closest_parts(
    part: Integers, kind: Integers, is_inside: Booleans, positions: Floats
) -> tuple[int, int]:
    """Return the closest parts of one kind across a cut."""
    inside, outside = np.flatnonzero(is_inside), np.flatnonzero(~is_inside)
    distances = np.abs(positions[part[inside]][:, None] - positions[part[outside]])
    distances[kind[inside][:, None] != kind[outside]] = np.inf
    first, second = np.unravel_index(np.argmin(distances), distances.shape)
    return int(part[inside[first]]), int(part[outside[second]])


def _scan_vertices(
    first: Integers, second: Integers, n: int, min_count: int
) -> tuple[list[int], Integers]:
    """Return vertices that a small cut isolates, and sets of connected vertices.

    The next vertex is the one with the most edges to all earlier ones, ties to the lower. The last
    vertex of a component is isolated by its own edges.

    Parameters
    ----------
    first, second : int64 arrays of shape (n_edges,)
        Ends of the edges.
    n : int
        Number of vertices.
    min_count : int
        Fewer edges are a small cut; as many paths connect the vertices of a set.
    """
    is_edge = first != second
    left, right = first[is_edge], second[is_edge]
    edges = np.concatenate([left * n + right, right * n + left])
    ends, n_edges = np.unique(edges, return_counts=True)  # those of each vertex, ascending
    starts = np.searchsorted(ends, n * np.arange(n + 1)).tolist()
    neighbors, counts = (ends % n).tolist(), n_edges.tolist()
    attached, is_scanned = [0] * n, [False] * n  # edges to earlier vertices
    queue = [(0, vertex) for vertex in range(n)]
    isolated, lowest, last = list[int](), list(range(n)), -1  # towards the lowest of a set
    while queue:
        n_attached, vertex = heappop(queue)
        if is_scanned[vertex] or -n_attached != attached[vertex]:
            continue
        if n_attached == 0 and last >= 0 and 0 < attached[last] < min_count:
            isolated.append(last)
        is_scanned[vertex], last = True, vertex
        for k in range(starts[vertex], starts[vertex + 1]):
            other = neighbors[k]
            if not is_scanned[other]:
                attached[other] += counts[k]
                heappush(queue, (-attached[other], other))
                if attached[other] >= min_count:
                    low, high = sorted((_find_lowest(lowest, vertex), _find_lowest(lowest, other)))
                    lowest[high] = low
    if 0 < attached[last] < min_count:
        isolated.append(last)
    sets = [_find_lowest(lowest, vertex) for vertex in range(n)]
    return isolated, np.unique(sets, return_inverse=True)[1]


def _find_lowest(lowest: list[int], vertex: int) -> int:
    """Return the lowest vertex of a set; shorten the way to it."""
    while lowest[vertex] != vertex:
        lowest[vertex] = vertex = lowest[lowest[vertex]]
    return vertex
