"""Scores of predictions, and paired comparisons over repeated splits."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy import stats
from sklearn.metrics import (
    accuracy_score,
    log_loss,
    mean_absolute_error,
    r2_score,
    recall_score,
    roc_auc_score,
    root_mean_squared_error,
)

from fedneighbors._typing import Array, Floats, Integers
from fedneighbors.comparison._table import TEST_FRACTION, Task
from fedneighbors.metrics import reliability

PARTY_METRIC = {"classification": "accuracy", "regression": "mean absolute error"}

_CAPTION = (
    "Joining is compared with the better of these two on the party's own held-out rows, which "
    "favours them. Within chance: p > 0.05 in a sign test of the rows that one of both predicts "
)
JOINING_CAPTION = {
    "classification": _CAPTION + "rightly and the other does not.",
    "regression": _CAPTION + "more closely than the other.",
}
"""Explanation of :func:`judge_joining`."""


def primary_metric(task: Task, n_classes: int) -> str:
    """Return the name of the score that decides; higher is better."""
    if task == "regression":
        return "R²"
    return "ROC-AUC" if n_classes == 2 else "accuracy"


def primary_score(y: npt.NDArray[np.generic], values: Floats, task: Task) -> float:
    """Return the deciding score, accuracy if there is one class."""
    n_classes = 0 if task == "regression" else values.shape[1]
    score = score_predictions(y, values, task)[primary_metric(task, n_classes)]
    return accuracy_score(y, values.argmax(axis=1)) if score is None else score


def score_predictions(
    y: npt.NDArray[np.generic], values: Floats, task: Task
) -> dict[str, float | None]:
    """Return the scores of predictions by name.

    Parameters
    ----------
    y : array of shape (n_rows,)
        Class codes, or numbers.
    values : float64 array
        Probabilities of shape (n_rows, n_classes), or numbers of shape (n_rows,).
    task : {"classification", "regression"}
        Kind of the targets.

    Returns
    -------
    dict
        A score is None if the rows do not define it: ROC-AUC without a row of each class, R² with
        equal targets.
    """
    if task == "regression":
        r2 = None if np.ptp(y) == 0 else float(r2_score(y, values))
        return {
            "R²": r2,
            "root mean squared error": float(root_mean_squared_error(y, values)),
            "mean absolute error": float(mean_absolute_error(y, values)),
        }
    n_classes, codes = values.shape[1], np.arange(values.shape[1])
    predicted, present = values.argmax(axis=1), np.unique(y)
    auc = None
    if len(present) == n_classes:
        auc = (
            roc_auc_score(y, values[:, 1])
            if n_classes == 2
            else roc_auc_score(y, values, multi_class="ovr", labels=codes)
        )
    recalls = recall_score(y, predicted, labels=present, average="macro", zero_division=0)
    clipped = np.clip(values, 1e-6, None)
    clipped /= clipped.sum(axis=1, keepdims=True)
    return {
        "accuracy": float(accuracy_score(y, predicted)),
        "balanced accuracy": float(recalls),
        "ROC-AUC": None if auc is None else float(auc),
        "log loss": float(log_loss(y, clipped, labels=codes)),
        "calibration error": float(reliability(clipped, y, codes).expected_calibration_error),
    }


def score_parties(
    y: npt.NDArray[np.generic], values: Floats, parties: Integers, task: Task
) -> dict[int, float]:
    """Return the accuracy, or the mean absolute error, on each party's rows."""
    name = PARTY_METRIC[task]
    scores = {}
    for party in np.unique(parties).tolist():
        rows = parties == party
        score = score_predictions(y[rows], values[rows], task)[name]
        assert score is not None
        scores[party] = score
    return scores


def row_losses(y: Array, values: Floats, task: Task) -> Floats:
    """Return 1 for each wrong class and 0 otherwise, or absolute errors."""
    if task == "regression":
        return np.abs(values - y.astype(np.float64))
    return np.asarray(values.argmax(axis=1) != y, np.float64)


def mean_score(losses: Floats, task: Task) -> float | None:
    """Return the accuracy, or the mean absolute error; None without rows."""
    if not len(losses):
        return None
    return float(np.mean(losses) if task == "regression" else np.mean(losses == 0))


def judge_joining(joined: Floats, alone: Sequence[Floats], task: Task) -> str:
    """Return a sentence on whether joining pays for a party.

    Parameters
    ----------
    joined : float64 array of shape (n_rows,)
        Losses of the joined model on the party's own held-out rows, see :func:`row_losses`.
    alone : sequence of float64 arrays of shape (n_rows,)
        Losses of models of its own rows; the best of them is compared.
    task : {"classification", "regression"}
        Kind of the targets.
    """
    if not len(joined):
        return "Unknown: no row is held out."
    best = min(alone, key=np.mean)
    gained, lost = int((joined < best).sum()), int((joined > best).sum())
    word = "nearer" if task == "regression" else "right"
    gain = f"{abs(gained - lost)} {'more' if gained > lost else 'fewer'} of {len(joined)} rows"
    if gained == lost:
        return f"Not clear: the same number of {len(joined)} rows is {word}."
    gain += f" are {word}"
    if stats.binomtest(gained, gained + lost).pvalue > 0.05:
        return f"Not clear: {gain}, within chance."
    return f"{'Yes' if gained > lost else 'No'}: {gain}."


def difference_interval(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the mean difference of paired scores.

    The variance is corrected for training rows that repeated splits share [1]_. It is infinite for
    fewer than two pairs.

    References
    ----------
    .. [1] Nadeau and Bengio, "Inference for the Generalization Error", Machine Learning 52, 2003.
    """
    differences = np.subtract(first, second)
    n, mean = len(differences), float(np.mean(differences))
    if n < 2:
        return -math.inf, math.inf
    ratio = TEST_FRACTION / (1 - TEST_FRACTION)
    error = math.sqrt(float(np.var(differences, ddof=1)) * (1 / n + ratio))
    half = float(stats.t.ppf(0.975, n - 1)) * error
    return mean - half, mean + half
