"""What travels between FedPNN parties and their coordinator."""

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats, Integers
from fedneighbors.federation._messages import decode, encode, message
from fedneighbors.kernels._exactsum import MAX_MAGNITUDE, N_SQUARE_LIMBS, N_SUM_LIMBS
from fedneighbors.methods.fedpnn._scaling import Frame
from fedneighbors.methods.fedpnn.algorithm import SIGMAS
from fedneighbors.tabular._schema import Schema

Booleans = npt.NDArray[np.bool_]

MOST_KNOTS = 10_000
"""Groups of a column that a party tells of at most."""

MOST_ROWS = 1 << 40
"""Rows of a table are fewer, so that sums over parties keep to 64 bits."""

FARTHEST_CENTER = 1e150
"""Centers lie nearer to zero, so that squares of distances stay finite."""


@message
class FrameParts:
    """The fields of a frame as they travel."""

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


def check_columns(columns: Integers | None, n_features: int | None = None) -> None:
    """Refuse positions of columns that do not ascend, or that no table of so many has.

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


def frame_bytes(frame: Frame) -> bytes:
    """Return a frame as bytes, the same for the same frame."""
    return encode(
        FrameParts(
            frame.kind, frame.values, frame.ranks, frame.fill, frame.indicators, frame.pooled
        )
    )


def read_frame(raw: bytes) -> Frame:
    """Return the frame that :func:`frame_bytes` wrote.

    Raises
    ------
    WireError
        If the bytes are none.
    """
    parts = decode(raw, (FrameParts,))
    return Frame(parts.kind, parts.values, parts.ranks, parts.fill, parts.indicators, parts.pooled)


@message
class SchemaRequest:
    """Ask what the table looks like; labels of fewer than ``min_count`` rows are not announced."""

    reply: ClassVar[type] = Schema
    min_count: int


@message
class SelectionReply:
    """Exact sums of every column over the rows of each class, which add up.

    Of shapes (n_classes, n_features), (n_classes, n_features, 13) and (n_classes, n_features, 26):
    see :class:`~._selection.ClassSums`.
    """

    counts: Integers
    sums: Integers
    squares: Integers


@message
class SelectionRequest:
    """Ask for the sums that tell which columns tell classes apart."""

    reply: ClassVar[type] = SelectionReply
    classes: tuple[str | int | float | bool, ...]
    n_features: int
    min_count: int

    def check(self, party: str, reply: SelectionReply) -> None:  # noqa: ARG002 - runtimes name it
        """Refuse sums of another table, and those of fewer than ``min_count`` cells."""
        cells = len(self.classes), self.n_features
        if (reply.counts.shape, reply.sums.shape, reply.squares.shape) != (
            cells,
            (*cells, N_SUM_LIMBS),
            (*cells, N_SQUARE_LIMBS),
        ):
            raise ValueError(f"expected sums of {cells[0]} classes and {cells[1]} columns")
        if ((reply.counts != 0) & (reply.counts < self.min_count)).any():
            raise ValueError(f"a sum stands for fewer than {self.min_count} cells")
        if (reply.counts >= MOST_ROWS).any():
            raise ValueError("a sum stands for more cells than any table has")


@message
class ConstantsReply:
    """Means of groups of neighboring values of each column, and what is missing.

    ``knots`` is float64 and ``sizes`` int64, both of shape (n_features, n_knots); a group of size 0
    is none. ``told`` says in which columns no class lacks few cells.
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
class ConstantsRequest:
    """Ask for the constants of the columns, in groups of at least ``min_count`` values.

    Of all columns where ``columns`` is None.
    """

    reply: ClassVar[type] = ConstantsReply
    n_knots: int
    min_count: int
    columns: Integers | None = None

    def __post_init__(self) -> None:
        if not (0 < self.n_knots <= MOST_KNOTS and self.min_count > 0):
            raise ValueError(f"expected 1 to {MOST_KNOTS} knots of 1 or more values")
        check_columns(self.columns)

    def check(self, party: str, reply: ConstantsReply) -> None:  # noqa: ARG002 - runtimes name it
        """Refuse groups that are too small, and those of another number."""
        if reply.knots.shape[1] != self.n_knots:
            raise ValueError(f"expected {self.n_knots} knots for each column")
        if self.columns is not None and len(reply.knots) != len(self.columns):
            raise ValueError(f"expected knots of {len(self.columns)} columns")
        if ((reply.sizes > 0) & (reply.sizes < self.min_count)).any():
            raise ValueError(f"a knot stands for fewer than {self.min_count} values")


