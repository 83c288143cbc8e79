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
TRAINED_TOGETHER = [each for each in ALL if each is not baselines.LocalClassifier]
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
def fitted(request):
    return request.param(**HALF).fit(X, Y, parties=OWNER)


def test_parameters_are_stored_and_cloned(fitted):
    copy = clone(fitted)

    assert {k: v for k, v in copy.get_params().items() if v is not None} == {
        k: v for k, v in fitted.get_params().items() if v is not None
    }
    assert not hasattr(copy, "weights_")


def test_equal_seeds_give_equal_bits_and_other_seeds_do_not(fitted):
    again = clone(fitted).fit(X, Y, parties=OWNER)
    other = clone(fitted).set_params(random_state=1).fit(X, Y, parties=OWNER)

    shares = fitted.predict_proba(X, OWNER).tobytes()
    assert again.weights_.tobytes() == fitted.weights_.tobytes()
    assert again.predict_proba(X, OWNER).tobytes() == shares
    assert other.predict_proba(X, OWNER).tobytes() != shares


def test_batched_training_equals_training_one_by_one(fitted):
    alone = clone(fitted).set_params(trainer="reuse").fit(X, Y, parties=OWNER)

    np.testing.assert_allclose(
        alone.predict_proba(X, OWNER), fitted.predict_proba(X, OWNER), rtol=1e-4, atol=1e-6
    )


def test_row_order_of_clients_does_not_matter(fitted):
    order = np.argsort(OWNER, kind="stable")

    sorted_rows = clone(fitted).fit(X[order], Y[order], parties=OWNER[order])

    shares = fitted.predict_proba(X, OWNER)
    assert sorted_rows.predict_proba(X, OWNER).tobytes() == shares.tobytes()


def test_probabilities_add_up_and_agree_with_predictions(fitted):
    shares = fitted.predict_proba(X, OWNER)

    np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=1e-12)
    assert (shares.argmax(axis=1) == fitted.predict(X, OWNER)).all()
    assert fitted.score(X, Y, parties=OWNER) == np.mean(fitted.predict(X, OWNER) == Y)


def test_an_unknown_client_gets_the_shared_model(fitted):
    with pytest.warns(UserWarning, match=r"clients \['moon'\] are unknown"):
        unknown = fitted.predict_proba(X[:4], ["moon"] * 4)
    with pytest.warns(UserWarning, match="parties= is missing"):
        nobody = fitted.predict_proba(X[:4])

    assert unknown.tobytes() == nobody.tobytes()
    if isinstance(fitted, baselines.LocalClassifier):
        np.testing.assert_allclose(nobody, [fitted.overall_] * 4, rtol=1e-14)
    else:
        assert nobody.tolist() == np.exp(fitted.embed(X[:4])[1]).tolist()


def test_a_later_client_is_served_and_changes_no_other(fitted):
    before, weights = fitted.predict_proba(X, OWNER).tobytes(), fitted.weights_.tobytes()

    fitted.add_client("new", NEW_X, NEW_Y)

    assert fitted.predict_proba(X, OWNER).tobytes() == before
    assert fitted.weights_.tobytes() == weights
    assert fitted.predict(NEW_X, ["new"] * len(NEW_X)).shape == NEW_Y.shape
    with pytest.raises(ValueError, match="'new' already exists"):
        fitted.add_client("new", NEW_X, NEW_Y)
    del fitted.clients_["new"]


def test_a_client_of_one_row_is_served(fitted):
    fitted.add_client("tiny", NEW_X[:1], NEW_Y[:1])

    assert np.isfinite(fitted.predict_proba(NEW_X, ["tiny"] * len(NEW_X))).all()
    del fitted.clients_["tiny"]


def test_rows_that_do_not_fit_are_refused(fitted):
    with pytest.raises(ValueError, match="expected one label for each of 3 rows, got 2"):
        fitted.add_client("odd", NEW_X[:3], NEW_Y[:2])
    with pytest.raises(ValueError, match=r"got \['77'\]; list all"):
        fitted.add_client("odd", NEW_X[:2], [1, 77])
    with pytest.raises(ValueError, match="features"):
        fitted.predict(X[:, 1:], OWNER)


