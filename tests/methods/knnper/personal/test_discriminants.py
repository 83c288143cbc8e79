"""Directions that separate classes at every client, for any class names."""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from fedneighbors.federation._inprocess import run
from fedneighbors.federation._loop import run_rounds
from fedneighbors.methods.knnper import KNNPerClassifier, algorithm
from fedneighbors.methods.knnper._settings import MemorySettings
from fedneighbors.methods.knnper._training import Cohort
from fedneighbors.methods.knnper.algorithm import feature_rate
from fedneighbors.methods.knnper.personal import _discriminants as discriminants
from fedneighbors.methods.knnper.personal._discriminants import (
    RIDGE,
    Discriminants,
    RandomFeatures,
    Scatter,
    choose_n_features,
)
from fedneighbors.methods.knnper.protocol import CountsRequest, ReleaseRequest, ScatterRequest
from tests.methods.knnper.federations import members, training
from tests.naive.discriminants import scatter_matrices as naive_scatter

FEATURES = RandomFeatures(3, 0.5, 4)

PINNED = [
    [-0.33638770529538675, -0.18231161228785003],
    [0.9736097369493604, -0.8924240327189378],
]
"""What features of seed 7 give for two rows."""


def tables():
    """Return tables of few distinct values, so that rows repeat, with labels."""
    cells = st.sampled_from([0.0, 1.0, -1.0, 0.5, 1e6, 1e-9])
    rows = npst.arrays(np.float64, st.tuples(st.integers(1, 12), st.just(2)), elements=cells)
    return rows.flatmap(
        lambda x: st.tuples(st.just(x), npst.arrays(np.int64, len(x), elements=st.integers(0, 3)))
    )


@given(tables())
def test_scatter_is_that_of_its_definition(table):
    rows, labels = table
    columns = FEATURES.of(rows)

    found = Scatter.of(FEATURES, rows, labels)

    within, between = naive_scatter(columns.tolist(), labels.tolist())
    np.testing.assert_allclose(found.within, within, atol=1e-12 * len(rows))
    np.testing.assert_allclose(found.between, between, atol=1e-12 * len(rows))


def test_blockwise_scatter_equals_the_whole(monkeypatch):
    random = np.random.default_rng(0)
    rows, labels = random.normal(size=(50, 3)), random.integers(4, size=50)
    whole = Scatter.of(FEATURES, rows, labels)
    seen = Discriminants.fit(FEATURES, whole, 4)
    told = seen.of(rows)

    monkeypatch.setattr(discriminants, "_BLOCK_ROWS", 7)

    found = Scatter.of(FEATURES, rows, labels)
    np.testing.assert_allclose(found.within, whole.within, atol=1e-12)
    np.testing.assert_allclose(found.between, whole.between, atol=1e-12)
    np.testing.assert_allclose(seen.of(rows), told, atol=1e-12)
    assert seen.of(rows[:0]).shape == (0, 3)


@given(tables(), st.permutations(range(4)))
def test_scatter_does_not_depend_on_class_names(table, names):
    rows, labels = table

    found = Scatter.of(FEATURES, rows, labels)
    again = Scatter.of(FEATURES, rows, np.array(names)[labels])

    np.testing.assert_allclose(again.within, found.within, atol=1e-12 * len(rows))
    np.testing.assert_allclose(again.between, found.between, atol=1e-12 * len(rows))


def test_discriminants_of_a_row_do_not_depend_on_other_rows():
    random = np.random.default_rng(0)
    rows, labels = random.normal(size=(300, 70)), random.integers(4, size=300)
    features = RandomFeatures(0, feature_rate(rows.std(axis=0)), 150)
    seen = Discriminants.fit(features, Scatter.of(features, rows, labels), 4)
    order = random.permutation(300)[:131]

    assert seen.of(rows[order]).tobytes() == seen.of(rows)[order].tobytes()
    assert seen.of(rows[7:8]).tobytes() == seen.of(rows)[7:8].tobytes()


def test_products_of_random_features_come_near_the_kernel():
    rows = np.random.default_rng(1).normal(size=(10, 3))

    columns = RandomFeatures(0, 0.2, 100_000).of(rows)

    squares = ((rows[:, None] - rows) ** 2).sum(axis=2)
    products = 2 * columns @ columns.T / columns.shape[1]
    # a product is a mean of 100,000 numbers of deviation below 1.5: 6 deviations, 100 cells
    np.testing.assert_allclose(products, np.exp(-0.2 * squares), atol=6 * 1.5 / np.sqrt(100_000))


