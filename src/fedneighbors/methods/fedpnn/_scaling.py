"""The coordinates of rows, the same at every party: scaled columns, and moments of these.

Constants of the columns are releases too. A knot is the mean of at least ``min_count`` neighboring
values of a column, never the value of a single record; a column with fewer values at a party sends
none. Parties add up the moments of coordinates, of which a supervised metric is made. Coordinates
are rounded to multiples of 2**-16 before they are summed, so that the sums are integers and the
same in whatever order and however split.

Nothing that stands for few records may leave a party: fewer than ``min_count`` and more than none.
That goes for the rows of a class, for the cells of a class that a column has, for those that it
lacks, and for the records of a center.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from fedneighbors._typing import Floats, Integers
from fedneighbors.federation._messages import message
from fedneighbors.kernels._exactsum import MAX_MAGNITUDE

FARTHEST = 3.0
"""Normal scores are cut here: three standard deviations."""


MOST_KNOTS = 10_000
"""Groups of a column that a party tells of at most."""


MOST_ROWS = 1 << 40
"""Rows of a table are fewer, so that sums over parties keep to 64 bits."""


QUANTA = 1 << 16


_REACH = 8.0  # coordinates are cut here: 2**19 quanta, squares 2**38


_ROWS = 1 << 14  # their sums of squares stay below 2**53, exact in float64


Booleans = npt.NDArray[np.bool_]


def check_columns(columns: Integers | None, n_features: int | None = None) -> None:
    """Raise unless column positions ascend and exist.

    Parameters
    ----------
    columns : int64 array or None
        Positions; None for all columns.
    n_features : int, optional
        Columns of the table, where they are known.

    Raises
    ------
    ValueError
        If they are none.
    """
    if columns is None:
        return
    if columns.ndim != 1 or (np.diff(columns) <= 0).any() or (columns < 0).any():
        raise ValueError("columns are not ascending positions")
    if n_features is not None and (columns >= n_features).any():
        raise ValueError(f"a column is beyond the {n_features} of the table")


@message
class ScalingReply:
    """Means of groups of neighboring values of each column, and what is missing.

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
    told: Booleans

    def __post_init__(self) -> None:
        if self.knots.ndim != 2 or self.sizes.shape != self.knots.shape:
            raise ValueError("knots and sizes differ in shape")
        columns = self.knots.shape[:1]
        if self.n_missing.shape != columns or self.told.shape != columns:
            raise ValueError("missing cells are not counted for every column")
        for counts in (self.sizes, self.n_missing):
            if (counts < 0).any() or (counts >= MOST_ROWS).any():
                raise ValueError("a group of values or of missing cells is of no table's size")
        used = self.sizes > 0
        if (used[:, 1:] & ~used[:, :-1]).any():
            raise ValueError("knots have gaps between them")
        with np.errstate(invalid="ignore"):
            if not (np.abs(self.knots[used]) < MAX_MAGNITUDE).all():
                raise ValueError(f"a knot is not a number below {MAX_MAGNITUDE:.3g} in magnitude")
            if ((np.diff(self.knots, axis=1) < 0) & used[:, 1:]).any():
                raise ValueError("knots do not ascend")


@message
class ScalingRequest:
    """Ask for the constants of the columns, in groups of at least ``min_count`` values.

    Of all columns where ``columns`` is None.
    """

    reply: ClassVar[type] = ScalingReply
    n_knots: int
    min_count: int
    columns: Integers | None = None

    def __post_init__(self) -> None:
        if not (0 < self.n_knots <= MOST_KNOTS and self.min_count > 0):
            raise ValueError(f"expected 1 to {MOST_KNOTS} knots of 1 or more values")
        check_columns(self.columns)

    def check(self, party: str, reply: ScalingReply) -> None:  # noqa: ARG002 - runtimes name it
        """Refuse groups that are too small, and those of another number."""
        if reply.knots.shape[1] != self.n_knots:
            raise ValueError(f"expected {self.n_knots} knots for each column")
        if self.columns is not None and len(reply.knots) != len(self.columns):
            raise ValueError(f"expected knots of {len(self.columns)} columns")
        if ((reply.sizes > 0) & (reply.sizes < self.min_count)).any():
            raise ValueError(f"a knot stands for fewer than {self.min_count} values")


def in_usual_classes(y: npt.NDArray[np.generic], *, min_count: int) -> Booleans:
    """Mark rows of classes with at least ``min_count`` rows."""
    _, label, sizes = np.unique(y, return_inverse=True, return_counts=True)
    return np.asarray(sizes[label] >= min_count)


def without_few_cells(x: Floats, labels: Integers, *, min_count: int) -> Floats:
    """Return the table without cells of columns rare in a class.

    Examples
    --------
    >>> x = np.array([[1.0, 1.0], [np.nan, 2.0], [np.nan, 3.0]])
    >>> without_few_cells(x, np.zeros(3, int), min_count=2).tolist()
    [[nan, 1.0], [nan, 2.0], [nan, 3.0]]
    """
    kept = x.copy()
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        held = (~np.isnan(x[rows])).sum(axis=0)
        few = np.flatnonzero((held > 0) & (held < min_count))
        kept[np.ix_(rows, few)] = np.nan
    return kept


def without_few_told(told: Floats, labels: Integers, *, min_count: int) -> Floats:
    """Equalize missing-cell coordinates that differ for few rows.

    Examples
    --------
    >>> told = np.array([[1.0, 1.0], [0.0, 1.0], [0.0, 1.0], [0.0, 0.0]])
    >>> without_few_told(told, np.zeros(4, int), min_count=2).T.tolist()
    [[0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]]
    """
    even = told.copy()
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        n_told = told[rows].sum(axis=0)
        few, all_but_few = n_told < min_count, len(rows) - n_told < min_count
        even[np.ix_(rows, np.flatnonzero(few))] = 0.0
        even[np.ix_(rows, np.flatnonzero(all_but_few & ~few))] = 1.0
    return even


