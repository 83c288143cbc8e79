"""What travels where FlyNN is trained under a privacy budget: nothing exact but declared facts."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fedneighbors.federation._messages import message
from fedneighbors.methods.flynn._messages import MomentsRequest, Receipt
from fedneighbors.tabular._schema import Schema


@message
class PublicSchemaRequest:
    """Ask what the table looks like; its labels only if they were declared public."""

    reply: ClassVar[type] = Schema
    with_labels: bool


@message
class PublicMomentsRequest(MomentsRequest):
    """Ask for exact moments of each party that were declared public.

    ``noised`` allows their sum over two parties: nothing of it is to be hidden from the other.
    """

    noised: ClassVar[bool] = True


@message
class ConstantsReply:
    """Noised rows, sums and squares in steps of the bounds, int64 of shape (2 n_columns + 1,)."""

    moments: npt.NDArray[np.int64]


@message
class ConstantsRequest:
    """Ask for noised moments of columns that are cut to ``low`` and ``high``.

    ``run`` names the training, so that asking again in it costs nothing; ``n_shares`` is the least
    number of honest noise shares in a masked sum, 1 in the plain. Empty bounds ask for the number
    of rows alone.
    """

    reply: ClassVar[type] = ConstantsReply
    run: str
    privacy: Mapping[str, str]
    n_shares: int
    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]

    def __post_init__(self) -> None:
        if self.low.ndim != 1 or self.low.shape != self.high.shape:
            raise ValueError("bounds are not two vectors of one length")
        if not (np.isfinite(self.low).all() and np.isfinite(self.high).all()):
            raise ValueError("a bound is not finite")
        if (self.low > self.high).any():
            raise ValueError("a lower bound is above the upper one")
        with np.errstate(over="ignore"):
            if not np.isfinite(self.high - self.low).all():
                raise ValueError("a range is not finite")


@message
class MaskedConstantsRequest(ConstantsRequest):
    """The same, where each party adds a share of the noise; for masked sums alone."""

    masked_only: ClassVar[bool] = True
    noised: ClassVar[bool] = True


@message
class NoisyCountReply:
    """Counts with noise, which may be negative, int32 of shape (n_units, n_classes)."""

    counts: npt.NDArray[np.int32]


@message
class NoisyCountRequest:
    """Send the hash plan, the frame of a count request, and ask for noised counts.

    ``constants_paid`` says whether a part of the budget went to rows or scaling.
    """

    reply: ClassVar[type] = NoisyCountReply
    run: str
    privacy: Mapping[str, str]
    n_shares: int
    plan: bytes
    constants_paid: bool


@message
class MaskedNoisyCountRequest(NoisyCountRequest):
    """The same, where each party adds a share of the noise; for masked sums alone."""

    masked_only: ClassVar[bool] = True
    noised: ClassVar[bool] = True


@message
class PicksReply:
    """Cells that were picked, ascending, of the counts laid out class by class, and their counts.

    Two int64 arrays of one length; every other count is zero.
    """

    cells: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        if self.cells.ndim != 1 or self.cells.shape != self.counts.shape:
            raise ValueError("cells and counts are not two vectors of one length")
        if (np.diff(self.cells) <= 0).any() or (self.cells[:1] < 0).any():
            raise ValueError("cells are not ascending")
        if (self.counts < 0).any():
            raise ValueError("a picked count is negative")


@message
class PicksRequest:
    """Ask for Algorithm 2's DP() with ``n_picks`` cells (T).

    Each party's picks are noised by themselves, so that they may be seen one by one.
    """

    reply: ClassVar[type] = PicksReply
    one_by_one: ClassVar[bool] = True
    run: str
    privacy: Mapping[str, str]
    plan: bytes
    constants_paid: bool
    n_picks: int


@message
class PrivateModelRelease:
    """Send the finished model to every party."""

    reply: ClassVar[type] = Receipt
    model: bytes
