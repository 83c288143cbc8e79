"""Comparison of methods on a table: splits, choices, recommendation, time budget, resuming."""

import json
import re
import sys
import time
from collections import Counter

import numpy as np
import pytest
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression

import fedneighbors
import fedneighbors.baselines
from fedneighbors.comparison import _schedule
from fedneighbors.comparison._candidates import (
    CANDIDATES,
    Predictions,
    Trial,
    choose,
    private_name,
)
from fedneighbors.comparison._scores import (
    difference_interval,
    score_parties,
    score_predictions,
)
from fedneighbors.comparison._summary import COMMANDS, TRAINERS, Summary
from fedneighbors.comparison._table import PartyRows, split
from fedneighbors.comparison._worker import run_task
from fedneighbors.errors import DataError

FAST = ["alone", "averaged linear models"]
X, Y = make_classification(200, 6, n_informative=4, random_state=0)
PARTIES = np.array(["north", "south", "west"])[np.arange(200) % 3]


def rows_of(y, parties, x=None):
    y, parties = np.asarray(y), np.asarray(parties)
    return PartyRows(np.arange(len(y))[:, None] * 1.0 if x is None else x, y, parties)


def task(name, kind="classification", n_classes=2, repeat=0):
    return {"candidate": name, "task": kind, "n_classes": n_classes, "seed": 0, "repeat": repeat}


def note(_):
    """Take notice of a compilation."""


def small_table(n_classes=2, n=120, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, n_classes, n)
    x = rng.normal(size=(n, 4)) + 2 * np.eye(n_classes, 4)[y]
    x[rng.random(x.shape) < 0.05] = np.nan
    return PartyRows(x, y, rng.integers(0, 3, n))


# -- splits


def test_a_split_takes_a_quarter_of_each_class_of_a_party():
    rows = rows_of(np.repeat([0, 1], 40), np.tile([0, 1], 40))

    train, test = split(rows, "classification", np.random.default_rng(0))

    assert sorted([*train.x[:, 0], *test.x[:, 0]]) == list(range(80))
    for party in (0, 1):
        for label in (0, 1):
            assert ((test.parties == party) & (test.y == label)).sum() == 5


def test_the_only_row_of_a_class_is_a_training_row():
    rows = rows_of([0] * 30 + [1], [0] * 31)

    for seed in range(50):
        train, test = split(rows, "classification", np.random.default_rng(seed))
        assert 1 in train.y
        assert len(test) >= 1


def test_a_split_of_numbers_takes_a_quarter_of_each_party():
    rows = rows_of(np.linspace(0, 1, 48), np.repeat([0, 1], [40, 8]))

    _, test = split(rows, "regression", np.random.default_rng(0))

    assert np.bincount(test.parties).tolist() == [10, 2]


# -- candidates


@pytest.mark.parametrize(
    "candidate",
    [c for c in CANDIDATES if c.kind != "private"],
    ids=lambda candidate: candidate.name,
)
def test_each_candidate_beats_a_coin(candidate):
    result = run_task(small_table(n=300), task(candidate.name))

    assert "failure" not in result
    assert result["scores"]["ROC-AUC"] > 0.6
    assert set(result["parties"]) == {0, 1, 2}


@pytest.mark.parametrize(
    "candidate", [c for c in CANDIDATES if "regression" in c.fits], ids=lambda c: c.name
)
def test_each_regression_candidate_beats_the_mean(candidate):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(150, 3))
    rows = PartyRows(x, 3 * x[:, 0] - x[:, 1], rng.integers(0, 3, 150))

    result = run_task(rows, task(candidate.name, "regression", 0))

    assert "failure" not in result
    assert result["scores"]["R²"] > 0.3


def test_a_party_of_one_class_predicts_it_alone():
    x = np.random.default_rng(0).normal(size=(60, 2))
    rows = PartyRows(x, np.r_[np.zeros(30, int), np.arange(30) % 2], np.repeat([0, 1], 30))

    result = run_task(rows, task("alone"))

    assert result["parties"][0] == 1.0


