"""Candidates of a search: wirings, and a grid of settings that share each wiring's hashes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral

import numpy as np

from fedneighbors.methods.flynn._features import (
    LOW_DIMENSION,
    check_scaling,
    choose_expansion,
    n_expanded,
)
from fedneighbors.methods.flynn.algorithm import HashPlan, default_decay

MAX_UNITS = 100_000


MAX_INPUTS = 64


UNITS_PER_ROW = 20


@dataclass(frozen=True)
class Candidate:
    """One wiring to try: scaling, expansion and the sizes of the hash.

    Parameters
    ----------
    standardize : bool or str
        As for :class:`~.estimator.FlyNNClassifier`.
    expand : str or None
        Name of the expansion; ``"auto"`` is not allowed.
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
        Values of rho, ascending.
    load : tuple of float
        Values of kappa; the decay is exp(-kappa L m / (n rho)), so inf means gamma = 0.
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
    """Draw random wirings.

    The ranges are those of section 4 of the paper, wider where that improves accuracy. Units are
    drawn between 512 and 2048 per hashed feature, at most 20 per row and 100,000; inputs between
    2 and half of the hashed features, at most 64; both log-uniformly. The combinations of scaling
    and expansion are used in turn.

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
    chosen = [kind and choose_expansion(kind, n_features) for kind in expand]
    kinds = [(scaling, kind) for kind in chosen for scaling in standardize]
    result = []
    for k in range(n_candidates):
        scaling, kind = kinds[k % len(kinds)]
        width = n_expanded(kind or "none", n_features)
        most = min(max(UNITS_PER_ROW * n_rows, 4096), 2048 * max(width, 2), MAX_UNITS)
        n_units = _log_uniform(rng, min(512, most), most)
        most_inputs = max(min(2, width), min(width // 2, MAX_INPUTS))
        n_inputs = _log_uniform(rng, min(2, width), most_inputs)
        result.append(Candidate(scaling, kind, n_units, n_inputs))
    return result


def _log_uniform(rng: np.random.Generator, low: int, high: int) -> int:
    return round(math.exp(rng.uniform(math.log(low), math.log(high))))


def default_expansions(n_features: int) -> tuple[str | None, ...]:
    """Return the expansions to try for a table with ``n_features`` columns."""
    if n_features <= LOW_DIMENSION:
        return ("fourier", "population", "mirror")
    return ("mirror", "population", None)
