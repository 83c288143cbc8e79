"""kNN-Per (Eqs 4 to 7 and 13 of the paper), one number at a time."""

import math

from tests.naive.rowdistance import square_sums


def nearest(keys, queries, k, own=None):
    """Return positions and distances of the k nearest keys of each query, ties to the lower row."""
    positions, distances = [], []
    for number, query in enumerate(queries):
        near = [
            (square, row)
            for row, square in enumerate(square_sums(keys, query))
            if own is None or own[number] != row
        ]
        found = sorted(near)[:k]
        positions.append([row for _, row in found])
        distances.append([math.sqrt(square) for square, _ in found])
    return positions, distances


def votes(labels, distances, n_classes, sigma):
    """Return Eq 6 for one query: the labels of its neighbors and how far they are."""
    nearest_of_all = min(distances)
    shares = [0.0] * n_classes
    for label, distance in zip(labels, distances, strict=True):
        shares[label] += math.exp(-(distance - nearest_of_all) / sigma)
    return [share / sum(shares) for share in shares]


def mixed(local, shared, weight):
    """Return Eq 7 for one query."""
    return [weight * a + (1 - weight) * b for a, b in zip(local, shared, strict=True)]


def averaged(before, updates, shares):
    """Return Eq 13 for one weight: those who did not take part count with what they were sent."""
    took_part = sum(shares[name] * updates[name] for name in updates)
    return took_part + (1 - sum(shares[name] for name in updates)) * before
