"""A codebook of public rows that all clients share: small memories that still forget."""

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
NEW, NEW_Y, ASKER = DIGITS[401::2] / 16, OTHERS[1::2], OWNER[1::2]
WRITERS = np.unique(WRITER).tolist()
QUICK = {"hidden": (128,), "n_rounds": 10}


def fitted(**parameters):
    return KNNPerClassifier(**{**QUICK, **parameters}).fit(X, Y, parties=WRITER)


@pytest.fixture(scope="module")
def exact_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("exact") / "model.fnk"
    fitted().save(path)
    return path


@pytest.fixture
def exact(exact_file):
    return KNNPerClassifier.load(exact_file)


def test_shared_codes_are_a_32nd_and_answer_nearly_alike(exact):
    narrow = {name: 4 * own.memory.keys.size for name, own in exact.clients_.items()}
    before = exact.predict(NEW, ASKER)
    right = exact.score(NEW, NEW_Y, parties=ASKER)

    exact.share_codebook(PUBLIC)

    for name, own in exact.clients_.items():
        assert 32 * own.memory.nbytes < narrow[name]  # only the coded memory counts labels
        assert own.memory.nbytes == len(own.memory) * (8 + 1)
    assert (exact.predict(NEW, ASKER) == before).mean() > 0.94
    assert right - exact.score(NEW, NEW_Y, parties=ASKER) < 0.015


def test_coded_memories_answer_nearly_as_before(exact):
    """Set lambda to 1, because a smaller one may hide the loss by codes."""
    for own in exact.clients_.values():
        own.weight = 1.0
    right = exact.score(NEW, NEW_Y, parties=ASKER)

    exact.share_codebook(PUBLIC)

    assert {own.weight for own in exact.clients_.values()} == {1.0}
    assert right - exact.score(NEW, NEW_Y, parties=ASKER) < 0.025


def test_the_codebook_is_that_of_the_public_rows(exact):
    assert exact.codebook_ is None

    assert exact.share_codebook(PUBLIC, n_stretches=16, bits=4) is exact

    book = fit_codebook(exact.embed(PUBLIC)[0], n_stretches=16, bits=4)
    assert exact.codebook_.entries.tolist() == book.entries.tolist()
    codes = exact.clients_[WRITERS[0]].memory.codes
    assert codes.shape == ((WRITERS[0] == WRITER).sum(), 8)


def test_a_row_that_is_forgotten_has_never_been_there(exact, exact_file, tmp_path):
    name = WRITERS[1]
    gone = exact.clients_[name].memory.ids[3:30:2]
    other = KNNPerClassifier.load(exact_file)

    exact.share_codebook(PUBLIC).forget(name, gone)
    other.forget(name, gone).share_codebook(PUBLIC)

    exact.save(tmp_path / "after")
    other.save(tmp_path / "before")
    assert (tmp_path / "after").read_bytes() == (tmp_path / "before").read_bytes()
    with pytest.raises(KeyError, match="no rows named"):
        exact.forget(name, gone[:1])


def test_an_own_codebook_can_not_forget():
    model = KNNPerClassifier(**QUICK, memory="product").fit(X[:200], Y[:200])

    with pytest.raises(RebuildNeeded, match="use an external codebook"):
        model.forget("all", ["0"])


def test_later_clients_get_the_codebook_also_from_a_file(exact, tmp_path):
    exact.share_codebook(PUBLIC).save(tmp_path / "m")
    found = KNNPerClassifier.load(tmp_path / "m")

    for each in (exact, found):
        each.add_client("zoe", NEW[:90], NEW_Y[:90])
        each.update("zoe", NEW[90:120], NEW_Y[90:120]).forget("zoe", ["5", "100"])
        each.save(tmp_path / f"{each is found}")

    assert found.codebook_.entries.tolist() == exact.codebook_.entries.tolist()
    assert found.clients_["zoe"].memory.codec.book is found.codebook_
    assert len(found.clients_["zoe"].memory) == 118
    assert (tmp_path / "True").read_bytes() == (tmp_path / "False").read_bytes()
    shares = [each.predict_proba(NEW, ["zoe"] * len(NEW)) for each in (exact, found)]
    assert shares[0].tobytes() == shares[1].tobytes()


@pytest.mark.parametrize("strategy", ["concatenate", "fixed", "fifo", "reservoir"])
def test_capacity_and_strategy_keep_the_same_rows(strategy, tmp_path):
    exact = fitted(strategy=strategy, capacity=80)
    exact.save(tmp_path / "m")
    coded = KNNPerClassifier.load(tmp_path / "m").share_codebook(PUBLIC)

    for each in (exact, coded):
        for start in range(0, 90, 30):
            each.update(WRITERS[0], NEW[start : start + 30], NEW_Y[start : start + 30])

    ours, theirs = (each.clients_[WRITERS[0]].memory for each in (coded, exact))
    assert ours.ids == theirs.ids
    assert ours.labels.tolist() == theirs.labels.tolist()
    assert ours.codes.tolist() == ours.codec.encode(np.array(theirs.keys)).tolist()


def test_drift_is_noticed_through_codes_without_false_alarms():
    model = fitted(strategy="drift", capacity=100).share_codebook(PUBLIC)
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
    model = fitted(metric="cosine", n_neighbors=(3, 10))
    before = model.predict(NEW, ASKER)

    model.share_codebook(PUBLIC).add_client("zoe", NEW[:60], NEW_Y[:60])

    lengths = np.linalg.norm(model.clients_["zoe"].memory.keys, axis=1)
    assert abs(np.median(lengths) - 1) < 0.1
    assert (model.predict(NEW, ASKER) == before).mean() > 0.94


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
    found = KNNPerClassifier.load(tmp_path / "all")
    one = KNNPerClassifier.load(tmp_path / "one")

    assert found.memory == "exact"  # the memory that fit creates
    assert found.predict_proba(NEW, ASKER).tobytes() == exact.predict_proba(NEW, ASKER).tobytes()
    asked = exact.predict_proba(NEW, [WRITERS[2]] * len(NEW))
    assert one.predict_proba(NEW).tobytes() == asked.tobytes()
    with pytest.raises(ValueError, match="expected exact memories"):
        found.share_codebook(PUBLIC)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"memory": "8-bit"}, r"memory='exact', got '8-bit'; fit again"),
        ({"memory": "centers"}, r"memory='exact', got 'centers'"),
        ({"combine": "pool"}, "the heads of a pool need exact keys"),
        ({"metric": ("cosine", "euclidean")}, "each metric would need its own codebook"),
    ],
)
def test_memories_that_do_not_suit_are_refused(parameters, words):
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
def test_a_codebook_that_cannot_be_is_refused(exact, options, words):
    with pytest.raises(ValueError, match=words):
        exact.share_codebook(PUBLIC, **options)

    assert exact.codebook_ is None
    assert exact.clients_[WRITERS[0]].memory.keys.dtype == np.float64


def test_rows_of_another_shape_and_models_before_fit_are_refused(exact):
    with pytest.raises(ValueError, match="64 features"):
        exact.share_codebook(PUBLIC[:, :5])
    with pytest.raises(NotFittedError):
        KNNPerClassifier().share_codebook(PUBLIC)
