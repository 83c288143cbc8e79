"""Certified lower bounds on a privacy loss, from samples of two outputs.

One half of the samples selects an event that distinguishes the two outputs; the other half,
independent of the selection, bounds its probability p under one input from below and q under the
other from above (Clopper-Pearson). Every guarantee bounds p in terms of q, so p and q bound the
guarantee. :func:`audit_release` does this for a mechanism and its claim on several pairs of inputs.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from fedneighbors.privacy._guarantees import ZCDP, ApproxDP, Guarantee, PureDP, Sensitivity, exact
from fedneighbors.privacy.audit._events import Event, Score, choose_event

_ORDERS = 1 + np.geomspace(1e-3, 200, 60)
"""Orders of the Renyi divergence; each of them gives a valid bound."""

_SLACK = 1e-9
"""Relative rounding margin of the bounds, in favor of the mechanism."""


@dataclass(frozen=True)
class Certificate:
    """Lower bound proved by two samples, at the stated confidence.

    Parameters
    ----------
    event : str
        Description of the event.
    n_first, n_second : int
        Numbers of certifying samples of both outputs.
    hits_first, hits_second : int
        Number of these samples in the event.
    p_low, q_high : float
        With the stated confidence, the event has at least the probability ``p_low`` under the
        first input and at most ``q_high`` under the second.
    confidence : float
        Probability that both bounds hold.
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
        """Return the smallest epsilon consistent with the samples.

        It is 0 if every epsilon is.

        Parameters
        ----------
        delta : float
            As in ``p <= exp(epsilon) q + delta``.
        """
        return _epsilon(self.p_low, self.q_high, delta)

    def rho(self) -> float:
        """Return the smallest rho consistent with the samples.

        The event maps each output to one bit, whose Renyi divergence cannot be larger.
        """
        return float(_rho(np.array([self.p_low]), np.array([self.q_high]))[0])

    def loss(self, claim: Guarantee) -> float:
        """Return the bound in the claim's notion.

        That is epsilon, epsilon at the claim's delta, or rho.

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
        """Return whether the claim is proved wrong.

        Parameters
        ----------
        claim : Guarantee
            Claimed guarantee.
        """
        claimed = claim.epsilon if isinstance(claim, PureDP | ApproxDP) else claim.rho
        return self.loss(claim) > float(claimed)


def certified_loss(
    first: npt.ArrayLike, second: npt.ArrayLike, claim: Guarantee, *, confidence: float = 0.999
) -> Certificate:
    """Find and certify the strongest event against a claim, in both directions.

    Parameters
    ----------
    first, second : integer arrays of shape (n, n_cells)
        Independent outputs for two neighboring inputs, one per row.
    claim : Guarantee
        Claim whose notion measures the loss; only its kind and delta matter.
    confidence : float
        Confidence of the returned bounds.

    Raises
    ------
    ValueError
        If there are fewer than eight outputs, different widths or no such confidence.
    """
    p, q = _outputs(first), _outputs(second)
    if p.shape[1] != q.shape[1]:
        raise ValueError(f"expected outputs of one width, got {p.shape[1]} and {q.shape[1]}")
    if not 0 < confidence < 1:
        raise ValueError(f"expected a confidence between 0 and 1, got {confidence}")
    error = (1 - confidence) / 2  # per direction
    score = _score(claim, error)
    both = [_certify(a, b, score, error) for a, b in ((p, q), (q, p))]
    return max(both, key=lambda certificate: certificate.loss(claim))


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
        Confidence of the returned bounds.

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
    """Certify a lower bound on rho of zero-concentrated privacy.

    The arguments are those of :func:`certified_epsilon`.

    Parameters
    ----------
    first, second : integer arrays of shape (n, n_cells)
        Independent outputs, one per row.
    confidence : float
        Confidence of the returned bounds.
    """
    return certified_loss(first, second, ZCDP(Fraction(0)), confidence=confidence)


def _outputs(sample: npt.ArrayLike) -> npt.NDArray[np.int64]:
    array = np.asarray(sample)
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or array.dtype.kind not in "iub" or len(array) < 8:
        raise ValueError(
            f"expected at least eight rows of integers, got {array.dtype} of shape {array.shape}"
        )
    return array.astype(np.int64)


def _certify(
    p: npt.NDArray[np.int64], q: npt.NDArray[np.int64], score: Score, error: float
) -> Certificate:
    """Choose on the first halves and certify on the second.

    ``error`` covers both bounds.
    """
    half_p, half_q = len(p) // 2, len(q) // 2
    event = choose_event(p[:half_p], q[:half_q], score)
    hits_p, n_p = _hits(event, p[half_p:])
    hits_q, n_q = _hits(event, q[half_q:])
    return Certificate(
        event=event.words,
        n_first=n_p,
        n_second=n_q,
        hits_first=hits_p,
        hits_second=hits_q,
        p_low=float(_below(np.array([hits_p]), n_p, error / 2)[0]),
        q_high=float(_above(np.array([hits_q]), n_q, error / 2)[0]),
        confidence=1 - 2 * error,
    )


def _hits(event: Event, outputs: npt.NDArray[np.int64]) -> tuple[int, int]:
    return int(event.contains(outputs).sum()), len(outputs)


def _below(hits: npt.NDArray[np.int64], n: int, error: float) -> npt.NDArray[np.float64]:
    """Compute the lower Clopper-Pearson limit of a probability.

    It fails with probability ``error``.
    """
    from scipy.special import betaincinv

    low = betaincinv(np.maximum(hits, 1), n - hits + 1, error)
    return np.where(hits == 0, 0.0, low * (1 - _SLACK))


def _above(hits: npt.NDArray[np.int64], n: int, error: float) -> npt.NDArray[np.float64]:
    """Compute the upper Clopper-Pearson limit of a probability.

    It fails with probability ``error``.
    """
    from scipy.special import betaincinv

    high = betaincinv(hits + 1, np.maximum(n - hits, 1), 1 - error)
    return np.where(hits == n, 1.0, np.minimum(high * (1 + _SLACK), 1.0))


def _epsilon(p: float, q: float, delta: float) -> float:
    return max(math.log((p - delta) / q), 0.0) if p - delta > q else 0.0


def _rho(p: npt.NDArray[np.float64], q: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Maximize D_alpha(Bernoulli(p), Bernoulli(q)) / alpha over the orders.

    0 where p <= q.
    """
    alpha = _ORDERS[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        moment = np.logaddexp(
            alpha * np.log(p) + (1 - alpha) * np.log(q),
            np.where(p < 1, alpha * np.log1p(-p) + (1 - alpha) * np.log1p(-q), -np.inf),
        )
        rho = (moment / (alpha - 1) / alpha).max(axis=0)
    return np.where((p > q) & (q > 0), rho * (1 - 1e-6), 0.0)


def _score(claim: Guarantee, error: float) -> Callable[..., npt.NDArray[np.float64]]:
    """Return the function that estimates an event's certified bound.

    It assumes that the certifying half has the frequencies of the choosing half.
    """

    def score(
        hits_p: npt.NDArray[np.int64], n_p: int, hits_q: npt.NDArray[np.int64], n_q: int
    ) -> npt.NDArray[np.float64]:
        p, q = _below(hits_p, n_p, error / 2), _above(hits_q, n_q, error / 2)
        if isinstance(claim, PureDP | ApproxDP):
            delta = float(claim.delta) if isinstance(claim, ApproxDP) else 0.0
            return np.log(np.maximum(p - delta, 1e-300) / q)
        return _rho(p, q)

    return score


Pair = tuple[Sequence[int], Sequence[int]]
"""Two neighboring vectors of counts."""

Release = Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]]
"""Function from inputs of shape (n, n_cells), one per row, to n independent outputs."""

