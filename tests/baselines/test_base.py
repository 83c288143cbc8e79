"""Common behaviour of all baselines."""

import pickle
import sys
from copy import copy

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

from fedneighbors import baselines
from fedneighbors.errors import DataError, MissingExtraError
from tests.baselines.clients import NAMES, NEW_X, NEW_Y, QUICK, X, Y
from tests.methods.knnper.federations import OWNER

ALL = [getattr(baselines, name) for name in baselines.TITLES.values()]
WITH_SHARED_TRAINING = [method for method in ALL if method is not baselines.LocalClassifier]
HALF = QUICK | {"participation": 0.4}

# scikit-learn checks that cannot pass, each with its reason.
CANNOT_HOLD = {}


@parametrize_with_checks(
    [baselines.FedAvgPlusClassifier(hidden=(16,), n_rounds=10, learning_rate=0.1)],
    expected_failed_checks=lambda _: CANNOT_HOLD,
)
def test_scikit_learn_accepts_a_baseline(estimator, check):
    check(estimator)


@pytest.fixture(scope="module", params=ALL, ids=lambda method: method.__name__)
def model(request):
    return request.param(**HALF).fit(X, Y, parties=OWNER)


def test_parameters_are_stored_and_cloned(model):
    cloned = clone(model)

    assert {name: value for name, value in cloned.get_params().items() if value is not None} == {
        name: value for name, value in model.get_params().items() if value is not None
    }
    assert not hasattr(cloned, "weights_")


def test_equal_seeds_give_equal_bits_and_other_seeds_do_not(model):
    repeated = clone(model).fit(X, Y, parties=OWNER)
    other = clone(model).set_params(random_state=1).fit(X, Y, parties=OWNER)

    probabilities = model.predict_proba(X, OWNER).tobytes()
    assert repeated.weights_.tobytes() == model.weights_.tobytes()
    assert repeated.predict_proba(X, OWNER).tobytes() == probabilities
    assert other.predict_proba(X, OWNER).tobytes() != probabilities


def test_batched_training_equals_training_one_by_one(model):
    one_by_one = clone(model).set_params(trainer="reuse").fit(X, Y, parties=OWNER)

    np.testing.assert_allclose(
        one_by_one.predict_proba(X, OWNER), model.predict_proba(X, OWNER), rtol=1e-4, atol=1e-6
    )


def test_row_order_of_clients_does_not_matter(model):
    order = np.argsort(OWNER, kind="stable")

    sorted_rows = clone(model).fit(X[order], Y[order], parties=OWNER[order])

    probabilities = model.predict_proba(X, OWNER)
    assert sorted_rows.predict_proba(X, OWNER).tobytes() == probabilities.tobytes()


def test_probabilities_add_up_and_agree_with_predictions(model):
    probabilities = model.predict_proba(X, OWNER)

    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-12)
    assert (probabilities.argmax(axis=1) == model.predict(X, OWNER)).all()
    assert model.score(X, Y, parties=OWNER) == np.mean(model.predict(X, OWNER) == Y)


def test_an_unknown_client_gets_the_shared_model(model):
    with pytest.warns(UserWarning, match=r"clients \['moon'\] are unknown"):
        unknown = model.predict_proba(X[:4], ["moon"] * 4)
    with pytest.warns(UserWarning, match="parties= is missing"):
        shared = model.predict_proba(X[:4])

    assert unknown.tobytes() == shared.tobytes()
    if isinstance(model, baselines.LocalClassifier | baselines.FedProtoClassifier):
        np.testing.assert_allclose(shared, [model.overall_] * 4, rtol=1e-14)
    else:
        assert shared.tolist() == np.exp(model.embed(X[:4])[1]).tolist()


def test_a_later_client_predicts_and_changes_no_other(model):
    before, weights = model.predict_proba(X, OWNER).tobytes(), model.weights_.tobytes()

    model.add_client("new", NEW_X, NEW_Y)

    assert model.predict_proba(X, OWNER).tobytes() == before
    assert model.weights_.tobytes() == weights
    assert model.predict(NEW_X, ["new"] * len(NEW_X)).shape == NEW_Y.shape
    with pytest.raises(ValueError, match="'new' already exists"):
        model.add_client("new", NEW_X, NEW_Y)
    del model.clients_["new"]


def test_a_client_of_one_row_predicts(model):
    model.add_client("tiny", NEW_X[:1], NEW_Y[:1])

    assert np.isfinite(model.predict_proba(NEW_X, ["tiny"] * len(NEW_X))).all()
    del model.clients_["tiny"]


def test_rows_that_do_not_fit_are_refused(model):
    with pytest.raises(ValueError, match="expected one label for each of 3 rows, got 2"):
        model.add_client("odd", NEW_X[:3], NEW_Y[:2])
    with pytest.raises(ValueError, match=r"got \['77'\]; list all"):
        model.add_client("odd", NEW_X[:2], [1, 77])
    with pytest.raises(ValueError, match="features"):
        model.predict(X[:, 1:], OWNER)


