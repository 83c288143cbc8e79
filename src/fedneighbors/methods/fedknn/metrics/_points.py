"""Query sessions over points: with a k-d tree, with lower bounds, or by a scan.

The metric's own function computes all emitted distances; trees and lower bounds only select
candidates. They add terms in another order than the metric, so their values differ by rounding. A
:class:`Scale` converts a distance in the search space (of the tree or of the bounds) to a lower
bound of the metric's distance, and a distance of the metric to a search radius, with a margin far
above rounding errors and far below any relevant difference.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.spatial import cKDTree

from fedneighbors._typing import Floats, Integers
from fedneighbors.methods.fedknn.metrics._sessions import BrowsingSession, check_radius

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

    def _radius(self, distance: float, side: int) -> float:
        radius = math.sqrt(2 * distance) if self.halved_square else distance
        return radius * (1 + side * 4 * self._relative) + side * 4 * _UNDERFLOW


Measure = Callable[[Integers | None], Floats]
"""Function that returns the query's distances to objects at given positions, or to all if None."""

# For more than this fraction of all objects, a scan is used in place of the tree. Measured for 1/8
# of 100,000 points in two dimensions: 9 ms with the tree; 0.3 ms to scan all and 1.5 ms to select
# the nearest.
_MAX_TREE_FRACTION = 1 / 16
_N_EXTRA = 8  # additional neighbors requested from the tree
_MIN_BATCH = 64  # minimum number of candidates at a time


class ScanSession(BrowsingSession):
    """A query session that computes all distances at the first request.

    Subclasses compute them on demand.

    Parameters
    ----------
    ranks : int64 array of shape (n_objects,)
        Rank of each object; objects of equal distance are emitted by ascending rank.
    measure : callable
        Function that computes distances.
    """

    def __init__(self, ranks: Integers, measure: Measure) -> None:
        super().__init__(ranks)
        self._measure = measure
        self._is_verified = np.zeros(len(ranks), np.bool_)
        self._bounds: Floats | None = None

    def bounds(self) -> Floats:
        """Return the distances themselves, the tightest bounds."""
        if self._bounds is None:
            self._bounds = self._measure(None)
            self._add_remaining(self._bounds)
        return self._bounds.copy()

    def separate_bounds(self) -> Floats:
        """Return the distances, which do not depend on other objects.

        Bounds in a search space may depend on the whole table.
        """
        distances = self._measure(None)
        self._add_remaining(distances)
        return distances

    def count(self, radius: float) -> int:
        """Return the number of objects within a distance of ``radius``."""
        check_radius(radius)
        self._verify_all()
        return self._count_verified_within(radius)

    def _widen(self, k: int, cutoff: float) -> None:  # noqa: ARG002 - computes all at once
        self._verify_all()

    def _verify_all(self) -> None:
        if self.n_verified < self._n_objects:
            self._add_remaining(self._measure(None))

    def _add_remaining(self, distances: Floats) -> None:
        """Add all unverified objects, given the distances of all objects."""
        remaining = np.flatnonzero(~self._is_verified)
        self._is_verified[remaining] = True
        self._add_verified(remaining, distances[remaining], math.inf)

    def _verify(self, positions: Integers, frontier: float) -> None:
        """Compute the distances of those objects that are not verified.

        ``frontier`` is a lower bound of the distances of all objects that remain unverified.
        """
        new = positions[~self._is_verified[positions]]
        self._is_verified[new] = True
        self._add_verified(new, self._measure(new), frontier)


