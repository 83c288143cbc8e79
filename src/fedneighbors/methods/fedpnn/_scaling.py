"""Scaling of columns by constants that parties send.

The scaling constants of a column are knots. A knot is the mean of at least ``min_count``
neighboring values, never the value of a single row; for a column with fewer values a party sends
none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from scipy.special import ndtri

from fedneighbors._typing import Booleans, Floats, Integers
from fedneighbors.federation._messages import encode, message
from fedneighbors.kernels._exactsum import MAX_MAGNITUDE
from fedneighbors.methods.fedpnn._suppression import join_parts, suppress_few_cells
from fedneighbors.tabular._schema import PointMomentsReply, check_n_classes

MAX_SCORE = 3.0
"""Normal scores are clipped at three standard deviations."""


MAX_KNOTS = 1000
"""Maximum number of groups of a column that a request may ask for: 16 kB of reply."""


MAX_COORDINATES = 4096
"""Maximum coordinates of a supervised metric; 8 bytes for each pair of them are 134 MB."""


MAX_ROWS = 1 << 40
"""Upper bound on the rows of a table, so that sums over parties fit into 64 bits."""


def check_columns(columns: Integers | None, n_features: int | None = None) -> None:
    """Check that column positions ascend and lie within the table.

    Parameters
    ----------
    columns : int64 array or None
        Positions; None for all columns.
    n_features : int, optional
        Number of columns of the table, if known.

    Raises
    ------
    ValueError
        If positions are negative, do not ascend, or are out of range.
    """
    if columns is None:
        return
    if columns.ndim != 1 or (np.diff(columns) <= 0).any() or (columns < 0).any():
        raise ValueError("columns must be ascending, non-negative positions")
    if n_features is not None and (columns >= n_features).any():
        raise ValueError(f"a column position exceeds the {n_features} columns of the table")


@message
class ScalingReply:
    """Means of groups of neighboring values of each column, and counts of missing cells.

    Parameters
    ----------
    knots : float64 array of shape (n_features, n_knots)
        Ascending means of groups of neighboring values; NaN after the last group of a column.
    sizes : int64 array of shape (n_features, n_knots)
        Values in each group; 0 after the last group of a column. The first group also counts
        missing cells that are too few to be disclosed.
    n_missing : int64 array of shape (n_features,)
        Missing cells of the column, without those of classes with few missing cells in it.
    is_complete : bool array of shape (n_features,)
        True if ``n_missing`` counts all missing cells of the column: every class has either none or
        at least ``min_count`` of them.
    signature : bytes
        Signature of the party, for requests that quote this reply; empty without a key.
    """

    knots: Floats
    sizes: Integers
    n_missing: Integers
    is_complete: Booleans
    signature: bytes = b""

    def __post_init__(self) -> None:
        if self.knots.ndim != 2 or self.sizes.shape != self.knots.shape:
            raise ValueError("knots and sizes differ in shape")
        columns = self.knots.shape[:1]
        if self.n_missing.shape != columns or self.is_complete.shape != columns:
            raise ValueError("n_missing and is_complete must have one entry for each column")
        for counts in (self.sizes, self.n_missing):
            if (counts < 0).any() or (counts >= MAX_ROWS).any():
                raise ValueError("counts of values and missing cells must be in [0, 2**40)")
        used = self.sizes > 0
        if (used[:, 1:] & ~used[:, :-1]).any():
            raise ValueError("unused knots must come after all used ones")
        with np.errstate(invalid="ignore"):
            if not (np.abs(self.knots[used]) < MAX_MAGNITUDE).all():
                raise ValueError(f"a knot is not a number below {MAX_MAGNITUDE:.3g} in magnitude")
            if ((np.diff(self.knots, axis=1) < 0) & used[:, 1:]).any():
                raise ValueError("knots do not ascend")


@message
class ScalingRequest:
    """Request for the scaling constants of ``columns``; all columns if None.

    A group has at least ``min_count`` values.
    """

    reply: ClassVar[type] = ScalingReply
    single_use: ClassVar[str] = "always"
    n_knots: int
    min_count: int
    columns: Integers | None = None

    def __post_init__(self) -> None:
        if not (0 < self.n_knots <= MAX_KNOTS and self.min_count > 0):
            raise ValueError(f"expected 1 to {MAX_KNOTS} knots of 1 or more values")
        check_columns(self.columns)

    def check(self, party: str, reply: ScalingReply) -> None:  # noqa: ARG002 - runtimes name it
        """Check the number of groups and their sizes."""
        if reply.knots.shape[1] != self.n_knots:
            raise ValueError(f"expected {self.n_knots} knots for each column")
        if self.columns is not None and len(reply.knots) != len(self.columns):
            raise ValueError(f"expected knots of {len(self.columns)} columns")
        if ((reply.sizes > 0) & (reply.sizes < self.min_count)).any():
            raise ValueError(f"a knot is the mean of fewer than {self.min_count} values")


def constants_request(
    constants: Mapping[str, ScalingReply], *, min_count: int, columns: Integers | None
) -> ScalingRequest:
    """Return the request to which constants of parties are replies."""
    (n_knots,) = {part.knots.shape[1] for part in constants.values()}  # else a ValueError
    return ScalingRequest(n_knots, min_count, columns)


def column_constants(
    x: Floats, *, n_knots: int, min_count: int, labels: Integers | None = None
) -> ScalingReply:
    """Return the scaling constants of a table.

    If few rows of a class have a value in a column, these cells count as missing. If few are
    missing, they are counted in the first group of the column. Then no difference between counts
    discloses few cells. Groups are those of :func:`group_values`.

    Examples
    --------
    >>> x = np.array([[1.0], [2.0], [3.0], [4.0], [9.0], [np.nan]])
    >>> reply = column_constants(x, n_knots=8, min_count=2)
    >>> reply.knots[0, :2].tolist(), reply.sizes[0, :2].tolist(), reply.n_missing.tolist()
    ([2.0, 6.5], [4, 2], [0])
    """
    classes = np.zeros(len(x), np.int64) if labels is None else labels
    x, n_features = suppress_few_cells(x, classes, min_count=min_count), x.shape[1]
    knots = np.full((n_features, n_knots), np.nan)
    sizes = np.zeros((n_features, n_knots), np.int64)
    for j in range(n_features):
        groups = group_values(x[:, j], classes, n_knots=n_knots, min_count=min_count)
        counts = np.bincount(groups[groups >= 0])
        if not len(counts):
            continue
        values = np.sort(x[groups >= 0, j])
        parts = np.split(values, counts.cumsum()[:-1])
        # rounding may move a mean beyond its group, but knots must ascend
        knots[j, : len(parts)] = [np.clip(part.mean(), part[0], part[-1]) for part in parts]
        sizes[j, : len(parts)] = counts
    n_missing, n_few = _count_missing(x, classes, min_count=min_count)
    sizes[:, 0] += np.where(sizes[:, 0] > 0, n_few, 0)
    return ScalingReply(knots, sizes, n_missing, n_few == 0)


def group_values(column: Floats, classes: Integers, *, n_knots: int, min_count: int) -> Integers:
    """Return the group of each row, -1 for missing cells.

    Groups of neighboring values have nearly the same size. Neighboring groups are joined if some
    difference of sums of groups and of classes describes few cells.

    Examples
    --------
    >>> column, classes = np.arange(8.0), np.array([0, 0, 0, 1, 1, 1, 1, 1])
    >>> group_values(column, classes, n_knots=4, min_count=2).tolist()
    [0, 0, 0, 0, 0, 0, 1, 1]
    """
    groups = np.full(len(column), -1)
    n_present = int(np.count_nonzero(~np.isnan(column)))
    n_groups = min(n_knots, n_present // min_count)
    if n_groups == 0:
        return groups
    order = np.argsort(column, kind="stable")[:n_present]  # missing cells come last
    groups[order] = np.arange(n_groups).repeat(
        [len(part) for part in np.array_split(order, n_groups)]
    )
    into = join_parts(
        groups[order],
        np.zeros(n_present, np.int64),
        classes[order],
        np.arange(float(n_groups)),
        min_count=min_count,
    )
    _, groups[order] = np.unique(into[groups[order]], return_inverse=True)
    return groups


def _count_missing(x: Floats, labels: Integers, *, min_count: int) -> tuple[Integers, Integers]:
    """Count missing cells by column: of classes with many, and with few."""
    many, few = np.zeros((2, x.shape[1]), np.int64)
    for label in np.unique(labels):
        n_missing = np.isnan(x[labels == label]).sum(axis=0)
        many += np.where(n_missing < min_count, 0, n_missing)
        few += np.where(n_missing < min_count, n_missing, 0)
    return many, few


SCALING_KINDS = ("quantile", "minmax", "none")


@dataclass(frozen=True, eq=False)
class TableScaling:
    """Transformation of rows to points: scaled columns and missing-cell indicators.

    Parameters
    ----------
    kind : {"quantile", "minmax", "none"}
        ``"quantile"``: normal scores of ranks. ``"minmax"``: linear scaling to [0, 1] between the
        lowest and the highest value. ``"none"``: the values themselves.
    values : float64 array of shape (n_features, n_values)
        Ascending values of each column, padded with the last one. For ``"minmax"`` the lowest and
        the highest; for ``"none"`` empty.
    ranks : float64 array of shape (n_features, n_values)
        Fraction of the column below each value; empty for ``"minmax"`` and ``"none"``.
    fill : float64 array of shape (n_features,)
        Value that replaces missing cells.
    indicators : int64 array
        Columns that each have their own missing-cell indicator, an additional coordinate.
    pooled : int64 array
        Columns that share one additional indicator: 1 if a cell of any of them is missing.
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
                raise ValueError("values and ranks of a scaling must be finite, one row per column")
        if not np.isfinite(self.fill).all():
            raise ValueError("fill values of a scaling must be finite")
        for columns in (self.indicators, self.pooled):
            check_columns(columns, n_features)

    @property
    def n_features(self) -> int:
        """Return the number of columns of a table."""
        return len(self.fill)

    @property
    def n_coordinates(self) -> int:
        """Return the number of coordinates of a point."""
        return len(self.fill) + len(self.indicators) + (len(self.pooled) > 0)

    def without_indicators(self) -> "TableScaling":
        """Return the scaling without missing-cell indicators."""
        return replace(self, indicators=self.indicators[:0], pooled=self.pooled[:0])

    def apply(self, x: Floats) -> Floats:
        """Transform rows to points of shape (n_rows, n_coordinates).

        Values are clipped to 2**200 in magnitude; a scaling is only built from smaller ones.
        """
        missing = np.isnan(x)
        filled = np.where(missing, self.fill, np.clip(x, -MAX_MAGNITUDE, MAX_MAGNITUDE))
        points = np.empty((len(x), self.n_coordinates))
        first, last = self.n_features, self.n_features + len(self.indicators)
        points[:, :first] = self._scale(filled)
        points[:, first:last] = missing[:, self.indicators]
        points[:, last:] = missing[:, self.pooled].any(axis=1, keepdims=True)
        return points

    def empty_point(self) -> Floats:
        """Return the point of an all-missing row, with indicators set to 0."""
        point: Floats = self.apply(np.full((1, self.n_features), np.nan))[0]
        point[self.n_features :] = 0.0
        return point

    def _scale(self, x: Floats) -> Floats:
        if self.kind == "none":
            return x
        if self.kind == "minmax":
            low, high = self.values.T
            spans = high - low
            return np.asarray((x - low) / np.where(spans > 1 / MAX_MAGNITUDE, spans, 1.0))
        ranks = np.empty_like(x)
        for j in range(x.shape[1]):
            ranks[:, j] = np.interp(x[:, j], self.values[j], self.ranks[j])
        scores: Floats = np.clip(ndtri(ranks), -MAX_SCORE, MAX_SCORE)
        return scores