def test_random_features_are_the_same_everywhere():
    found = RandomFeatures(7, 0.5, 2).of(np.array([[0.0, 0.0], [1.0, -1.0]]))

    assert (found == RandomFeatures(7, 0.5, 2).of(np.array([[0.0, 0.0], [1.0, -1.0]]))).all()
    assert not np.isclose(found[0], RandomFeatures(8, 0.5, 2).of(np.zeros((1, 2)))).any()
    np.testing.assert_allclose(found, PINNED, rtol=1e-12)


def test_directions_have_most_scatter_between_for_that_within():
    random = np.random.default_rng(2)
    labels = random.integers(3, size=200)
    rows = random.normal(size=(200, 2)) + 2 * random.normal(size=(3, 2))[labels]
    scatter = Scatter.of(FEATURES, rows, labels)

    found = Discriminants.fit(FEATURES, scatter, 3).directions

    ridge = RIDGE * np.trace(scatter.within) / 4 * np.eye(4)
    np.testing.assert_allclose(found.T @ (scatter.within + ridge) @ found, np.eye(2), atol=1e-9)
    between = found.T @ scatter.between @ found
    np.testing.assert_allclose(between, np.diag(np.diag(between)), atol=1e-9)
    assert between[0, 0] > between[1, 1] > 0
    others = random.normal(size=(4, 500))
    ratio = np.einsum("fn,fg,gn->n", others, scatter.between, others) / np.einsum(
        "fn,fg,gn->n", others, scatter.within + ridge, others
    )
    assert ratio.max() <= between[0, 0]


@pytest.mark.parametrize(
    ("rows", "labels"),
    [
        (np.ones((5, 2)), [0, 1, 0, 1, 2]),
        (np.zeros((1, 2)), [2]),
        (np.eye(3, 2), [0, 1, 2]),
        (np.empty((0, 2)), []),
    ],
    ids=["equal rows", "one row", "one row of each class", "no rows"],
)
def test_uninformative_scatter_gives_finite_directions(rows, labels):
    scatter = Scatter.of(FEATURES, rows, np.array(labels, np.int64))

    found = Discriminants.fit(FEATURES, scatter, 3)

    assert found.directions.shape == (4, 2)
    assert np.isfinite(found.of(rows)).all()


@pytest.mark.parametrize(("n_classes", "n_directions"), [(1, 1), (2, 1), (3, 2), (5, 4), (9, 4)])
def test_there_are_fewer_directions_than_classes_and_features(n_classes, n_directions):
    random = np.random.default_rng(3)
    rows, labels = random.normal(size=(60, 2)), np.arange(60) % n_classes

    found = Discriminants.fit(FEATURES, Scatter.of(FEATURES, rows, labels), n_classes)

    assert found.directions.shape == (4, n_directions)


def test_classes_that_may_come_later_add_no_directions():
    X, y, owners = meanings(0)
    model = KNNPerClassifier(hidden=(4,), n_rounds=1, combine="pool", classes=range(90))

    model.fit(X, y, parties=owners)

    assert model._shared.seen.directions.shape[1] == 3
    assert model.predict_proba(X[:1], parties=owners[:1]).shape == (1, 90)


def test_few_rows_of_many_classes_stay_in_the_last_training(tmp_path):
    """With the held-out rows there are more random features, and so more directions."""
    x, y = np.random.default_rng(0).normal(size=(12, 3)), np.arange(12) % 9
    owners = ["a", "b"] * 6
    model = KNNPerClassifier(hidden=(4,), n_rounds=1, combine="pool").fit(x, y, parties=owners)

    model.save(tmp_path / "model")
    found = KNNPerClassifier.load(tmp_path / "model")

    assert [extra.shape[1] for extra in model.clients_["a"].memory.extras] == [3, 6]
    said = model.predict_proba(x, parties=owners)
    assert found.predict_proba(x, parties=owners).tobytes() == said.tobytes()


BITS = """
import hashlib
import numpy as np
from fedneighbors.methods.knnper import KNNPerClassifier
rows = np.random.default_rng(0).normal(size=(600, 40))
model = KNNPerClassifier(hidden=(8,), n_rounds=1, combine="pool")
model.fit(rows, np.arange(600) % 5, parties=["a", "b", "c"] * 200)
told = (model._shared.seen.directions, model._shared.seen.of(rows))
print(hashlib.sha256(b"".join(part.tobytes() for part in told)).hexdigest())
"""


def test_the_number_of_threads_does_not_change_bits():
    found = set()
    for threads in ("1", "4"):
        names = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")
        told = os.environ | dict.fromkeys(names, threads)
        done = subprocess.run(
            [sys.executable, "-c", BITS], env=told, capture_output=True, text=True, check=True
        )
        found.add(done.stdout)

    assert len(found) == 1


