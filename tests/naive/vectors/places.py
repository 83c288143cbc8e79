"""Naive version of ``kernels.vectors._places``: every chord and distance in plain Python."""

from math import asin, cos, pi, sin, sqrt

EARTH_RADIUS_M = 6_371_008.8


def metres(place, query):
    (longitude, latitude), (longitude2, latitude2) = (
        [degrees * (pi / 180.0) for degrees in item] for item in (query, place)
    )
    sine_lat, sine_lon = sin((latitude - latitude2) * 0.5), sin((longitude - longitude2) * 0.5)
    h = sine_lat * sine_lat + cos(latitude) * cos(latitude2) * (sine_lon * sine_lon)
    return 2.0 * EARTH_RADIUS_M * asin(min(sqrt(h), 1.0))


def point(place):
    longitude, latitude = (degrees * (pi / 180.0) for degrees in place)
    return cos(latitude) * cos(longitude), cos(latitude) * sin(longitude), sin(latitude)


def square_chord(place, query):
    (x, y, z), (x2, y2, z2) = point(place), point(query)
    dx, dy, dz = x2 - x, y2 - y, z2 - z
    return dx * dx + dy * dy + dz * dz


def sort_nearest(places, ranks, query):
    """Return (metres, position) of all places by distance and rank."""
    keys = [(metres(place, query), ranks[i], i) for i, place in enumerate(places)]
    return [(distance, i) for distance, _, i in sorted(keys)]