def test_a_party_of_few_rows_is_no_constant_alone():
    labels = np.arange(64) % 2
    x = np.random.default_rng(0).normal(size=(64, 2)) + 8 * labels[:, None]
    rows = PartyRows(x, labels, np.arange(64) // 16)  # boosting cannot split 12 rows

    result = run_task(rows, task("alone"))

    assert result["parties"] == {0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0}


def test_a_choice_does_not_read_the_test_rows():
    train, test = split(small_table(), "classification", np.random.default_rng(0))
    training = Trial(train, test, "classification", 2, 0)
    seen = []

    def fit(given):
        seen.extend([given.train, given.test])
        return Predictions(np.full((len(given.test), 2), 0.5))

    choose([fit, fit], training)

    held_out = {row.tobytes() for row in test.x}
    assert len(seen) == 4
    assert not held_out & {row.tobytes() for rows in seen for row in rows.x}


def test_the_better_candidate_of_a_grid_is_chosen():
    train, test = split(small_table(), "classification", np.random.default_rng(0))

    def blind(given):
        return Predictions(np.full((len(given.test), 2), 0.5))

    def seeing(given):
        x, fill = given.train.x, 0.0
        model = LogisticRegression().fit(np.nan_to_num(x, nan=fill), given.train.y)
        return Predictions(model.predict_proba(np.nan_to_num(given.test.x, nan=fill)))

    assert choose([blind, seeing], Trial(train, test, "classification", 2, 0)) is seeing


def test_a_budget_costs_accuracy_and_is_reported():
    rng = np.random.default_rng(0)
    y = np.arange(600) % 2
    x = rng.normal(size=(600, 2)) + y[:, None]
    result = fedneighbors.compare(
        x, y, parties=np.arange(600) % 3, minutes=5, candidates=["alone", "FedPNN", "kNN search"]
    )

    table = next(table for table in result.record.tables if table.name == "disclosures")
    cells = {row[0]: row[3] for row in table.rows}
    assert table.columns[3] == "ROC-AUC at epsilon 1"
    assert set(cells) == {"alone", "FedPNN", "kNN search"}
    assert re.fullmatch(r"0\.[5-9]\d\d \(-0\.\d{3}\)|1\.000 \(.0\.000\)", cells["FedPNN"])
    assert cells["alone"] == "-"
    assert re.fullmatch(r"[01]\.\d{3} \(the noise changes no answer\)", cells["kNN search"])
    assert "The comparison itself is not private" in table.caption
    assert result.recommended != "FedPNN, epsilon 1"


def test_the_next_method_may_have_been_left_out_of_later_splits():
    candidates = [c for c in CANDIDATES if c.name in ("alone", "FlyNN", "FedPNN", "kNN search")]
    scores = {
        "alone": [0.5] * 10,
        "FlyNN": [0.9, 0.8, 0.9, *[0.7] * 7],
        "FedPNN": [0.85, 0.78, 0.84],
        "kNN search": [0.95],
    }
    results = {
        (name, repeat): {"scores": {"accuracy": value}}
        for name, values in scores.items()
        for repeat, value in enumerate(values)
    }

    summary = Summary(candidates, results, "classification", "accuracy", ["a"], [10])

    assert summary.recommended.name == "FlyNN"
    assert "; next is FedPNN, 0.043 below" in summary.sentence


def judge(joined, alone, task="classification"):
    """Return the sentence of a comparison for a party of these losses."""
    candidates = [c for c in CANDIDATES if c.name in ("alone", "federated boosting")]
    metric = "accuracy" if task == "classification" else "R²"
    shared = {"scores": {metric: 0.5}}
    results = {
        ("alone", 0): {**shared, "losses": {"0": alone}, "baselines": {"kNN": {"0": alone}}},
        ("federated boosting", 0): {**shared, "losses": {"0": joined}},
    }
    table = Summary(candidates, results, task, metric, ["a"], [10])._by_party()
    return dict(zip(table.columns, table.rows[0], strict=True))["joining pays?"]


def test_a_gain_within_chance_is_no_reason_to_join():
    assert judge([0.0] * 10, [1.0] * 2 + [0.0] * 8) == (
        "Not clear: 2 more of 10 rows are right, within chance."
    )
    assert judge([0.0] * 10, [1.0] * 8 + [0.0] * 2) == "Yes: 8 more of 10 rows are right."
    assert judge([1.0, 0.0], [0.0, 1.0]) == "Not clear: the same number of 2 rows is right."
    assert judge([], []) == "Unknown: no row is held out."


def test_one_split_does_not_show_chance():
    candidates = [c for c in CANDIDATES if c.name in ("alone", "FlyNN")]
    results = {
        (name, 0): {"scores": {"accuracy": value}}
        for name, value in (("alone", 0.5), ("FlyNN", 0.6))
    }

    sentence = Summary(candidates, results, "classification", "accuracy", ["a"], [10]).sentence

    assert "joining gains +0.100 over each party alone, perhaps by chance, which one" in sentence
    assert "within chance" not in sentence


def test_joining_pays_if_most_numbers_are_nearer():
    assert judge([0.1] * 9, [0.2] * 9, "regression") == "Yes: 9 more of 9 rows are nearer."
    assert judge([0.3] * 9, [0.2] * 9, "regression") == "No: 9 fewer of 9 rows are nearer."


def test_the_recommendation_says_that_its_gain_is_within_chance():
    candidates = [c for c in CANDIDATES if c.name in ("alone", "FlyNN")]
    scores = {"alone": [0.5, 0.8, 0.6], "FlyNN": [0.6, 0.7, 0.7]}
    results = {
        (name, repeat): {"scores": {"accuracy": value}}
        for name, values in scores.items()
        for repeat, value in enumerate(values)
    }

    sentence = Summary(candidates, results, "classification", "accuracy", ["a"], [10]).sentence

    assert re.search(
        r"; joining gains \+0.033 over each party alone \(.*\), a difference within chance;",
        sentence,
    )


# -- scores


def test_scores_of_known_predictions():
    values = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7]])

    scores = score_predictions(np.array([0, 1, 1, 1]), values, "classification")

    assert scores["accuracy"] == 0.75
    assert scores["balanced accuracy"] == pytest.approx((1 + 2 / 3) / 2)
    assert scores["ROC-AUC"] == 1.0
    assert scores["log loss"] == pytest.approx(-np.log([0.9, 0.8, 0.4, 0.7]).mean())


