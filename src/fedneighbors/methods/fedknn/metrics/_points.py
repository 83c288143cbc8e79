"""Query sessions over points: with a k-d tree, with lower bounds, or by a scan.

The metric's own function computes all emitted distances; trees and lower bounds only select
candidates. They add terms in another order than the metric, so their values differ by rounding. A
:class:`Scale` converts a distance in the search space (of the tree or of the bounds) to a lower
bound of the metric's distance, and a distance of the metric to a search radius, with a margin far
above rounding errors and far below any relevant difference.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedneighbors._typing import Booleans, Floats, Integers, Singles
from fedneighbors.kernels.vectors._lists import list_nearest
from fedneighbors.kernels.vectors._quantized import RowBounds
from fedneighbors.methods.fedknn.metrics._interfaces import PointSearch
from fedneighbors.methods.fedknn.metrics._sessions import (
    BrowsingSession,
    check_radius,
    check_time,
    choose_limit,
    end_at,
)

# Squares of differences below 2**501 stay finite, and so do sums of up to 2**21 of them.
MAX_MAGNITUDE = 2.0**500

# Squares below 2**-1022 lose bits or underflow. This changes the square root of a sum of up to
# 2**21 squares by less than 2**-500.
_UNDERFLOW = 2.0**-500


class Scale(ABC):
    """Conversion between search-space distances and metric distances, with error margins."""

    power: int
    """Order p of the Minkowski distance in the search space, 1 or 2."""

    @abstractmethod
    def lower(self, search_distances: Floats) -> Floats:
        """Return lower bounds of the metric's distances, given search-space distances."""

    def lower_one(self, search_distance: float) -> float:
        """Return a lower bound of one distance."""
        return float(self.lower(np.array(search_distance)))

    @abstractmethod
    def _radius(self, distance: float, side: int) -> float:
        """Convert a distance to a search radius with a margin.

        The margin is added if ``side`` is 1 and subtracted if it is -1.
        """

    def outer_radius(self, distance: float) -> float:
        """Return a radius beyond which ``lower`` exceeds ``distance``."""
        return self._radius(distance, 1) if distance >= 0 else 0.0

    def inner_radius(self, distance: float) -> float:
        """Return a search radius that contains only objects within ``distance``.

        It is negative if there is no such radius.
        """
        return self._radius(distance, -1) if distance >= 0 else -1.0


@dataclass(frozen=True)
class MinkowskiScale(Scale):
    """Scale of ``euclidean``, ``manhattan`` and, on unit vectors, ``cosine``.

    Parameters
    ----------
    power : {1, 2}
        Order p of the Minkowski distance in the search space.
    halved_square : bool
        True if the metric is half the square of the search distance (cosine).
    n_columns : int
        Length of the vectors: more terms have larger rounding errors in their sum.
    """

    power: int
    halved_square: bool
    n_columns: int

    @property
    def _relative(self) -> float:
        # Four times the possible error: a sum of n terms has a relative error below (n + 3) 2**-53,
        # in the metric and in the tree; the tree has at most two more roundings per level, and
        # fewer than 200 levels.
        return (8 * self.n_columns + 2048) * 2.0**-53

    def lower(self, search_distances: Floats) -> Floats:
        """Return lower bounds of the metric's distances, given search-space distances."""
        bounds = np.maximum(search_distances * (1 - self._relative) - _UNDERFLOW, 0.0)
        if self.halved_square:
            return np.asarray(bounds * bounds * (0.5 - self._relative))
        return bounds

    def lower_one(self, search_distance: float) -> float:
        """Return a lower bound of one distance."""
        bound = max(search_distance * (1 - self._relative) - _UNDERFLOW, 0.0)
        return bound * bound * (0.5 - self._relative) if self.halved_square else bound

    def _radius(self, distance: float, side: int) -> float:
        radius = math.sqrt(2 * distance) if self.halved_square else distance
        return radius * (1 + side * 4 * self._relative) + side * 4 * _UNDERFLOW


Measure = Callable[[Any], Floats]
"""Function that returns the query's distances to objects, given a slice or array of positions."""

VerifyRows = Callable[..., tuple[Integers, Floats, float]]
"""Function as ``verify_within``, given bounds, minima, a limit and a largest number."""

