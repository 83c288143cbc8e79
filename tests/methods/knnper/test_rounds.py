"""Learning rates over the rounds, and the end of training at a plateau."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from fedneighbors.baselines import FedAvgClassifier
from fedneighbors.federation._loop import run_rounds
from fedneighbors.methods.knnper import KNNPerClassifier, KNNPerRegressor
from fedneighbors.methods.knnper._client import shared_outputs
from fedneighbors.methods.knnper._settings import RoundSettings
from fedneighbors.methods.knnper._training import Cohort
from fedneighbors.methods.knnper.protocol import LossRequest
from fedneighbors.neural._schedule import Regime
from fedneighbors.privacy import Privacy
from tests.methods.knnper.federations import build_coordinator, make_members

PLATEAU = RoundSettings(
    n_rounds="plateau",
    regime=Regime(batch_size=16, learning_rate=1.0),
    schedule="constant",
    patience=1,
    max_rounds=9,
)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [1.0] * 10),
        ("steps", [1.0] * 6 + [0.5] * 3 + [0.25]),
        ("cosine", [(1 + np.cos(np.pi * index / 10)) / 2 for index in range(10)]),
    ],
)
def test_learning_rates_follow_the_schedule(schedule, expected):
    rounds = RoundSettings(10, regime=Regime(learning_rate=1.0), schedule=schedule, factor=0.5)
    at_plateau = replace(rounds, n_rounds="plateau", max_rounds=10)

    for settings in (rounds, at_plateau):
        np.testing.assert_allclose([settings.learning_rate(i) for i in range(10)], expected)
    assert sum(part for _, part in rounds.rates()) == pytest.approx(1)


def test_the_schedule_of_an_estimator_is_used():
    steps, constant = (
        KNNPerClassifier(n_rounds=2, hidden=(4,), learning_rate_schedule=schedule)
        for schedule in ("steps", "constant")
    )
    x = np.random.default_rng(0).normal(size=(30, 2))

    for model in (steps, constant):
        model.fit(x, x[:, 0] > 0)

    # index 1 is below 60 % of two rounds
    assert steps.weights_.tobytes() == constant.weights_.tobytes()
    steps.set_params(n_rounds=5).fit(x, x[:, 0] > 0)
    constant.set_params(n_rounds=5).fit(x, x[:, 0] > 0)
    assert steps.weights_.tobytes() != constant.weights_.tobytes()


def run_plateau(resumed=None):
    """Return the outcome, the stages and the losses of all held-out rows."""
    parties, stages, losses = make_members(), [], []

    class Watched(Cohort):
        def deliver(self, requests, *, reduce):
            delivery = super().deliver(requests, reduce=reduce)
            if isinstance(next(iter(requests.values())), LossRequest):
                total = delivery.replies.total
                losses.append((next(iter(requests.values())).weights, total))
            return delivery

    coordinator = build_coordinator(
        parties, rounds=PLATEAU, on_stage=stages.append, resumed=resumed
    )
    return run_rounds(coordinator, Watched(parties)), stages, losses, parties


def test_training_stops_when_the_held_out_loss_stops_falling():
    outcome, _, losses, parties = run_plateau()

    values = [total.loss / total.n_rows for _, total in losses]
    best = int(np.argmin(values))
    requests = Counter(record.request for record in outcome.rounds)
    assert len(values) == best + 1 + 1 < 9
    assert requests["TrainRequest"] == len(values) + best + 1
    expected = run_rounds(
        build_coordinator(
            make_members(), rounds=replace(PLATEAU, n_rounds=best + 1, schedule="constant")
        ),
        Cohort(make_members()),
    )
    assert outcome.result.weights.tobytes() == expected.result.weights.tobytes()
    assert sum(int(party.held_out.sum()) for party in parties) == losses[0][1].n_rows


def test_the_loss_is_that_of_the_held_out_rows_of_all_clients():
    _, _, losses, parties = run_plateau()

    weights, total = losses[1]
    expected = 0.0
    for party in parties:
        scores = shared_outputs(party.network, weights, party.x)[1]
        for row in np.flatnonzero(party.held_out):
            expected -= scores[row, party._labels[row]]
    assert total.loss * 2.0**-32 == pytest.approx(expected, abs=1e-4)


def test_a_training_resumed_at_any_stage_is_bit_identical():
    expected, stages, _, _ = run_plateau()

    for stage in stages[1:-1:2]:
        resumed, *_ = run_plateau(stage)

        assert resumed.result.weights.tobytes() == expected.result.weights.tobytes()


def test_masked_losses_stop_at_the_same_round():
    x = np.random.default_rng(0).normal(size=(60, 3))
    options = {"hidden": (4,), "n_rounds": "plateau", "max_rounds": 2, "trainer": "reuse"}
    owner = np.arange(60) % 3

    plain = KNNPerRegressor(**options).fit(x, x[:, 0], parties=owner)
    masked = KNNPerRegressor(**options, sums="masked").fit(x, x[:, 0], parties=owner)

    assert plain.weights_.tobytes() == masked.weights_.tobytes()
    requests = {record.request.partition(":")[0] for record in masked.run_record_.rounds}
    assert "LossRequest" in requests


@pytest.mark.parametrize(
    ("estimator", "words"),
    [
        (KNNPerClassifier(n_rounds="many"), "expected n_rounds"),
        (KNNPerClassifier(n_rounds="plateau", patience=0), "expected patience"),
        (KNNPerClassifier(n_rounds="plateau", max_rounds=0), "expected max_rounds"),
        (KNNPerClassifier(learning_rate_schedule="linear"), "expected learning_rate_schedule"),
        (KNNPerClassifier(learning_rate_factor=0), "expected learning_rate_factor"),
        (FedAvgClassifier(n_rounds="plateau"), "expected n_rounds as an integer"),
        (
            KNNPerClassifier(
                n_rounds="plateau",
                privacy=Privacy(1, "1e-5", classes=(0, 1), bounds=(0, 1)),
            ),
            "held-out losses are not private",
        ),
    ],
)
def test_unsupported_rounds_are_refused(estimator, words):
    x = np.random.default_rng(0).random((20, 2))

    with pytest.raises(ValueError, match=words):
        estimator.fit(x, np.arange(20) % 2)
