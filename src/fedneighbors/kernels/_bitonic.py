"""Oblivious merge of sorted lists: which memory is touched depends on their shape alone.

A network of compare-exchanges is laid out from the number and length of the lists before any entry
is looked at. Each exchange reads and writes both of its entries whole, by masks instead of
branches, whether they change places or not. So addresses, their order and the time taken tell
nothing of which list an entry comes from. What belongs to an entry, such as a name, follows it by
the same exchanges.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from fedneighbors._typing import Floats, Integers

PADDING_RANK = np.iinfo(np.int64).max
"""Rank of an entry that only fills up a list; its distance is infinite."""
PADDING_POSITION = -1
"""Provider and position of such an entry."""

LOAD_WORDS = 9
"""Words of eight bytes that an entry may carry."""

_INFINITE = int(np.array(np.inf).view(np.int64))


class Entries(NamedTuple):
    """Entries in ascending order of (distance, rank, provider, position).

    Parameters
    ----------
    distances : float64 array
        0 or more, infinite for padding.
    ranks, providers, positions : int64 arrays of the same shape
        What decides between equal distances, in this order.
    """

    distances: Floats
    ranks: Integers
    providers: Integers
    positions: Integers


class Merge(NamedTuple):
    """A merge of lists that what belongs to their entries can be made to follow.

    Parameters
    ----------
    smallest : Entries of shape (k,)
        Padding comes last.
    changes : int8 array of shape (n_exchanges,)
        For each exchange of :func:`trace` whether its entries changed places, -1 or 0.
    """

    smallest: Entries
    changes: npt.NDArray[np.int8]


def merge_sorted(lists: Entries, k: int | None = None) -> Entries:
    """Return the smallest entries of several sorted lists.

    Parameters
    ----------
    lists : Entries of shape (n_lists, length)
        Each row ascending, filled up with padding.
    k : int, optional
        How many to return, ``length`` by default and at most.

    Returns
    -------
    Entries of shape (k,)
        Padding comes last.

    Raises
    ------
    ValueError
        If shapes disagree, a row is not in ascending order, or a distance is negative or NaN.
    """
    return merge_recorded(lists, k).smallest


def merge_recorded(lists: Entries, k: int | None = None) -> Merge:
    """Return the smallest entries, and how they came there.

    Parameters
    ----------
    lists, k
        As for :func:`merge_sorted`, which raises as this does.
    """
    n_lists, length = _checked_shape(lists)
    wanted = length if k is None else k
    if not 0 <= wanted <= length:
        raise ValueError(f"expected k from 0 to the length of a list, {length}, got {wanted}")
    pairs = trace(n_lists, length)
    changes = np.zeros(len(pairs), np.int8)
    if n_lists == 0 or length == 0:
        nothing = np.empty(0, np.int64)
        return Merge(Entries(np.empty(0), nothing, nothing, nothing), changes)
    if not (lists.distances >= 0).all():
        raise ValueError("expected distances of 0 or more, got a negative one or NaN")
    table = _table(lists, _padded(length))
    _expect_sorted(table)
    flat = table.reshape(-1, 4)
    _exchange(flat, pairs, changes)
    distances, *others = flat[:wanted].T.copy()
    return Merge(Entries(distances.view(np.float64), *others), changes)


def carried(loads: Integers, merge: Merge) -> Integers:
    """Return what belongs to the smallest entries of a merge.

    Parameters
    ----------
    loads : int64 array of shape (n_lists, length, LOAD_WORDS)
        What belongs to each entry of the lists.
    merge : Merge
        Of these lists.

    Returns
    -------
    int64 array of shape (k, LOAD_WORDS)
        Behind the last entry that is no padding it says nothing.

    Raises
    ------
    ValueError
        If the shape is not that of lists that were merged.
    """
    n_lists, length, n_words = loads.shape
    pairs = trace(n_lists, length)
    if n_words != LOAD_WORDS or len(pairs) != len(merge.changes):
        raise ValueError(
            f"expected {LOAD_WORDS} words for each entry that was merged, got an array of shape "
            f"{loads.shape}"
        )
    table = np.zeros((n_lists, _padded(length), LOAD_WORDS), np.int64)
    table[:, :length] = loads
    flat = table.reshape(-1, LOAD_WORDS)
    _carry(flat, pairs, merge.changes)
    return flat[: len(merge.smallest.distances)]


@lru_cache(maxsize=256)
def trace(n_lists: int, length: int) -> npt.NDArray[np.uint32]:
    """Return the compare-exchanges that merge lists of a shape, in order.

    Two sorted lists ``a`` and ``b`` hold their smallest among ``min(a[i], b[length - 1 - i])``,
    which rises and falls once; exchanges at half the distance each time sort that. Lists are
    merged in pairs, and what comes out in pairs again.

    Parameters
    ----------
    n_lists, length : int
        The shape; lengths are rounded up to a power of two, and row ``r`` of the lists begins at
        entry ``r`` times that.

    Returns
    -------
    uint32 array of shape (n_exchanges, 2)
        Pairs of entries; the smaller entry goes to the first.
    """
    size = _padded(length)
    offsets = np.arange(size)
    steps = []
    apart = 1
    while apart < n_lists:
        starts = np.arange(0, n_lists - apart, 2 * apart)[:, np.newaxis] * size
        steps.append((starts + offsets, starts + apart * size + offsets[::-1]))
        stride = size // 2
        while stride:
            low = offsets[offsets & stride == 0]
            steps.append((starts + low, starts + low + stride))
            stride //= 2
        apart *= 2
    pairs = [np.stack([low.ravel(), high.ravel()], axis=1) for low, high in steps]
    laid_out = np.concatenate([np.empty((0, 2), np.int64), *pairs]).astype(np.uint32)
    laid_out.flags.writeable = False
    return laid_out


@njit(cache=True, nogil=True)
def _later(a0: Any, a1: Any, a2: Any, a3: Any, b0: Any, b1: Any, b2: Any, b3: Any) -> Any:
    # bitwise, not `and` and `or`: those would branch
    later = np.int64(a3 > b3)
    later = np.int64(a2 > b2) | (np.int64(a2 == b2) & later)
    later = np.int64(a1 > b1) | (np.int64(a1 == b1) & later)
    return np.int64(a0 > b0) | (np.int64(a0 == b0) & later)


@njit(cache=True, nogil=True)
def _exchange(table: Any, pairs: Any, changes: Any) -> None:
    for e in range(pairs.shape[0]):
        i = pairs[e, 0]
        j = pairs[e, 1]
        a0, a1, a2, a3 = table[i, 0], table[i, 1], table[i, 2], table[i, 3]
        b0, b1, b2, b3 = table[j, 0], table[j, 1], table[j, 2], table[j, 3]
        mask = -_later(a0, a1, a2, a3, b0, b1, b2, b3)
        changes[e] = mask
        x0, x1, x2, x3 = (a0 ^ b0) & mask, (a1 ^ b1) & mask, (a2 ^ b2) & mask, (a3 ^ b3) & mask
        table[i, 0], table[i, 1], table[i, 2], table[i, 3] = a0 ^ x0, a1 ^ x1, a2 ^ x2, a3 ^ x3
        table[j, 0], table[j, 1], table[j, 2], table[j, 3] = b0 ^ x0, b1 ^ x1, b2 ^ x2, b3 ^ x3


@njit(cache=True, nogil=True)
def _carry(loads: Any, pairs: Any, changes: Any) -> None:
    for e in range(pairs.shape[0]):
        i = pairs[e, 0]
        j = pairs[e, 1]
        mask = np.int64(changes[e])
        for c in range(LOAD_WORDS):
            x = (loads[i, c] ^ loads[j, c]) & mask
            loads[i, c] ^= x
            loads[j, c] ^= x


@njit(cache=True, nogil=True)
def _unsorted(table: Any, found: Any) -> None:
    for r in range(table.shape[0]):
        for t in range(1, table.shape[1]):
            a, b = table[r, t - 1], table[r, t]
            found[r] |= _later(a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3])


def _padded(length: int) -> int:
    return 1 << max(0, length - 1).bit_length()


def _checked_shape(lists: Entries) -> tuple[int, int]:
    shapes = {column.shape for column in lists}
    if len(shapes) != 1 or len(lists.distances.shape) != 2:
        raise ValueError(f"expected four arrays of one shape (n_lists, length), got {shapes}")
    n_lists, length = lists.distances.shape
    return n_lists, length


def _table(lists: Entries, size: int) -> Integers:
    """Return entries as rows of four integers in the same order."""
    n_lists, length = lists.distances.shape
    table = np.empty((n_lists, size, 4), np.int64)
    table[:, length:] = (_INFINITE, PADDING_RANK, PADDING_POSITION, PADDING_POSITION)
    # Floats of 0 or more order as their bits do; adding 0 makes of -0.0 what it equals.
    table[:, :length, 0] = (lists.distances.astype(np.float64) + 0.0).view(np.int64)
    table[:, :length, 1] = lists.ranks
    table[:, :length, 2] = lists.providers
    table[:, :length, 3] = lists.positions
    return table


def _expect_sorted(table: Integers) -> None:
    found = np.zeros(len(table), np.int64)
    _unsorted(table, found)
    if found.any():
        raise ValueError(
            f"expected lists in ascending order of (distance, rank, provider, position), list "
            f"{int(found.argmax())} is not"
        )