# For more than this fraction of all objects, a scan is used in place of the tree. Measured for 1/8
# of 100,000 points in two dimensions: 9 ms with the tree; 0.3 ms to scan all and 1.5 ms to select
# the nearest.
_MAX_TREE_FRACTION = 1 / 16
_MAX_FROM_TREE = 1 << 14  # neighbors that a tree finds at once, in less than 20 ms
_N_EXTRA = 4  # additional neighbors requested from the tree
_MANY = 4  # most rows that are verified in one call, for each row that is wanted
_GROWTH = 2  # largest ratio of new to verified objects
# All distances are computed if bounds leave a quarter of the objects after many were verified.
_MIN_VERIFIED, _MAX_LEFT = 1 / 32, 1 / 4
MAX_BOUND = 2.0**100  # above all finite bounds


def count_candidates(k: int) -> int:
    """Return the number of neighbors to request for the k nearest.

    There are a few more than k: the distances of the last one and the next may be equal, or differ
    by less than the rounding error.
    """
    return k + k // 32 + _N_EXTRA


def max_from_tree(n_objects: int) -> int:
    """Return the number of neighbors above which all objects are scanned."""
    return min(int(n_objects * _MAX_TREE_FRACTION), _MAX_FROM_TREE, n_objects - 1)


class ScanSession(BrowsingSession):
    """A query session that computes all distances.

    Subclasses compute them on demand.

    Parameters
    ----------
    ranks : int64 array of shape (n_objects,)
        Rank of each object; objects of equal distance are emitted by ascending rank.
    measure : callable
        Function that computes distances.
    width : int
        Cells read to compute one distance.
    least : float
        No distance is below this number.
    """

    def __init__(
        self, ranks: Integers, measure: Measure, *, width: int = 1, least: float = 0.0
    ) -> None:
        super().__init__(ranks, width=width, least=least, list_nearest=list_nearest)
        self._compute = measure
        self._n_scanned = 0

    def bounds(self, *, deadline_s: float | None = None) -> Floats:
        """Return the distances themselves, the tightest bounds."""
        return self.separate_bounds(deadline_s=deadline_s)

    def separate_bounds(self, *, deadline_s: float | None = None) -> Floats:
        """Return the distances, which do not depend on other objects.

        Bounds in a search space may depend on the whole table.
        """
        end = end_at(deadline_s)
        while self._n_scanned < self._n_objects:
            check_time(end)
            self._scan()
        return self._all.copy()

    def _widen(self, k: int, cutoff: float) -> None:  # noqa: ARG002 - computes all distances
        self._scan()

    def _measure(self, positions: Integers) -> Floats:
        return self._compute(positions)

    @cached_property
    def _is_verified(self) -> Booleans:
        """Mark the objects whose distances are or will be computed."""
        return np.zeros(self._n_objects, np.bool_)

    @cached_property
    def _all(self) -> Floats:
        """Hold the distances of all objects, as far as they were scanned."""
        return np.empty(self._n_objects)

    def _scan(self) -> None:
        """Compute the distances of the next objects, verified or not.

        After the last one, the unverified ones are added to the pool.
        """
        part = slice(self._n_scanned, min(self._n_scanned + self._n_per_step, self._n_objects))
        self._all[part] = self._compute(part)
        self._n_scanned = part.stop
        if part.stop == self._n_objects and not self._n_emitted:
            self._pool_all(self._all)
        elif part.stop == self._n_objects:
            self._pool_known(self._frontier)
            self._is_verified[self._queue[0]] = False
            self._queue = np.empty(0, np.int64), np.empty(0)
            remaining = np.flatnonzero(~self._is_verified)
            self._is_verified[remaining] = True
            self._add_verified(remaining, self._all[remaining], math.inf)

    def _verify(self, positions: Integers, frontier: float) -> None:
        """Compute the distances of those objects that are not verified.

        ``frontier`` is a lower bound of the distances of all objects that remain unverified.
        """
        new = positions[~self._is_verified[positions]]
        self._is_verified[new] = True
        self._verify_in_steps(new, frontier)


