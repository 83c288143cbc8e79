"""Edit distances from one query to groups of 512 strings of similar length, one bit per string.

The table of an edit distance is filled cell by cell. A difference between neighboring cells is -1,
0 or 1 and takes two bits. One value contains a bit for each of 512 strings, so that five
instructions compute a cell in all their tables. The letters of a group are stored as bit planes.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit, uint64

from fedneighbors.kernels.edit._bands import LIMIT, count_value
from fedneighbors.kernels.edit._lanes import N_LANES, N_WORDS, fill, load, store

# Digests of the kernel files used here; Numba's cache does not notice edits in other files.
USES = {"edit/lanes": "029b9eee946b9bf8", "edit/bands": "018d151cbbe0c3f1"}

_BLOCK_ROWS = 64  # rows whose letter masks and differences fit into the second-level cache
# Rows per letter; odd, since otherwise all letters would compete for the same cache lines.
_LETTER_STRIDE = _BLOCK_ROWS + 1
_DIGIT_BITS = 3  # bits of a code that are looked up together
_ALL = np.uint64(0xFFFF_FFFF_FFFF_FFFF)


class Slices(NamedTuple):
    """Groups of strings as bit planes.

    Parameters
    ----------
    planes : uint64 array of shape (n_words,)
        512 bits, one for each string, for each sliced group, row (position in the string) and bit
        of a code. Bits beyond a string's end are 0.
    starts : int64 array of shape (n_groups,)
        Start of each group's planes; -1 for a group that was not sliced.
    rows : int64 array of shape (n_groups,)
        Length of the longest string of a group.
    firsts : int64 array of shape (n_groups + 1,)
        Group g contains the strings ``firsts[g]`` to ``firsts[g + 1] - 1``, at most 512.
    lengths : int64 array of shape (n_strings,)
        Lengths of all strings.
    n_bits : int
        Number of bits in a code.
    """

    planes: npt.NDArray[np.uint64]
    starts: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    firsts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    n_bits: int


class OpenScan(NamedTuple):
    """Working memory for a query, and the state of an interrupted group.

    Parameters
    ----------
    horizontal : uint64 array
        Horizontal differences in the last row, for each column.
    counts : uint64 array
        Counters of the vertical differences in the last column.
    place : int64 array of shape (2,)
        Group, or -1 for none, and the next row.
    """

    horizontal: npt.NDArray[np.uint64]
    counts: npt.NDArray[np.uint64]
    place: npt.NDArray[np.int64]

    @classmethod
    def of(cls, query_length: int) -> "OpenScan":
        """Return the working memory for a query of some length."""
        horizontal = np.empty((query_length + 1) * 2 * N_WORDS, np.uint64)
        return cls(horizontal, np.empty(64 * N_WORDS, np.uint64), np.full(2, -1))


@njit(cache=True, nogil=True)
def _set_planes(codes: Any, offsets: Any, slices: Any) -> Any:
    for group in range(slices.starts.size):
        start = slices.starts[group]
        if start < 0:
            continue
        first = slices.firsts[group]
        for string in range(first, slices.firsts[group + 1]):
            lane = string - first
            lane_bit = uint64(1) << uint64(lane % 64)
            offset = start + lane // 64
            for i in range(offsets[string], offsets[string + 1]):
                code = codes[i]
                for bit in range(slices.n_bits):
                    if (code >> bit) & 1:
                        slices.planes[offset + bit * N_WORDS] |= lane_bit
                offset += slices.n_bits * N_WORDS


def cut_slices(
    codes: npt.NDArray[np.int32],
    offsets: npt.NDArray[np.int64],
    firsts: npt.NDArray[np.int64],
    *,
    sliced: npt.NDArray[np.bool_],
    n_bits: int,
) -> Slices:
    """Convert strings to bit planes.

    Parameters
    ----------
    codes : int32 array
        Codes of all strings, contiguous; from 1 to ``2**n_bits - 1``.
    offsets : int64 array of shape (n_strings + 1,)
        Start of each string in ``codes``, followed by the total length.
    firsts : int64 array of shape (n_groups + 1,)
        Groups, see :class:`Slices`.
    sliced : bool array of shape (n_groups,)
        True for groups to slice.
    n_bits : int
        Number of bits in a code.
    """
    lengths = np.diff(offsets)
    longest = np.maximum.reduceat(lengths, firsts[:-1]) if len(lengths) else lengths
    sizes = np.where(sliced, longest, 0) * n_bits * N_WORDS
    starts = np.where(sliced, np.cumsum(sizes) - sizes, -1)
    planes = np.zeros(int(sizes.sum()), np.uint64)
    slices = Slices(planes, starts, longest, firsts, lengths, n_bits)
    _set_planes(codes, offsets, slices)
    return slices


@njit(cache=True, nogil=True)
def _match_digits(planes: Any, offset: Any, n_bits: Any, digits: Any) -> Any:
    """Write masks of the matching strings by digit and value.

    A digit is a group of ``_DIGIT_BITS`` bits of a code.
    """
    for bit in range(n_bits):
        plane = load(planes, offset + bit * N_WORDS)
        table = (bit // _DIGIT_BITS) * (N_WORDS << _DIGIT_BITS)
        half = 1 << (bit % _DIGIT_BITS)
        if half == 1:
            store(digits, table, ~plane)
            store(digits, table + N_WORDS, plane)
            continue
        for value in range(half):
            matches = load(digits, table + value * N_WORDS)
            store(digits, table + (value + half) * N_WORDS, matches & plane)
            store(digits, table + value * N_WORDS, matches & ~plane)


@njit(cache=True, nogil=True)
def _match_letters(
    planes: Any, start: Any, n_rows: Any, n_bits: Any, letters: Any, digits: Any, equal: Any
) -> Any:
    """Write masks of the matching strings by row and query letter."""
    n_letters, n_digits = letters.shape
    for row in range(n_rows):
        _match_digits(planes, start + row * n_bits * N_WORDS, n_bits, digits)
        offset = row * N_WORDS
        for letter in range(n_letters):
            matches = load(digits, letters[letter, 0])
            for digit in range(1, n_digits):
                matches = matches & load(digits, letters[letter, digit])
            store(equal, offset, matches)
            offset += _LETTER_STRIDE * N_WORDS


@njit(cache=True, nogil=True)
def _cell(equal: Any, up: Any, down: Any, right: Any, left: Any) -> Any:
    """Compute the right and lower differences of one cell.

    ``up``/``down``: the value at the lower left corner is one more/one less than at the upper left.
    ``right``/``left``: the value at the upper right corner is one more/one less than at the upper
    left.
    """
    level = equal | down | left  # the diagonal does not rise
    return left | ~(level | right), level & right, down | ~(level | up), level & up


@njit(cache=True, nogil=True)
def _column(equal: Any, at: Any, n_rows: Any, vertical: Any, horizontal: Any, column: Any) -> Any:
    """Compute one column of the cells of a block."""
    right = load(horizontal, 2 * N_WORDS * column)
    left = load(horizontal, 2 * N_WORDS * column + N_WORDS)
    for row in range(n_rows):
        offset = 2 * N_WORDS * row
        up, down = load(vertical, offset), load(vertical, offset + N_WORDS)
        up, down, right, left = _cell(load(equal, at + N_WORDS * row), up, down, right, left)
        store(vertical, offset, up)
        store(vertical, offset + N_WORDS, down)
    store(horizontal, 2 * N_WORDS * column, right)
    store(horizontal, 2 * N_WORDS * column + N_WORDS, left)


@njit(cache=True, nogil=True)
def _two_columns(
    equal: Any, at: Any, at2: Any, n_rows: Any, vertical: Any, horizontal: Any, column: Any
) -> Any:
    """Compute two columns; the differences between them stay in registers."""
    first = 2 * N_WORDS * column
    right, left = load(horizontal, first), load(horizontal, first + N_WORDS)
    right2, left2 = load(horizontal, first + 2 * N_WORDS), load(horizontal, first + 3 * N_WORDS)
    for row in range(n_rows):
        offset = 2 * N_WORDS * row
        up, down = load(vertical, offset), load(vertical, offset + N_WORDS)
        up, down, right, left = _cell(load(equal, at + N_WORDS * row), up, down, right, left)
        up, down, right2, left2 = _cell(load(equal, at2 + N_WORDS * row), up, down, right2, left2)
        store(vertical, offset, up)
        store(vertical, offset + N_WORDS, down)
    store(horizontal, first, right)
    store(horizontal, first + N_WORDS, left)
    store(horizontal, first + 2 * N_WORDS, right2)
    store(horizontal, first + 3 * N_WORDS, left2)


@njit(cache=True, nogil=True)
def _add_differences(
    planes: Any, start: Any, n_rows: Any, n_bits: Any, vertical: Any, counts: Any, n_counts: Any
) -> Any:
    """Add 1 plus the vertical difference for each row within the string.

    Each string has its own counter; value ``i`` of ``counts`` contains bit ``i`` of all counters.
    """
    for row in range(n_rows):
        offset = start + row * n_bits * N_WORDS
        in_string = fill(uint64(0))
        for bit in range(n_bits):
            in_string = in_string | load(planes, offset + bit * N_WORDS)
        up = load(vertical, 2 * N_WORDS * row) & in_string
        level = ~load(vertical, 2 * N_WORDS * row + N_WORDS) & in_string
        low = load(counts, 0)
        store(counts, 0, low ^ up ^ level)
        carry = (low & up) | (level & (low ^ up))
        for digit in range(1, n_counts):
            value = load(counts, digit * N_WORDS)
            store(counts, digit * N_WORDS, value ^ carry)
            carry = value & carry


@njit(cache=True, nogil=True)
def _fill_table(
    slices: Any, query: Any, buffers: Any, scan: Any, n_counts: Any, budget: Any
) -> Any:
    """Fill a group's table, block by block, and return the work.

    The vertical differences in the last column are counted in each block.
    """
    (letters, indices), (equal, vertical, digits) = query, buffers
    horizontal, counts, place = scan
    group, work = place[0], 0
    if place[1] == 0:
        counts[:] = uint64(0)
        for column in range(indices.size):
            store(horizontal, 2 * N_WORDS * column, fill(_ALL))
            store(horizontal, 2 * N_WORDS * column + N_WORDS, fill(uint64(0)))
    while place[1] < slices.rows[group] and work < budget:
        top = place[1]
        n_rows = min(_BLOCK_ROWS, slices.rows[group] - top)
        start = slices.starts[group] + top * slices.n_bits * N_WORDS
        _match_letters(slices.planes, start, n_rows, slices.n_bits, letters, digits, equal)
        for row in range(n_rows):
            store(vertical, 2 * N_WORDS * row, fill(_ALL))
            store(vertical, 2 * N_WORDS * row + N_WORDS, fill(uint64(0)))
        stride = _LETTER_STRIDE * N_WORDS
        column = 0
        while column + 1 < indices.size:
            offset, offset2 = indices[column] * stride, indices[column + 1] * stride
            _two_columns(equal, offset, offset2, n_rows, vertical, horizontal, column)
            column += 2
        if column < indices.size:
            _column(equal, indices[column] * stride, n_rows, vertical, horizontal, column)
        _add_differences(slices.planes, start, n_rows, slices.n_bits, vertical, counts, n_counts)
        place[1] += n_rows
        work += indices.size * n_rows
    return work


@njit(cache=True, nogil=True)
def _unslice_counts(counts: Any, n_counts: Any, n_words: Any, values: Any) -> Any:
    """Convert bit-sliced counts to one number per lane."""
    for word in range(n_words):
        lanes = values[64 * word : 64 * word + 64]
        lanes[:] = 0
        for digit in range(n_counts):
            bits = counts[digit * N_WORDS + word]
            for lane in range(64):
                lanes[lane] |= ((bits >> uint64(lane)) & uint64(1)) << uint64(digit)


def locate_digits(letters: npt.NDArray[np.int64], n_bits: int) -> npt.NDArray[np.int64]:
    """Return where the masks of each letter's digits are stored.

    The result has shape (n_letters, n_digits) and contains offsets in words.
    """
    digit = np.arange((n_bits + _DIGIT_BITS - 1) // _DIGIT_BITS)
    values = (letters[:, None] >> (_DIGIT_BITS * digit)) & ((1 << _DIGIT_BITS) - 1)
    offsets: npt.NDArray[np.int64] = ((digit << _DIGIT_BITS) + values) * N_WORDS
    return offsets


@njit(cache=True, nogil=True)
def scan_slices(
    slices: Any, groups: Any, bounds: Any, query: Any, known: Any, scan: Any, budget: int
) -> Any:
    """Compute all distances in groups, one group after the other.

    Parameters
    ----------
    slices : Slices
        The strings.
    groups, bounds : int64 arrays of shape (n,)
        Sliced groups and a lower bound of the distances in each, in ascending order of bounds. The
        scan stops at the first bound above the limit.
    query : tuple of int64 arrays
        Result of :func:`locate_digits` for the query's distinct letters, with code 0 for a letter
        that no string has; and the query as indices of these letters.
    known : KnownDistances
        Distances of the strings, updated for scanned groups. Strings whose distance was already
        known are not counted again.
    scan : OpenScan
        Working memory. An interrupted group is resumed if the next call begins with it.
    budget : int
        Maximum work, in cells; the scan stops once it is used up.

    Returns
    -------
    int
        Number of groups that were scanned.

    References
    ----------
    .. [1] Hyyrö, "A bit-vector algorithm for computing Levenshtein and Damerau edit distances",
       Nordic Journal of Computing 10 (2003), for the recurrence of one cell.
    """
    (letters, indices), (distances, tally, state) = query, known
    buffers = (
        np.empty(letters.shape[0] * _LETTER_STRIDE * N_WORDS, np.uint64),
        np.empty(_BLOCK_ROWS * 2 * N_WORDS, np.uint64),
        np.empty((slices.n_bits + _DIGIT_BITS) * (N_WORDS << _DIGIT_BITS), np.uint64),
    )
    values = np.empty(N_LANES, np.uint64)
    place = scan.place
    n_scanned = 0
    while n_scanned < groups.size and bounds[n_scanned] <= state[LIMIT] and budget > 0:
        group = groups[n_scanned]
        n_counts = 1
        while (2 * slices.rows[group]) >> n_counts:
            n_counts += 1
        if place[0] != group:
            place[0], place[1] = group, 0
        budget -= N_LANES + _fill_table(slices, query, buffers, scan, n_counts, budget)
        if place[1] < slices.rows[group]:
            break
        place[0] = -1
        first = slices.firsts[group]
        size = slices.firsts[group + 1] - first
        _unslice_counts(scan.counts, n_counts, (size + 63) // 64, values)
        for lane in range(size):
            string = first + lane
            distance = indices.size + np.int64(values[lane]) - slices.lengths[string]
            if distances[string] != distance:  # otherwise already known and counted
                distances[string] = distance
                count_value(tally, state, distance)
        n_scanned += 1
    return n_scanned
