"""FedKNN experiments on small collections produce complete records."""

import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from experiments.catalog import EXPERIMENTS
from experiments.datasets.graphs import synthetic_graphs
from experiments.fedknn import (
    breakdown,
    budgets,
    costs,
    summaries,
    sweeps,
    targets,
    validation,
)
from experiments.fedknn.measurement import algorithms, collections
from experiments.fedknn.measurement import measure as measure_module
from experiments.fedknn.measurement.algorithms import ALGORITHMS, PRINTED
from experiments.fedknn.measurement.collections import Collection
from experiments.fedknn.measurement.federation import MeasuredFederation, Setting
from experiments.fedknn.measurement.measure import MeasureOptions, Task, known_trials, measure
from experiments.fedknn.measurement.trials import Trial, count_wrong, drop_late_queries
from experiments.harness import Journal
from fedneighbors._typing import silent
from fedneighbors.errors import RecordError
from fedneighbors.records import RunRecord, read_record, write_record

GRAPHS = synthetic_graphs(
    300, mean_edges=6, n_node_labels=4, n_edge_labels=2, n_patterns=10, seed=0
).graphs
WORDS = [f"{a}{b}{c}" for a in ("neigh", "feder") for b in "abcdefg" for c in ("bor", "ated", "s")]
SMALL = {
    "SYN": Collection("SYN", "graph_edit", GRAPHS, "SYN", 1.0, is_costly=True),
    "titles": Collection("titles", "edit", WORDS * 8, "DBLP", 1.0),
}


@pytest.fixture(autouse=True)
def small_collections(monkeypatch):
    clear_caches()
    monkeypatch.setattr(collections, "COLLECTIONS", {k: lambda k=k: SMALL[k] for k in SMALL})
    yield
    clear_caches()


def clear_caches():
    for function in (measure_module._load, measure_module._load_sample, measure_module._prepare):
        function.cache_clear()


def rows_as_dicts(table):
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def find_rows(findings, name):
    return rows_as_dicts(next(table for table in findings.tables if table.name == name))


def check_figures(findings, tmp_path):
    record = RunRecord(
        "fedknn.test", findings.parameters, tables=findings.tables, figures=findings.figures
    )
    write_record(record, tmp_path / "record.jsonl")
    assert read_record(tmp_path / "record.jsonl") == record
    names = {table.name: table.columns for table in findings.tables}
    for figure in findings.figures:
        used = {figure.x, figure.y, figure.hue, figure.facet} - {""}
        assert used <= set(names[figure.table])


def test_every_experiment_is_listed():
    assert {
        "fedknn.k", "fedknn.providers", "fedknn.epsilon", "fedknn.local_cost", "fedknn.latency",
        "fedknn.breakdown", "fedknn.scalability", "fedknn.ablation", "fedknn.costs",
        "fedknn.targets", "fedknn.replay",
    } == {name for name in EXPERIMENTS if name.startswith("fedknn.")}  # fmt: skip


TASKS = [
    Task(name, Setting("skewed", 4), (3, 20), tuple(ALGORITHMS), n_queries=3, limit_s=30.0)
    for name in SMALL
]


@pytest.fixture(scope="module")
def journal(tmp_path_factory):
    return tmp_path_factory.mktemp("journal") / "searches.jsonl"


@pytest.fixture(scope="module")
def trials(journal):
    return measure_all(TASKS, journal=journal)


def measure_all(tasks, **options):
    patch = pytest.MonkeyPatch()
    patch.setattr(collections, "COLLECTIONS", {k: lambda k=k: SMALL[k] for k in SMALL})
    clear_caches()
    trials = measure(tasks, MeasureOptions(**options))
    patch.undo()
    return trials


def test_every_algorithm_is_measured_on_the_same_queries(trials):
    for task in TASKS:
        searches = [trial for trial in trials if trial.collection == task.collection]
        keys = {(trial.k, trial.algorithm, trial.query) for trial in searches}

        assert len(searches) == len(keys) == 2 * 3 * len(ALGORITHMS)
        assert len({trial.query for trial in searches}) == 3
        assert not any(trial.late for trial in searches)


def test_exact_algorithms_have_the_same_answers(trials):
    exact = [trial for trial in trials if trial.algorithm not in (PRINTED, "dann* certified")]
    for trial in exact:
        answers = [
            (other.farthest, other.answer)
            for other in exact
            if (other.collection, other.query, other.k) == (trial.collection, trial.query, trial.k)
        ]

        assert set(answers) == {(trial.farthest, trial.answer)}
        assert trial.asked >= trial.k
        assert 0 < trial.local_most_s <= trial.local_sum_s
        assert trial.search_s <= trial.local_sum_s
        assert trial.n_exchanges >= 1


