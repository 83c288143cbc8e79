"""Places on the Earth (longitude and latitude in degrees) under the great-circle distance."""

import math
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats, Integers
from fedneighbors.kernels.vectors._distances import EARTH_RADIUS_M, great_circle_m, square_sums
from fedneighbors.kernels.vectors._places import (
    PlaceTree,
    build_tree,
    count_within,
    list_within,
    nearest_places,
)
from fedneighbors.methods.fedknn.metrics._points import (
    Scale,
    ScanSession,
    TreeSession,
    max_from_tree,
)
from fedneighbors.methods.fedknn.metrics._sessions import Session, check_ranks
from fedneighbors.methods.fedknn.metrics._vectors import as_row, as_rows

_MIN_TREE_PLACES = 1024  # fewer are scanned
_WIDTH = 64  # a distance takes as long as reading so many cells of a table
_MAX_LATITUDE = 90.0
_MAX_LONGITUDE = 360.0  # two conventions: -180 to 180, and 0 to 360


class HaversineMetric:
    """Distance in metres on a sphere of the Earth's mean radius.

    A place is (longitude, latitude) in degrees, in this order.

    Examples
    --------
    >>> metres = HaversineMetric().distance((2.3522, 48.8566), (13.4050, 52.5200))
    >>> round(metres / 1000)
    877
    """

    name = "haversine"
    answers_batches = True
    """An index finds the nearest objects of many queries at once."""

    def distance(self, first: Any, second: Any) -> float:
        """Return the distance of two places in metres.

        Raises
        ------
        ValueError
            If one is not a pair of finite numbers, a latitude is outside [-90, 90] or a longitude
            outside [-360, 360].
        """
        query = as_row(first, _find_invalid, n_columns=2)
        other = as_row(second, _find_invalid, n_columns=2)
        return float(great_circle_m(other[np.newaxis], query, np.zeros(1, np.int64))[0])

    def index(self, objects: Sequence[Any], *, ranks: Integers) -> "_PlaceIndex":
        """Return an index of places.

        Raises
        ------
        ValueError
            As for ``distance``; the error names the position of the object.
        """
        places = as_rows(objects, _find_invalid, n_columns=2)
        return _PlaceIndex(places, check_ranks(ranks, len(places)))


class _PlaceIndex:
    def __init__(self, places: Floats, ranks: Integers) -> None:
        self.n_objects = len(places)
        self.places = places
        self.ranks = ranks
        self.tree = build_tree(places, ranks) if len(places) >= _MIN_TREE_PLACES else None

    def open(self, query: Any) -> Session:
        place = _read_place(query)
        if self.tree is None:
            return ScanSession(self.ranks, partial(_measure, self.places, place), width=_WIDTH)
        return _PlaceSession(self.tree, place)

    def nearest(
        self,
        queries: Floats,
        k: int,
        *,
        peak: float,  # noqa: ARG002 - degrees have limits of their own
    ) -> tuple[Floats, Integers]:
        """Return distances and positions of the k nearest places of each query.

        The results are those of :meth:`open`; shape (n_queries, k), or fewer columns if there are
        fewer places.
        """
        rows: Any = queries
        points = as_rows(rows, _find_invalid, n_columns=2)
        n = k + 2  # the last one bounds the distances of all others; often two are at one place
        if self.tree is None or n > max_from_tree(self.n_objects):
            batches = [self.open(point).next(k) for point in points]
            shape = len(points), min(k, self.n_objects)
            distances = np.array([batch.distances for batch in batches]).reshape(shape)
            return distances, np.array([batch.positions for batch in batches]).reshape(shape)
        distances, positions, chords = nearest_places(self.tree, points, n)
        distances, positions = distances[:, :k].copy(), positions[:, :k].copy()
        for row in np.flatnonzero(distances[:, -1] >= _CHORDS.lower(chords)).tolist():
            batch = self.open(points[row]).next(k)  # the k-th may be tied with others
            distances[row], positions[row] = batch.distances, batch.positions
        return distances, positions


def _read_place(query: Any) -> Floats:
    """Return a query as a place."""
    if isinstance(query, np.ndarray) and query.shape == (2,) and query.dtype == np.float64:
        longitude, latitude = query.tolist()
        if abs(longitude) <= _MAX_LONGITUDE and abs(latitude) <= _MAX_LATITUDE:
            return query.copy()
    return as_row(query, _find_invalid, n_columns=2)


