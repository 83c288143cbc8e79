"""Sets of words or numbers under the Jaccard distance, with an inverted index."""

import math
from collections.abc import Collection, Hashable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from fedneighbors._typing import Floats, Integers
from fedneighbors.methods.fedknn.metrics._sessions import BrowsingSession, check_radius, check_ranks

# Two sets have at most 2**26 elements together. Two different fractions with denominators up to
# 2**26 differ by at least 2**-52, and quotients are rounded by at most 2**-54: distances are equal
# as floats exactly if they are equal as fractions.
_MAX_ELEMENTS = 1 << 25

# Maximum number of query elements that are processed one by one, and of sets wanted; otherwise the
# elements that each set shares with the query are counted for all sets at once. One element takes
# .05 ms, counting for all of 14,376 titles .1 ms: single elements are faster only if they find the
# nearest sets, which they rarely do if more than a few are wanted.
_MAX_SINGLE, _MAX_SINGLE_K = 2, 4
_MAX_SINGLE_HOLDERS = 500


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
    """Inverted index from elements to sets, and the elements of each set.

    Elements are numbered in order of first appearance. The *holders* of an element are the sets
    that contain it, its posting list.
    """

    def __init__(self, sets: list[frozenset[Hashable]], ranks: Integers) -> None:
        self.n_objects = len(sets)
        self.ranks = ranks
        self.sizes = np.array([len(item) for item in sets], np.int64)
        self._numbers: dict[Hashable, int] = {}
        ids = self._numbers
        self.elements = np.array(
            [ids.setdefault(element, len(ids)) for item in sets for element in item], np.int64
        )
        self.starts = np.concatenate([[0], np.cumsum(self.sizes)])
        owners = np.repeat(np.arange(len(sets)), self.sizes)
        self._holders = owners[np.argsort(self.elements, kind="stable")]
        frequencies = np.bincount(self.elements, minlength=len(ids))
        self._holder_starts = np.concatenate([[0], np.cumsum(frequencies)])

    @cached_property
    def by_rank(self) -> Integers:
        """Return the positions of the sets in ascending order of rank."""
        return np.argsort(self.ranks)

    @property
    def n_elements(self) -> int:
        return len(self._numbers)

    def holders(self, element: int) -> Integers:
        """Return the positions of the sets that contain an element, ascending."""
        return self._holders[self._holder_starts[element] : self._holder_starts[element + 1]]

    def open(self, query: Any) -> "_SetSession":
        elements = _as_set(query, "the query")
        ids = [self._numbers[element] for element in elements if element in self._numbers]
        return _SetSession(self, np.array(sorted(ids), np.int64), n_query=len(elements))


class _SetSession(BrowsingSession):
    """A query session that processes the query's elements, rarest first.

    A set with none of the first ``j`` elements has at most ``n_query - j`` elements in common with
    the query, and their union has at least ``n_query`` elements: the distance is at least
    ``j / n_query``.

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
        super().__init__(index.ranks)
        self._index = index
        self._n_query = n_query
        self._known = known
        self._holders = sorted(map(index.holders, known.tolist()), key=len)
        self._n_processed = 0
        self._is_verified = np.zeros(index.n_objects, np.bool_)

    def bounds(self) -> Floats:
        """Return bounds from the sizes and the number of indexed query elements."""
        sizes = self._index.sizes
        n_common = np.minimum(sizes, len(self._known))
        return self._distances(n_common, sizes)

    def separate_bounds(self) -> Floats:
        """Return bounds from the sizes only: ``1 - smaller / larger``.

        Unlike those of :meth:`bounds`, they do not depend on the party's other sets.
        """
        sizes = self._index.sizes
        return self._distances(np.minimum(sizes, self._n_query), sizes)

    def count(self, radius: float) -> int:
        check_radius(radius)
        while self._may_have_more(radius):
            self._widen(1, radius)
        return self._count_verified_within(radius)

    def _widen(self, k: int, cutoff: float) -> None:  # noqa: ARG002 - adds one element, or all
        if self._n_processed == len(self._holders):
            self._verify_rest()
            return
        holders = self._holders[self._n_processed]
        n_holders = sum(map(len, self._holders[:_MAX_SINGLE]))
        if (
            self._n_processed == _MAX_SINGLE
            or self._n_emitted + k > min(_MAX_SINGLE_K, n_holders)
            or len(holders) > _MAX_SINGLE_HOLDERS
        ):
            self._verify_holders()
            return
        self._n_processed += 1
        # Elements of the query that no set contains count as processed.
        n_remaining = len(self._holders) - self._n_processed
        frontier = (self._n_query - n_remaining) / self._n_query
        self._verify(holders[~self._is_verified[holders]], frontier)

    def _verify_rest(self) -> None:
        """Verify the sets that have no element of the query.

        They are the farthest of all: their distance is 1, unless both sets are empty.
        """
        by_rank = self._index.by_rank
        rest = by_rank[~self._is_verified[by_rank]]
        self._is_verified[rest] = True
        distances = np.ones(len(rest))
        if not self._n_query:
            is_empty = self._index.sizes[rest] == 0
            rest = np.concatenate([rest[is_empty], rest[~is_empty]])
            distances[: np.count_nonzero(is_empty)] = 0.0
        self._add_verified(rest, distances, math.inf, follow=True)

    def _verify_holders(self) -> None:
        """Verify all sets with an element of the query, by counting."""
        n_common = np.bincount(np.concatenate(self._holders), minlength=self._n_objects)
        if self.n_verified:
            n_common[self._is_verified] = 0
        new = np.flatnonzero(n_common)
        self._is_verified[new] = True
        self._n_processed = len(self._holders)
        distances = self._distances(n_common[new], self._index.sizes[new])
        self._add_verified(new, distances, 1.0)

    def _verify(self, positions: Integers, frontier: float) -> None:
        self._is_verified[positions] = True
        n_common = self._count_common(positions)
        distances = self._distances(n_common, self._index.sizes[positions])
        self._add_verified(positions, distances, frontier)

    def _count_common(self, positions: Integers) -> Integers:
        """Return the number of elements that each set shares with the query."""
        sizes = self._index.sizes[positions]
        ends = np.cumsum(sizes)
        offsets = np.arange(int(sizes.sum())) - np.repeat(ends - sizes, sizes)
        elements = self._index.elements[np.repeat(self._index.starts[positions], sizes) + offsets]
        in_query = np.zeros(self._index.n_elements, np.bool_)
        in_query[self._known] = True
        n_shared = np.concatenate([[0], np.cumsum(in_query[elements])])
        return np.asarray(n_shared[ends] - n_shared[ends - sizes])

    def _distances(self, n_common: Integers, sizes: Integers) -> Floats:
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
    if any(element != element for element in elements):
        raise ValueError(f"{name}: NaN cannot be an element of a set")
    if len(elements) > _MAX_ELEMENTS:
        raise ValueError(f"{name}: expected 2**25 elements at most, got {len(elements)}")
    return elements