class SmallSession(ScanSession):
    """A query session in a small table, which is searched as a whole.

    Parameters
    ----------
    nearest : callable
        Function from k to distances and positions of the k nearest, both of shape (1, k).
    *args, **options
        As for :class:`ScanSession`.
    """

    def __init__(
        self, nearest: Callable[[int], tuple[Floats, Integers]], *args: Any, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self._nearest = nearest

    def _widen(self, k: int, cutoff: float) -> None:
        n = count_candidates(k)
        if not k or self.n_verified or n >= self._n_objects:
            super()._widen(k, cutoff)
            return
        (distances,), (positions,) = self._nearest(n)
        self._is_verified[positions] = True
        self._add_verified(positions, distances, float(distances[-1]), follow=True)


class TreeSession(ScanSession):
    """A query session that extends a tree search on demand.

    Parameters
    ----------
    ranks : int64 array of shape (n_objects,)
        Rank of each object; objects of equal distance are emitted by ascending rank.
    measure : callable
        Function that computes distances.
    bound : callable
        Function that computes lower bounds of distances, given a slice of positions.
    width : int
        Cells read to compute one distance.
    tree : PointSearch
        Tree of the objects' points in the search space.
    scale : Scale
        Conversion between distances in the search space and of the metric.
    """

    def __init__(
        self,
        ranks: Integers,
        measure: Measure,
        bound: Measure,
        *,
        width: int,
        tree: PointSearch,
        scale: Scale,
    ) -> None:
        super().__init__(ranks, measure, width=width)
        self._bound = bound
        self._tree = tree
        self._scale = scale
        self._first_found = np.empty(0, np.int64)
        self._n_requested = 0

    def bounds(self, *, deadline_s: float | None = None) -> Floats:
        """Return bounds of all objects, computed without the tree."""
        end, parts = end_at(deadline_s), [np.empty(0)]
        for first in range(0, self._n_objects, self._n_per_step):
            check_time(end)
            parts.append(self._bound(slice(first, first + self._n_per_step)))
        return np.concatenate(parts)

    def count(self, radius: float, *, deadline_s: float | None = None) -> int:
        """Return the number within ``radius``; verify objects only if necessary."""
        end = end_at(deadline_s)
        check_radius(radius)
        self._finish_queue(end)
        if self.n_verified < self._n_objects:
            outer = self._scale.outer_radius(radius)
            n_outer = self._tree.count(outer)
            check_time(end)
            inner = self._scale.inner_radius(radius)
            if n_outer == (self._tree.count(inner) if inner >= 0 else 0):
                return n_outer
            if 0 < n_outer <= max_from_tree(self._n_objects):
                self._verify(self._tree.list_within(outer, n_outer), self._frontier)
                self._finish_queue(end)
                return self._count_verified_within(radius)
        return super().count(radius, deadline_s=max(end - time.monotonic(), 0.0))

    @cached_property
    def _is_verified(self) -> Booleans:
        """Mark the objects in the pool and the queue."""
        is_verified = np.zeros(self._n_objects, np.bool_)
        is_verified[self._first_found] = True
        return is_verified

    def _widen(self, k: int, cutoff: float) -> None:
        wanted = self._n_emitted + k if k else self._n_objects
        n = max(count_candidates(wanted), 2 * self._n_requested)
        self._n_requested = n
        if n > max_from_tree(self._n_objects):
            self._scan()
            return
        outer = self._scale.outer_radius(cutoff) if cutoff < math.inf else math.inf
        found = self._tree.nearest(n, outer)
        frontier = self._scale.lower_one(found.farthest)
        if self.n_verified:
            self._verify(found.positions, frontier)
            return
        self._first_found = found.positions
        if found.distances is None:
            self._verify_in_steps(found.positions, frontier)
        else:
            self._add_verified(found.positions, found.distances, frontier, follow=True)


class DistanceBounds:
    """Lower bounds of a query's distances, which lose those of verified objects.

    Parameters
    ----------
    bounds : RowBounds
        Bounds in the search space, scaled by ``2**exponent``.
    scale : Scale
        Conversion between distances in the search space and of the metric.
    exponent : int
        Exponent of the factor.
    """

    def __init__(self, bounds: RowBounds, scale: Scale, *, exponent: int) -> None:
        self._bounds = bounds
        self._scale = scale
        self._exponent = exponent

    def extend(self, n_objects: int) -> bool:
        """Compute about ``n_objects`` more bounds; return whether all are known."""
        self._bounds.extend(n_objects)
        return self._bounds.is_complete

    def list_all(self, n_objects: int) -> Floats:
        """Return the bounds of all objects, infinite for those that were taken."""
        return self._lower(self._bounds.values[:n_objects])

    def lowest(self) -> float:
        """Return the lowest bound of the objects that were not taken."""
        return self._scale.lower_one(math.ldexp(self._bounds.lowest(), -self._exponent))

    def has_many_within(self, distance: float) -> bool:
        """Return whether many objects may be within a distance."""
        many = _MAX_LEFT * len(self._bounds.values)
        return self._bounds.has_more(self._radius(distance), many)

    def take(self, distance: float, n: int | None = None) -> Integers:
        """Remove the objects whose bounds are within a distance; return their positions.

        If there are more than ``n``, at least ``n`` of the lowest bounds are removed.
        """
        return self._bounds.take(self._choose_radius(distance, n))

    def verify(
        self, verify_rows: VerifyRows, k: int, *, n: int, limit: float
    ) -> tuple[Integers, Floats, float]:
        """Remove about ``n`` objects of the lowest bounds; return their distances.

        Those within the k-th distance are removed, too, but none if many have the same bounds.
        Returns their positions and distances, and a lower bound of the distances of all others.
        """
        rows, most = (self._bounds.values, self._bounds.minima), _MANY * n
        near, known, lowest = verify_rows(*rows, self._choose_radius(limit, n), most)
        if len(near) >= k:
            radius = self._radius(min(limit, float(np.partition(known, k - 1)[k - 1])))
            more, distances, lowest = verify_rows(*rows, radius, most)
            near, known = np.concatenate([near, more]), np.concatenate([known, distances])
        return near, known, self._scale.lower_one(math.ldexp(lowest, -self._exponent))

    def _choose_radius(self, distance: float, n: int | None) -> float:
        """Return a radius for at most about ``n`` objects within a distance."""
        bounds, radius = self._bounds, self._radius(distance)
        if n is None or not bounds.has_more(radius, n):
            return radius
        return bounds.quantile(n) if n <= len(bounds.minima) else choose_limit(bounds.values, n)

    def _radius(self, distance: float) -> float:
        """Return the radius of a distance in the search space."""
        return min(float(np.ldexp(self._scale.outer_radius(distance), self._exponent)), MAX_BOUND)

    def _lower(self, bounds: Singles) -> Floats:
        return self._scale.lower(np.ldexp(bounds.astype(np.float64), -self._exponent))


class BoundedSession(ScanSession):
    """A query session that verifies objects whose bounds are within the k-th distance.

    Parameters
    ----------
    ranks : int64 array of shape (n_objects,)
        Rank of each object; objects of equal distance are emitted by ascending rank.
    measure : callable
        Function that computes distances.
    bound : callable
        Function that returns the lower bounds of all distances, not yet computed.
    width : int
        Cells read to compute one distance.
    least : float
        No distance is below this number.
    leaves_many : callable, optional
        Function that returns whether it is faster to compute all distances, given the number of
        nearest objects wanted and a limit of their distances.
    verify_rows : callable, optional
        Function that takes rows and computes their distances, faster for few.
    """

    def __init__(
        self,
        ranks: Integers,
        measure: Measure,
        bound: Callable[[], DistanceBounds],
        *,
        width: int,
        least: float = 0.0,
        leaves_many: Callable[[int, float], bool] | None = None,
        verify_rows: VerifyRows | None = None,
    ) -> None:
        super().__init__(ranks, measure, width=width, least=least)
        self._bound, self._leaves_many, self._verify_rows = bound, leaves_many, verify_rows

    @cached_property
    def _left(self) -> DistanceBounds:
        """Return the bounds of the objects that are not verified."""
        return self._bound()

    @cached_property
    def _is_verified(self) -> Booleans:
        """Mark the objects whose bounds were taken."""
        return np.isinf(self._left.list_all(self._n_objects))

    def bounds(self, *, deadline_s: float | None = None) -> Floats:
        """Return the bounds that select the objects to verify."""
        end, were_taken = end_at(deadline_s), self.n_verified or len(self._queue[0])
        bounds = self._bound() if were_taken else self._left
        while not bounds.extend(self._n_per_step):
            check_time(end)
        return bounds.list_all(self._n_objects)

    def _widen(self, k: int, cutoff: float) -> None:
        front = self._pool.front(k)
        # Objects beyond the k-th known distance, or the cutoff, cannot be among the next k.
        limit = min(float(front[-1]) if 0 < len(front) == k else math.inf, cutoff)
        wanted = self._n_emitted + k if k else self._n_objects
        if self._n_scanned or (self._leaves_many and self._leaves_many(wanted, limit)):
            return self._scan()
        if not self._left.extend(self._n_per_step):
            return
        # not all at once: in heavy tails the lowest bounds may be those of far objects
        n = max(k - len(front) + _N_EXTRA, _GROWTH * self.n_verified) if k else None
        if self.n_verified > _MIN_VERIFIED * self._n_objects and self._left.has_many_within(limit):
            return self._scan()
        if n and self._verify_rows and not self.n_verified and _MANY * n <= self._n_per_step:
            self._add_verified(*self._left.verify(self._verify_rows, k, n=n, limit=limit))
            if self.n_verified:
                return
        near, lowest = self._left.take(limit, n), self._left.lowest()
        frontier = lowest if len(near) else max(lowest, math.nextafter(limit, math.inf))
        self._verify_in_steps(near, frontier)
