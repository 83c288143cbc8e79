"""What travels between FlyNN parties and their coordinator."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedneighbors.federation._messages import message
from fedneighbors.methods.flynn._features import FeatureMap
from fedneighbors.methods.flynn.algorithm import HashPlan
from fedneighbors.tabular._schema import Schema


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
    """Send the hash plan and the classes; ask for counts that hold in ``n_bits``.

    ``declared`` caps the rows of the parties that have declared how many they hold.
    """

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
    declared: Mapping[str, int]

    @classmethod
    def of(
        cls,
        plan: HashPlan,
        classes: tuple[Any, ...],
        *,
        n_bits: int,
        declared: Mapping[str, int] | None = None,
    ) -> "CountRequest":
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
            declared=dict(declared or {}),
        )

    def plan(self) -> HashPlan:
        """Return the plan that the fields describe."""
        features = FeatureMap(self.n_features, self.expansion, self.mean, self.scale, self.seed)
        return HashPlan(features, self.n_units, self.n_inputs, self.n_active, self.seed)

    def check(self, party: str, reply: CountReply) -> None:
        """Refuse counts that no rows of one party have; runtimes ask where they see its reply.

        Each row adds one to ``n_active`` units of its class, so that a class of n rows has counts
        of at most n that add up to n times ``n_active``. A liar can invent rows, but not more than
        were declared.

        Raises
        ------
        ValueError
            If the counts are not such.
        """
        counts = reply.counts
        if counts.shape != (self.n_units, len(self.classes)):
            raise ValueError(f"expected counts of {self.n_units} units by {len(self.classes)}")
        sums = counts.sum(axis=0, dtype=np.int64)
        if (sums % self.n_active).any():
            raise ValueError(f"counts of a class do not add up to a multiple of {self.n_active}")
        if (counts > sums // self.n_active).any():
            raise ValueError("a unit was counted more often than its class has rows")
        most = self.declared.get(party)
        if most is not None and int(sums.sum()) > most * self.n_active:
            raise ValueError(f"counts of more than the {most} rows that were declared")


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
