"""Common bits of fingerprints, exact or bounded from a sketch, and their similarity in levels.

A *sketch* maps every bit of a fingerprint to one of fewer places; a place is set if one of its bits
is. If ``w(p)`` query bits have the place ``p``, the query and a fingerprint have at most the sum of
``w(p)`` over the set places of the sketch in common: each common bit sets its place, and is one of
the ``w(p)``. The sum is that of the places with ``w >= 1``, those with ``w >= 2`` and so on, each a
count of common bits of the sketch and a mask.
"""

# mypy: allow-untyped-defs
# (the untyped functions are compiled; Numba infers their types)

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit, types

from fedneighbors._typing import Integers
from fedneighbors.kernels._emission import intrinsic, lowest_bit

# Digests of the kernel files used here; Numba's cache does not notice edits in other files.
USES = {"emission": "5e83461cfaba370e"}

Words = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.uint16]
Levels = npt.NDArray[np.uint8]

BLOCK_ROWS = 1024
"""Rows of a block of a sketch: the counts of one word for all of them stay in the cache."""

MAX_BITS = 2**16 - 8
"""Maximum length of a fingerprint: counts are uint16, and 255 times a count is below 2**24."""

TOP_LEVEL = 255
"""Level of identical fingerprints."""
_TOP = np.float32(TOP_LEVEL)


@intrinsic
def _popcount(_typing: Any, word: Any) -> Any:
    """Return the number of set bits of a word."""
    return types.uint64(word), lambda _context, builder, _signature, args: builder.ctpop(args[0])


@njit(cache=True, nogil=True)
def _count_common(bits, query, positions, out):
    for i in range(out.shape[0]):
        row = i if positions is None else positions[i]
        n = np.uint64(0)
        for j in range(query.shape[0]):
            n += _popcount(bits[row, j] & query[j])
        out[i] = n


def count_common(bits: Words, query: Words, positions: Integers | None = None) -> Counts:
    """Return the number of bits that each row shares with a query.

    Parameters
    ----------
    bits : uint64 array of shape (n_rows, n_words), C order
        Packed bits, at most ``MAX_BITS`` a row.
    query : uint64 array of shape (n_words,)
        Packed bits.
    positions : int64 array of shape (n,), optional
        Indices of rows; all rows by default.

    Returns
    -------
    uint16 array of shape (n,) or (n_rows,)

    Raises
    ------
    ValueError
        If the lengths disagree or a position is out of range.
    """
    if query.shape != bits.shape[1:]:
        raise ValueError(f"expected a query of shape {bits.shape[1:]}, got {query.shape}")
    if positions is not None and not _are_within(positions, len(bits)):
        raise ValueError(f"expected positions from 0 to {len(bits) - 1}, got one out of range")
    out = np.empty(len(bits) if positions is None else len(positions), np.uint16)
    _count_common(bits, query, positions, out)
    return out


def _are_within(indices: Integers, n: int) -> bool:
    return not len(indices) or bool(indices.min() >= 0 and indices.max() < n)


@njit(cache=True, nogil=True)
def _fold(bits, places, blocks):
    for row in range(bits.shape[0]):
        block, lane = row // BLOCK_ROWS, row % BLOCK_ROWS
        for j in range(bits.shape[1]):
            word = bits[row, j]
            while word != 0:
                place = places[64 * j + lowest_bit(word)]
                blocks[block, place >> 6, lane] |= np.uint64(1) << np.uint64(place & 63)
                word &= word - np.uint64(1)


