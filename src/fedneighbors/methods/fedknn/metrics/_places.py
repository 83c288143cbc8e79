"""Places on the Earth (longitude and latitude in degrees) under the great-circle distance."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.spatial import cKDTree

from fedneighbors._typing import Floats, Integers
from fedneighbors.kernels.vectors._distances import EARTH_RADIUS_M, great_circle_m, square_sums
from fedneighbors.methods.fedknn.metrics._points import Scale, ScanSession, TreeSession
from fedneighbors.methods.fedknn.metrics._sessions import Session, check_ranks
from fedneighbors.methods.fedknn.metrics._vectors import as_row, as_rows

_MIN_TREE_PLACES = 1024  # fewer are scanned
_WIDTH = 64  # a distance takes as long as reading so many cells of a table
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
        self._places = places
        self._ranks = ranks
        self._points = _project_to_sphere(places)
        self._tree = cKDTree(self._points) if len(places) >= _MIN_TREE_PLACES else None

    def open(self, query: Any) -> Session:
        place = as_row(query, _find_invalid, n_columns=2)
        measure = partial(_measure, self._places, place)
        if self._tree is None:
            return ScanSession(self._ranks, measure, width=_WIDTH)
        point = _project_to_sphere(place[np.newaxis])[0]
        scale = ChordScale()
        return TreeSession(
            self._ranks,
            measure,
            # a quarter of the time of the haversine formula, and about a micrometre lower
            lambda part: scale.lower(np.sqrt(square_sums(self._points[part], point))),
            width=_WIDTH,
            tree=self._tree,
            point=point,
            scale=scale,
        )


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

    def _radius(self, distance: float, side: int) -> float:
        half_angle = distance * (1 + side * 4 * self._relative_margin) / (2 * EARTH_RADIUS_M)
        if side > 0 and half_angle >= math.pi / 2:
            return math.inf
        return 2 * math.sin(min(half_angle, math.pi / 2)) + side * 4 * self._chord_margin


def _measure(places: Floats, place: Floats, selected: Integers | slice) -> Floats:
    if isinstance(selected, slice):
        return great_circle_m(places[selected], place, np.arange(len(places[selected])))
    return great_circle_m(places, place, selected)


def _project_to_sphere(places: Floats) -> Floats:
    longitudes, latitudes = np.radians(places).T
    radii = np.cos(latitudes)  # radii of the circles of latitude
    return np.column_stack(
        [radii * np.cos(longitudes), radii * np.sin(longitudes), np.sin(latitudes)]
    )


def _find_invalid(rows: Floats) -> tuple[npt.NDArray[np.bool_], str]:
    invalid = (np.abs(rows[:, 1]) > 90) | (np.abs(rows[:, 0]) > _MAX_LONGITUDE)
    longitude, latitude = rows[int(invalid.argmax())] if len(rows) else (0.0, 0.0)
    return invalid, (
        "longitude, latitude in degrees, the latitude within [-90, 90] and the longitude within "
        f"[-360, 360]; got the longitude {longitude:g} and the latitude {latitude:g}"
    )
