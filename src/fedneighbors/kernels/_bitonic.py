"""Oblivious merge of sorted lists by a bitonic network.

The sequence of compare-exchanges is derived from the number and length of the lists alone. Each
exchange reads and writes both of its entries completely, by masks instead of branches, even if they
do not swap. Memory addresses, their order and the running time therefore reveal nothing about the
list that an entry comes from. The payload of an entry, such as its name, is moved by the same
exchanges.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from fedneighbors._typing import Floats, Integers

PADDING_RANK = np.iinfo(np.int64).max
"""Rank of a padding entry, whose distance is infinite."""
PADDING_POSITION = -1
"""Provider and position of a padding entry."""

LOAD_WORDS = 9
"""Size of an entry's payload in words of eight bytes."""

_INFINITE = int(np.array(np.inf).view(np.int64))


class Entries(NamedTuple):
    """Entries in ascending order of (distance, rank, provider, position).

    Parameters
    ----------
    distances : float64 array
        Non-negative; infinite for padding.
    ranks, providers, positions : int64 arrays of the same shape
        Break ties between equal distances, in this order.
    """

    distances: Floats
    ranks: Integers
    providers: Integers
    positions: Integers


class Merge(NamedTuple):
    """Result of a merge, with the swaps needed to move payloads in the same way.

    Parameters
    ----------
    smallest : Entries of shape (k,)
        Padding comes last.
    changes : int8 array of shape (n_exchanges,)
        For each exchange of :func:`trace`, -1 if its entries were swapped, else 0.
    """

    smallest: Entries
    changes: npt.NDArray[np.int8]


def merge_sorted(lists: Entries, k: int | None = None) -> Entries:
    """Return the smallest entries of several sorted lists.

    Parameters
    ----------
    lists : Entries of shape (n_lists, length)
        Each row is ascending and ends with padding where a list is shorter than ``length``.
    k : int, optional
        Number of entries to return, at most ``length``, which is the default.

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
    """Return the smallest entries and the swaps that were made.

    Parameters
    ----------
    lists, k
        As for :func:`merge_sorted`.

    Returns
    -------
    Merge
        Entries of shape (k,) and the swaps.

    Raises
    ------
    ValueError
        As for :func:`merge_sorted`.
    """
    n_lists, length = _check_shape(lists)
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
    table = _table(lists, _round_up(length))
    _check_sorted(table)
    flat = table.reshape(-1, 4)
    _exchange(flat, pairs, changes)
    distances, *others = flat[:wanted].T.copy()
    return Merge(Entries(distances.view(np.float64), *others), changes)


def carry_loads(loads: Integers, merge: Merge) -> Integers:
    """Return the payloads of the smallest entries of a merge.

    Parameters
    ----------
    loads : int64 array of shape (n_lists, length, LOAD_WORDS)
        Payload of each entry of the lists.
    merge : Merge
        Result of merging these lists.

    Returns
    -------
    int64 array of shape (k, LOAD_WORDS)
        Rows of padding entries have no meaning.

    Raises
    ------
    ValueError
        If the shape does not match the lists that were merged.
    """
    n_lists, length, n_words = loads.shape
    pairs = trace(n_lists, length)
    if n_words != LOAD_WORDS or len(pairs) != len(merge.changes):
        raise ValueError(
            f"expected {LOAD_WORDS} words for each merged entry, got an array of shape "
            f"{loads.shape}"
        )
    table = np.zeros((n_lists, _round_up(length), LOAD_WORDS), np.int64)
    table[:, :length] = loads
    flat = table.reshape(-1, LOAD_WORDS)
    _carry(flat, pairs, merge.changes)
    return flat[: len(merge.smallest.distances)]


@lru_cache(maxsize=256)
def trace(n_lists: int, length: int) -> npt.NDArray[np.uint32]:
    """Return the compare-exchanges that merge lists of a shape, in order.

    The smallest entries of two sorted lists ``a`` and ``b`` are ``min(a[i], b[length - 1 - i])``,
    a sequence that rises and falls once; exchanges over strides that halve each time sort it. Lists
    are merged in pairs, and the results in pairs again.

    Parameters
    ----------
    n_lists, length : int
        The shape. Lengths are rounded up to a power of two, ``size``; list ``r`` begins at entry
        ``r * size``.

    Returns
    -------
    uint32 array of shape (n_exchanges, 2)
        Indices of the two entries; the smaller entry goes to the first.
    """
    size = _round_up(length)
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
def _is_later(a0: Any, a1: Any, a2: Any, a3: Any, b0: Any, b1: Any, b2: Any, b3: Any) -> Any:
    # bitwise operators, because `and` and `or` would branch
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
        mask = -_is_later(a0, a1, a2, a3, b0, b1, b2, b3)
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
def _mark_unsorted(table: Any, found: Any) -> None:
    for r in range(table.shape[0]):
        for t in range(1, table.shape[1]):
            a, b = table[r, t - 1], table[r, t]
            found[r] |= _is_later(a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3])


def _round_up(length: int) -> int:
    return 1 << max(0, length - 1).bit_length()


def _check_shape(lists: Entries) -> tuple[int, int]:
    shapes = {column.shape for column in lists}
    if len(shapes) != 1 or len(lists.distances.shape) != 2:
        raise ValueError(f"expected four arrays of one shape (n_lists, length), got {shapes}")
    n_lists, length = lists.distances.shape
    return n_lists, length


def _table(lists: Entries, size: int) -> Integers:
    """Convert entries to rows of four integers with the same order."""
    n_lists, length = lists.distances.shape
    table = np.empty((n_lists, size, 4), np.int64)
    table[:, length:] = (_INFINITE, PADDING_RANK, PADDING_POSITION, PADDING_POSITION)
    # Non-negative floats have the order of their bit patterns; adding 0.0 turns -0.0 into 0.0.
    table[:, :length, 0] = (lists.distances.astype(np.float64) + 0.0).view(np.int64)
    table[:, :length, 1] = lists.ranks
    table[:, :length, 2] = lists.providers
    table[:, :length, 3] = lists.positions
    return table


def _check_sorted(table: Integers) -> None:
    found = np.zeros(len(table), np.int64)
    _mark_unsorted(table, found)
    if found.any():
        raise ValueError(
            f"expected lists in ascending order of (distance, rank, provider, position), list "
            f"{int(found.argmax())} is not"
        )
