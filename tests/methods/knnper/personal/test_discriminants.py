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
from tests.methods.knnper.federations import build_coordinator, make_members
from tests.naive.discriminants import scatter_matrices as naive_scatter

FEATURES = RandomFeatures(3, 0.5, 4)

PINNED = [
    [-0.33638770529538675, -0.18231161228785003],
    [0.9736097369493604, -0.8924240327189378],
]
"""Features of seed 7 for two rows."""


def tables():
    """Return tables of few distinct values, so that rows repeat, with labels."""
    cells = st.sampled_from([0.0, 1.0, -1.0, 0.5, 1e6, 1e-9])
    rows = npst.arrays(np.float64, st.tuples(st.integers(1, 12), st.just(2)), elements=cells)
    return rows.flatmap(
        lambda x: st.tuples(st.just(x), npst.arrays(np.int64, len(x), elements=st.integers(0, 3)))
    )


@given(tables())
def test_scatter_matches_its_definition(table):
    rows, labels = table
    columns = FEATURES.transform(rows)

    scatter = Scatter.of(FEATURES, rows, labels)

    within, between = naive_scatter(columns.tolist(), labels.tolist())
    np.testing.assert_allclose(scatter.within, within, atol=1e-12 * len(rows))
    np.testing.assert_allclose(scatter.between, between, atol=1e-12 * len(rows))


def test_scatter_by_blocks_equals_scatter_at_once(monkeypatch):
    random = np.random.default_rng(0)
    rows, labels = random.normal(size=(50, 3)), random.integers(4, size=50)
    whole = Scatter.of(FEATURES, rows, labels)
    fitted = Discriminants.fit(FEATURES, whole, 4)
    expected = fitted.transform(rows)

    monkeypatch.setattr(discriminants, "_BLOCK_ROWS", 7)

    blockwise = Scatter.of(FEATURES, rows, labels)
    np.testing.assert_allclose(blockwise.within, whole.within, atol=1e-12)
    np.testing.assert_allclose(blockwise.between, whole.between, atol=1e-12)
    np.testing.assert_allclose(fitted.transform(rows), expected, atol=1e-12)
    assert fitted.transform(rows[:0]).shape == (0, 3)


@given(tables(), st.permutations(range(4)))
def test_scatter_does_not_depend_on_class_names(table, names):
    rows, labels = table

    scatter = Scatter.of(FEATURES, rows, labels)
    renamed = Scatter.of(FEATURES, rows, np.array(names)[labels])

    np.testing.assert_allclose(renamed.within, scatter.within, atol=1e-12 * len(rows))
    np.testing.assert_allclose(renamed.between, scatter.between, atol=1e-12 * len(rows))


def test_discriminants_of_a_row_do_not_depend_on_other_rows():
    random = np.random.default_rng(0)
    rows, labels = random.normal(size=(300, 70)), random.integers(4, size=300)
    features = RandomFeatures(0, feature_rate(rows.std(axis=0)), 150)
    fitted = Discriminants.fit(features, Scatter.of(features, rows, labels), 4)
    order = random.permutation(300)[:131]

    assert fitted.transform(rows[order]).tobytes() == fitted.transform(rows)[order].tobytes()
    assert fitted.transform(rows[7:8]).tobytes() == fitted.transform(rows)[7:8].tobytes()


def test_random_features_approximate_the_kernel():
    rows = np.random.default_rng(1).normal(size=(10, 3))

    columns = RandomFeatures(0, 0.2, 100_000).transform(rows)

    squares = ((rows[:, None] - rows) ** 2).sum(axis=2)
    products = 2 * columns @ columns.T / columns.shape[1]
    # a product is a mean of 100,000 numbers of deviation below 1.5: 6 deviations, 100 cells
    np.testing.assert_allclose(products, np.exp(-0.2 * squares), atol=6 * 1.5 / np.sqrt(100_000))