def test_roc_auc_of_one_class_is_undefined():
    scores = score_predictions(np.zeros(3, int), np.full((3, 2), 0.5), "classification")

    assert scores["ROC-AUC"] is None


def test_scores_by_party_use_the_rows_of_the_party():
    values, parties = np.array([[0.9, 0.1], [0.9, 0.1], [0.1, 0.9]]), np.array([0, 0, 1])

    scores = score_parties(np.array([0, 1, 1]), values, parties, "classification")

    assert scores == {0: 0.5, 1: 1.0}


def test_the_interval_is_wider_than_that_of_independent_pairs():
    low, high = difference_interval([0.9, 0.8, 0.85], [0.8, 0.8, 0.8])

    assert low + high == pytest.approx(2 * 0.05)
    error = np.std([0.1, 0.0, 0.05], ddof=1) * np.sqrt(1 / 3 + 1 / 3)
    assert high - low == pytest.approx(2 * 4.302653 * error, rel=1e-6)
    assert difference_interval([0.5], [0.4]) == (-np.inf, np.inf)


# -- the whole


def test_compare_recommends_the_best_mean_score(tmp_path):
    result = fedneighbors.compare(X, Y, parties=PARTIES, minutes=2, candidates=FAST)

    scores = next(table for table in result.record.tables if table.name == "scores")
    means = {row[0]: row[scores.columns.index("ROC-AUC")] for row in scores.rows}
    assert set(means) == set(FAST)
    assert result.recommended == max(means, key=means.get)
    assert result.reason.startswith(f"Recommended: {result.recommended}, ROC-AUC ")
    assert result.record.notes[0] == result.reason == str(result)
    assert result.record.notes[1] == f"To train it: {TRAINERS[result.recommended]}."
    assert not any("equal rows" in note for note in result.record.notes)


def test_equal_rows_of_two_parties_are_noted():
    parties = np.repeat(["north", "south"], 200)
    result = fedneighbors.compare(
        np.vstack([X, X]), np.tile(Y, 2), parties=parties, minutes=1, candidates=FAST
    )

    (note,) = [note for note in result.record.notes if "equal rows" in note]
    assert note.startswith("parties 'north' and 'south' have 200 equal rows: if they are the same")


def summarize(results, names, metric="ROC-AUC"):
    candidates = [c for c in CANDIDATES if c.name in names]
    scored = {"seconds": 1.0, "parties": {}, "exchanges": None, "bytes": None}
    for result in results.values():
        result |= scored if "scores" in result else {}
    return Summary(candidates, results, "classification", metric, ["a"], [10])


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "opacus", None)  # as if not installed

    failure = run_task(small_table(), task("kNN-Per, epsilon 1"))["failure"]

    assert failure == "needs the extra dpsgd of fedneighbors"


