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
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.spatial import cKDTree

from fedneighbors._typing import Floats, Integers
from fedneighbors.kernels.vectors._duplicates import DistinctRows
from fedneighbors.kernels.vectors._quantized import RowBounds
from fedneighbors.methods.fedknn.metrics._sessions import BrowsingSession, check_radius

# Squares of differences below 2**501 stay finite, and so do sums of up to 2**21 of them.
MAX_MAGNITUDE = 2.0**500

# Squares below 2**-1022 lose bits or underflow. This changes the square root of a sum of up to
# 2**21 squares by less than 2**-500.
_UNDERFLOW = 2.0**-500

_LEAST_PRODUCT = 2.0**-1000  # smaller bounds of inner products lose bits


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


@dataclass(frozen=True)
class ProductScale(Scale):
    """Scale of ``inner_product`` for one query.

    Search-space distances are the inner products of a query and centered rows, scaled by a power of
    two, with the opposite sign.

    Parameters
    ----------
    shift : float
        Inner product of the query and the center, scaled.
    error : float
        Rounding error of scaled distances, other than a fraction of the search-space distance.
    exponent : int
        Power of two.
    """

    shift: float
    error: float
    exponent: int

    def lower(self, search_distances: Floats) -> Floats:
        """Return lower bounds of the metric's distances, given search-space distances."""
        scaled = search_distances - (self.shift + self.error)
        return np.asarray(np.ldexp(scaled, -self.exponent) - _LEAST_PRODUCT)

    def _radius(self, distance: float, side: int) -> float:
        with np.errstate(over="ignore"):
            scaled = float(np.ldexp(distance + side * 2 * _LEAST_PRODUCT, self.exponent))
        # search-space distances of _MAX_BOUND do not occur
        rounding = 2.0**-50 * (min(abs(scaled), _MAX_BOUND) + abs(self.shift))
        return scaled + self.shift + side * (2 * self.error + rounding)

    def outer_radius(self, distance: float) -> float:
        """Return a radius beyond which ``lower`` exceeds ``distance``; may be negative."""
        return self._radius(distance, 1)


Measure = Callable[[Integers | None], Floats]
"""Function that returns the query's distances to objects at given positions, or to all if None."""

# For more than this fraction of all objects, a scan is used in place of the tree. Measured for 1/8
# of 100,000 points in two dimensions: 9 ms with the tree; 0.3 ms to scan all and 1.5 ms to select
# the nearest.
_MAX_TREE_FRACTION = 1 / 16
_N_EXTRA = 8  # additional neighbors requested from the tree
_GROWTH = 2  # largest ratio of new to verified objects
_MAX_BOUND = 2.0**100  # above all finite bounds


class ScanSession(BrowsingSession):
    """A query session that computes all distances at the first request.

    Subclasses compute them on demand.

    Parameters
    ----------
    ranks : int64 array of shape (n_objects,)
        Rank of each object; objects of equal distance are emitted by ascending rank.
    measure : callable
        Function that computes distances.
    least : float
        No distance is below this number.
    """

    def __init__(self, ranks: Integers, measure: Measure, *, least: float = 0.0) -> None:
        super().__init__(ranks, least=least)
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

    def list_all(self, n_objects: int) -> Floats:
        """Return the bounds of all objects, if none was taken."""
        return self._lower(self._bounds.values[:n_objects])

    def lowest(self) -> float:
        """Return the lowest bound of the objects that were not taken."""
        return float(self._lower(np.array(self._bounds.lowest(), np.float32)))

    def take(self, distance: float, n: int | None = None) -> Integers:
        """Remove the objects whose bounds are within a distance; return their positions.

        If there are more than ``n``, at least ``n`` of the lowest bounds are removed.
        """
        radius = float(np.ldexp(self._scale.outer_radius(distance), self._exponent))
        return self._bounds.take(min(radius, _MAX_BOUND), n)

    def _lower(self, bounds: npt.NDArray[np.float32]) -> Floats:
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
        Function that computes the lower bounds of all distances.
    least : float
        No distance is below this number.
    """

    def __init__(
        self,
        ranks: Integers,
        measure: Measure,
        bound: Callable[[], DistanceBounds],
        *,
        least: float = 0.0,
    ) -> None:
        super().__init__(ranks, measure, least=least)
        self._bound = bound

    @cached_property
    def _left(self) -> DistanceBounds:
        """Return the bounds of the objects that are not verified."""
        return self._bound()

    def bounds(self) -> Floats:
        """Return the bounds that select the objects to verify."""
        return (self._bound() if self.n_verified else self._left).list_all(self._n_objects)

    def count(self, radius: float) -> int:
        """Return the number within ``radius``; verify objects with bounds within it."""
        check_radius(radius)
        self._verify(self._left.take(radius), self._frontier)
        return self._count_verified_within(radius)

    def _widen(self, k: int, cutoff: float) -> None:
        front = self._pool.front(k)
        # Objects beyond the k-th known distance, or the cutoff, cannot be among the next k.
        limit = min(float(front[-1]) if len(front) == k else math.inf, cutoff)
        # not all at once: in heavy tails the lowest bounds may be those of far objects
        n = max(k - len(front) + _N_EXTRA, _GROWTH * self.n_verified)
        near = self._left.take(limit, n)
        lowest = self._left.lowest()
        self._verify(near, lowest if len(near) else max(lowest, math.nextafter(limit, math.inf)))


class GroupedSession(BrowsingSession):
    """A query session that searches distinct objects and emits all equal ones.

    Parameters
    ----------
    distinct : DistinctRows
        Groups of equal objects.
    session : ScanSession
        Session of the distinct objects, of which each has the lowest rank of its group.
    """

    def __init__(self, distinct: DistinctRows, session: ScanSession) -> None:
        super().__init__(distinct.ranks, least=session.least)
        self._distinct = distinct
        self._session = session
        self._n_requested = 1

    def bounds(self) -> Floats:
        """Return the bounds of the distinct objects."""
        return np.asarray(self._session.bounds()[self._distinct.groups])

    def separate_bounds(self) -> Floats:
        """Return bounds that do not depend on other objects."""
        return np.asarray(self._session.separate_bounds()[self._distinct.groups])

    def count(self, radius: float) -> int:
        """Return the number of objects within a distance of ``radius``."""
        check_radius(radius)
        while self._may_have_more(radius):
            self._widen(self._n_requested, radius)
        return self._count_verified_within(radius)

    def _widen(self, k: int, cutoff: float) -> None:
        self._n_requested = max(2 * self._n_requested, k - len(self._pool.front(k)) + 1)
        batch = self._session.next(self._n_requested, cutoff=cutoff)
        positions, counts = self._distinct.members(batch.positions)
        frontier = math.nextafter(cutoff, math.inf)
        if not batch.exhausted:
            frontier = float(batch.distances[-1])
        self._add_verified(positions, np.repeat(batch.distances, counts), frontier)
