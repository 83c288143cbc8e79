"""Naive twins of FedProto and pFedFDA: their formulas on lists, one number at a time."""

import math

import numpy as np


def mean(vectors):
    return [sum(column) / len(vectors) for column in zip(*vectors, strict=True)]


def squared_distance(first, second):
    return sum((a - b) ** 2 for a, b in zip(first, second, strict=True))


def prototypes(clients, n_classes):
    """Return each class's mean of the clients' prototypes, weighted by their rows; None without.

    Clients are pairs of embeddings and labels.
    """
    result = []
    for c in range(n_classes):
        own = [[z for z, y in zip(*client, strict=True) if y == c] for client in clients]
        total = sum(len(rows) for rows in own)
        parts = [(len(rows) / total, mean(rows)) for rows in own if rows]
        result.append(mean_of(parts) if parts else None)
    return result


def mean_of(parts):
    """Return the sum of vectors times weights."""
    return [sum(weight * vector[k] for weight, vector in parts) for k in range(len(parts[0][1]))]


def prototype_loss(scores, points, labels, weights, means, strength):
    """Return cross-entropy plus strength times the squared distance per dimension."""
    loss = 0.0
    for row, point, label, weight in zip(scores, points, labels, weights, strict=True):
        loss += weight * (math.log(sum(math.exp(s) for s in row)) - row[label])
        if means[label] is not None:
            loss += weight * strength * squared_distance(point, means[label]) / len(point)
    return loss


def estimate(points, labels, fallback):
    """Return the means of classes with three or more rows, and covariance plus identity."""
    means = []
    for c, other in enumerate(fallback):
        own = [z for z, y in zip(points, labels, strict=True) if y == c]
        means.append(mean(own) if len(own) > 2 else list(other))
    n = len(fallback[0])
    covariance = [[float(j == k) for k in range(n)] for j in range(n)]
    for z, y in zip(points, labels, strict=True):
        for j in range(n):
            for k in range(n):
                product = (z[j] - means[y][j]) * (z[k] - means[y][k])
                covariance[j][k] += product / max(len(points) - 1, 1)
    return means, covariance


def log_posteriors(point, means, covariance, priors):
    """Return the log of prior times normal density of each class, up to one number."""
    n = len(point)
    shrunk = 0.9999 * np.array(covariance) + 1e-4 * np.trace(covariance) / n * np.eye(n)
    inverse = np.linalg.inv(shrunk)
    return [
        math.log(prior) - (np.array(point) - m) @ inverse @ (np.array(point) - m) / 2
        for m, prior in zip(np.array(means), priors, strict=True)
    ]


def priors(labels, n_classes):
    """Return class shares plus 1e-4, scaled to a sum of 1."""
    shares = [sum(y == c for y in labels) / len(labels) + 1e-4 for c in range(n_classes)]
    return [share / sum(shares) for share in shares]
