"""Edit distances from one query to long strings, by lower bounds and banded computation.

Counts of letters and of six-letter pieces (q-grams) give a lower bound of a distance. The distance
itself is computed by Myers' bit-parallel algorithm with 64 rows in a word. Only words in the band
are computed: the diagonals that a path of at most the limit's cost can reach.

The limit decreases as strings are compared: a tally of the distances found so far maintains the
k-th smallest in constant time. ``_slices`` uses the tally too.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit, uint64

LIMIT, WITHIN, WANTED = 0, 1, 2
"""Indices of the state: limit above which values are ignored, number of values within it, and k."""


def init_state(tally: npt.NDArray[np.int64], *, limit: int, wanted: int) -> npt.NDArray[np.int64]:
    """Return the state for the values counted so far.

    Parameters
    ----------
    tally : int64 array of shape (n,)
        Number of occurrences of each value 0, 1, ..., n - 1.
    limit : int
        Values above it are ignored; from -1 to n - 1.
    wanted : int
        Number of smallest values to find (k), at least 1.

    Returns
    -------
    int64 array of shape (3,)
        Limit, number of values within it, and k. If at least k values are within the limit, it is
        lowered to the k-th smallest.
    """
    n_up_to = np.cumsum(tally[: limit + 1])
    if limit >= 0 and n_up_to[-1] >= wanted:
        limit = int(np.searchsorted(n_up_to, wanted))
    n_within = int(n_up_to[limit]) if limit >= 0 else 0
    return np.array([limit, n_within, wanted], np.int64)


@njit(cache=True, nogil=True)
def count_value(tally: Any, state: Any, value: Any) -> Any:
    """Count one value and lower the limit in ``state`` if possible.

    Once at least k values are within the limit, it becomes the k-th smallest value.
    """
    tally[value] += 1
    if value > state[LIMIT]:
        return
    state[WITHIN] += 1
    while state[WITHIN] - tally[state[LIMIT]] >= state[WANTED]:
        state[WITHIN] -= tally[state[LIMIT]]
        state[LIMIT] -= 1


class OpenBand(NamedTuple):
    """Working memory for a query, and the state of an interrupted comparison.

    Parameters
    ----------
    ups, downs : uint64 arrays of shape (n_words,)
        Rows in which the last column rises or falls, 64 to a word.
    bottoms : int64 array of shape (n_words,)
        Value in the last row of each word.
    place : int64 array of shape (4,)
        String, or -1 for none; its limit; next column; last word of the band.
    """

    ups: npt.NDArray[np.uint64]
    downs: npt.NDArray[np.uint64]
    bottoms: npt.NDArray[np.int64]
    place: npt.NDArray[np.int64]

    @classmethod
    def of(cls, query_length: int) -> "OpenBand":
        """Return the working memory for a query of some length."""
        n_words = (query_length + 63) // 64
        ups, downs = np.empty((2, n_words), np.uint64)
        return cls(ups, downs, np.empty(n_words, np.int64), np.full(4, -1))


class KnownDistances(NamedTuple):
    """Distances found so far and the limit that follows from them.

    Parameters
    ----------
    distances : int32 array of shape (n_strings,)
        Distance of each string; the largest int32 if it is unknown.
    tally, state : int64 arrays
        See :func:`init_state`; ``tally`` has an entry for every possible distance.
    """

    distances: npt.NDArray[np.int32]
    tally: npt.NDArray[np.int64]
    state: npt.NDArray[np.int64]


N_BINS = 32
"""Number of bins for letter counts."""

N_BUCKETS = 256
"""Number of buckets for piece counts."""

PIECE_LENGTH = 6
"""Number of letters in a piece, large enough that pieces of unrelated genomes differ."""

# Counts saturate here; the difference of saturated counts is still a lower bound.
_MAX_COUNT = 65535
_ALL = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
_ONE = np.uint64(1)


class Strings(NamedTuple):
    """Strings of int32 codes in one contiguous array.

    Parameters
    ----------
    codes : int32 array
        Codes of all strings.
    offsets : int64 array of shape (n_strings + 1,)
        Start of each string in ``codes``, followed by the total length.
    """

    codes: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]


@njit(cache=True, nogil=True)
def count_pieces(strings: Any) -> Any:
    """Return the counts of letters and pieces of each string.

    The result is a uint16 array of shape (n_strings, N_BINS + N_BUCKETS).
    """
    codes, offsets = strings
    counts = np.zeros((offsets.size - 1, N_BINS + N_BUCKETS), np.uint16)
    for string in range(offsets.size - 1):
        row = counts[string]
        for i in range(offsets[string], offsets[string + 1]):
            index = codes[i] % N_BINS
            row[index] = min(np.int64(row[index]) + 1, _MAX_COUNT)
        for i in range(offsets[string], offsets[string + 1] - PIECE_LENGTH + 1):
            hashed = uint64(0)
            for j in range(PIECE_LENGTH):
                hashed = (hashed ^ uint64(codes[i + j])) * uint64(0x9E3779B97F4A7C15)
                hashed ^= hashed >> uint64(29)
            index = N_BINS + np.int64(hashed % uint64(N_BUCKETS))
            row[index] = min(np.int64(row[index]) + 1, _MAX_COUNT)
    return counts


@njit(cache=True, nogil=True)
def _max_excess(first: Any, second: Any, n: Any) -> Any:
    """Return the larger excess of one count vector over the other.

    The excess is the sum of the positive differences of the first ``n`` counts.
    """
    # 32 bits, so that a vector register holds twice as many
    sum_of_maxima, first_sum, second_sum = np.uint32(0), np.uint32(0), np.uint32(0)
    for i in range(n):
        sum_of_maxima = np.uint32(sum_of_maxima + np.uint32(max(first[i], second[i])))
        first_sum = np.uint32(first_sum + np.uint32(first[i]))
        second_sum = np.uint32(second_sum + np.uint32(second[i]))
    return np.int64(sum_of_maxima) - min(np.int64(first_sum), np.int64(second_sum))


@njit(cache=True, nogil=True)
def bound_bands(counts: Any, lengths: Any, query_counts: Any, query_length: int) -> Any:
    """Return a lower bound of each string's distance, int32 of shape (n_strings,).

    Parameters
    ----------
    counts : uint16 array of shape (n_strings, N_BINS + N_BUCKETS)
        From :func:`count_pieces`.
    lengths : int64 array of shape (n_strings,)
        Lengths of the strings.
    query_counts : uint16 array of shape (N_BINS + N_BUCKETS,)
        Counts of the query, encoded with the codes of the strings.
    query_length : int
        Length of the query.

    References
    ----------
    .. [1] Ukkonen, "Approximate string-matching with q-grams and maximal matches", Theoretical
       Computer Science 92 (1992), Theorem 4.1.
    """
    bounds = np.empty(lengths.size, np.int32)
    for string in range(lengths.size):
        row = counts[string]
        letters = _max_excess(row, query_counts, N_BINS)
        # One edit changes the length by at most one, and removes and adds at most one letter and at
        # most PIECE_LENGTH pieces.
        bound = max(abs(lengths[string] - query_length), letters)
        if bound < max(lengths[string], query_length):  # otherwise it equals the distance
            pieces = _max_excess(row[N_BINS:], query_counts[N_BINS:], N_BUCKETS)
            bound = max(bound, (pieces + PIECE_LENGTH - 1) // PIECE_LENGTH)
        bounds[string] = bound
    return bounds


@njit(cache=True, nogil=True)
def _path_bound(word: Any, ups: Any, downs: Any, bottom: Any, ahead: Any, n_rows: Any) -> Any:
    """Return a lower bound of the distance along paths through one word.

    It is the least sum, over the rows of the word, of the value and the distance to the diagonal of
    the last cell. ``ups`` and ``downs`` are the rows in which the value rises or falls by one;
    ``bottom`` is the value in the last row of the word. ``ahead`` is the number of remaining
    columns minus the number of rows.
    """
    value, row = bottom, 64 * word + 64
    least = np.int64(1) << np.int64(40)
    for bit in range(63, -1, -1):
        if row <= n_rows:
            least = min(least, value + abs(ahead + row))
        value -= np.int64((ups >> uint64(bit)) & _ONE) - np.int64((downs >> uint64(bit)) & _ONE)
        row -= 1
    return min(least, value + abs(ahead + row))


@njit(cache=True, nogil=True)
def _advance_word(match: Any, up: Any, down: Any, right: Any, left: Any) -> Any:
    """Advance one word by one column.

    Returns the vertical differences after the column (up, down) and the horizontal difference in
    the last row (right, left), which is passed to the word below.
    """
    match_or_down = match | down  # Xv of Myers
    match = match | left
    level = (((match & up) + up) ^ up) | match  # Xh of Myers
    rises, falls = down | ~(level | up), up & level
    next_right, next_left = rises >> uint64(63), falls >> uint64(63)
    rises, falls = (rises << _ONE) | right, (falls << _ONE) | left
    return falls | ~(match_or_down | rises), rises & match_or_down, next_right, next_left


@njit(cache=True, nogil=True)
def _value_at(row: Any, ups: Any, downs: Any, bottom: Any) -> Any:
    """Return the value in row 1, ..., 64 of a word.

    ``bottom`` is the value in the last row of the word.
    """
    for bit in range(row, 64):
        bottom -= np.int64((ups >> uint64(bit)) & _ONE) - np.int64((downs >> uint64(bit)) & _ONE)
    return bottom


@njit(cache=True, nogil=True)
def _distance(masks: Any, n_rows: Any, letters: Any, limit: Any, band: Any, budget: Any) -> Any:
    """Return the distance and the work.

    The distance is any number above ``limit`` if it exceeds that. It is -1 if the work exceeded the
    budget; the next call continues.

    ``masks[letter, word]`` are the rows of the query that contain a letter; ``letters`` is the
    string. A value outside the band is assumed to be one more than its neighbor inside. Therefore
    each computed value is the cost of some path, and it is exact if the best path stays in the
    band.
    """
    ups, downs, bottoms, place = band
    if abs(n_rows - letters.size) > limit:
        return limit + 1, 0
    if n_rows == 0 or letters.size == 0:
        return max(n_rows, letters.size), 0
    # diagonals below and above the main one that a path within the limit may reach
    n_below = (limit + n_rows - letters.size) // 2
    n_above = (limit - n_rows + letters.size) // 2
    last_word, work = place[3], 0
    for column in range(place[2], letters.size):
        first_word = max(0, column - n_above) // 64
        while last_word < min(masks.shape[1] - 1, (column + n_below) // 64):
            last_word += 1
            ups[last_word], downs[last_word] = _ALL, uint64(0)
            bottoms[last_word] = 64 + (bottoms[last_word - 1] if last_word > 0 else 0)
        right, left = _ONE, uint64(0)
        for word in range(first_word, last_word + 1):
            match = masks[letters[column], word]
            ups[word], downs[word], right, left = _advance_word(
                match, ups[word], downs[word], right, left
            )
            bottoms[word] += np.int64(right) - np.int64(left)
        work += last_word - first_word + 1
        if column % 64 == 63:
            ahead = letters.size - column - 1 - n_rows
            least = limit + 1
            for word in range(first_word, last_word + 1):
                bound = _path_bound(word, ups[word], downs[word], bottoms[word], ahead, n_rows)
                least = min(least, bound)
            if least > limit:
                return limit + 1, work
            if work > budget:
                place[2], place[3] = column + 1, last_word
                return -1, work
    row = n_rows - 64 * last_word
    return _value_at(row, ups[last_word], downs[last_word], bottoms[last_word]), work


@njit(cache=True, nogil=True)
def verify_bands(
    strings: Any, order: Any, query: Any, bounds: Any, known: Any, band: Any, budget: int
) -> Any:
    """Compute the distances of strings that are within the limit.

    Parameters
    ----------
    strings : Strings
        The table.
    order : int64 array of shape (n,)
        Strings to verify, in ascending order of their bounds. The function stops at the first
        string whose bound is above the limit; the limit decreases as distances are found.
    query : tuple of int32 array and int64 array
        Index of each code among the letters of the query, or -1 for other codes; and the query as
        such indices.
    bounds : int32 array of shape (n_strings,)
        Lower bounds, updated for verified strings: to the distance if it is at most the limit,
        otherwise to the limit plus one.
    known : KnownDistances
        Distances of the strings, updated.
    band : OpenBand
        Working memory. An interrupted comparison is resumed if the next call begins with the same
        string and no larger limit.
    budget : int
        Maximum work, in steps of one word; the function stops once it is used up.

    Returns
    -------
    int
        Number of strings of ``order`` that were processed.

    References
    ----------
    .. [1] Myers, "A fast bit-vector algorithm for approximate string matching based on dynamic
       programming", Journal of the ACM 46 (1999).
    .. [2] Ukkonen, "Algorithms for approximate string matching", Information and Control 64
       (1985), for the band.
    """
    (letter_of, indices), (distances, tally, state) = query, known
    n_words = (indices.size + 63) // 64
    n_letters = 1
    for i in range(indices.size):
        n_letters = max(n_letters, indices[i] + 1)
    masks = np.zeros((n_letters + 1, n_words), np.uint64)  # last row: letters not in the query
    for i in range(indices.size):
        masks[indices[i], i // 64] |= _ONE << uint64(i % 64)
    place = band.place
    letters = np.empty(0, np.int32)
    n_processed = 0
    while n_processed < order.size and budget > 0:
        string = order[n_processed]
        limit = state[LIMIT]
        if bounds[string] > limit:
            break
        start, end = strings.offsets[string], strings.offsets[string + 1]
        longer_length = max(end - start, indices.size)
        if bounds[string] >= longer_length:  # a distance never exceeds the longer length
            distances[string] = longer_length
            count_value(tally, state, longer_length)
            n_processed += 1
            continue
        if letters.size < end - start:
            letters = np.empty(2 * (end - start), np.int32)
        for i in range(start, end):
            index = letter_of[strings.codes[i]]
            letters[i - start] = index if index >= 0 else n_letters
        if place[0] != string or place[1] < limit:
            place[0], place[1], place[2], place[3] = string, limit, 0, -1
        limit = place[1]
        distance, work = _distance(masks, indices.size, letters[: end - start], limit, band, budget)
        if distance < 0:
            break
        place[0] = -1
        if distance <= limit:
            distances[string] = distance
            bounds[string] = distance
            count_value(tally, state, distance)
        else:
            bounds[string] = limit + 1
        budget -= work + end - start
        n_processed += 1
    return n_processed
