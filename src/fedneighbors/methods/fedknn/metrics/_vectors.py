"""Vectors of numbers under the Euclidean, Manhattan and cosine distance, or the inner product.

Small tables are searched as a whole. Large ones of few columns have a k-d tree; in others, bounds
from the rows' bytes select rows, see :mod:`fedneighbors.kernels.vectors._quantized`.
"""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fedneighbors._typing import Array, Booleans, Floats, Integers
from fedneighbors.kernels.vectors._centering import Centering
from fedneighbors.kernels.vectors._distances import absolute_sums, negative_products, square_sums
from fedneighbors.kernels.vectors._duplicates import DistinctRows
from fedneighbors.kernels.vectors._nearest import HALF, PLAIN, PRODUCT, ROOT, RowSearch
from fedneighbors.kernels.vectors._quantized import MAX_CODE, QuantizedRows, verify_within
from fedneighbors.kernels.vectors._table import ROWS_PER_STEP, TableRows
from fedneighbors.methods.fedknn.metrics._interfaces import Found, Session
from fedneighbors.methods.fedknn.metrics._points import (
    MAX_BOUND,
    MAX_MAGNITUDE,
    BoundedSession,
    DistanceBounds,
    MinkowskiScale,
    Scale,
    ScanSession,
    SmallSession,
    TreeSession,
)
from fedneighbors.methods.fedknn.metrics._sessions import GroupedSession, check_ranks

if TYPE_CHECKING:
    from scipy.spatial import cKDTree

_CLIP = 16  # elements above this many times the mean magnitude are not spread over the codes
_MAX_EXPONENT = 1000  # power of two by which an inner product is scaled
_MAX_POINT = 2.0**40  # length of a query relative to the rows; beyond, bounds are useless
_LEAST_PRODUCT = 2.0**-1000  # smaller bounds of inner products lose bits


@dataclass(frozen=True)
class ProductScale(Scale):
    """Scale of ``inner_product`` for one query.

    Search-space distances are the inner products of a query and centered rows, scaled by a power of
    two, with the opposite sign.

    Parameters
    ----------
    shift : float
        Inner product of the query and the center, scaled.
    error : float
        Rounding error of scaled distances, other than a fraction of the search-space distance.
    exponent : int
        Power of two.
    """

    shift: float
    error: float
    exponent: int

    def lower(self, search_distances: Floats) -> Floats:
        """Return lower bounds of the metric's distances, given search-space distances."""
        scaled = search_distances - (self.shift + self.error)
        return np.asarray(np.ldexp(scaled, -self.exponent) - _LEAST_PRODUCT)

    def _radius(self, distance: float, side: int) -> float:
        scaled = (distance + side * 2 * _LEAST_PRODUCT) * 2.0**self.exponent
        # search-space distances of MAX_BOUND do not occur
        rounding = 2.0**-50 * (min(abs(scaled), MAX_BOUND) + abs(self.shift))
        return scaled + self.shift + side * (2 * self.error + rounding)

    def outer_radius(self, distance: float) -> float:
        """Return a radius beyond which ``lower`` exceeds ``distance``; may be negative."""
        return self._radius(distance, 1)


