"""Federated averaging, and baselines that start from its network."""

import numpy as np
import pytest
from sklearn.base import clone

from fedneighbors.baselines import (
    FedAvgClassifier,
    FedAvgPlusClassifier,
    HeadTuningClassifier,
    PriorCorrectedClassifier,
)
from fedneighbors.errors import PartyRefused
from fedneighbors.methods.knnper import KNNPerClassifier, KNNPerRegressor
from tests.baselines.clients import NAMES, NEW_X, NEW_Y, QUICK, X, Y
from tests.methods.knnper.federations import OWNER

METHODS = [
    FedAvgClassifier,
    FedAvgPlusClassifier,
    HeadTuningClassifier,
    PriorCorrectedClassifier,
]


@pytest.fixture(scope="module")
def fedavg():
    return FedAvgClassifier(**QUICK).fit(X, Y, parties=OWNER)


@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize("participation", [0.5, 1.0])
def test_fedavg_and_knnper_networks_are_equal_bit_for_bit(participation, standardize):
    parameters = QUICK | {"participation": participation, "standardize": standardize}

    baseline = FedAvgClassifier(**parameters).fit(X, Y, parties=OWNER)
    knnper = KNNPerClassifier(**parameters).fit(X, Y, parties=OWNER)

    assert baseline.weights_.tobytes() == knnper.weights_.tobytes()
    assert baseline.overall_.tolist() == knnper.overall_.tolist()
    np.testing.assert_array_equal(baseline.embed(X)[1], knnper.embed(X)[1])


@pytest.mark.parametrize("method", METHODS)
def test_a_given_network_equals_a_newly_trained_one(method, fedavg):
    knnper = KNNPerClassifier(**QUICK).fit(X, Y, parties=OWNER)

    trained = method(**QUICK).fit(X, Y, parties=OWNER)
    from_baseline = method(**QUICK, start=fedavg).fit(X, Y, parties=OWNER)
    from_knnper = method(**QUICK, start=knnper).fit(X, Y, parties=OWNER)

    expected = trained.predict_proba(X, OWNER).tobytes()
    assert from_baseline.predict_proba(X, OWNER).tobytes() == expected
    assert from_knnper.predict_proba(X, OWNER).tobytes() == expected


def test_using_a_network_does_not_change_its_source(fedavg):
    before = fedavg.weights_.copy()

    FedAvgPlusClassifier(**QUICK, start=fedavg, tuning_rate=0.1).fit(X, Y, parties=OWNER)

    assert fedavg.weights_.tobytes() == before.tobytes()
    assert set(fedavg.clients_) == set(NAMES)


def test_a_clone_keeps_the_same_start(fedavg):
    cloned = clone(HeadTuningClassifier(start=fedavg, tuning_epochs=3))

    assert cloned.start is fedavg
    assert cloned.tuning_epochs == 3
    assert not hasattr(cloned, "clients_")


def test_fedavg_predicts_the_same_for_all_clients(fedavg):
    probabilities = [fedavg.predict_proba(X[:5], [name] * 5) for name in NAMES]

    assert len({p.tobytes() for p in probabilities}) == 1


@pytest.mark.parametrize("method", [FedAvgPlusClassifier, HeadTuningClassifier])
def test_tuning_improves_accuracy_on_a_clients_own_rows(method, fedavg):
    tuned = method(**QUICK, start=fedavg, tuning_epochs=20, tuning_rate=0.1)
    tuned.fit(X, Y, parties=OWNER)

    assert tuned.score(X, Y, parties=OWNER) > fedavg.score(X, Y, parties=OWNER) + 0.1
    assert len({part.tobytes() for part in tuned.clients_.values()}) == len(NAMES)


def test_only_full_tuning_changes_the_body(fedavg):
    full = FedAvgPlusClassifier(**QUICK, start=fedavg).fit(X, Y, parties=OWNER)
    head = HeadTuningClassifier(**QUICK, start=fedavg).fit(X, Y, parties=OWNER)
    head_mask = head._agreement.head

    for name in NAMES:
        assert (full.clients_[name] != fedavg.weights_)[~head_mask].any()
        assert head.clients_[name].shape == (8 * 10 + 10,)
        assert (head.clients_[name] != fedavg.weights_[head_mask]).any()
    assert head.weights_.tobytes() == fedavg.weights_.tobytes()


