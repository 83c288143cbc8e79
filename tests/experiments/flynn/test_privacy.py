"""The privacy study: its shortcut equals the releases of parties; its tables are consistent."""

from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from experiments.catalog import find_study
from experiments.datasets.synthetic import synthetic_private
from experiments.flynn.privacy import study as privacy
from experiments.flynn.privacy.curves import BEST, BEST_DIVIDED, Key, compute_means, mean_difference
from experiments.flynn.privacy.releases import (
    Setting,
    exact_model,
    hash_data,
    private_model,
    score,
)
from experiments.flynn.privacy.sets import (
    CENTRAL,
    DEFAULT_PICKS,
    DEFAULTS,
    EXACT,
    EXACT_PRINTED,
    LOCAL,
    PICKED,
    Digits,
    Generated,
    Grid,
    Point,
    RealTable,
)
from fedneighbors._typing import silent
from fedneighbors.federation._inprocess import run
from fedneighbors.federation._messages import encode
from fedneighbors.methods.flynn._settings import FlyNNSettings
from fedneighbors.methods.flynn.estimator import FlyNNClassifier
from fedneighbors.methods.flynn.private._party import PrivateFlyNNParty
from fedneighbors.methods.flynn.private.protocol import coordinate_private
from fedneighbors.metrics import balanced_accuracy
from fedneighbors.partition import iid
from fedneighbors.privacy._policy import Privacy
from fedneighbors.privacy.ledger._ledger import Ledger
from fedneighbors.records import read_record, write_record

CLASSES = (0, 1)
PAPER = Privacy(1, mechanism="paper", classes=CLASSES)
SETTING = Setting(300, 3, 15)
SEED = 100  # reported sets have seeds 0 to 9


def read_rows(findings, name):
    """Return rows of a table as dicts."""
    table = next(table for table in findings.tables if table.name == name)
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def noise_sources(n_parties):
    """Return seeded random sources for the parties, equal at every call."""
    return [np.random.default_rng([9, party]).bytes for party in range(n_parties)]


@pytest.fixture(scope="module")
def split():
    train, test = synthetic_private(600, seed=SEED, n_test=200).train_test()
    return (train.x, train.y), (test.x, test.y)


def train_with_parties(train, owners, policy, decay, class_normalized):
    """Train the library's parties and coordinator with seeded noise."""
    settings = FlyNNSettings(
        n_units=SETTING.n_units,
        n_inputs=SETTING.n_inputs,
        n_active=SETTING.n_active,
        decay=decay,
        standardize=False,
        expand=None,
        class_normalized=class_normalized,
        seed=SEED,
    )
    x, y = train
    names = np.unique(owners)
    with ExitStack() as stack:
        parties = []
        for name, bits in zip(names, noise_sources(len(names)), strict=True):
            ledger = stack.enter_context(Ledger(":memory:", party=str(name)))
            ledger.set_budget("table", policy.total)
            rows = owners == name
            parties.append(
                PrivateFlyNNParty(
                    str(name), x[rows], y[rows], privacy=policy, ledger=ledger, bits=bits
                )
            )
        sums = "masked" if policy.mechanism == "central" else "plain"
        return run(coordinate_private(settings, policy), parties, sums=sums).result


@pytest.mark.parametrize(
    ("policy", "n_parties", "decay"),
    [
        (Privacy(1, mechanism="local", classes=CLASSES), 2, None),
        (Privacy(1, 1e-6, "central", classes=CLASSES), 2, None),
        (Privacy(0.5, 1e-6, "central", classes=CLASSES), 8, 0.9),
        (Privacy(1, mechanism="paper", classes=CLASSES, n_picks=20), 2, 0.9),
        (replace(PAPER, epsilon=2, n_picks=20, accounting="paper", n_parties=2), 2, 0.9),
    ],
    ids=["local", "central", "central of 8", "paper", "paper, divided"],
)
def test_the_shortcut_equals_releases_of_parties_with_ledgers(split, policy, n_parties, decay):
    train, test = split
    owners = iid(len(train[1]), n_parties, seed=3)
    options = {"decay": decay, "class_normalized": decay is None}
    data = hash_data(SETTING, train, test, parties=owners, seed=SEED)

    shortcut_model = private_model(data, policy, bits=noise_sources(n_parties), **options)
    party_model = train_with_parties(train, owners, policy, **options)

    assert (shortcut_model.counts == party_model.counts).all()
    assert shortcut_model.noise_variance == party_model.noise_variance
    assert encode(shortcut_model.plan) == encode(party_model.plan)
    assert party_model.guarantee.startswith(shortcut_model.guarantee)
    predicted = np.argmin(party_model.novelty(test[0]), axis=1)
    assert score(shortcut_model, data) == balanced_accuracy(data.truth, predicted)


