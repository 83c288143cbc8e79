"""Bootstrap intervals of accuracies and differences."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.stats import t

from fedneighbors._typing import Floats

N_DRAWS = 2000
Right = Mapping[str, tuple[int, int]]
"""For each client how many of its rows are right, and of how many."""

Interval = tuple[float, float, float]
"""A mean, and the ends of its interval."""

ENDS = ("lower end", "upper end")
"""What the ends of an interval are called in tables."""


def accuracy_interval(
    each: Sequence[Right], *, confidence: float = 0.95, seed: int = 0
) -> Interval:
    """Return a method's accuracy over all clients' rows, with an interval.

    Within each repetition as many clients are drawn with replacement as there are; accuracies are
    averaged over the repetitions.

    Parameters
    ----------
    each : sequence of mapping
        For each repetition how many rows of each client are right, and of how many.
    confidence : float
        Of the interval, by percentiles.
    seed : int
        Of the drawing.

    Returns
    -------
    mean, low, high : float
        As shares of rows; NaN if no client has a row.
    """
    return _drawn_anew([_counted(right, right) for right in each], confidence, seed)


def paired_difference(
    pairs: Sequence[tuple[Right, Right]], *, confidence: float = 0.95, seed: int = 0
) -> Interval:
    """Return the accuracy difference of two methods, with an interval.

    Clients are drawn as in :func:`accuracy_interval`, the same ones for both methods.

    Parameters
    ----------
    pairs : sequence of (mapping, mapping)
        For each repetition, and of each method, how many rows of each client are right, and of how
        many.
    confidence : float
        Of the interval, by percentiles.
    seed : int
        Of the drawing.

    Returns
    -------
    mean, low, high : float
        As shares of rows; NaN if no client has a row.

    Raises
    ------
    ValueError
        If the methods were scored on other clients, or on other numbers of their rows.
    """
    counted = []
    for first, second in pairs:
        (right, rows), (less, same) = _counted(first, second), _counted(second, first)
        if not np.array_equal(rows, same):
            raise ValueError("expected as many rows of each client for both methods")
        counted.append((right - less, rows))
    return _drawn_anew(counted, confidence, seed)


def clustered_interval(
    values: Mapping[str, Sequence[float]], *, confidence: float = 0.95, seed: int = 0
) -> Interval:
    """Return the mean of values clustered by client, with an interval.

    Clients are drawn as in :func:`accuracy_interval`, each with all its values.

    Parameters
    ----------
    values : mapping of str to sequence of float
        Of each client.
    confidence : float
        Of the interval, by percentiles.
    seed : int
        Of the drawing.
    """
    sums = np.array([sum(own) for own in values.values()], np.float64)
    counts = np.array([len(own) for own in values.values()], np.float64)
    return _drawn_anew([(sums, counts)], confidence, seed)


def mean_interval(values: Sequence[float], *, confidence: float = 0.95) -> Interval:
    """Return the mean of a few values with a Student's t interval.

    Parameters
    ----------
    values : sequence of float
        One at least, of which the interval is a point.
    confidence : float
        Of the interval.

    Returns
    -------
    mean, low, high : float
    """
    mean = float(np.mean(values))
    if len(values) == 1:
        return mean, mean, mean
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    half = float(t.ppf((1 + confidence) / 2, len(values) - 1)) * error
    return mean, mean - half, mean + half


def _counted(right: Right, other: Right) -> tuple[Floats, Floats]:
    """Return hits and rows of each client with rows.

    Raises
    ------
    ValueError
        If another method was scored on other clients.
    """
    if set(right) != set(other):
        raise ValueError(f"expected the same clients, got {sorted(set(right) ^ set(other))[:5]}")
    table = [right[name] for name in sorted(right) if right[name][1]]
    found = np.array(table, np.float64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def _drawn_anew(counted: Sequence[tuple[Floats, Floats]], confidence: float, seed: int) -> Interval:
    """Return the mean ratio of two sums over resampled clients."""
    rng, means, draws = np.random.default_rng(seed), [], []
    for gains, rows in counted:
        if not len(rows):
            return (float("nan"),) * 3
        picks = rng.integers(len(rows), size=(N_DRAWS, len(rows)))
        means.append(gains.sum() / rows.sum())
        draws.append(gains[picks].sum(axis=1) / rows[picks].sum(axis=1))
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.mean(draws, axis=0), [tail, 1 - tail])
    return float(np.mean(means)), float(low), float(high)