def test_pickling_preserves_the_estimator(fitted):
    back = pickle.loads(pickle.dumps(fitted))  # noqa: S301 - its own

    assert back.predict_proba(X, OWNER).tobytes() == fitted.predict_proba(X, OWNER).tobytes()


@pytest.mark.parametrize("method", TRAINED_TOGETHER)
def test_negligible_steps_leave_the_network_unchanged(method):
    """In Eq 13, a client outside the round counts with the weights before the round."""
    rate = {"learning_rate": 1e-30, "tuning_rate": 1e-30}
    estimator = method(**HALF)
    rates = {name: rate[name] for name in rate if name in estimator.get_params()}

    found = estimator.set_params(**rates).fit(X, Y, parties=OWNER)

    assert found.weights_.tobytes() == found._network.initial.tobytes()


@pytest.mark.parametrize("method", ALL)
def test_a_single_class_is_refused(method):
    with pytest.raises(DataError, match="at least two classes"):
        method(hidden=(4,), n_rounds=1).fit(X[:5], np.zeros(5))


@pytest.mark.parametrize(
    ("name", "changed", "words"),
    [
        ("LocalClassifier", {"n_rounds": 0}, "expected n_rounds"),
        ("FedAvgClassifier", {"participation": 0.0}, "expected participation above 0"),
        ("FedAvgClassifier", {"trainer": "fast"}, "expected trainer 'auto', 'stacked' or 'reuse'"),
        ("FedAvgClassifier", {"validation": 1.0}, "expected validation between 0 and 1, got 1.0"),
        ("FedAvgClassifier", {"classes": [0, 1]}, "not among classes"),
        ("FedProxClassifier", {"proximal": -1.0}, "expected proximal of 0 or more, got -1.0"),
        ("DittoClassifier", {"proximal": np.nan}, "expected proximal of 0 or more, got nan"),
        ("DittoClassifier", {"tuning_epochs": 0}, "expected tuning_epochs as an integer of 1"),
        ("FedRepClassifier", {"head_epochs": 0}, "expected head_epochs as an integer of 1"),
        ("FedPerClassifier", {"tuning_epochs": -1}, "expected tuning_epochs as an integer of 0"),
        ("APFLClassifier", {"alpha": 1.1}, "expected alpha from 0 to 1, got 1.1"),
        ("ClusteredFLClassifier", {"tolerance": True}, "expected tolerance of 0 or more"),
        ("ClusteredFLClassifier", {"split_after": 2}, "expected split_after from 0 to 1"),
        ("PriorCorrectedClassifier", {"strength": "full"}, "expected strength from 0 to 1"),
        ("HeadTuningClassifier", {"tuning_rate": -0.1}, "expected tuning_rate above 0"),
    ],
)
def test_parameters_out_of_range_are_named(name, changed, words):
    with pytest.raises(ValueError, match=words):
        getattr(baselines, name)(**QUICK | changed).fit(X, Y, parties=OWNER)


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


@pytest.mark.parametrize("title", ["Local", "FedAvg+", "ClusteredFL", "Ditto", "FedRep", "APFL"])
def test_adding_clients_together_equals_adding_each(title):
    found = getattr(baselines, baselines.TITLES[title])(**QUICK).fit(X, Y, parties=OWNER)
    alone = copy(found)
    alone.clients_ = dict(found.clients_)
    names = np.repeat(["first", "second"], [25, 15])

    found.add_clients(NEW_X, NEW_Y, names)
    for name in ("first", "second"):
        alone.add_client(name, NEW_X[names == name], NEW_Y[names == name])

    np.testing.assert_allclose(
        found.predict_proba(NEW_X, names), alone.predict_proba(NEW_X, names), atol=1e-5
    )


def test_clients_that_join_together_are_added_all_or_none():
    found = baselines.DittoClassifier(**QUICK).fit(X, Y, parties=OWNER)
    before = dict(found.clients_)
    names = np.repeat(["first", sorted(before)[0]], 20)

    with pytest.raises(ValueError, match="already exists"):
        found.add_clients(NEW_X, NEW_Y, names)

    assert found.clients_ == before