def test_the_default_number_of_picks_gains_from_a_larger_epsilon():
    accuracy = {0.25: [], 1: [], 4: [], 64: []}
    for seed in range(SEED, SEED + 4):
        train, test = synthetic_private(20_000, seed=seed).train_test()
        data = hash_data(
            SETTING,
            (train.x, train.y),
            (test.x, test.y),
            parties=iid(train.n_rows, 2, seed=seed),
            seed=seed,
        )
        bits = [np.random.default_rng([seed, party]).bytes for party in range(2)]
        for epsilon, values in accuracy.items():
            model = private_model(data, replace(PAPER, epsilon=epsilon), bits=bits)
            values.append(score(model, data))

    means = [float(np.mean(values)) for values in accuracy.values()]

    noise = 0.02  # about one standard error of a difference
    assert all(high > low - noise for low, high in pairwise(means))
    assert means[-1] > means[0] + 0.04


def test_the_model_without_privacy_equals_the_estimator(split):
    train, test = split
    owners = iid(len(train[1]), 2, seed=3)
    printed = {"decay": 0.9, "class_normalized": False}

    data = hash_data(SETTING, train, test, parties=owners, seed=SEED)
    model = FlyNNClassifier(
        300, 3, 15, standardize=False, expand=None, random_state=SEED, **printed
    ).fit(*train)

    assert (exact_model(data, **printed).counts == model.model_.counts).all()
    expected = balanced_accuracy(test[1], model.predict(test[0]))
    assert score(exact_model(data, **printed), data) == expected


def test_both_accountings_give_equal_releases_at_half_epsilon(split):
    train, test = split
    owners = iid(len(train[1]), 2, seed=3)
    data = hash_data(SETTING, train, test, parties=owners, seed=SEED)
    full_epsilon = Privacy(1, mechanism="paper", n_picks=20)
    printed = Privacy(2, mechanism="paper", n_picks=20, accounting="paper")

    models = [
        private_model(data, policy, bits=noise_sources(2)) for policy in (full_epsilon, printed)
    ]

    assert (models[0].counts == models[1].counts).all()


GRID = Grid((0.5, 1.0), (4, 20), (SETTING, Setting(300, 3, 30)))
PLAN = privacy.Plan((Generated(400, 2), Digits("digits", 1), RealTable("wine", 2, True)), GRID)


@pytest.fixture(scope="module")
def findings():
    return privacy.examine(PLAN, seed=SEED, n_jobs=1, progress=silent)


def test_the_table_of_picks_has_every_setting_epsilon_and_t(findings):
    rows = read_rows(findings, "picks-400")

    lines = ["epsilon = 0.5", "epsilon = 1", EXACT_PRINTED]
    expected = {(s.name, line, t) for s in GRID.settings for line in lines for t in (4, 20)}
    assert {(row["setting"], row["line"], row["T"]) for row in rows} == expected
    assert len(rows) == len(expected)


def test_the_best_number_of_picks_is_that_of_the_best_mean(findings):
    by_picks = {
        (row["line"], row["T"]): row["balanced accuracy"]
        for row in read_rows(findings, "picks-400")
        if row["setting"] == SETTING.name
    }
    lines = {
        (row["line"], row["epsilon"]): row
        for row in read_rows(findings, "epsilon-400")
        if row["setting"] == SETTING.name
    }

    for epsilon in GRID.epsilons:
        best = lines[BEST, epsilon]
        scores = {t: by_picks[f"epsilon = {epsilon:g}", t] for t in (4, 20)}
        assert best["balanced accuracy"] == max(scores.values()) == scores[best["T"]]
        mean_count = 400 / 2 * SETTING.n_active / (2 * SETTING.n_units)
        assert lines[DEFAULT_PICKS, epsilon]["T"] == max(1, round(epsilon * mean_count / 8))
    divided, full_epsilon = lines[BEST_DIVIDED, 1.0], lines[BEST, 0.5]
    assert divided["balanced accuracy"] == full_epsilon["balanced accuracy"]