def test_a_budget_of_pure_epsilon_needs_no_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "opendp", None)

    for name in ("FlyNN, epsilon 1", "FedPNN, epsilon 1"):
        assert "scores" in run_task(small_table(), task(name))


def test_a_method_that_had_no_time_is_not_said_to_have_failed():
    names = ["FlyNN", "FedPNN", "kNN-Per"]
    late = {"failure": "stopped after 3 s", "seconds": 3.0}
    results = {
        ("FlyNN", 0): {"scores": {"ROC-AUC": 0.7}},
        ("FedPNN", 0): late,
        ("kNN-Per", 0): {"failure": "needs the extra torch of fedneighbors"},
        ("FlyNN, epsilon 1", 0): {"failure": "no time left", "seconds": 0.0},
        ("FedPNN, epsilon 1", 0): {"failure": "ValueError: no"},
    }
    summary = summarize(results, [*names, *(private_name(name) for name in names)])

    by_name = {c.name: summary._private_score(c) for c in summary.candidates}
    assert by_name["FlyNN"] == "not finished in time"
    assert by_name["FedPNN"] == "failed, see the reason"
    assert by_name["kNN-Per"] == "not measured"
    assert summary.sentence.endswith("; not finished in time: 'FedPNN'; without scores: 'kNN-Per'.")


def test_the_best_method_under_a_budget_is_named():
    names = ["FlyNN", "FedPNN"]
    results = {
        ("FlyNN", 0): {"scores": {"ROC-AUC": 0.9}},
        ("FlyNN, epsilon 1", 0): {"scores": {"ROC-AUC": 0.6}},
        ("FedPNN, epsilon 1", 0): {"scores": {"ROC-AUC": 0.7}},
    }

    summary = summarize(results, [*names, *(private_name(name) for name in names)])

    assert summary.recommended_private == "FedPNN"
    assert summarize({("FlyNN", 0): {"scores": {"ROC-AUC": 0.9}}}, names).recommended_private == ""


@pytest.mark.parametrize("name", COMMANDS)
def test_a_method_with_a_command_says_so(name):
    summary = summarize({(name, 0): {"scores": {"ROC-AUC": 0.9}}}, [name])

    command = " ".join(COMMANDS[name])
    assert summary.next_step == f"To train it: {TRAINERS[name]}, or `fedneighbors run {command}`."


def test_each_candidate_that_can_be_recommended_has_a_trainer():
    recommendable = {c.name for c in CANDIDATES if c.kind in ("alone", "federated")}

    assert set(TRAINERS) == recommendable
    for text in TRAINERS.values():
        for name in re.findall(r"\b\w+Classifier\b", text):
            module = fedneighbors.baselines if "baselines" in text else fedneighbors
            assert hasattr(module, name)


def test_an_interrupted_comparison_resumes(tmp_path):
    path, steps = tmp_path / "results.jsonl", []

    def interrupt(done, total, message):
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedneighbors.compare(
            X, Y, parties=PARTIES, minutes=2, candidates=FAST, path=path, progress=interrupt
        )
    stored = path.read_text().splitlines()
    path.write_text(path.read_text() + '{"candidate": "alo')
    fedneighbors.compare(
        X,
        Y,
        parties=PARTIES,
        minutes=2,
        candidates=FAST,
        path=path,
        progress=lambda done, total, message: steps.append(done),
    )

    entries = [json.loads(line) for line in stored if line]
    assert [entry.get("candidate") for entry in entries] == [None, "alone", FAST[1], "alone"]
    assert steps[0] == 3
    with pytest.raises(DataError, match="has results of other rows or settings"):
        fedneighbors.compare(X, Y, parties=PARTIES, minutes=2, candidates=FAST, path=path, seed=1)


class SlowWorker:
    """Worker on which every training takes its time of a table, on a clock of its own."""

    def __init__(self, durations, scores, seconds):
        self.durations, self.scores, self.seconds, self.spent = durations, scores, seconds, 0.0

    def clock(self):
        return self.spent

    def left(self):
        return self.seconds - self.spent

    def run(self, task, limit_s, note):
        duration = self.durations[task["candidate"]]
        if duration > limit_s:
            self.spent += max(limit_s, 0)
            return {"failure": f"stopped after {limit_s:.0f} s", "seconds": limit_s}
        self.spent += duration
        score = np.broadcast_to(self.scores[task["candidate"]], 10)[task["repeat"]]
        return {"seconds": duration, "scores": {"accuracy": score}}


