"""Candidate hashes of a search, and a grid of settings that are scored on the same hashes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral

import numpy as np

from fedneighbors.methods.flynn._features import (
    MAX_FOURIER_COLUMNS,
    check_scaling,
    choose_expansion,
    n_expanded,
)
from fedneighbors.methods.flynn.algorithm import HashPlan, default_decay

# Limits of the sizes in ``draw_candidates``.
MAX_DRAWN_UNITS = 100_000
MAX_DRAWN_INPUTS = 64
MAX_UNITS_PER_ROW = 20


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
            if math.isfinite(kappa)
            else 0.0
            for kappa in self.load
        ]
        return tuple(
            (decay, normalized)
            for normalized in self.class_normalized
            for decay in (*decays, *self.decay)
        )


def draw_candidates(
    n_candidates: int,
    n_rows: int,
    n_features: int,
    *,
    standardize: Sequence[bool | str],
    expand: Sequence[str | None],
    seed: int,
) -> list[Candidate]:
    """Draw random candidate hashes.

    The ranges are those of section 4 of the paper, wider where that improves accuracy. The number
    of units lies between 512 and the smallest of 2048 per hashed feature, 20 per row (but at least
    4096) and 100,000; the number of inputs between 2 and half of the hashed features, at most 64.
    Both are drawn log-uniformly. The combinations of scaling and expansion are used in turn.

    Parameters
    ----------
    n_candidates : int
        Number of candidates.
    n_rows : int
        Rows of all parties together.
    n_features : int
        Columns of the table.
    standardize, expand : sequences
        Values to try, see :class:`Candidate`.
    seed : int
        Seed of the draw.

    Raises
    ------
    ValueError
        If ``n_candidates`` is not a positive integer, a sequence is empty, or an expansion is
        unknown.
    """
    if not isinstance(n_candidates, Integral) or n_candidates < 1 or not standardize or not expand:
        raise ValueError(
            "expected at least one candidate, scaling and expansion, got "
            f"n_candidates={n_candidates}, standardize={standardize}, expand={expand}"
        )
    rng = np.random.default_rng(seed)
    expansions = [name and choose_expansion(name, n_features) for name in expand]
    combinations = [(scaling, name) for name in expansions for scaling in standardize]
    result = []
    for k in range(n_candidates):
        scaling, expansion = combinations[k % len(combinations)]
        width = n_expanded(expansion or "none", n_features)
        by_rows = max(MAX_UNITS_PER_ROW * n_rows, 4096)
        max_units = min(by_rows, 2048 * max(width, 2), MAX_DRAWN_UNITS)
        n_units = _draw_log_uniform(rng, min(512, max_units), max_units)
        max_inputs = max(min(2, width), min(width // 2, MAX_DRAWN_INPUTS))
        n_inputs = _draw_log_uniform(rng, min(2, width), max_inputs)
        result.append(Candidate(scaling, expansion, n_units, n_inputs))
    return result


def _draw_log_uniform(rng: np.random.Generator, low: int, high: int) -> int:
    return round(math.exp(rng.uniform(math.log(low), math.log(high))))


def default_expansions(n_features: int) -> tuple[str | None, ...]:
    """Return the expansions to try for a table with ``n_features`` columns."""
    if n_features <= MAX_FOURIER_COLUMNS:
        return ("fourier", "population", "mirror")
    return ("mirror", "population", None)
