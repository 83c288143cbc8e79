"""Bootstrap intervals of accuracies and differences."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.stats import t

from fedneighbors._typing import Floats

N_DRAWS = 2000
HitCounts = Mapping[str, tuple[int, int]]
"""Number of correct rows and of all rows, by client."""

Interval = tuple[float, float, float]
"""A mean, and the lower and upper end of its interval."""

ENDS = ("lower end", "upper end")
"""Names of the two ends in tables."""


def accuracy_interval(
    each: Sequence[HitCounts], *, confidence: float = 0.95, seed: int = 0
) -> Interval:
    """Return a method's accuracy over all clients' rows, with an interval.

    The bootstrap draws as many clients with replacement as there are, within each repetition;
    accuracies are averaged over the repetitions.

    Parameters
    ----------
    each : sequence of mapping
        For each repetition, the number of correct rows and of all rows of each client.
    confidence : float
        Confidence of the interval, which is between percentiles.
    seed : int
        Seed of the drawing.

    Returns
    -------
    mean, low, high : float
        Shares of rows; NaN if no client has a row.
    """
    return _bootstrap([_hits_and_rows(right, right) for right in each], confidence, seed)


def paired_difference(
    pairs: Sequence[tuple[HitCounts, HitCounts]], *, confidence: float = 0.95, seed: int = 0
) -> Interval:
    """Return the accuracy difference of two methods, with an interval.

    Clients are drawn as in :func:`accuracy_interval`, the same ones for both methods.

    Parameters
    ----------
    pairs : sequence of (mapping, mapping)
        For each repetition and method, the number of correct rows and of all rows of each client.
    confidence : float
        Confidence of the interval, which is between percentiles.
    seed : int
        Seed of the drawing.

    Returns
    -------
    mean, low, high : float
        Shares of rows; NaN if no client has a row.

    Raises
    ------
    ValueError
        If clients or their numbers of rows differ between the two methods.
    """
    hits_and_rows = []
    for first, second in pairs:
        (right, rows), (less, same) = _hits_and_rows(first, second), _hits_and_rows(second, first)
        if not np.array_equal(rows, same):
            raise ValueError("expected the same number of rows of each client for both methods")
        hits_and_rows.append((right - less, rows))
    return _bootstrap(hits_and_rows, confidence, seed)


def clustered_interval(
    values: Mapping[str, Sequence[float]], *, confidence: float = 0.95, seed: int = 0
) -> Interval:
    """Return the mean of values clustered by client, with an interval.

    Clients are drawn as in :func:`accuracy_interval`, each with all its values.

    Parameters
    ----------
    values : mapping of str to sequence of float
        Values of each client.
    confidence : float
        Confidence of the interval, which is between percentiles.
    seed : int
        Seed of the drawing.
    """
    sums = np.array([sum(own) for own in values.values()], np.float64)
    counts = np.array([len(own) for own in values.values()], np.float64)
    return _bootstrap([(sums, counts)], confidence, seed)


def mean_interval(values: Sequence[float], *, confidence: float = 0.95) -> Interval:
    """Return the mean of a few values with a Student's t interval.

    Parameters
    ----------
    values : sequence of float
        At least one value; the interval of a single value is a point.
    confidence : float
        Confidence of the interval.

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


def _hits_and_rows(right: HitCounts, other: HitCounts) -> tuple[Floats, Floats]:
    """Return hits and number of rows of each client with rows.

    Raises
    ------
    ValueError
        If the other method was scored on different clients.
    """
    if set(right) != set(other):
        raise ValueError(f"expected the same clients, got {sorted(set(right) ^ set(other))[:5]}")
    table = [right[name] for name in sorted(right) if right[name][1]]
    found = np.array(table, np.float64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def _bootstrap(
    hits_and_rows: Sequence[tuple[Floats, Floats]], confidence: float, seed: int
) -> Interval:
    """Return the mean ratio of two sums over resampled clients."""
    rng, means, draws = np.random.default_rng(seed), [], []
    for gains, rows in hits_and_rows:
        if not len(rows):
            return (float("nan"),) * 3
        picks = rng.integers(len(rows), size=(N_DRAWS, len(rows)))
        means.append(gains.sum() / rows.sum())
        draws.append(gains[picks].sum(axis=1) / rows[picks].sum(axis=1))
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.mean(draws, axis=0), [tail, 1 - tail])
    return float(np.mean(means)), float(low), float(high)
