"""What travels where kNN-Per is trained under a privacy budget: nothing exact about rows."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedneighbors.federation._messages import message
from fedneighbors.methods.knnper._messages import Receipt, UpdateReply
from fedneighbors.tabular._schema import Label, Schema


@message
class PublicSchemaRequest:
    """Asks what rows look like; for labels only where they were declared public."""

    layout: str
    with_labels: bool

    reply: ClassVar[type] = Schema


@message
class NoisedCountsReply:
    """Noised rows of each class, and the rows that the client goes by, summed over the clients.

    ``n_rows`` is the sum of the client's noised counts, 1 at least; it is made of them alone.
    """

    n_rows: int
    counts: npt.NDArray[np.int64]


@message
class NoisedCountsRequest:
    """Asks how many rows of each class the clients have, with noise.

    ``run`` names the training: asked again in it, a client says the same. ``center`` and ``scale``
    say how columns are standardized, from public bounds; both are empty where they are not.
    """

    run: str
    privacy: Mapping[str, str]
    classes: tuple[Label, ...]
    center: npt.NDArray[np.float64]
    scale: npt.NDArray[np.float64]

    reply: ClassVar[type] = NoisedCountsReply
    noised: ClassVar[bool] = True


@message
class BeginRequest:
    """Announces all steps that a client will be asked for, which it pays for before the first.

    ``numbers`` are the rounds that it takes part in, ``bound`` is the largest length of a row's
    gradient.
    """

    run: str
    privacy: Mapping[str, str]
    numbers: tuple[int, ...]
    epochs: int
    batch_size: int
    bound: float

    reply: ClassVar[type] = Receipt


@message
class PrivateTrainRequest:
    """Asks for one round of private steps out of those that were announced."""

    run: str
    number: int
    learning_rate: float
    momentum: float
    weight_decay: float
    bits: int
    weights: npt.NDArray[np.floating[Any]]

    reply: ClassVar[type] = UpdateReply
    noised: ClassVar[bool] = True
