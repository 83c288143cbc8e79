"""Naive versions of ``kernels._fingerprints``: sets of the positions of bits."""

from fractions import Fraction
from math import floor


def bits_of(words):
    """Return the positions of the set bits of words, lowest bit first."""
    return {64 * j + b for j, word in enumerate(words) for b in range(64) if int(word) >> b & 1}


def count_common(table, query):
    return [len(bits_of(row) & bits_of(query)) for row in table]


def fold(table, places):
    return [{int(places[bit]) for bit in bits_of(row)} for row in table]


def bound_common(table, query, places):
    """Count the query bits whose place is set in a row's sketch."""
    return [
        sum(int(places[bit]) in sketch for bit in bits_of(query)) for sketch in fold(table, places)
    ]


def rate(common, size, n_query):
    shared = min(common, size)
    union = n_query + size - shared
    return floor(255 * Fraction(shared, union)) if union else 255
