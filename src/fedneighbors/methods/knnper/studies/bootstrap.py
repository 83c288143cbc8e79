"""How sure a difference between two methods is: clients are drawn anew, with both methods' rows."""

from collections.abc import Mapping, Sequence

import numpy as np

__all__ = ["Difference", "paired_difference"]

N_DRAWS = 2000
Right = Mapping[str, tuple[int, int]]
Difference = tuple[float, float, float]


def paired_difference(
    pairs: Sequence[tuple[Right, Right]], *, confidence: float = 0.95, seed: int = 0
) -> Difference:
    """Return how much more rows the first of two methods gets right, with an interval.

    Within each repetition as many clients are drawn with replacement as there are; both methods
    are scored on the rows of the drawn ones, and the differences are averaged over repetitions.

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
        As shares of rows.
    """
    rng, means, draws = np.random.default_rng(seed), [], []
    for first, second in pairs:
        names = sorted(set(first) & set(second))
        gains = np.array([first[name][0] - second[name][0] for name in names], np.float64)
        rows = np.array([first[name][1] for name in names], np.float64)
        picks = rng.integers(len(names), size=(N_DRAWS, len(names)))
        means.append(gains.sum() / rows.sum())
        draws.append(gains[picks].sum(axis=1) / rows[picks].sum(axis=1))
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.mean(draws, axis=0), [tail, 1 - tail])
    return float(np.mean(means)), float(low), float(high)
