"""K-means equals the naive version bit for bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.methods.knnper.memory._clusters import MAX_STEPS, cluster, move_centers
from tests.methods.knnper.memory.tables import TIES, tables
from tests.naive import compression as naive


def draw_uniformly(seed):
    random = np.random.default_rng(seed)
    while True:
        yield random.random()


@given(tables(), st.integers(1, 14), st.integers(0, 3), st.data())
@settings(max_examples=60)
def test_centers_equal_the_naive_ones(rows, n_centers, seed, data):
    weights = np.array(data.draw(st.lists(st.sampled_from([1.0, 2.0, 7.0]), min_size=len(rows),
                                          max_size=len(rows))))  # fmt: skip

    centers, owners = cluster(rows, n_centers, weights=weights, random_state=seed)

    expected = naive.cluster_rows(
        rows.tolist(), n_centers, weights.tolist(), draw_uniformly(seed), MAX_STEPS
    )
    assert centers.tolist() == expected[0]
    assert owners.tolist() == expected[1]


@given(tables(cells=(TIES,)))
@settings(max_examples=40)
def test_with_as_many_centers_as_rows_each_row_is_at_its_center(rows):
    centers, owners = cluster(rows, len(rows))

    np.testing.assert_allclose(centers[owners], rows, rtol=1e-15)
    assert len(centers) == len(np.unique(rows, axis=0))


def test_no_center_is_without_rows():
    rows = np.random.default_rng(0).normal(size=(300, 3))

    centers, owners = cluster(rows, 40)

    assert np.unique(owners).tolist() == list(range(len(centers)))


def test_a_center_without_rows_stays_where_it_is():
    centers = np.array([[0.0], [100.0]])

    moved_centers = move_centers(np.array([[1.0], [3.0]]), np.ones(2), centers, np.zeros(2, int))

    assert moved_centers.tolist() == [[2.0], [100.0]]


def test_no_rows_have_no_centers():
    centers, owners = cluster(np.empty((0, 3)), 5)

    assert centers.shape == (0, 3)
    assert owners.shape == (0,)


@pytest.mark.parametrize(("n", "weight"), [(0, 1.0), (2, 0.0), (2, -1.0)])
def test_invalid_arguments_are_refused(n, weight):
    with pytest.raises(ValueError, match=rf"at least one center \(got {n}\) and weights above 0"):
        cluster(np.ones((1, 1)), n, weights=np.array([weight]))
