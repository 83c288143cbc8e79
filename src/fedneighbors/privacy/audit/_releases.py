"""Audits of mechanisms: runs on two neighboring inputs, compared in several ways.

A run is compared with a run on the other input. Noise may also repeat, in the next run or where a
generator starts again; an observer of two runs then subtracts it. So the difference of two runs on
one input is compared with that of two runs on both: only the second input has changed, and the same
claim holds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from fedneighbors._typing import Integers
from fedneighbors.privacy._guarantees import Guarantee, Sensitivity
from fedneighbors.privacy.audit._certificates import (
    Certificate,
    certified_loss,
    check_confidence,
    check_outputs,
)
from fedneighbors.privacy.audit._events import Known

Pair = tuple[Sequence[int], Sequence[int]]
"""Two neighboring vectors of counts."""

Release = Callable[[Integers], Integers]
"""Function from inputs of shape (n, n_cells), one per row, to n independent outputs.

Outputs are integers or booleans, one row or one number per input."""

_MIN_SAMPLES = 32  # the differences of batches are a quarter as many; a certificate takes eight

_BASES = (0, 4, 30)
"""Base counts of the pairs: at 0, where mechanisms clip counts, near it and far from it, for noise
of a scale of about 3."""


@dataclass(frozen=True)
class Verdict:
    """Result of an audit.

    Parameters
    ----------
    claim : Guarantee
        Guarantee claimed by the mechanism.
    pair : tuple
        The neighboring inputs with the largest certified loss.
    certificate : Certificate
        Bound certified by the outputs.
    """

    claim: Guarantee
    pair: Pair
    certificate: Certificate

    @property
    def loss(self) -> float:
        """Return the certified lower bound as epsilon or rho, like the claim."""
        return self.certificate.loss(self.claim)

    @property
    def disproved(self) -> bool:
        """Return whether the claim is disproved."""
        return self.certificate.refutes(self.claim)


def neighboring_pairs(sensitivity: Sensitivity, n_cells: int) -> list[Pair]:
    """Return neighboring vectors that differ as much as a sensitivity allows.

    An added row raises the first cells by ``linf`` each, as many cells as all norms allow; a
    replaced row raises the first half of these cells and lowers the other half.

    Parameters
    ----------
    sensitivity : Sensitivity
        Largest difference between two neighboring vectors.
    n_cells : int
        Length of the vectors.

    Raises
    ------
    ValueError
        If the vectors are too short for the sensitivity.
    """
    step = max(sensitivity.linf, 1)
    n_moved = min(sensitivity.l1 // step, sensitivity.l2_squared // step**2)
    if not 1 <= n_moved <= n_cells:
        raise ValueError(f"expected n_cells of {max(n_moved, 1)} or more, got {n_cells}")
    move = np.zeros(n_cells, np.int64)
    move[:n_moved] = sensitivity.linf
    if sensitivity.neighbors == "replace_one":
        move[n_moved - n_moved // 2 : n_moved] *= -1
    up, down = np.maximum(move, 0), np.maximum(-move, 0)
    return [((base + up).tolist(), (base + down).tolist()) for base in _BASES]


class SampleComparison(NamedTuple):
    """Outputs for two inputs that a claim covers, one per row, and their exact values."""

    first: Integers
    second: Integers
    known: Known | None
    label: str = ""


RUN_ORDER = (0, 1, 1, 0)
"""Inputs of successive runs: in a row are once two runs on one input, once runs on both."""

_OTHER_ORDER = (1, 1, 0, 0)
"""Inputs of a second batch of runs. The second of four equals that at the same place in
``RUN_ORDER``, the first does not."""


def compare_runs(first: Integers, second: Integers, known: Known | None) -> list[SampleComparison]:
    """Return the comparisons of runs that alternate in ``RUN_ORDER``.

    Parameters
    ----------
    first, second : int64 arrays of shape (n, n_cells)
        Outputs for both inputs in the order of the runs; n is even.
    known : pair of int64 arrays of shape (n_cells,) or None
        Exact values of both inputs.
    """
    equal, unequal = second[1::2] - second[::2], second[::2] - first[::2]
    return [
        SampleComparison(first, second, known),
        SampleComparison(equal, unequal, _difference(known), "difference of runs in a row: "),
    ]


def _difference(known: Known | None) -> Known | None:
    return None if known is None else (np.zeros_like(known[0]), known[1] - known[0])


def certify_comparisons(
    comparisons: Sequence[SampleComparison], claim: Guarantee, *, confidence: float
) -> Certificate:
    """Certify the largest loss of several comparisons.

    Parameters
    ----------
    comparisons : sequence of SampleComparison
        Outputs that the claim covers.
    claim : Guarantee
        Claim whose type and delta determine the loss.
    confidence : float
        Confidence of all bounds together.
    """
    each = 1 - (1 - confidence) / len(comparisons)
    certificates = []
    for first, second, known, label in comparisons:
        found = certified_loss(first, second, claim, confidence=each, known=known)
        certificates.append(replace(found, event=label + found.event))
    return max(certificates, key=lambda certificate: certificate.loss(claim))


def audit_release(
    release: Release,
    claim: Guarantee,
    pairs: Sequence[Pair],
    *,
    n_samples: int,
    confidence: float = 0.999,
) -> Verdict:
    """Audit a mechanism; return the verdict with the largest loss.

    Each pair of inputs has a verdict. The claim of a correct mechanism is disproved with
    probability at most ``1 - confidence``: the error probability is divided among the pairs, and
    among the comparisons of each pair.

    Parameters
    ----------
    release : callable
        The mechanism.
    claim : Guarantee
        Guarantee claimed by the mechanism.
    pairs : sequence of pairs
        Neighboring inputs, such as those of :func:`neighboring_pairs`.
    n_samples : int
        Number of outputs per input, at least 32; rounded down to a multiple of eight.
    confidence : float
        Confidence that a correct claim is not disproved, between 0 and 1. The verdict's certificate
        alone has a higher one.

    Raises
    ------
    ValueError
        If there are too few samples, no pairs, or not one output of integers per input, or the
        confidence is out of range.
    """
    check_confidence(confidence)
    if n_samples < _MIN_SAMPLES:
        raise ValueError(f"expected n_samples of at least {_MIN_SAMPLES}, got {n_samples}")
    if not pairs:
        raise ValueError("expected at least one pair of inputs, got none")
    confidence_per_pair = 1 - (1 - confidence) / len(pairs)
    verdicts = []
    for pair in pairs:
        comparisons = _compare_batches(release, np.array(pair, np.int64), n_samples)
        certificate = certify_comparisons(comparisons, claim, confidence=confidence_per_pair)
        verdicts.append(Verdict(claim, pair, certificate))
    return max(verdicts, key=lambda verdict: verdict.loss)


def _compare_batches(release: Release, inputs: Integers, n_samples: int) -> list[SampleComparison]:
    """Run two batches on both inputs; return their comparisons."""
    n_runs = n_samples - n_samples % 8  # both halves of the outputs then are whole blocks of runs
    order, other_order = np.resize(RUN_ORDER, n_runs), np.resize(_OTHER_ORDER, n_runs)
    batch, other = (check_outputs(release(inputs[each])) for each in (order, other_order))
    if not len(batch) == len(other) == len(order):
        raise ValueError(f"expected {len(order)} outputs, got {len(batch)} and {len(other)}")
    known = (inputs[0], inputs[1]) if batch.shape[1] == inputs.shape[1] else None
    _, in_a_row = compare_runs(batch[order == 0], batch[order == 1], known)
    sides = [np.concatenate([batch[order == x], other[other_order == x]]) for x in (0, 1)]
    change = other - batch
    return [
        SampleComparison(sides[0], sides[1], known),
        in_a_row,
        SampleComparison(
            change[1::4], change[::4], _difference(known), "difference of two batches: "
        ),
    ]
