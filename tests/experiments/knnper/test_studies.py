"""kNN-Per's experiments run and have complete records."""

from functools import cache

import pytest

from experiments.catalog import find_study
from experiments.knnper.drift import SHIFTS
from experiments.knnper.sweeps import list_jobs


@cache
def quick(name):
    return find_study(name).run(quick=True)


SWEEPS = {"knnper.lambda": 0, "knnper.k": 10, "knnper.sigma": 1, "knnper.capacity": 1}
"""Experiments that vary a setting, and the reference value of the setting."""


@pytest.mark.parametrize("name", SWEEPS)
def test_an_experiment_writes_tables_of_seen_and_unseen_clients(name):
    record = quick(name)

    tables = {table.name: table for table in record.tables}
    for kind in ("seen", "unseen"):
        accuracy = [row[2] for row in tables[kind].rows]
        assert all(0 < value <= 1 for value in accuracy)
        assert max(accuracy) > 0.5
        assert len(set(accuracy)) > 1


@pytest.mark.parametrize(("name", "reference"), SWEEPS.items())
def test_accuracies_and_differences_come_with_their_intervals(name, reference):
    tables = {table.name: table for table in quick(name).tables}

    for kind in ("seen", "unseen"):
        rows = [dict(zip(tables[kind].columns, row, strict=True)) for row in tables[kind].rows]
        axis = tables[kind].columns[1]
        better = f"better than {reference:g} by"
        [base] = [row["accuracy"] for row in rows if row[axis] == reference]
        assert all(row["lower end"] <= row["accuracy"] <= row["upper end"] for row in rows)
        assert all(row["from"] <= row[better] <= row["to"] for row in rows)
        assert [row[better] for row in rows] == pytest.approx(
            [row["accuracy"] - base for row in rows]
        )


CURVES = {"knnper.lambda": ("size of the memory", 3), "knnper.sigma": ("sigma", 6)}
"""Experiments with several curves over lambda, the column of their names, and their number."""


@pytest.mark.parametrize(("name", "curves"), CURVES.items())
def test_curves_over_the_weight_begin_at_the_network(name, curves):
    column, n_curves = curves
    tables = {table.name: table for table in quick(name).tables}

    for group in ("seen", "unseen"):
        table = tables[f"{group}-curves"]
        rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
        assert len(rows) == n_curves * 11
        assert len({row[column] for row in rows}) == n_curves
        assert len({row["accuracy"] for row in rows if row["lambda"] == 0}) == 1
        assert len({row["accuracy"] for row in rows if row["lambda"] == 1}) > 1
    figures = {figure.name: figure for figure in quick(name).figures}
    assert (figures["unseen-curves"].x, figures["unseen-curves"].hue) == ("lambda", column)
    assert figures["unseen-curves"].facet == "alpha"
    assert figures["unseen"].log_x == (name == "knnper.sigma")


def test_all_rows_in_memory_are_the_last_curve():
    tables = {table.name: table for table in quick("knnper.lambda").tables}

    assert [row[:1] + row[2:] for row in tables["seen-curves"].rows[-11:]] == list(
        tables["seen"].rows
    )


def test_sweeps_share_the_measurements_of_a_journal(tmp_path, monkeypatch):
    journal = tmp_path / "journal"
    find_study("knnper.lambda").run(quick=True, journal=journal)
    expected = {name: quick(name).tables for name in ("knnper.lambda", "knnper.k", "knnper.sigma")}
    monkeypatch.delattr("experiments.knnper.memory.train_and_embed")  # no network is trained

    for name, tables in expected.items():
        assert find_study(name).run(quick=True, journal=journal).tables == tables


def test_quality_resumes_from_a_journal(tmp_path, monkeypatch):
    journal = tmp_path / "journal"
    expected = find_study("knnper.quality").run(quick=True, journal=journal).tables
    monkeypatch.delattr("experiments.knnper.quality.train_clients")  # no network is trained

    assert find_study("knnper.quality").run(quick=True, journal=journal).tables == expected


def test_compression_resumes_from_a_journal(tmp_path, monkeypatch):
    journal = tmp_path / "journal"
    study = find_study("knnper.compression")
    expected = study.run(quick=True, journal=journal).tables
    monkeypatch.delattr("experiments.knnper.compression.train_network")  # no network is trained

    assert study.run(quick=True, journal=journal).tables == expected
    assert {row[0] for row in expected[0].rows} >= {"exact", "8-bit", "centers", "protonn"}


@pytest.mark.parametrize("name", [*SWEEPS, "knnper.hardware", "knnper.quality"])
def test_sweeps_train_for_200_rounds_with_five_seeds(name):
    scope, jobs = list_jobs(False, 0)

    assert (scope.n_rounds, len(jobs)) == (200, 15)
    assert quick(name).parameters["seeds"] == 1
    assert len(list_jobs(False, 0, 2)[1]) == 6


def test_methods_have_intervals_for_fewer_rows():
    tables = {table.name: table for table in quick("knnper.capacity").tables}

    rows = [
        dict(zip(tables["methods"].columns, row, strict=True)) for row in tables["methods"].rows
    ]
    ours = {row["share of the rows"]: row["accuracy"] for row in rows if "pool" in row["method"]}
    for row in rows:
        difference = ours[row["share of the rows"]] - row["accuracy"]
        assert row["pool is better by"] == pytest.approx(difference)
        assert row["from"] <= row["pool is better by"] <= row["to"]
        assert row["lower end"] <= row["accuracy"] <= row["upper end"]


def test_clients_choose_weights_of_the_grid():
    record = quick("knnper.lambda")

    [chosen] = [table for table in record.tables if table.name == "chosen"]
    assert sum(row[1] for row in chosen.rows) == 3 * 2  # three sizes of two unseen clients
    assert all(0 <= row[2] <= 1 for row in chosen.rows)


def test_weak_and_strong_clients_are_distinguished():
    record = quick("knnper.hardware")

    [table] = record.tables
    assert [row[1] for row in table.rows] == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
    assert all(0.3 < row[2] <= 1 for row in table.rows)


def test_a_better_network_gives_a_better_memory():
    record = quick("knnper.quality")

    tables = {table.name: table for table in record.tables}
    first, *_, last = tables["seen"].rows
    assert last[2] > first[2] + 0.1
    assert last[4] >= first[4]
    assert {row[1] for row in tables["lines"].rows} == {"memory", "mixture"}
    for _, _, part, accuracy, low, high, better, least, most in tables["seen-intervals"].rows:
        assert low <= accuracy <= high
        assert least <= better <= most
        assert part != "network" or (least, better, most) == (0, 0, 0)


def test_the_drift_experiment_reports_accuracy_and_alarms():
    record = quick("knnper.drift")

    tables = {table.name: table for table in record.tables}
    assert len(tables["summary"].rows) == 3 * 6
    found = {(row[0], row[1]): row[2:] for row in tables["summary"].rows}
    for other in ("fixed", "fifo", "concatenate", "reservoir"):
        better, low, high = found["concept", other][3:]
        assert better == pytest.approx(found["concept", "drift"][1] - found["concept", other][1])
        assert low <= better <= high
        # a window of the last rows forgets too; three streams do not separate it from eviction
        assert (better if other == "fifo" else low) > 0
    assert [row[0] for row in tables["alarms"].rows] == list(SHIFTS)
