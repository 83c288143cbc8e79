"""Oblivious merge of sorted lists by a bitonic network.

The sequence of compare-exchanges is derived from the number and length of the lists alone. Each
exchange reads and writes both of its entries completely, by masks instead of branches, even if they
do not swap. Memory addresses, their order and the running time therefore reveal nothing about the
list that an entry comes from. The payload of an entry, such as its name, is moved by the same
swaps.
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
"""Value of both the provider and the position of a padding entry."""

PAYLOAD_WORDS = 9
"""Size of a payload in words of eight bytes: a name of up to 64 bytes, and its length."""

_INFINITY_BITS = int(np.array(np.inf).view(np.int64))


class Entries(NamedTuple):
    """Entries in ascending order of (distance, rank, provider, position).

    Parameters
    ----------
    distances : float64 array
        Infinite for padding.
    ranks, providers, positions : int64 arrays of the same shape
        Break ties between equal distances, in this order.
    """

    distances: Floats
    ranks: Integers
    providers: Integers
    positions: Integers


class Merge(NamedTuple):
    """Result of a merge, with the swaps that move payloads in the same way.

    Parameters
    ----------
    smallest : Entries of shape (k,)
        Padding comes last.
    swap_masks : int8 array of shape (n_exchanges,)
        For each exchange of :func:`list_exchanges`, -1 if its entries were swapped, else 0.
    """

    smallest: Entries
    swap_masks: npt.NDArray[np.int8]


def merge_sorted(lists: Entries, k: int | None = None) -> Entries:
    """Return the smallest entries of several sorted lists.

    Parameters
    ----------
    lists : Entries of shape (n_lists, length)
        Each row is ascending and ends with padding where a list is shorter than ``length``.
    k : int, optional
        Number of entries to return, from 0 to ``length``; by default ``length``.

    Returns
    -------
    Entries of shape (k,)
        Padding comes last.

    Raises
    ------
    ValueError
        If shapes disagree, a row is not in ascending order, a distance is NaN, or ``k`` is out of
        range.
    """
    return merge_with_swaps(lists, k).smallest


def merge_with_swaps(lists: Entries, k: int | None = None) -> Merge:
    """Return the smallest entries and the swaps that were made.

    Parameters
    ----------
    lists, k
        As for :func:`merge_sorted`.

    Returns
    -------
    Merge
        Entries of shape (k,), and the mask of each compare-exchange.

    Raises
    ------
    ValueError
        As for :func:`merge_sorted`.
    """
    n_lists, length = _check_shape(lists)
    n_smallest = length if k is None else k
    if not 0 <= n_smallest <= length:
        raise ValueError(f"expected k from 0 to the length of a list, {length}, got {n_smallest}")
    pairs = list_exchanges(n_lists, length)
    swap_masks = np.zeros(len(pairs), np.int8)
    if n_lists == 0 or length == 0:
        empty = np.empty(0, np.int64)
        return Merge(Entries(np.empty(0), empty, empty, empty), swap_masks)
    if np.isnan(lists.distances).any():
        raise ValueError("expected distances, got NaN")
    table = _to_integers(lists, _next_power_of_two(length))
    _check_sorted(table)
    flat = table.reshape(-1, 4)
    _exchange(flat, pairs, swap_masks)
    distances, *others = flat[:n_smallest].T.copy()
    return Merge(Entries(_flip(distances).view(np.float64), *others), swap_masks)


def move_payloads(payloads: Integers, merge: Merge) -> Integers:
    """Return the payloads of the smallest entries of a merge.

    Parameters
    ----------
    payloads : int64 array of shape (n_lists, length, PAYLOAD_WORDS)
        Payload of each entry of the lists.
    merge : Merge
        Result of merging these lists.

    Returns
    -------
    int64 array of shape (k, PAYLOAD_WORDS)
        Rows of padding entries have no meaning.

    Raises
    ------
    ValueError
        If the shape does not match the lists that were merged.
    """
    n_lists, length, n_words = payloads.shape
    pairs = list_exchanges(n_lists, length)
    if n_words != PAYLOAD_WORDS or len(pairs) != len(merge.swap_masks):
        raise ValueError(
            f"expected {PAYLOAD_WORDS} words for each merged entry, got an array of shape "
            f"{payloads.shape}"
        )
    table = np.zeros((n_lists, _next_power_of_two(length), PAYLOAD_WORDS), np.int64)
    table[:, :length] = payloads
    flat = table.reshape(-1, PAYLOAD_WORDS)
    _move(flat, pairs, merge.swap_masks)
    return flat[: len(merge.smallest.distances)]


@lru_cache(maxsize=256)
def list_exchanges(n_lists: int, length: int) -> npt.NDArray[np.uint32]:
    """Return the compare-exchanges that merge lists, in order.

    The smallest entries of two sorted lists ``a`` and ``b`` are ``min(a[i], b[length - 1 - i])``,
    a sequence that rises and falls once; exchanges over strides that halve each time sort it. Lists
    are merged in pairs, and the results in pairs again.

    Parameters
    ----------
    n_lists, length : int
        Number and length of the lists. The length is rounded up to a power of two, ``size``; list
        ``r`` begins at entry ``r * size``.

    Returns
    -------
    uint32 array of shape (n_exchanges, 2)
        Indices of the two entries; the smaller entry goes to the first.
    """
    size = _next_power_of_two(length)
    offsets = np.arange(size)
    steps = []
    gap = 1
    while gap < n_lists:  # merge lists r and r + gap into list r
        starts = np.arange(0, n_lists - gap, 2 * gap)[:, np.newaxis] * size
        steps.append((starts + offsets, starts + gap * size + offsets[::-1]))
        stride = size // 2
        while stride:
            low = offsets[offsets & stride == 0]
            steps.append((starts + low, starts + low + stride))
            stride //= 2
        gap *= 2
    pairs = [np.stack([low.ravel(), high.ravel()], axis=1) for low, high in steps]
    exchanges = np.concatenate([np.empty((0, 2), np.int64), *pairs]).astype(np.uint32)
    exchanges.flags.writeable = False
    return exchanges


@njit(cache=True, nogil=True)
def _is_later(a0: Any, a1: Any, a2: Any, a3: Any, b0: Any, b1: Any, b2: Any, b3: Any) -> Any:
    # bitwise operators, because `and` and `or` would branch
    later = np.int64(a3 > b3)
    later = np.int64(a2 > b2) | (np.int64(a2 == b2) & later)
    later = np.int64(a1 > b1) | (np.int64(a1 == b1) & later)
    return np.int64(a0 > b0) | (np.int64(a0 == b0) & later)


@njit(cache=True, nogil=True)
def _exchange(table: Any, pairs: Any, swap_masks: Any) -> None:
    for e in range(pairs.shape[0]):
        i = pairs[e, 0]
        j = pairs[e, 1]
        a0, a1, a2, a3 = table[i, 0], table[i, 1], table[i, 2], table[i, 3]
        b0, b1, b2, b3 = table[j, 0], table[j, 1], table[j, 2], table[j, 3]
        mask = -_is_later(a0, a1, a2, a3, b0, b1, b2, b3)
        swap_masks[e] = mask
        x0, x1, x2, x3 = (a0 ^ b0) & mask, (a1 ^ b1) & mask, (a2 ^ b2) & mask, (a3 ^ b3) & mask
        table[i, 0], table[i, 1], table[i, 2], table[i, 3] = a0 ^ x0, a1 ^ x1, a2 ^ x2, a3 ^ x3
        table[j, 0], table[j, 1], table[j, 2], table[j, 3] = b0 ^ x0, b1 ^ x1, b2 ^ x2, b3 ^ x3


@njit(cache=True, nogil=True)
def _move(payloads: Any, pairs: Any, swap_masks: Any) -> None:
    for e in range(pairs.shape[0]):
        i = pairs[e, 0]
        j = pairs[e, 1]
        mask = np.int64(swap_masks[e])
        for c in range(PAYLOAD_WORDS):
            x = (payloads[i, c] ^ payloads[j, c]) & mask
            payloads[i, c] ^= x
            payloads[j, c] ^= x


@njit(cache=True, nogil=True)
def _mark_unsorted(table: Any, is_unsorted: Any) -> None:
    for r in range(table.shape[0]):
        for t in range(1, table.shape[1]):
            a, b = table[r, t - 1], table[r, t]
            is_unsorted[r] |= _is_later(a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3])


def _next_power_of_two(length: int) -> int:
    return 1 << max(0, length - 1).bit_length()


def _check_shape(lists: Entries) -> tuple[int, int]:
    shapes = {column.shape for column in lists}
    if len(shapes) != 1 or len(lists.distances.shape) != 2:
        raise ValueError(f"expected four arrays of the same shape (n_lists, length), got {shapes}")
    n_lists, length = lists.distances.shape
    return n_lists, length


def _to_integers(lists: Entries, size: int) -> Integers:
    """Convert entries to rows of four integers that compare like the entries."""
    n_lists, length = lists.distances.shape
    table = np.empty((n_lists, size, 4), np.int64)
    table[:, length:] = (_INFINITY_BITS, PADDING_RANK, PADDING_POSITION, PADDING_POSITION)
    # adding 0.0 turns -0.0 into 0.0
    table[:, :length, 0] = _flip((lists.distances.astype(np.float64) + 0.0).view(np.int64))
    table[:, :length, 1] = lists.ranks
    table[:, :length, 2] = lists.providers
    table[:, :length, 3] = lists.positions
    return table


def _flip(bits: Integers) -> Integers:
    """Convert bits of floats to integers of the same order.

    Negative floats have the opposite order of their bits other than the sign. The function is its
    own inverse.
    """
    return bits ^ ((bits >> 63) & np.iinfo(np.int64).max)


def _check_sorted(table: Integers) -> None:
    is_unsorted = np.zeros(len(table), np.int64)
    _mark_unsorted(table, is_unsorted)
    if is_unsorted.any():
        raise ValueError(
            f"expected lists in ascending order of (distance, rank, provider, position), list "
            f"{int(is_unsorted.argmax())} is not"
        )
