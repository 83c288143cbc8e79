"""Settings of FlyNN's coordinator: values, and choices that the training rows decide."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from numbers import Integral, Real

import numpy as np
import numpy.typing as npt

from fedneighbors.methods.flynn._features import (
    FeatureMap,
    check_scaling,
    choose_expansion,
    list_expansions,
    standardizer,
)
from fedneighbors.methods.flynn._model import FlyNNModel, narrow_counts
from fedneighbors.methods.flynn.algorithm import KAPPA, HashPlan, default_sizes
from fedneighbors.tabular._schema import JointSchema, Label, MomentsReply

LOADS = (0.5, 0.2, 1.0, 2.0)
FLAGS = (True, False)
"""Values of kappa and class normalization to choose from; ties go to the first.

More loads, active units and expansions, or balanced accuracy, were not better on the development
tables (``experiments/flynn/development.py``).
"""


@dataclass(frozen=True)
class FlyNNSettings:
    """Settings of the coordinator; sizes and decay of None are derived from the tables.

    ``"auto"`` chooses the value with the most correct predictions of training rows, each left out.

    Parameters
    ----------
    n_units, n_inputs, n_active : int or None
        Number of hash units (m), inputs of each unit (s), and active units of each row (rho).
    decay : float, "auto" or None
        Decay of a unit's weight with its count (gamma), in [0, 1].
    standardize : bool, "feature" or "global"
        Centre and scale columns with means and scales over all parties, see
        :func:`~._features.standardizer`.
    expand : str or None
        ``"auto"``, None for no expansion, or a name in :data:`~._features.EXPANSIONS`.
    class_normalized : bool or "auto"
        Weight counts by class size.
    seed : int
        Public seed of the hash.
    classes : tuple of labels
        Labels that the model includes in addition to those that the parties announce.
    declared_rows : mapping of str to int
        Maximum number of rows of each party that declared one; larger counts are rejected.
    """

    n_units: int | None = None
    n_inputs: int | None = None
    n_active: int | None = None
    decay: float | str | None = "auto"
    standardize: bool | str = True
    expand: str | None = "auto"
    class_normalized: bool | str = "auto"
    seed: int = 0
    classes: tuple[Label, ...] = ()
    declared_rows: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("n_units", "n_inputs", "n_active"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, Integral)):
                raise TypeError(f"expected {name} as an integer or None, got {value!r}")
        if self.decay is not None and self.decay != "auto":
            if isinstance(self.decay, bool) or not isinstance(self.decay, Real):
                raise TypeError(f"expected decay as a number, 'auto' or None, got {self.decay!r}")
            if not 0 <= self.decay <= 1:
                raise ValueError(f"expected decay in [0, 1], 'auto' or None, got {self.decay!r}")
            object.__setattr__(self, "decay", float(self.decay))  # integers 0 and 1 are accepted
        is_flag = isinstance(self.class_normalized, bool | np.bool_)
        if not is_flag and self.class_normalized != "auto":
            raise TypeError(
                f"expected class_normalized True, False or 'auto', got {self.class_normalized!r}"
            )
        check_scaling(self.standardize)

    @property
    def explicit_decay(self) -> float | None:
        """Return the decay, or None if it is derived from the load."""
        return None if isinstance(self.decay, str) else self.decay

    @property
    def flags(self) -> tuple[bool, ...]:
        """Return the values of class normalization to choose from."""
        return FLAGS if isinstance(self.class_normalized, str) else (bool(self.class_normalized),)

    def plans(self, moments: MomentsReply, n_features: int) -> tuple[HashPlan, ...]:
        """Return the hash plan of each expansion to choose from."""
        mean, scale = standardizer(moments, self.standardize) if self.standardize else (None, None)
        kinds = list_expansions(n_features) if self.expand == "auto" else [self.expand]
        plans = []
        for kind in kinds:
            expansion = choose_expansion(kind, n_features)
            features = FeatureMap(n_features, expansion, mean, scale, self.seed)
            sizes = default_sizes(moments.n_rows, features.n_outputs)
            plans.append(self.plan_of(features, sizes))
        return tuple(plans)

    def models(
        self, plan: HashPlan, counts: npt.NDArray[np.int32], schema: JointSchema
    ) -> list[FlyNNModel]:
        """Return a model for each decay and class normalization to choose from."""
        model = FlyNNModel(
            plan=plan,
            classes=schema.classes,
            counts=narrow_counts(counts),
            decay=self.explicit_decay,
            class_normalized=self.flags[0],
            feature_names=schema.feature_names,
        )
        loads = LOADS if self.decay == "auto" else (KAPPA,)
        return [
            replace(model, class_normalized=flag, kappa=kappa)
            for flag in self.flags
            for kappa in loads
        ]

    def plan_of(self, features: FeatureMap, sizes: tuple[int, int, int]) -> HashPlan:
        """Return the hash plan for given features, with ``sizes`` as defaults."""
        units, inputs, active = sizes
        n_units = units if self.n_units is None else self.n_units
        return HashPlan(
            features=features,
            n_units=n_units,
            n_inputs=inputs if self.n_inputs is None else self.n_inputs,
            n_active=min(active, n_units) if self.n_active is None else self.n_active,
            seed=self.seed,
        )
