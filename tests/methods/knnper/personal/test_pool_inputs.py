"""Memories of a pool store the rows in addition to their embeddings."""

import numpy as np
import pytest

from fedneighbors.methods.knnper import KNNPerClassifier, KNNPerRegressor
from fedneighbors.methods.knnper.memory._datastore import Datastore
from fedneighbors.methods.knnper.memory._rows import RowFeatures


def make_shifted_rings(seed, n=60, n_clients=6):
    """Return rings around a center that differs between clients."""
    random = np.random.default_rng(seed)
    owners = np.repeat([f"client-{i}" for i in range(n_clients)], n)
    outside = random.integers(2, size=len(owners))
    angles = random.uniform(0, 2 * np.pi, len(owners))
    radius = outside + random.uniform(0.1, 0.8, len(owners))
    centers = 3 * np.random.default_rng(0).normal(size=(n_clients, 2)).repeat(n, axis=0)
    return np.c_[np.cos(angles), np.sin(angles)] * radius[:, None] + centers, outside, owners


@pytest.fixture(scope="module")
def pooled():
    X, y, owners = make_shifted_rings(1)
    is_known = owners != "client-5"
    model = KNNPerClassifier(hidden=(4, 2), n_rounds=2, combine="pool")
    return model.fit(X[is_known], y[is_known], parties=owners[is_known])


def test_a_pool_works_with_an_untrained_network(pooled):
    X, y, owners = make_shifted_rings(2)
    is_known = owners != "client-5"

    accuracy = (pooled.predict(X[is_known], parties=owners[is_known]) == y[is_known]).mean()

    network_accuracy = (pooled.embed(X[is_known])[1].argmax(axis=1) == y[is_known]).mean()
    assert network_accuracy < 0.7
    assert accuracy > 0.9
    weights = dict(zip(pooled.pool_.experts, pooled.pool_.weights, strict=True))
    assert weights["kernel head"] > max(0.5, weights["memory"])


def test_a_new_client_has_a_kernel_head(pooled):
    (X, y, owners), (new, new_y, _) = make_shifted_rings(1), make_shifted_rings(2)
    rows = owners == "client-5"

    pooled.add_client("client-5", X[rows], y[rows])

    predicted = pooled.predict(new[rows], parties=["client-5"] * rows.sum())
    assert (predicted == new_y[rows]).mean() > 0.9


def test_forgotten_rows_leave_no_trace_in_heads(pooled):
    X, y, owners = make_shifted_rings(1)
    rows = np.flatnonzero(owners == "client-4")
    pooled.add_client("whole", X[rows], y[rows])
    pooled.add_client("part", X[rows[10:]], y[rows[10:]])

    pooled.forget("whole", [str(i) for i in range(10)])

    probabilities = [
        pooled.predict_proba(X[:20], parties=[name] * 20) for name in ("whole", "part")
    ]
    assert probabilities[0].tolist() == probabilities[1].tolist()


def compute_center_distances(seed):
    """Return the rows of :func:`make_shifted_rings` and their distances from the centers."""
    X, _, owners = make_shifted_rings(seed)
    centers = 3 * np.random.default_rng(0).normal(size=(6, 2)).repeat(60, axis=0)
    return X, np.linalg.norm(X - centers, axis=1), owners


def test_a_regression_pool_uses_and_forgets_rows():
    (X, y, owners), (new, new_y, _) = compute_center_distances(1), compute_center_distances(2)
    model = KNNPerRegressor(hidden=(4, 2), n_rounds=2, combine="pool").fit(X, y, parties=owners)

    assert model.score(new, new_y, parties=owners) > 0.9
    weights = dict(zip(model.pool_.experts, model.pool_.weights, strict=True))
    assert weights["kernel head"] > max(0.5, weights["memory"])
    memory = model.clients_["client-0"].memory
    assert (memory.keys.shape, memory.extras[0].shape) == ((60, 2), (60, 2))

    rows = np.flatnonzero(owners == "client-4")
    model.add_client("whole", X[rows], y[rows]).forget("whole", [str(i) for i in range(10)])
    model.add_client("part", X[rows[10:]], y[rows[10:]])
    predictions = [model.predict(X[:20], parties=[name] * 20) for name in ("whole", "part")]
    assert predictions[0].tolist() == predictions[1].tolist()


def test_without_a_pool_only_embeddings_are_stored():
    X, y, owners = make_shifted_rings(1)

    model = KNNPerClassifier(hidden=(4, 2), n_rounds=1).fit(X, y, parties=owners)

    assert model.clients_["client-0"].memory.keys.shape == (60, 2)
    assert model.clients_["client-0"].memory.extras == ()
    assert model.embed(X[:3])[0].shape == (3, 2)


@pytest.mark.parametrize("strategy", ["concatenate", "fifo", "reservoir", "drift"])
def test_extras_stay_with_their_key_and_no_distance_uses_them(strategy):
    random = np.random.default_rng(0)
    keys, queries = random.normal(size=(40, 3)), random.normal(size=(5, 3))
    extras, labels = (100 * keys[:, :2], -keys), random.integers(2, size=40)
    with_extras = Datastore(3, 30, strategy, n_classes=2)
    without_extras = Datastore(3, 30, strategy, n_classes=2)

    for part in (slice(0, 20), slice(20, 40)):
        with_extras.add(keys[part], labels[part], extras=[extra[part] for extra in extras])
        without_extras.add(keys[part], labels[part])
    for memory in (with_extras, without_extras):
        memory.forget(memory.ids[3:9:2])

    neighbors, expected = with_extras.nearest(queries, 4), without_extras.nearest(queries, 4)
    assert neighbors.positions.tolist() == expected.positions.tolist()
    assert neighbors.distances.tolist() == expected.distances.tolist()
    assert with_extras.extras[0].tolist() == (100 * with_extras.keys[:, :2]).tolist()
    assert with_extras.extras[1].tolist() == (-with_extras.keys).tolist()


@pytest.mark.parametrize("extras", [[np.zeros((2, 2))], [np.zeros((1, 1))], [], [[1.0, 2.0]]])
def test_extras_of_another_shape_are_refused(extras):
    memory = Datastore(1).add([[0.0]], [0], extras=[np.zeros((1, 1))])

    with pytest.raises(ValueError, match="expected extras of 2 rows"):
        memory.add([[1.0], [2.0]], [0, 1], extras=[np.asarray(extra) for extra in extras])


def test_a_metric_changes_the_embedding_only():
    view = RowFeatures(np.array([[3.0, 4.0], [0.0, 0.0]]), np.array([[7.0], [9.0]]))

    transformed = view.in_metric("cosine")

    assert transformed.embedding.tolist() == [[0.6, 0.8], [0.0, 0.0]]
    assert transformed.rows is view.rows
    assert transformed.table().tolist() == [[0.6, 0.8, 7.0], [0.0, 0.0, 9.0]]
