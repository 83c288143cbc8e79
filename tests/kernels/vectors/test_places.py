import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.kernels.vectors._distances import great_circle_m
from fedneighbors.kernels.vectors._places import (
    LEAF_SIZE,
    build_tree,
    count_within,
    list_within,
    nearest_places,
)
from tests.naive.vectors import places as naive

LONGITUDES = st.sampled_from([0.0, 180.0, -180.0, 179.9999999, 90.0, 360.0, 12.5])
LATITUDES = st.sampled_from([0.0, 90.0, -90.0, 89.9999999, 45.0, -45.0])
PLACES = st.tuples(LONGITUDES | st.floats(-180, 180), LATITUDES | st.floats(-90, 90)).map(list)


@st.composite
def tables(draw):
    """Draw places of several leaves, often equal, their ranks and queries."""
    few = draw(st.lists(PLACES, min_size=1, max_size=8))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n = draw(st.sampled_from([1, 2, LEAF_SIZE, LEAF_SIZE + 1, 3 * LEAF_SIZE, 300]))
    places = np.array(few)[rng.integers(len(few), size=n)]
    moved = rng.random(n) < draw(st.sampled_from([0.0, 0.5, 1.0]))
    places[moved] += rng.normal(scale=draw(st.sampled_from([1e-9, 1.0])), size=(n, 2))[moved]
    places[:, 1] = places[:, 1].clip(-90, 90)
    queries = np.array([places[0], *draw(st.lists(PLACES, max_size=3))])
    return places, rng.permutation(n), queries


@settings(max_examples=300, deadline=None)
@given(tables(), st.integers(1, 300))
def test_the_nearest_places_equal_the_naive_ones(table, n):
    places, ranks, queries = table
    n = min(n, len(places))

    distances, positions, chords = nearest_places(build_tree(places, ranks), queries, n)

    for q, query in enumerate(queries):
        squares = np.array([naive.square_chord(place, query) for place in places])
        # chords are the lowest; of places whose chords differ by a rounding error, any is found
        assert np.sqrt(np.sort(squares)[n - 1]) == pytest.approx(chords[q], rel=1e-12, abs=1e-15)
        found = positions[q].tolist()
        others = np.delete(squares, found)
        assert len(set(found)) == n
        assert (np.sqrt(others) >= chords[q] - 1e-15).all()
        expected = great_circle_m(places, query, positions[q])
        assert distances[q].tolist() == expected.tolist()
        order = np.lexsort((ranks[positions[q]], distances[q]))
        assert order.tolist() == list(range(n))


@settings(max_examples=200, deadline=None)
@given(tables(), st.integers(1, 300), st.floats(1e-6, 2.1))
def test_places_beyond_the_longest_chord_are_omitted(table, n, longest):
    places, ranks, queries = table
    tree, n = build_tree(places, ranks), min(n, len(places))

    distances, positions, chords = nearest_places(tree, queries, n, longest=longest)

    all_distances, _, all_chords = nearest_places(tree, queries, n)
    for q, query in enumerate(queries):
        n_found = int(np.count_nonzero(positions[q] >= 0))
        assert (distances[q, n_found:] == np.inf).all()
        assert (positions[q, n_found:] == -1).all()
        if n_found == n:
            assert all_chords[q] == chords[q]
            continue
        assert chords[q] == longest
        squares = [naive.square_chord(place, query) for place in places]
        n_within = np.count_nonzero(np.sqrt(squares) < longest)
        at_limit = np.isclose(np.sqrt(squares), longest, rtol=1e-9, atol=1e-12)
        assert abs(n_found - n_within) <= np.count_nonzero(at_limit)
        assert (distances[q, :n_found] == all_distances[q, :n_found]).all()


@settings(max_examples=100, deadline=None)
@given(tables())
def test_all_places_are_in_the_naive_order(table):
    places, ranks, queries = table

    distances, positions, _ = nearest_places(build_tree(places, ranks), queries, len(places))

    for q, query in enumerate(queries.tolist()):
        expected = naive.sort_nearest(places.tolist(), ranks.tolist(), query)
        assert list(zip(distances[q].tolist(), positions[q].tolist(), strict=True)) == expected


@settings(max_examples=200, deadline=None)
@given(tables(), st.floats(0, 2.1))
def test_places_within_a_chord_equal_the_naive_ones(table, chord):
    places, ranks, (query, *_) = table
    tree = build_tree(places, ranks)

    n = count_within(tree, query, chord)
    listed = list_within(tree, query, chord, n) if n else np.empty(0, np.int64)

    chords = np.sqrt([naive.square_chord(place, query) for place in places])
    assert np.count_nonzero(chords < chord - 1e-9) <= n <= np.count_nonzero(chords < chord + 1e-9)
    assert len(set(listed.tolist())) == n
    assert (chords[listed] <= chord + 1e-9).all()


def test_a_query_that_is_not_finite_is_refused():
    tree = build_tree(np.zeros((3, 2)), np.arange(3))

    with pytest.raises(ValueError, match="query 1 is not finite"):
        nearest_places(tree, np.array([[0.0, 0.0], [np.nan, 0.0]]), 2)
