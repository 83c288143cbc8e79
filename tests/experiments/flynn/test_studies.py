"""The experiments on one or two tables have complete and reproducible records."""

import os
from pathlib import Path

import numpy as np
import pytest

from experiments.flynn import bundled, defaults, hyperparameters, openml, scaling, synthetic
from experiments.flynn.comparison import FLYNN, METHODS, PRINTED, Effort, sample_rows, score_split
from experiments.flynn.development import DEVELOPMENT_SETS
from experiments.harness import Findings, Study
from fedneighbors._typing import silent
from fedneighbors.datasets import load
from fedneighbors.records import ResultTable, read_record, write_record


@pytest.fixture(scope="module")
def data_folder():
    """The folder of real data; its absence is a failure in CI and a skip elsewhere."""
    value = os.environ.get("FEDNEIGHBORS_DATA", "")
    if value and Path(value).is_dir():
        return Path(value)
    reason = f"FEDNEIGHBORS_DATA is {value!r}; set it to the folder that holds tabular and images"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def read_rows(findings, name):
    """Return rows of a table as dicts."""
    table = next(table for table in findings.tables if table.name == name)
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


SMALL = Effort(n_folds=3, search={"units_per_row": 1, "max_units": 5_000, "n_finalists": 1})
TABLES = openml.Plan(("iris", "wine"), 2, SMALL)


@pytest.fixture(scope="module")
def comparison():
    return openml.examine(TABLES, seed=3, n_jobs=1, progress=silent)


def generated_plan(n_sets=2):
    settings = [s for s in synthetic.SETTINGS if s.name == "binary n=1000 d=50 b=10"]
    return synthetic.Plan(tuple(settings), lambda _: n_sets, 20_000, (64,))


@pytest.fixture(scope="module")
def generated():
    return synthetic.examine(generated_plan(), seed=0, n_jobs=1, progress=silent)


def test_nearest_neighbors_have_normalized_accuracy_zero(generated):
    rows = [row for row in read_rows(generated, "details") if row["method"] == "kNN"]

    assert [row["normalized accuracy"] for row in rows] == [0.0]
    assert [row["standard error"] for row in rows] == [0.0]


def test_generated_sets_list_all_methods_and_paper_figures(generated):
    (row,) = read_rows(generated, "summary")

    assert row["sets"] == 2
    for method, number in (("1NN", "+0.110"), ("SBFC", "+0.180"), ("FlyNN", "-0.050")):
        assert row[f"{method}, paper"].startswith(number)
        assert "±" in row[method]


def test_the_summary_is_the_mean_over_the_sets(generated):
    sets = read_rows(generated, "sets")
    details = {row["method"]: row for row in read_rows(generated, "details")}

    for method in ("1NN", "SBFC", "FlyNN"):
        losses = [1 - row[method] / row["kNN"] for row in sets]
        assert details[method]["normalized accuracy"] == pytest.approx(np.mean(losses))
        error = np.std(losses, ddof=1) / np.sqrt(2)
        assert details[method]["standard error"] == pytest.approx(error)


def test_one_neighbor_is_never_better_than_the_best_k(generated):
    assert all(row["1NN"] <= row["kNN"] for row in read_rows(generated, "sets"))


def test_a_seed_gives_the_same_scores_again(generated, comparison):
    repeated = synthetic.examine(generated_plan(), seed=0, n_jobs=1, progress=silent)
    other = synthetic.examine(generated_plan(), seed=7, n_jobs=1, progress=silent)
    tables = openml.examine(TABLES, seed=3, n_jobs=1, progress=silent)

    assert read_rows(repeated, "sets") == read_rows(generated, "sets")
    assert read_rows(other, "sets") != read_rows(generated, "sets")
    for name in ("summary", "tuned", "sets", "settings"):
        assert read_rows(tables, name) == read_rows(comparison, name)


def test_all_settings_of_the_paper_are_measured():
    numbers = {s.name: s.paper["FlyNN"][0] for s in synthetic.SETTINGS}

    assert len(numbers) == 9
    assert numbers["real n=10000 d=50"] == 0.07
    assert numbers["binary n=1000 d=100 b=40"] == -0.03
    assert {synthetic.FULL.n_sets(s) for s in synthetic.SETTINGS if s.n_rows == 1000} == {30}


def test_wins_ties_and_losses_add_up_to_the_number_of_sets(comparison):
    for name in ("summary", "tuned", "printed", "defaults"):
        for row in read_rows(comparison, name):
            if row["source"] == "ours":
                assert sum(map(int, row["W/T/L"].split("/"))) == 2