def test_random_features_are_the_same_everywhere():
    features = RandomFeatures(7, 0.5, 2).transform(np.array([[0.0, 0.0], [1.0, -1.0]]))

    assert (
        features == RandomFeatures(7, 0.5, 2).transform(np.array([[0.0, 0.0], [1.0, -1.0]]))
    ).all()
    assert not np.isclose(features[0], RandomFeatures(8, 0.5, 2).transform(np.zeros((1, 2)))).any()
    np.testing.assert_allclose(features, PINNED, rtol=1e-12)


def test_directions_maximize_the_ratio_of_scatters():
    random = np.random.default_rng(2)
    labels = random.integers(3, size=200)
    rows = random.normal(size=(200, 2)) + 2 * random.normal(size=(3, 2))[labels]
    scatter = Scatter.of(FEATURES, rows, labels)

    directions = Discriminants.fit(FEATURES, scatter, 3).directions

    ridge = RIDGE * np.trace(scatter.within) / 4 * np.eye(4)
    np.testing.assert_allclose(
        directions.T @ (scatter.within + ridge) @ directions, np.eye(2), atol=1e-9
    )
    between = directions.T @ scatter.between @ directions
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

    result = Discriminants.fit(FEATURES, scatter, 3)

    assert result.directions.shape == (4, 2)
    assert np.isfinite(result.transform(rows)).all()


@pytest.mark.parametrize(("n_classes", "n_directions"), [(1, 1), (2, 1), (3, 2), (5, 4), (9, 4)])
def test_there_are_fewer_directions_than_classes_and_features(n_classes, n_directions):
    random = np.random.default_rng(3)
    rows, labels = random.normal(size=(60, 2)), np.arange(60) % n_classes

    result = Discriminants.fit(FEATURES, Scatter.of(FEATURES, rows, labels), n_classes)

    assert result.directions.shape == (4, n_directions)


def test_declared_classes_without_rows_add_no_directions():
    X, y, owners = make_rings(0)
    model = KNNPerClassifier(hidden=(4,), n_rounds=1, combine="pool", classes=range(90))

    model.fit(X, y, parties=owners)

    assert model._shared.seen.directions.shape[1] == 3
    assert model.predict_proba(X[:1], parties=owners[:1]).shape == (1, 90)


def test_few_rows_of_many_classes_can_be_saved_and_loaded(tmp_path):
    """With the held-out rows there are more random features, and so more directions."""
    x, y = np.random.default_rng(0).normal(size=(12, 3)), np.arange(12) % 9
    owners = ["a", "b"] * 6
    model = KNNPerClassifier(hidden=(4,), n_rounds=1, combine="pool").fit(x, y, parties=owners)

    model.save(tmp_path / "model")
    loaded = KNNPerClassifier.load(tmp_path / "model")

    assert [extra.shape[1] for extra in model.clients_["a"].memory.extras] == [3, 6]
    expected = model.predict_proba(x, parties=owners)
    assert loaded.predict_proba(x, parties=owners).tobytes() == expected.tobytes()


BITS = """
import hashlib
import numpy as np
from fedneighbors.methods.knnper import KNNPerClassifier
rows = np.random.default_rng(0).normal(size=(600, 40))
model = KNNPerClassifier(hidden=(8,), n_rounds=1, combine="pool")
model.fit(rows, np.arange(600) % 5, parties=["a", "b", "c"] * 200)
parts = (model._shared.seen.directions, model._shared.seen.transform(rows))
print(hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest())
"""