def test_the_table_of_epsilon_has_a_line_for_every_mechanism(findings):
    for name in ("epsilon-400", "epsilon-digits-3-vs-8"):
        lines = {row["line"] for row in read_rows(findings, name)}
        assert lines == {EXACT, EXACT_PRINTED, LOCAL, CENTRAL, BEST, BEST_DIVIDED, DEFAULT_PICKS}
    lines = {(row["data"], row["mechanism"]) for row in read_rows(findings, "defaults")}
    assert {line for data, line in lines if data == "n=400"} == {
        EXACT,
        LOCAL,
        CENTRAL,
        DEFAULT_PICKS,
    }


def test_means_are_computed_over_the_sets(findings):
    sets = read_rows(findings, "sets")
    rows = [row for row in read_rows(findings, "defaults") if row["data"] == "n=400"]

    assert [row["seed"] for row in sets] == [100, 101]
    for row in rows:
        if row["epsilon"] == 1.0:
            scores = [scores_of_set[f"{row['mechanism']}, {DEFAULTS}"] for scores_of_set in sets]
            assert row["balanced accuracy"] == pytest.approx(np.mean(scores))
            error = np.std(scores, ddof=1) / np.sqrt(2)
            assert row["standard error"] == pytest.approx(error)


def test_the_loss_on_a_real_table_is_a_mean_of_differences(findings):
    (row,) = read_rows(findings, "tables")

    assert (row["set"], row["repetitions"], row["test rows surely unseen"]) == ("wine", 2, True)
    assert row["loss"] == pytest.approx(row["no privacy"] - row["central"])
    assert row["standard error from test rows"] > 0


def test_a_mean_difference_pairs_repetitions_by_seed():
    values = {("a", 0): 0.5, ("a", 1): 0.7, ("b", 0): 0.6, ("b", 1): 0.9, ("b", 2): 0.1}
    points = [Point("d", "s", line, seed, value) for (line, seed), value in values.items()]

    difference = mean_difference(points, Key("d", "s", "a"), Key("d", "s", "b"))

    assert difference is not None
    assert difference.value == pytest.approx(0.15)
    assert difference.error == pytest.approx(0.05)
    assert difference.n == 2
    assert mean_difference(points, Key("d", "s", "a"), Key("d", "s", "c")) is None


def test_a_single_repetition_has_no_standard_error():
    assert compute_means([Point("d", "s", PICKED, 0, 0.5, 1.0, 4)]) == {
        Key("d", "s", PICKED, 1.0, 4): (0.5, 0.0, 1)
    }


def test_targets_are_shown_only_where_measured(findings):
    reported = [
        Point(data, DEFAULTS, CENTRAL, seed, value, 1.0)
        for data, value in (("n=10000", 0.81), ("n=100000", 0.87))
        for seed in (0, 1)
    ]

    rows = privacy._tabulate_targets(reported, compute_means(reported)).rows

    assert [(row[1], row[2], row[-1]) for row in rows] == [
        (">= 0.80", pytest.approx(0.81), True),
        (">= 0.88", pytest.approx(0.87), False),
    ]
    assert "targets" not in {table.name for table in findings.tables}


def test_the_record_can_be_written_and_read(findings, tmp_path):
    study = find_study("flynn.privacy")
    record = type(study)("flynn.privacy", "t", "d", lambda **_: findings).run(seed=SEED)

    write_record(record, tmp_path / "record.jsonl")

    assert read_record(tmp_path / "record.jsonl").tables == record.tables


def test_the_full_run_has_the_papers_settings():
    cases = {case.name: case.n_repeats for case in privacy.FULL.cases}

    assert cases["n=10000"] == cases["n=100000"] == cases["mnist, 3 vs 8"] == 10
    assert [s.name for s in privacy.FULL.grid.settings] == [
        "m=300 s=3 rho=15",
        "m=300 s=3 rho=30",
        "m=600 s=3 rho=15",
        "m=600 s=3 rho=30",
    ]
    assert (min(privacy.FULL.grid.epsilons), max(privacy.FULL.grid.epsilons)) == (0.25, 2.0)
    assert (min(privacy.FULL.grid.n_picks), max(privacy.FULL.grid.n_picks)) == (4, 600)