def test_dann_requests_fewer_objects_than_the_baseline(trials):
    for trial in trials:
        if trial.algorithm == "baseline":
            assert trial.wanted_first == 4 * trial.k
            assert trial.n_exchanges == 1
        if trial.algorithm == "dann":
            assert trial.wanted_first < 4 * trial.k


def test_latency_is_work_transfer_and_a_round_trip_per_exchange(trials):
    for trial in trials:
        without_round_trips = trial.way_s + trial.broker_s + trial.carrying_s

        assert trial.latency_s(0.0) == without_round_trips
        assert trial.latency_s(10.0) == pytest.approx(without_round_trips + 10 * trial.n_exchanges)


def test_a_trial_survives_serialization(trials):
    assert [Trial.from_bytes(trial.to_bytes()) for trial in trials] == trials


def make_trial(algorithm, query=7, *, answer="right", **settings):
    labels = ("titles", "uniform", 10, 4, 4, algorithm, query)
    return Trial(*labels, late=not answer, limit_s=2.0, answer=answer, **settings)


def test_a_late_search_has_no_latency():
    algorithms = tuple(name for name in ALGORITHMS if name != "hufu")
    task = Task("SYN", Setting("uniform", 3), (2, 5), algorithms, n_queries=2, limit_s=0.0)

    trials = measure_all([task])

    assert all(trial.late for trial in trials)
    with pytest.raises(ValueError, match="leave it out"):
        trials[0].latency_s()


def test_late_searches_are_counted_but_in_no_figure():
    slow, fast = {"way_s": 3.0, "local_sum_s": 3.0}, {"way_s": 1.0, "local_sum_s": 1.0}
    trials = [
        make_trial("baseline", 1, **slow), make_trial("dann", 1, **fast),
        make_trial("baseline", 2, answer=""), make_trial("dann", 2, **fast),
        make_trial("hufu", 3, answer=""), make_trial("dann", 3, answer=""),
    ]  # fmt: skip

    table = summaries.overview(trials, sweeps.K, delay_s=0.0)
    rows = {row["algorithm"]: row for row in rows_as_dicts(table)}
    speedups = summaries.speedups(trials[:4], sweeps.K, competitors=("baseline",), claims={})

    assert [rows[name]["late"] for name in ("baseline", "dann", "hufu")] == [1, 1, 1]
    assert [rows[name]["compared"] for name in ("baseline", "dann", "hufu")] == [1, 1, 0]
    assert [rows[name]["mean_latency_s"] for name in rows] == [3.0, 1.0, None]
    assert [row["without round trips, factor"] for row in rows_as_dicts(speedups)] == [3.0]
    assert {trial.query for trial in drop_late_queries(trials)} == {1}


def test_answers_that_differ_from_exact_ones_are_wrong():
    trials = [
        make_trial("baseline", 1), make_trial(PRINTED, 1, answer="other"),
        make_trial("baseline", 2, answer=""), make_trial("dann", 2), make_trial(PRINTED, 2),
        make_trial("dann", 3, answer=""), make_trial(PRINTED, 3, answer="unknown"),
        make_trial("dann", 4), make_trial(PRINTED, 4, answer=""),
    ]  # fmt: skip
    printed = [trial for trial in trials if trial.algorithm == PRINTED]

    assert count_wrong(printed, trials) == 1
    assert count_wrong(trials, trials) == 1
    note = summaries.count_notes(trials, sweeps.K)[0]
    assert "3 of 9 searches were late. 1 of 3 answers of DANN* as printed were wrong, 0" in note


def test_hufu_runs_where_dann_is_late(monkeypatch):
    def search(federation, row, k, algorithm):
        return federation._trial(None, row, k, algorithm)

    monkeypatch.setattr(MeasuredFederation, "calibrate", lambda *_: None)
    monkeypatch.setattr(MeasuredFederation, "trial", search)
    monkeypatch.setattr(
        MeasuredFederation, "trial_in_process", lambda *_: make_trial("hufu", answer="run")
    )
    task = Task("SYN", Setting("uniform", 3), (2, 5), ("dann", "hufu"), n_queries=1)

    trials = measure_all([task])

    assert [trial.late for trial in trials] == [True, False] * 2


