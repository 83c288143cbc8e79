"""Naive version of ``kernels._sets``: one set at a time."""

from fractions import Fraction


def common_elements(sets, query):
    return [len(item & query) for item in sets]


def touched(sets, query):
    """Return the sets with common elements, in the order of elements, then of sets."""
    holders = [[i for i, item in enumerate(sets) if element in item] for element in sorted(query)]
    return list(dict.fromkeys(i for item in holders for i in item))


def distances(sets, query):
    """Return the fractions rounded once; 1 for two empty sets."""
    return [float(1 - Fraction(len(item & query), max(len(item | query), 1))) for item in sets]


def order(distances, positions):
    """Return the order of pairs of distance and position."""
    return sorted(range(len(distances)), key=lambda i: (distances[i], positions[i]))
