"""Slow twin of ``fedneighbors.kernels.vectors._greatcircle``."""

import math


def great_circle_m(places, query):
    radians = math.pi / 180.0
    longitude, latitude = (float(degrees) * radians for degrees in query)
    found = []
    for lon, lat in places:
        other = float(lat) * radians
        up = math.sin((latitude - other) * 0.5)
        along = math.sin((longitude - float(lon) * radians) * 0.5)
        h = up * up + math.cos(latitude) * math.cos(other) * (along * along)
        found.append(2.0 * 6_371_008.8 * math.asin(min(1.0, math.sqrt(h))))
    return found