def run_schedule(seconds, budget, *, scores=None, results=None):
    worker = SlowWorker(seconds, scores or dict.fromkeys(seconds, 0.5), budget)
    schedule = _schedule.Schedule(
        tuple(seconds),
        frozenset({"alone"}),
        frozenset({"private"}),
        {},
        "accuracy",
        worker,
        _schedule.ResultFile(None, "", results or {}),
        lambda *_: None,
    )
    schedule.run()
    return schedule, worker.spent


def test_much_time_gives_all_splits():
    schedule, spent = run_schedule({"alone": 1, "a": 2}, 100)

    assert len(schedule.file.results) == 20
    assert spent == 30
    assert schedule.notes == []


def test_less_time_gives_fewer_splits():
    schedule, spent = run_schedule({"alone": 1, "a": 2}, 14)

    assert sorted({repeat for _, repeat in schedule.file.results}) == [0, 1, 2, 3]
    assert spent <= 14
    assert "4 of 10 splits" in schedule.notes[0]


def test_little_time_drops_the_worst_candidates():
    seconds = {"alone": 1, "a": 4, "b": 4, "c": 4}
    scores = {"alone": 0.5, "a": 0.9, "b": 0.6, "c": 0.7}
    schedule, spent = run_schedule(seconds, 28, scores=scores)

    assert {name for name, repeat in schedule.file.results if repeat == 2} == {"alone", "a"}
    assert "only the first split was used for b, c" in schedule.notes[0]
    assert spent <= 28


def test_a_candidate_with_splits_of_an_earlier_run_is_not_named_as_dropped():
    seconds = {"alone": 1, "a": 4, "b": 4, "c": 4}
    scores = {"alone": 0.5, "a": 0.9, "b": 0.6, "c": 0.7}
    earlier = {("b", 1): {"seconds": 4, "scores": {"accuracy": 0.6}}}
    schedule, _ = run_schedule(seconds, 28, scores=scores, results=earlier)

    assert "only the first split was used for c." in schedule.notes[0]


def test_only_candidates_that_may_be_the_best_are_trained_after_three_splits():
    seconds = dict.fromkeys(("alone", "a", "close", "far", "private"), 1)
    noise = np.resize([0.02, -0.02], 10)
    scores = {"alone": 0.1, "a": 0.9, "close": 0.89 + noise, "far": 0.8 - noise, "private": 0.9}
    schedule, _ = run_schedule(seconds, 1000, scores=scores)

    n_splits = Counter(name for name, _ in schedule.file.results)
    assert n_splits == {"alone": 10, "a": 10, "close": 10, "far": 3, "private": 3}
    assert schedule.notes == []


def test_private_variants_are_dropped_first():
    scores = {"alone": 0.5, "a": 0.9, "b": 0.6, "private": 0.7}
    schedule, _ = run_schedule({"alone": 1, "a": 1, "b": 1, "private": 9}, 32, scores=scores)

    assert {name for name, repeat in schedule.file.results if repeat == 2} == {"alone", "a", "b"}
    assert "only the first split was used for private." in schedule.notes[0]


def test_a_slow_candidate_is_stopped():
    schedule, spent = run_schedule({"alone": 1, "slow": 1000, "a": 1}, 60)

    assert "failure" in schedule.file.results["slow", 0]
    assert ("a", 2) in schedule.file.results
    assert spent <= 60


def test_a_stopped_candidate_gets_the_time_that_is_left():
    schedule, spent = run_schedule({"alone": 1, "slow": 25, "a": 1}, 100)

    assert schedule.file.results["slow", 0]["scores"] == {"accuracy": 0.5}
    assert ("a", 2) in schedule.file.results
    assert spent <= 100


def test_no_answer_is_awaited_after_the_deadline():
    rows = PartyRows(X, Y.astype(np.int64), np.arange(200) % 3)

    with _schedule.Worker(rows, 1e-3) as worker:
        result = worker.run(task("averaged linear models"), 600, note)

    assert result == {"failure": "no time left", "seconds": 0.0}


