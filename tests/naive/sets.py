"""Naive version of ``kernels._sets``: one set at a time."""

from fractions import Fraction
from math import floor


def common_elements(sets, query):
    return [len(item & query) for item in sets]


def levels(sets, query):
    return [floor(255 * Fraction(len(item & query), max(len(item | query), 1))) for item in sets]


def distances(sets, query):
    """Return the fractions rounded once; 1 for two empty sets."""
    return [float(1 - Fraction(len(item & query), max(len(item | query), 1))) for item in sets]
