"""Lower bounds of an edit distance from counts that never overflow, piece by piece."""

from collections import Counter

from tests.naive.edit.slices import distance


def bound_without_buckets(first, second, piece):
    """Return the bound of length, letters and pieces before they share bins or buckets."""
    letters = surplus(Counter(first), Counter(second))
    pieces = surplus(pieces_of(first, piece), pieces_of(second, piece))
    return max(abs(len(first) - len(second)), letters, -(-pieces // piece))


def pieces_of(string, piece):
    return Counter(tuple(string[i : i + piece]) for i in range(len(string) - piece + 1))


def surplus(first, second):
    return max((first - second).total(), (second - first).total())


def within(first, second, limit):
    """Return the distance, or None if it is above the limit."""
    found = distance(first, second)
    return found if found <= limit else None


def limit(values, start, wanted):
    """Return the k-th smallest of the values within the limit, or the limit if there are fewer."""
    within = sorted(value for value in values if value <= start)
    return within[wanted - 1] if len(within) >= wanted else start
