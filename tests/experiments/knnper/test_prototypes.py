"""ProtoNN: a projection, prototypes and scores that are trained together."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import approx_fprime

from experiments.knnper.prototypes import (
    PrototypeMemory,
    Prototypes,
    loss_and_gradient,
    train_prototypes,
)
from fedneighbors.errors import DataError, RebuildNeeded
from tests.methods.knnper.memory.tables import tables
from tests.naive import compression as naive


def random_problem(seed, n_rows=7, n_columns=4, n_dimensions=2, n_prototypes=3, n_labels=2):
    random = np.random.default_rng(seed)
    shapes = ((n_dimensions, n_columns), (n_prototypes, n_dimensions), (n_prototypes, n_labels))
    rows, labels = random.normal(size=(n_rows, n_columns)), random.integers(n_labels, size=n_rows)
    return rows, np.eye(n_labels)[labels], [random.normal(size=shape) for shape in shapes]


@given(st.integers(0, 50), st.sampled_from([0.3, 1.0]))
@settings(max_examples=20)
def test_the_gradient_equals_finite_differences(seed, gamma):
    rows, targets, parts = random_problem(seed)
    parameters = np.concatenate([part.ravel() for part in parts])

    _, gradient = loss_and_gradient(parameters, rows, targets, 2, gamma)

    expected = approx_fprime(
        parameters, lambda at: loss_and_gradient(at, rows, targets, 2, gamma)[0], 1e-7
    )
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-6)


@given(st.integers(0, 50))
@settings(max_examples=20)
def test_the_loss_equals_that_of_the_slow_twin(seed):
    rows, targets, parts = random_problem(seed)

    loss, _ = loss_and_gradient(
        np.concatenate([part.ravel() for part in parts]), rows, targets, 2, 0.7
    )

    assert loss == pytest.approx(naive.prototype_loss(rows, targets, *parts, 0.7), rel=1e-12)


@given(st.integers(0, 50))
@settings(max_examples=20)
def test_shares_are_normalized_nonnegative_scores(seed):
    rows, _, parts = random_problem(seed)
    float32_parts = [part.astype(np.float32) for part in parts]
    prototypes = Prototypes(*float32_parts, 0.7)

    shares = prototypes.score_shares(rows)

    for row, share in zip(rows, shares, strict=True):
        float_lists = [part.astype(float).tolist() for part in float32_parts]
        scores = np.maximum(naive.prototype_scores(row.tolist(), *float_lists, 0.7), 0)
        expected = scores / scores.sum() if scores.sum() > 0 else np.full(2, 0.5)
        np.testing.assert_allclose(share, expected, rtol=1e-9)


@pytest.mark.parametrize("norm", [0.0, 1e-160, 1e-45, 1e-29])
def test_rows_of_tiny_norm_give_finite_tables(norm):
    store = PrototypeMemory(2, 2).add(norm * np.array([[1.0, 0.0], [0.0, 1.0]]), [0, 1])

    prototypes = store.prototypes
    tables = (prototypes.projection, prototypes.places, prototypes.scores)
    assert all(table.size and np.isfinite(table).all() for table in tables)
    assert 0 < prototypes.gamma < np.finfo(np.float32).max
    assert np.isfinite(store.votes(np.ones((1, 2)), 2)).all()


def test_a_query_far_from_all_prototypes_gets_the_nearest_scores():
    places, scores = np.array([[0], [1]], np.float32), np.eye(2, dtype=np.float32)
    prototypes = Prototypes(np.ones((1, 1), np.float32), places, scores, 9.0)

    shares = prototypes.score_shares(np.array([[1e6], [-1e6]]))

    assert shares.tolist() == [[0.0, 1.0], [1.0, 0.0]]


def rows_of_three_classes(n=60):
    random = np.random.default_rng(0)
    labels = np.arange(n) % 3
    return np.eye(8)[labels] * 4 + random.normal(size=(n, 8)), labels


def test_training_lowers_the_loss_and_separates_classes():
    rows, labels = rows_of_three_classes()

    def error(n_steps):
        prototypes = train_prototypes(
            rows, labels, 3, n_dimensions=3, prototypes_per_row=0.1, n_steps=n_steps
        )
        return float(((prototypes.score_shares(rows) - np.eye(3)[labels]) ** 2).mean()), prototypes

    (before, _), (after, prototypes) = error(0), error(20)
    assert after < before
    assert (prototypes.score_shares(rows).argmax(axis=1) == labels).mean() > 0.95


@given(tables(width=4), st.integers(1, 3), st.integers(1, 6))
@settings(max_examples=40)
def test_prototypes_can_be_trained_on_any_rows(rows, n_classes, n_projected):
    store = PrototypeMemory(4, 5, n_projected=n_projected, n_steps=3)
    labels = 4 - np.arange(len(rows)) % n_classes

    store.add(rows, labels)

    shares = store.votes(rows, 5, n_neighbors=10)
    np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=1e-9)
    assert (shares[:, np.setdiff1d(np.arange(5), labels)] == 0).all()
    assert len(store) == len(rows)


def test_it_reports_the_bytes_of_its_tables():
    rows, labels = rows_of_three_classes()

    store = PrototypeMemory(8, 10, n_projected=2, prototypes_per_row=0.1).add(rows, labels)

    assert store.nbytes == 4 * (2 * 8 + 6 * 2 + 6 * 3 + 1) + 3 + 3


def test_rows_can_be_neither_added_later_nor_removed():
    rows, labels = rows_of_three_classes()
    store = PrototypeMemory(8, 3).add(rows, labels)

    with pytest.raises(RebuildNeeded, match="trained once"):
        store.add(rows[:1], labels[:1])
    with pytest.raises(RebuildNeeded, match="from the remaining rows"):
        store.forget(["0"])
    with pytest.raises(RebuildNeeded, match="do not store keys"):
        store.keys  # noqa: B018 - the look-up is the test


def test_an_empty_memory_has_no_votes():
    store = PrototypeMemory(2, 3).add(np.empty((0, 2)), np.empty(0, int))

    assert store.votes(np.zeros((1, 2)), 3, n_neighbors=5) is None
    assert (len(store), store.nbytes) == (0, 0)


def test_invalid_arguments_are_refused():
    with pytest.raises(ValueError, match="n_projected >= 1"):
        PrototypeMemory(2, 3, n_projected=0)
    with pytest.raises(DataError, match="overflows float32"):
        PrototypeMemory(1, 2).add([[1e39]], [0])
