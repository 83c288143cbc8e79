"""Sets of words or numbers under the Jaccard distance, with an inverted index."""

import operator
from collections.abc import Collection, Hashable, Sequence
from typing import Any

import numpy as np

from fedneighbors._typing import Floats, Integers
from fedneighbors.methods.fedknn.metrics._sessions import (
    BrowsingSession,
    check_ranks,
    check_time,
    end_at,
    objects_per_step,
)

# Two sets have at most 2**26 elements together. Two different fractions with denominators up to
# 2**26 differ by at least 2**-52, and quotients are rounded by at most 2**-54: distances are equal
# as floats exactly if they are equal as fractions.
_MAX_ELEMENTS = 1 << 25

_KEY_BITS = 63  # a key is a nonnegative int64
_MIN_SORTED = 256  # number of keys sorted first
_EMPTY = (object(),)  # elements of an empty set

WIDTH = 16  # a distance takes as long as reading so many cells of a table


class JaccardMetric:
    """Jaccard distance: ``1 - len(A & B) / len(A | B)``.

    A set is any set, list or tuple of hashable elements; repeated elements count once. Two empty
    sets have distance 0. Distances compare like exact fractions: two different fractions are never
    rounded to the same number.

    Examples
    --------
    >>> JaccardMetric().distance({"a", "b", "c"}, {"b", "c", "d"})
    0.5
    """

    name = "jaccard"

    def distance(self, first: Any, second: Any) -> float:
        """Return the distance of two sets.

        Raises
        ------
        TypeError, ValueError
            If one is not a collection of hashable elements, or has more than 2**25 elements.
        """
        left, right = _as_set(first, "the first set"), _as_set(second, "the second set")
        n_common = len(left & right)
        n_union = len(left) + len(right) - n_common
        return (n_union - n_common) / n_union if n_union else 0.0

    def index(self, objects: Sequence[Any], *, ranks: Integers) -> "_SetIndex":
        """Return an index of sets.

        Raises
        ------
        TypeError, ValueError
            As for ``distance``; the error names the position of the object.
        """
        sets = [_as_set(item, f"object {i}") for i, item in enumerate(objects)]
        return _SetIndex(sets, check_ranks(ranks, len(sets)))


class _SetIndex:
    """Inverted index from elements to sets.

    Sets are numbered in ascending order of rank, elements in order of first appearance. The
    *holders* of an element are the sets that contain it, its posting list. Empty sets have an
    element of their own, which is not counted in their sizes: it makes two of them equal.
    """

    def __init__(self, sets: list[frozenset[Hashable]], ranks: Integers) -> None:
        from fedneighbors.kernels import _sets  # late, so that the metric alone loads no Numba

        self.kernels: Any = _sets
        self.n_objects = len(sets)
        self.ranks = ranks
        self.order = np.argsort(ranks)
        sets = [sets[position] for position in self.order.tolist()]
        self.sizes = np.array([len(item) for item in sets], np.int32)
        self._numbers: dict[Hashable, int] = {}
        ids = self._numbers
        elements = np.array(
            [ids.setdefault(element, len(ids)) for item in sets for element in item or _EMPTY],
            np.int64,
        )
        owners = np.repeat(np.arange(len(sets), dtype=np.uint32), np.maximum(self.sizes, 1))
        self.holders = owners[np.argsort(elements, kind="stable")]
        frequencies = np.bincount(elements, minlength=len(ids))
        self.starts = np.concatenate([[0], np.cumsum(frequencies)])
        self.n_bits = len(sets).bit_length()
        self.max_size = int(self.sizes.max(initial=0))
        self._is_ordered = bool((self.order[1:] > self.order[:-1]).all())

    def locate(self, numbers: Integers) -> Integers:
        """Return the positions of sets."""
        return numbers if self._is_ordered else self.order[numbers]

    def open(self, query: Any) -> "_SetSession":
        elements, find = _as_elements(query, "the query"), self._numbers.get
        ids = [number for number in map(find, elements or _EMPTY) if number is not None]
        if len(ids) < len(elements):
            _check_elements(elements, "the query")  # elements of the index were checked
        return _SetSession(self, np.array(ids, np.int64), n_query=len(elements))


