"""Sets of words or numbers under the Jaccard distance, with an inverted index."""

import math
from collections.abc import Collection, Hashable, Sequence
from typing import Any

import numpy as np

from fedneighbors._typing import Floats, Integers
from fedneighbors.methods.fedknn.metrics._sessions import (
    BrowsingSession,
    check_radius,
    check_ranks,
)

# Two different fractions with denominators up to 2**26 differ by at least 2**-52, and quotients
# are rounded by at most 2**-54: distances are equal as floats exactly if they are as fractions.
_MAX_ELEMENTS = 1 << 25

# Processing one element takes 0.06 ms; counting the common elements of the query and each of
# 14,376 titles takes 0.2 ms: single elements are faster only if few are needed.
_MAX_ALONE = 2


class JaccardMetric:
    """One minus the ratio of common elements: ``1 - |A and B| / |A or B|``.

    A set is any set, list or tuple of hashable elements; repeated elements count once. Two empty
    sets have distance 0. Distances compare like the exact fractions: two different fractions are
    never rounded to one number.

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
        one, other = _as_set(first, "the first set"), _as_set(second, "the second set")
        common = len(one & other)
        union = len(one) + len(other) - common
        return (union - common) / union if union else 0.0

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
    """Inverted index from elements to sets, and the elements of each set, as numbers."""

    def __init__(self, sets: list[frozenset[Hashable]], ranks: Integers) -> None:
        self.n_objects = len(sets)
        self.ranks = ranks
        self.sizes = np.array([len(item) for item in sets], np.int64)
        self._numbers: dict[Hashable, int] = {}
        number = self._numbers
        self.elements = np.array(
            [number.setdefault(element, len(number)) for item in sets for element in item], np.int64
        )
        self.starts = np.concatenate([[0], np.cumsum(self.sizes)])
        owners = np.repeat(np.arange(len(sets)), self.sizes)
        self._holders = owners[np.argsort(self.elements, kind="stable")]
        frequencies = np.bincount(self.elements, minlength=len(number))
        self._holder_starts = np.concatenate([[0], np.cumsum(frequencies)])

    @property
    def n_elements(self) -> int:
        return len(self._numbers)

    def holders(self, element: int) -> Integers:
        """Return the sets with an element, ascending."""
        return self._holders[self._holder_starts[element] : self._holder_starts[element + 1]]

    def open(self, query: Any) -> "_SetSession":
        wanted = _as_set(query, "the query")
        known = [self._numbers[element] for element in wanted if element in self._numbers]
        return _SetSession(self, np.array(sorted(known), np.int64), n_query=len(wanted))


class _SetSession(BrowsingSession):
    """A query session that processes its elements, rarest first.

    A set with none of the first ``j`` elements has at most ``n_query - j`` common elements, and its
    union with the query has at least ``n_query`` elements: its distance is at least ``j /
    n_query``.
    """

    def __init__(self, index: _SetIndex, known: Integers, *, n_query: int) -> None:
        super().__init__(index.ranks)
        self._index = index
        self._n_query = n_query
        holders = [index.holders(int(element)) for element in known]
        self._known = known
        self._holders = sorted(holders, key=len)
        self._n_read = 0
        self._seen = np.zeros(index.n_objects, np.bool_)
        self._wanted = np.zeros(index.n_elements, np.bool_)
        self._wanted[known] = True

    def bounds(self) -> Floats:
        """Return bounds from the sizes: ``1 - smaller / larger``."""
        sizes = self._index.sizes
        reachable = np.minimum(sizes, len(self._known))
        return self._distances(reachable, sizes)

    def separate_bounds(self) -> Floats:
        """Return the same bounds; they do not depend on the table's elements."""
        sizes = self._index.sizes
        return self._distances(np.minimum(sizes, self._n_query), sizes)

    def count(self, radius: float) -> int:
        check_radius(radius)
        while self._may_hold_more(radius):
            self._widen(1, radius)
        return self._n_verified_within(radius)

    def _widen(self, k: int, cutoff: float) -> None:  # noqa: ARG002 - adds one element, or all
        if self._n_read == len(self._holders):
            self._verify(np.flatnonzero(~self._seen), math.inf)
            return
        within_reach = sum(map(len, self._holders[:_MAX_ALONE]))
        if self._n_read == _MAX_ALONE or within_reach < self._n_given + k:
            self._verify_holders()
            return
        holders = self._holders[self._n_read]
        self._n_read += 1
        # Elements of the query that are in no set count as processed.
        n_left = len(self._holders) - self._n_read
        frontier = (self._n_query - n_left) / self._n_query
        self._verify(holders[~self._seen[holders]], frontier)

    def _verify_holders(self) -> None:
        """Verify all sets with an element of the query, by counting."""
        common = np.bincount(np.concatenate(self._holders), minlength=self._n_objects)
        fresh = np.flatnonzero((common > 0) & ~self._seen)
        self._seen[fresh] = True
        self._n_read = len(self._holders)
        distances = self._distances(common[fresh], self._index.sizes[fresh])
        self._verified(fresh, distances, 1.0)

    def _verify(self, positions: Integers, frontier: float) -> None:
        self._seen[positions] = True
        common = self._common(positions)
        distances = self._distances(common, self._index.sizes[positions])
        self._verified(positions, distances, frontier)

    def _common(self, positions: Integers) -> Integers:
        """Return the number of elements that each set shares with the query."""
        sizes = self._index.sizes[positions]
        ends = np.cumsum(sizes)
        within = np.arange(int(sizes.sum())) - np.repeat(ends - sizes, sizes)
        elements = self._index.elements[np.repeat(self._index.starts[positions], sizes) + within]
        shared = np.concatenate([[0], np.cumsum(self._wanted[elements])])
        return np.asarray(shared[ends] - shared[ends - sizes])

    def _distances(self, common: Integers, sizes: Integers) -> Floats:
        union = self._n_query + sizes - common
        return np.where(union > 0, (union - common) / np.maximum(union, 1), 0.0)


def _as_set(item: Any, who: str) -> frozenset[Hashable]:
    if isinstance(item, str | bytes | dict) or not isinstance(item, Collection):
        raise TypeError(
            f"{who}: expected a set, list or tuple of elements, got {type(item).__name__}"
        )
    try:
        elements = frozenset(item)
    except TypeError:
        raise TypeError(f"{who}: expected hashable elements, such as words or integers") from None
    if any(element != element for element in elements):
        raise ValueError(f"{who}: expected elements that equal themselves, got NaN")
    if len(elements) > _MAX_ELEMENTS:
        raise ValueError(f"{who}: expected 2**25 elements at most, got {len(elements)}")
    return elements
