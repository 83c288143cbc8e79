"""Trained FlyNN model, identical at every party."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Array, Floats, Integers
from fedneighbors.federation._messages import encode
from fedneighbors.methods.flynn.algorithm import (
    KAPPA,
    SHARPNESS_GRID,
    Counts,
    HashPlan,
    WeightTable,
    choose_sharpness,
    class_sizes,
    clip_counts,
    compute_novelty,
    decay_table,
    default_decay,
    hash_with_plan,
    log_score_table,
    probabilities,
)
from fedneighbors.tabular._model_file import ModelFile
from fedneighbors.tabular._schema import Label, check_cells, label_index

# Near the best on generated and real tables; not fitted to the training rows.
PRIVATE_SHARPNESS = 2.0**2.5


@dataclass(frozen=True)
class FlyNNModel(ModelFile):
    """Trained model: the hash plan and the counts, which are the fly Bloom filters.

    Parameters
    ----------
    plan : HashPlan
        Parameters of the hash.
    classes : tuple of labels
        Ascending.
    counts : integer array of shape (n_units, n_classes)
        Activations of each unit in each class, see :func:`narrow_counts`.
    decay : float or None
        gamma; None derives it from the load, see :func:`~.algorithm.default_decay`.
    class_normalized : bool
        Use the exponent c * n_mean / n_l of gamma instead of c.
    kappa : float
        Factor of the load in a decay that is derived from it; inf means decay 0.
    feature_names : tuple of str or None
        Column names, if the table has any.
    losses : int64 array of shape (len(SHARPNESS_GRID),)
        Leave-one-out log-losses from which the sharpness of the probabilities is chosen.
    noise_variance : float
        Variance of the noise on each cell; 0 for exact counts and for the paper's mechanism,
        whose noise differs between cells (pairs of unit and class).
    guarantee : str
        Description of the privacy guarantee; empty for exact counts.
    """

    magic: ClassVar[bytes] = b"FNMODEL4"

    plan: HashPlan
    classes: tuple[Label, ...]
    counts: npt.NDArray[np.integer]
    decay: float | None
    class_normalized: bool
    kappa: float = KAPPA
    feature_names: tuple[str, ...] | None = None
    losses: Integers = field(default_factory=lambda: np.zeros(len(SHARPNESS_GRID), np.int64))
    noise_variance: float = 0.0
    guarantee: str = ""

    def __post_init__(self) -> None:
        if self.decay is not None and not 0 <= self.decay <= 1:
            raise ValueError("the decay is out of range")
        if not self.kappa >= 0:
            raise ValueError("kappa is negative")
        if len({type(label) for label in self.classes}) > 1 or not _is_ascending(self.classes):
            raise ValueError("classes are not labels of one type in ascending order")
        if self.counts.shape != (self.plan.n_units, len(self.classes)):
            raise ValueError("counts do not match units and classes")
        lowest = np.iinfo(np.int32).min if self.noise_variance else 0
        if self.counts.max(initial=0) > np.iinfo(np.int32).max or self.counts.min() < lowest:
            raise ValueError("a count is out of range")
        largest = np.maximum(self.counts.max(axis=0, initial=0), 0).astype(np.int64)
        check_cells("weights", int(largest.sum()) + len(largest))
        if self.noise_variance < 0 or (self.noise_variance and not self.guarantee):
            raise ValueError("a noise variance must be positive and have a guarantee")
        if self.losses.shape != (len(SHARPNESS_GRID),):
            raise ValueError("losses have the wrong length")
        n_features = self.plan.features.n_features
        if self.feature_names is not None and len(self.feature_names) != n_features:
            raise ValueError("feature names do not match the features")

    @cached_property
    def filters(self) -> Counts:
        """Return the counts used for scoring; noised counts are clipped at 0."""
        counts = np.ascontiguousarray(self.counts, np.int32)
        return clip_counts(counts) if self.noise_variance else counts

    @cached_property
    def sizes(self) -> Integers:
        """Return the training rows of each class, estimated for noised counts."""
        return np.maximum(class_sizes(self.counts, self.plan.n_active), 0)

    @property
    def n_rows(self) -> int:
        """Return the number of training rows."""
        return int(self.sizes.sum())

    @property
    def gamma(self) -> float:
        """Return the decay, derived from the load if ``decay`` is None."""
        if self.decay is not None:
            return self.decay
        plan = self.plan
        sizes = (self.n_rows, plan.n_units, plan.n_active, len(self.classes))
        return default_decay(*sizes, kappa=self.kappa)

    @cached_property
    def table(self) -> WeightTable:
        """Return the weight of each count.

        The weight is gamma ** c, or the log score for noised counts if ``decay`` is None.
        """
        if self.noise_variance and self.decay is None:
            counts = self.counts.astype(np.int32)
            return log_score_table(
                counts, variance=self.noise_variance, n_active=self.plan.n_active
            )
        return decay_table(
            self.filters.max(axis=0).astype(np.int64),
            self.sizes,
            decay=self.gamma,
            class_normalized=self.class_normalized,
        )

    @property
    def sharpness(self) -> float:
        """Return the factor in the softmax over the classes' novelties.

        A private model uses a constant because calibration would consume budget.
        """
        return PRIVATE_SHARPNESS if self.guarantee else choose_sharpness(self.losses)

    def novelty(self, x: Any, *, n_threads: int = 1) -> Floats:
        """Compute the novelty of each row for each class, shape (n_rows, n_classes)."""
        active = hash_with_plan(x, self.plan, n_threads=n_threads)
        return compute_novelty(active, self.filters, self.table, n_threads=n_threads)

    def probabilities(self, novelty: Floats) -> Floats:
        """Convert the novelty of each class to class probabilities."""
        return probabilities(novelty, self.sharpness, self.plan.n_active)

    def merge(self, other: "FlyNNModel") -> "FlyNNModel":
        """Merge two models into the model of all their rows.

        Raises
        ------
        ValueError
            If plans, guarantees, column names or label types differ.
        """
        if self.guarantee != other.guarantee:
            raise ValueError(
                "expected two exact models or two of the same privacy guarantee, got "
                f"{self.guarantee or 'exact'!r} and {other.guarantee or 'exact'!r}"
            )
        if encode(self.plan) != encode(other.plan) or self.feature_names != other.feature_names:
            raise ValueError(
                "expected models with the same sizes, seed, column names and standardizing "
                "constants; train both from copies of one fitted model, or fit a federation"
            )
        types = sorted({type(label).__name__ for label in (*self.classes, *other.classes)})
        if len(types) > 1:
            raise ValueError(f"expected labels of one type in both models, got {types}")
        classes = tuple(sorted({*self.classes, *other.classes}))
        counts = np.zeros((self.plan.n_units, len(classes)), np.int32)
        index = label_index(classes)
        for model in (self, other):
            counts[:, [index[label] for label in model.classes]] += model.counts
        return replace(
            self,
            classes=classes,
            counts=narrow_counts(counts),
            losses=self.losses + other.losses,
            noise_variance=self.noise_variance + other.noise_variance,
        )


def narrow_counts(counts: npt.NDArray[np.integer[Any]]) -> Array:
    """Cast counts to the narrowest dtype, signed only if needed."""
    type_codes = "BHI" if counts.min(initial=0) >= 0 else "bhi"
    for code in type_codes:
        limits = np.iinfo(code)
        if limits.min <= counts.min(initial=0) and counts.max(initial=0) <= limits.max:
            return counts.astype(code)
    return counts


def _is_ascending(labels: tuple[Any, ...]) -> bool:
    return all(low < high for low, high in pairwise(labels))
