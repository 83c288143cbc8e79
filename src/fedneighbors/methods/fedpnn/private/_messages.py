"""What travels where FedPNN is trained under a privacy budget: nothing exact but declared facts."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats
from fedneighbors.federation._messages import message
from fedneighbors.tabular._schema import Schema


@message
class PublicSchemaRequest:
    """Ask what the table looks like; its labels only if they were declared public."""

    reply: ClassVar[type] = Schema
    with_labels: bool


@message
class NoisyReply:
    """One of the vectors of ``release`` with noise, int64 of one dimension."""

    values: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        if self.values.ndim != 1:
            raise ValueError("noised values are not a vector")


@message
class OriginRequest:
    """Ask for the noised number and sum of rows.

    ``run`` names the training, so that asking again in it costs nothing; ``n_shares`` is the least
    number of honest noise shares in a masked sum, 1 in the plain.
    """

    reply: ClassVar[type] = NoisyReply
    run: str
    privacy: Mapping[str, str]
    n_shares: int
    classes: tuple[str | int | float | bool, ...]


@message
class MaskedOriginRequest(OriginRequest):
    """The same, where each party adds a share of the noise; for masked sums alone."""

    masked_only: ClassVar[bool] = True
    noised: ClassVar[bool] = True


@message
class ClassSumsRequest:
    """Ask for noised numbers and sums of unit vectors of each class, as seen from ``origin``."""

    reply: ClassVar[type] = NoisyReply
    run: str
    privacy: Mapping[str, str]
    n_shares: int
    classes: tuple[str | int | float | bool, ...]
    origin: Floats

    def __post_init__(self) -> None:
        _check_place(self.origin)


@message
class MaskedClassSumsRequest(ClassSumsRequest):
    """The same, where each party adds a share of the noise; for masked sums alone."""

    masked_only: ClassVar[bool] = True
    noised: ClassVar[bool] = True


@message
class CellsRequest:
    """Ask for noised counts of two classes in the cells along ``axis``, as seen from ``origin``."""

    reply: ClassVar[type] = NoisyReply
    run: str
    privacy: Mapping[str, str]
    n_shares: int
    classes: tuple[str | int | float | bool, ...]
    origin: Floats
    axis: Floats

    def __post_init__(self) -> None:
        _check_place(self.origin)
        _check_place(self.axis)
        if self.axis.shape != self.origin.shape:
            raise ValueError("origin and axis differ in their number of columns")


@message
class MaskedCellsRequest(CellsRequest):
    """The same, where each party adds a share of the noise; for masked sums alone."""

    masked_only: ClassVar[bool] = True
    noised: ClassVar[bool] = True


def _check_place(place: Floats) -> None:
    if place.ndim != 1 or not np.isfinite(place).all() or (np.abs(place) > 1).any():
        raise ValueError("a place is not a vector within the cube")


@message
class Stored:
    """The party holds the model."""


@message
class PrivateModelRelease:
    """Send the finished model to every party."""

    reply: ClassVar[type] = Stored
    model: bytes
