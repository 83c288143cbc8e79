"""Query sessions over points: trees for few dimensions, bounds for many, else a scan.

The metric's own function computes all emitted distances; trees and features only select candidates.
They add terms in another order than the metric, so their values are exact up to rounding. A scale
converts a computed distance into a safe lower bound of the metric's distance, and a distance of the
metric into a safe radius, with a margin far above rounding errors and far below any relevant
difference.
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

# Squares below 2**-1022 lose bits or underflow: the effect on a root is below 2**-500.
_UNDERFLOW = 2.0**-500


class Scale(ABC):
    """Conversion between search-space distances and metric distances, with error margins."""

    power: int
    """Minkowski power of the search space, 1 or 2."""

    @abstractmethod
    def lower(self, found: Floats) -> Floats:
        """Return lower bounds of the metric's distances, given search-space distances."""

    @abstractmethod
    def _radius(self, distance: float, side: int) -> float:
        """Convert a distance to a search radius with a margin.

        ``1`` adds the margin outwards, ``-1`` inwards.
        """

    def reach(self, distance: float) -> float:
        """Return a radius beyond which ``lower`` exceeds ``distance``."""
        return self._radius(distance, 1) if distance >= 0 else 0.0

    def inside(self, distance: float) -> float:
        """Return a radius, maybe negative; all objects in it are within ``distance``."""
        return self._radius(distance, -1) if distance >= 0 else -1.0


@dataclass(frozen=True)
class MinkowskiScale(Scale):
    """The scale of ``euclidean``, ``manhattan`` and, on unit vectors, ``cosine``.

    Parameters
    ----------
    power : {1, 2}
        Power of the search space.
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
        # A sum of n terms has a relative error below (n + 3) 2**-53, in the metric and in the tree;
        # a tree adds up to two roundings for each of its levels, of which it has fewer than 200.
        # Four times that.
        return (8 * self.n_columns + 2048) * 2.0**-53

    def lower(self, found: Floats) -> Floats:
        """Return lower bounds of the metric's distances, given search-space distances."""
        safe = np.maximum(found * (1 - self._relative) - _UNDERFLOW, 0.0)
        if self.halved_square:
            return np.asarray(safe * safe * (0.5 - self._relative))
        return safe

    def _radius(self, distance: float, side: int) -> float:
        plain = math.sqrt(2 * distance) if self.halved_square else distance
        return plain * (1 + side * 4 * self._relative) + side * 4 * _UNDERFLOW


Measure = Callable[[Integers | None], Floats]
"""Function that returns the distances of the query to the objects at some positions, or to all."""

# Beyond this fraction of all objects a scan is cheaper than a tree: for 1/8 of 100,000 points in
# the plane a tree takes 9 ms, a scan of all 0.3 ms and their partition 1.5 ms.
_TREE_SHARE = 1 / 16
_SPARE = 8
_SMALLEST_BATCH = 64


class ScanSession(BrowsingSession):
    """A query session that computes all distances at the first request.

    Parameters
    ----------
    ranks : int64 array of shape (n_objects,)
        Order of objects of equal distance.
    measure : callable
        Function that computes distances.
    """

    def __init__(self, ranks: Integers, measure: Measure) -> None:
        super().__init__(ranks)
        self._measure = measure
        self._seen = np.zeros(len(ranks), np.bool_)
        self._bounds: Floats | None = None

    def bounds(self) -> Floats:
        """Return the distances themselves, the tightest bounds."""
        if self._bounds is None:
            self._bounds = self._measure(None)
            self._take_rest(self._bounds)
        return self._bounds.copy()

    def separate_bounds(self) -> Floats:
        """Return the distances: features and their margins depend on the whole table."""
        distances = self._measure(None)
        self._take_rest(distances)
        return distances

    def count(self, radius: float) -> int:
        """Return the number of objects within a distance of ``radius``."""
        check_radius(radius)
        self._complete()
        return self._n_verified_within(radius)

    def _widen(self, k: int, cutoff: float) -> None:  # noqa: ARG002 - computes all at once
        self._complete()

    def _complete(self) -> None:
        if self.n_verified < self._n_objects:
            self._take_rest(self._measure(None))

    def _take_rest(self, distances: Floats) -> None:
        rest = np.flatnonzero(~self._seen)
        self._seen[rest] = True
        self._verified(rest, distances[rest], math.inf)

    def _verify(self, positions: Integers, frontier: float) -> None:
        """Compute the distances of objects not seen before."""
        fresh = positions[~self._seen[positions]]
        self._seen[fresh] = True
        self._verified(fresh, self._measure(fresh), frontier)


