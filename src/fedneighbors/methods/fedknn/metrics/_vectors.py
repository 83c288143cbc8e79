"""Vectors of numbers under the Euclidean, Manhattan and cosine distance.

Vectors of many columns are mapped to a few features, whose distances never exceed those of the
vectors. Euclidean: coordinates along the directions of largest variance in a sample, and the length
of the residual. If ``a`` and ``b`` are the coordinates of two vectors along orthonormal directions
and ``r`` and ``s`` the lengths of the residuals, ``|a - b|**2 + (r - s)**2`` is at most the squared
distance. Manhattan: sums over blocks of adjacent columns.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.spatial import cKDTree

from fedneighbors._typing import Floats, Integers
from fedneighbors.kernels.vectors._distances import absolute_sums, square_sums
from fedneighbors.kernels.vectors._nearest import HALF, PLAIN, ROOT, RowSearch
from fedneighbors.methods.fedknn.metrics._points import (
    MAX_MAGNITUDE,
    BoundedSession,
    MinkowskiScale,
    ScanSession,
    TreeSession,
)
from fedneighbors.methods.fedknn.metrics._sessions import Session, check_ranks

_N_FEATURES = 32
_SAMPLE_SIZE = 4096  # rows that determine the directions
_N_ITERATIONS = 4  # bounds are valid after any number
_ROWS_PER_BLOCK = 8192  # limits the memory for projections

# Features are stored as float32: half the memory to read, and bounds are barely lower. The error is
# relative to a feature's magnitude; values below 2**-149 underflow.
_STORAGE_ERROR = 2.0**-23
_UNDERFLOW = 2.0**-140


class DirectionFeatures:
    """Features whose distances are lower bounds of the rows' Euclidean distances.

    Parameters
    ----------
    rows : float64 array of shape (n_rows, n_columns)
        More than 32 columns, the number of features; magnitudes below 2**60.
    """

    def __init__(self, rows: Floats) -> None:
        sample = rows[:: max(1, len(rows) // _SAMPLE_SIZE)]
        self._center = sample.mean(axis=0)
        self._directions = _main_directions(sample - self._center, _N_FEATURES - 1)
        self._features = np.empty((len(rows), _N_FEATURES), np.float32)
        self._max_length = 0.0
        for start in range(0, len(rows), _ROWS_PER_BLOCK):
            block = rows[start : start + _ROWS_PER_BLOCK]
            features, length = self._project(block)
            self._features[start : start + len(block)] = features
            self._max_length = max(self._max_length, length)

    def bounds(self, query: Floats) -> Floats:
        """Return lower bounds of each row's Euclidean distance to the query.

        Bounds are not negative.
        """
        features, length = self._project(query[np.newaxis])
        distances = np.sqrt(square_sums(self._features, features[0]))
        return np.maximum(distances - self._compute_margin(length), 0.0)

    def _project(self, rows: Floats) -> tuple[Floats, float]:
        """Return features of rows and the greatest distance from the center."""
        centered = rows - self._center
        coordinates = centered @ self._directions
        squares = (centered * centered).sum(axis=1)
        residuals = np.sqrt(np.maximum(squares - (coordinates * coordinates).sum(axis=1), 0.0))
        return np.column_stack([coordinates, residuals]), float(np.sqrt(squares.max()))

    def _compute_margin(self, length: float) -> float:
        # Sums of n products or squares have errors below n 2**-50 of the squared lengths, including
        # the directions' deviation from orthonormality (checked in _main_directions); the root of
        # that is the possible error of the residual's length.
        n_columns = len(self._center)
        rounding = np.sqrt((n_columns + 64) * 2.0**-48) + _STORAGE_ERROR
        return float(rounding * (self._max_length + length)) + _UNDERFLOW


class ColumnSumFeatures:
    """Features whose distances are lower bounds of the rows' Manhattan distances.

    Parameters
    ----------
    rows : float64 array of shape (n_rows, n_columns)
        More than 32 columns, the number of features; magnitudes below 2**60.
    """

    def __init__(self, rows: Floats) -> None:
        n_columns = rows.shape[1]
        self._starts = np.arange(_N_FEATURES) * n_columns // _N_FEATURES
        self._rounding = (n_columns + 64) * 2.0**-50 + _STORAGE_ERROR
        self._features = np.add.reduceat(rows, self._starts, axis=1).astype(np.float32)
        self._max_length = float(absolute_sums(rows, np.zeros(n_columns)).max())

    def bounds(self, query: Floats) -> Floats:
        """Return lower bounds of each row's Manhattan distance to the query.

        Bounds are not negative.
        """
        distances = absolute_sums(self._features, np.add.reduceat(query, self._starts))
        length = float(np.abs(query).sum())
        margin = self._rounding * (self._max_length + length) + _UNDERFLOW
        return np.asarray(np.maximum(distances - margin, 0.0))


def _main_directions(centered: Floats, n_directions: int) -> Floats:
    """Return orthonormal columns that span most of the variance, by subspace iteration.

    Any orthonormal columns give valid bounds, so that any start will do. It is fixed, so that
    results are reproducible.
    """
    start = np.random.default_rng(0).standard_normal((centered.shape[1], n_directions))
    directions = np.linalg.qr(start)[0]
    for _ in range(_N_ITERATIONS):
        directions = np.linalg.qr(centered.T @ (centered @ directions))[0]
    deviation = np.abs(directions.T @ directions - np.eye(n_directions)).sum(axis=0).max()
    if not deviation < centered.shape[1] * 2.0**-50:
        raise ArithmeticError(f"directions are not orthonormal: deviation {deviation:.3g}")
    return np.asarray(directions)


_KINDS = {"euclidean": ROOT, "manhattan": PLAIN, "cosine": HALF}
VECTOR_METRICS = tuple(_KINDS)

# Outside these ranges a scan is used.
_MAX_TREE_COLUMNS = 12
_MIN_TREE_ROWS = 1024
_MIN_FEATURE_COLUMNS = 64
_MIN_FEATURE_ROWS = 4096
_MAX_FEATURE_MAGNITUDE = 2.0**60  # features are float32, and their squares stay finite


class VectorMetric:
    """A distance of vectors of equal length.

    Parameters
    ----------
    name : {"euclidean", "manhattan", "cosine"}
        Cosine distance is one minus the cosine of the angle, computed as half the squared distance
        of the vectors scaled to length one: accurate near zero, never negative.

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

    def __init__(self, name: str) -> None:
        if name not in VECTOR_METRICS:
            raise ValueError(f"expected a name among {VECTOR_METRICS}, got {name!r}")
        self.name = name

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
        return float(self.distances(rows[1:], rows[0], None)[0])

    def index(self, objects: Sequence[Any], *, ranks: Integers) -> "_VectorIndex":
        """Return an index of vectors.

        Raises
        ------
        ValueError
            As for ``distance``; the error names the position of the object.
        """
        rows = self.scale_rows(objects)
        return _VectorIndex(self, rows, check_ranks(ranks, len(rows)))

    def scale_rows(self, objects: Sequence[Any], *, n_columns: int | None = None) -> Floats:
        """Return objects as rows of the space in which distances are computed.

        ``n_columns`` is their required length, by default that of the first one.
        """
        return self._normalize(as_rows(objects, self._find_invalid, n_columns=n_columns))

    def scale_query(self, query: Any, rows: Floats) -> Floats:
        """Return a query as a point in the space of scaled rows."""
        row = as_row(query, self._find_invalid, n_columns=rows.shape[1] if len(rows) else None)
        return np.asarray(self._normalize(row[np.newaxis])[0])

    def distances(self, rows: Floats, point: Floats, positions: Integers | None) -> Floats:
        """Return the distances of a point to scaled rows, optionally at ``positions``."""
        if self.name == "manhattan":
            return absolute_sums(rows, point, positions)
        squares = square_sums(rows, point, positions)
        return np.sqrt(squares) if self.name == "euclidean" else squares * 0.5

    def _normalize(self, rows: Floats) -> Floats:
        """Scale the rows to length one for the cosine; return others unchanged."""
        if self.name != "cosine" or len(rows) == 0:
            return rows
        rows = rows / np.abs(rows).max(axis=1, keepdims=True)  # so that squares do not overflow
        return np.asarray(rows / np.sqrt(square_sums(rows, np.zeros(rows.shape[1])))[:, np.newaxis])

    def _find_invalid(self, rows: Floats) -> tuple[npt.NDArray[np.bool_], str]:
        if self.name == "cosine":
            zero = ~np.asarray(rows.any(axis=1))
            return zero, "a number other than zero: a zero vector has no angle"
        large = np.asarray((np.abs(rows) >= MAX_MAGNITUDE).any(axis=1))
        return large, f"magnitudes below {MAX_MAGNITUDE:.3g}; rescale the columns"

    def make_scale(self, n_columns: int) -> MinkowskiScale:
        """Return the conversion to distances of the search space."""
        return MinkowskiScale(
            power=1 if self.name == "manhattan" else 2,
            halved_square=self.name == "cosine",
            n_columns=n_columns,
        )


