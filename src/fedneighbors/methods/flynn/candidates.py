"""What a search tries: wirings, each with a grid of settings that costs no further hashing."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedneighbors.methods.flynn.algorithm import HashPlan, default_decay
from fedneighbors.methods.flynn.expansion import LOW_DIMENSION, n_expanded

__all__ = ["Candidate", "Grid", "draw_candidates"]

LARGEST_UNITS = 100_000
LARGEST_INPUTS = 64
UNITS_PER_ROW = 32


@dataclass(frozen=True)
class Candidate:
    """One wiring to try: scaling, expansion and the sizes that fix the hash.

    Parameters
    ----------
    standardize : bool or str
        As for :class:`~.estimator.FlyNNClassifier`.
    expand : str or None
        Expansion, not ``"auto"``.
    n_units, n_inputs : int
        m and s.
    """

    standardize: bool | str
    expand: str | None
    n_units: int
    n_inputs: int


@dataclass(frozen=True)
class Grid:
    """Settings that cost no further hashing.

    Parameters
    ----------
    n_active : tuple of int
        Values of rho, ascending.
    load : tuple of float
        Values of kappa; the decay is exp(-kappa L m / (n rho)), so that inf is gamma = 0.
    class_normalized : tuple of bool
        Exponents to try.
    decay : tuple of float
        Values of gamma to try beside those that ``load`` gives.
    """

    n_active: tuple[int, ...]
    load: tuple[float, ...]
    class_normalized: tuple[bool, ...]
    decay: tuple[float, ...] = ()

    def settings(
        self, plan: HashPlan, *, n_rows: int, n_classes: int
    ) -> tuple[tuple[float, bool], ...]:
        """Return the pairs of decay and normalization to score with this plan."""
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
    """Return random wirings over the ranges of the paper's section 4, wider where it pays.

    Units are drawn between 512 and 2048 per hashed feature, at most 32 per row and 100,000; inputs
    between 2 and half of the hashed features, at most 64; both evenly on a logarithmic scale.
    Scalings and expansions take turns.

    Parameters
    ----------
    n_candidates : int
        How many.
    n_rows : int
        Rows of all parties together.
    n_features : int
        Columns of the table.
    standardize, expand : sequences
        What to try, see :class:`Candidate`.
    seed : int
        Seed of the draw.
    """
    rng = np.random.default_rng(seed)
    kinds = [(scaling, kind) for kind in expand for scaling in standardize]
    result = []
    for k in range(n_candidates):
        scaling, kind = kinds[k % len(kinds)]
        width = n_expanded(kind or "none", n_features)
        most = min(max(UNITS_PER_ROW * n_rows, 4096), 2048 * max(width, 2), LARGEST_UNITS)
        n_units = _log_uniform(rng, min(512, most), most)
        most_inputs = max(min(2, width), min(width // 2, LARGEST_INPUTS))
        n_inputs = _log_uniform(rng, min(2, width), most_inputs)
        result.append(Candidate(scaling, kind, n_units, n_inputs))
    return result


def _log_uniform(rng: np.random.Generator, low: int, high: int) -> int:
    return round(math.exp(rng.uniform(math.log(low), math.log(high))))


def default_expansions(n_features: int) -> tuple[str | None, ...]:
    """Return the expansions worth trying for a table of this many columns."""
    if n_features <= LOW_DIMENSION:
        return ("fourier", "population", "mirror")
    return ("mirror", "population", None)