def test_two_rows_per_feature_and_a_limit_on_features():
    assert [choose_n_features(n) for n in (1, 2, 3, 100, 2047, 10**6)] == [1, 1, 1, 50, 1023, 1024]


@pytest.mark.parametrize("deviations", [[], [0.0, 0.0], [1e200, 1.0], [1e-155]])
def test_columns_without_a_scale_have_a_rate(deviations):
    assert feature_rate(np.array(deviations)) == algorithm.KERNEL_EXPONENT
    assert feature_rate(np.array([1.0, 2.0])) == algorithm.KERNEL_EXPONENT / 10


def pooling(order=1):
    return members(settings=MemorySettings(combine="pool"))[::order]


def test_the_order_of_clients_does_not_change_a_bit():
    parties, turned = pooling(), pooling(-1)

    found = run(training(parties), parties).result
    again = run(training(turned), turned).result

    assert found.seen.features == again.seen.features
    assert found.seen.directions.tobytes() == again.seen.directions.tobytes()


def test_directions_are_those_of_the_scatter_of_all_clients():
    parties = pooling()

    seen = run_rounds(training(parties), Cohort(parties)).result.seen

    each = [Scatter.of(seen.features, party.x.double().numpy(), party._labels) for party in parties]
    scatter = Scatter(sum(one.within for one in each), sum(one.between for one in each))
    expected = Discriminants.fit(seen.features, scatter, 10).directions
    # sums are rounded at 2**-32; an eigenvector may point the other way
    signs = np.sign((seen.directions * expected).sum(axis=0))
    np.testing.assert_allclose(seen.directions, expected * signs, atol=1e-6)
    for party in parties:
        _, beside = party.personal.memory.extras
        assert beside.tobytes() == seen.of(party.x.double().numpy()).tobytes()


def test_held_out_rows_take_no_part_in_the_first_scatter():
    whole, altered = pooling()[0], pooling()[0]
    altered._x = altered._x.copy()
    altered._x[altered.held_out] = 0.5
    counts = CountsRequest(tuple(range(10)), True, np.empty(0), np.empty(0))
    first, last = (ScatterRequest(held, RandomFeatures(0, 0.5, 5)) for held in (True, False))

    replies = []
    for party in (whole, altered):
        party.answer(counts)
        replies.append((party.answer(first), party.answer(last)))

    assert replies[0][0] == replies[1][0]
    assert replies[0][1] != replies[1][1]


def test_the_papers_mixture_requests_no_scatter():
    parties = members()

    outcome = run_rounds(training(parties), Cohort(parties))

    assert outcome.result.seen is None
    assert "ScatterRequest" not in {entry.request for entry in outcome.rounds}
    assert ReleaseRequest(np.zeros(2), np.ones(2), final=True).seen is None


def meanings(seed, n_clients=8, n=80):
    """Return rings around a shared center; clients differ in the names of the classes."""
    random = np.random.default_rng(seed)
    owners = np.repeat([f"client-{i}" for i in range(n_clients)], n)
    ring = random.integers(4, size=len(owners))
    angles = random.uniform(0, 2 * np.pi, len(owners))
    radius = ring + random.uniform(0.2, 0.8, len(owners))
    points = np.c_[np.cos(angles), np.sin(angles)] * radius[:, None]
    noise = 2 * random.normal(size=(len(owners), 6))
    names = np.array([np.random.default_rng(i).permutation(4) for i in range(n_clients)])
    client = np.repeat(np.arange(n_clients), n)
    return np.hstack([points, noise]), names[client, ring], owners


def test_clients_with_other_class_names_learn_together():
    X, y, owners = meanings(0)
    known = owners != "client-7"
    model = KNNPerClassifier(hidden=(4, 2), n_rounds=2, combine="pool", classes=range(4))

    model.fit(X[known], y[known], parties=owners[known])
    model.add_client("client-7", X[~known][:20], y[~known][:20])

    new, right, whose = meanings(1)
    alone = KNNPerClassifier(hidden=(4, 2), n_rounds=2, combine="pool", classes=range(4))
    alone.fit(X[~known][:20], y[~known][:20], parties=owners[~known][:20])
    late = whose == "client-7"
    found = (model.predict(new[late], parties=whose[late]) == right[late]).mean()
    own = (alone.predict(new[late], parties=whose[late]) == right[late]).mean()
    assert model.pool_["discriminant head"] > 0.5
    assert found > own + 0.1