_BASES = (0, 4, 30)
"""Base counts of the pairs: at the edge where values are clipped, near it, and far from it."""


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
        """Return the certified lower bound, in the claim's notion."""
        return self.certificate.loss(self.claim)

    @property
    def disproved(self) -> bool:
        """Return whether the claim is disproved."""
        return self.certificate.refutes(self.claim)


def neighboring_pairs(sensitivity: Sensitivity, n_cells: int) -> list[Pair]:
    """Return neighboring vectors with the largest difference allowed by a sensitivity.

    An added record raises the first cells by ``linf`` each, as many as all norms allow; a replaced
    record raises the first half of them and lowers the rest.

    Parameters
    ----------
    sensitivity : Sensitivity
        Largest difference between two neighbors.
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


def audit_release(
    release: Release,
    claim: Guarantee,
    pairs: Sequence[Pair],
    *,
    n_samples: int,
    confidence: float = 0.999,
) -> Verdict:
    """Audit a mechanism; return the verdict of the strongest input pair.

    The claim of a correct mechanism is disproved with probability at most ``1 - confidence``: the
    error probability is divided by the number of pairs.

    Parameters
    ----------
    release : callable
        The mechanism.
    claim : Guarantee
        Guarantee claimed by the mechanism.
    pairs : sequence of pairs
        Neighboring inputs.
    n_samples : int
        Outputs per input.
    confidence : float
        Confidence of the verdict as a whole.
    """
    each = 1 - (1 - confidence) / len(pairs)
    verdicts = []
    for pair in pairs:
        first, second = (release(np.tile(np.array(x, np.int64), (n_samples, 1))) for x in pair)
        certificate = certified_loss(first, second, claim, confidence=each)
        verdicts.append(Verdict(claim, pair, certificate))
    return max(verdicts, key=lambda verdict: verdict.loss)