class TreeSession(ScanSession):
    """A query session that extends a tree search on demand.

    Parameters
    ----------
    ranks : int64 array of shape (n_objects,)
        Rank of each object; objects of equal distance are emitted by ascending rank.
    measure : callable
        Function that computes distances.
    bound : callable
        Function that computes lower bounds of all distances.
    tree : cKDTree
        Tree of the objects' points in the search space.
    point : float64 array of shape (n_columns,)
        The query in the search space.
    scale : Scale
        Conversion between distances in the search space and of the metric.
    """

    def __init__(
        self,
        ranks: Integers,
        measure: Measure,
        bound: Callable[[], Floats],
        *,
        tree: cKDTree,
        point: Floats,
        scale: Scale,
    ) -> None:
        super().__init__(ranks, measure)
        self._bound = bound
        self._tree = tree
        self._point = point
        self._scale = scale
        self._n_requested = 0

    def bounds(self) -> Floats:
        """Return bounds of all objects, computed without the tree."""
        return self._bound()

    def count(self, radius: float) -> int:
        """Return the number within ``radius``; verify objects only if necessary."""
        check_radius(radius)
        if self.n_verified == self._n_objects:
            return self._count_verified_within(radius)
        outer = self._scale.outer_radius(radius)
        n_outer = self._count_ball(outer)
        if n_outer == self._count_ball(self._scale.inner_radius(radius)):
            return n_outer
        if n_outer > self._n_objects * _MAX_TREE_FRACTION:
            self._verify_all()
        else:
            inside = self._tree.query_ball_point(self._point, outer, p=self._scale.power)
            self._verify(np.array(inside, np.int64), self._frontier)
        return self._count_verified_within(radius)

    def _count_ball(self, radius: float) -> int:
        if radius < 0:
            return 0
        n = self._tree.query_ball_point(
            self._point, radius, p=self._scale.power, return_length=True
        )
        return int(n)

    def _widen(self, k: int, cutoff: float) -> None:
        wanted = self._n_emitted + k
        # A few more than wanted: the distances of the last one and the next may be equal, or differ
        # by less than the rounding error.
        n = max(wanted + wanted // 8 + _N_EXTRA, 2 * self._n_requested)
        self._n_requested = n
        if n > self._n_objects * _MAX_TREE_FRACTION or n >= self._n_objects:
            self._verify_all()
            return
        outer = self._scale.outer_radius(cutoff)
        search_distances, positions = map(
            np.asarray,
            self._tree.query(self._point, n, p=self._scale.power, distance_upper_bound=outer),
        )
        # If the tree finds fewer than n, these are all within the radius; it pads with n_objects.
        has_found_n = positions[-1] < self._n_objects
        farthest = search_distances[-1] if has_found_n else outer
        frontier = float(self._scale.lower(np.array(farthest)))
        self._verify(positions[positions < self._n_objects], frontier)


class BoundedSession(ScanSession):
    """A query session that verifies objects in ascending order of a bound.

    Parameters
    ----------
    ranks : int64 array of shape (n_objects,)
        Rank of each object; objects of equal distance are emitted by ascending rank.
    measure : callable
        Function that computes distances.
    bound : callable
        Function that computes the lower bounds of all distances.
    """

    def __init__(self, ranks: Integers, measure: Measure, bound: Callable[[], Floats]) -> None:
        super().__init__(ranks, measure)
        self._bound = bound
        self._order = np.empty(0, np.int64)  # positions of the lowest bounds, ascending
        self._n_taken = 0  # number of positions in _order that were verified

    def bounds(self) -> Floats:
        """Return the bounds that order the verification."""
        return self._cached_bounds().copy()

    def count(self, radius: float) -> int:
        """Return the number within ``radius``; verify objects with bounds within it."""
        check_radius(radius)
        near = np.flatnonzero(self._cached_bounds() <= radius)
        self._verify(near, self._frontier)
        return self._count_verified_within(radius)

    def _cached_bounds(self) -> Floats:
        if self._bounds is None:
            self._bounds = self._bound()
        return self._bounds

    def _widen(self, k: int, cutoff: float) -> None:
        bounds = self._cached_bounds()
        front = self._pool.front(k)
        kth = float(front[-1]) if len(front) == k else math.inf
        batch_size = max(_MIN_BATCH, k - len(front), self._n_taken)
        self._sort_bounds(self._n_taken + batch_size + 1)
        end = self._n_taken + batch_size
        # Objects beyond the k-th known distance, or the cutoff, cannot be among the next k.
        limit = min(kth, cutoff)
        positions = self._order[self._n_taken : end]
        n = max(1, int(bounds[positions].searchsorted(limit, side="right")))
        self._n_taken += len(positions[:n])
        following = self._order[self._n_taken : self._n_taken + 1]
        self._verify(positions[:n], float(bounds[following[0]]) if len(following) else math.inf)

    def _sort_bounds(self, n: int) -> None:
        """Sort at least the first ``n`` objects by bound."""
        if n <= len(self._order) or len(self._order) == self._n_objects:
            return
        bounds = self._cached_bounds()
        n = max(n, 4 * len(self._order))
        near = np.arange(self._n_objects)
        if n < self._n_objects:
            near = np.flatnonzero(bounds <= np.partition(bounds, n - 1)[n - 1])
        # Positions break ties of bounds, so the new order begins with the previous one.
        self._order = near[np.argsort(bounds[near], kind="stable")]
