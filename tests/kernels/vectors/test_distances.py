import functools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numba import njit
from numba.core.errors import TypingError

from fedneighbors.kernels.vectors import _distances as distances
from fedneighbors.kernels.vectors._distances import EARTH_RADIUS_M, great_circle_m
from tests.naive.vectors import distances as naive
from tests.seeds import cases

HOSTILE = st.floats(-1e150, 1e150, allow_nan=False) | st.sampled_from(
    [0.0, -0.0, 5e-324, 1e-170, 1e16, 1e16 + 2, 0.1, 0.3, -1.0, 2.0**500]
)
NAMES = ["square_sums", "absolute_sums", "negative_products"]


@st.composite
def tables(draw, dtype=np.float64, elements=HOSTILE):
    n_columns = draw(st.integers(1, 35))
    shape = draw(st.integers(0, 6)), n_columns
    return (
        draw(arrays(dtype, shape, elements=elements)),
        draw(arrays(np.float64, n_columns, elements=HOSTILE)),
    )


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=cases(500), deadline=None)
@given(tables())
def test_sums_match_naive_version_bit_for_bit(name, table):
    x, query = table

    sums = getattr(distances, name)(x, query)

    assert sums.tolist() == getattr(naive, name)(x, query)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=cases(200), deadline=None)
@given(tables(np.float32, st.floats(-(2.0**100), 2.0**100, width=32)))
def test_float32_rows_are_summed_in_float64(name, table):
    x, query = table

    sums = getattr(distances, name)(x, query)

    assert sums.tolist() == getattr(naive, name)(x, query)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=cases(200), deadline=None)
@given(tables(), st.lists(st.integers(0, 5), max_size=9))
def test_sum_of_a_row_does_not_depend_on_positions(name, table, indices):
    x, query = table
    positions = np.array([p for p in indices if p < len(x)], np.int64)

    sums = getattr(distances, name)(x, query, positions)

    assert sums.tolist() == getattr(distances, name)(x, query)[positions].tolist()


TILES = {
    "square_sums": distances._sum_squares_of_tile,
    "absolute_sums": distances._sum_absolutes_of_tile,
    "negative_products": distances._sum_products_of_tile,
}


@functools.cache
def compile_tile(name):
    """Return a function that sums one tile of rows."""
    tile = TILES[name]

    @njit
    def run(columns, first, queries, q, sums, start):
        tile(columns, first, queries, q, sums, start)

    return run


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 35), st.integers(0, 3))
def test_sums_of_a_tile_equal_those_of_its_rows(name, seed, n_columns, first):
    rng = np.random.default_rng(seed)
    x = rng.choice([0.1, -0.0, 1e16, 5e-324, -1e-160, 3.0, 2.0**500], (7, n_columns))
    queries, sums = rng.permutation(x)[:2], np.zeros(6)

    compile_tile(name)(np.ascontiguousarray(x.T), first, queries, 1, sums, 2)

    expected = getattr(naive, name)(x[first : first + distances.TILE], queries[1])
    assert sums.tolist() == [0.0, 0.0, *expected]


def test_sums_of_arrays_that_are_not_in_c_order_are_not_compiled():
    with pytest.raises(TypingError, match="C order"):
        distances._square_sums(np.zeros((2, 3)).T, np.zeros(2), None, np.zeros(3))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("position", [-1, 3])
def test_positions_out_of_range_are_rejected(name, position):
    with pytest.raises(ValueError, match="from 0 to 2"):
        getattr(distances, name)(np.zeros((3, 2)), np.zeros(2), np.array([0, position]))


@pytest.mark.parametrize("name", NAMES)
def test_query_of_wrong_length_is_rejected(name):
    with pytest.raises(ValueError, match=r"shape \(2,\), got \(3,\)"):
        getattr(distances, name)(np.zeros((3, 2)), np.zeros(3))


LONGITUDES = st.floats(-360, 360) | st.sampled_from([0.0, -0.0, 180.0, -180.0, 5e-324, 360.0])
LATITUDES = st.floats(-90, 90) | st.sampled_from([0.0, 90.0, -90.0, 1e-9])
PLACES = st.tuples(LONGITUDES, LATITUDES)


def distance_m(first, second):
    return great_circle_m(np.array([second]), np.array(first), np.array([0]))[0]


@settings(max_examples=cases(1_000), deadline=None)
@given(st.lists(PLACES, min_size=1, max_size=20), PLACES)
def test_great_circle_matches_naive_version_bit_for_bit(places, query):
    distances_m = great_circle_m(np.array(places), np.array(query), np.arange(len(places)))

    assert distances_m.tolist() == naive.great_circle_m(places, query)


@settings(max_examples=cases(1_000), deadline=None)
@given(PLACES, PLACES)
def test_great_circle_distance_is_symmetric_and_bounded(first, second):
    assert distance_m(first, second) == distance_m(second, first)
    assert distance_m(first, first) == 0.0
    assert 0.0 <= distance_m(first, second) <= math.pi * EARTH_RADIUS_M


@settings(max_examples=200, deadline=None)
@given(st.lists(PLACES, min_size=3, max_size=3), PLACES, st.permutations(range(3)))
def test_distance_of_a_place_does_not_depend_on_its_position(places, query, order):
    many = np.tile(places, (40, 1))
    positions = np.tile(order, 40)

    distances_m = great_circle_m(many, np.array(query), positions)

    assert (
        distances_m.reshape(40, 3).tolist() == [[distance_m(query, places[p]) for p in order]] * 40
    )


def test_one_degree_on_the_equator_has_the_known_length():
    assert distance_m((0.0, 0.0), (1.0, 0.0)) == pytest.approx(
        math.pi / 180 * EARTH_RADIUS_M, rel=1e-14
    )


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_coordinates_that_are_not_finite_are_rejected(value):
    with pytest.raises(ValueError, match="place 1 or the query"):
        great_circle_m(np.array([[0, 0], [value, 0]]), np.zeros(2), np.arange(2))


@pytest.mark.parametrize(
    ("places", "query", "positions"),
    [((3, 3), 2, [0]), ((3, 2), 3, [0]), ((3, 2), 2, [3]), ((3, 2), 2, [-1])],
)
def test_great_circle_rejects_invalid_shapes_and_positions(places, query, positions):
    with pytest.raises(ValueError, match="expected"):
        great_circle_m(np.zeros(places), np.zeros(query), np.array(positions))