def make_scaling(kind: str, parts: Sequence[ScalingReply], *, min_count: int) -> TableScaling:
    """Build the scaling from all parties' constants, independent of their order.

    Parameters
    ----------
    kind : {"quantile", "minmax", "none"}
        Kind of the scaling, see :class:`TableScaling`.
    parts : sequence of ScalingReply
        Constants of each party.
    min_count : int
        A column with at least ``min_count`` missing cells gets a missing-cell indicator: its own,
        or the shared one if a class has few missing cells in the column at any party.
    """
    knots = np.concatenate([part.knots for part in parts], axis=1)
    sizes = np.concatenate([part.sizes for part in parts], axis=1)
    columns = [_merge_knots(row, weights) for row, weights in zip(knots, sizes, strict=True)]
    fill = np.array([np.interp(0.5, ranks, values) for values, ranks in columns])
    n_missing = np.sum([part.n_missing for part in parts], axis=0)
    has_own = np.all([part.is_complete for part in parts], axis=0)
    indicators = np.flatnonzero((n_missing >= min_count) & has_own)
    pooled = np.flatnonzero((n_missing >= min_count) & ~has_own)
    if kind == "minmax":
        ranges = np.array([(values[0], values[-1]) for values, _ in columns]).reshape(-1, 2)
        return TableScaling(kind, ranges, np.zeros((len(ranges), 0)), fill, indicators, pooled)
    if kind == "none":
        empty = np.zeros((len(columns), 0))
        return TableScaling(kind, empty, empty, fill, indicators, pooled)
    longest = max((len(values) for values, _ in columns), default=1)
    values = np.array([np.pad(v, (0, longest - len(v)), mode="edge") for v, _ in columns])
    ranks = np.array([np.pad(r, (0, longest - len(r)), mode="edge") for _, r in columns])
    return TableScaling(kind, values, ranks, fill, indicators, pooled)


