"""Naive version of kNN-Per (Eqs 4 to 7 and 13 of the paper)."""

import math

from tests.naive.vectors.distances import square_sums


def nearest(keys, queries, k, own=None):
    """Return positions and distances of each query's k nearest keys.

    Ties go to the lower row.
    """
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
    """Return Eq 6 for one query, given its neighbors' labels and distances."""
    nearest_of_all = min(distances)
    shares = [0.0] * n_classes
    for label, distance in zip(labels, distances, strict=True):
        shares[label] += math.exp(-(distance - nearest_of_all) / sigma)
    return [share / sum(shares) for share in shares]


def mixed(local, shared, weight):
    """Return Eq 7 for one query."""
    return [weight * a + (1 - weight) * b for a, b in zip(local, shared, strict=True)]


def average(before, updates, shares):
    """Return Eq 13 for one weight.

    Clients that did not take part count with the weight that was sent to them.
    """
    took_part = sum(shares[name] * updates[name] for name in updates)
    return took_part + (1 - sum(shares[name] for name in updates)) * before


def means(targets, distances, sigma):
    """Return Eq 6 for one query with targets instead of labels."""
    weights = [math.exp(-(distance - min(distances)) / sigma) for distance in distances]
    columns = range(len(targets[0]))
    sums = [sum(w * row[j] for w, row in zip(weights, targets, strict=True)) for j in columns]
    return [total / sum(weights) for total in sums]


def mixture_errors(local, shared, targets, grid):
    """Return the squared error of Eq 7 at each weight."""
    errors = []
    for weight in grid:
        error = 0.0
        for a, b, right in zip(local, shared, targets, strict=True):
            for one, truth in zip(mixed(a, b, weight), right, strict=True):
                error += (one - truth) ** 2
        errors.append(error)
    return errors


def stacking_gradient(experts, targets, weights, first):
    """Return the gradient of the stacking loss and its terms' size.

    The loss is half the squared error plus half the squared change of the weights.
    """
    slopes = [weight - start for weight, start in zip(weights, first, strict=True)]
    size = 1.0 + max(abs(weight) for weight in weights)
    for outputs, right in zip(experts, targets, strict=True):
        for values, truth in zip(outputs, right, strict=True):
            gap = sum(w * s for w, s in zip(weights, values, strict=True)) - truth
            for place, one in enumerate(values):
                slopes[place] += one * gap
                size += sum(abs(w * s * one) for w, s in zip(weights, values, strict=True))
                size += abs(one * truth)
    return slopes, size


def cosine(a, b):
    """Return the cosine of the angle between two rows."""
    inner = sum(x * y for x, y in zip(a, b, strict=True))
    return inner / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))
