"""Codebooks of public rows, shared by all clients: rows can be deleted from coded memories."""

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError

from fedneighbors.errors import RebuildNeeded
from fedneighbors.methods.knnper import KNNPerClassifier
from fedneighbors.methods.knnper.memory._codes import fit_codebook
from fedneighbors.partition import dirichlet

DIGITS, LABELS = load_digits(return_X_y=True)
PUBLIC, OTHERS = DIGITS[:400] / 16, LABELS[400:]
OWNER = dirichlet(OTHERS, 4, alpha=0.5, min_rows=60, seed=0)
X, Y, WRITER = DIGITS[400::2] / 16, OTHERS[::2], OWNER[::2]
NEW, NEW_Y, NEW_WRITER = DIGITS[401::2] / 16, OTHERS[1::2], OWNER[1::2]
WRITERS = np.unique(WRITER).tolist()
QUICK = {"hidden": (128,), "n_rounds": 10}


def fit(**parameters):
    return KNNPerClassifier(**{**QUICK, **parameters}).fit(X, Y, parties=WRITER)


@pytest.fixture(scope="module")
def exact_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("exact") / "model.fnk"
    fit().save(path)
    return path


@pytest.fixture
def exact(exact_file):
    return KNNPerClassifier.load(exact_file)


def test_shared_codes_take_a_32nd_at_nearly_equal_accuracy(exact):
    exact_bytes = {name: 4 * client.memory.keys.size for name, client in exact.clients_.items()}
    before = exact.predict(NEW, NEW_WRITER)
    accuracy = exact.score(NEW, NEW_Y, parties=NEW_WRITER)

    exact.share_codebook(PUBLIC)

    for name, client in exact.clients_.items():
        assert 32 * client.memory.nbytes < exact_bytes[name]  # only the coded memory counts labels
        assert client.memory.nbytes == len(client.memory) * (8 + 1)
    assert (exact.predict(NEW, NEW_WRITER) == before).mean() > 0.94
    assert accuracy - exact.score(NEW, NEW_Y, parties=NEW_WRITER) < 0.015


def test_coded_memories_alone_lose_little_accuracy(exact):
    """Set lambda to 1, because a smaller one may hide the loss by codes."""
    for client in exact.clients_.values():
        client.weight = 1.0
    accuracy = exact.score(NEW, NEW_Y, parties=NEW_WRITER)

    exact.share_codebook(PUBLIC)

    assert {client.weight for client in exact.clients_.values()} == {1.0}
    assert accuracy - exact.score(NEW, NEW_Y, parties=NEW_WRITER) < 0.025


def test_the_codebook_is_that_of_the_public_rows(exact):
    assert exact.codebook_ is None

    assert exact.share_codebook(PUBLIC, n_stretches=16, bits=4) is exact

    book = fit_codebook(exact.embed(PUBLIC)[0], n_stretches=16, bits=4)
    assert exact.codebook_.entries.tolist() == book.entries.tolist()
    codes = exact.clients_[WRITERS[0]].memory.codes
    assert codes.shape == ((WRITERS[0] == WRITER).sum(), 8)


def test_forgetting_commutes_with_sharing_a_codebook(exact, exact_file, tmp_path):
    name = WRITERS[1]
    names = exact.clients_[name].memory.ids[3:30:2]
    other = KNNPerClassifier.load(exact_file)

    exact.share_codebook(PUBLIC).forget(name, names)
    other.forget(name, names).share_codebook(PUBLIC)

    exact.save(tmp_path / "after")
    other.save(tmp_path / "before")
    assert (tmp_path / "after").read_bytes() == (tmp_path / "before").read_bytes()
    with pytest.raises(KeyError, match="no rows named"):
        exact.forget(name, names[:1])


def test_a_memory_with_its_own_codebook_cannot_forget():
    model = KNNPerClassifier(**QUICK, memory="product").fit(X[:200], Y[:200])

    with pytest.raises(RebuildNeeded, match="use an external codebook"):
        model.forget("all", ["0"])


def test_new_clients_of_a_loaded_model_use_the_codebook(exact, tmp_path):
    exact.share_codebook(PUBLIC).save(tmp_path / "m")
    loaded = KNNPerClassifier.load(tmp_path / "m")

    for model in (exact, loaded):
        model.add_client("zoe", NEW[:90], NEW_Y[:90])
        model.update("zoe", NEW[90:120], NEW_Y[90:120]).forget("zoe", ["5", "100"])
        model.save(tmp_path / f"{model is loaded}")

    assert loaded.codebook_.entries.tolist() == exact.codebook_.entries.tolist()
    assert loaded.clients_["zoe"].memory.codec.book is loaded.codebook_
    assert len(loaded.clients_["zoe"].memory) == 118
    assert (tmp_path / "True").read_bytes() == (tmp_path / "False").read_bytes()
    probabilities = [model.predict_proba(NEW, ["zoe"] * len(NEW)) for model in (exact, loaded)]
    assert probabilities[0].tobytes() == probabilities[1].tobytes()


