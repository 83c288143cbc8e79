"""Naive version of ``fedneighbors.kernels.vectors._distances``."""

import math


def _sum_in_lanes(terms):
    lanes = [0.0] * 8
    n_in_lanes = len(terms) - len(terms) % 8
    for j, term in enumerate(terms):
        lanes[j % 8 if j < n_in_lanes else 0] += term
    even = (lanes[0] + lanes[4]) + (lanes[2] + lanes[6])
    odd = (lanes[1] + lanes[5]) + (lanes[3] + lanes[7])
    return even + odd


def _differences(row, query):
    return [float(a) - float(b) for a, b in zip(row, query, strict=True)]


def square_sums(x, query):
    return [_sum_in_lanes([d * d for d in _differences(row, query)]) for row in x]


def absolute_sums(x, query):
    return [_sum_in_lanes([abs(d) for d in _differences(row, query)]) for row in x]


def negative_products(x, query):
    pairs = [list(zip(row, query, strict=True)) for row in x]
    return [_sum_in_lanes([-(float(a) * float(b)) for a, b in row]) for row in pairs]


def great_circle_m(places, query):
    radians = math.pi / 180.0
    longitude, latitude = (float(degrees) * radians for degrees in query)
    distances = []
    for lon, lat in places:
        place_latitude = float(lat) * radians
        sine_latitude = math.sin((latitude - place_latitude) * 0.5)
        sine_longitude = math.sin((longitude - float(lon) * radians) * 0.5)
        h = sine_latitude * sine_latitude + math.cos(latitude) * math.cos(place_latitude) * (
            sine_longitude * sine_longitude
        )
        distances.append(2.0 * 6_371_008.8 * math.asin(min(1.0, math.sqrt(h))))
    return distances