def test_hufu_begins_with_a_distance_of_another_query(monkeypatch):
    radii = []
    hufu = algorithms.hufu
    monkeypatch.setattr(
        algorithms, "hufu", lambda *a, **o: radii.append(o["first_radius"]) or hufu(*a, **o)
    )
    task = Task("titles", Setting("uniform", 3), (9, 20), ("baseline", "hufu"), n_queries=2)

    trials = measure_all([task])

    other = SMALL["titles"].queries(3, seed=0)[2]
    federation = MeasuredFederation(SMALL["titles"], task.setting, seed=0, limit_s=30.0)
    distances = [federation.trial(other, k, "baseline").farthest for k in task.ks]
    assert other not in {trial.query for trial in trials}
    assert set(radii) == set(distances)
    assert 0 not in radii


def test_hufu_does_not_start_from_a_default_radius():
    federation = MeasuredFederation(SMALL["titles"], Setting("uniform", 3), seed=0, limit_s=30.0)

    with pytest.raises(ValueError, match="calibrate"):
        federation.trial(0, 3, "hufu")
    with pytest.raises(ValueError, match="each of 0 was late"):
        federation.calibrate([], (3,))


def test_a_count_beyond_the_time_limit_is_stopped():
    hard = synthetic_graphs(
        40, mean_edges=60, density=0.1, n_node_labels=1, n_edge_labels=1, n_patterns=2, seed=0
    ).graphs
    collection = Collection("hard", "graph_edit", hard, "SYN", 1.0, is_costly=True)
    federation = MeasuredFederation(collection, Setting("uniform", 2), seed=0, limit_s=0.01)

    federation.first_radii = {20: 1.0}
    trial = federation.trial_in_process(0, 20, "hufu")

    assert trial.late


def test_stored_searches_are_not_measured_again(trials, journal, tmp_path, monkeypatch):
    truncated = tmp_path / "searches.jsonl"
    lines = journal.read_text().splitlines(keepends=True)

    truncated.write_text("".join(lines[:-1]) + lines[-1][:40])  # interrupted in the last line
    resumed = measure(TASKS, MeasureOptions(journal=truncated))

    assert len(lines) == len(trials)
    assert [trial for trial in resumed if trial in trials] == trials[:-1]
    monkeypatch.setattr(measure_module, "MeasuredFederation", None)
    clear_caches()
    assert measure(TASKS, MeasureOptions(journal=truncated)) == resumed


def test_a_journal_is_not_used_for_another_seed_or_limit(tmp_path):
    journal = Journal(tmp_path / "searches.jsonl")
    setting = Setting("uniform", 4)
    task = Task("titles", setting, (4,), ("dann",), 1, limit_s=2.0)
    trial = make_trial("dann")
    journal.add([3], asdict(trial))

    def find_known(task, row=7, *, n_objects=10, seed=3):
        return known_trials(journal, task, row, n_objects=n_objects, seed=seed)

    assert find_known(task) == {(4, "dann"): trial}
    other_tasks = [
        replace(task, limit_s=3.0),
        replace(task, ks=(5,)),
        replace(task, algorithms=("dann*",)),
        replace(task, setting=Setting("skewed", 4)),
        replace(task, setting=Setting("uniform", 8)),
        replace(task, collection="SYN"),
    ]
    assert [find_known(other) for other in other_tasks] == [{}] * len(other_tasks)
    assert find_known(task, 8) == find_known(task, n_objects=11) == find_known(task, seed=4) == {}


@pytest.mark.parametrize(
    "line", ["", "{}", '{"job": [0], "outcome": {"k": 3}}', "no json", "[]", "NO_JOB"]
)
def test_an_invalid_line_of_a_journal_is_named(tmp_path, line):
    path = tmp_path / "searches.jsonl"
    Journal(path).add([0], asdict(make_trial("dann")))
    first = path.read_text()
    path.write_text(first + line.replace("NO_JOB", first.strip().replace("job", "root")) + "\n")

    with pytest.raises(RecordError, match=r"searches\.jsonl, line 2"):
        measure(TASKS[:1], MeasureOptions(journal=path))


