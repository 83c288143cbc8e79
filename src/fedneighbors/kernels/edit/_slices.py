"""Edit distances of one query to groups of 512 strings of like length, a bit for each string.

The table of an edit distance is filled cell by cell, and each cell is held as differences of -1, 0
or 1 to its neighbours: two bits. The bits of 512 strings lie side by side in one value, so a cell
of all their tables costs five instructions. The letters of a group are kept as bit planes.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit, uint64

from fedneighbors.kernels.edit._bands import admit
from fedneighbors.kernels.edit._lanes import N_LANES, N_WORDS, fill, load, store

USES = {"edit/lanes": "2d6df801cce6d628", "edit/bands": "55fdb9c14498667b"}
"""Digests of kernel files whose compiled code is used here: the cache sees no edit there."""

_BLOCK = 64  # rows whose letter masks and differences stay in the second-level cache
_STRIDE = _BLOCK + 1  # rows of a letter, odd: else all letters fall on the same cache lines
_DIGIT = 3  # bits of a code that are told apart by one table
_ALL = np.uint64(0xFFFF_FFFF_FFFF_FFFF)


class Slices(NamedTuple):
    """Strings in groups, as bit planes.

    Parameters
    ----------
    planes : uint64 array of shape (n_words,)
        For each sliced group, row (place in the string) and bit of a code: 512 bits, one for each
        string. Bits beyond a string's end are 0.
    starts : int64 array of shape (n_groups,)
        Where the planes of a group begin; -1 for a group that was not sliced.
    rows : int64 array of shape (n_groups,)
        Length of the longest string of a group.
    firsts : int64 array of shape (n_groups + 1,)
        The strings of group g are ``firsts[g]`` to ``firsts[g + 1] - 1``, 512 at most.
    lengths : int64 array of shape (n_strings,)
        Lengths of all strings.
    n_bits : int
        Bits of a code.
    """

    planes: npt.NDArray[np.uint64]
    starts: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    firsts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    n_bits: int


@njit(cache=True, nogil=True)
def _cut(codes: Any, offsets: Any, slices: Any) -> Any:
    for group in range(slices.starts.size):
        start = slices.starts[group]
        if start < 0:
            continue
        first = slices.firsts[group]
        for string in range(first, slices.firsts[group + 1]):
            lane = string - first
            mark = uint64(1) << uint64(lane % 64)
            place = start + lane // 64
            for i in range(offsets[string], offsets[string + 1]):
                code = codes[i]
                for bit in range(slices.n_bits):
                    if (code >> bit) & 1:
                        slices.planes[place + bit * N_WORDS] |= mark
                place += slices.n_bits * N_WORDS


def cut_slices(
    codes: npt.NDArray[np.int32],
    offsets: npt.NDArray[np.int64],
    firsts: npt.NDArray[np.int64],
    *,
    sliced: npt.NDArray[np.bool_],
    n_bits: int,
) -> Slices:
    """Return strings as bit planes.

    Parameters
    ----------
    codes : int32 array
        Codes of all strings, one after the other; from 1 to ``2**n_bits - 1``.
    offsets : int64 array of shape (n_strings + 1,)
        Where each string begins in ``codes``.
    firsts : int64 array of shape (n_groups + 1,)
        Groups, see :class:`Slices`.
    sliced : bool array of shape (n_groups,)
        Which groups to slice.
    n_bits : int
        Bits of a code.
    """
    lengths = np.diff(offsets)
    longest = np.maximum.reduceat(lengths, firsts[:-1]) if len(lengths) else lengths
    sizes = np.where(sliced, longest, 0) * n_bits * N_WORDS
    starts = np.where(sliced, np.cumsum(sizes) - sizes, -1)
    planes = np.zeros(int(sizes.sum()), np.uint64)
    slices = Slices(planes, starts, longest, firsts, lengths, n_bits)
    _cut(codes, offsets, slices)
    return slices


@njit(cache=True, nogil=True)
def _tell_digits(planes: Any, place: Any, n_bits: Any, digits: Any) -> Any:
    """Mark the strings with each value of each digit of a code."""
    for bit in range(n_bits):
        plane = load(planes, place + bit * N_WORDS)
        table = (bit // _DIGIT) * (N_WORDS << _DIGIT)
        half = 1 << (bit % _DIGIT)
        if half == 1:
            store(digits, table, ~plane)
            store(digits, table + N_WORDS, plane)
            continue
        for value in range(half):
            below = load(digits, table + value * N_WORDS)
            store(digits, table + (value + half) * N_WORDS, below & plane)
            store(digits, table + value * N_WORDS, below & ~plane)


@njit(cache=True, nogil=True)
def _match(
    planes: Any, start: Any, n_rows: Any, n_bits: Any, letters: Any, digits: Any, equal: Any
) -> Any:
    """Mark the strings that have each query letter in each row."""
    n_letters, n_digits = letters.shape
    for row in range(n_rows):
        _tell_digits(planes, start + row * n_bits * N_WORDS, n_bits, digits)
        place = row * N_WORDS
        for letter in range(n_letters):
            same = load(digits, letters[letter, 0])
            for digit in range(1, n_digits):
                same = same & load(digits, letters[letter, digit])
            store(equal, place, same)
            place += _STRIDE * N_WORDS


@njit(cache=True, nogil=True)
def _cell(equal: Any, up: Any, down: Any, right: Any, left: Any) -> Any:
    """Compute the lower and right differences of a cell from the others.

    ``up``/``down``: the value above the lower left corner is one less/one more. ``right``/``left``:
    the value at the upper right corner is one more/one less than at the upper left.
    """
    level = equal | down | left  # the diagonal does not rise
    return left | ~(level | right), level & right, down | ~(level | up), level & up


@njit(cache=True, nogil=True)
def _column(equal: Any, at: Any, n_rows: Any, vertical: Any, horizontal: Any, column: Any) -> Any:
    right = load(horizontal, 2 * N_WORDS * column)
    left = load(horizontal, 2 * N_WORDS * column + N_WORDS)
    for row in range(n_rows):
        place = 2 * N_WORDS * row
        up, down = load(vertical, place), load(vertical, place + N_WORDS)
        up, down, right, left = _cell(load(equal, at + N_WORDS * row), up, down, right, left)
        store(vertical, place, up)
        store(vertical, place + N_WORDS, down)
    store(horizontal, 2 * N_WORDS * column, right)
    store(horizontal, 2 * N_WORDS * column + N_WORDS, left)


@njit(cache=True, nogil=True)
def _two_columns(
    equal: Any, at: Any, at2: Any, n_rows: Any, vertical: Any, horizontal: Any, column: Any
) -> Any:
    """Compute two columns at once.

    The vertical differences between them stay in registers.
    """
    side = 2 * N_WORDS * column
    right, left = load(horizontal, side), load(horizontal, side + N_WORDS)
    right2, left2 = load(horizontal, side + 2 * N_WORDS), load(horizontal, side + 3 * N_WORDS)
    for row in range(n_rows):
        place = 2 * N_WORDS * row
        up, down = load(vertical, place), load(vertical, place + N_WORDS)
        up, down, right, left = _cell(load(equal, at + N_WORDS * row), up, down, right, left)
        up, down, right2, left2 = _cell(load(equal, at2 + N_WORDS * row), up, down, right2, left2)
        store(vertical, place, up)
        store(vertical, place + N_WORDS, down)
    store(horizontal, side, right)
    store(horizontal, side + N_WORDS, left)
    store(horizontal, side + 2 * N_WORDS, right2)
    store(horizontal, side + 3 * N_WORDS, left2)


@njit(cache=True, nogil=True)
def _count(
    planes: Any, start: Any, n_rows: Any, n_bits: Any, vertical: Any, counts: Any, n_counts: Any
) -> Any:
    """Add the vertical differences plus one of each lane's rows.

    Only rows within the string are counted.
    """
    for row in range(n_rows):
        place = start + row * n_bits * N_WORDS
        real = fill(uint64(0))
        for bit in range(n_bits):
            real = real | load(planes, place + bit * N_WORDS)
        up = load(vertical, 2 * N_WORDS * row) & real
        level = ~load(vertical, 2 * N_WORDS * row + N_WORDS) & real
        low = load(counts, 0)
        store(counts, 0, low ^ up ^ level)
        carry = (low & up) | (level & (low ^ up))
        for digit in range(1, n_counts):
            value = load(counts, digit * N_WORDS)
            store(counts, digit * N_WORDS, value ^ carry)
            carry = value & carry


@njit(cache=True, nogil=True)
def _fill_table(
    slices: Any, group: Any, letters: Any, spelled: Any, space: Any, n_counts: Any
) -> Any:
    """Compute all columns of a group, block by block of rows.

    Counts at the end.
    """
    equal, vertical, horizontal, counts, digits = space
    counts[:] = uint64(0)
    for column in range(spelled.size):
        store(horizontal, 2 * N_WORDS * column, fill(_ALL))
        store(horizontal, 2 * N_WORDS * column + N_WORDS, fill(uint64(0)))
    for top in range(0, slices.rows[group], _BLOCK):
        n_rows = min(_BLOCK, slices.rows[group] - top)
        start = slices.starts[group] + top * slices.n_bits * N_WORDS
        _match(slices.planes, start, n_rows, slices.n_bits, letters, digits, equal)
        for row in range(n_rows):
            store(vertical, 2 * N_WORDS * row, fill(_ALL))
            store(vertical, 2 * N_WORDS * row + N_WORDS, fill(uint64(0)))
        step = _STRIDE * N_WORDS
        column = 0
        while column + 1 < spelled.size:
            at, at2 = spelled[column] * step, spelled[column + 1] * step
            _two_columns(equal, at, at2, n_rows, vertical, horizontal, column)
            column += 2
        if column < spelled.size:
            _column(equal, spelled[column] * step, n_rows, vertical, horizontal, column)
        _count(slices.planes, start, n_rows, slices.n_bits, vertical, counts, n_counts)


@njit(cache=True, nogil=True)
def _spread(counts: Any, n_counts: Any, n_words: Any, values: Any) -> Any:
    """Turn counts with a bit per lane into one number per lane."""
    for word in range(n_words):
        lanes = values[64 * word : 64 * word + 64]
        lanes[:] = 0
        for digit in range(n_counts):
            bits = counts[digit * N_WORDS + word]
            for lane in range(64):
                lanes[lane] |= ((bits >> uint64(lane)) & uint64(1)) << uint64(digit)


def tell_letters(letters: npt.NDArray[np.int64], n_bits: int) -> npt.NDArray[np.int64]:
    """Return the offsets of the digit tables of some codes.

    Shape (n_letters, n_digits).
    """
    digit = np.arange((n_bits + _DIGIT - 1) // _DIGIT)
    values = (letters[:, None] >> (_DIGIT * digit)) & ((1 << _DIGIT) - 1)
    places: npt.NDArray[np.int64] = ((digit << _DIGIT) + values) * N_WORDS
    return places


@njit(cache=True, nogil=True)
def scan_slices(slices: Any, groups: Any, bounds: Any, query: Any, known: Any, budget: int) -> Any:
    """Compute all distances group by group; return the number of groups done.

    Parameters
    ----------
    slices : Slices
        The strings.
    groups, bounds : int64 arrays of shape (n,)
        Sliced groups and a lower bound of the distances in each, ascending. The scan stops at the
        first bound above the limit.
    query : tuple of int64 arrays
        From :func:`tell_letters` of the letters of the query without repetition, 0 for one that no
        string has; and the query as places among these.
    known : Known
        Distances of the strings, see :mod:`fedneighbors.kernels.edit._bands`. Those of scanned
        groups are written; what is already there is not counted again.
    budget : int
        The scan stops when it has filled this many cells.

    References
    ----------
    .. [1] Hyyrö, "A bit-vector algorithm for computing Levenshtein and Damerau edit distances",
       Nordic Journal of Computing 10 (2003), the recurrence of one cell.
    """
    (letters, spelled), (distances, tally, state) = query, known
    space = (
        np.empty(letters.shape[0] * _STRIDE * N_WORDS, np.uint64),
        np.empty(_BLOCK * 2 * N_WORDS, np.uint64),
        np.empty((spelled.size + 1) * 2 * N_WORDS, np.uint64),
        np.empty(64 * N_WORDS, np.uint64),
        np.empty((slices.n_bits + _DIGIT) * (N_WORDS << _DIGIT), np.uint64),
    )
    values = np.empty(N_LANES, np.uint64)
    done = 0
    while done < groups.size and bounds[done] <= state[0] and budget > 0:
        group = groups[done]
        n_counts = 1
        while (2 * slices.rows[group]) >> n_counts:
            n_counts += 1
        _fill_table(slices, group, letters, spelled, space, n_counts)
        first = slices.firsts[group]
        size = slices.firsts[group + 1] - first
        _spread(space[3], n_counts, (size + 63) // 64, values)
        for lane in range(size):
            string = first + lane
            distance = spelled.size + np.int64(values[lane]) - slices.lengths[string]
            if distances[string] != distance:  # else known, and counted, before
                distances[string] = distance
                admit(tally, state, distance)
        budget -= spelled.size * slices.rows[group] + N_LANES
        done += 1
    return done
