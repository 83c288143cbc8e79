"""Membership inference from a model's outputs, with or without reference models.

All scores are higher for rows that look like members; :mod:`~experiments.attacks.scores`
evaluates how well they separate members.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats

Integers = npt.NDArray[np.integer[Any]]

MIN_SHARE = 1e-12
"""Shares below it, and above one less it, count as it: logarithms stay finite."""


def loss_scores(shares: Floats, labels: Integers) -> Floats:
    """Return each row's log-likelihood; low loss suggests membership [1]_.

    Parameters
    ----------
    shares : float64 array of shape (n_rows, n_classes)
        Outputs of the model.
    labels : int array of shape (n_rows,)
        The rows' classes, which the attacker knows.

    References
    ----------
    .. [1] Yeom, Giacomelli, Fredrikson and Jha, "Privacy Risk in Machine Learning", CSF 2018.

    Examples
    --------
    >>> loss_scores(np.array([[1.0, 0.0], [0.5, 0.5]]), np.array([0, 1])).round(3).tolist()
    [0.0, -0.693]
    """
    own = np.asarray(shares, np.float64)[np.arange(len(labels)), labels]
    return np.asarray(np.log(np.maximum(own, MIN_SHARE)))


def log_odds(shares: Floats, labels: Integers) -> Floats:
    """Return each label's log-odds, which are nearly normal [1]_.

    Parameters
    ----------
    shares, labels
        As :func:`loss_scores` takes them.

    References
    ----------
    .. [1] Carlini, Chien, Nasr, Song, Terzis and Tramer, "Membership Inference Attacks From First
       Principles", S&P 2022, section VI-A.
    """
    own = np.asarray(shares, np.float64)[np.arange(len(labels)), labels]
    own = np.clip(own, MIN_SHARE, 1 - MIN_SHARE)
    return np.asarray(np.log(own) - np.log1p(-own))


def likelihood_scores(odds: Floats, others: Floats, absent: npt.NDArray[np.bool_]) -> Floats:
    """Compare a model's odds with those of models without the row.

    The offline likelihood-ratio attack [1]_. Deviations of all rows are pooled, as a few models
    per row do not give their own.

    Parameters
    ----------
    odds : float64 array of shape (n_rows,)
        :func:`log_odds` of the model under attack.
    others : float64 array of shape (n_models, n_rows)
        Of models that the attacker has trained on rows of the same kind.
    absent : bool array of shape (n_models, n_rows)
        True for each row left out of a model.

    Returns
    -------
    float64 array of shape (n_rows,)
        In pooled deviations; 0 for rows that no model was trained without.

    References
    ----------
    .. [1] Carlini et al., as in :func:`log_odds`, Algorithm 1, offline.
    """
    n = absent.sum(axis=0)
    means = np.where(absent, others, 0.0).sum(axis=0) / np.maximum(n, 1)
    gaps = np.where(absent, others - means, 0.0)
    freedom = np.maximum(n - 1, 0).sum()
    deviation = np.sqrt((gaps**2).sum() / freedom) if freedom else 0.0
    return np.where(n > 0, odds - means, 0.0) / (deviation if deviation > 0 else 1.0)


def hit_rate_at(members: Floats, outsiders: Floats, false_alarms: float = 0.01) -> float:
    """Return the true-positive rate at a false-positive rate.

    Parameters
    ----------
    members, outsiders : float64 arrays, 1-d
        Scores.
    false_alarms : float
        Largest share of outsiders above the threshold.

    Raises
    ------
    ValueError
        If one of them is empty or has NaN.

    Examples
    --------
    >>> round(hit_rate_at(np.array([3.0, 2.0, 0.0]), np.arange(-98.0, 2.0)), 3)
    0.667
    """
    if not len(members) or not len(outsiders) or np.isnan([*members, *outsiders]).any():
        raise ValueError("expected scores of at least one member and one outsider, and no NaN")
    falling = np.sort(outsiders)[::-1]
    allowed = int(np.floor(false_alarms * len(falling)))
    # a member that equals the next outsider cannot be found without it
    threshold = falling[allowed] if allowed < len(falling) else -np.inf
    return float((members > threshold).mean())