def test_the_papers_comparison_is_listed_with_ours(comparison):
    rows = {(row["rival"], row["source"]): row for row in read_rows(comparison, "summary")}

    assert {rival for rival, _ in rows} == {method for method in METHODS if method != FLYNN}
    assert rows["kNN", "paper"]["W/T/L"] == "39/2/30"
    assert rows["kNN", "paper"]["median improvement"] == 0.0035
    assert rows["MLP", "paper"]["won"] == 0.75
    assert ("SBFC, matched decay", "paper") not in rows
    printed = {(row["rival"], row["source"]): row for row in read_rows(comparison, "printed")}
    assert printed["kNN", "paper"] == rows["kNN", "paper"]
    counts = printed[FLYNN, "ours"]["W/T/L"].split("/")
    assert counts[::-1] == rows[PRINTED, "ours"]["W/T/L"].split("/")


def test_improvements_follow_from_the_recorded_accuracies(comparison):
    points = read_rows(comparison, "points")
    rows = {r["rival"]: r for r in read_rows(comparison, "summary") if r["source"] == "ours"}
    neighbors = {p["set"]: p["accuracy of the rival"] for p in points if p["rival"] == "kNN"}

    for rival in ("kNN", "LR"):
        improvements = [
            (p[f"accuracy of {FLYNN}"] - p["accuracy of the rival"]) / neighbors[p["set"]]
            for p in points
            if p["rival"] == rival
        ]
        assert rows[rival]["median improvement"] == pytest.approx(np.median(improvements))
        wins, ties, losses = map(int, rows[rival]["W/T/L"].split("/"))
        assert wins == sum(gain > 1e-9 for gain in improvements)
        assert losses == sum(gain < -1e-9 for gain in improvements)
        assert ties == 2 - wins - losses


def test_figures_have_a_point_for_every_set_and_baseline(comparison):
    points = read_rows(comparison, "points")

    assert len(points) == 2 * (len(METHODS) - 1)
    assert {point["rival"] for point in points} == set(METHODS) - {FLYNN}
    assert [figure.diagonal for figure in comparison.figures if figure.kind == "scatter"] == [True]


def test_defaults_are_compared_on_development_and_reported_sets():
    plan = defaults.Plan(("moons", "rules"), ("iris", "wine"), n_splits=1, max_rows=300)

    findings = defaults.examine(plan, seed=0, n_jobs=1, progress=silent)

    sets = read_rows(findings, "sets")
    assert [(row["sets"], row["set"]) for row in sets] == [
        ("development", "moons"),
        ("development", "rules"),
        ("reported", "iris"),
        ("reported", "wine"),
    ]
    gains = {r["set"]: r[defaults.DEFAULTS] / r[defaults.NEIGHBORS] - 1 for r in sets}
    assert all(r["improvement of the defaults"] == pytest.approx(gains[r["set"]]) for r in sets)
    rows = {(r["sets"], r["method"]): r for r in read_rows(findings, "summary")}
    reported = rows["reported", defaults.DEFAULTS]
    assert reported["median improvement"] == pytest.approx((gains["iris"] + gains["wine"]) / 2)
    assert sum(map(int, reported["W/T/L"].split("/"))) == 2
    assert reported["losses above 3 %"] == sum(gains[name] < -0.03 for name in ("iris", "wine"))


def test_development_sets_are_none_of_the_reported_ones():
    assert not set(DEVELOPMENT_SETS) & {*openml.SETS, *bundled.SETS}


def test_held_out_rows_do_not_affect_the_tuning():
    data = load("wine")
    scores = score_split(data, SMALL, seed=1)
    from sklearn.model_selection import train_test_split

    _, held_out = train_test_split(
        np.arange(data.n_rows), test_size=SMALL.test_size, stratify=data.y, random_state=1
    )
    changed_x = data.x.copy()
    changed_x[held_out] = changed_x[held_out[::-1]] * 3 + 1
    changed = score_split(type(data)(**{**vars(data), "x": changed_x}), SMALL, seed=1)

    for method in METHODS:
        assert changed[method].tuned == scores[method].tuned
        assert changed[method].chosen == scores[method].chosen


def test_large_tables_are_sampled_without_rare_classes():
    digits = load("digits")
    rare = digits.take(np.flatnonzero((digits.y != 3) | (np.cumsum(digits.y == 3) <= 4)))

    part = sample_rows(rare, 500, seed=0)

    assert part.n_rows == 500
    assert set(part.y.tolist()) == set(range(10)) - {3}
    assert np.ptp(np.unique(part.y, return_counts=True)[1]) <= 6


def test_rows_split_over_parties_give_the_counts_of_one_party():
    findings = scaling.examine(scaling.Plan((scaling.DIGITS,), 1, 200), seed=0, progress=silent)
    rows = read_rows(findings, "speedups")

    assert [row["parties"] for row in rows] == [1, 2, 4, 8, 16]
    assert all(row["equal to one party"] for row in rows)
    assert [row["speed-up, paper"] for row in rows] == [1.0, 1.11, 1.97, 2.67, 3.12]
    assert rows[0]["speed-up"] == 1.0
    assert len({row["upload_per_party_bytes"] for row in rows}) == 1


