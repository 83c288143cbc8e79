"""Places on the Earth (longitude and latitude in degrees) under the great-circle distance."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fedneighbors._typing import Booleans, Floats, Integers
from fedneighbors.kernels.vectors._distances import EARTH_RADIUS_M, great_circle_m, square_sums
from fedneighbors.kernels.vectors._places import (
    PlaceTree,
    build_tree,
    count_within,
    list_within,
    nearest_places,
)
from fedneighbors.methods.fedknn.metrics._interfaces import Found, Session
from fedneighbors.methods.fedknn.metrics._points import (
    Scale,
    ScanSession,
    TreeSession,
    max_from_tree,
)
from fedneighbors.methods.fedknn.metrics._sessions import check_ranks
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
        self._places_in_tree = np.empty(len(places), np.int64)
        if self.tree is not None:
            self._places_in_tree[self.tree.order] = np.arange(len(places))

    def open(self, query: Any) -> Session:
        place = _read_place(query)
        if self.tree is None:
            return ScanSession(self.ranks, partial(_measure, self.places, place), width=_WIDTH)
        return TreeSession(
            self.ranks,
            partial(_measure, self.places, place),
            partial(self._bound, self.tree, place),
            width=_WIDTH,
            tree=_NearPlaces(self.tree, place),
            scale=_CHORDS,
        )

    def _bound(self, tree: PlaceTree, place: Floats, part: slice) -> Floats:
        """Return bounds from chords, a micrometre lower but faster to compute."""
        point, rows = _project_to_sphere(place), self._places_in_tree[part]
        return _CHORDS.lower(np.sqrt(square_sums(tree.points, point, rows)))

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


class _NearPlaces(NamedTuple):
    """Search for the nearest places of one query."""

    tree: PlaceTree
    place: Floats

    def count(self, radius: float) -> int:
        return count_within(self.tree, self.place, radius)

    def list_within(self, radius: float, n: int) -> Integers:
        return list_within(self.tree, self.place, radius, n)

    def nearest(self, n: int, radius: float) -> Found:
        distances, positions, chords = nearest_places(
            self.tree, self.place[np.newaxis], n, longest=radius
        )
        n_found = n
        if positions[0, -1] < 0:  # fewer within the radius
            n_found = int(np.count_nonzero(positions >= 0))
        return Found(positions[0, :n_found], float(chords[0]), distances[0, :n_found])


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

    def lower_one(self, search_distance: float) -> float:
        """Return a lower bound of a distance in metres, given its chord."""
        half = min(max(0.5 * (search_distance - self._chord_margin), 0.0), 1.0)
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
    radius = math.cos(latitude)
    x, y = radius * math.cos(longitude), radius * math.sin(longitude)
    return np.array([x, y, math.sin(latitude)])


def _find_invalid(rows: Floats) -> tuple[Booleans, str]:
    invalid = (np.abs(rows[:, 1]) > _MAX_LATITUDE) | (np.abs(rows[:, 0]) > _MAX_LONGITUDE)
    longitude, latitude = rows[int(invalid.argmax())] if len(rows) else (0.0, 0.0)
    return invalid, (
        "longitude, latitude in degrees, the latitude within [-90, 90] and the longitude within "
        f"[-360, 360]; got the longitude {longitude:g} and the latitude {latitude:g}"
    )
