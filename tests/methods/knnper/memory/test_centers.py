"""Centers of classes with counts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.errors import DataError, RebuildNeeded
from fedneighbors.methods.knnper.algorithm import kernel_weights
from fedneighbors.methods.knnper.memory._compressed import ClassCenters, allocate_centers
from tests.methods.knnper.memory.tables import tables
from tests.naive import compression as naive
from tests.naive import knnper


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.floats(0.01, 1))
def test_center_allocation_equals_the_naive_one(n_rows, centers_per_row):
    assert allocate_centers(np.array(n_rows), centers_per_row) == naive.allocate_centers(
        n_rows, centers_per_row
    )


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.floats(0.01, 1))
def test_no_class_gets_more_centers_than_rows(n_rows, centers_per_row):
    allocation = allocate_centers(np.array(n_rows), centers_per_row)

    assert all(1 <= n_centers <= n for n_centers, n in zip(allocation, n_rows, strict=True))


@given(tables(width=3), st.integers(1, 3), st.sampled_from([0.1, 0.5, 1.0]))
@settings(max_examples=50)
def test_every_row_is_counted_once_in_its_class(rows, n_classes, centers_per_row):
    labels = np.arange(len(rows)) % n_classes
    store = ClassCenters(3, 3, centers_per_row=centers_per_row).add(rows, labels)

    assert len(store) == len(rows)
    assert np.bincount(store.labels, minlength=3).tolist() == (
        np.bincount(labels, minlength=3).tolist()
    )
    assert len(store.counts) <= max(
        np.floor(centers_per_row * len(rows) + 0.5), len(np.unique(labels))
    )


@given(tables(width=3, cells=(st.integers(-9, 9).map(float),)))
def test_votes_are_those_of_the_centers_by_distance_and_count(rows):
    labels = np.arange(len(rows)) % 3
    store = ClassCenters(3, 3, centers_per_row=0.5).add(rows, labels)
    classes = np.repeat(store.labels, 1)[np.cumsum(store.counts) - 1]

    votes = store.votes(rows[:2], 3, n_neighbors=4)

    places, distances = knnper.nearest(store.centers.tolist(), rows[:2].tolist(), 4)
    weights = kernel_weights(np.array(distances)) * store.counts[np.array(places)]
    for row in range(len(votes)):
        expected = np.bincount(classes[places[row]], weights[row], minlength=3)
        np.testing.assert_allclose(votes[row], expected / expected.sum(), rtol=1e-12)


def test_a_single_row_is_a_center_with_count_one():
    store = ClassCenters(2, 5).add([[1.0, 256.0]], [4])

    assert (store.centers.tolist(), store.counts.tolist()) == ([[1.0, 256.0]], [1])
    assert store.votes(np.zeros((1, 2)), 5, n_neighbors=10).tolist() == [[0, 0, 0, 0, 1]]


def test_new_rows_and_old_centers_are_clustered_together():
    random = np.random.default_rng(0)
    store = ClassCenters(4, 2, centers_per_row=0.25)

    for _ in range(5):
        store.add(random.normal(size=(16, 4)), np.arange(16) % 2)

    assert len(store) == 80
    assert len(store.counts) <= 20
    assert np.bincount(store.labels).tolist() == [40, 40]


def test_default_centers_take_less_than_a_32nd_of_the_bytes():
    rows = np.random.default_rng(0).normal(size=(900, 128))

    store = ClassCenters(128, 10).add(rows, np.arange(900) % 10)

    assert len(store.counts) == 100
    assert store.nbytes == 100 * (128 + 8 + 1 + 1)
    assert 900 * (4 * 128 + 1) / store.nbytes > 32


def test_forgetting_a_row_of_a_center_is_refused():
    store = ClassCenters(1, 2).add([[0.0], [1.0]], [0, 1])

    with pytest.raises(RebuildNeeded, match="build the memory again"):
        store.forget(["0"])


@pytest.mark.parametrize(
    ("keys", "labels", "error", "words"),
    [
        ([[np.nan]], [0], DataError, "not finite"),
        ([[1e39]], [0], DataError, "overflows float32"),
        ([[1.0, 2.0]], [0], ValueError, "keys of width 1"),
        ([[1.0]], [2], ValueError, "classes from 0 to 1"),
        ([[1.0]], [0.5], ValueError, "classes from 0 to 1"),
    ],
)
def test_invalid_rows_do_not_change_the_memory(keys, labels, error, words):
    store = ClassCenters(1, 2).add([[0.0]], [0])

    with pytest.raises(error, match=words):
        store.add(keys, labels)

    assert len(store) == 1


def test_an_empty_memory_has_no_votes():
    store = ClassCenters(2, 3).add(np.empty((0, 2)), np.empty(0, int))

    assert store.votes(np.zeros((1, 2)), 3, n_neighbors=5) is None
    assert (len(store), store.nbytes) == (0, 0)


def test_zero_centers_per_row_are_refused():
    with pytest.raises(ValueError, match=r"centers_per_row in \(0, 1\], got 0"):
        ClassCenters(1, 2, centers_per_row=0)
