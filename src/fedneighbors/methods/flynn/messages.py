"""What travels between FlyNN parties and their coordinator."""

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedneighbors.federation.messages import message
from fedneighbors.methods.flynn.algorithm import HashPlan
from fedneighbors.methods.flynn.features import FeatureMap
from fedneighbors.methods.flynn.schema import Schema

__all__ = [
    "CalibrationReply",
    "CountReply",
    "CountRequest",
    "Finish",
    "ModelRelease",
    "MomentsReply",
    "MomentsRequest",
    "Receipt",
    "SchemaRequest",
]


@message
class MomentsReply:
    """Exact sums of one table; empty arrays where only the number of rows was asked for."""

    n_rows: int
    sums: npt.NDArray[np.int64]
    squares: npt.NDArray[np.int64]


@message
class MomentsRequest:
    """Ask for the number of rows and, to standardize, for the sums of columns and squares."""

    reply: ClassVar[type] = MomentsReply
    with_columns: bool


@message
class CountReply:
    """Activations of each unit in each class, unsigned integers of shape (n_units, n_classes)."""

    counts: npt.NDArray[np.unsignedinteger]


@message
class CountRequest:
    """Send the hash plan and the classes; ask for counts that hold in ``n_bits``."""

    reply: ClassVar[type] = CountReply
    n_features: int
    expansion: str
    mean: npt.NDArray[np.float64] | None
    scale: npt.NDArray[np.float64] | None
    n_units: int
    n_inputs: int
    n_active: int
    seed: int
    classes: tuple[str | int | float | bool, ...]
    n_bits: int

    @classmethod
    def of(cls, plan: HashPlan, classes: tuple[Any, ...], *, n_bits: int) -> "CountRequest":
        """Return the request that carries a plan."""
        return cls(
            n_features=plan.features.n_features,
            expansion=plan.features.expansion,
            mean=plan.features.mean,
            scale=plan.features.scale,
            n_units=plan.n_units,
            n_inputs=plan.n_inputs,
            n_active=plan.n_active,
            seed=plan.seed,
            classes=classes,
            n_bits=n_bits,
        )

    def plan(self) -> HashPlan:
        """Return the plan that the fields describe."""
        features = FeatureMap(self.n_features, self.expansion, self.mean, self.scale, self.seed)
        return HashPlan(features, self.n_units, self.n_inputs, self.n_active, self.seed)


@message
class CalibrationReply:
    """Leave-one-out log-losses for each sharpness, in units of 2**-20 nats."""

    losses: npt.NDArray[np.int64]


@message
class ModelRelease:
    """Send the whole model, not yet calibrated (Algorithm 2, line 10)."""

    reply: ClassVar[type] = CalibrationReply
    model: bytes


@message
class Receipt:
    """The party holds the finished model."""


@message
class Finish:
    """Send the summed losses, which finish the model that the party holds."""

    reply: ClassVar[type] = Receipt
    losses: npt.NDArray[np.int64]


@message
class SchemaRequest:
    """Ask what the table looks like."""

    reply: ClassVar[type] = Schema