class _PlaceSession(TreeSession):
    """A query session with a tree of places."""

    def __init__(self, tree: PlaceTree, place: Floats) -> None:
        measure = partial(_measure, tree.places, place)
        super().__init__(tree.ranks, measure, self._lower, width=_WIDTH, scale=_CHORDS)
        self._tree = tree
        self._place = place
        self._first_found = np.empty(0, np.int64)

    @cached_property
    def _is_verified(self) -> npt.NDArray[np.bool_]:
        """Objects whose distances were computed; allocated late, since few queries need it."""
        is_verified = np.zeros(self._n_objects, np.bool_)
        is_verified[self._first_found] = True
        return is_verified

    def bounds(self, *, deadline_s: float | None = None) -> Floats:
        """Return bounds from chords, a micrometre lower: cheaper than the haversine formula."""
        bounds = np.empty(self._n_objects)
        bounds[self._tree.order] = super().bounds(deadline_s=deadline_s)
        return bounds

    def _lower(self, part: slice) -> Floats:
        """Return the bounds of places in the order of the tree."""
        point = _project_to_sphere(self._place)
        return self._scale.lower(np.sqrt(square_sums(self._tree.points[part], point)))

    def _count_ball(self, radius: float) -> int:
        return 0 if radius < 0 else count_within(self._tree, self._place, radius)

    def _list_ball(self, radius: float, n: int) -> Integers:
        return list_within(self._tree, self._place, radius, n)

    def _verify_nearest(self, n: int, cutoff: float) -> None:
        longest = self._scale.outer_radius(cutoff) if cutoff < math.inf else math.inf
        found = nearest_places(self._tree, self._place[np.newaxis], n, longest=longest)
        distances, positions = found[0][0], found[1][0]
        if positions[-1] < 0:  # fewer than n
            n_found = int(np.count_nonzero(positions >= 0))
            distances, positions = distances[:n_found], positions[:n_found]
        frontier, is_first = _CHORDS.lower_one(float(found[2][0])), self.n_verified == 0
        if is_first:
            self._first_found = positions
        else:
            new = ~self._is_verified[positions]
            distances, positions = distances[new], positions[new]
            self._is_verified[positions] = True
        self._add_verified(positions, distances, frontier, follow=is_first)


class ChordScale(Scale):
    """Conversion between chords of the unit sphere and metres, with error margins.

    Coordinates of a point on the unit sphere, and the sines of the haversine formula, have errors
    below 2**-48 for angles of up to 360 degrees, and so do the chords computed from them. The
    margin of a chord is 32 times that, about a micrometre for small distances.
    """

    power = 2
    _chord_margin = 2.0**-43
    _relative_margin = 2.0**-48

    def lower(self, search_distances: Floats) -> Floats:
        """Return lower bounds of distances in metres, given chords."""
        half = np.clip(0.5 * (search_distances - self._chord_margin), 0.0, 1.0)
        return np.asarray(2 * EARTH_RADIUS_M * (1 - self._relative_margin) * np.arcsin(half))

    def lower_one(self, chord: float) -> float:
        """Return a lower bound of a distance in metres, given its chord."""
        half = min(max(0.5 * (chord - self._chord_margin), 0.0), 1.0)
        return 2 * EARTH_RADIUS_M * (1 - self._relative_margin) * math.asin(half)

    def _radius(self, distance: float, side: int) -> float:
        half_angle = distance * (1 + side * 4 * self._relative_margin) / (2 * EARTH_RADIUS_M)
        if side > 0 and half_angle >= math.pi / 2:
            return math.inf
        return 2 * math.sin(min(half_angle, math.pi / 2)) + side * 4 * self._chord_margin


_CHORDS = ChordScale()


def _measure(places: Floats, place: Floats, selected: Integers | slice) -> Floats:
    if isinstance(selected, slice):
        return great_circle_m(places[selected], place, np.arange(len(places[selected])))
    return great_circle_m(places, place, selected)


def _project_to_sphere(place: Floats) -> Floats:
    longitude, latitude = np.radians(place).tolist()
    radius = math.cos(latitude)  # of the circle of latitude
    x, y = radius * math.cos(longitude), radius * math.sin(longitude)
    return np.array([x, y, math.sin(latitude)])


def _find_invalid(rows: Floats) -> tuple[npt.NDArray[np.bool_], str]:
    invalid = (np.abs(rows[:, 1]) > _MAX_LATITUDE) | (np.abs(rows[:, 0]) > _MAX_LONGITUDE)
    longitude, latitude = rows[int(invalid.argmax())] if len(rows) else (0.0, 0.0)
    return invalid, (
        "longitude, latitude in degrees, the latitude within [-90, 90] and the longitude within "
        f"[-360, 360]; got the longitude {longitude:g} and the latitude {latitude:g}"
    )