class QuantizedVectors:
    """Centered rows as bytes, for lower bounds of their distances to a query.

    Parameters
    ----------
    rows : TableRows of shape (n_rows, n_columns)
        Rows in the search space of ``scale``.
    scale : MinkowskiScale or None
        Conversion between distances in the search space and of the metric; None for inner products.
    """

    def __init__(self, rows: TableRows, scale: MinkowskiScale | None) -> None:
        self._scale = scale
        self._centering = Centering(rows)
        step = 0.0
        if scale is not None and scale.power == 1:
            magnitudes = np.abs(self._centering.sample(rows))
            step = max(min(float(magnitudes.max()), _CLIP * float(magnitudes.mean())), 2.0**-90)
        self._codes = QuantizedRows(*rows.shape, step=step / MAX_CODE)
        for i, block in enumerate(rows.blocks()):
            self._codes.put(self._centering.apply(block), i * ROWS_PER_STEP)

    def locate(self, point: Floats) -> tuple[Floats, int] | None:
        """Return a point among the codes, and its exponent; None if far."""
        if self._scale is None:  # smaller products lose bits
            exponent = -math.frexp(max(point.max(), -point.min()))[1]
            is_near = exponent + self._centering.exponent < _MAX_EXPONENT
            return (np.ldexp(point, exponent), exponent) if is_near else None
        with np.errstate(over="ignore"):
            centered = self._centering.apply(point)
            return (centered, 0) if centered.dot(centered) < _MAX_POINT**2 else None

    def bound(self, point: Floats, exponent: int) -> DistanceBounds:
        """Return bounds of the distances to a located point."""
        centering = self._centering
        bounds = self._codes.bound(point, of_products=self._scale is None)
        if self._scale is not None:
            return DistanceBounds(bounds, self._scale, exponent=centering.exponent)
        scale = ProductScale(
            shift=float(point.dot(centering.center)),
            error=float(centering.error_of_products(math.sqrt(point.dot(point)), exponent)),
            exponent=centering.exponent + exponent,
        )
        return DistanceBounds(bounds, scale, exponent=0)


_KINDS = {"euclidean": ROOT, "manhattan": PLAIN, "cosine": HALF, "inner_product": PRODUCT}
VECTOR_METRICS = tuple(_KINDS)

_MAX_TREE_COLUMNS = 4
_LEAF_SIZE = 32  # rows of a leaf; the default of 10 is up to a fifth slower, and never faster
# Small tables need neither tree nor bounds: 29 in place of 67 us for 2,000 rows of 16 columns.
_MAX_SMALL_CELLS, _MIN_INDEXED_ROWS = 1 << 16, 1024
# Fewer queries are searched one at a time in larger tables: 61 in place of 95 us for 2**18 cells.
_MIN_QUERIES = 3
_MAX_CELLS = 1 << 18


