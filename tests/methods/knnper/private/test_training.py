"""Private training with a coordinator and with ``KNNPerClassifier``."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import clone
from torch import nn

from fedneighbors.errors import MissingExtraError
from fedneighbors.methods.knnper import KNNPerClassifier
from fedneighbors.methods.knnper._settings import RoundSettings
from fedneighbors.methods.knnper.private.protocol import check_supported, scaling_of
from fedneighbors.neural._schedule import Regime
from fedneighbors.privacy._accounting import fits
from fedneighbors.privacy._guarantees import ApproxDP
from fedneighbors.privacy._policy import Privacy
from tests.methods.knnper.private.clients import PRIVACY, make_clients, make_rows, train

LARGE_BUDGET = Privacy(epsilon=2000, delta=1e-5, classes=(0, 1, 2), bounds=(-6, 6))
X, Y = make_rows(240)
OWNER = np.arange(240) // 3 % 3
QUICK = {"hidden": (6,), "n_rounds": 2}


def test_every_client_gets_the_network_and_a_full_memory():
    members = make_clients(3)

    shared = train(members).result

    assert [len(member.client_state.memory) for member in members] == [40] * 3
    assert shared.pool is None
    assert shared.overall.sum() == pytest.approx(1)


def test_only_declared_or_charged_facts_are_requested():
    requests = [record.request for record in train(make_clients(3)).rounds]

    assert requests == [
        "PublicClientSchemaRequest",
        "NoisedCountsRequest",
        "BeginRequest",
        "PrivateTrainRequest",
        "PrivateTrainRequest",
        "ReleaseRequest",
    ]


@pytest.mark.parametrize("n", [2, 4])
def test_masked_sums_of_noised_parts_give_the_bits_of_plain_ones(n):
    members = make_clients(n)
    plain = train(members).result

    masked = train(members, sums="masked").result  # the same run again: the same answers

    assert masked.weights.tobytes() == plain.weights.tobytes()
    assert (masked.overall == plain.overall).all()


def test_equal_run_names_give_equal_networks_for_one_charge():
    members = make_clients(2)
    first = train(members).result.weights
    spent = [member.spent for member in members]

    second = train(members).result.weights

    assert first.tobytes() == second.tobytes()
    assert [member.spent for member in members] == spent


def test_clients_are_charged_for_their_own_rounds():
    rounds = RoundSettings(n_rounds=6, participation=0.5, regime=Regime(batch_size=10))
    members = make_clients(4)

    train(members, rounds=rounds)

    n_rounds = [
        sum(member.name in rounds.participants(("c0", "c1", "c2", "c3"), k) for k in range(6))
        for member in members
    ]
    assert [member.plan.n_rounds for member in members] == n_rounds
    for member in members:
        assert len(member.accountant.history) == member.plan.n_rounds


def test_the_estimator_reports_cost_and_exclusions():
    model = KNNPerClassifier(**QUICK, privacy=replace(PRIVACY, bounds=(-6, 6))).fit(X, Y, OWNER)

    record = model.run_record_.privacy
    assert set(model.spent_) == {"0", "1", "2"}
    for spent in model.spent_.values():
        assert isinstance(spent, ApproxDP)
        assert fits([spent], PRIVACY.total)
        assert float(spent.epsilon) > 1.9
    assert record["largest epsilon spent"] <= 2
    assert record["not covered"] == "memories, and a client's predictions from its own memory"
    assert record["smallest noise multiplier"] > 0.5


def test_without_privacy_no_cost_is_reported():
    model = KNNPerClassifier(**QUICK).fit(X, Y, OWNER)

    assert model.spent_ == {}
    assert dict(model.run_record_.privacy) == {}


def test_negligible_noise_learns_like_exact_training():
    settings = {"hidden": (16,), "n_rounds": 20, "batch_size": 20, "learning_rate": 0.3}
    model = KNNPerClassifier(**settings, momentum=0.0, privacy=LARGE_BUDGET).fit(X, Y, OWNER)

    with pytest.warns(UserWarning, match="parties= is missing"):
        shared_accuracy = model.score(X, Y)

    assert shared_accuracy > 0.85  # the lowest of 30 runs is .95, with a deviation of .01
    assert model.score(X, Y, parties=OWNER) > 0.85


def test_a_private_estimator_is_cloned_and_takes_new_clients():
    model = clone(KNNPerClassifier(**QUICK, privacy=LARGE_BUDGET)).fit(X, Y, OWNER)

    model.add_client("late", X[:30], Y[:30])

    assert len(model.clients_["late"].memory) == 30
    assert set(model.spent_) == {"0", "1", "2"}


class Normed(nn.Module):
    def __init__(self, n_inputs, n_classes):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n_inputs, 4), nn.BatchNorm1d(4))
        self.head = nn.Linear(4, n_classes)

    def forward(self, x):
        return self.head(self.body(x))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"combine": "pool"}, "weights of a pool .* use combine='paper'"),
        ({"checkpoint": "x"}, "omit checkpoint"),
        ({"trainer": "stacked"}, "use trainer='auto'"),
        ({"device": "cuda"}, "private clients train on the CPU"),
        ({"max_grad_norm": 0}, "expected max_grad_norm above 0, got 0"),
        ({"privacy": PRIVACY}, r"Privacy\(bounds=\(low, high\)\), or standardize=False"),
        ({"privacy": replace(LARGE_BUDGET, bounds=((0,) * 3, (1,) * 3))}, "one or 4 of them"),
        ({"classes": [0, 1, 2, 3]}, r"list all labels in Privacy\(classes"),
        ({"model": lambda shape, n: Normed(shape[0], n)}, "BatchNorm cannot support"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_unsupported_private_settings_name_a_remedy(changed, words):
    with pytest.raises(ValueError, match=words):
        KNNPerClassifier(**{**QUICK, "privacy": LARGE_BUDGET, **changed}).fit(X, Y, OWNER)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mechanism": "central"}, "use mechanism='local'"),
        ({"neighbors": "replace_one"}, "use neighbors='add_remove'"),
        ({"delta": 0}, "needs a delta above 0"),
        ({"colluders": 2, "n_picks": 3}, "n_picks, colluders have no effect for kNN-Per"),
        ({"classes": None}, r"Privacy\(classes="),
    ],
)
def test_unsupported_guarantees_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        check_supported(replace(PRIVACY, **change))


def test_columns_are_scaled_from_bounds_to_unit_range():
    center, scale = scaling_of(replace(PRIVACY, bounds=((0.0, -4.0, 3.0), (1.0, 4.0, 3.0))), 3)

    assert center.tolist() == [0.5, 0.0, 3.0]
    assert scale.tolist() == [0.5, 4.0, 1.0]


@pytest.mark.parametrize("bounds", [((0.0, np.nan), 1.0), (2.0, 1.0)])
def test_invalid_bounds_are_refused(bounds):
    with pytest.raises(ValueError, match="expected"):
        scaling_of(replace(PRIVACY, bounds=bounds), 2)


def test_rows_of_images_need_no_bounds():
    images = X.reshape(-1, 2, 2)

    model = KNNPerClassifier(**QUICK, privacy=PRIVACY).fit(images, Y, OWNER)

    assert model.predict(images[:3], parties=OWNER[:3]).shape == (3,)


def test_without_opacus_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "opacus", None)

    with pytest.raises(MissingExtraError, match=r"pip install 'fedneighbors\[dpsgd\]'"):
        KNNPerClassifier(**QUICK, privacy=LARGE_BUDGET).fit(X, Y, OWNER)
