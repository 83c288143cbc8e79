"""The coordinates of rows, the same at every party: scaled columns and a supervised metric.

Constants of the columns are releases too. A knot is the mean of at least ``min_count`` neighboring
values of a column, never the value of a single record; a column with fewer values at a party sends
none. The metric comes from moments that parties add up: directions that tell classes apart count
more. Coordinates are rounded to multiples of 2**-16 before they are summed, so that the sums are
integers and the same in whatever order and however split.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from fedneighbors._typing import Floats, Integers
from fedneighbors.kernels._exactsum import MAX_MAGNITUDE
from fedneighbors.methods.fedpnn._centers import without_few_cells

FARTHEST = 3.0
"""Normal scores are cut here: three standard deviations."""


@dataclass(frozen=True)
class Constants:
    """What one party tells of its columns.

    Parameters
    ----------
    knots : float64 array of shape (n_features, n_knots)
        Ascending means of groups of neighboring values; NaN beyond a column's last.
    sizes : int64 array of shape (n_features, n_knots)
        Values in each group, the first of which also counts missing cells that are too few to be
        told; 0 beyond a column's last.
    n_missing : int64 array of shape (n_features,)
        Missing cells, without those of classes that lack fewer than ``min_count``.
    told : bool array of shape (n_features,)
        Whether the cells that a class lacks are nowhere few: none, or at least ``min_count``.
    """

    knots: Floats
    sizes: Integers
    n_missing: Integers
    told: npt.NDArray[np.bool_]


def column_constants(
    x: Floats, *, n_knots: int, min_count: int, labels: Integers | None = None
) -> Constants:
    """Return the constants of a table.

    Cells that fewer than ``min_count`` of a class have in a column count as missing; where a class
    lacks fewer, they are counted with the first group. Then no difference of numbers tells of few.

    Parameters
    ----------
    x : float64 array of shape (n_rows, n_features)
        Missing cells are NaN.
    n_knots : int
        Most groups of a column.
    min_count : int
        Least values of a group.
    labels : int64 array of shape (n_rows,), optional
        Positions of the classes; one class by default.

    Examples
    --------
    >>> x = np.array([[1.0], [2.0], [3.0], [4.0], [9.0], [np.nan]])
    >>> found = column_constants(x, n_knots=8, min_count=2)
    >>> found.knots[0, :2].tolist(), found.sizes[0, :2].tolist(), found.n_missing.tolist()
    ([2.0, 6.5], [4, 2], [0])
    """
    groups_of = np.zeros(len(x), np.int64) if labels is None else labels
    x, n_features = without_few_cells(x, groups_of, min_count=min_count), x.shape[1]
    knots = np.full((n_features, n_knots), np.nan)
    sizes = np.zeros((n_features, n_knots), np.int64)
    for j in range(n_features):
        values = np.sort(x[~np.isnan(x[:, j]), j])
        groups = np.array_split(values, min(n_knots, len(values) // min_count) or 1)
        if len(values) < min_count:
            continue
        # a mean may be rounded beyond its group; knots must ascend
        knots[j, : len(groups)] = [np.clip(group.mean(), group[0], group[-1]) for group in groups]
        sizes[j, : len(groups)] = [len(group) for group in groups]
    n_missing, n_few = _missing(x, groups_of, min_count=min_count)
    sizes[:, 0] += np.where(sizes[:, 0] > 0, n_few, 0)
    return Constants(knots, sizes, n_missing, n_few == 0)


def _missing(x: Floats, labels: Integers, *, min_count: int) -> tuple[Integers, Integers]:
    """Return the missing cells of each column: of classes that lack many, and that lack few."""
    many, few = np.zeros((2, x.shape[1]), np.int64)
    for label in np.unique(labels):
        gone = np.isnan(x[labels == label]).sum(axis=0)
        many += np.where(gone < min_count, 0, gone)
        few += np.where(gone < min_count, gone, 0)
    return many, few


@dataclass(frozen=True)
class Frame:
    """How a row becomes a point, the same at every party.

    Parameters
    ----------
    kind : {"quantile", "minmax", "none"}
        Normal scores of ranks; places between the lowest and the highest; the values themselves.
    values : float64 array of shape (n_features, n_places)
        Ascending places of each column, the last one repeated; two for ``"minmax"``.
    ranks : float64 array of shape (n_features, n_places)
        Share of values below each place; empty for ``"minmax"`` and ``"none"``.
    fill : float64 array of shape (n_features,)
        What a missing cell counts as.
    indicators : int64 array
        Columns whose missing cells are told by a coordinate of their own.
    pooled : int64 array
        Columns that share one further coordinate: whether a cell of any of them is missing.
    """

    kind: str
    values: Floats
    ranks: Floats
    fill: Floats
    indicators: Integers
    pooled: Integers

    @property
    def n_features(self) -> int:
        """Columns of a table."""
        return len(self.fill)

    @property
    def n_coordinates(self) -> int:
        """Coordinates of a point."""
        return len(self.fill) + len(self.indicators) + (len(self.pooled) > 0)

    def without_indicators(self) -> "Frame":
        """Return the frame in which missing cells are filled and no more."""
        return replace(self, indicators=self.indicators[:0], pooled=self.pooled[:0])

    def apply(self, x: Floats) -> Floats:
        """Return the points of rows, of shape (n_rows, n_coordinates).

        Values of 2**200 or more in magnitude, of which no frame is made, count as 2**200.
        """
        gone = np.isnan(x)
        filled = np.where(gone, self.fill, np.clip(x, -MAX_MAGNITUDE, MAX_MAGNITUDE))
        points = np.empty((len(x), self.n_coordinates))
        first, last = self.n_features, self.n_features + len(self.indicators)
        points[:, :first] = self._scaled(filled)
        points[:, first:last] = gone[:, self.indicators]
        points[:, last:] = gone[:, self.pooled].any(axis=1, keepdims=True)
        return points

    def nothing_known(self) -> Floats:
        """Return where a row lies of which nothing is known, not even what is missing."""
        point: Floats = self.apply(np.full((1, self.n_features), np.nan))[0]
        point[self.n_features :] = 0.0
        return point

    def _scaled(self, x: Floats) -> Floats:
        if self.kind == "none":
            return x
        if self.kind == "minmax":
            low, high = self.values.T
            spans = high - low
            return np.asarray((x - low) / np.where(spans > 1 / MAX_MAGNITUDE, spans, 1.0))
        ranks = np.empty_like(x)
        for j in range(x.shape[1]):
            ranks[:, j] = np.interp(x[:, j], self.values[j], self.ranks[j])
        scores: Floats = np.clip(ndtri(ranks), -FARTHEST, FARTHEST)
        return scores


def make_frame(kind: str, parts: Sequence[Constants], *, min_count: int) -> Frame:
    """Return the frame of all parties' constants, in whatever order they came.

    Parameters
    ----------
    kind : {"quantile", "minmax", "none"}
        What is wanted.
    parts : sequence of Constants
        One of each party.
    min_count : int
        Missing cells of a column are told where a party has so many of them: by a coordinate of
        its own, or where a class lacks few somewhere, by one that such columns share.
    """
    knots = np.concatenate([part.knots for part in parts], axis=1)
    sizes = np.concatenate([part.sizes for part in parts], axis=1)
    columns = [_merged(row, weights) for row, weights in zip(knots, sizes, strict=True)]
    fill = np.array([np.interp(0.5, ranks, values) for values, ranks in columns])
    n_missing = np.sum([part.n_missing for part in parts], axis=0)
    own = np.all([part.told for part in parts], axis=0)
    indicators = np.flatnonzero((n_missing >= min_count) & own)
    pooled = np.flatnonzero((n_missing >= min_count) & ~own)
    if kind == "minmax":
        ends = np.array([(values[0], values[-1]) for values, _ in columns]).reshape(-1, 2)
        return Frame(kind, ends, np.zeros((len(ends), 0)), fill, indicators, pooled)
    if kind == "none":
        nothing = np.zeros((len(columns), 0))
        return Frame(kind, nothing, nothing, fill, indicators, pooled)
    longest = max((len(values) for values, _ in columns), default=1)
    values = np.array([np.pad(v, (0, longest - len(v)), mode="edge") for v, _ in columns])
    ranks = np.array([np.pad(r, (0, longest - len(r)), mode="edge") for _, r in columns])
    return Frame(kind, values, ranks, fill, indicators, pooled)


def _merged(knots: Floats, sizes: Integers) -> tuple[Floats, Floats]:
    """Return the distinct knots of one column and the middle rank of each."""
    known = sizes > 0
    if not known.any():
        return np.zeros(1), np.full(1, 0.5)
    tiny = np.abs(knots) < 1 / MAX_MAGNITUDE  # between which a slope could overflow
    values, place = np.unique(np.where(tiny, 0.0, knots)[known], return_inverse=True)
    weights = np.bincount(place, weights=sizes[known])
    ranks = (np.cumsum(weights) - weights / 2) / weights.sum()
    return values, ranks


_QUANTA = 1 << 16
_REACH = 8.0  # coordinates are cut here: 2**19 quanta, squares 2**38
_ROWS = 1 << 14  # whose sums of squares stay below 2**53, exact in float64


@dataclass(frozen=True)
class ClassMoments:
    """Sums over rows, in units of 2**-16 and 2**-32, which parties add up.

    Parameters
    ----------
    counts : int64 array of shape (n_classes,)
        Rows of each class.
    sums : int64 array of shape (n_classes, n_coordinates)
        Of the coordinates, by class.
    products : int64 array of shape (n_coordinates, n_coordinates)
        Of the products of two coordinates, over all classes.
    """

    counts: Integers
    sums: Integers
    products: Integers


def class_moments(points: Floats, labels: Integers, n_classes: int) -> ClassMoments:
    """Return the moments of points.

    Parameters
    ----------
    points : float64 array of shape (n_rows, n_coordinates)
        Cut at 8 in either direction.
    labels : int64 array of shape (n_rows,)
        Positions of the classes.
    n_classes : int
        Classes of the federation.
    """
    n_coordinates = points.shape[1]
    sums = np.zeros((n_classes, n_coordinates), np.int64)
    products = np.zeros((n_coordinates, n_coordinates), np.int64)
    for start in range(0, len(points), _ROWS):
        block = _quanta(points[start : start + _ROWS])
        products += (block.T @ block).astype(np.int64)  # below 2**53: no bit is lost
        for label in np.unique(labels[start : start + _ROWS]):
            sums[label] += (
                block[labels[start : start + _ROWS] == label].sum(axis=0).astype(np.int64)
            )
    return ClassMoments(np.bincount(labels, minlength=n_classes), sums, products)


def _quanta(points: Floats) -> Floats:
    """Return coordinates as whole multiples of 2**-16."""
    return np.asarray(np.rint(np.clip(points, -_REACH, _REACH) * _QUANTA))


def without_few_pairs(
    moments: ClassMoments,
    points: Floats,
    base: Floats,
    known: npt.NDArray[np.bool_],
    *,
    n_columns: int,
    min_count: int,
) -> ClassMoments:
    """Return moments whose products tell of few rows nowhere.

    Where two coordinates say something of the same row for fewer than ``min_count`` rows, those
    rows count in their product as if they said nothing. Numbers of rows that lack the cells of two
    columns are rounded to multiples of ``min_count``: their differences would tell of few.

    Parameters
    ----------
    moments : ClassMoments
        Of these points.
    points : float64 array of shape (n_rows, n_coordinates)
        Rows in the frame.
    base : float64 array of shape (n_coordinates,)
        Where a row lies of which nothing is known.
    known : bool array of shape (n_rows, n_coordinates)
        Whether a coordinate says something of a row: elsewhere it lies at the base.
    n_columns : int
        Coordinates before those that tell missing cells.
    min_count : int
        Fewer rows are few.
    """
    together, beyond = np.zeros((2, *moments.products.shape), np.int64)
    for start in range(0, len(points), _ROWS):
        some = slice(start, start + _ROWS)
        said = known[some].astype(np.float32)  # whose sums are below 2**24, exact in float32
        together += (said.T @ said).astype(np.int64)
        gap = _quanta(points[some]) - _quanta(base)
        beyond += (gap.T @ gap).astype(np.int64)  # of few rows below 2**40 each: exact
    products = moments.products - np.where(together < min_count, beyond, 0)
    told = products[n_columns:, n_columns:]
    counts = min_count * np.rint(told / (float(_QUANTA) ** 2 * min_count)).astype(np.int64)
    np.fill_diagonal(counts, np.diag(together)[n_columns:])
    products[n_columns:, n_columns:] = counts * _QUANTA**2
    return replace(moments, products=products)


def covariance_within(moments: ClassMoments) -> tuple[Floats, Floats]:
    """Return the means of the classes that have rows, and the covariance within classes.

    Parameters
    ----------
    moments : ClassMoments
        Of at least one row.

    Returns
    -------
    means : float64 array of shape (n_present, n_coordinates)
        In the order of the classes.
    within : float64 array of shape (n_coordinates, n_coordinates)
        Symmetric.
    """
    counts = moments.counts
    present = counts > 0
    means = moments.sums[present] / (counts[present, None] * float(_QUANTA))
    between = (means * counts[present, None]).T @ means
    within = (moments.products / float(_QUANTA) ** 2 - between) / int(counts.sum())
    return means, (within + within.T) / 2


def supervised_metric(moments: ClassMoments, *, ridge: float, boost: float) -> Floats:
    """Return a linear map after which Euclidean distance tells classes apart.

    Coordinates are whitened by the covariance within classes; the directions between the means of
    the classes are then stretched.

    Parameters
    ----------
    moments : ClassMoments
        Of all parties.
    ridge : float
        Added to every variance within classes, in units of the mean variance.
    boost : float
        Factor of the directions between class means; 1 for none.

    Returns
    -------
    float64 array of shape (n_coordinates, n_coordinates)
        To multiply points with from the right.
    """
    means, within = covariance_within(moments)
    spread, directions = np.linalg.eigh(within)
    unit = float(np.trace(within)) / len(within) or 1.0  # where nothing varies within classes
    whiten = directions / np.sqrt(np.maximum(spread, 0.0) + ridge * unit)
    apart = (means - means.mean(axis=0)) @ whiten
    _, sizes, rows = np.linalg.svd(apart, full_matrices=False)
    told = rows[sizes > 1e-9 * max(float(sizes.max(initial=0.0)), 1.0)]
    stretched: Floats = whiten + (boost - 1.0) * (whiten @ told.T) @ told
    return stretched
