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
        Of the release, for the neighboring relation of the two tables: ``"add_remove"`` for the
        question whether a record is in the table, ``"replace_one"`` for which of two it is.

    Returns
    -------
    float
        In [0.5, 1]. For ``ApproxDP`` it is attained by some mechanism; for ``ZCDP`` it is an upper
        bound, somewhat above :func:`gaussian_auc`.

    Notes
    -----
    Every test against (epsilon, delta) misses at least ``max(0, 1 - delta - exp(epsilon) a,
    exp(-epsilon) (1 - delta - a))`` at the false alarm rate ``a`` [1]_. The area below that curve
    is ``(1 - delta)**2 / (1 + exp(epsilon))``, the AUC is the rest.

    For zCDP take a release of each table, in an order to be guessed. Swapping the order costs twice
    rho, and whoever orders them by the score of the attack is right with probability p = AUC. So
    the Kullback-Leibler divergence of (p, 1 - p) from (1 - p, p) is at most 2 rho.

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
        return _largest(lambda p: _divergence(p, 1 - p) <= 2 * rho, 0.5)
    epsilon, delta = _epsilon_delta(guarantee)
    return 1 - (1 - delta) ** 2 * _share_of_one(epsilon)


def largest_hit_rate(guarantee: Guarantee, n_candidates: int) -> float:
    """Return the largest chance to identify the used record.

    All records are equally likely.

    Parameters
    ----------
    guarantee : PureDP, ApproxDP or ZCDP
        Of the release, for the neighboring relation ``"replace_one"``.
    n_candidates : int
        Candidates, 2 or more, one of which is in the table.

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
    Let s be the chance of naming the true one, averaged over which it is; each wrong one is then
    named with probability (1 - s) / (n - 1), averaged over pairs. The guarantee holds for each
    pair, so in the mean: s <= exp(epsilon) (1 - s) / (n - 1) + delta. For zCDP the divergence of
    the first chance from the second is at most rho, since divergence is jointly convex.

    Examples
    --------
    >>> from fedneighbors.privacy import PureDP
    >>> round(100 * largest_hit_rate(PureDP(1), 100), 3)  # times what blind guessing gets
    2.672
    """
    if n_candidates < 2:
        raise ValueError(f"expected 2 candidates or more, got {n_candidates}")
    others = n_candidates - 1
    if isinstance(guarantee, ZCDP):
        rho = float(guarantee.rho)
        return _largest(lambda s: _divergence(s, (1 - s) / others) <= rho, 1 / n_candidates)
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
        For discrete Gaussian noise slightly too high: by .0014 at a variance of 4, less above.

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
        Of the noise: a value x has a probability proportional to ``exp(-|x| / scale)``.
    n_cells : int
        Cells in which the two vectors differ, by one each.

    Notes
    -----
    A cell says only whether its noised value exceeds the lower of the two, with likelihood ratio
    ``exp(1 / scale)`` or its inverse. So the best test counts the cells that exceed: two binomials
    with probabilities 1 / (1 + q) and q / (1 + q), where q = exp(-1 / scale).

    Examples
    --------
    >>> round(laplace_auc(32.0, 32), 3)  # epsilon = 1 for a row of 32 active units
    0.55
    """
    chance = _share_of_one(1 / scale)
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


def _share_of_one(epsilon: float) -> float:
    """Return 1 / (1 + exp(epsilon)) without overflow."""
    return math.exp(-epsilon) / (1 + math.exp(-epsilon))


def _divergence(p: float, q: float) -> float:
    """Return the Kullback-Leibler divergence of Bernoulli(p) from Bernoulli(q), in nats."""
    terms = ((p, q), (1 - p, 1 - q))
    if any(a > 0 and b == 0 for a, b in terms):
        return math.inf
    return sum(a * math.log(a / b) for a, b in terms if a > 0)


def _largest(allowed: Callable[[float], bool], low: float) -> float:
    """Return the upper end of an interval from ``low``, rounded upward."""
    high = 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if allowed(middle) else (low, middle)
    return high
