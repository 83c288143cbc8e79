"""What travels in a kNN-Per training."""

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Integers
from fedneighbors.federation._messages import message
from fedneighbors.methods.knnper.personal._discriminants import (
    MOST_FEATURES,
    Discriminants,
    RandomFeatures,
)
from fedneighbors.tabular._schema import Label, MomentsReply, Receipt, Schema

Weights = npt.NDArray[np.floating[Any]]


@message
class SchemaRequest:
    """Asks what the client's rows look like."""

    layout: str

    reply: ClassVar[type] = Schema


@message
class MomentsRequest:
    """Asks for the sums from which all clients' columns are standardized alike."""

    reply: ClassVar[type] = MomentsReply


@message
class CountsReply:
    """Rows of each class, summed over the clients."""

    counts: Integers


@message
class CountsRequest:
    """Asks how many rows of each class the clients have; ``held_out`` leaves those out.

    ``center`` and ``scale`` say how columns are standardized; both are empty where they are not.
    """

    classes: tuple[Label, ...]
    held_out: bool
    center: npt.NDArray[np.float64]
    scale: npt.NDArray[np.float64]

    reply: ClassVar[type] = CountsReply


@message
class TargetsRequest:
    """Asks for the sums from which numbers are standardized alike; ``held_out`` leaves those out.

    Nothing is standardized by this request yet: :class:`UnitsRequest` follows.
    """

    held_out: bool

    reply: ClassVar[type] = MomentsReply


@message
class UnitsRequest:
    """Says how columns are standardized, or not at all where empty, and how targets are."""

    center: npt.NDArray[np.float64]
    scale: npt.NDArray[np.float64]
    target_center: npt.NDArray[np.float64]
    target_scale: npt.NDArray[np.float64]

    reply: ClassVar[type] = Receipt


@message
class UpdateReply:
    """What a client's training adds to the sum (Eq 13), in fixed point."""

    change: Integers


@message
class TrainRequest:
    """Asks for one round of local training.

    ``held_out`` says that held-out rows are left out, ``bits`` how many binary places changes have.
    """

    number: int
    held_out: bool
    learning_rate: float
    epochs: int
    batch_size: int
    momentum: float
    weight_decay: float
    proximal: float
    seed: int
    bits: int
    weights: Weights

    reply: ClassVar[type] = UpdateReply


@message
class ScatterReply:
    """How random features scatter within classes and between them, summed over the clients.

    The upper triangles, row after row, in units of 2 to the power of -32.
    """

    within: Integers
    between: Integers


@message
class ScatterRequest:
    """Asks how random features of the rows scatter; ``held_out`` leaves those out."""

    held_out: bool
    seed: int
    rate: float
    n_features: int

    reply: ClassVar[type] = ScatterReply

    def __post_init__(self) -> None:
        if not 1 <= self.n_features <= MOST_FEATURES:
            raise ValueError(f"expected 1 to {MOST_FEATURES} features, got {self.n_features}")
        if not 0 <= self.rate < np.inf:
            raise ValueError(f"expected a rate of 0 or more, got {self.rate}")


@message
class PoolReply:
    """Loss, gradient and Hessian of the pool on held-out rows, summed over the clients.

    All in units of 2 to the power of -32.
    """

    n_rows: int
    loss: int
    gradient: Integers
    hessian: Integers


@message
class PoolRequest:
    """Asks what the held-out rows say of a pool's weights, under the model handed out before."""

    weights: npt.NDArray[np.float64]

    reply: ClassVar[type] = PoolReply


@message
class ReleaseRequest:
    """Hands out the shared model; each client then builds its own memory.

    ``overall`` are shares of the classes, or means and deviations of the targets. ``final`` is
    false for the model on which mixtures are chosen, which has not seen held-out rows.
    ``directions``, of shape (n_features, n_discriminants), are those of random features of ``seed``
    and ``rate``; empty where nothing looks at rows.
    """

    shared: Weights
    overall: npt.NDArray[np.float64]
    pool: npt.NDArray[np.float64]
    final: bool
    seed: int
    rate: float
    directions: npt.NDArray[np.float64]

    reply: ClassVar[type] = Receipt

    @classmethod
    def of(
        cls,
        shared: Weights,
        overall: npt.NDArray[np.float64],
        pool: npt.NDArray[np.float64] | None = None,
        seen: Discriminants | None = None,
        *,
        final: bool,
    ) -> "ReleaseRequest":
        """Return the request that hands out a model, of which some parts may not be there."""
        sent = np.empty(0) if pool is None else pool
        if seen is None:
            return cls(shared, overall, sent, final, 0, 0.0, np.empty((0, 0)))
        drawn = seen.features
        return cls(shared, overall, sent, final, drawn.seed, drawn.rate, seen.directions)

    @property
    def seen(self) -> Discriminants | None:
        """What the clients' scatter tells of a row; None where nothing looks at rows."""
        if not self.directions.size:
            return None
        drawn = RandomFeatures(self.seed, self.rate, len(self.directions))
        return Discriminants(drawn, self.directions)