class VectorMetric:
    """A distance of vectors of equal length.

    Parameters
    ----------
    name : {"euclidean", "manhattan", "cosine", "inner_product"}
        Cosine distance is one minus the cosine of the angle, computed as half the squared distance
        of the vectors scaled to length one: accurate near zero, never negative. The distance
        ``"inner_product"`` is the inner product with the opposite sign, so that the nearest vector
        has the largest one.

    Raises
    ------
    ValueError
        If the name is unknown.

    Examples
    --------
    >>> VectorMetric("manhattan").distance([0, 3], [4, 0])
    7.0
    """

    answers_batches = True
    """An index finds the nearest objects of many queries at once."""

    accepts_tables = True
    """An index may be made of TableRows."""

    def __init__(self, name: str) -> None:
        if name not in VECTOR_METRICS:
            raise ValueError(f"expected a name among {VECTOR_METRICS}, got {name!r}")
        self.name = name
        self.least = -sys.float_info.max if name == "inner_product" else 0.0

    def distance(self, first: Any, second: Any) -> float:
        """Return the distance of two vectors.

        Raises
        ------
        ValueError
            If one is not a vector of finite numbers, the lengths differ, a magnitude is 2**500 or
            more, or, for the cosine, all numbers are zero.
        """
        query = as_row(first, self._find_invalid)
        other = as_row(second, self._find_invalid, n_columns=len(query))
        rows = self._normalize(np.stack([query, other]))
        return float(self.distances(TableRows(rows[1:]), rows[0], slice(None))[0])

    def index(self, objects: Sequence[Any], *, ranks: Integers) -> "_VectorIndex":
        """Return an index of vectors.

        TableRows of an array that needs no conversion are not copied.

        Raises
        ------
        ValueError
            As for ``distance``; the error names the position of the object.
        """
        given: Any = objects
        if isinstance(given, TableRows) and self._can_share(given):
            _check_rows(given, self._find_invalid, "object {}")
            rows = given
        else:
            is_table = isinstance(given, TableRows)
            rows = TableRows(self.scale_rows(given[:] if is_table else given))
        return _VectorIndex(self, rows, check_ranks(ranks, len(rows)))

    def _can_share(self, rows: TableRows) -> bool:
        """Return whether distances need no conversion of the rows."""
        is_scaled = self.name == "cosine" or not rows.shape[1]
        return not is_scaled and rows.dtype in _DTYPES and rows.table.flags.c_contiguous

    def scale_rows(self, objects: Sequence[Any], *, n_columns: int | None = None) -> Floats:
        """Return objects as rows of the space in which distances are computed.

        ``n_columns`` is their required length, by default that of the first one.
        """
        dtypes = () if self.name == "cosine" else _DTYPES
        return self._normalize(
            as_rows(objects, self._find_invalid, n_columns=n_columns, dtypes=dtypes)
        )

    def scale_query(self, query: Any, rows: TableRows) -> Floats:
        """Return a query as a point in the space of scaled rows."""
        n_columns = rows.shape[1] if len(rows) else None
        row = as_row(query, self._find_invalid, n_columns=n_columns, max_square=MAX_MAGNITUDE**2)
        return np.asarray(self._normalize(row[np.newaxis])[0])

    def distances(self, rows: TableRows, point: Floats, selected: Integers | slice) -> Floats:
        """Return the distances of a point to selected scaled rows."""
        table, positions = rows.table, rows.locate(selected)
        if isinstance(positions, slice):
            table, positions = table[positions], None
        if self.name == "manhattan":
            return absolute_sums(table, point, positions)
        if self.name == "inner_product":
            return negative_products(table, point, positions)
        squares = square_sums(table, point, positions)
        return np.sqrt(squares) if self.name == "euclidean" else squares * 0.5

    def _normalize(self, rows: Floats) -> Floats:
        """Scale the rows to length one for the cosine; return others unchanged."""
        if self.name != "cosine" or len(rows) == 0:
            return rows
        rows = rows / np.abs(rows).max(axis=1, keepdims=True)  # so that squares do not overflow
        return np.asarray(rows / np.sqrt(square_sums(rows, np.zeros(rows.shape[1])))[:, np.newaxis])

    def _find_invalid(self, rows: Floats) -> tuple[Booleans, str]:
        if self.name == "cosine":
            zero = ~np.asarray(rows.any(axis=1))
            return zero, "a number other than zero: a zero vector has no angle"
        if rows.dtype != np.float64:
            return np.zeros(len(rows), np.bool_), ""  # float32 has no such magnitudes
        large = np.asarray((np.abs(rows) >= MAX_MAGNITUDE).any(axis=1))
        return large, f"magnitudes below {MAX_MAGNITUDE:.3g}; rescale the columns"

    def make_scale(self, n_columns: int) -> MinkowskiScale | None:
        """Return the conversion to distances of the search space.

        That of inner products depends on the query.
        """
        if self.name == "inner_product":
            return None
        return MinkowskiScale(
            power=1 if self.name == "manhattan" else 2,
            halved_square=self.name == "cosine",
            n_columns=n_columns,
        )