@pytest.mark.parametrize("strategy", ["concatenate", "fixed", "fifo", "reservoir"])
def test_capacity_and_strategy_keep_the_same_rows(strategy, tmp_path):
    exact = fit(strategy=strategy, capacity=80)
    exact.save(tmp_path / "m")
    coded = KNNPerClassifier.load(tmp_path / "m").share_codebook(PUBLIC)

    for model in (exact, coded):
        for start in range(0, 90, 30):
            model.update(WRITERS[0], NEW[start : start + 30], NEW_Y[start : start + 30])

    coded_memory, exact_memory = (model.clients_[WRITERS[0]].memory for model in (coded, exact))
    assert coded_memory.ids == exact_memory.ids
    assert coded_memory.labels.tolist() == exact_memory.labels.tolist()
    assert (
        coded_memory.codes.tolist()
        == coded_memory.codec.encode(np.array(exact_memory.keys)).tolist()
    )


def test_drift_is_detected_with_codes_without_false_alarms():
    model = fit(strategy="drift", capacity=100).share_codebook(PUBLIC)
    name = WRITERS[0]
    rows = np.random.default_rng(0).permutation(np.flatnonzero(name == WRITER))
    memory = model.clients_[name].memory

    for start in range(0, 40, 10):
        model.update(name, X[rows[start : start + 10]], Y[rows[start : start + 10]])
    assert memory.n_evictions == 0
    for start in range(40, 60, 10):
        model.update(name, X[rows[start : start + 10]], (Y[rows[start : start + 10]] + 1) % 10)

    assert memory.n_evictions > 0


def test_cosine_keys_get_a_codebook_of_cosine_keys():
    model = fit(metric="cosine", n_neighbors=(3, 10))
    before = model.predict(NEW, NEW_WRITER)

    model.share_codebook(PUBLIC).add_client("zoe", NEW[:60], NEW_Y[:60])

    lengths = np.linalg.norm(model.clients_["zoe"].memory.keys, axis=1)
    assert abs(np.median(lengths) - 1) < 0.1
    assert (model.predict(NEW, NEW_WRITER) == before).mean() > 0.94


def test_a_new_fit_has_exact_memories_again(exact):
    exact.share_codebook(PUBLIC)
    assert exact.memory == "exact"

    exact.fit(X[:100], Y[:100])

    assert exact.codebook_ is None
    assert exact.clients_["all"].memory.keys.shape == (100, 128)
    assert exact.clients_["all"].memory.nbytes == 100 * (128 * 8 + 8)


def test_a_file_of_codes_is_read_back_equal(exact, tmp_path):
    exact.share_codebook(PUBLIC, n_stretches=5, bits=4)

    exact.save(tmp_path / "all")
    exact.save(tmp_path / "one", client=WRITERS[2])
    loaded = KNNPerClassifier.load(tmp_path / "all")
    single_client = KNNPerClassifier.load(tmp_path / "one")

    assert loaded.memory == "exact"  # the memory that fit creates
    assert (
        loaded.predict_proba(NEW, NEW_WRITER).tobytes()
        == exact.predict_proba(NEW, NEW_WRITER).tobytes()
    )
    expected = exact.predict_proba(NEW, [WRITERS[2]] * len(NEW))
    assert single_client.predict_proba(NEW).tobytes() == expected.tobytes()
    with pytest.raises(ValueError, match="expected exact memories"):
        loaded.share_codebook(PUBLIC)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"memory": "8-bit"}, r"memory='exact', got '8-bit'; fit again"),
        ({"memory": "centers"}, r"memory='exact', got 'centers'"),
        ({"combine": "pool"}, "the heads of a pool need exact keys"),
        ({"metric": ("cosine", "euclidean")}, "each metric would need its own codebook"),
    ],
)
def test_unsupported_memories_are_refused(parameters, words):
    model = KNNPerClassifier(hidden=(8,), n_rounds=1, **parameters).fit(X[:80], Y[:80])
    before = model.clients_["all"].memory

    with pytest.raises(ValueError, match=words):
        model.share_codebook(PUBLIC)

    assert model.clients_["all"].memory is before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bits": 5}, "bits of 4 or 8, got 5"),
        ({"n_stretches": 0}, "rows and at least one segment"),
        ({"n_stretches": 2.5}, "rows and at least one segment"),
    ],
)
def test_invalid_codebook_settings_are_refused(exact, options, words):
    with pytest.raises(ValueError, match=words):
        exact.share_codebook(PUBLIC, **options)

    assert exact.codebook_ is None
    assert exact.clients_[WRITERS[0]].memory.keys.dtype == np.float64


def test_rows_of_another_shape_and_models_before_fit_are_refused(exact):
    with pytest.raises(ValueError, match="64 features"):
        exact.share_codebook(PUBLIC[:, :5])
    with pytest.raises(NotFittedError):
        KNNPerClassifier().share_codebook(PUBLIC)