def test_pickling_preserves_the_estimator(model):
    restored = pickle.loads(pickle.dumps(model))  # noqa: S301 - written by this test

    assert restored.predict_proba(X, OWNER).tobytes() == model.predict_proba(X, OWNER).tobytes()


@pytest.mark.parametrize("method", WITH_SHARED_TRAINING)
def test_negligible_steps_leave_the_network_unchanged(method):
    """In Eq 13, a client outside the round counts with the weights before the round."""
    rate = {"learning_rate": 1e-30, "tuning_rate": 1e-30}
    estimator = method(**HALF)
    rates = {name: rate[name] for name in rate if name in estimator.get_params()}

    model = estimator.set_params(**rates).fit(X, Y, parties=OWNER)

    kept = slice(None)
    if method in (baselines.FedProtoClassifier, baselines.PFedFDAClassifier):
        kept = ~model._agreement.head  # their heads are computed
    assert model.weights_[kept].tobytes() == model._network.initial[kept].tobytes()


@pytest.mark.parametrize("method", ALL)
def test_a_single_class_is_refused(method):
    with pytest.raises(DataError, match="at least two classes"):
        method(hidden=(4,), n_rounds=1).fit(X[:5], np.zeros(5))


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("LocalClassifier", {"n_rounds": 0}, "expected n_rounds"),
        ("FedAvgClassifier", {"participation": 0.0}, "expected participation above 0"),
        ("FedAvgClassifier", {"trainer": "fast"}, "expected trainer 'auto', 'stacked' or 'reuse'"),
        ("FedAvgClassifier", {"validation": 1.0}, "expected validation between 0 and 1, got 1.0"),
        ("FedAvgClassifier", {"classes": [0, 1]}, "not among classes"),
        (
            "FedProxClassifier",
            {"proximal": -1.0},
            "expected proximal of 0 or more, got -1.0",
        ),
        ("FedProtoClassifier", {"strength": -1}, "expected strength of 0 or more, got -1"),
        ("DittoClassifier", {"proximal": np.nan}, "expected proximal of 0 or more, got nan"),
        ("DittoClassifier", {"tuning_epochs": 0}, "expected tuning_epochs as an integer of 1"),
        ("FedRepClassifier", {"head_epochs": 0}, "expected head_epochs as an integer of 1"),
        ("FedRepClassifier", {"head_learning_rate": 0}, "expected head_learning_rate above 0"),
        ("FedPerClassifier", {"tuning_epochs": -1}, "expected tuning_epochs as an integer of 0"),
        ("APFLClassifier", {"alpha": 1.1}, "expected alpha from 0 to 1, got 1.1"),
        ("ClusteredFLClassifier", {"tolerance": True}, "expected tolerance of 0 or more"),
        ("ClusteredFLClassifier", {"split_after": 2}, "expected split_after from 0 to 1"),
        ("PriorCorrectedClassifier", {"strength": "full"}, "expected strength from 0 to 1"),
        ("HeadTuningClassifier", {"tuning_rate": -0.1}, "expected tuning_rate above 0"),
    ],
)
def test_parameters_out_of_range_are_named(name, parameters, message):
    with pytest.raises(ValueError, match=message):
        getattr(baselines, name)(**QUICK | parameters).fit(X, Y, parties=OWNER)


def test_each_row_needs_one_owner():
    with pytest.raises(ValueError, match="one party for each of 240 rows"):
        baselines.LocalClassifier(**QUICK).fit(X, Y, parties=NAMES)


def test_without_torch_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)

    with pytest.raises(MissingExtraError, match="torch"):
        baselines.DittoClassifier().fit(X, Y, parties=OWNER)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'FedMagic'"):
        baselines.FedMagic  # noqa: B018 - the look-up is the test


@pytest.mark.parametrize(
    "title", ["Local", "FedAvg+", "ClusteredFL", "Ditto", "FedRep", "APFL", "FedProto", "pFedFDA"]
)
def test_adding_clients_together_equals_adding_each(title):
    together = getattr(baselines, baselines.TITLES[title])(**QUICK).fit(X, Y, parties=OWNER)
    one_by_one = copy(together)
    one_by_one.clients_ = dict(together.clients_)
    names = np.repeat(["first", "second"], [25, 15])

    together.add_clients(NEW_X, NEW_Y, names)
    for name in ("first", "second"):
        one_by_one.add_client(name, NEW_X[names == name], NEW_Y[names == name])

    np.testing.assert_allclose(
        together.predict_proba(NEW_X, names), one_by_one.predict_proba(NEW_X, names), atol=1e-5
    )


def test_clients_that_join_together_are_added_all_or_none():
    model = baselines.DittoClassifier(**QUICK).fit(X, Y, parties=OWNER)
    before = dict(model.clients_)
    names = np.repeat(["first", sorted(before)[0]], 20)

    with pytest.raises(ValueError, match="already exists"):
        model.add_clients(NEW_X, NEW_Y, names)

    assert model.clients_ == before
