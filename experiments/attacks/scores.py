"""Scores of attacks and their statistical uncertainty."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import beta, rankdata

Scores = npt.NDArray[np.floating[Any]]


def auc(members: Scores, outsiders: Scores) -> float:
    """Return the probability that a member outscores an outsider.

    Ties count half.

    Parameters
    ----------
    members, outsiders : float arrays, 1-d
        Scores of an attack; minus infinity is a valid score, NaN is not.

    Raises
    ------
    ValueError
        If an array is empty or has NaN.

    Examples
    --------
    >>> auc(np.array([2.0, 1.0]), np.array([1.0, -np.inf]))
    0.875
    """
    both = np.concatenate([members, outsiders])
    if len(members) == 0 or len(outsiders) == 0 or np.isnan(both).any():
        raise ValueError("expected scores of at least one member and one outsider, and no NaN")
    ranks = rankdata(both)[: len(members)].sum()
    pairs = len(members) * len(outsiders)
    return float((ranks - len(members) * (len(members) + 1) / 2) / pairs)


def auc_margin(n_members: int, n_outsiders: int, confidence: float = 0.999) -> float:
    """Return the margin of a measured AUC above the true one.

    Parameters
    ----------
    n_members, n_outsiders : int
        Numbers of independent scores.
    confidence : float
        Least probability that the measured AUC is at most the true one plus the margin, for any
        distributions of the scores.

    References
    ----------
    .. [1] Hoeffding, "Probability inequalities for sums of bounded random variables", JASA 58
       (1963), section 5b: two-sample U-statistics behave like means of the smaller sample.

    Examples
    --------
    >>> round(auc_margin(10_000, 10_000), 4)
    0.0186
    """
    return math.sqrt(-math.log1p(-confidence) / (2 * min(n_members, n_outsiders)))


def hit_rate_limit(n_hits: int, n_trials: int, confidence: float = 0.999) -> float:
    """Return the one-sided upper Clopper-Pearson limit of a rate.

    Parameters
    ----------
    n_hits, n_trials : int
        Number of successes, and of independent trials.
    confidence : float
        Probability that the true rate is below the limit.

    Examples
    --------
    >>> round(hit_rate_limit(0, 1000, confidence=0.95), 5)
    0.00299
    """
    if n_hits == n_trials:
        return 1.0
    return float(beta.ppf(confidence, n_hits + 1, n_trials - n_hits))
