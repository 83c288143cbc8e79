"""Candidate hashes, and hits of a grid of settings that are scored on the same hashes."""

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Array, Floats, Integers
from fedneighbors.federation._messages import message
from fedneighbors.federation._roles import Refused
from fedneighbors.kernels.flyhash._bloom import grid_hits
from fedneighbors.methods.flynn._features import (
    EXPANSIONS,
    MAX_FOURIER_COLUMNS,
    check_scaling,
    n_expanded,
)
from fedneighbors.methods.flynn._model import FlyNNModel
from fedneighbors.methods.flynn.algorithm import (
    HashPlan,
    calibration_rows,
    decay_table,
    default_decay,
)
from fedneighbors.tabular._schema import check_cells

MAX_SETTINGS = 8
"""Most settings of a hit request. Each reply about a forged model tells one number of rows."""


@dataclass(frozen=True)
class Candidate:
    """One hash to try: scaling, expansion, and numbers of units and inputs.

    Parameters
    ----------
    standardize : bool or str
        As for :class:`~.estimator.FlyNNClassifier`.
    expand : str or None
        Name of the expansion, not ``"auto"``.
    n_units, n_inputs : int
        m and s.
    """

    standardize: bool | str
    expand: str | None
    n_units: int
    n_inputs: int

    def __post_init__(self) -> None:
        check_scaling(self.standardize)


@dataclass(frozen=True)
class ScoringGrid:
    """Settings that can be scored without hashing again.

    Parameters
    ----------
    n_active : tuple of int
        Values of rho to try, ascending.
    load : tuple of float
        Values of kappa to try; the decay is exp(-kappa L m / (n rho)), so inf means gamma = 0.
    class_normalized : tuple of bool
        Values to try, see :class:`~.estimator.FlyNNClassifier`.
    decay : tuple of float
        Values of gamma to try in addition to those derived from ``load``.

    Raises
    ------
    ValueError
        If a list of values is empty or a value is out of range.
    """

    n_active: tuple[int, ...]
    load: tuple[float, ...]
    class_normalized: tuple[bool, ...]
    decay: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.n_active or not all(isinstance(n, Integral) and n > 0 for n in self.n_active):
            raise ValueError(f"expected n_active as positive integers to try, got {self.n_active}")
        if not all(isinstance(flag, bool | np.bool_) for flag in self.class_normalized):
            raise ValueError(f"expected True and False to try, got {self.class_normalized}")
        if not self.load + self.decay or not self.class_normalized:
            raise ValueError("expected a load or decay and a class_normalized to try, got none")
        if not all(kappa >= 0 for kappa in self.load):
            raise ValueError(f"expected values of load of at least 0, got {self.load}")
        if not all(0 <= gamma <= 1 for gamma in self.decay):
            raise ValueError(f"expected values of decay in [0, 1], got {self.decay}")

    def settings(
        self, plan: HashPlan, *, n_rows: int, n_classes: int
    ) -> tuple[tuple[float, bool], ...]:
        """Return the pairs of decay and class normalization to score."""
        decays = [
            default_decay(n_rows, plan.n_units, plan.n_active, n_classes, kappa=kappa)
            for kappa in self.load
        ]
        return tuple(
            (decay, normalized)
            for normalized in self.class_normalized
            for decay in (*decays, *self.decay)
        )