class TreeSession(ScanSession):
    """A query session that extends a tree search on demand.

    Parameters
    ----------
    ranks : int64 array of shape (n_objects,)
        Order of objects of equal distance.
    measure : callable
        Function that computes distances.
    bound : callable
        Function that computes lower bounds of all distances.
    tree : cKDTree
        Tree of the points in the search space.
    point : float64 array of shape (n_columns,)
        The query in the search space.
    scale : Scale
        Scale from the search space to the metric.
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
        self._asked = 0

    def bounds(self) -> Floats:
        """Return bounds without a tree; the tree search still works afterwards."""
        return self._bound()

    def count(self, radius: float) -> int:
        """Return the number within ``radius``; verify only uncertain objects."""
        check_radius(radius)
        if self.n_verified == self._n_objects:
            return self._n_verified_within(radius)
        reach = self._scale.reach(radius)
        at_most = self._count_ball(reach)
        if at_most == self._count_ball(self._scale.inside(radius)):
            return at_most
        if at_most > self._n_objects * _TREE_SHARE:
            self._complete()
        else:
            within = self._tree.query_ball_point(self._point, reach, p=self._scale.power)
            self._verify(np.array(within, np.int64), self._frontier)
        return self._n_verified_within(radius)

    def _count_ball(self, radius: float) -> int:
        if radius < 0:
            return 0
        return int(
            self._tree.query_ball_point(
                self._point, radius, p=self._scale.power, return_length=True
            )
        )

    def _widen(self, k: int, cutoff: float) -> None:
        wanted = self._n_given + k
        # A few more than requested: the last one may be tied or within rounding of the next.
        self._asked = max(wanted + wanted // 8 + _SPARE, 2 * self._asked)
        if self._asked > self._n_objects * _TREE_SHARE or self._asked >= self._n_objects:
            self._complete()
            return
        reach = self._scale.reach(cutoff)
        found, positions = map(
            np.asarray,
            self._tree.query(
                self._point, self._asked, p=self._scale.power, distance_upper_bound=reach
            ),
        )
        full = positions[-1] < self._n_objects
        farthest = found[-1] if full else reach
        frontier = float(self._scale.lower(np.array(farthest)))
        self._verify(positions[positions < self._n_objects], frontier)


class BoundedSession(ScanSession):
    """A query session that verifies objects in ascending order of a bound.

    Parameters
    ----------
    ranks : int64 array of shape (n_objects,)
        Order of objects of equal distance.
    measure : callable
        Function that computes distances.
    bound : callable
        Function that computes the lower bounds of all distances.
    """

    def __init__(self, ranks: Integers, measure: Measure, bound: Callable[[], Floats]) -> None:
        super().__init__(ranks, measure)
        self._bound = bound
        self._order = np.empty(0, np.int64)  # number of objects sorted by bound so far
        self._n_taken = 0

    def bounds(self) -> Floats:
        """Return the bounds that order the verification."""
        return self._own_bounds().copy()

    def count(self, radius: float) -> int:
        """Return the number within ``radius``; verify objects with bounds within it."""
        check_radius(radius)
        near = np.flatnonzero(self._own_bounds() <= radius)
        self._verify(near, self._frontier)
        return self._n_verified_within(radius)

    def _own_bounds(self) -> Floats:
        if self._bounds is None:
            self._bounds = self._bound()
        return self._bounds

    def _widen(self, k: int, cutoff: float) -> None:
        bounds = self._own_bounds()
        front = self._pool.front(k)
        kth = float(front[-1]) if len(front) == k else math.inf
        batch = max(_SMALLEST_BATCH, k - len(front), self._n_taken)
        self._sort_bounds(self._n_taken + batch + 1)
        end = self._n_taken + batch
        # Objects beyond the k-th known distance, or the cutoff, cannot be among the next k.
        limit = min(kth, cutoff)
        ahead = self._order[self._n_taken : end]
        ahead = ahead[: max(1, int(bounds[ahead].searchsorted(limit, side="right")))]
        self._n_taken += len(ahead)
        left = self._order[self._n_taken : self._n_taken + 1]
        self._verify(ahead, float(bounds[left[0]]) if len(left) else math.inf)

    def _sort_bounds(self, n: int) -> None:
        """Sort at least the first ``n`` objects by bound."""
        if n <= len(self._order) or len(self._order) == self._n_objects:
            return
        bounds = self._own_bounds()
        n = max(n, 4 * len(self._order))
        near = np.arange(self._n_objects)
        if n < self._n_objects:
            near = np.flatnonzero(bounds <= np.partition(bounds, n - 1)[n - 1])
        # A longer order begins with the shorter one: positions break ties in both.
        self._order = near[np.argsort(bounds[near], kind="stable")]