def test_a_client_with_the_overall_shares_is_not_corrected(fedavg):
    balanced_x, balanced_y = np.repeat(X[:1], 20, axis=0), np.tile(np.arange(10), 2)
    start = FedAvgClassifier(**QUICK).fit(balanced_x, balanced_y)
    corrected = PriorCorrectedClassifier(**QUICK, start=start).fit(balanced_x, balanced_y)

    np.testing.assert_allclose(
        corrected.predict_proba(X), start.predict_proba(X), rtol=1e-13, atol=0
    )


def test_a_correction_multiplies_shares_by_the_ratio_of_priors(fedavg):
    corrected = PriorCorrectedClassifier(**QUICK, start=fedavg, strength=0.5)
    corrected.fit(X, Y, parties=OWNER)

    name = NAMES[0]
    counts = np.bincount(Y[name == OWNER], minlength=10)
    prior = (counts + fedavg.overall_) / (counts.sum() + 1)
    plain = fedavg.predict_proba(X[:9], [name] * 9)
    expected = plain * (prior / fedavg.overall_) ** 0.5
    expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(
        corrected.predict_proba(X[:9], [name] * 9), expected, rtol=1e-12, atol=0
    )


def test_without_strength_nothing_is_corrected(fedavg):
    corrected = PriorCorrectedClassifier(**QUICK, start=fedavg, strength=0.0)
    corrected.fit(X, Y, parties=OWNER)

    np.testing.assert_allclose(
        corrected.predict_proba(X, OWNER), fedavg.predict_proba(X, OWNER), rtol=1e-13, atol=0
    )


@pytest.mark.parametrize("method", METHODS)
def test_a_later_client_adapts_like_training_clients(method, fedavg):
    """Add a training client again with the same rows; its weights are equal."""
    model = method(**QUICK, start=fedavg).fit(X, Y, parties=OWNER)
    name = NAMES[0]
    rows = name == OWNER
    expected = model.clients_.pop(name)

    model.add_client(name, X[rows], Y[rows])

    np.testing.assert_allclose(model.clients_[name], expected, rtol=1e-4, atol=1e-6)


def test_a_later_client_gets_the_average(fedavg):
    model = FedAvgClassifier(**QUICK, start=fedavg).fit(X, Y, parties=OWNER)

    model.add_client("new", NEW_X, NEW_Y)

    expected = np.exp(fedavg.embed(X)[1])
    assert model.predict_proba(X, ["new"] * len(X)).tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        (
            {"start": "network"},
            TypeError,
            "expected start as a fitted KNNPerClassifier or baseline",
        ),
        ({"tuning_epochs": 0}, ValueError, "expected tuning_epochs as an integer of 1 or more"),
        ({"tuning_rate": 0.0}, ValueError, "expected tuning_rate above 0, got 0.0"),
    ],
)
def test_parameters_out_of_range_are_named(parameters, error, message):
    with pytest.raises(error, match=message):
        FedAvgPlusClassifier(**QUICK | parameters).fit(X, Y, parties=OWNER)


def test_a_network_for_other_rows_or_labels_is_refused(fedavg):
    with pytest.raises(ValueError, match=r"rows of shape \(64,\), X has \(60,\)"):
        FedAvgClassifier(start=fedavg).fit(X[:, 4:], Y)
    with pytest.raises(ValueError, match=r"rows of shape \(64,\), X has \(64, 2\)"):
        FedAvgClassifier(start=fedavg).fit(np.stack([X, X], axis=2), Y)
    with pytest.raises(ValueError, match=r"y also has \[11\]; list all labels"):
        FedAvgClassifier(start=fedavg).fit(X, np.where(Y == 1, 11, Y))


def test_a_regression_network_is_refused():
    regressor = KNNPerRegressor(hidden=(4,), n_rounds=1).fit(X, Y)

    with pytest.raises(
        TypeError, match=r"a fitted KNNPerClassifier or baseline, got KNNPerRegressor"
    ):
        FedAvgClassifier(start=regressor).fit(X, Y)


def test_diverged_training_raises_and_suggests_a_lower_rate():
    with pytest.raises(PartyRefused, match="training has diverged: lower the learning rate"):
        FedAvgClassifier(**QUICK | {"learning_rate": 1e6}).fit(X, Y, parties=OWNER)