class _VectorIndex:
    def __init__(self, metric: VectorMetric, rows: TableRows, ranks: Integers) -> None:
        self.n_objects = len(rows)
        self._metric = metric
        is_large = len(rows) >= _MIN_INDEXED_ROWS
        self._distinct = DistinctRows.find(rows, ranks) if is_large else None
        if self._distinct is not None:
            first = self._distinct.first
            is_copied = 2 * len(first) < len(rows)  # few rows do not keep a large table in memory
            rows = TableRows(rows[first]) if is_copied else rows.select(first)
            ranks = ranks[first]
        self._rows, self._ranks = rows, ranks
        self._scale = metric.make_scale(rows.shape[1])
        self._tree: cKDTree | None = None
        self._quantized: QuantizedVectors | None = None
        n_rows, n_columns = rows.shape
        self._is_small = n_rows * n_columns <= _MAX_SMALL_CELLS
        has_index = n_rows >= _MIN_INDEXED_ROWS and not self._is_small
        max_columns = QuantizedRows.max_columns(is_square=metric.name != "manhattan")
        has_tree = self._scale is not None and n_columns <= _MAX_TREE_COLUMNS
        if has_index and has_tree:
            from scipy import spatial  # slow to import, for large tables only

            self._tree = spatial.cKDTree(rows[:], leafsize=_LEAF_SIZE)
        elif has_index and n_columns <= max_columns:
            self._quantized = QuantizedVectors(rows, self._scale)

    @cached_property
    def _search(self) -> RowSearch:
        """Return a search for the nearest rows of whole queries."""
        return RowSearch.of(self._rows, self._ranks, kind=_KINDS[self._metric.name])

    def open(self, query: Any) -> Session:
        session = self._open(query)
        return session if self._distinct is None else GroupedSession(self._distinct, session)

    def _open(self, query: Any) -> ScanSession:
        """Return a session of the distinct rows."""
        point = self._metric.scale_query(query, self._rows)
        if self.n_objects == 0:
            return ScanSession(self._ranks, lambda _: np.empty(0), least=self._metric.least)
        measure, width = partial(self._metric.distances, self._rows, point), len(point)
        least = self._metric.least
        if self._is_small:
            nearest = partial(self._search.nearest, point[np.newaxis])
            return SmallSession(nearest, self._ranks, measure, width=width, least=least)
        if self._tree is not None and self._scale is not None:
            return TreeSession(
                self._ranks,
                measure,
                measure,
                width=width,
                tree=_TreePoints(self._tree, point, power=self._scale.power),
                scale=self._scale,
            )
        located = None if self._quantized is None else self._quantized.locate(point)
        if self._quantized is not None and located is not None:
            kind, bound = _KINDS[self._metric.name], partial(self._quantized.bound, *located)
            verify = partial(verify_within, kind, self._rows.table, self._rows.positions, point)
            options: Any = {"width": width, "least": least, "verify_rows": verify}
            return BoundedSession(self._ranks, measure, bound, **options)
        return ScanSession(self._ranks, measure, width=width, least=least)

    def nearest(self, queries: Floats, k: int, *, peak: float) -> tuple[Floats, Integers]:
        """Return distances and positions of the k nearest objects of each query.

        ``peak`` is no less than any magnitude in the queries, NaN if any number is. The results are
        those of :meth:`open`; shape (n_queries, k), or fewer columns if there are fewer objects.
        """
        points, n_columns = queries, self._rows.shape[1]
        if (
            self._metric.name == "cosine"
            or points.shape[1] != n_columns
            or not peak < MAX_MAGNITUDE
        ):
            rows: Any = points
            points = self._metric.scale_rows(rows, n_columns=n_columns)  # errors name a row
        if len(points) < _MIN_QUERIES and len(self._rows) * n_columns > _MAX_CELLS:
            batches = [self.open(point).next(k) for point in queries]
            distances = np.array([batch.distances for batch in batches])
            return distances, np.array([batch.positions for batch in batches])
        distances, positions = self._search.nearest(points, k)
        if self._distinct is None:
            return distances, positions
        return self._distinct.list_members(distances, positions, k)


class _TreePoints:
    """Search for the nearest points of one query in a k-d tree.

    Parameters
    ----------
    tree : cKDTree
        Tree of the objects' points in the search space.
    point : float64 array of shape (n_columns,)
        The query in the search space.
    power : {1, 2}
        Order p of the Minkowski distance.
    """

    def __init__(self, tree: "cKDTree", point: Floats, *, power: int) -> None:
        self._tree, self._point, self._power = tree, point, power

    def count(self, radius: float) -> int:
        """Count the objects within a radius."""
        return int(
            self._tree.query_ball_point(self._point, radius, p=self._power, return_length=True)
        )

    def list_within(self, radius: float, n: int) -> Integers:  # noqa: ARG002 - the tree counts again
        """Return the objects within a radius."""
        inside = self._tree.query_ball_point(self._point, radius, p=self._power)
        return np.array(inside, np.int64)

    def nearest(self, n: int, radius: float) -> Found:
        """Return the ``n`` nearest objects, or all within a radius."""
        distances, positions = map(
            np.asarray, self._tree.query(self._point, n, p=self._power, distance_upper_bound=radius)
        )
        # If the tree finds fewer than n, these are all within the radius; it pads with n_objects.
        has_found_n = positions[-1] < self._tree.n
        farthest = float(distances[-1]) if has_found_n else radius
        return Found(positions[positions < self._tree.n], farthest)


