"""Gradients, Hessians and losses of class scores, rounded to integers."""

import math
from typing import Any

import numpy as np
from numba import njit

from fedneighbors._typing import Floats, Integers

MAX_LOSS = 1024.0  # nats of a row; scores differ by less unless training diverges


@njit(cache=True, nogil=True)
def _probabilities(row: Any, out: Any) -> None:
    """Write the class probabilities of a row of scores."""
    if row.size == 1:  # log-odds of the second class
        out[1] = 1.0 / (1.0 + math.exp(-row[0]))
        out[0] = 1.0 - out[1]
        return
    highest = row[0]
    for k in range(1, row.size):
        highest = max(highest, row[k])
    total = 0.0
    for k in range(row.size):
        out[k] = math.exp(row[k] - highest)
        total += out[k]
    for k in range(row.size):
        out[k] /= total


@njit(cache=True, nogil=True)
def _differentiate(
    scores: Any, labels: Any, weights: Any, factor: float, gradients: Any, hessians: Any
) -> None:
    n_rows, n_scores = scores.shape
    p = np.empty(max(n_scores, 2))
    first = 1 if n_scores == 1 else 0
    for i in range(n_rows):
        _probabilities(scores[i], p)
        weight = weights[labels[i]] * factor
        for k in range(n_scores):
            share = p[first + k]
            target = 1.0 if labels[i] == first + k else 0.0
            gradients[k, i] = np.int64(np.rint(weight * (share - target)))
            hessians[k, i] = np.int64(np.rint(weight * (share * (1.0 - share))))


@njit(cache=True, nogil=True)
def _sum_losses(scores: Any, labels: Any, weights: Any, factor: float) -> Any:
    total: Any = 0
    for i in range(len(scores)):
        row = scores[i]
        if row.size == 1:
            margin = row[0] if labels[i] == 1 else -row[0]
            loss = math.log1p(math.exp(-abs(margin))) + max(-margin, 0.0)
        else:
            highest = row[0]
            for k in range(1, row.size):
                highest = max(highest, row[k])
            exponentials = 0.0
            for k in range(row.size):
                exponentials += math.exp(row[k] - highest)
            loss = math.log(exponentials) + (highest - row[labels[i]])
        total += np.int64(np.rint(weights[labels[i]] * factor * min(loss, MAX_LOSS)))
    return total


def class_gradients(
    scores: Floats, labels: Integers, weights: Floats, factor: float
) -> tuple[Integers, Integers]:
    """Return the first and second derivatives of the log loss.

    Parameters
    ----------
    scores : float64 array of shape (n_rows, n_scores)
        Log-odds of the second of two classes (``n_scores`` 1), or the score of each class.
    labels : int64 array of shape (n_rows,)
        Class of each row.
    weights : float64 array of shape (n_classes,)
        Weight of the rows of each class.
    factor : float
        Steps per unit; derivatives are rounded to integer numbers of steps.

    Returns
    -------
    gradients, hessians : int64 arrays of shape (n_scores, n_rows)
        Derivatives in steps.
    """
    gradients, hessians = np.empty((2, scores.shape[1], len(scores)), np.int64)
    _differentiate(scores, labels, weights, factor, gradients, hessians)
    return gradients, hessians


def class_losses(scores: Floats, labels: Integers, weights: Floats, factor: float) -> int:
    """Return the sum of the log losses, each rounded to steps.

    Parameters
    ----------
    scores, labels, weights, factor
        As for :func:`class_gradients`.
    """
    return int(_sum_losses(scores, labels, weights, factor))
