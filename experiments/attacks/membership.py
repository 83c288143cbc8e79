"""Membership inference from a model's outputs, with or without reference models.

All scores are higher for rows that look like members; :mod:`~experiments.attacks.scores`
evaluates how well they separate members.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats

Integers = npt.NDArray[np.integer[Any]]

MIN_PROBABILITY = 1e-12
"""Least distance of a probability from 0 (and from 1, for log-odds): logarithms stay finite."""


def loss_scores(probabilities: Floats, labels: Integers) -> Floats:
    """Return each row's log-likelihood; low loss suggests membership [1]_.

    Parameters
    ----------
    probabilities : float64 array of shape (n_rows, n_classes)
        Predicted probabilities of the model.
    labels : int array of shape (n_rows,)
        Classes of the rows, known to the attacker.

    References
    ----------
    .. [1] Yeom, Giacomelli, Fredrikson and Jha, "Privacy Risk in Machine Learning", CSF 2018.

    Examples
    --------
    >>> loss_scores(np.array([[1.0, 0.0], [0.5, 0.5]]), np.array([0, 1])).round(3).tolist()
    [0.0, -0.693]
    """
    label_probabilities = np.asarray(probabilities, np.float64)[np.arange(len(labels)), labels]
    return np.asarray(np.log(np.maximum(label_probabilities, MIN_PROBABILITY)))


def log_odds(probabilities: Floats, labels: Integers) -> Floats:
    """Return the log-odds of each label, which are nearly normal [1]_.

    Parameters
    ----------
    probabilities, labels
        See :func:`loss_scores`.

    References
    ----------
    .. [1] Carlini, Chien, Nasr, Song, Terzis and Tramer, "Membership Inference Attacks From First
       Principles", S&P 2022, section VI-A.
    """
    label_probabilities = np.asarray(probabilities, np.float64)[np.arange(len(labels)), labels]
    label_probabilities = np.clip(label_probabilities, MIN_PROBABILITY, 1 - MIN_PROBABILITY)
    return np.asarray(np.log(label_probabilities) - np.log1p(-label_probabilities))


def likelihood_scores(
    odds: Floats, reference_odds: Floats, absent: npt.NDArray[np.bool_]
) -> Floats:
    """Compare a model's log-odds with those of models without the row.

    This is the offline likelihood-ratio attack [1]_. All rows share one standard deviation, because
    it cannot be estimated for each row from a few models.

    Parameters
    ----------
    odds : float64 array of shape (n_rows,)
        :func:`log_odds` of the attacked model.
    reference_odds : float64 array of shape (n_models, n_rows)
        :func:`log_odds` of reference models, which the attacker trained on similar rows.
    absent : bool array of shape (n_models, n_rows)
        True if the model was trained without the row.

    Returns
    -------
    float64 array of shape (n_rows,)
        In units of the common standard deviation; 0 for rows in the training data of all models.

    References
    ----------
    .. [1] Carlini et al., as in :func:`log_odds`, Algorithm 1, offline.
    """
    n_models = absent.sum(axis=0)
    means = np.where(absent, reference_odds, 0.0).sum(axis=0) / np.maximum(n_models, 1)
    deviations = np.where(absent, reference_odds - means, 0.0)
    degrees_of_freedom = np.maximum(n_models - 1, 0).sum()
    deviation = np.sqrt((deviations**2).sum() / degrees_of_freedom) if degrees_of_freedom else 0.0
    return np.where(n_models > 0, odds - means, 0.0) / (deviation if deviation > 0 else 1.0)


def true_positive_rate(
    members: Floats, outsiders: Floats, false_positive_rate: float = 0.01
) -> float:
    """Return the true-positive rate at a false-positive rate.

    Parameters
    ----------
    members, outsiders : float64 arrays, 1-d
        Scores.
    false_positive_rate : float
        Largest fraction of outsiders above the threshold.

    Raises
    ------
    ValueError
        If an array is empty or has NaN.

    Examples
    --------
    >>> round(true_positive_rate(np.array([3.0, 2.0, 0.0]), np.arange(-98.0, 2.0)), 3)
    0.667
    """
    if not len(members) or not len(outsiders) or np.isnan([*members, *outsiders]).any():
        raise ValueError("expected scores of at least one member and one outsider, and no NaN")
    falling = np.sort(outsiders)[::-1]
    allowed = int(np.floor(false_positive_rate * len(falling)))
    # the comparison is strict: a lower threshold would include the next outsider
    threshold = falling[allowed] if allowed < len(falling) else -np.inf
    return float((members > threshold).mean())
