from fractions import Fraction
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.methods.fedknn.metrics import _sets as sets
from fedneighbors.methods.fedknn.metrics._sets import JaccardMetric
from tests.methods.fedknn.metrics.brute_force import Search, Step, searches
from tests.seeds import cases

WORDS = st.sampled_from(["a", "bb", "ccc", "d", "e", "f", "g", "the", "of"])
RANGE = np.arange(12)
SETS = st.sets(WORDS | st.integers(-2, 5), max_size=8)


@settings(max_examples=cases(500), deadline=None)
@given(searches(objects=SETS, queries=st.sets(WORDS | st.integers(-2, 9), max_size=8)))
def test_search_equals_brute_force(search):
    search.assert_equals_brute_force(JaccardMetric())


@settings(max_examples=cases(300), deadline=None)
@given(searches(objects=SETS, queries=SETS), st.integers(0, 63))
def test_search_equals_brute_force_if_distances_and_ranks_need_more_bits(search, n_bits):
    with mock.patch.object(sets, "_KEY_BITS", n_bits), mock.patch.object(sets, "_MIN_SORTED", 2):
        search.assert_equals_brute_force(JaccardMetric())


@settings(max_examples=cases(500), deadline=None)
@given(SETS, SETS)
def test_a_distance_is_the_nearest_number_to_its_fraction(first, second):
    distance = JaccardMetric().distance(first, second)

    union = len(first | second)
    exact = 1 - Fraction(len(first & second), union) if union else Fraction(0)

    assert distance == exact.numerator / exact.denominator
    assert distance == JaccardMetric().distance(second, first)


@settings(max_examples=cases(1_000), deadline=None)
@given(st.integers(1, 2**26), st.integers(1, 2**26), st.data())
def test_distances_are_ordered_like_exact_fractions(first, second, data):
    numerator = data.draw(st.integers(0, first))
    # the nearest fraction with the other denominator, or one next to it
    nearest = round(Fraction(numerator, first) * second)
    other = min(second, max(0, nearest + data.draw(st.integers(-1, 1))))

    floats = numerator / first, other / second
    fractions = Fraction(numerator, first), Fraction(other, second)

    assert (floats[0] < floats[1]) == (fractions[0] < fractions[1])
    assert (floats[0] == floats[1]) == (fractions[0] == fractions[1])


def zipfian_sets(n, seed):
    rng = np.random.default_rng(seed)
    return [set((rng.zipf(1.3, rng.integers(0, 15)) % 3000).tolist()) for _ in range(n)]


HOSTILE = {
    "equal": [frozenset(range(5))] * 700,
    "one element": [{i % 7} for i in range(700)],
    "empty": [{0} if i % 100 == 1 else set() for i in range(700)],
    "dense": [set(np.flatnonzero(row).tolist()) for row in np.arange(700)[:, None] >> RANGE & 1],
    "frequent": [{0, 1, 2, 3 + i} for i in range(700)],
    "huge": [set(range(900)), *({i, 7 * i} for i in range(700))],
}


@pytest.mark.parametrize("query", [set(), {0}, {1, 2}, {-1}, set(range(1_000)), [5, 35]])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_table_equals_brute_force(name, query):
    objects = HOSTILE[name]
    steps = [Step("next", k, "none", 0) for k in (1, 10, 300, 100)]
    ranks = np.random.default_rng(2).permutation(len(objects)).tolist()

    Search(objects, set(query), ranks, steps).assert_equals_brute_force(JaccardMetric())


@pytest.mark.parametrize("case", [0, 1, 2, "empty", "foreign"])
def test_a_large_table_equals_brute_force(case):
    objects = [*zipfian_sets(4000, seed=0), set(), set(), {1, 2}, {1, 2}]
    queries = {"empty": set(), "foreign": {"x", "y", 1}, **dict(enumerate(objects[:3]))}
    steps = [
        Step("bounds", 0, "none", 0),
        Step("next", 20, "none", 0),
        Step("count", 0, "at", 50),
        Step("next", 100, "at", 60),
        Step("deadline", 300, "none", 0),
        Step("next", 500, "none", 0),
    ]
    ranks = np.random.default_rng(1).permutation(len(objects)).tolist()

    Search(objects, queries[case], ranks, steps).assert_equals_brute_force(JaccardMetric())


def test_objects_with_only_frequent_elements_are_skipped():
    objects = [{"the", "of", i, i + 1} for i in range(5_000)]
    session = JaccardMetric().index(objects, ranks=np.arange(5_000)).open(objects[7])

    batch = session.next(3)

    assert batch.positions.tolist() == [7, 6, 8]
    assert session.n_verified == 3


def test_two_empty_sets_have_distance_0():
    metric = JaccardMetric()

    assert metric.distance(set(), []) == 0.0
    assert metric.distance(set(), {1}) == 1.0


def test_repeated_elements_count_once():
    assert JaccardMetric().distance(["a", "a", "b"], ("b", "a")) == 0.0


@pytest.mark.parametrize("invalid", ["text", b"bytes", 7, None, {"a": 1}, [["unhashable"]]])
def test_an_error_of_an_invalid_set_gives_its_position(invalid):
    with pytest.raises(TypeError, match="object 1: expected"):
        JaccardMetric().index([{1}, invalid], ranks=np.arange(2))
    with pytest.raises(TypeError, match="the query: expected"):
        JaccardMetric().index([{1}], ranks=np.arange(1)).open(invalid)


def test_an_element_that_does_not_equal_itself_is_refused():
    with pytest.raises(ValueError, match=r"object 0: .*NaN"):
        JaccardMetric().index([{float("nan")}], ranks=np.arange(1))
    with pytest.raises(ValueError, match=r"the query: .*NaN"):
        JaccardMetric().index([{1}], ranks=np.arange(1)).open({1, float("nan")})