RowCheck = Callable[[Floats], tuple[Booleans, str]]
"""Function from rows to a mask of the invalid ones and a description of valid ones."""

_NUMERIC = "buif"
_DTYPES = (np.float64, np.float32, np.uint8)  # their distances need no copy


def as_rows(
    objects: Sequence[Any],
    check: RowCheck,
    *,
    n_columns: int | None = None,
    dtypes: tuple[type[np.generic], ...] = (),
) -> Array:
    """Return objects as a table with one row each.

    Parameters
    ----------
    objects : array of shape (n_objects, n_columns) or sequence of sequences of numbers
        May be empty.
    check : callable
        Check of rows of finite numbers.
    n_columns : int, optional
        Required length of each object; by default that of the first one.
    dtypes : tuple of types
        Dtypes of arrays that are kept; others become float64.

    Returns
    -------
    array of shape (n_objects, n_columns), C order
        A copy.

    Raises
    ------
    ValueError
        If an object is not a vector of finite numbers, has another length, or fails the check; the
        error names its position.
    """
    if isinstance(objects, np.ndarray) and objects.ndim == 2 and objects.dtype.kind in _NUMERIC:
        dtype = objects.dtype if objects.dtype in dtypes else np.dtype(np.float64)
        rows = np.array(objects, dtype, order="C")
    else:
        vectors = [_to_vector(item, f"object {i}") for i, item in enumerate(objects)]
        length = n_columns or (len(vectors[0]) if vectors else 1)
        for i, vector in enumerate(vectors):
            _check_length(vector, length, f"object {i}")
        rows = np.array(vectors, np.float64).reshape(len(vectors), length)
    if len(rows):
        _check_length(rows[0], n_columns or max(1, rows.shape[1]), "object 0")
    _check_rows(rows, check, "object {}")
    return rows


def as_row(
    query: Any, check: RowCheck, *, n_columns: int | None = None, max_square: float = 0.0
) -> Floats:
    """Return a query as a vector of float64.

    Positive sums of squares below ``max_square`` need no check.

    Raises
    ------
    ValueError
        If it is not a vector of finite numbers, has another length, or fails the check.
    """
    row = _to_vector(query, "the query").astype(np.float64)
    _check_length(row, n_columns or max(1, len(row)), "the query")
    with np.errstate(over="ignore"):
        is_valid = 0.0 < row.dot(row) < max_square
    if not is_valid:
        _check_rows(row[np.newaxis], check, "the query")
    return row


def _to_vector(item: Any, name: str) -> Array:
    try:
        vector = np.asarray(item)
    except ValueError:  # a ragged list
        vector = np.asarray(None)
    if vector.ndim != 1 or vector.dtype.kind not in _NUMERIC:
        raise ValueError(
            f"{name}: expected a one-dimensional vector of real numbers, got {type(item).__name__} "
            f"of dtype {vector.dtype} with {vector.ndim} dimensions"
        )
    return vector


def _check_length(vector: Array, n_columns: int, name: str) -> None:
    if len(vector) != n_columns:
        raise ValueError(f"{name}: expected {n_columns} numbers, got {len(vector)}")


def _check_rows(rows: Floats | TableRows, check: RowCheck, name: str) -> None:
    n_before = 0
    for block in TableRows.of(rows).blocks():  # masks of all rows take much memory
        infinite = ~np.isfinite(block).all(axis=1)
        if infinite.any():
            item = name.format(n_before + int(infinite.argmax()))
            raise ValueError(f"{item}: expected finite numbers, got NaN or infinity")
        invalid, expected = check(block)
        if invalid.any():
            item = name.format(n_before + int(invalid.argmax()))
            raise ValueError(f"{item}: expected {expected}")
        n_before += len(block)
