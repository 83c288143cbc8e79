"""Naive lower bounds of edit distances, from counts without buckets or overflow."""

from collections import Counter

from tests.naive.edit.slices import distance


def bound_without_buckets(first, second, piece):
    """Bound the distance by length, letters and pieces, counted exactly."""
    letters = excess(Counter(first), Counter(second))
    pieces = excess(pieces_of(first, piece), pieces_of(second, piece))
    return max(abs(len(first) - len(second)), letters, -(-pieces // piece))


def pieces_of(string, piece):
    return Counter(tuple(string[i : i + piece]) for i in range(len(string) - piece + 1))


def excess(first, second):
    return max((first - second).total(), (second - first).total())


def within(first, second, limit):
    """Return the distance, or None if it is above the limit."""
    found = distance(first, second)
    return found if found <= limit else None


def limit(values, start, wanted):
    """Return the k-th smallest value up to ``start``.

    This is ``start`` itself if fewer than k values are up to it.
    """
    candidates = sorted(value for value in values if value <= start)
    return candidates[wanted - 1] if len(candidates) >= wanted else start
