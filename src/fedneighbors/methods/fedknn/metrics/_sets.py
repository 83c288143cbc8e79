"""Sets of words or numbers under the Jaccard distance, with an inverted index."""

import math
import operator
from collections.abc import Collection, Hashable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from fedneighbors._typing import Floats, Integers
from fedneighbors.methods.fedknn.metrics._sessions import (
    LevelSession,
    check_ranks,
    check_time,
    end_at,
    objects_per_step,
)

# Two sets have at most 2**26 elements together. Two different fractions with denominators up to
# 2**26 differ by at least 2**-52, and quotients are rounded by at most 2**-54: distances are equal
# as floats exactly if they are equal as fractions.
_MAX_ELEMENTS = 1 << 25

_WIDTH = 16  # a distance takes as long as reading so many cells of a table


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

    Elements are numbered in order of first appearance. The *holders* of an element are the sets
    that contain it, its posting list.
    """

    def __init__(self, sets: list[frozenset[Hashable]], ranks: Integers) -> None:
        from fedneighbors.kernels import _sets  # late, so that the metric alone loads no Numba

        self.kernels: Any = _sets
        self.n_objects = len(sets)
        self.ranks = ranks
        self.sizes = np.array([len(item) for item in sets], np.int64)
        self._numbers: dict[Hashable, int] = {}
        ids = self._numbers
        elements = np.array(
            [ids.setdefault(element, len(ids)) for item in sets for element in item], np.int64
        )
        owners = np.repeat(np.arange(len(sets), dtype=np.int32), self.sizes)
        self.holders = owners[np.argsort(elements, kind="stable")]
        frequencies = np.bincount(elements, minlength=len(ids))
        self.starts = np.concatenate([[0], np.cumsum(frequencies)])

    @cached_property
    def by_rank(self) -> Integers:
        """Return the positions of the sets in ascending order of rank."""
        return np.argsort(self.ranks)

    def open(self, query: Any) -> "_SetSession":
        elements = _as_set(query, "the query")
        ids = [number for number in map(self._numbers.get, elements) if number is not None]
        return _SetSession(self, np.array(ids, np.int64), n_query=len(elements))


class _SetSession(LevelSession):
    """A query session that counts the common elements of all sets first.

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
        super().__init__(index.ranks, width=_WIDTH)
        self._index = index
        self._n_query = n_query
        self._known = known
        self._common = np.zeros(index.n_objects, np.int32)
        self._place = np.zeros(2, np.int64)
        if not len(known):  # no set has a common element
            self._n_scanned, self._level = index.n_objects, 0

    def bounds(self, *, deadline_s: float | None = None) -> Floats:
        """Return bounds from the sizes and the number of indexed query elements."""
        return self._bound(len(self._known), end_at(deadline_s))

    def separate_bounds(self, *, deadline_s: float | None = None) -> Floats:
        """Return bounds from the sizes only: ``1 - smaller / larger``.

        Unlike those of :meth:`bounds`, they do not depend on the party's other sets.
        """
        return self._bound(self._n_query, end_at(deadline_s))

    def _bound(self, n_common: int, end: float) -> Floats:
        """Return bounds for sets with at most ``n_common`` common elements."""
        parts = [np.empty(0)]
        for first in range(0, self._n_objects, self._n_per_step):
            check_time(end)
            sizes = self._index.sizes[first : first + self._n_per_step]
            parts.append(self._distances(np.minimum(sizes, n_common), sizes))
        return np.concatenate(parts)

    def _widen(self, k: int, cutoff: float) -> None:
        if self._level == 0:
            self._verify_rest()
        else:
            super()._widen(k, cutoff)

    def _scan(self) -> None:
        """Count more common elements, then compute the levels of the next sets."""
        index, n = self._index, objects_per_step(1)
        if self._place[0] < len(self._known):
            postings = index.holders, index.starts
            index.kernels.count_holders(*postings, self._known, self._place, self._common, n)
            return
        part = slice(self._n_scanned, min(self._n_scanned + n, self._n_objects))
        common, levels = self._common[part], self._levels[part]
        index.kernels.rate_sets(common, index.sizes[part], self._n_query, levels, self._counts)
        self._n_scanned = part.stop

    def _choose_batch(self, n_missing: int) -> int:
        return max(n_missing, 1)  # levels are exact, so that one batch is enough

    def _verify_down_to(self, level: int) -> None:
        if level > 0:
            super()._verify_down_to(level)
            return
        has_common = (self._levels < self._level) & (self._common > 0)
        self._level = 0
        self._verify_in_steps(np.flatnonzero(has_common), 1.0)

    def _verify_rest(self) -> None:
        """Verify the sets that have no element of the query.

        They are the farthest of all: their distance is 1, unless both sets are empty.
        """
        by_rank = self._index.by_rank
        rest = by_rank[self._common[by_rank] == 0]
        distances = np.ones(len(rest))
        if not self._n_query:
            is_empty = self._index.sizes[rest] == 0
            rest = np.concatenate([rest[is_empty], rest[~is_empty]])
            distances[: np.count_nonzero(is_empty)] = 0.0
        self._add_verified(rest, distances, math.inf, follow=True)

    def _measure(self, positions: Integers) -> Floats:
        distances, sizes = np.empty(len(positions)), self._index.sizes
        self._index.kernels.measure_sets(self._common, sizes, self._n_query, positions, distances)
        return distances

    def _distances(self, n_common: Any, sizes: Integers) -> Floats:
        n_union = self._n_query + sizes - n_common
        return np.where(n_union > 0, (n_union - n_common) / np.maximum(n_union, 1), 0.0)


def _as_set(item: Any, name: str) -> frozenset[Hashable]:
    if isinstance(item, str | bytes | dict) or not isinstance(item, Collection):
        raise TypeError(
            f"{name}: expected a set, list or tuple of elements, got {type(item).__name__}"
        )
    try:
        elements = frozenset(item)
    except TypeError:
        raise TypeError(f"{name}: expected hashable elements, such as words or integers") from None
    if any(map(operator.ne, elements, elements)):
        raise ValueError(f"{name}: NaN cannot be an element of a set")
    if len(elements) > _MAX_ELEMENTS:
        raise ValueError(f"{name}: expected 2**25 elements at most, got {len(elements)}")
    return elements
