from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.kernels.vectors._distances import EARTH_RADIUS_M
from fedneighbors.methods.fedknn.metrics import _places as places
from fedneighbors.methods.fedknn.metrics import _points as points
from fedneighbors.methods.fedknn.metrics._places import HaversineMetric
from tests.methods.fedknn.metrics.brute_force import Search, Step, searches
from tests.seeds import cases

# Poles, both sides of the date line, and pairs from a nanometre to half the globe apart.
LONGITUDES = st.sampled_from([0.0, 180.0, -180.0, 179.9999999, 1e-14, 90.0, 360.0, 12.5, -1e-300])
LATITUDES = st.sampled_from([0.0, 90.0, -90.0, 89.9999999, 1e-14, 45.0, -45.0, 1e-300])
PLACES = st.tuples(LONGITUDES | st.floats(-180, 180), LATITUDES | st.floats(-90, 90)).map(list)


@settings(max_examples=cases(200), deadline=None)
@given(searches(objects=PLACES))
def test_a_scan_equals_brute_force(search):
    search.assert_equals_brute_force(HaversineMetric())


@settings(max_examples=cases(500), deadline=None)
@given(searches(objects=PLACES, max_size=30))
def test_a_tree_search_equals_brute_force(search):
    with (
        mock.patch.object(places, "_MIN_TREE_PLACES", 1),
        mock.patch.object(points, "_MAX_TREE_FRACTION", 1.0),
        mock.patch.object(points, "_N_EXTRA", 1),
    ):
        search.assert_equals_brute_force(HaversineMetric())


@settings(max_examples=cases(200), deadline=None)
@given(
    st.lists(PLACES, min_size=1, max_size=8),
    st.lists(PLACES, min_size=1, max_size=4),
    st.integers(1, 60),
    st.randoms(use_true_random=False),
)
def test_a_batch_equals_queries_one_at_a_time(few, queries, k, random):
    objects = np.array([random.choice(few) for _ in range(50)])
    ranks = np.array(random.sample(range(100), 50))
    queries = np.array([*queries, objects[0]])

    with (
        mock.patch.object(places, "_MIN_TREE_PLACES", random.choice([1, 1000])),
        mock.patch.object(points, "_MAX_TREE_FRACTION", 1.0),
    ):
        index = HaversineMetric().index(objects, ranks=ranks)
        distances, positions = index.nearest(queries, k, peak=360.0)
        expected = [index.open(query).next(k) for query in queries]

    assert distances.tolist() == [batch.distances.tolist() for batch in expected]
    assert positions.tolist() == [batch.positions.tolist() for batch in expected]


@pytest.mark.parametrize(
    ("query", "latitude"), [((0.0, 90.0), 60.0), ((7.0, 90.0), -89.9999), ((0.0, -90.0), -89.99999)]
)
def test_places_of_almost_equal_distance_are_in_exact_order(query, latitude):
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.uniform(-180, 180, 3000), np.full(3000, latitude)])
    steps = [
        Step(call, k, "at", index)
        for k, index in [(1, 3), (5, 40), (20, 50), (60, 200), (100, 700)]
        for call in ("next", "count")
    ]

    Search(list(x), query, rng.permutation(3000).tolist(), steps).assert_equals_brute_force(
        HaversineMetric()
    )


@pytest.mark.parametrize("query", [(13.4, 52.5), (180.0, 0.0), (0.0, 90.0), (-166.6, -52.5)])
def test_a_large_table_equals_brute_force(query):
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.uniform(-180, 180, 6000), rng.uniform(-90, 90, 6000)])
    x[::3] = np.round(x[::3])
    x[::50] = (13.4, 52.5)
    x[1::50] = (-166.6, -52.5)  # opposite
    steps = [
        Step("next", 100, "none", 0),
        Step("count", 0, "at", 80),
        Step("count", 0, "at", 5990),
        Step("next", 250, "at", 300),
        Step("bounds", 0, "none", 0),
        Step("next", 500, "none", 0),
    ]
    search = Search(list(x), query, rng.permutation(6000).tolist(), steps)

    search.assert_equals_brute_force(HaversineMetric())


@settings(max_examples=1_000, deadline=None)
@given(
    st.floats(0, np.pi * EARTH_RADIUS_M * 1.01)
    | st.sampled_from([0.0, 5e-324, 1e-12, np.pi * EARTH_RADIUS_M, 1e9, np.inf])
)
def test_chord_radii_have_margins_on_both_sides(distance):
    scale = places.ChordScale()

    outer, inner = scale.outer_radius(distance), scale.inner_radius(distance)

    assert inner < outer
    if outer <= 2:
        assert scale.lower(np.array(outer)) > distance
    if inner >= 0:
        assert scale.lower(np.array(inner)) <= distance


def test_a_small_k_verifies_few_places():
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.uniform(-180, 180, 20_000), rng.uniform(-60, 60, 20_000)])
    session = HaversineMetric().index(x, ranks=np.arange(20_000)).open((0.0, 0.0))

    session.next(20)

    assert 20 <= session.n_verified <= 40


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ((0.0, 90.0001), "latitude"),
        ((0.0, -91.0), "latitude"),
        ((361.0, 0.0), "longitude"),
        ((np.nan, 0.0), "finite"),
        ((0.0, np.inf), "finite"),
        ((1.0, 2.0, 3.0), "2 numbers, got 3"),
        (("east", "north"), "real numbers"),
    ],
)
def test_an_error_of_an_invalid_place_gives_its_position(place, reason):
    with pytest.raises(ValueError, match=f"object 1: .*{reason}"):
        HaversineMetric().index([(0.0, 0.0), place], ranks=np.arange(2))
    with pytest.raises(ValueError, match=f"the query: .*{reason}"):
        HaversineMetric().index([(0.0, 0.0)], ranks=np.arange(1)).open(place)
