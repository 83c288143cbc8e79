"""Limits for any attack on a release with a given guarantee.

An attack that does significantly better disproves the guarantee of the release.
"""

import math
from collections.abc import Callable

import numpy as np
from scipy.stats import binom, norm

from fedneighbors.privacy._guarantees import ZCDP, ApproxDP, Guarantee


def largest_auc(guarantee: Guarantee) -> float:
    """Return the largest AUC for distinguishing neighboring tables.

    Parameters
    ----------
    guarantee : PureDP, ApproxDP or ZCDP
        Guarantee of the release. Its neighboring relation is ``"add_remove"`` if the attack decides
        whether a record is in the table, ``"replace_one"`` if it decides which of two records is.

    Returns
    -------
    float
        In [0.5, 1]. For ``ApproxDP`` some mechanism attains it; for ``ZCDP`` it is an upper bound,
        slightly above :func:`gaussian_auc`.

    Notes
    -----
    At a false-positive rate ``a``, every test against (epsilon, delta) has a false-negative rate of
    at least ``max(0, 1 - delta - exp(epsilon) a, exp(-epsilon) (1 - delta - a))`` [1]_. The area
    below this curve is ``(1 - delta)**2 / (1 + exp(epsilon))``; the AUC is 1 minus this area.

    For zCDP, consider one release of each table in unknown order. Swapping the tables costs 2 rho,
    and sorting the releases by the score of the attack gives the right order with probability
    p = AUC. Hence the Kullback-Leibler divergence of (p, 1 - p) from (1 - p, p) is at most 2 rho.

    References
    ----------
    .. [1] Dong, Roth and Su, "Gaussian differential privacy", JRSS B 84 (2022), equation (5).

    Examples
    --------
    >>> from fedneighbors.privacy import PureDP
    >>> round(largest_auc(PureDP(1)), 4)
    0.7311
    """
    if isinstance(guarantee, ZCDP):
        rho = float(guarantee.rho)
        return _largest_allowed(lambda p: _divergence(p, 1 - p) <= 2 * rho, 0.5)
    epsilon, delta = _epsilon_delta(guarantee)
    return 1 - (1 - delta) ** 2 * _flip_probability(epsilon)


def largest_hit_rate(guarantee: Guarantee, n_candidates: int) -> float:
    """Return the largest probability of identifying the record in the table.

    All candidates are equally likely.

    Parameters
    ----------
    guarantee : PureDP, ApproxDP or ZCDP
        Guarantee of the release, for the neighboring relation ``"replace_one"``.
    n_candidates : int
        Number of candidates, at least 2; one of them is in the table.

    Returns
    -------
    float
        Between ``1 / n_candidates`` and 1.

    Raises
    ------
    ValueError
        If there are fewer than two candidates.

    Notes
    -----
    Let s be the probability of choosing the true candidate, averaged over the candidates. Averaged
    over pairs, a given wrong candidate is chosen with probability (1 - s) / (n - 1). The guarantee
    holds for each pair and hence on average: s <= exp(epsilon) (1 - s) / (n - 1) + delta. For zCDP,
    the divergence of the first probability from the second is at most rho, because divergence is
    jointly convex.

    Examples
    --------
    >>> from fedneighbors.privacy import PureDP
    >>> round(100 * largest_hit_rate(PureDP(1), 100), 3)  # times the rate of guessing
    2.672
    """
    if n_candidates < 2:
        raise ValueError(f"expected 2 candidates or more, got {n_candidates}")
    others = n_candidates - 1
    if isinstance(guarantee, ZCDP):
        rho = float(guarantee.rho)
        return _largest_allowed(lambda s: _divergence(s, (1 - s) / others) <= rho, 1 / n_candidates)
    epsilon, delta = _epsilon_delta(guarantee)
    return min(1.0, (1 + delta * others * math.exp(-epsilon)) / (1 + others * math.exp(-epsilon)))


def gaussian_auc(distance: float) -> float:
    """Return the AUC of the best test against Gaussian noise.

    Parameters
    ----------
    distance : float
        L2 distance of the two vectors, divided by the standard deviation of the noise.

    Returns
    -------
    float
        For discrete Gaussian noise this is slightly too high: by 0.0014 at a variance of 4, by less
        at larger variances.

    Examples
    --------
    >>> round(gaussian_auc(32**0.5 / 23.9), 3)  # a row of 32 active units
    0.566
    """
    return float(norm.cdf(distance / math.sqrt(2)))


def laplace_auc(scale: float, n_cells: int) -> float:
    """Return the AUC of the best test against discrete Laplace noise.

    Parameters
    ----------
    scale : float
        Scale of the noise: a value x has a probability proportional to ``exp(-|x| / scale)``.
    n_cells : int
        Number of cells in which the two vectors differ, each by one.

    Notes
    -----
    A cell reveals only whether its noised value exceeds the lower of the two exact values: the
    likelihood ratio is ``exp(1 / scale)`` or its inverse. Hence the best test counts the cells that
    exceed it. The counts are binomial with probabilities 1 / (1 + q) and q / (1 + q), where
    q = exp(-1 / scale).

    Examples
    --------
    >>> round(laplace_auc(32.0, 32), 3)  # epsilon = 1 for a row of 32 active units
    0.55
    """
    chance = _flip_probability(1 / scale)
    values = np.arange(n_cells + 1)
    member = binom.pmf(values, n_cells, 1 - chance)
    outsider = binom.pmf(values, n_cells, chance)
    below = np.cumsum(outsider) - outsider / 2  # a tie counts half
    return float(member @ below)


def _epsilon_delta(guarantee: Guarantee) -> tuple[float, float]:
    if isinstance(guarantee, ZCDP):
        raise TypeError("expected a guarantee in epsilon, got zCDP")
    delta = float(guarantee.delta) if isinstance(guarantee, ApproxDP) else 0.0
    return float(guarantee.epsilon), delta


def _flip_probability(epsilon: float) -> float:
    """Return 1 / (1 + exp(epsilon)) without overflow."""
    return math.exp(-epsilon) / (1 + math.exp(-epsilon))


def _divergence(p: float, q: float) -> float:
    """Return the Kullback-Leibler divergence of Bernoulli(p) from Bernoulli(q), in nats."""
    terms = ((p, q), (1 - p, 1 - q))
    if any(a > 0 and b == 0 for a, b in terms):
        return math.inf
    return sum(a * math.log(a / b) for a, b in terms if a > 0)


def _largest_allowed(is_allowed: Callable[[float], bool], low: float) -> float:
    """Return the largest allowed value by bisection, rounded up.

    All values from ``low`` up to the result must be allowed.
    """
    high = 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if is_allowed(middle) else (low, middle)
    return high
