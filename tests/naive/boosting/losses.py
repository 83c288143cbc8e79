"""Naive twins of the derivatives and losses of class scores."""

import math
from fractions import Fraction


def probabilities(row):
    """Return the class probabilities of a row of scores."""
    if len(row) == 1:
        second = 1 / (1 + exp(-row[0]))
        return [1 - second, second]
    exponentials = [exp(score - max(row)) for score in row]
    total = 0.0
    for exponential in exponentials:
        total += exponential
    return [exponential / total for exponential in exponentials]


def exp(number):
    return math.exp(number) if number < 709 else math.inf


def class_gradients(scores, labels, weights, factor):
    """Return lists of gradients and of Hessians for each score."""
    gradients, hessians = [], []
    for k in range(len(scores[0])):
        target = 1 if len(scores[0]) == 1 else k
        parts = [probabilities(row)[target] for row in scores]
        factors = [weights[label] * factor for label in labels]
        gradients.append(
            [
                round(f * (p - (1.0 if label == target else 0.0)))
                for f, p, label in zip(factors, parts, labels, strict=True)
            ]
        )
        hessians.append([round(f * (p * (1 - p))) for f, p in zip(factors, parts, strict=True)])
    return gradients, hessians


def class_losses(scores, labels, weights):
    """Return the sum of the log losses, each at most 1024 nats."""
    total = Fraction(0)
    for row, label in zip(scores, labels, strict=True):
        full = [0.0, row[0]] if len(row) == 1 else row
        highest = max(full)
        loss = math.log(sum(math.exp(score - highest) for score in full)) + (highest - full[label])
        total += Fraction(weights[label]) * Fraction(min(loss, 1024.0))
    return total
