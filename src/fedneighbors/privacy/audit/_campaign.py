"""A mechanism and its claim on trial: outputs for neighboring inputs, and what they prove."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedneighbors.privacy._guarantees import Guarantee, Sensitivity
from fedneighbors.privacy.audit._certificates import Certificate, certified_loss

Pair = tuple[Sequence[int], Sequence[int]]
"""Two neighboring vectors of counts."""

Release = Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]]
"""Turns inputs of shape (n, n_cells), one per row, into n independent outputs, one per row."""

_BASES = (0, 4, 30)
"""Counts below what a record adds: at the edge where values are clipped, near it, far from it."""


@dataclass(frozen=True)
class Verdict:
    """What an audit found.

    Parameters
    ----------
    claim : Guarantee
        What the mechanism says about itself.
    pair : tuple
        The neighboring inputs that told most.
    certificate : Certificate
        What their outputs prove.
    """

    claim: Guarantee
    pair: Pair
    certificate: Certificate

    @property
    def loss(self) -> float:
        """Certified lower bound, in the notion of the claim."""
        return self.certificate.loss(self.claim)

    @property
    def accused(self) -> bool:
        """Whether the claim is proved wrong."""
        return self.certificate.refutes(self.claim)


def neighboring_pairs(sensitivity: Sensitivity, n_cells: int) -> list[Pair]:
    """Return neighboring vectors that stretch a sensitivity as far as it goes.

    One record more raises the first cells by ``linf`` each; one record exchanged raises the first
    half of them and lowers as many others.

    Parameters
    ----------
    sensitivity : Sensitivity
        How far two neighbors differ.
    n_cells : int
        Length of the vectors.

    Raises
    ------
    ValueError
        If the vectors are too short for the sensitivity.
    """
    n_moved = sensitivity.l1 // max(sensitivity.linf, 1)
    if not 1 <= n_moved <= n_cells:
        raise ValueError(f"expected n_cells of {max(n_moved, 1)} or more, got {n_cells}")
    move = np.zeros(n_cells, np.int64)
    move[:n_moved] = sensitivity.linf
    if sensitivity.neighbors == "replace_one":
        move[n_moved - n_moved // 2 : n_moved] *= -1
    up, down = np.maximum(move, 0), np.maximum(-move, 0)
    return [((base + up).tolist(), (base + down).tolist()) for base in _BASES]


def audit_release(
    release: Release,
    claim: Guarantee,
    pairs: Sequence[Pair],
    *,
    n_samples: int,
    confidence: float = 0.999,
) -> Verdict:
    """Put a mechanism on trial and return the verdict of the pair of inputs that told most.

    A correct mechanism is accused with a probability of at most ``1 - confidence`` per audit: what
    may go wrong is divided by the number of pairs.

    Parameters
    ----------
    release : callable
        The mechanism.
    claim : Guarantee
        What it says about itself.
    pairs : sequence of pairs
        Neighboring inputs.
    n_samples : int
        Outputs per input.
    confidence : float
        Of the verdict as a whole.
    """
    each = 1 - (1 - confidence) / len(pairs)
    verdicts = []
    for pair in pairs:
        first, second = (release(np.tile(np.array(x, np.int64), (n_samples, 1))) for x in pair)
        certificate = certified_loss(first, second, claim, confidence=each)
        verdicts.append(Verdict(claim, pair, certificate))
    return max(verdicts, key=lambda verdict: verdict.loss)
