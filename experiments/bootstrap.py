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
"""Column names of the ends of an interval."""


def accuracy_interval(
    repetitions: Sequence[HitCounts], *, confidence: float = 0.95, seed: int = 0
) -> Interval:
    """Return a method's accuracy over all clients' rows, with an interval.

    Within each repetition, the bootstrap draws as many clients as there are, with replacement;
    accuracies are averaged over the repetitions.

    Parameters
    ----------
    repetitions : sequence of mapping
        For each repetition, the number of correct rows and of all rows of each client.
    confidence : float
        Confidence level of the percentile interval.
    seed : int
        Seed of the bootstrap.

    Returns
    -------
    mean, low, high : float
        Fractions of rows; NaN if no client has a row.
    """
    return _bootstrap([_hits_and_rows(hits, hits) for hits in repetitions], confidence, seed)


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
        Confidence level of the percentile interval.
    seed : int
        Seed of the bootstrap.

    Returns
    -------
    mean, low, high : float
        Fractions of rows; NaN if no client has a row.

    Raises
    ------
    ValueError
        If clients or their numbers of rows differ between the two methods.
    """
    hits_and_rows = []
    for first, second in pairs:
        hits, rows = _hits_and_rows(first, second)
        other_hits, other_rows = _hits_and_rows(second, first)
        if not np.array_equal(rows, other_rows):
            raise ValueError("expected the same number of rows of each client for both methods")
        hits_and_rows.append((hits - other_hits, rows))
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
        Confidence level of the percentile interval.
    seed : int
        Seed of the bootstrap.
    """
    sums = np.array([sum(client_values) for client_values in values.values()], np.float64)
    counts = np.array([len(client_values) for client_values in values.values()], np.float64)
    return _bootstrap([(sums, counts)], confidence, seed)


def mean_interval(values: Sequence[float], *, confidence: float = 0.95) -> Interval:
    """Return the mean of a few values with a Student's t interval.

    Parameters
    ----------
    values : sequence of float
        At least one value; the interval of a single value is a point.
    confidence : float
        Confidence level of the interval.

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


def _hits_and_rows(hits: HitCounts, other: HitCounts) -> tuple[Floats, Floats]:
    """Return hits and number of rows of each client with rows.

    Raises
    ------
    ValueError
        If the other method was evaluated on different clients.
    """
    if set(hits) != set(other):
        raise ValueError(f"expected the same clients, got {sorted(set(hits) ^ set(other))[:5]}")
    table = [hits[name] for name in sorted(hits) if hits[name][1]]
    counts = np.array(table, np.float64).reshape(-1, 2)
    return counts[:, 0], counts[:, 1]


def _bootstrap(
    hits_and_rows: Sequence[tuple[Floats, Floats]], confidence: float, seed: int
) -> Interval:
    """Return the mean ratio of hits to rows over resampled clients."""
    rng, means, draws = np.random.default_rng(seed), [], []
    for hits, rows in hits_and_rows:
        if not len(rows):
            return (float("nan"),) * 3
        picks = rng.integers(len(rows), size=(N_DRAWS, len(rows)))
        means.append(hits.sum() / rows.sum())
        draws.append(hits[picks].sum(axis=1) / rows[picks].sum(axis=1))
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.mean(draws, axis=0), [tail, 1 - tail])
    return float(np.mean(means)), float(low), float(high)