def check_scaling(
    scaling: TableScaling, constants: Mapping[str, ScalingReply], *, min_count: int
) -> None:
    """Check that a scaling follows from the parties' constants.

    A party that signs its constants accepts no other scaling: one that is made up could map all
    values but one to a constant, so that sums over many rows would disclose one.

    Raises
    ------
    ValueError
        If it does not follow from them.
    """
    if any(len(part.knots) != scaling.n_features for part in constants.values()):
        raise ValueError("the constants are of another number of columns")
    expected = make_scaling(scaling.kind, list(constants.values()), min_count=min_count)
    if encode(scaling) not in (encode(expected), encode(expected.without_indicators())):
        raise ValueError("the scaling does not follow from the constants")


@message
class PointMomentsRequest:
    """Request for the moments of the rows in the agreed scaling.

    Rows of classes with fewer than ``min_count`` rows at the party are left out.
    ``constants`` are the signed constants from which the scaling follows; empty if the parties do
    not sign.
    """

    reply: ClassVar[type] = PointMomentsReply
    single_use: ClassVar[str] = "always"
    scaling: TableScaling
    classes: tuple[str | int | float | bool, ...]
    min_count: int
    columns: Integers | None = None
    constants: Mapping[str, ScalingReply] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_columns(self.columns)
        if self.scaling.n_coordinates > MAX_COORDINATES:
            raise ValueError(f"expected at most {MAX_COORDINATES} coordinates")
        check_n_classes(len(self.classes))

    @property
    def quoted(self) -> Mapping[str, ScalingReply]:
        """Return the replies on which the request depends, by party."""
        return self.constants

    @property
    def quoted_request(self) -> ScalingRequest:
        """Return the request to which these are replies."""
        return constants_request(self.constants, min_count=self.min_count, columns=self.columns)

    def check_quoted(self) -> None:
        """Raise ValueError if the request does not follow from the quoted replies."""
        check_scaling(self.scaling, self.constants, min_count=self.min_count)


def _merge_knots(knots: Floats, sizes: Integers) -> tuple[Floats, Floats]:
    """Return the distinct knots of one column and their mid-ranks."""
    used = sizes > 0
    if not used.any():
        return np.zeros(1), np.full(1, 0.5)
    tiny = np.abs(knots) < 1 / MAX_MAGNITUDE  # a slope between two of these could overflow
    values, index = np.unique(np.where(tiny, 0.0, knots)[used], return_inverse=True)
    weights = np.bincount(index, weights=sizes[used])
    ranks = (np.cumsum(weights) - weights / 2) / weights.sum()
    return values, ranks
