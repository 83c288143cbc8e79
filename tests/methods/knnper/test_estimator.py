"""``KNNPerClassifier``: the scikit-learn interface, clients and rows."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_wine
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

from fedneighbors.errors import DataError, ModelFileError
from fedneighbors.methods.knnper import KNNPerClassifier
from fedneighbors.methods.knnper._task import CLASSIFICATION
from tests.methods.knnper.federations import DIGITS, LABELS, N_ROWS, OWNER
from tests.methods.knnper.tampering import interrupt_second_write

X, Y = load_wine(return_X_y=True)
PARTIES = np.where(np.arange(len(Y)) % 3 == 0, "south", "north")

QUICK = {"hidden": (16, 8), "n_rounds": 3}

# scikit-learn checks that cannot pass, each with its reason.
EXPECTED_FAILURES = {}


@parametrize_with_checks(
    [
        KNNPerClassifier(hidden=(32,), n_rounds=20, learning_rate=0.1, combine=combine)
        for combine in ("paper", "pool")
    ],
    expected_failed_checks=lambda _: EXPECTED_FAILURES,
)
def test_scikit_learn_accepts_the_estimator(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def fitted():
    return KNNPerClassifier(n_rounds=30, combine="pool").fit(X, Y, parties=PARTIES)


def test_wine_is_classified(fitted):
    assert fitted.score(X, Y, parties=PARTIES) > 0.95
    assert fitted.pool_.experts == CLASSIFICATION.experts
    assert fitted.run_record_.tables == (fitted.pool_.tabulate(),)


def test_no_expert_of_a_pool_has_a_negative_weight(fitted):
    pool = fitted.pool_

    assert pool.weights.min() == 0 < pool.weights.max()
    assert (pool.losses_without >= pool.loss - 1e-6).all()
    np.testing.assert_allclose(pool.losses_without[pool.weights == 0], pool.loss, atol=1e-6)


def test_probabilities_add_up_and_agree_with_predictions(fitted):
    probabilities = fitted.predict_proba(X, PARTIES)

    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-12)
    assert (fitted.classes_[probabilities.argmax(axis=1)] == fitted.predict(X, PARTIES)).all()


def test_the_same_seed_gives_the_same_bits():
    first, second = (
        KNNPerClassifier(**QUICK).fit(X, Y, parties=PARTIES).predict_proba(X, PARTIES) for _ in "ab"
    )

    assert first.tobytes() == second.tobytes()


def test_missing_parties_warn_and_get_the_shared_network(fitted):
    _, scores = fitted.embed(X)

    with pytest.warns(UserWarning, match="parties= is missing"):
        probabilities = fitted.predict_proba(X)

    assert probabilities.tolist() == np.exp(scores).tolist()


def test_an_unknown_client_gets_the_shared_network_and_is_named(fitted):
    _, scores = fitted.embed(X[:2])

    with pytest.warns(UserWarning, match=r"clients \['moon'\] are unknown"):
        probabilities = fitted.predict_proba(X[:2], parties=["moon", "north"])

    single = fitted.predict_proba(X[1:2], parties=["north"])[0]
    assert probabilities[0].tolist() == np.exp(scores[0]).tolist()
    np.testing.assert_allclose(
        probabilities[1], single, rtol=1e-5
    )  # products of a single row are rounded differently


@pytest.mark.parametrize("combine", ["paper", "pool"])
def test_adding_a_client_changes_no_other_client(combine):
    is_old = np.arange(N_ROWS) < 200
    model = KNNPerClassifier(**QUICK, combine=combine, standardize=False)
    model.fit(DIGITS[:200], LABELS[:200], parties=OWNER[:200])
    before = model.predict_proba(DIGITS[:200], OWNER[:200])

    model.add_client("new", DIGITS[:N_ROWS][~is_old], LABELS[:N_ROWS][~is_old])

    assert len(model.clients_["new"].memory) == 40
    assert model.predict_proba(DIGITS[:200], OWNER[:200]).tobytes() == before.tobytes()
    with pytest.raises(ValueError, match="already exists"):
        model.add_client("new", DIGITS[:5], LABELS[:5])


def test_rows_are_added_and_removed_by_name():
    model = KNNPerClassifier(**QUICK, combine="pool").fit(X, Y, parties=PARTIES)
    before = model.predict_proba(X, PARTIES)

    model.update("north", X[:3], Y[:3], ids=["a", "b", "c"])
    changed = model.predict_proba(X, PARTIES)
    model.forget("north", ["a", "b", "c"])

    assert changed.tobytes() != before.tobytes()
    assert model.predict_proba(X, PARTIES).tobytes() == before.tobytes()
    with pytest.raises(KeyError, match="no rows named"):
        model.forget("north", ["a"])
    with pytest.raises(ValueError, match="client 'moon' is unknown; add it with add_client"):
        model.update("moon", X[:1], Y[:1])


def test_without_rows_the_shared_network_predicts():
    model = KNNPerClassifier(**QUICK).fit(X, Y, parties=PARTIES)
    model.forget("north", model.clients_["north"].memory.ids)

    probabilities = model.predict_proba(X[:4], ["north"] * 4)

    assert probabilities.tolist() == np.exp(model.embed(X[:4])[1]).tolist()


def test_labels_of_later_rows_must_be_declared():
    is_known = Y != 2
    undeclared = KNNPerClassifier(**QUICK).fit(X[is_known], Y[is_known])
    declared = KNNPerClassifier(**QUICK, classes=[0, 1, 2]).fit(X[is_known], Y[is_known])

    with pytest.raises(ValueError, match=r"among \[0, 1\], got \['2'\]; list all"):
        undeclared.update("all", X[~is_known], Y[~is_known])
    declared.clients_["all"].weight = 1.0  # predictions of its memory only
    before = declared.score(X[~is_known], Y[~is_known])
    declared.update("all", X[~is_known], Y[~is_known])

    assert before == 0
    assert declared.score(X[~is_known], Y[~is_known]) > 0.5


def test_text_labels_are_predicted_as_text():
    names = np.array(["red", "rose", "white"])

    model = KNNPerClassifier(**QUICK).fit(X, names[Y])

    assert model.classes_.tolist() == names.tolist()
    assert set(model.predict(X)) <= set(names)


class Tiny(nn.Module):
    """A convolution over small images."""

    def __init__(self, channels, n_classes):
        super().__init__()
        self.seen = nn.Sequential(nn.Conv2d(channels, 4, 3), nn.ReLU(), nn.Flatten())
        self.last = nn.Linear(4 * 36, n_classes)

    def forward(self, x):
        return self.last(self.seen(x))


def test_a_custom_network_is_trained_by_its_layer_names():
    images = (DIGITS[:N_ROWS] / 16).reshape(-1, 1, 8, 8)

    model = KNNPerClassifier(
        lambda shape, n: Tiny(shape[0], n), embedding="seen", head="last", n_rounds=3
    ).fit(images, LABELS[:N_ROWS], parties=OWNER)

    keys, _ = model.embed(images[:2])
    assert keys.shape == (2, 144)
    assert model.predict(images[:3], parties=OWNER[:3]).shape == (3,)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"n_neighbors": 0}, "expected n_neighbors as an integer of 1 or more, got 0"),
        ({"sigma": 0.0}, "expected sigma above 0"),
        ({"kernel": "cubic"}, "expected kernel among"),
        ({"combine": "vote"}, "expected combine among"),
        ({"strategy": "lifo"}, "expected strategy among"),
        ({"validation": 1.0}, "expected validation between 0 and 1"),
        ({"participation": 0.0}, "expected participation above 0"),
        ({"n_rounds": 0}, "expected n_rounds"),
        ({"capacity": 0}, "expected capacity"),
        ({"hidden": ()}, "expected hidden as the widths of at least one hidden layer"),
        ({"trainer": "fast"}, "expected method 'auto', 'stacked' or 'reuse'"),
        ({"model": nn.Linear(13, 3)}, "no layer named 'body'"),
        ({"classes": [0, 1]}, "not among classes"),
    ],
)
def test_invalid_parameters_are_refused(changed, words):
    with pytest.raises(ValueError, match=words):
        KNNPerClassifier(**changed).fit(X, Y)


def test_an_invalid_network_is_refused():
    with pytest.raises(TypeError, match=r"expected model as a torch\.nn\.Module"):
        KNNPerClassifier(model="resnet").fit(X, Y)


def test_a_single_class_is_refused():
    with pytest.raises(DataError, match="at least two classes"):
        KNNPerClassifier(**QUICK).fit(X[:5], np.zeros(5))


def test_an_interrupted_fit_resumes_from_its_file(tmp_path, monkeypatch):
    expected = KNNPerClassifier(**QUICK).fit(X, Y, parties=PARTIES)
    path = tmp_path / "training"
    interrupt_second_write(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        KNNPerClassifier(**QUICK, checkpoint=path).fit(X, Y, parties=PARTIES)
    with pytest.raises(ModelFileError, match="belongs to another training"):
        KNNPerClassifier(**QUICK, checkpoint=path).fit(X + 1, Y, parties=PARTIES)
    resumed = KNNPerClassifier(**QUICK, checkpoint=path).fit(X, Y, parties=PARTIES)

    assert resumed.weights_.tobytes() == expected.weights_.tobytes()
    assert not path.exists()


def test_fit_leaves_module_and_torchs_generator_unchanged():
    torch.manual_seed(5)
    module = nn.Sequential()
    module.add_module("body", nn.Linear(13, 6))
    module.add_module("head", nn.Linear(6, 3))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    state = torch.random.get_rng_state()

    KNNPerClassifier(module, n_rounds=2).fit(X, Y)

    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), state)
