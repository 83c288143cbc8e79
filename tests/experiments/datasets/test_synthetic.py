"""Generated data have the requested shape, classes and reproducibility."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.neighbors import KNeighborsClassifier, NearestCentroid

from experiments.datasets.synthetic import synthetic_binary, synthetic_private, synthetic_real


def test_real_data_has_the_requested_shape():
    data = synthetic_real(600, 8, seed=3, n_classes=4, n_clusters=2)

    assert data.x.shape == (600, 8)
    assert data.x.dtype == np.float64
    assert data.classes.tolist() == [0, 1, 2, 3]
    assert data.feature_names[:2] == ("x0", "x1")


def test_classes_are_balanced_up_to_label_noise():
    data = synthetic_real(5000, 20, seed=0)

    # a row gets a random label with probability .01, which bounds the change of a class; the
    # probability that Binomial(5000, .01) exceeds 90 is below 1e-6
    assert abs(np.bincount(data.y) - 1000).max() <= 90


def test_neighbours_beat_one_centre_per_class():
    data = synthetic_real(2000, 20, seed=0)
    train, test = data.take(slice(0, 1000)), data.take(slice(1000, None))

    neighbors, centres = (
        model.fit(train.x, train.y).score(test.x, test.y)
        for model in (KNeighborsClassifier(5), NearestCentroid())
    )

    assert neighbors > centres + 0.2


def test_a_seed_determines_the_rows():
    first, again, other = (synthetic_real(100, 10, seed=seed) for seed in (1, 1, 2))

    assert np.array_equal(first.x, again.x)
    assert np.array_equal(first.y, again.y)
    assert not np.array_equal(first.x, other.x)


@given(n_ones=st.integers(1, 9), seed=st.integers(0, 100))
@settings(deadline=None, max_examples=25)
def test_binary_rows_mark_their_largest_coordinates(n_ones, seed):
    real = synthetic_real(60, 10, seed=seed)

    binary = synthetic_binary(60, 10, n_ones=n_ones, seed=seed)

    assert set(np.unique(binary.x).tolist()) <= {0, 1}
    assert (binary.x.sum(axis=1) == n_ones).all()
    smallest_marked = np.where(binary.x == 1, real.x, np.inf).min(axis=1)
    largest_unmarked = np.where(binary.x == 0, real.x, -np.inf).max(axis=1)
    assert (smallest_marked >= largest_unmarked).all()
    assert np.array_equal(binary.y, real.y)


def test_ties_of_coordinates_go_to_the_lower_position(monkeypatch):
    rows = np.array([[1.0, 2.0, 2.0, 2.0], [3.0, 3.0, 3.0, 3.0]])
    monkeypatch.setattr(
        "sklearn.datasets.make_classification", lambda **_: (rows, np.array([0, 1]))
    )

    data = synthetic_binary(2, 4, n_ones=2, seed=0, n_classes=2, n_clusters=1)

    assert data.x.tolist() == [[0, 1, 1, 0], [1, 1, 0, 0]]


def test_private_data_has_a_test_part_from_the_same_draw():
    train, test = synthetic_private(1500, seed=4, n_test=200).train_test()

    whole = synthetic_real(1700, 30, seed=4, n_classes=2, n_clusters=5)
    assert np.array_equal(np.vstack([train.x, test.x]), whole.x)
    assert (train.n_rows, test.n_rows, train.n_classes) == (1500, 200, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: synthetic_real(10, 20, seed=0), "n_rows=10 is fewer than the 15 modes"),
        (lambda: synthetic_real(100, 3, seed=0), "n_features=3 gives 8 corners for 15 modes"),
        (lambda: synthetic_binary(100, 10, n_ones=0, seed=0), r"n_ones must lie in \[1, 10\)"),
        (lambda: synthetic_binary(100, 10, n_ones=10, seed=0), r"n_ones must lie in \[1, 10\)"),
        (lambda: synthetic_private(0, seed=0), "must be at least 1"),
        (lambda: synthetic_private(100, seed=0, n_test=0), "must be at least 1"),
    ],
)
def test_impossible_sizes_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