def test_a_worker_is_replaced_after_a_time_out():
    rows = PartyRows(X, Y.astype(np.int64), np.arange(200) % 3)

    with _schedule.Worker(rows, 900) as worker:
        stopped = worker.run(task("kNN-Per, pool"), 0.11, note)
        result = worker.run(task("averaged linear models"), 600, note)
        late = worker.run(task("alone"), 0.0, note)

    assert stopped["failure"].startswith("stopped after")
    assert result["scores"]["accuracy"] > 0.6
    assert late["failure"] == "no time left"


# Started in place of Python: announces a compilation, which lasts until the file exists.
COMPILING = """#!/bin/sh
echo ready
read -r rows
echo compilation
while [ ! -e {file} ]; do sleep 0.1; done
{then}
"""


def run_compiling(tmp_path, monkeypatch, then):
    program, file, steps = tmp_path / "python", tmp_path / "file", []

    def note(step):
        steps.append(step)
        if step:
            time.sleep(4)
            file.touch()

    program.write_text(COMPILING.format(file=file, then=then))
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    rows = PartyRows(X, Y.astype(np.int64), np.arange(200) % 3)
    with _schedule.Worker(rows, 3.9) as worker:
        return worker.run(task("alone"), 600, note), worker, steps


def test_time_of_compilation_is_not_counted(tmp_path, monkeypatch):
    answer = """echo compilation; echo '{"seconds": 1, "scores": {}}'; sleep 60"""

    result, worker, steps = run_compiling(tmp_path, monkeypatch, answer)

    assert result == {"seconds": 1, "scores": {}}
    assert worker.compilation_s >= 4
    assert worker.left() > 0
    assert steps == [", compiling kernels, once", ""]


def test_the_end_of_a_process_that_compiles_is_a_failure(tmp_path, monkeypatch):
    result, _, steps = run_compiling(tmp_path, monkeypatch, "exit 7")

    assert result == {"failure": "its process ended with status 7"}
    assert steps == [", compiling kernels, once", ""]


@pytest.mark.parametrize(
    "script", ["exit 3", "echo ready; exit 3", "exec 0<&-; echo ready; exit 3"]
)
def test_a_process_that_ends_early_is_a_failure(tmp_path, monkeypatch, script):
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    n_rows = 50_000  # more bytes than a pipe holds
    rows = PartyRows(np.zeros((n_rows, 2)), np.zeros(n_rows, np.int64), np.zeros(n_rows, np.int64))

    with _schedule.Worker(rows, 60) as worker:
        results = [worker.run(task("alone"), 600, note) for _ in range(2)]

    assert results == [{"failure": "its process ended with status 3"}] * 2


def test_kernels_are_compiled_in_time_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    steps = []

    result = fedneighbors.compare(
        X,
        Y,
        parties=PARTIES,
        minutes=0.5,
        candidates=["alone", "kNN search"],
        progress=lambda *step: steps.append(step[-1]),
    )

    assert "split 1: kNN search, compiling kernels, once" in steps
    assert any("Kernels were compiled for" in note for note in result.record.notes)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"X": X[:, 0]}, "expected X of shape"),
        ({"y": Y[:5]}, "expected X of shape"),
        ({"X": X[:10], "y": Y[:10], "parties": PARTIES[:10]}, "at least 20 rows, got 10"),
        ({"X": np.where(X > 1, np.inf, X)}, "infinite cells"),
        ({"parties": ["one"] * 200}, "at least two parties"),
        ({"y": np.zeros(200)}, "at least two classes"),
        ({"y": np.where(Y, np.nan, 0.0)}, "a label for every row, .* first at position . of party"),
        ({"y": np.where(Y, np.nan, 0.0), "task": "regression"}, "a label for every row, found"),
        ({"y": np.where(Y, np.inf, 0.0), "task": "regression"}, "a target is infinite"),
        ({"task": "ranking"}, "expected the task"),
        ({"y": np.where(Y, "yes", "no"), "task": "regression"}, "numbers to predict, got text"),
        (
            {"candidates": ["oracle"]},
            "expected candidates among 'alone', .*'kNN-Per, pool', .*; got 'oracle'",
        ),
    ],
)
def test_invalid_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        fedneighbors.compare(**{"X": X, "y": Y, "parties": PARTIES, **arguments})
