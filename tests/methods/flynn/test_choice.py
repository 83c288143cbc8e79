"""The settings that training rows choose: exact leave-one-out, over parties and in public."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from fedneighbors import FlyNNClassifier
from fedneighbors.errors import ProtocolError
from fedneighbors.federation._inprocess import run
from fedneighbors.federation._roles import Refused
from fedneighbors.methods.flynn._model import FlyNNModel
from fedneighbors.methods.flynn._scoring import HitCounter, HitReply, HitRequest
from fedneighbors.methods.flynn._settings import FLAGS, LOADS, FlyNNSettings
from fedneighbors.methods.flynn.algorithm import CALIBRATION_ROWS, default_decay, hash_with_plan
from fedneighbors.methods.flynn.protocol import (
    CountReply,
    CountRequest,
    FlyNNParty,
    MomentsRequest,
    coordinate,
)
from fedneighbors.privacy import Privacy
from tests.methods.flynn.federations import federations, train
from tests.methods.flynn.private.tables import party as private_party
from tests.naive import flynn as naive

SIZES = {"n_units": 60, "n_inputs": 2, "n_active": 5}
SETTINGS = FlyNNSettings(**SIZES)


def table(n_rows=40, seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(n_rows) % 3
    return rng.normal(size=(n_rows, 4)) + 0.6 * y[:, None], y


def count_naively(x, y, plan, gamma, *, normalized):
    """Return the number of rows that a model of all other rows predicts correctly."""
    matrix = naive.dense_matrix(plan.wiring, plan.features.n_outputs)
    rows = plan.features.apply(np.asarray(x, float)).tolist()
    classes, hits = sorted(set(y.tolist())), 0
    for k, row in enumerate(rows):
        others = [i for i in range(len(rows)) if i != k]
        labels = [int(y[i]) for i in others]
        present = [label for label in classes if label in labels]
        _, counts = naive.train(
            [rows[i] for i in others],
            labels,
            matrix,
            n_active=plan.n_active,
            gamma=0,
            classes=present,
        )
        sizes = {label: labels.count(label) for label in present}
        if not normalized:
            sizes = dict.fromkeys(present, 1)
        scores = naive.normalized_novelty(
            row,
            matrix,
            counts,
            n_active=plan.n_active,
            classes=present,
            gamma=gamma,
            sizes=sizes,
        )
        lowest = min(scores)
        hits += present[scores.index(lowest)] == y[k]
    return hits


@pytest.mark.parametrize("seed", range(2))
def test_hits_are_those_of_models_trained_without_the_row(seed):
    x, y = table(12, seed)
    y[y == 2] = [2, *[0] * (np.sum(y == 2) - 1)]  # a class that is absent without its one row
    members = [FlyNNParty("all", x, y)]
    plans = SETTINGS.plans(members[0].answer(MomentsRequest(True)), 4)
    models = tuple(
        FlyNNModel(
            plan,
            (0, 1, 2),
            members[0].answer(CountRequest(plan, (0, 1, 2), 16, {})).counts,
            None,
            True,
        )
        for plan in plans
    )
    decays = tuple((0.9, 0.5, 0.9, 0.5) for _ in plans)

    reply = members[0].answer(HitRequest(models, decays, (True, True, False, False)))

    expected = [
        count_naively(x, y, plan, gamma, normalized=flag)
        for plan in plans
        for flag in (True, False)
        for gamma in (0.9, 0.5)
    ]
    assert len(plans) == 4
    assert reply.hits.tolist() == expected


def test_sums_without_the_rows_of_a_party_are_refused():
    rng = np.random.default_rng(0)
    active, labels = rng.integers(5, size=(4, 2)).astype(np.int32), np.zeros(4, np.int64)
    counter = HitCounter(np.zeros((1, 5, 2), np.uint8), np.array([[4, 4]]), ((0.5, False),))

    with pytest.raises(Refused, match="do not include the rows of this party"):
        counter.leave_one_out(active, labels, 0)


def test_without_other_rows_nothing_is_predicted():
    active, labels = np.array([[0, 1]], np.int32), np.zeros(1, np.int64)
    counts = np.array([[[1, 0], [1, 0]]], np.uint8)
    settings = ((0.5, False), (0.5, True))
    counter = HitCounter(counts, np.array([[1, 0]]), settings)

    assert counter.leave_one_out(active, labels, 0).tolist() == [[0, 0], [0, 0]]
    assert counter.leave_fold_out(active, labels, 0).tolist() == [[0, 0], [0, 0]]


def test_the_setting_with_the_most_hits_is_trained():
    x, y = table(24)
    member = FlyNNParty("all", x, y)
    plans = SETTINGS.plans(member.answer(MomentsRequest(True)), 4)
    scores = {
        (plan.features.expansion, kappa, flag): count_naively(
            x, y, plan, default_decay(len(y), 60, 5, 3, kappa=kappa), normalized=flag
        )
        for plan in plans
        for flag in FLAGS
        for kappa in LOADS
    }

    model = FlyNNClassifier(**SIZES).fit(x, y).model_

    chosen = (model.plan.features.expansion, model.kappa, model.class_normalized)
    assert chosen == max(scores, key=scores.__getitem__)  # the first on ties
    assert len(set(scores.values())) > 1


@settings(max_examples=30)
@given(federations())
def test_the_hits_of_parties_add_up_to_those_of_the_pooled_table(federation):
    asked = []

    class Witness(FlyNNParty):
        def answer(self, request):
            reply = super().answer(request)
            if isinstance(request, HitRequest):
                asked.append((request, reply))
            return reply

    model = train(federation.parties(), federation.settings)
    (pooled,) = federation.pooled()
    witness = Witness("all", pooled._x, pooled._y)

    assert train([witness], federation.settings).to_bytes() == model.to_bytes()
    for request, reply in asked:
        replies = [party.answer(request).hits for party in federation.parties()]
        assert sum(replies).tolist() == reply.hits.tolist()


def test_explicit_values_need_no_hits():
    x, y = table()

    model = FlyNNClassifier(**SIZES, decay=0.5, expand=None, class_normalized=False).fit(x, y)

    assert "HitRequest" not in [r.request for r in model.run_record_.rounds]
    assert (model.decay_, model.model_.class_normalized) == (0.5, False)
    assert model.model_.plan.features.expansion == "none"


@pytest.mark.parametrize("name", ["decay", "expand", "class_normalized"])
def test_a_single_choice_leaves_explicit_values_alone(name):
    x, y = table()
    explicit = {"decay": 0.8, "expand": "mirror", "class_normalized": False, name: "auto"}

    model = FlyNNClassifier(**SIZES, **explicit).fit(x, y)

    assert "HitRequest" in [r.request for r in model.run_record_.rounds]
    chosen = {
        "decay": model.decay_,
        "expand": model.model_.plan.features.expansion,
        "class_normalized": model.model_.class_normalized,
    }
    assert {k: v for k, v in chosen.items() if k != name} == {
        k: v for k, v in explicit.items() if k != name
    }


def test_a_frequent_class_turns_normalization_off():
    rng = np.random.default_rng(0)
    y = (rng.random(600) < 0.1).astype(int)
    x = rng.normal(size=(600, 6)) + 0.4 * y[:, None]

    chosen, normalized = (
        FlyNNClassifier(n_units=2_000, class_normalized=flag).fit(x, y) for flag in ("auto", True)
    )

    assert not chosen.model_.class_normalized
    x_new, y_new = rng.normal(size=(600, 6)), np.zeros(600)
    assert chosen.score(x_new, y_new) > normalized.score(x_new, y_new)


def test_a_chosen_decay_follows_later_rows():
    x, y = table(90)
    learner = FlyNNClassifier(**SIZES).partial_fit(x[:45], y[:45])
    before, kappa = learner.decay_, learner.model_.kappa

    learner.partial_fit(x[45:], y[45:])

    assert learner.model_.kappa == kappa
    assert learner.decay_ == pytest.approx(before**0.5)


def test_a_loaded_classifier_has_the_chosen_values(tmp_path):
    x, y = table()
    learner = FlyNNClassifier(**SIZES).fit(x, y)
    learner.save(tmp_path / "model.fnn")

    loaded = FlyNNClassifier.load(tmp_path / "model.fnn")

    assert (loaded.decision_function(x) == learner.decision_function(x)).all()
    again = FlyNNClassifier(**loaded.get_params()).fit(x, y)
    assert (again.decision_function(x) == learner.decision_function(x)).all()


def test_large_tables_choose_on_the_rows_of_the_calibration():
    x, y = table(3 * CALIBRATION_ROWS)
    member = FlyNNParty("all", x, y)
    few = replace(SETTINGS, expand="fourier")
    (plan,) = few.plans(member.answer(MomentsRequest(True)), 4)
    counts = member.answer(CountRequest(plan, (0, 1, 2), 32, {})).counts

    model = FlyNNModel(plan, (0, 1, 2), counts, 0.9999, True)
    hits = member.answer(HitRequest((model,), ((0.9999,),), (True,))).hits

    kept = hash_with_plan(x, plan).sum(axis=1) % 3 == 0
    assert 0 < hits[0] <= kept.sum() < len(y) / 2


# Dishonest parties and coordinators.


@pytest.mark.parametrize(
    "change",
    [
        lambda reply: HitReply(reply.hits[:-1]),
        lambda reply: HitReply(reply.hits - 1_000),
        lambda reply: HitReply(reply.hits + 1_000),
    ],
    ids=["fewer", "negative", "more than rows"],
)
def test_impossible_hits_are_detected(change):
    class Liar(FlyNNParty):
        def answer(self, request):
            reply = super().answer(request)
            return change(reply) if isinstance(reply, HitReply) else reply

    with pytest.raises(ProtocolError, match="a party sent wrong hits"):
        run(coordinate(SETTINGS), [Liar("liar", *table())])


def test_impossible_counts_of_a_later_plan_name_the_party():
    class Liar(FlyNNParty):
        def answer(self, request):
            reply = super().answer(request)
            if isinstance(reply, CountReply):
                counts = reply.counts.copy()
                counts[-1, 0] += 1
                return CountReply(counts)
            return reply

    with pytest.raises(ProtocolError, match=r"party 'liar': .*do not add up to a multiple of 5"):
        run(coordinate(SETTINGS), [FlyNNParty("honest", *table()), Liar("liar", *table())])


@pytest.mark.parametrize("name", ["n_active", "seed", "n_units"])
def test_plans_that_differ_in_more_than_expansions_are_refused(name):
    first, *others = SETTINGS.plans(FlyNNParty("a", *table()).answer(MomentsRequest(True)), 4)
    changed = replace(others[0], **{name: getattr(first, name) + 1})

    with pytest.raises(ValueError, match="plans differ in more than their expansions"):
        CountRequest(first, (0, 1), 16, {}, (changed,))
    with pytest.raises(ValueError, match="plans differ in more than their expansions"):
        CountRequest(first, (0, 1), 16, {}, (first,))


def test_too_many_settings_are_refused():
    plan = SETTINGS.plans(FlyNNParty("a", *table()).answer(MomentsRequest(True)), 4)[0]
    model = FlyNNModel(plan, (0, 1), np.zeros((60, 2), "u1"), None, True)

    with pytest.raises(ValueError, match="more settings than the limit of 8"):
        HitRequest((model,), ((0.5,) * 9,), (True,) * 9)


# Under a privacy budget no rows choose.


def test_a_private_training_asks_for_no_hits():
    x, y = table(200)
    privacy = Privacy(epsilon=3, classes=(0, 1, 2), bounds=(-4, 6))

    model = FlyNNClassifier(privacy=privacy).fit(x, y)

    assert "HitRequest" not in [r.request for r in model.run_record_.rounds]
    assert model.model_.class_normalized
    assert model.model_.plan.features.expansion == "fourier"  # by the number of columns
    assert model.model_.decay is None


def test_a_private_party_refuses_to_count_hits():
    x, y = table(200)
    exact = FlyNNClassifier(**SIZES).fit(x, y).model_
    private = private_party(rows=(x, y % 2))

    with pytest.raises(Refused, match="unknown request"):
        private.answer(HitRequest((exact,), ((0.5,),), (True,)))