def column_constants(
    x: Floats, *, n_knots: int, min_count: int, labels: Integers | None = None
) -> ScalingReply:
    """Return the constants of a table.

    Cells of a column count as missing in a class in which fewer than ``min_count`` rows have them.
    Classes that lack fewer cells are counted with the first group. No difference of two numbers
    then describes fewer than ``min_count`` rows.

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
    return ScalingReply(knots, sizes, n_missing, n_few == 0)


def _missing(x: Floats, labels: Integers, *, min_count: int) -> tuple[Integers, Integers]:
    """Return each column's missing cells, split by frequency.

    Classes that lack many cells, and classes that lack few.
    """
    many, few = np.zeros((2, x.shape[1]), np.int64)
    for label in np.unique(labels):
        gone = np.isnan(x[labels == label]).sum(axis=0)
        many += np.where(gone < min_count, 0, gone)
        few += np.where(gone < min_count, gone, 0)
    return many, few


@dataclass(frozen=True, eq=False)
class Scaling:
    """Transformation of rows to points, the same at every party.

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

    def __post_init__(self) -> None:
        n_features = len(self.fill)
        for part in (self.values, self.ranks):
            if part.ndim != 2 or len(part) != n_features or not np.isfinite(part).all():
                raise ValueError("places of a frame are not finite numbers for every column")
        if not np.isfinite(self.fill).all():
            raise ValueError("a frame does not fit its columns")
        for columns in (self.indicators, self.pooled):
            check_columns(columns, n_features)

    @property
    def n_features(self) -> int:
        """Return the number of table columns."""
        return len(self.fill)

    @property
    def n_coordinates(self) -> int:
        """Return the number of coordinates of a point."""
        return len(self.fill) + len(self.indicators) + (len(self.pooled) > 0)

    def without_indicators(self) -> "Scaling":
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
        """Return the point of a row without any information.

        Not even its missing cells are known.
        """
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


def make_frame(kind: str, parts: Sequence[ScalingReply], *, min_count: int) -> Scaling:
    """Return the frame of all parties' constants, in whatever order they came.

    Parameters
    ----------
    kind : {"quantile", "minmax", "none"}
        What is wanted.
    parts : sequence of ScalingReply
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
        return Scaling(kind, ends, np.zeros((len(ends), 0)), fill, indicators, pooled)
    if kind == "none":
        nothing = np.zeros((len(columns), 0))
        return Scaling(kind, nothing, nothing, fill, indicators, pooled)
    longest = max((len(values) for values, _ in columns), default=1)
    values = np.array([np.pad(v, (0, longest - len(v)), mode="edge") for v, _ in columns])
    ranks = np.array([np.pad(r, (0, longest - len(r)), mode="edge") for _, r in columns])
    return Scaling(kind, values, ranks, fill, indicators, pooled)


def _merged(knots: Floats, sizes: Integers) -> tuple[Floats, Floats]:
    """Return the distinct knots of a column and their middle ranks."""
    known = sizes > 0
    if not known.any():
        return np.zeros(1), np.full(1, 0.5)
    tiny = np.abs(knots) < 1 / MAX_MAGNITUDE  # between which a slope could overflow
    values, place = np.unique(np.where(tiny, 0.0, knots)[known], return_inverse=True)
    weights = np.bincount(place, weights=sizes[known])
    ranks = (np.cumsum(weights) - weights / 2) / weights.sum()
    return values, ranks


@message
class PointMomentsReply:
    """Sums over rows, in units of 2**-16 and 2**-32, which parties add up.

    Classes with fewer than ``min_count`` rows at the party are left out of all three.

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


@message
class PointMomentsRequest:
    """Ask for the moments of the rows in the agreed frame."""

    reply: ClassVar[type] = PointMomentsReply
    frame: Scaling
    classes: tuple[str | int | float | bool, ...]
    min_count: int
    columns: Integers | None = None

    def __post_init__(self) -> None:
        check_columns(self.columns)


def class_moments(points: Floats, labels: Integers, n_classes: int) -> PointMomentsReply:
    """Return the moments of points."""
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
    return PointMomentsReply(np.bincount(labels, minlength=n_classes), sums, products)


def _quanta(points: Floats) -> Floats:
    """Return coordinates as whole multiples of 2**-16."""
    return np.asarray(np.rint(np.clip(points, -_REACH, _REACH) * QUANTA))


def without_few_pairs(
    moments: PointMomentsReply,
    points: Floats,
    base: Floats,
    known: Booleans,
    *,
    n_columns: int,
    min_count: int,
) -> PointMomentsReply:
    """Return moments whose products tell of few rows nowhere.

    Where two coordinates say something of the same row for fewer than ``min_count`` rows, those
    rows count in their product as if they said nothing. Numbers of rows that lack the cells of two
    columns are rounded to multiples of ``min_count``: their differences would tell of few.

    Parameters
    ----------
    moments : PointMomentsReply
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
        said = known[some].astype(np.float32)  # their sums are below 2**24, exact in float32
        together += (said.T @ said).astype(np.int64)
        gap = _quanta(points[some]) - _quanta(base)
        beyond += (gap.T @ gap).astype(np.int64)  # few rows below 2**40 each: exact
    products = moments.products - np.where(together < min_count, beyond, 0)
    told = products[n_columns:, n_columns:]
    counts = min_count * np.rint(told / (float(QUANTA) ** 2 * min_count)).astype(np.int64)
    np.fill_diagonal(counts, np.diag(together)[n_columns:])
    products[n_columns:, n_columns:] = counts * QUANTA**2
    return replace(moments, products=products)