class _VectorIndex:
    def __init__(self, metric: VectorMetric, rows: Floats, ranks: Integers) -> None:
        self.n_objects = len(rows)
        self._metric = metric
        self._rows = rows
        self._ranks = ranks
        self._scale = metric.make_scale(rows.shape[1])
        self._search: RowSearch | None = None
        self._tree: cKDTree | None = None
        self._features: DirectionFeatures | ColumnSumFeatures | None = None
        n_rows, n_columns = rows.shape
        if n_columns <= _MAX_TREE_COLUMNS and n_rows >= _MIN_TREE_ROWS:
            self._tree = cKDTree(rows)
        elif (
            n_columns >= _MIN_FEATURE_COLUMNS
            and n_rows >= _MIN_FEATURE_ROWS
            and np.abs(rows).max() < _MAX_FEATURE_MAGNITUDE
        ):
            is_manhattan = metric.name == "manhattan"
            self._features = ColumnSumFeatures(rows) if is_manhattan else DirectionFeatures(rows)

    def open(self, query: Any) -> Session:
        point = self._metric.scale_query(query, self._rows)
        if self.n_objects == 0:
            return ScanSession(self._ranks, lambda _: np.empty(0))
        measure = partial(self._metric.distances, self._rows, point)
        if self._tree is not None:
            return TreeSession(
                self._ranks,
                measure,
                lambda: measure(None),
                tree=self._tree,
                point=point,
                scale=self._scale,
            )
        features = self._features
        if features is not None and np.abs(point).max() < _MAX_FEATURE_MAGNITUDE:
            return BoundedSession(
                self._ranks, measure, lambda: self._scale.lower(features.bounds(point))
            )
        return ScanSession(self._ranks, measure)

    def nearest(self, queries: Floats, k: int, *, peak: float) -> tuple[Floats, Integers]:
        """Return distances and positions of the k nearest objects of each query.

        ``peak`` is the largest magnitude in the queries, NaN if any number is. The results are
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
        if self._search is None:
            self._search = RowSearch.of(self._rows, self._ranks, kind=_KINDS[self._metric.name])
        return self._search.nearest(points, k)


RowCheck = Callable[[Floats], tuple[npt.NDArray[np.bool_], str]]
"""Function from rows to a mask of the invalid ones and a description of valid ones."""

_NUMERIC = "buif"


def as_rows(objects: Sequence[Any], check: RowCheck, *, n_columns: int | None = None) -> Floats:
    """Return objects as a table with one row each.

    Parameters
    ----------
    objects : array of shape (n_objects, n_columns) or sequence of sequences of numbers
        May be empty.
    check : callable
        Check of rows of finite numbers.
    n_columns : int, optional
        Required length of each object; by default that of the first one.

    Returns
    -------
    float64 array of shape (n_objects, n_columns), C order
        A copy.

    Raises
    ------
    ValueError
        If an object is not a vector of finite numbers, has another length, or fails the check; the
        error names its position.
    """
    if isinstance(objects, np.ndarray) and objects.ndim == 2 and objects.dtype.kind in _NUMERIC:
        rows = np.array(objects, np.float64, order="C")
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


def as_row(query: Any, check: RowCheck, *, n_columns: int | None = None) -> Floats:
    """Return a query as a vector of float64.

    Raises
    ------
    ValueError
        If it is not a vector of finite numbers, has another length, or fails the check.
    """
    row = _to_vector(query, "the query").astype(np.float64)
    _check_length(row, n_columns or max(1, len(row)), "the query")
    _check_rows(row[np.newaxis], check, "the query")
    return row


def _to_vector(item: Any, name: str) -> npt.NDArray[Any]:
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


def _check_length(vector: npt.NDArray[Any], n_columns: int, name: str) -> None:
    if len(vector) != n_columns:
        raise ValueError(f"{name}: expected {n_columns} numbers, got {len(vector)}")


def _check_rows(rows: Floats, check: RowCheck, name: str) -> None:
    infinite = ~np.isfinite(rows).all(axis=1)
    if infinite.any():
        item = name.format(int(infinite.argmax()))
        raise ValueError(f"{item}: expected finite numbers, got NaN or infinity")
    invalid, expected = check(rows)
    if invalid.any():
        raise ValueError(f"{name.format(int(invalid.argmax()))}: expected {expected}")
