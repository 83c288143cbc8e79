"""k, metric and lambda that each client chooses for itself."""

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
CELLAR = np.where(np.arange(len(Y)) % 3 == 0, "south", "north")
QUICK = {"hidden": (16, 8), "n_rounds": 3}
KS, METRICS = (1, 7, 3), ("cosine", "euclidean")


def scene(seed, n=60, n_classes=3):
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
    found = in_metric(keys * unit, "cosine")

    for a, near in zip(keys.tolist(), found, strict=True):
        for b, far in zip(keys.tolist(), found, strict=True):
            expected = 2 - 2 * naive.cosine(a, b)
            assert float(((near - far) ** 2).sum()) == pytest.approx(expected, abs=1e-12)


def test_a_key_of_zeros_has_no_direction_and_stays():
    assert in_metric(np.zeros((2, 3)), "cosine").tolist() == np.zeros((2, 3)).tolist()


@pytest.mark.parametrize("seed", range(4))
def test_a_client_takes_the_first_of_the_best_candidates(seed):
    keys, scores, labels, held = scene(seed)
    settings = MemorySettings(n_neighbors=KS, metric=METRICS)

    found = ExpertOutputs.of(RowFeatures(keys), scores, labels, held, np.full(3, 1 / 3), settings)

    right = {}
    for metric in METRICS:
        near = in_metric(keys, metric)
        for k in KS:  # a separate search for each k
            votes = local_votes(nearest(near[~held], near[held], k), labels[~held], 3)
            weight = most_accurate_weight(votes, np.exp(scores[held]), labels[held])
            said = mix(votes, np.exp(scores[held]), weight).argmax(axis=1)
            right[metric, k, weight] = int((said == labels[held]).sum())
    best = next(each for each, n in right.items() if n == max(right.values()))
    assert (found.settings.metric, found.settings.n_neighbors, found.weight) == best


def test_numbers_take_the_candidate_of_least_squared_error():
    keys, _, _, held = scene(1)
    targets = np.arctan2(keys[:, 1], keys[:, 0])[:, None]  # a direction: lengths are irrelevant
    settings = MemorySettings(n_neighbors=(1, 4), metric=("euclidean", "cosine"))

    found = ExpertOutputs.of(
        RowFeatures(keys), np.zeros((60, 1)), targets, held, np.array([[0.0], [1.0]]), settings
    )

    errors = {}
    for metric in ("euclidean", "cosine"):
        near = in_metric(keys, metric)
        for k in (1, 4):
            means = local_means(nearest(near[~held], near[held], k), targets[~held])
            for weight in MEMORY_WEIGHTS:
                errors[metric, k, weight] = float(((weight * means - targets[held]) ** 2).sum())
    taken = found.settings.metric, found.settings.n_neighbors, found.weight
    assert taken == min(errors, key=errors.get)
    assert found.settings.metric == "cosine"


def test_the_first_of_equal_candidates_is_taken():
    keys, _, _, held = scene(0)
    settings = MemorySettings(n_neighbors=(9, 2), metric=("cosine", "euclidean"))
    alike = np.zeros((60, 1))  # any neighbors have the same mean

    found = ExpertOutputs.of(
        RowFeatures(keys), alike, alike, held, np.array([[0.0], [1.0]]), settings
    )

    assert (found.settings.n_neighbors, found.settings.metric) == (9, "cosine")


def test_held_out_rows_choose_but_are_not_in_the_memory():
    keys, scores, labels, held = scene(2)
    settings = MemorySettings(n_neighbors=KS, metric=METRICS)
    wrong = np.where(held, (labels + 1) % 3, labels)

    one, other = (
        ExpertOutputs.of(RowFeatures(keys), scores, y, held, np.full(3, 1 / 3), settings)
        for y in (labels, wrong)
    )

    assert one.weight > 0  # its neighbors are right
    assert other.weight == 0  # they are not, though each row's own label would be


@pytest.mark.parametrize("combine", ["paper", "pool"])
@pytest.mark.parametrize("kind", [KNNPerClassifier, KNNPerRegressor])
def test_every_client_chooses_its_k_and_metric(kind, combine):
    found = kind(**QUICK, n_neighbors=[1, 5], metric=["euclidean", "cosine"], combine=combine)

    found.fit(X[:140], Y[:140], parties=CELLAR[:140])
    found.add_client("new", X[140:], Y[140:])

    assert set(found.clients_) == {"north", "south", "new"}
    for client in found.clients_.values():
        assert client.settings.n_neighbors in (1, 5)
        assert client.settings.metric in ("euclidean", "cosine")
        assert client.weight in MEMORY_WEIGHTS
    assert np.isfinite(found.score(X[:140], Y[:140], parties=CELLAR[:140]))


def test_one_candidate_equals_no_choice():
    plain = KNNPerClassifier(**QUICK, n_neighbors=5).fit(X, Y, parties=CELLAR)
    listed = KNNPerClassifier(**QUICK, n_neighbors=[5], metric=["euclidean"])

    listed.fit(X, Y, parties=CELLAR)

    again = listed.predict_proba(X, CELLAR)
    assert again.tobytes() == plain.predict_proba(X, CELLAR).tobytes()


def test_under_the_cosine_lengths_do_not_matter():
    _, scores, _, _ = scene(3)
    found = KNNPerClassifier(**QUICK, metric="cosine").fit(X, Y, parties=CELLAR)
    personal = found.clients_["north"]
    width = personal.memory.keys.shape[1]
    asked = np.abs(np.random.default_rng(0).normal(size=(5, width)))

    votes = personal.votes(RowFeatures(asked), scores[:5])

    np.testing.assert_allclose(
        personal.votes(RowFeatures(asked * 64.0), scores[:5]), votes, rtol=1e-12
    )
    lengths = np.sqrt((personal.memory.keys**2).sum(axis=1))
    assert ((np.abs(lengths - 1) < 1e-12) | (lengths == 0)).all()


def test_candidates_go_into_a_file_and_come_back(tmp_path):
    found = KNNPerClassifier(**QUICK, n_neighbors=[1, 5], metric=["cosine", "euclidean"])
    found.fit(X, Y, parties=CELLAR).save(tmp_path / "model")

    again = KNNPerClassifier.load(tmp_path / "model")

    assert again.n_neighbors == (1, 5)
    assert again.predict_proba(X, CELLAR).tobytes() == found.predict_proba(X, CELLAR).tobytes()


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
def test_candidates_are_checked_with_the_way_out(changed, words):
    with pytest.raises(ValueError, match=words):
        KNNPerClassifier(**changed).fit(X, Y)