def list_candidates(n_features: int, *, n_units: int = 20_000) -> list[Candidate]:
    """Return hashes of every kind that suits a table.

    Parameters
    ----------
    n_features : int
        Columns of the table.
    n_units : int
        Units of each hash.
    """
    shapes: list[tuple[str | None, int]] = [
        ("mirror", 16),
        ("population", 4),
        ("population", 8),
        (None, 16),
    ]
    if n_features <= MAX_FOURIER_COLUMNS:
        shapes.append(("fourier", 16))
    scalings: tuple[bool | str, ...] = ("feature", "global")
    kinds = [(scaling, *shape) for shape in shapes for scaling in scalings]
    candidates = [
        Candidate(scaling, expand, n_units, max(1, min(s, n_expanded(expand, n_features) // 2)))
        for scaling, expand, s in [*kinds, (False, None, 16)]
    ]
    return list(dict.fromkeys(candidates))


def _count_hits(*arrays: Array, leave_one_out: bool) -> Integers:
    """Count hits; refuse sums that do not include these rows."""
    try:
        return grid_hits(*arrays, leave_one_out=leave_one_out)
    except ValueError:  # a count below 0, or above those of the weights
        raise Refused("the summed counts do not include the rows of this party") from None


class HitCounter:
    """Counter of correct predictions on held-out rows, for a grid of settings.

    Parameters
    ----------
    counts : integer array of shape (n_folds, n_units, n_classes)
        Counts of each fold, over all parties.
    rows : int64 array of shape (n_folds, n_classes)
        Rows of each fold and class, over all parties.
    settings : sequence of (decay, class_normalized)
        Settings to score.
    """

    def __init__(
        self,
        counts: Array,
        rows: Integers,
        settings: Sequence[tuple[float, bool]],
    ) -> None:
        self._fold_counts = counts
        self._rows = rows
        self._settings = settings
        self._totals = counts.sum(axis=0, dtype=np.int32)
        self._largest = self._totals.max(axis=0).astype(np.int64)
        self._unnormalized_weights: dict[tuple[float, bytes], Floats] = {}

    def leave_fold_out(
        self, active: npt.NDArray[np.int32], labels: Integers, fold: int
    ) -> Integers:
        """Count the hits on a held-out fold, shape (n_settings, n_classes)."""
        weights, starts = self._weights_and_starts(self._rows.sum(axis=0) - self._rows[fold])
        arrays = active, labels, self._totals, self._fold_counts[fold], weights, starts
        return _count_hits(*arrays, leave_one_out=False)

    def leave_one_out(
        self, active: npt.NDArray[np.int32], labels: Integers, _fold: int
    ) -> Integers:
        """Count the hits on rows, each scored without its own contribution."""
        no_counts = np.zeros_like(self._totals)
        hits = np.zeros((len(self._settings), len(self._largest)), np.int64)
        for label in np.unique(labels):
            sizes = self._rows.sum(axis=0)
            sizes[label] -= 1
            weights, starts = self._weights_and_starts(sizes)
            mask = labels == label
            arrays = active[mask], labels[mask], self._totals, no_counts, weights, starts
            hits += _count_hits(*arrays, leave_one_out=True)
        return hits

    def _weights_and_starts(self, sizes: Integers) -> tuple[Floats, Integers]:
        """Return all settings' weights and each class's start, -1 without rows."""
        present = sizes > 0
        columns = [self._tabulate_weights(*setting, sizes) for setting in self._settings]
        largest = np.where(present, self._largest + 1, 0)
        starts = np.where(present, np.cumsum(largest) - largest, -1)
        return np.stack(columns, axis=1), starts

    def _tabulate_weights(self, decay: float, normalized: bool, sizes: Integers) -> Floats:
        """Return one setting's weights, cached across folds if unnormalized."""
        present = sizes > 0
        key = (decay, present.tobytes())
        if not normalized and key in self._unnormalized_weights:
            return self._unnormalized_weights[key]
        weights = decay_table(
            self._largest[present], sizes[present], decay=decay, class_normalized=normalized
        ).weights
        if not normalized:
            self._unnormalized_weights[key] = weights
        return weights


@message
class HitReply:
    """Correct predictions, summed over rows, int64 of shape (n_plans * n_settings,)."""

    hits: Integers


@message
class HitRequest:
    """Summed counts of each plan, and a request for hits of rows that are left out one by one.

    ``decays`` has one tuple for each model, in which position k belongs to ``normalized[k]``.
    """

    reply: ClassVar[type] = HitReply
    single_use: ClassVar[str] = "masked"
    models: tuple[FlyNNModel, ...]
    decays: tuple[tuple[float, ...], ...]
    normalized: tuple[bool, ...]

    def __post_init__(self) -> None:
        if not self.models or len(self.models) != len(self.decays):
            raise ValueError("models and decays differ in number")
        if len(self.models) > len(EXPANSIONS) or len(self.normalized) > MAX_SETTINGS:
            raise ValueError(f"more settings than the limit of {MAX_SETTINGS} for each expansion")
        if len({model.classes for model in self.models}) > 1:
            raise ValueError("models differ in their classes")
        for model, decays in zip(self.models, self.decays, strict=True):
            if len(decays) != len(self.normalized) or not all(0 <= d <= 1 for d in decays):
                raise ValueError("decays differ in number or are out of range")
            largest = int(model.counts.max(initial=0)) + 1
            check_cells("weights", largest, len(model.classes), max(1, len(decays)))

    def count_hits(self, hashes: Sequence[npt.NDArray[np.int32]], labels: Integers) -> HitReply:
        """Count correct predictions of one party's rows.

        Parameters
        ----------
        hashes : sequence of int32 arrays of shape (n_rows, n_active)
            Active units under the plan of each model.
        labels : int64 array of shape (n_rows,)
            Class of each row.
        """
        rows = calibration_rows(hashes[0], self.models[0].n_rows)
        hits = []
        for model, active, decays in zip(self.models, hashes, self.decays, strict=True):
            settings = tuple(zip(decays, self.normalized, strict=True))
            counter = HitCounter(model.filters[None], model.sizes[None], settings)
            hits.append(counter.leave_one_out(active[rows], labels[rows], 0).sum(axis=1))
        return HitReply(np.concatenate(hits))
