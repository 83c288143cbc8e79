"""Naive lower bounds of edit distances, from counts without buckets or overflow."""

from collections import Counter

from tests.naive.edit.slices import edit_distance


def bound_without_buckets(first, second, piece_length):
    """Bound the distance by length, letters and pieces, counted exactly."""
    letter_bound = max_excess(Counter(first), Counter(second))
    excess_pieces = max_excess(
        count_pieces(first, piece_length), count_pieces(second, piece_length)
    )
    return max(abs(len(first) - len(second)), letter_bound, -(-excess_pieces // piece_length))


def count_pieces(string, piece_length):
    return Counter(
        tuple(string[i : i + piece_length]) for i in range(len(string) - piece_length + 1)
    )


def max_excess(first, second):
    return max((first - second).total(), (second - first).total())


def distance_within(first, second, limit):
    """Return the distance, or None if it is above the limit."""
    distance = edit_distance(first, second)
    return distance if distance <= limit else None


def kth_smallest(values, start, k):
    """Return the k-th smallest value up to ``start``.

    This is ``start`` itself if fewer than k values are up to it.
    """
    candidates = sorted(value for value in values if value <= start)
    return candidates[k - 1] if len(candidates) >= k else start