def fold(bits: Words, places: Integers, n_words: int) -> Words:
    """Return the sketches of rows, in blocks.

    Parameters
    ----------
    bits : uint64 array of shape (n_rows, n_words_of_a_row), C order
        Packed bits; bit ``j`` is bit ``j % 64`` of word ``j // 64``.
    places : int64 array of shape (n_bits,)
        Place of each bit, from 0 to ``64 * n_words - 1``.
    n_words : int
        Words of a sketch.

    Returns
    -------
    uint64 array of shape (n_blocks, n_words, BLOCK_ROWS)
        Zero after the last row.

    Raises
    ------
    ValueError
        If there is not one place within the sketch for each bit.
    """
    n_bits = 64 * bits.shape[1]
    if places.shape != (n_bits,) or not _are_within(places, 64 * n_words):
        raise ValueError(f"expected {n_bits} places from 0 to {64 * n_words - 1}")
    blocks = np.zeros((-(-len(bits) // BLOCK_ROWS), n_words, BLOCK_ROWS), np.uint64)
    _fold(bits, places, blocks)
    return blocks


@njit(cache=True, nogil=True)
def _bound_common(blocks, words, masks, out):
    common = np.empty(BLOCK_ROWS, np.uint64)
    for block in range(blocks.shape[0]):
        common[:] = 0
        for j in range(words.shape[0]):
            row, mask = blocks[block, words[j]], masks[j]
            for lane in range(BLOCK_ROWS):
                common[lane] += _popcount(row[lane] & mask)
        first = block * BLOCK_ROWS
        for lane in range(min(BLOCK_ROWS, out.shape[0] - first)):
            out[first + lane] = common[lane]


def bound_common(blocks: Words, weights: Integers, n_rows: int) -> Counts:
    """Return upper bounds of the bits that rows share with a query.

    Parameters
    ----------
    blocks : uint64 array of shape (n_blocks, n_words, BLOCK_ROWS)
        Sketches of the rows.
    weights : int64 array of shape (64 * n_words,)
        Number of query bits at each place.
    n_rows : int
        Number of rows in the blocks.

    Returns
    -------
    uint16 array of shape (n_rows,)
        At most the number of bits of the query, but possibly more than those of the row.
    """
    masks = [
        np.packbits(weights >= n, bitorder="little").view("<u8").astype(np.uint64)
        for n in range(1, int(weights.max(initial=0)) + 1)
    ]
    planes = np.stack([np.zeros(blocks.shape[1], np.uint64), *masks])
    plane, words = np.nonzero(planes)
    out = np.empty(n_rows, np.uint16)
    _bound_common(blocks, np.ascontiguousarray(words), planes[plane, words], out)
    return out


@njit(cache=True, nogil=True, error_model="numpy")  # no check of the divisor, which is not 0
def _rate(common, sizes, n_query, levels, counts):
    # float32 holds all numbers below 2**24, and makes the loop one of vector instructions
    for i in range(common.shape[0]):
        size = np.float32(sizes[i])
        shared = min(np.float32(common[i]), size)
        union = n_query + size - shared
        empty = np.float32(union == 0)  # two empty fingerprints are identical
        levels[i] = np.uint8(np.int32(_TOP * (shared + empty) / (union + empty)))
    for i in range(common.shape[0]):
        counts[levels[i]] += 1


def rate(common: Counts, sizes: Counts, n_query: int, levels: Levels, counts: Integers) -> None:
    """Store the level of each row, and count rows by level.

    The level is ``floor(255 * similarity)``, where the similarity is the number of common bits over
    that of the union, or 1 for two empty sets. Both are integers below 2**24, which float32 holds.
    A quotient is at least an integer after rounding exactly if it was before, or rounds up to it;
    so the similarity of a row is below ``(level + 1) / 255``.

    Parameters
    ----------
    common : uint16 array of shape (n_rows,)
        Common bits, or upper bounds of them; lowered to the row's bits.
    sizes : uint16 array of shape (n_rows,)
        Number of bits of each row.
    n_query : int
        Number of bits of the query, at least the common ones.
    levels : uint8 array of shape (n_rows,)
        Receives the levels.
    counts : int64 array of shape (256,)
        Receives the numbers of rows.
    """
    _rate(common, sizes, np.float32(n_query), levels, counts)
