"""Votes of classifiers by definition: exact fractions, one cell at a time."""

from fractions import Fraction

import numpy as np


def average(votes, weights):
    """Return the weighted mean of probabilities, rounded once."""
    total = sum(map(Fraction, weights))
    means = np.empty(votes[0].shape)
    for place in np.ndindex(means.shape):
        exact = sum(
            Fraction(weight) * Fraction(float(one[place]))
            for weight, one in zip(weights, votes, strict=True)
        )
        means[place] = float(exact / total)
    return means


def round_to_parts(row, n_parts):
    """Return a row of probabilities as parts of a whole, by largest remainder."""
    exact = [Fraction(float(cell)) * n_parts / sum(map(Fraction, map(float, row))) for cell in row]
    parts = [int(cell) for cell in exact]
    by_remainder = sorted(range(len(row)), key=lambda k: (parts[k] - exact[k], k))
    for k in by_remainder[: n_parts - sum(parts)]:
        parts[k] += 1
    return [part / n_parts for part in parts]