def test_a_sweep_returns_curves_and_speedups(tmp_path):
    sweep = sweeps.Sweep(
        axis=sweeps.K, collections=("SYN", "titles", "genomes"), splits=("uniform", "skewed"),
        algorithms=sweeps.COMPARED, ks=(2, 12), parties=(3,), title="t", caption="c",
        claims={("SYN", "skewed"): sweeps.Claim({"hufu": 4.8})},
    )  # fmt: skip
    effort = sweeps.Effort({"SYN": 2, "titles": 2}, limit_s=30.0)

    findings = sweeps.examine(sweep, effort, MeasureOptions())

    assert len(find_rows(findings, "overview")) == 2 * 2 * 2 * len(sweeps.COMPARED)
    speedups = find_rows(findings, "speedups")
    paper = ("the paper's algorithm", "over the paper's", "paper, factor")
    claims = [(r["algorithm"], r["over"], *(r[name] for name in paper)) for r in speedups]
    assert [claim for claim in claims if claim[-1]] == [
        (name, "hufu", "DANN*", "HuFu-Ext", 4.8) for name in ("dann*", PRINTED)
    ]
    assert len(findings.figures) == 4
    check_figures(findings, tmp_path)


def test_the_budget_study_compares_dann_star_with_bounds(tmp_path):
    plan = budgets.Plan((("titles", 2),), ("0.1", "8"))

    findings = budgets.examine(plan, MeasureOptions())

    rows = [row for row in find_rows(findings, "budgets") if row["collection"] == "titles, uniform"]
    asked = {(row["algorithm"], row["epsilon"]): row["objects asked"] for row in rows}
    assert asked["dann", 8.0] <= asked["dann*", 8.0] <= asked["baseline", 8.0]
    assert asked["dann", 8.0] <= asked[PRINTED, 8.0] <= asked["baseline", 8.0]
    check_figures(findings, tmp_path)


def test_the_other_studies_return_tables_with_figures(tmp_path):
    effort = sweeps.Effort({"titles": 2, "SYN": 1}, limit_s=30.0)

    local = costs.examine(effort, MeasureOptions())
    compared = targets.examine(targets.Plan((("titles", 2, (8, 16)),), 30.0), MeasureOptions())
    real = validation.examine(
        validation.Plan(("titles",), (4,), 1, delay_s=0.001), seed=0, progress=silent
    )

    assert {row["collection"] for row in find_rows(local, "costs")} == {"titles", "SYN"}
    assert {row["collection"] for row in find_rows(compared, "targets")} == {"titles"}
    assert all(row["linked, ratio"] > 0 for row in find_rows(real, "ratios"))
    for findings in (local, compared, real):
        check_figures(findings, tmp_path)


def test_parts_of_the_latency_add_up(trials):
    trials = [trial for trial in trials if trial.k == 20]

    rows = rows_as_dicts(breakdown.breakdown_table(trials))

    for row in rows:
        searches = [
            t
            for t in trials
            if (t.collection, t.split, t.algorithm)
            == (row["collection"], row["split"], row["algorithm"])
        ]
        parts = ("network_s", "local_s", "bounds_s", "broker_s", "messages_s")
        mean = sum(trial.latency_s() for trial in searches) / len(searches)
        assert sum(row[part] for part in parts) == pytest.approx(mean, rel=1e-9)


def test_round_trips_cost_dann_more_than_the_baseline(trials):
    trials = [trial for trial in trials if trial.k == 20]

    rows = rows_as_dicts(breakdown.latency_table(trials))

    by_name = {(r["collection"], r["algorithm"], r["round trip, ms"]): r["latency_s"] for r in rows}
    for collection in {row["collection"] for row in rows}:
        growth = {
            name: by_name[collection, name, 243.0] - by_name[collection, name, 0.0]
            for name in ("baseline", "dann")
        }
        assert growth["baseline"] == pytest.approx(0.243)
        assert growth["dann"] > growth["baseline"]


def test_a_smaller_sample_is_a_prefix_with_the_same_queries():
    small, large = (SMALL["SYN"].sample(n, seed=1) for n in (50, 200))

    assert small.objects == large.objects[:50]
    assert len(set(small.objects)) > 10
    assert small.queries(5, seed=1) == large.queries(5, seed=1) == list(range(5))
    assert SMALL["SYN"].queries(3, seed=1) == SMALL["SYN"].queries(6, seed=1)[:3]


def test_the_page_names_the_records_that_are_older_than_its_rules():
    folder = Path(__file__).parents[3] / "docs" / "results" / "fedknn"
    records = {path.parent.name: read_record(path) for path in folder.glob("*/fedknn.*.jsonl")}
    page = (folder / "README.md").read_text(encoding="utf-8")
    found = re.search(r"\*\*Older than these rules\*\*: (.*?)\.", page)

    older = {name for name, record in records.items() if record.started < "2026-11-29"}

    assert len(records) == 11
    assert found is not None
    assert set(re.findall(r"`(\w+)`", found[1])) == older
