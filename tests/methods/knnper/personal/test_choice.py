"""Each client's choice of k, metric and lambda."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.datasets import load_wine

from fedneighbors.methods.knnper import KNNPerClassifier, KNNPerRegressor
from fedneighbors.methods.knnper._settings import MemorySettings
from fedneighbors.methods.knnper.algorithm import (
    MEMORY_WEIGHTS,
    local_means,
    local_votes,
    mix,
    most_accurate_weight,
    nearest,
)
from fedneighbors.methods.knnper.memory._rows import RowFeatures, in_metric
from fedneighbors.methods.knnper.personal._client_state import ExpertOutputs, held_out_mask
from tests.naive import knnper as naive

X, Y = load_wine(return_X_y=True)
PARTIES = np.where(np.arange(len(Y)) % 3 == 0, "south", "north")
QUICK = {"hidden": (16, 8), "n_rounds": 3}
KS, METRICS = (1, 7, 3), ("cosine", "euclidean")


def make_client_data(seed, n=60, n_classes=3):
    """Return keys, logarithms of shares, labels and held-out rows of a client."""
    random = np.random.default_rng(seed)
    keys = random.normal(size=(n, 4)) * random.exponential(size=(n, 1))
    scores = np.log(random.dirichlet(np.ones(n_classes), size=n))
    labels = (np.arctan2(keys[:, 1], keys[:, 0]) > 0).astype(int) + (keys[:, 2] > 1)
    return keys, scores, labels, held_out_mask(n, MemorySettings(), str(seed))


@given(
    arrays(np.float64, (5, 3), elements=st.floats(-1e3, 1e3).filter(lambda v: abs(v) > 1e-3)),
    st.sampled_from([1e-200, 1.0, 1e200]),
)
def test_squared_direction_distances_are_two_minus_2_cosine(keys, unit):
    directions = in_metric(keys * unit, "cosine")

    for a, first in zip(keys.tolist(), directions, strict=True):
        for b, second in zip(keys.tolist(), directions, strict=True):
            expected = 2 - 2 * naive.cosine(a, b)
            assert float(((first - second) ** 2).sum()) == pytest.approx(expected, abs=1e-12)


def test_a_zero_key_stays_zero():
    assert in_metric(np.zeros((2, 3)), "cosine").tolist() == np.zeros((2, 3)).tolist()


@pytest.mark.parametrize("seed", range(4))
def test_a_client_chooses_the_first_of_the_best_candidates(seed):
    keys, scores, labels, held_out = make_client_data(seed)
    settings = MemorySettings(n_neighbors=KS, metric=METRICS)

    outputs = ExpertOutputs.of(
        RowFeatures(keys), scores, labels, held_out, np.full(3, 1 / 3), settings
    )

    hits = {}
    for metric in METRICS:
        transformed = in_metric(keys, metric)
        for k in KS:  # a separate search for each k
            votes = local_votes(
                nearest(transformed[~held_out], transformed[held_out], k), labels[~held_out], 3
            )
            weight = most_accurate_weight(votes, np.exp(scores[held_out]), labels[held_out])
            predicted = mix(votes, np.exp(scores[held_out]), weight).argmax(axis=1)
            hits[metric, k, weight] = int((predicted == labels[held_out]).sum())
    best = next(candidate for candidate, n in hits.items() if n == max(hits.values()))
    assert (outputs.settings.metric, outputs.settings.n_neighbors, outputs.weight) == best


def test_regression_chooses_the_least_squared_error():
    keys, _, _, held_out = make_client_data(1)
    targets = np.arctan2(keys[:, 1], keys[:, 0])[:, None]  # a direction: lengths are irrelevant
    settings = MemorySettings(n_neighbors=(1, 4), metric=("euclidean", "cosine"))

    outputs = ExpertOutputs.of(
        RowFeatures(keys), np.zeros((60, 1)), targets, held_out, np.array([[0.0], [1.0]]), settings
    )

    errors = {}
    for metric in ("euclidean", "cosine"):
        transformed = in_metric(keys, metric)
        for k in (1, 4):
            means = local_means(
                nearest(transformed[~held_out], transformed[held_out], k), targets[~held_out]
            )
            for weight in MEMORY_WEIGHTS:
                errors[metric, k, weight] = float(((weight * means - targets[held_out]) ** 2).sum())
    choice = outputs.settings.metric, outputs.settings.n_neighbors, outputs.weight
    assert choice == min(errors, key=errors.get)
    assert outputs.settings.metric == "cosine"


def test_the_first_of_equal_candidates_is_chosen():
    keys, _, _, held_out = make_client_data(0)
    settings = MemorySettings(n_neighbors=(9, 2), metric=("cosine", "euclidean"))
    zeros = np.zeros((60, 1))  # any neighbors have the same mean

    outputs = ExpertOutputs.of(
        RowFeatures(keys), zeros, zeros, held_out, np.array([[0.0], [1.0]]), settings
    )

    assert (outputs.settings.n_neighbors, outputs.settings.metric) == (9, "cosine")


def test_held_out_rows_choose_and_are_not_in_the_memory():
    keys, scores, labels, held_out = make_client_data(2)
    settings = MemorySettings(n_neighbors=KS, metric=METRICS)
    wrong = np.where(held_out, (labels + 1) % 3, labels)

    with_right_labels, with_wrong_labels = (
        ExpertOutputs.of(RowFeatures(keys), scores, y, held_out, np.full(3, 1 / 3), settings)
        for y in (labels, wrong)
    )

    assert with_right_labels.weight > 0  # its neighbors are right
    assert with_wrong_labels.weight == 0  # they are wrong; the row itself is left out


@pytest.mark.parametrize("combine", ["paper", "pool"])
@pytest.mark.parametrize("kind", [KNNPerClassifier, KNNPerRegressor])
def test_every_client_chooses_its_k_and_metric(kind, combine):
    model = kind(**QUICK, n_neighbors=[1, 5], metric=["euclidean", "cosine"], combine=combine)

    model.fit(X[:140], Y[:140], parties=PARTIES[:140])
    model.add_client("new", X[140:], Y[140:])

    assert set(model.clients_) == {"north", "south", "new"}
    for client in model.clients_.values():
        assert client.settings.n_neighbors in (1, 5)
        assert client.settings.metric in ("euclidean", "cosine")
        assert client.weight in MEMORY_WEIGHTS
    assert np.isfinite(model.score(X[:140], Y[:140], parties=PARTIES[:140]))


def test_one_candidate_equals_no_choice():
    plain = KNNPerClassifier(**QUICK, n_neighbors=5).fit(X, Y, parties=PARTIES)
    listed = KNNPerClassifier(**QUICK, n_neighbors=[5], metric=["euclidean"])

    listed.fit(X, Y, parties=PARTIES)

    probabilities = listed.predict_proba(X, PARTIES)
    assert probabilities.tobytes() == plain.predict_proba(X, PARTIES).tobytes()


def test_cosine_ignores_the_length_of_keys():
    _, scores, _, _ = make_client_data(3)
    model = KNNPerClassifier(**QUICK, metric="cosine").fit(X, Y, parties=PARTIES)
    state = model.clients_["north"]
    width = state.memory.keys.shape[1]
    queries = np.abs(np.random.default_rng(0).normal(size=(5, width)))

    votes = state.predict_from_memory(RowFeatures(queries), scores[:5])

    np.testing.assert_allclose(
        state.predict_from_memory(RowFeatures(queries * 64.0), scores[:5]), votes, rtol=1e-12
    )
    lengths = np.sqrt((state.memory.keys**2).sum(axis=1))
    assert ((np.abs(lengths - 1) < 1e-12) | (lengths == 0)).all()


def test_candidates_are_saved_and_loaded(tmp_path):
    model = KNNPerClassifier(**QUICK, n_neighbors=[1, 5], metric=["cosine", "euclidean"])
    model.fit(X, Y, parties=PARTIES).save(tmp_path / "model")

    loaded = KNNPerClassifier.load(tmp_path / "model")

    assert loaded.n_neighbors == (1, 5)
    assert loaded.predict_proba(X, PARTIES).tobytes() == model.predict_proba(X, PARTIES).tobytes()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"n_neighbors": [5, 0]}, "expected n_neighbors as an integer of 1 or more, got 0"),
        ({"n_neighbors": []}, "expected n_neighbors"),
        ({"n_neighbors": 2.5}, "expected n_neighbors"),
        ({"metric": "manhattan"}, "expected metric among"),
        ({"metric": []}, "expected metric among"),
        ({"metric": ["cosine", "chebyshev"]}, "expected metric among"),
    ],
)
def test_invalid_candidates_are_refused(changed, words):
    with pytest.raises(ValueError, match=words):
        KNNPerClassifier(**changed).fit(X, Y)


def naive_scale(keys, held_out, k):
    """Return the median distance of held-out rows from their k-th nearest other row."""
    kth = []
    for query in keys[held_out].tolist():
        distances = sorted(
            sum((a - b) ** 2 for a, b in zip(query, key, strict=True)) ** 0.5
            for key in keys[~held_out].tolist()
        )
        kth.append(distances[min(k, len(distances)) - 1])
    kth.sort()
    middle = len(kth) // 2
    return kth[middle] if len(kth) % 2 else (kth[middle - 1] + kth[middle]) / 2


@pytest.mark.parametrize("k", [1, 4, 500])
@pytest.mark.parametrize("memory", ["exact", "centers"])
def test_an_automatic_sigma_is_the_median_held_out_distance(k, memory):
    keys, scores, labels, held_out = make_client_data(3, n=61)
    settings = MemorySettings(n_neighbors=k, sigma="auto", memory=memory)

    outputs = ExpertOutputs.of(
        RowFeatures(keys), scores, labels, held_out, np.full(3, 1 / 3), settings
    )

    if memory == "exact":
        assert outputs.settings.sigma == pytest.approx(naive_scale(keys, held_out, k))
    else:
        assert 0 < outputs.settings.sigma != 1
    fixed = replace(settings, sigma=outputs.settings.sigma)
    expected = ExpertOutputs.of(
        RowFeatures(keys), scores, labels, held_out, np.full(3, 1 / 3), fixed
    )
    assert outputs.experts.tobytes() == expected.experts.tobytes()


def test_each_candidate_k_has_its_own_automatic_sigma():
    keys, _, labels, held_out = make_client_data(4)
    memory = MemorySettings().new_memory(4, 3).add(keys[~held_out], labels[~held_out])

    candidates = MemorySettings(n_neighbors=(2, 9), sigma="auto").for_each_k(memory, keys[held_out])

    assert [each.n_neighbors for each in candidates] == [2, 9]
    for each in candidates:
        assert each.sigma == pytest.approx(naive_scale(keys, held_out, each.n_neighbors))


@pytest.mark.parametrize("n_rows", [1, 6])
def test_an_automatic_sigma_without_distances_is_one(n_rows):
    x, owner = np.ones((30, 2)), np.array(["big"] * (30 - n_rows) + ["small"] * n_rows)
    model = KNNPerClassifier(representation="rows", sigma="auto")

    model.fit(x, np.arange(30) % 2, parties=owner)

    assert model.clients_["small"].settings.sigma == 1.0


def test_a_new_client_of_a_pool_chooses_its_sigma(tmp_path):
    model = KNNPerClassifier(representation="rows", combine="pool", sigma="auto")
    model.fit(X, Y, parties=PARTIES).add_client("new", X[:30], Y[:30])
    model.save(tmp_path / "m")

    loaded = KNNPerClassifier.load(tmp_path / "m")

    sigmas = {name: client.settings.sigma for name, client in model.clients_.items()}
    assert len(set(sigmas.values())) == 3
    assert {name: client.settings.sigma for name, client in loaded.clients_.items()} == sigmas
    assert loaded.sigma == "auto"
    with pytest.raises(ValueError, match='expected sigma above 0 or "auto"'):
        MemorySettings(sigma="median")
