"""Functions of kNN-Per equal naive versions of the paper's equations."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedneighbors.methods.knnper.algorithm import (
    Neighbors,
    average_changes,
    binary_places,
    kernel_weights,
    local_means,
    local_votes,
    mix,
    most_accurate_weight,
    nearest,
    weighted_change,
)
from tests.naive import knnper as naive

DISTANCES = st.lists(
    st.one_of(st.floats(0, 50), st.sampled_from([0.0, 1.0, 1e6, 1e300])), min_size=1, max_size=8
).map(sorted)


@given(DISTANCES, st.data(), st.sampled_from([0.01, 1.0, 100.0]))
def test_votes_match_equation_6(distances, data, sigma):
    labels = data.draw(
        st.lists(st.integers(0, 3), min_size=len(distances), max_size=len(distances))
    )
    neighbors = Neighbors(np.arange(len(labels))[None], np.array([distances]))

    votes = local_votes(neighbors, np.array(labels), 4, sigma=sigma)

    expected = naive.label_votes(labels, distances, 4, sigma)
    np.testing.assert_allclose(votes[0], expected, rtol=1e-12, atol=1e-300)


def test_a_neighbor_at_distance_0_decides():
    neighbors = Neighbors(np.array([[0, 1]]), np.array([[0.0, 1e308]]))

    assert local_votes(neighbors, np.array([1, 0]), 2).tolist() == [[0.0, 1.0]]


@pytest.mark.parametrize("kernel", ["paper", "gaussian", "uniform"])
def test_neighbors_at_infinite_distance_weigh_equally(kernel):
    weights = kernel_weights(np.array([[np.inf, np.inf]]), kernel=kernel)

    assert weights.tolist() == [[1.0, 1.0]]


def test_the_gaussian_kernel_falls_with_the_square():
    weights = kernel_weights(np.array([[1.0, 3.0]]), kernel="gaussian", sigma=2.0)

    np.testing.assert_allclose(weights, [[1.0, np.exp(-1.0)]], rtol=1e-15)


def test_a_key_of_three_rows_votes_like_three_keys():
    keys, query = np.array([[0.0], [1.0]]), np.array([[0.4]])
    repeated = nearest(np.repeat(keys, [1, 3], axis=0), query, 4)

    weighted = local_votes(
        nearest(keys, query, 2), np.array([0, 1]), 2, counts=np.array([1.0, 3.0])
    )

    assert np.allclose(weighted, local_votes(repeated, np.array([0, 1, 1, 1]), 2), rtol=1e-15)


def test_means_of_equal_neighbors_are_their_value():
    neighbors = Neighbors(np.array([[0, 1]]), np.array([[0.0, 2.0]]))

    means = local_means(neighbors, np.array([[3.0, -1.0], [3.0, -1.0]]))

    np.testing.assert_allclose(means, [[3.0, -1.0]], rtol=1e-15)


def test_a_memory_without_keys_has_no_vote():
    with pytest.raises(ValueError, match="an empty memory has no votes"):
        local_votes(nearest(np.empty((0, 2)), np.zeros((1, 2)), 3), np.empty(0, int), 2)


@given(st.floats(0, 1), st.lists(st.floats(0, 1), min_size=2, max_size=2))
def test_mixtures_match_equation_7(weight, local):
    shared = [0.25, 0.75]

    mixture = mix(np.array([local]), np.array([shared]), weight)

    assert mixture[0].tolist() == naive.mix_predictions(local, shared, weight)


@pytest.mark.parametrize("weight", [-0.1, 1.1, float("nan")])
def test_a_weight_outside_0_and_1_is_refused(weight):
    with pytest.raises(ValueError, match="a weight from 0 to 1"):
        mix(np.zeros((1, 2)), np.zeros((1, 2)), weight)


def test_the_most_accurate_weight_is_chosen():
    shared = np.array([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]])
    local = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])

    # all three rows are right for weights from .4 to 1; the middle one is chosen
    assert most_accurate_weight(local, shared, np.array([0, 1, 1])) == 0.7


def test_without_rows_the_weight_is_the_middle_one():
    empty = np.empty((0, 2))

    assert most_accurate_weight(empty, empty, np.empty(0, int)) == 0.5


@given(
    st.floats(-10, 10),
    st.dictionaries(st.sampled_from("abcd"), st.floats(-10, 10)),
    st.lists(st.integers(1, 9), min_size=4, max_size=4),
)
def test_the_average_matches_equation_13(before, updates, rows):
    n, bits = sum(rows), binary_places(sum(rows))
    rows_by_name = dict(zip("abcd", rows, strict=True))

    total = np.zeros(1, np.int64)
    for name, after in updates.items():
        change = {"n_rows": rows_by_name[name], "bits": bits}
        total += weighted_change(np.array([before]), np.array([after]), **change)
    average = average_changes(np.array([before]), total, n_rows=n, bits=bits)

    shares = {name: rows / n for name, rows in rows_by_name.items()}
    assert average[0] == pytest.approx(
        naive.average_weight(before, updates, shares), rel=0, abs=1e-13
    )


def test_clients_without_changes_keep_the_shared_weights():
    before = np.random.default_rng(0).normal(size=100).astype(np.float32)

    change = weighted_change(before, before.copy(), n_rows=30, bits=binary_places(100))

    assert average_changes(before, change, n_rows=100, bits=20).tobytes() == before.tobytes()


def test_the_largest_changes_add_up_without_overflow():
    n = 2**40

    change = weighted_change(np.zeros(1), np.full(1, 64.0), n_rows=n, bits=binary_places(n))

    assert average_changes(np.zeros(1), change, n_rows=n, bits=binary_places(n)).tolist() == [64.0]


@pytest.mark.parametrize("after", [np.nan, np.inf, 64.1])
def test_training_that_diverged_is_not_averaged(after):
    with pytest.raises(FloatingPointError, match="lower the learning rate"):
        weighted_change(np.zeros(2), np.array([0.0, after]), n_rows=3, bits=20)


EXTREME = st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.1, 1e-160, 3e7, 1e150, -1e200])
TIES = st.integers(-2, 2).map(float)


@st.composite
def keys_and_queries(draw):
    cells = draw(st.sampled_from([EXTREME, TIES, st.floats(-1e3, 1e3)]))
    width = draw(st.integers(1, 20))
    row = st.lists(cells, min_size=width, max_size=width)
    keys = draw(st.lists(row, min_size=1, max_size=12))
    queries = draw(st.lists(st.one_of(row, st.sampled_from(keys)), min_size=1, max_size=4))
    return np.array(keys), np.array(queries), draw(st.integers(1, 14))


@given(keys_and_queries())
def test_neighbors_equal_the_naive_ones(case):
    keys, queries, k = case

    neighbors = nearest(keys, queries, k)

    positions, distances = naive.nearest(keys, queries, k)
    assert neighbors.positions.tolist() == positions
    assert neighbors.distances.tolist() == distances


@given(keys_and_queries())
def test_a_query_can_exclude_its_own_key(case):
    keys, _, k = case
    skipped = np.arange(len(keys))[::-1].copy()

    neighbors = nearest(keys, keys[::-1].copy(), k, skip=skipped)

    positions, distances = naive.nearest(keys, keys[::-1], k, skipped)
    assert neighbors.positions.tolist() == positions
    assert neighbors.distances.tolist() == distances


def test_equally_near_keys_are_ordered_by_row():
    keys = np.zeros((50, 3))

    neighbors = nearest(keys, np.zeros((2, 3)), 4)

    assert neighbors.positions.tolist() == [[0, 1, 2, 3]] * 2


def test_distant_similar_keys_are_distinguished():
    """Squares of lengths of 1e16 hide differences of 1; products alone would confuse them."""
    keys = 1e8 + np.arange(64.0)[::-1, None] * np.ones(8)

    neighbors = nearest(keys, np.full((1, 8), 1e8), 64)

    assert neighbors.positions.tolist() == [list(range(64))[::-1]]


def test_no_keys_give_no_neighbors():
    assert nearest(np.empty((0, 3)), np.zeros((2, 3)), 5).positions.shape == (2, 0)
    assert nearest(
        np.zeros((1, 3)), np.zeros((1, 3)), 5, skip=np.zeros(1, int)
    ).positions.shape == (
        1,
        0,
    )


@pytest.mark.parametrize("k", [0, -1])
def test_fewer_than_one_neighbor_is_refused(k):
    with pytest.raises(ValueError, match=f"k of 1 or more, got {k}"):
        nearest(np.zeros((2, 2)), np.zeros((1, 2)), k)


def test_keys_and_queries_must_be_of_one_width():
    with pytest.raises(ValueError, match=r"\(2, 2\) and \(1, 3\)"):
        nearest(np.zeros((2, 2)), np.zeros((1, 3)), 1)
