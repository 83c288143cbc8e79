"""Naive version of kNN-Per (Eqs 4 to 7 and 13 of the paper)."""

import math

from tests.naive.vectors.distances import square_sums


def nearest(keys, queries, k, excluded=None):
    """Return positions and distances of each query's k nearest keys.

    Ties go to the lower row.
    """
    positions, distances = [], []
    for q, query in enumerate(queries):
        candidates = [
            (square, row)
            for row, square in enumerate(square_sums(keys, query))
            if excluded is None or excluded[q] != row
        ]
        nearest_keys = sorted(candidates)[:k]
        positions.append([row for _, row in nearest_keys])
        distances.append([math.sqrt(square) for square, _ in nearest_keys])
    return positions, distances


def label_votes(labels, distances, n_classes, sigma):
    """Return Eq 6 for one query, given its neighbors' labels and distances."""
    least = min(distances)
    votes = [0.0] * n_classes
    for label, distance in zip(labels, distances, strict=True):
        votes[label] += math.exp(-(distance - least) / sigma)
    return [vote / sum(votes) for vote in votes]


def mix_predictions(local, shared, weight):
    """Return Eq 7 for one query."""
    return [weight * a + (1 - weight) * b for a, b in zip(local, shared, strict=True)]


def average_weight(previous, updates, shares):
    """Return Eq 13 for one weight.

    Clients that did not take part count with the weight that was sent to them.
    """
    updated = sum(shares[name] * updates[name] for name in updates)
    return updated + (1 - sum(shares[name] for name in updates)) * previous


def target_means(targets, distances, sigma):
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
        for a, b, target in zip(local, shared, targets, strict=True):
            for predicted, value in zip(mix_predictions(a, b, weight), target, strict=True):
                error += (predicted - value) ** 2
        errors.append(error)
    return errors


def pool_gradient(experts, labels, weights, has_first):
    """Return the gradient of a log-linear pool's loss with the prior of its weights."""
    gradient = list(weights)
    gradient[0] -= has_first
    for scores, label in zip(experts, labels, strict=True):
        totals = [sum(w * s for w, s in zip(weights, row, strict=True)) for row in scores]
        powers = [math.exp(total - max(totals)) for total in totals]
        for j in range(len(weights)):
            mean = sum(p * row[j] for p, row in zip(powers, scores, strict=True)) / sum(powers)
            gradient[j] += mean - scores[label][j]
    return gradient


def stacking_gradient(experts, targets, weights, initial):
    """Return the gradient of the stacking loss and its terms' size.

    The loss is half the squared error plus half the squared change of the weights.
    """
    gradient = [weight - start for weight, start in zip(weights, initial, strict=True)]
    size = 1.0 + max(abs(weight) for weight in weights)
    for outputs, target in zip(experts, targets, strict=True):
        for predictions, value in zip(outputs, target, strict=True):
            residual = sum(w * s for w, s in zip(weights, predictions, strict=True)) - value
            for j, output in enumerate(predictions):
                gradient[j] += output * residual
                size += sum(abs(w * s * output) for w, s in zip(weights, predictions, strict=True))
                size += abs(output * value)
    return gradient, size


def cosine(a, b):
    """Return the cosine of the angle between two rows."""
    inner = sum(x * y for x, y in zip(a, b, strict=True))
    return inner / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))
