"""Great-circle distances from one place to others by the haversine formula."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from fedneighbors._typing import Floats

EARTH_RADIUS_M = 6_371_008.8
"""Mean radius of the Earth (IUGG), metres."""

_RADIANS = math.pi / 180.0


@njit(cache=True, nogil=True)
def _great_circle(places: Any, query: Any, positions: Any, out: Any) -> int:
    # The return on NaN is what makes the compiler leave the loop scalar: where a vector library
    # for sines is installed, a place's distance would depend on where in the loop it stands.
    longitude = query[0] * _RADIANS
    latitude = query[1] * _RADIANS
    for i in range(positions.shape[0]):
        p = positions[i]
        other = places[p, 1] * _RADIANS
        up = math.sin((latitude - other) * 0.5)
        along = math.sin((longitude - places[p, 0] * _RADIANS) * 0.5)
        h = up * up + math.cos(latitude) * math.cos(other) * (along * along)
        sine = math.sqrt(h)
        if sine > 1.0:  # by rounding; a minimum would hide NaN
            sine = 1.0
        metres = 2.0 * EARTH_RADIUS_M * math.asin(sine)
        if math.isnan(metres):
            return i
        out[i] = metres
    return -1


def great_circle_m(places: Floats, query: Floats, positions: npt.NDArray[np.int64]) -> Floats:
    """Distance of a query to places, in metres.

    ``2 R asin(sqrt(h))`` with ``h = sin(dlat / 2)**2 + cos(lat1) cos(lat2) sin(dlon / 2)**2``. The
    same two places have the same distance bit for bit in either direction.

    Parameters
    ----------
    places : float64 array of shape (n_places, 2), C order
        Longitude and latitude in degrees.
    query : float64 array of shape (2,)
        Longitude and latitude in degrees.
    positions : int64 array of shape (n,)
        Which places.

    Returns
    -------
    float64 array of shape (n,)
        Metres, from 0 to half the circumference.

    Raises
    ------
    ValueError
        If shapes disagree, a position is out of range or a coordinate is not finite.
    """
    if places.shape[1:] != (2,) or query.shape != (2,):
        raise ValueError(
            f"expected places of shape (n, 2) and a query of shape (2,), got {places.shape} and "
            f"{query.shape}"
        )
    if len(positions) and not (positions.min() >= 0 and positions.max() < len(places)):
        raise ValueError(f"expected positions from 0 to {len(places) - 1}, got one outside")
    out = np.empty(len(positions))
    bad = _great_circle(places, query, positions, out)
    if bad >= 0:
        raise ValueError(f"place {positions[bad]} or the query: expected finite degrees")
    return out
