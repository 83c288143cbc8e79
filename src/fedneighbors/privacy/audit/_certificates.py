"""Certified lower bounds on a privacy loss, from a mechanism's outputs for two neighboring inputs.

One half of the outputs selects an event, a set of outputs that is likely for one input and unlikely
for the other. The other half, independent of the selection, bounds the event's probability p under
the one input from below and q under the other from above (Clopper-Pearson). Every guarantee limits
p in terms of q, so the bounds on p and q give a lower bound on the loss. The module
``_releases`` applies this to mechanisms.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats, Integers
from fedneighbors.privacy._guarantees import ZCDP, ApproxDP, Guarantee, PureDP, exact
from fedneighbors.privacy.audit._events import Event, Known, Score, choose_event

_ORDERS = 1 + np.geomspace(1e-3, 200, 60)
"""Orders of the Renyi divergence. Each one gives a valid bound. For rho of 0.001 and more the best
order is below 100, and the best bound of these 60 orders is within 1.1 % of it."""

_SLACK = 1e-9
"""Relative rounding margin of p and q, in favor of the mechanism: SciPy's inverse of the incomplete
beta function is accurate to about 1e-12."""


@dataclass(frozen=True)
class Certificate:
    """Bounds on the probabilities of one event, which imply a lower bound on the privacy loss.

    Parameters
    ----------
    event : str
        Description of the event.
    n_first, n_second : int
        Number of certifying outputs of each input. *First* is the input under which the event is
        likelier; it may be the second argument of :func:`certified_loss`.
    hits_first, hits_second : int
        Number of these outputs in the event.
    p_low, q_high : float
        Lower bound on the probability of the event under the first input, and upper bound on it
        under the second.
    confidence : float
        Least probability that ``p_low`` and ``q_high``, and the bounds of the other direction, are
        correct. An audit with several certificates requires more of each than of all together.
    """

    event: str
    n_first: int
    n_second: int
    hits_first: int
    hits_second: int
    p_low: float
    q_high: float
    confidence: float

    def epsilon(self, delta: float = 0.0) -> float:
        """Return the smallest epsilon that is consistent with both bounds.

        Parameters
        ----------
        delta : float
            As in ``p <= exp(epsilon) q + delta``.
        """
        return _epsilon(self.p_low, self.q_high, delta)

    def rho(self) -> float:
        """Return the smallest rho that is consistent with both bounds.

        It is computed for the bit "the output is in the event": by data processing, its Renyi
        divergence is at most that of the outputs.
        """
        return float(_rho(np.array([self.p_low]), np.array([self.q_high]))[0])

    def loss(self, claim: Guarantee) -> float:
        """Return the bound as epsilon, epsilon at the claim's delta, or rho.

        Parameters
        ----------
        claim : Guarantee
            Claimed guarantee.
        """
        if isinstance(claim, PureDP):
            return self.epsilon()
        if isinstance(claim, ApproxDP):
            return self.epsilon(float(claim.delta))
        return self.rho()

    def refutes(self, claim: Guarantee) -> bool:
        """Return whether the bound exceeds the claim.

        Parameters
        ----------
        claim : Guarantee
            Claimed guarantee.
        """
        claimed = claim.epsilon if isinstance(claim, PureDP | ApproxDP) else claim.rho
        return self.loss(claim) > float(claimed)


def certified_loss(
    first: npt.ArrayLike,
    second: npt.ArrayLike,
    claim: Guarantee,
    *,
    confidence: float = 0.999,
    known: Known | None = None,
) -> Certificate:
    """Certify a lower bound on the loss that a claim limits.

    Both directions are tried; the certificate is that of the larger loss.

    Parameters
    ----------
    first, second : integer arrays of shape (n, n_cells)
        Independent outputs for two neighboring inputs, one per row; an array of shape (n,) is one
        cell.
    claim : Guarantee
        Claim whose type and delta determine the loss; its epsilon or rho is not used.
    confidence : float
        Confidence of the returned bounds, between 0 and 1.
    known : pair of int64 arrays of shape (n_cells,), optional
        Values of both inputs without noise, to which the outputs are compared.

    Raises
    ------
    ValueError
        If an input has fewer than eight outputs, an output is not an integer within int64, the
        widths differ, or the confidence is out of range.
    """
    p, q = check_outputs(first), check_outputs(second)
    if p.shape[1] != q.shape[1]:
        raise ValueError(f"expected outputs of one width, got {p.shape[1]} and {q.shape[1]}")
    check_confidence(confidence)
    error = (1 - confidence) / 2  # per direction
    score = _score(claim, error)
    certificates = [_certify(a, b, score, error, known) for a, b in ((p, q), (q, p))]
    return max(certificates, key=lambda certificate: certificate.loss(claim))


def certified_epsilon(
    first: npt.ArrayLike, second: npt.ArrayLike, *, delta: float = 0.0, confidence: float = 0.999
) -> Certificate:
    """Certify a lower bound on epsilon from outputs of two neighboring inputs.

    Parameters
    ----------
    first, second : integer arrays of shape (n, n_cells)
        Independent outputs, one per row.
    delta : float
        As in (epsilon, delta).
    confidence : float
        Confidence of the returned bounds, between 0 and 1.

    Examples
    --------
    >>> always_zero, always_one = np.zeros((1000, 1), int), np.ones((1000, 1), int)
    >>> round(certified_epsilon(always_zero, always_one).epsilon(), 2)
    4.09
    """
    claim = ApproxDP(Fraction(0), exact(delta, "delta")) if delta else PureDP(Fraction(0))
    return certified_loss(first, second, claim, confidence=confidence)


def certified_rho(
    first: npt.ArrayLike, second: npt.ArrayLike, *, confidence: float = 0.999
) -> Certificate:
    """Certify a lower bound on rho from outputs of two neighboring inputs.

    Parameters
    ----------
    first, second : integer arrays of shape (n, n_cells)
        Independent outputs, one per row.
    confidence : float
        Confidence of the returned bounds, between 0 and 1.
    """
    return certified_loss(first, second, ZCDP(Fraction(0)), confidence=confidence)


def largest_loss(n_outputs: int, claim: Guarantee, *, confidence: float) -> float:
    """Return the largest loss that n outputs per input can certify.

    It is that of an event in all outputs of one input and in none of the other.
    """
    n_certifying = n_outputs - n_outputs // 2
    score = _score(claim, (1 - confidence) / 2)
    all_hits, no_hits = np.array([n_certifying]), np.array([0])
    return max(float(score(all_hits, n_certifying, no_hits, n_certifying)[0]), 0.0)


def check_confidence(confidence: float) -> None:
    """Raise ValueError unless a confidence is between 0 and 1."""
    if not 0 < confidence < 1:
        raise ValueError(f"expected a confidence between 0 and 1, got {confidence}")


def check_outputs(outputs: npt.ArrayLike) -> Integers:
    """Return outputs as int64, one per row; raise for other outputs."""
    array = np.asarray(outputs)
    if array.ndim == 1:
        array = array[:, None]
    # eight outputs: four certify, and of the other four, two sort values and two score events
    if array.ndim != 2 or array.dtype.kind not in "iub" or len(array) < 8:
        raise ValueError(
            f"expected at least eight rows of integers, got {array.dtype} of shape {array.shape}"
        )
    if array.dtype == np.uint64 and array.max(initial=0) > np.iinfo(np.int64).max:
        raise ValueError(f"expected outputs within int64, got {array.max()}")
    return array.astype(np.int64)


def _certify(
    p: Integers, q: Integers, score: Score, error: float, known: Known | None
) -> Certificate:
    """Choose an event on the first halves; certify it on the others.

    One of its two bounds fails with probability ``error`` at most.
    """
    half_p, half_q = len(p) // 2, len(q) // 2
    event = choose_event(p[:half_p], q[:half_q], score, known)
    hits_p, n_p = _count_hits(event, p[half_p:])
    hits_q, n_q = _count_hits(event, q[half_q:])
    return Certificate(
        event=event.description,
        n_first=n_p,
        n_second=n_q,
        hits_first=hits_p,
        hits_second=hits_q,
        p_low=float(_lower_limit(np.array([hits_p]), n_p, error / 2)[0]),
        q_high=float(_upper_limit(np.array([hits_q]), n_q, error / 2)[0]),
        confidence=1 - 2 * error,  # for both directions
    )


def _count_hits(event: Event, outputs: Integers) -> tuple[int, int]:
    return int(event.contains(outputs).sum()), len(outputs)


def _lower_limit(hits: Integers, n: int, error: float) -> Floats:
    """Compute the lower Clopper-Pearson limit of a probability.

    It fails with probability ``error``.
    """
    from scipy.special import betaincinv

    low = betaincinv(np.maximum(hits, 1), n - hits + 1, error)
    return np.where(hits == 0, 0.0, low * (1 - _SLACK))


def _upper_limit(hits: Integers, n: int, error: float) -> Floats:
    """Compute the upper Clopper-Pearson limit of a probability.

    It fails with probability ``error``.
    """
    from scipy.special import betaincinv

    high = betaincinv(hits + 1, np.maximum(n - hits, 1), 1 - error)
    return np.where(hits == n, 1.0, np.minimum(high * (1 + _SLACK), 1.0))


def _epsilon(p: float, q: float, delta: float) -> float:
    return max(math.log((p - delta) / q), 0.0) if p - delta > q else 0.0


def _rho(p: Floats, q: Floats) -> Floats:
    """Maximize D_alpha(Bernoulli(p), Bernoulli(q)) / alpha over ``_ORDERS``.

    0 where p <= q.
    """
    alpha = _ORDERS[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        moment = np.logaddexp(
            alpha * np.log(p) + (1 - alpha) * np.log(q),
            np.where(p < 1, alpha * np.log1p(-p) + (1 - alpha) * np.log1p(-q), -np.inf),
        )
        rho = (moment / (alpha - 1) / alpha).max(axis=0)
    # 1e-6: the terms of rho nearly cancel and are divided by alpha - 1, as small as 0.001. For rho
    # above 1e-6, the measured rounding error stays below 1e-7 of rho.
    return np.where((p > q) & (q > 0), rho * (1 - 1e-6), 0.0)


def _score(claim: Guarantee, error: float) -> Callable[..., Floats]:
    """Return the score of events: the bound certified by equal hits."""

    def score(hits_p: Integers, n_p: int, hits_q: Integers, n_q: int) -> Floats:
        p, q = _lower_limit(hits_p, n_p, error / 2), _upper_limit(hits_q, n_q, error / 2)
        if isinstance(claim, PureDP | ApproxDP):
            delta = float(claim.delta) if isinstance(claim, ApproxDP) else 0.0
            # 1e-300, near the smallest float64: a score for events that certify nothing
            return np.log(np.maximum(p - delta, 1e-300) / q)
        return _rho(p, q)

    return score
