"""How sure an accuracy or a difference is: what it was measured on is drawn anew."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["ENDS", "Interval", "Right", "accuracy_interval", "mean_interval", "paired_difference"]

Floats = npt.NDArray[np.float64]

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
    """Return the accuracy of a method over all rows of some clients, with an interval.

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
    counted = []
    for right in each:
        table = np.array([right[name] for name in sorted(right)], np.float64).reshape(-1, 2)
        counted.append((table[:, 0], table[:, 1]))
    return _drawn_anew(counted, confidence, seed)


def paired_difference(
    pairs: Sequence[tuple[Right, Right]], *, confidence: float = 0.95, seed: int = 0
) -> Interval:
    """Return how much more rows the first of two methods gets right, with an interval.

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
    """
    counted = []
    for first, second in pairs:
        names = sorted(set(first) & set(second))
        gains = np.array([first[name][0] - second[name][0] for name in names], np.float64)
        counted.append((gains, np.array([first[name][1] for name in names], np.float64)))
    return _drawn_anew(counted, confidence, seed)


def mean_interval(values: Sequence[float], *, confidence: float = 0.95, seed: int = 0) -> Interval:
    """Return the mean of some values, with an interval for which they are drawn anew.

    Parameters
    ----------
    values : sequence of float
        One at least.
    confidence : float
        Of the interval, by percentiles.
    seed : int
        Of the drawing.

    Returns
    -------
    mean, low, high : float
    """
    table = np.array(values, np.float64)
    return _drawn_anew([(table, np.ones(len(table)))], confidence, seed)


def _drawn_anew(counted: Sequence[tuple[Floats, Floats]], confidence: float, seed: int) -> Interval:
    """Return the ratio of two sums over clients, in the mean over repetitions."""
    rng, means, draws = np.random.default_rng(seed), [], []
    for gains, rows in counted:
        if not rows.sum():
            return (float("nan"),) * 3
        picks = rng.integers(len(rows), size=(N_DRAWS, len(rows)))
        means.append(gains.sum() / rows.sum())
        draws.append(gains[picks].sum(axis=1) / rows[picks].sum(axis=1))
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.mean(draws, axis=0), [tail, 1 - tail])
    return float(np.mean(means)), float(low), float(high)
