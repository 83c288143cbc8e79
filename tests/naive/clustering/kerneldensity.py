"""Naive version of ``fedneighbors.kernels.clustering._kerneldensity``."""

import itertools
import math


def mean_square(row, center):
    squares = [(a - b) * (a - b) for a, b in zip(row, center, strict=True)]
    squares += [0.0] * (-len(squares) % 4)
    total = 0.0
    for k in range(0, len(squares), 4):
        total += (squares[k] + squares[k + 1]) + (squares[k + 2] + squares[k + 3])
    return total / len(row)


def log_kernel(square, sigma, activation):
    """Return the log kernel; ``square`` is the squared distance."""
    u = math.sqrt(square) / sigma
    if activation == "gaussian":
        return -0.5 * square / sigma / sigma
    if activation == "logistic":
        return -u - 2 * math.log1p(math.exp(-u))
    return -math.log1p(square / sigma / sigma)


def log_sum_exp(terms):
    highest = max(terms, default=-math.inf)
    if highest == -math.inf:
        return -math.inf
    return highest + math.log(math.fsum(math.exp(term - highest) for term in terms))


def log_sums(x, centers, starts, *, sigma, activation="gaussian", without=None):
    sums = []
    for i, row in enumerate(x):
        terms = [log_kernel(mean_square(row, center), sigma, activation) for center in centers]
        if without is not None and without[i] >= 0:
            terms[without[i]] = -math.inf
        sums.append([log_sum_exp(terms[a:b]) for a, b in itertools.pairwise(starts)])
    return sums
