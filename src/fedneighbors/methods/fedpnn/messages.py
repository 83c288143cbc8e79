"""What travels between FedPNN parties and their coordinator."""

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fedneighbors.federation.messages import decode, encode, message
from fedneighbors.methods.fedpnn.algorithm import SIGMAS
from fedneighbors.methods.fedpnn.frame import Frame
from fedneighbors.tables.schema import Schema

__all__ = [
    "CentersReply",
    "CentersRequest",
    "ConstantsReply",
    "ConstantsRequest",
    "ModelRelease",
    "MomentsReply",
    "MomentsRequest",
    "Receipt",
    "SchemaRequest",
    "frame_bytes",
    "read_frame",
]

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


MOST_KNOTS = 10_000
"""Groups of a column that a party tells of at most."""


@message
class FrameParts:
    """The fields of a frame as they travel."""

    kind: str
    values: Floats
    ranks: Floats
    fill: Floats
    indicators: Integers

    def __post_init__(self) -> None:
        n_features = len(self.fill)
        for part in (self.values, self.ranks):
            if part.ndim != 2 or len(part) != n_features or not np.isfinite(part).all():
                raise ValueError("places of a frame are not finite numbers for every column")
        if not np.isfinite(self.fill).all() or not _within(self.indicators, n_features):
            raise ValueError("a frame does not fit its columns")


def _within(positions: Integers, n: int) -> bool:
    return bool((positions >= 0).all() and (positions < n).all())


def frame_bytes(frame: Frame) -> bytes:
    """Return a frame as bytes, the same for the same frame."""
    return encode(FrameParts(frame.kind, frame.values, frame.ranks, frame.fill, frame.indicators))


def read_frame(raw: bytes) -> Frame:
    """Return the frame that :func:`frame_bytes` wrote.

    Raises
    ------
    WireError
        If the bytes are none.
    """
    parts = decode(raw, (FrameParts,))
    return Frame(parts.kind, parts.values, parts.ranks, parts.fill, parts.indicators)


@message
class SchemaRequest:
    """Ask what the table looks like."""

    reply: ClassVar[type] = Schema


@message
class ConstantsReply:
    """Means of groups of neighboring values of each column, and what is missing.

    ``knots`` is float64 and ``sizes`` int64, both of shape (n_features, n_knots); a group of size 0
    is none.
    """

    knots: Floats
    sizes: Integers
    n_missing: Integers

    def __post_init__(self) -> None:
        if self.knots.ndim != 2 or self.sizes.shape != self.knots.shape:
            raise ValueError("knots and sizes differ in shape")
        if self.n_missing.shape != self.knots.shape[:1] or (self.n_missing < 0).any():
            raise ValueError("missing cells are not counted for every column")
        used = self.sizes > 0
        if (self.sizes < 0).any() or not np.isfinite(self.knots[used]).all():
            raise ValueError("a knot is not a number")


@message
class ConstantsRequest:
    """Ask for the constants of the columns, in groups of at least ``min_count`` values."""

    reply: ClassVar[type] = ConstantsReply
    n_knots: int
    min_count: int

    def __post_init__(self) -> None:
        if not (0 < self.n_knots <= MOST_KNOTS and self.min_count > 0):
            raise ValueError(f"expected 1 to {MOST_KNOTS} knots of 1 or more values")

    def check(self, party: str, reply: ConstantsReply) -> None:  # noqa: ARG002 - runtimes name it
        """Refuse groups that are too small, and those of another number."""
        if reply.knots.shape[1] != self.n_knots:
            raise ValueError(f"expected {self.n_knots} knots for each column")
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


@message
class CentersReply:
    """The centers of a party, each of at least ``min_count`` records.

    ``centers`` is float64 of shape (n_centers, n_dimensions), ``counts`` int64 of shape (n_centers,
    n_classes). ``silent`` says of which classes there are fewer than ``min_count`` records, so that
    nothing is sent. ``choice`` is the position of the smoothing that suits the party's rows best,
    -1 if they cannot tell. The last three are the party's constants, empty where the frame was
    agreed before.
    """

    centers: Floats
    counts: Integers
    silent: npt.NDArray[np.bool_]
    choice: int
    knots: Floats
    sizes: Integers
    n_missing: Integers

    def __post_init__(self) -> None:
        if self.centers.ndim != 2 or not np.isfinite(self.centers).all():
            raise ValueError("a center is not a point")
        if self.counts.ndim != 2 or len(self.counts) != len(self.centers):
            raise ValueError("centers and counts differ in number")
        if (self.counts < 0).any():
            raise ValueError("a count is negative")
        if not -1 <= self.choice < len(SIGMAS):
            raise ValueError("there is no such smoothing")
        ConstantsReply(self.knots, self.sizes, self.n_missing)

    @property
    def constants(self) -> ConstantsReply:
        """The constants of the party's own frame."""
        return ConstantsReply(self.knots, self.sizes, self.n_missing)


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

    def __post_init__(self) -> None:
        ConstantsRequest(self.n_knots, self.min_count)

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
        ConstantsRequest(self.n_knots, self.min_count).check(party, reply.constants)


@message
class Receipt:
    """The party holds the model."""


@message
class ModelRelease:
    """Send the finished model."""

    reply: ClassVar[type] = Receipt
    model: bytes
