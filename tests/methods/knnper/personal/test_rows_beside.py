"""A pool sees the rows themselves, which no distance of a memory does."""

import numpy as np
import pytest

from fedneighbors.methods.knnper import KNNPerClassifier, KNNPerRegressor
from fedneighbors.methods.knnper.memory._datastore import Datastore
from fedneighbors.methods.knnper.memory._rows import RowFeatures


def turned_rings(seed, n=60, n_clients=6):
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
    X, y, owners = turned_rings(1)
    known = owners != "client-5"
    model = KNNPerClassifier(hidden=(4, 2), n_rounds=2, combine="pool")
    return model.fit(X[known], y[known], parties=owners[known])


def test_a_pool_works_with_an_untrained_network(pooled):
    X, y, owners = turned_rings(2)
    known = owners != "client-5"

    right = (pooled.predict(X[known], parties=owners[known]) == y[known]).mean()

    network = (pooled.embed(X[known])[1].argmax(axis=1) == y[known]).mean()
    assert network < 0.7
    assert right > 0.9
    assert pooled.pool_["kernel head"] > max(0.5, pooled.pool_["memory"])


def test_a_client_that_joins_has_a_kernel_head_too(pooled):
    (X, y, owners), (new, right, _) = turned_rings(1), turned_rings(2)
    own = owners == "client-5"

    pooled.add_client("client-5", X[own], y[own])

    found = pooled.predict(new[own], parties=["client-5"] * own.sum())
    assert (found == right[own]).mean() > 0.9


def test_forgotten_rows_leave_no_trace_in_heads(pooled):
    X, y, owners = turned_rings(1)
    own = np.flatnonzero(owners == "client-4")
    pooled.add_client("whole", X[own], y[own])
    pooled.add_client("part", X[own[10:]], y[own[10:]])

    pooled.forget("whole", [str(i) for i in range(10)])

    shares = [pooled.predict_proba(X[:20], parties=[name] * 20) for name in ("whole", "part")]
    assert shares[0].tolist() == shares[1].tolist()


def bowls(seed):
    """Return the rows of :func:`turned_rings`, and how far each is from its client's center."""
    X, _, owners = turned_rings(seed)
    centers = 3 * np.random.default_rng(0).normal(size=(6, 2)).repeat(60, axis=0)
    return X, np.linalg.norm(X - centers, axis=1), owners


def test_a_pool_of_numbers_sees_the_rows_too_and_forgets_them():
    (X, y, owners), (new, right, _) = bowls(1), bowls(2)
    model = KNNPerRegressor(hidden=(4, 2), n_rounds=2, combine="pool").fit(X, y, parties=owners)

    assert model.score(new, right, parties=owners) > 0.9
    assert model.pool_["kernel head"] > max(0.5, model.pool_["memory"])
    memory = model.clients_["client-0"].memory
    assert (memory.keys.shape, memory.extras[0].shape) == ((60, 2), (60, 2))

    own = np.flatnonzero(owners == "client-4")
    model.add_client("whole", X[own], y[own]).forget("whole", [str(i) for i in range(10)])
    model.add_client("part", X[own[10:]], y[own[10:]])
    found = [model.predict(X[:20], parties=[name] * 20) for name in ("whole", "part")]
    assert found[0].tolist() == found[1].tolist()


def test_the_papers_mixture_stores_embeddings_only():
    X, y, owners = turned_rings(1)

    model = KNNPerClassifier(hidden=(4, 2), n_rounds=1).fit(X, y, parties=owners)

    assert model.clients_["client-0"].memory.keys.shape == (60, 2)
    assert model.clients_["client-0"].memory.extras == ()
    assert model.embed(X[:3])[0].shape == (3, 2)


@pytest.mark.parametrize("strategy", ["concatenate", "fifo", "reservoir", "drift"])
def test_extras_stay_with_their_key_and_no_distance_uses_them(strategy):
    random = np.random.default_rng(0)
    keys, asked = random.normal(size=(40, 3)), random.normal(size=(5, 3))
    extras, labels = (100 * keys[:, :2], -keys), random.integers(2, size=40)
    wide = Datastore(3, 30, strategy, n_classes=2)
    narrow = Datastore(3, 30, strategy, n_classes=2)

    for part in (slice(0, 20), slice(20, 40)):
        wide.add(keys[part], labels[part], extras=[extra[part] for extra in extras])
        narrow.add(keys[part], labels[part])
    for memory in (wide, narrow):
        memory.forget(memory.ids[3:9:2])

    found, expected = wide.nearest(asked, 4), narrow.nearest(asked, 4)
    assert found.positions.tolist() == expected.positions.tolist()
    assert found.distances.tolist() == expected.distances.tolist()
    assert wide.extras[0].tolist() == (100 * wide.keys[:, :2]).tolist()
    assert wide.extras[1].tolist() == (-wide.keys).tolist()


@pytest.mark.parametrize("extras", [[np.zeros((2, 2))], [np.zeros((1, 1))], [], [[1.0, 2.0]]])
def test_extras_of_another_shape_are_refused(extras):
    memory = Datastore(1).add([[0.0]], [0], extras=[np.zeros((1, 1))])

    with pytest.raises(ValueError, match="expected extras of 2 rows"):
        memory.add([[1.0], [2.0]], [0, 1], extras=[np.asarray(extra) for extra in extras])


def test_a_metric_changes_the_embedding_only():
    view = RowFeatures(np.array([[3.0, 4.0], [0.0, 0.0]]), np.array([[7.0], [9.0]]))

    found = view.in_metric("cosine")

    assert found.embedding.tolist() == [[0.6, 0.8], [0.0, 0.0]]
    assert found.rows is view.rows
    assert found.table().tolist() == [[0.6, 0.8, 7.0], [0.0, 0.0, 9.0]]