def test_the_number_of_threads_does_not_change_bits():
    digests = set()
    for threads in ("1", "4"):
        names = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")
        environment = os.environ | dict.fromkeys(names, threads)
        process = subprocess.run(
            [sys.executable, "-c", BITS],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(process.stdout)

    assert len(digests) == 1


def test_two_rows_per_feature_and_a_limit_on_features():
    assert [choose_n_features(n) for n in (1, 2, 3, 100, 2047, 10**6)] == [1, 1, 1, 50, 1023, 1024]


@pytest.mark.parametrize("deviations", [[], [0.0, 0.0], [1e200, 1.0], [1e-155]])
def test_columns_without_a_scale_have_a_rate(deviations):
    assert feature_rate(np.array(deviations)) == algorithm.KERNEL_EXPONENT
    assert feature_rate(np.array([1.0, 2.0])) == algorithm.KERNEL_EXPONENT / 10


def build_pooling_clients(order=1):
    return make_members(settings=MemorySettings(combine="pool"))[::order]


def test_the_order_of_clients_does_not_change_a_bit():
    parties, reversed_parties = build_pooling_clients(), build_pooling_clients(-1)

    forward = run(build_coordinator(parties), parties).result
    backward = run(build_coordinator(reversed_parties), reversed_parties).result

    assert forward.seen.features == backward.seen.features
    assert forward.seen.directions.tobytes() == backward.seen.directions.tobytes()


def test_directions_come_from_the_scatter_of_all_clients():
    parties = build_pooling_clients()

    fitted = run_rounds(build_coordinator(parties), Cohort(parties)).result.seen

    scatters = [
        Scatter.of(fitted.features, party.x.double().numpy(), party._labels) for party in parties
    ]
    scatter = Scatter(
        sum(client_scatter.within for client_scatter in scatters),
        sum(client_scatter.between for client_scatter in scatters),
    )
    expected = Discriminants.fit(fitted.features, scatter, 10).directions
    # sums are rounded at 2**-32; an eigenvector may point the other way
    signs = np.sign((fitted.directions * expected).sum(axis=0))
    np.testing.assert_allclose(fitted.directions, expected * signs, atol=1e-6)
    for party in parties:
        _, outputs = party.client_state.memory.extras
        assert outputs.tobytes() == fitted.transform(party.x.double().numpy()).tobytes()


def test_held_out_rows_take_no_part_in_the_first_scatter():
    original, changed = build_pooling_clients()[0], build_pooling_clients()[0]
    changed._x = changed._x.copy()
    changed._x[changed.held_out] = 0.5
    counts = CountsRequest(tuple(range(10)), True, np.empty(0), np.empty(0))
    first, last = (
        ScatterRequest(held_out, RandomFeatures(0, 0.5, 5)) for held_out in (True, False)
    )

    replies = []
    for party in (original, changed):
        party.answer(counts)
        replies.append((party.answer(first), party.answer(last)))

    assert replies[0][0] == replies[1][0]
    assert replies[0][1] != replies[1][1]


def test_without_a_pool_no_scatter_is_requested():
    parties = make_members()

    outcome = run_rounds(build_coordinator(parties), Cohort(parties))

    assert outcome.result.seen is None
    assert "ScatterRequest" not in {entry.request for entry in outcome.rounds}
    assert ReleaseRequest(np.zeros(2), np.ones(2), final=True).seen is None


def make_rings(seed, n_clients=8, n=80):
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
    X, y, owners = make_rings(0)
    is_known = owners != "client-7"
    model = KNNPerClassifier(hidden=(4, 2), n_rounds=2, combine="pool", classes=range(4))

    model.fit(X[is_known], y[is_known], parties=owners[is_known])
    model.add_client("client-7", X[~is_known][:20], y[~is_known][:20])

    new_x, new_y, new_owners = make_rings(1)
    local_model = KNNPerClassifier(hidden=(4, 2), n_rounds=2, combine="pool", classes=range(4))
    local_model.fit(X[~is_known][:20], y[~is_known][:20], parties=owners[~is_known][:20])
    is_new = new_owners == "client-7"
    joint_accuracy = (
        model.predict(new_x[is_new], parties=new_owners[is_new]) == new_y[is_new]
    ).mean()
    local_accuracy = (
        local_model.predict(new_x[is_new], parties=new_owners[is_new]) == new_y[is_new]
    ).mean()
    assert model.pool_.weights[model.pool_.experts.index("discriminant head")] > 0.5
    assert joint_accuracy > local_accuracy + 0.1