def test_scaling_settings_are_those_of_table_6():
    plan = scaling.MNIST.plan(784, seed=0)

    assert (plan.n_units, plan.n_inputs, plan.n_active) == (217 * 784, 20, 17)
    assert scaling.LETTER.plan(16, seed=0).n_units == 1447 * 16
    assert scaling.DIGITS.plan(64, seed=0).n_inputs == 19


SWEEP = hyperparameters.Plan(
    (hyperparameters.Case("digits", "digits", 300),),
    n_folds=3,
    units=(4, 64),
    densities=(0.1, 0.3, 0.5),
    fixed_units=(64,),
)


@pytest.fixture(scope="module")
def sweep_findings():
    return hyperparameters.examine(SWEEP, seed=0, n_jobs=1, progress=silent)


def test_sweeps_keep_all_other_settings_at_the_papers_values(sweep_findings):
    # m: 2 values x 2 densities x 2 rho x 2 gamma; s: 3 x 1 x 2 x 2; rho: 10 x 1 x 2 x 2;
    # gamma: 9 x 1 x 2 x 2
    sizes = {
        name: len(read_rows(sweep_findings, name))
        for name in ("units", "density", "active", "decay")
    }

    assert sizes == {"units": 16, "density": 12, "active": 40, "decay": 36}


def test_sweeps_agree_on_a_common_setting(sweep_findings):
    by_units = {
        (row["fixed"], row["m / d"]): row["accuracy"] for row in read_rows(sweep_findings, "units")
    }
    by_decay = {
        (row["fixed"], row["gamma"]): row["accuracy"] for row in read_rows(sweep_findings, "decay")
    }

    assert by_units["s=0.1d rho=8 gamma=0.5", 64] == by_decay["m=64d s=0.1d rho=8", 0.5]
    assert by_units["s=0.3d rho=32 gamma=0.0", 64] == by_decay["m=64d s=0.3d rho=32", 0.0]


def test_more_units_increase_the_accuracy_on_digits(sweep_findings):
    improvements = {
        row["varied"]: row["last minus first"] for row in read_rows(sweep_findings, "effects")
    }

    assert improvements["m / d"] > 0.05


def test_a_sweep_omits_wirings_above_its_limit():
    case = hyperparameters.Case("digits", "digits", max_units=64 * 64)

    wirings = hyperparameters.list_wirings(case, hyperparameters.FULL, 64)

    assert {units for units, _ in wirings} == {4, 8, 16, 32, 64}


def test_scores_do_not_depend_on_the_number_of_processes(generated):
    repeated = synthetic.examine(module_plan(), seed=0, n_jobs=2, progress=silent)

    assert read_rows(repeated, "sets") == read_rows(generated, "sets")


def module_plan():
    """Return a plan that can be sent to other processes."""
    plan = generated_plan()
    return synthetic.Plan(plan.settings, two_sets, plan.max_units, plan.n_active)


def two_sets(_setting):
    return 2


def test_progress_counts_up_to_the_number_of_jobs():
    updates = []

    synthetic.examine(
        generated_plan(), seed=0, n_jobs=1, progress=lambda *state: updates.append(state)
    )

    assert [state[:2] for state in updates] == [(1, 2), (2, 2)]
    assert updates[0][2] == "binary n=1000 d=50 b=10, set 0"


def test_a_record_can_be_written_and_read_again(comparison, tmp_path):
    study = Study("flynn.test", "t", "d", lambda **_: comparison)

    record = study.run(quick=True, seed=5)
    write_record(record, tmp_path / "record.jsonl")

    repeated = read_record(tmp_path / "record.jsonl")
    assert repeated == record
    assert repeated.parameters["seed"] == 5
    assert repeated.parameters["quick"] is True


def test_findings_without_figures_can_be_recorded():
    table = ResultTable("t", "T", ("a",), ((1,),))
    study = Study("flynn.test", "t", "d", lambda **_: Findings({}, (table,)))

    assert study.run().tables == (table,)


def test_the_data_folder_has_all_tables_of_the_comparison(data_folder):
    missing = [
        name
        for name in set(openml.SETS) - set(openml.BUNDLED)
        if not (data_folder / "tabular" / f"{name}.csv.gz").is_file()
    ]

    assert not missing
    assert len(openml.SETS) == 36


def test_a_table_with_nominal_columns_is_compared_like_any_other(data_folder):
    data = sample_rows(load("sick"), 300, seed=0)

    scores = score_split(data, SMALL, seed=0)

    assert set(scores) == set(METHODS)
    assert all(0.5 < score.held_out <= 1 for score in scores.values())
