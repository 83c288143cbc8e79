"""Edit distances of one query to long strings, one at a time: lower bounds, then a narrow band.

Counts of letters and of six-letter pieces bound a distance from below. The distance itself comes
from Myers' bit-parallel algorithm, 64 rows in a word, restricted to the words that meet the band
of diagonals which a path within the limit can reach.

The limit falls while strings are compared: a tally of the distances seen keeps the running k-th
smallest in constant time. Slices use it too.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit, uint64

LIMIT, WITHIN, WANTED = 0, 1, 2
"""Places in the state: values above the limit are of no interest; how many lie within; k."""


def begin(tally: npt.NDArray[np.int64], *, limit: int, wanted: int) -> npt.NDArray[np.int64]:
    """Return the state for the values counted so far.

    Parameters
    ----------
    tally : int64 array of shape (n,)
        How often each value 0, 1, ..., n - 1 came.
    limit : int
        Values above it are of no interest; from -1 to n - 1.
    wanted : int
        The k, 1 or more.

    Returns
    -------
    int64 array of shape (3,)
        The limit is lowered to the k-th smallest value where k are known within it.
    """
    upto = np.cumsum(tally[: limit + 1])
    if limit >= 0 and upto[-1] >= wanted:
        limit = int(np.searchsorted(upto, wanted))
    within = int(upto[limit]) if limit >= 0 else 0
    return np.array([limit, within, wanted], np.int64)


@njit(cache=True, nogil=True)
def admit(tally: Any, state: Any, value: Any) -> Any:
    """Count one value; lower the limit if the k-th smallest fell.

    The limit is in ``state``.
    """
    tally[value] += 1
    if value > state[0]:
        return
    state[1] += 1
    while state[1] - tally[state[0]] >= state[2]:
        state[1] -= tally[state[0]]
        state[0] -= 1


class Known(NamedTuple):
    """Distances found so far, and the limit that follows from them.

    Parameters
    ----------
    distances : int32 array of shape (n_strings,)
        Of each string; the largest integer where it is not known.
    tally, state : int64 arrays
        From :func:`begin`; ``tally`` reaches to the largest distance.
    """

    distances: npt.NDArray[np.int32]
    tally: npt.NDArray[np.int64]
    state: npt.NDArray[np.int64]


N_BINS = 32
"""Bins of letter counts."""

N_BUCKETS = 256
"""Buckets of counts of pieces."""

PIECE = 6
"""Letters in a piece: long enough that pieces of unrelated genomes differ."""

_FULL = 65535  # counts stop here; the difference of two stopped counts is still a lower bound
_ALL = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
_ONE = np.uint64(1)


class Strings(NamedTuple):
    """Strings of int32 codes, one after the other.

    Parameters
    ----------
    codes : int32 array
        Codes of all strings.
    offsets : int64 array of shape (n_strings + 1,)
        Where each begins.
    """

    codes: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]


@njit(cache=True, nogil=True)
def count_pieces(strings: Any) -> Any:
    """Count letters and pieces of each string.

    Returns uint16 of shape (n_strings, N_BINS + N_BUCKETS).
    """
    codes, offsets = strings
    counts = np.zeros((offsets.size - 1, N_BINS + N_BUCKETS), np.uint16)
    for string in range(offsets.size - 1):
        row = counts[string]
        for i in range(offsets[string], offsets[string + 1]):
            place = codes[i] % N_BINS
            row[place] = min(np.int64(row[place]) + 1, _FULL)
        for i in range(offsets[string], offsets[string + 1] - PIECE + 1):
            mixed = uint64(0)
            for j in range(PIECE):
                mixed = (mixed ^ uint64(codes[i + j])) * uint64(0x9E3779B97F4A7C15)
                mixed ^= mixed >> uint64(29)
            place = N_BINS + np.int64(mixed % uint64(N_BUCKETS))
            row[place] = min(np.int64(row[place]) + 1, _FULL)
    return counts


@njit(cache=True, nogil=True)
def _surplus(first: Any, second: Any, n: Any) -> Any:
    """Return the larger of both one-sided count differences."""
    both, total, other = np.uint32(0), np.uint32(0), np.uint32(0)  # 32 bits: twice as many at once
    for i in range(n):
        both = np.uint32(both + np.uint32(max(first[i], second[i])))
        total = np.uint32(total + np.uint32(first[i]))
        other = np.uint32(other + np.uint32(second[i]))
    return np.int64(both) - min(np.int64(total), np.int64(other))


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
        Of the query, in the codes of the strings.
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
        letters = _surplus(row, query_counts, N_BINS)
        # One edit changes the length by one at most, and takes away and adds one letter at most,
        # PIECE pieces at most.
        bound = max(abs(lengths[string] - query_length), letters)
        if bound < max(lengths[string], query_length):  # else it is the distance
            pieces = _surplus(row[N_BINS:], query_counts[N_BINS:], N_BUCKETS)
            bound = max(bound, (pieces + PIECE - 1) // PIECE)
        bounds[string] = bound
    return bounds


@njit(cache=True, nogil=True)
def _least_total(block: Any, ups: Any, downs: Any, bottom: Any, ahead: Any, n_rows: Any) -> Any:
    """Return the least value plus distance to the end diagonal.

    The minimum is over the rows of the word.

    ``ahead`` is the column count still to come minus the number of rows; ``bottom`` the value in
    the last row of the word.
    """
    value, row = bottom, 64 * block + 64
    least = np.int64(1) << np.int64(40)
    for bit in range(63, -1, -1):
        if row <= n_rows:
            least = min(least, value + abs(ahead + row))
        value -= np.int64((ups >> uint64(bit)) & _ONE) - np.int64((downs >> uint64(bit)) & _ONE)
        row -= 1
    return min(least, value + abs(ahead + row))


@njit(cache=True, nogil=True)
def _advance(match: Any, up: Any, down: Any, right: Any, left: Any) -> Any:
    """Compute one word's vertical differences after one column.

    Also returns the carry to the word below.
    """
    turned = match | down
    match = match | left
    level = (((match & up) + up) ^ up) | match
    rises, falls = down | ~(level | up), up & level
    next_right, next_left = rises >> uint64(63), falls >> uint64(63)
    rises, falls = (rises << _ONE) | right, (falls << _ONE) | left
    return falls | ~(turned | rises), rises & turned, next_right, next_left


@njit(cache=True, nogil=True)
def _value_at(row: Any, ups: Any, downs: Any, bottom: Any) -> Any:
    """Compute the value in a row from the word's last row.

    Rows are counted from 1 to 64.
    """
    for bit in range(row, 64):
        bottom -= np.int64((ups >> uint64(bit)) & _ONE) - np.int64((downs >> uint64(bit)) & _ONE)
    return bottom


@njit(cache=True, nogil=True)
def _distance(masks: Any, n_rows: Any, letters: Any, limit: Any, space: Any) -> Any:
    """Return the distance, or a number above ``limit`` if it is above.

    ``masks[letter, word]`` are the rows of the query that hold a letter, ``letters`` the string.
    Values outside the band are taken as one more than their neighbor inside: each computed value
    is the cost of some path, and exact where the best path stays in the band.
    """
    ups, downs, bottoms = space
    if abs(n_rows - letters.size) > limit:
        return limit + 1
    if n_rows == 0 or letters.size == 0:
        return max(n_rows, letters.size)
    below = (limit + n_rows - letters.size) // 2  # rows below the diagonal that a path may reach
    above = (limit - n_rows + letters.size) // 2
    last = -1
    for column in range(letters.size):
        first = max(0, column - above) // 64
        while last < min(masks.shape[1] - 1, (column + below) // 64):
            last += 1
            ups[last], downs[last] = _ALL, uint64(0)
            bottoms[last] = 64 + (bottoms[last - 1] if last > 0 else 0)
        right, left = _ONE, uint64(0)
        for word in range(first, last + 1):
            match = masks[letters[column], word]
            ups[word], downs[word], right, left = _advance(
                match, ups[word], downs[word], right, left
            )
            bottoms[word] += np.int64(right) - np.int64(left)
        if column % 64 == 63:
            ahead = letters.size - column - 1 - n_rows
            least = limit + 1
            for word in range(first, last + 1):
                total = _least_total(word, ups[word], downs[word], bottoms[word], ahead, n_rows)
                least = min(least, total)
            if least > limit:
                return limit + 1
    return _value_at(n_rows - 64 * last, ups[last], downs[last], bottoms[last])


@njit(cache=True, nogil=True)
def verify_bands(strings: Any, order: Any, query: Any, bounds: Any, known: Any, budget: int) -> Any:
    """Compute distances within the limit; return the number of strings checked.

    Parameters
    ----------
    strings : Strings
        The table.
    order : int64 array of shape (n,)
        Strings to look at, in ascending order of their bounds. Ends at the first whose bound is
        above the limit, which falls as distances are found.
    query : tuple of int32 array and int64 array
        Place of each code among the letters of the query, -1 where it has no such letter; and the
        query as such places.
    bounds : int32 array of shape (n_strings,)
        Where the distance is at most the limit, both become it; elsewhere the bound becomes one
        more than the limit.
    known : Known
        Distances of the strings.
    budget : int
        Ends after this many steps of one word.

    References
    ----------
    .. [1] Myers, "A fast bit-vector algorithm for approximate string matching based on dynamic
       programming", Journal of the ACM 46 (1999).
    .. [2] Ukkonen, "Algorithms for approximate string matching", Information and Control 64
       (1985), the band.
    """
    (letter_of, spelled), (distances, tally, state) = query, known
    n_words = (spelled.size + 63) // 64
    n_letters = 1
    for i in range(spelled.size):
        n_letters = max(n_letters, spelled[i] + 1)
    masks = np.zeros((n_letters + 1, n_words), np.uint64)  # the last: a letter not in the query
    for i in range(spelled.size):
        masks[spelled[i], i // 64] |= _ONE << uint64(i % 64)
    space = (
        np.empty(n_words, np.uint64),
        np.empty(n_words, np.uint64),
        np.empty(n_words, np.int64),
    )
    letters = np.empty(0, np.int32)
    done = 0
    while done < order.size and budget > 0:
        string = order[done]
        limit = state[0]
        if bounds[string] > limit:
            break
        begin, end = strings.offsets[string], strings.offsets[string + 1]
        longer = max(end - begin, spelled.size)
        if bounds[string] >= longer:  # no distance is above the longer length
            distances[string] = longer
            admit(tally, state, longer)
            done += 1
            continue
        if letters.size < end - begin:
            letters = np.empty(2 * (end - begin), np.int32)
        for i in range(begin, end):
            place = letter_of[strings.codes[i]]
            letters[i - begin] = place if place >= 0 else n_letters
        found = _distance(masks, spelled.size, letters[: end - begin], limit, space)
        if found <= limit:
            distances[string] = found
            bounds[string] = found
            admit(tally, state, found)
        else:
            bounds[string] = limit + 1
        budget -= (end - begin) * (limit // 64 + 2)
        done += 1
    return done