@message
class MomentsReply:
    """Rows, sums of coordinates and of their products, as integers that add up.

    Of shapes (n_classes,), (n_classes, n_coordinates) and (n_coordinates, n_coordinates). Classes
    with fewer than ``min_count`` rows at the party are left out of all three.
    """

    counts: Integers
    sums: Integers
    products: Integers


@message
class MomentsRequest:
    """Ask for the moments of the rows in the agreed frame."""

    reply: ClassVar[type] = MomentsReply
    frame: bytes
    classes: tuple[str | int | float | bool, ...]
    min_count: int
    columns: Integers | None = None

    def __post_init__(self) -> None:
        check_columns(self.columns)


@message
class CentersReply:
    """The centers of a party, each of at least ``min_count`` records.

    ``centers`` is float64 of shape (n_centers, n_dimensions), ``counts`` int64 of shape (n_centers,
    n_classes). ``silent`` says of which classes there are fewer than ``min_count`` records, so that
    nothing is sent. ``choice`` is the position of the smoothing that suits the party's rows best,
    -1 if they cannot tell. The last four are the party's constants, empty where the frame was
    agreed before.
    """

    centers: Floats
    counts: Integers
    silent: Booleans
    choice: int
    knots: Floats
    sizes: Integers
    n_missing: Integers
    told: Booleans

    def __post_init__(self) -> None:
        if self.centers.ndim != 2 or not (np.abs(self.centers) < FARTHEST_CENTER).all():
            raise ValueError(f"a center is not a point within {FARTHEST_CENTER:g}")
        if self.counts.ndim != 2 or len(self.counts) != len(self.centers):
            raise ValueError("centers and counts differ in number")
        if (self.counts < 0).any() or (self.counts >= MOST_ROWS).any():
            raise ValueError("a count is of no table's size")
        if not -1 <= self.choice < len(SIGMAS):
            raise ValueError("there is no such smoothing")
        ConstantsReply(self.knots, self.sizes, self.n_missing, self.told)

    @property
    def constants(self) -> ConstantsReply:
        """The constants of the party's own frame."""
        return ConstantsReply(self.knots, self.sizes, self.n_missing, self.told)


@message
class CentersRequest:
    """Ask for centers in the agreed frame and metric; the metric is the unit one where empty.

    Where ``frame`` is empty, each party uses the frame of its own constants, in ``n_knots`` groups,
    and sends these along.
    """

    reply: ClassVar[type] = CentersReply
    frame: bytes
    own_frame: str
    n_knots: int
    metric: Floats
    classes: tuple[str | int | float | bool, ...]
    threshold: float | None
    factor: float
    classwise: bool
    min_count: int
    activation: str
    means: bool
    columns: Integers | None = None

    def __post_init__(self) -> None:
        ConstantsRequest(self.n_knots, self.min_count, self.columns)
        if self.metric.ndim != 2 or not np.isfinite(self.metric).all():
            raise ValueError("a metric is no matrix of finite numbers")

    def check(self, party: str, reply: CentersReply) -> None:
        """Refuse centers that stand for too few records, and constants of too few values."""
        if reply.counts.shape[1] != len(self.classes) or reply.silent.shape != (len(self.classes),):
            raise ValueError(f"expected counts of {len(self.classes)} classes")
        if len(self.metric) and reply.centers.shape[1] != self.metric.shape[1]:
            raise ValueError(f"expected centers of {self.metric.shape[1]} dimensions")
        if (reply.counts.sum(axis=1) < self.min_count).any():
            raise ValueError(f"a center stands for fewer than {self.min_count} records")
        if self.frame:
            return
        ConstantsRequest(self.n_knots, self.min_count, self.columns).check(party, reply.constants)


@message
class Receipt:
    """The party holds the model."""


@message
class ModelRelease:
    """Send the finished model."""

    reply: ClassVar[type] = Receipt
    model: bytes