class _SetSession(BrowsingSession):
    """A query session that counts the common elements of all sets first.

    Sets that have some are sorted, as far as they are requested, by keys of distance and rank. The
    other sets follow in order of rank, with distance 1.

    Parameters
    ----------
    index : _SetIndex
        Index to search.
    known : int64 array
        Numbers of the query elements that occur in any set of the index.
    n_query : int
        Number of elements of the query.
    """

    def __init__(self, index: _SetIndex, known: Integers, *, n_query: int) -> None:
        super().__init__(index.ranks, width=WIDTH)
        self._index = index
        self._n_query = n_query
        self._known = known
        n_holders = int((index.starts[known + 1] - index.starts[known]).sum())
        self._common = np.zeros(index.n_objects, np.int32)
        self._touched: Any = np.empty(min(n_holders, index.n_objects), np.uint32)
        self._place = np.zeros(3, np.int64)
        self._distances = np.empty(0)  # distances of touched sets; the first ones are known
        self._n_measured = 0
        self._keys = np.empty(0, np.int64)  # keys of touched sets; the lowest ones are sorted
        self._n_sorted = 0
        self._n_passed = 0  # touched or not, sets before this one are verified

    def bounds(self, *, deadline_s: float | None = None) -> Floats:
        """Return bounds from the sizes and the number of indexed query elements."""
        return self._bound(min(len(self._known), self._n_query), end_at(deadline_s))

    def separate_bounds(self, *, deadline_s: float | None = None) -> Floats:
        """Return bounds from the sizes only: ``1 - smaller / larger``.

        Unlike those of :meth:`bounds`, they do not depend on the party's other sets.
        """
        return self._bound(self._n_query, end_at(deadline_s))

    def _bound(self, n_common: int, end: float) -> Floats:
        """Return bounds for sets with at most ``n_common`` common elements."""
        bounds = np.empty(self._n_objects)
        for first in range(0, self._n_objects, self._n_per_step):
            check_time(end)
            part = slice(first, first + self._n_per_step)
            sizes = self._index.sizes[part].astype(np.int64)
            common = np.minimum(sizes, n_common)
            union = self._n_query + sizes - common
            positions = self._index.order[part]
            bounds[positions] = np.where(union > 0, (union - common) / np.maximum(union, 1), 0.0)
        return bounds

    def _widen(self, k: int, cutoff: float) -> None:
        if self.count_more() and self._make_keys():
            if self.n_verified < len(self._keys):
                self._verify_touched(k - len(self._pool) if k else self._n_objects, cutoff)
            else:
                self._verify_others(k - len(self._pool) if k else self._n_objects)

    def count_more(self) -> bool:
        """Count more common elements; return whether all are counted."""
        index = self._index
        if self._place[0] < len(self._known):
            postings = index.holders, index.starts, self._known, self._place
            n = objects_per_step(1)
            index.kernels.count_holders(*postings, self._common, self._touched, n)
        return bool(self._place[0] == len(self._known))

    def _make_keys(self) -> bool:
        """Measure more touched sets; return whether all have keys."""
        n_touched, index = int(self._place[2]), self._index
        if len(self._keys) == n_touched:
            return True
        if not self._n_measured:
            self._distances = np.empty(n_touched)
        part = slice(self._n_measured, min(self._n_measured + self._n_per_step, n_touched))
        self._distances[part] = self._measure(self._touched[part])
        self._n_measured = part.stop
        if self._n_measured < n_touched:
            return False
        # Unions have fewer than 2**u elements, so that different fractions differ by more than
        # 2**-2u. Rounded by 2**-54 each and multiplied by 2**(2u + 1), their floors differ.
        n_bits = 2 * (self._n_query + index.max_size).bit_length() + 1
        codes, scale = self._distances, 2.0**n_bits
        if n_bits + index.n_bits > _KEY_BITS:
            codes, scale = np.unique(codes, return_inverse=True)[1].astype(np.float64), 1.0
        self._keys = np.empty(n_touched, np.int64)
        touched = self._touched[:n_touched]
        index.kernels.make_keys(codes, touched, scale, index.n_bits, self._keys)
        return True

    def _verify_touched(self, n: int, cutoff: float) -> None:
        """Verify the next ``n`` touched sets, or those within the cutoff."""
        first, n_touched = self.n_verified, len(self._keys)
        if cutoff < 1:
            n = min(n, int(np.count_nonzero(self._distances <= cutoff)) - first)
        stop = min(first + min(n, self._n_per_step), n_touched)
        if stop >= self._n_sorted < n_touched:  # the key after the last one gives the frontier
            twice = self._n_sorted + min(self._n_sorted, self._n_per_step)
            n_sorted = max(stop + 1, twice, _MIN_SORTED)
            rest, n_more = self._keys[self._n_sorted :], n_sorted - self._n_sorted
            if n_more < len(rest):
                rest.partition(n_more)
            head = rest[:n_more]
            if (head[1:] < head[:-1]).any():  # those of equal sets are sorted already
                head.sort()
            self._n_sorted = min(n_sorted, n_touched)
        numbers = self._keys[first : stop + 1] & ((1 << self._index.n_bits) - 1)
        distances = self._measure(numbers)
        frontier = float(distances[-1]) if stop < n_touched else 1.0
        positions = self._index.locate(numbers[: stop - first])
        self._add_verified(positions, distances[: stop - first], frontier, follow=True)

    def _verify_others(self, n: int) -> None:
        """Verify at least ``n`` other sets, or all that are left.

        They are the farthest of all: their distance is 1.
        """
        first = self._n_passed
        self._n_passed += max(n, _MIN_SORTED) + len(self._keys)  # so many may be touched
        others = np.flatnonzero(self._common[first : self._n_passed] == 0)
        others += first
        self._add_verified(self._index.locate(others), np.ones(len(others)), 1.0, follow=True)

    def _n_certified(self, k: int, cutoff: float) -> int:
        """Count those of the next ``k`` sets that are within the cutoff."""
        # sets are verified in the order of emission
        return int(self._pool.front(k).searchsorted(cutoff, side="right"))

    def _measure(self, positions: Integers) -> Floats:
        distances, sizes = np.empty(len(positions)), self._index.sizes
        self._index.kernels.measure_sets(self._common, sizes, self._n_query, positions, distances)
        return distances


def _as_set(item: Any, name: str) -> frozenset[Hashable]:
    elements = _as_elements(item, name)
    _check_elements(elements, name)
    return elements


def _as_elements(item: Any, name: str) -> frozenset[Hashable]:
    if isinstance(item, str | bytes | dict) or not isinstance(item, Collection):
        raise TypeError(
            f"{name}: expected a set, list or tuple of elements, got {type(item).__name__}"
        )
    try:
        return frozenset(item)
    except TypeError:
        raise TypeError(f"{name}: expected hashable elements, such as words or integers") from None


def _check_elements(elements: frozenset[Hashable], name: str) -> None:
    """Raise for elements that do not equal themselves, and for too many."""
    if any(map(operator.ne, elements, elements)):
        raise ValueError(f"{name}: NaN cannot be an element of a set")
    if len(elements) > _MAX_ELEMENTS:
        raise ValueError(f"{name}: expected 2**25 elements at most, got {len(elements)}")
