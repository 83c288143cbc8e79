"""kNN-Per's experiments: each runs, and says what it measured."""

from functools import cache

import pytest

from fedneighbors.methods.knnper.experiment import EXPERIMENTS
from fedneighbors.methods.knnper.studies.drift import SHIFTS


@cache
def quick(name):
    return EXPERIMENTS[name].run(quick=True)


SWEEPS = ("knnper.lambda", "knnper.k", "knnper.sigma", "knnper.capacity")


@pytest.mark.parametrize("name", SWEEPS)
def test_an_experiment_runs_and_leaves_a_table_for_seen_and_unseen_clients(name):
    record = quick(name)

    tables = {table.name: table for table in record.tables}
    for who in ("seen", "unseen"):
        accuracy = [row[2] for row in tables[who].rows]
        assert all(0 < value <= 1 for value in accuracy)
        assert max(accuracy) > 0.5
        assert len(set(accuracy)) > 1


def test_clients_choose_weights_of_the_grid():
    record = quick("knnper.lambda")

    [chosen] = [table for table in record.tables if table.name == "chosen"]
    assert sum(row[1] for row in chosen.rows) == 3 * 2  # three sizes of two unseen clients
    assert all(0 <= row[2] <= 1 for row in chosen.rows)


def test_weak_clients_are_told_apart_from_strong_ones():
    record = quick("knnper.hardware")

    [table] = record.tables
    assert [row[1] for row in table.rows] == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
    assert all(0.3 < row[2] <= 1 for row in table.rows)


def test_a_better_network_makes_a_better_memory():
    record = quick("knnper.quality")

    tables = {table.name: table for table in record.tables}
    first, *_, last = tables["seen"].rows
    assert last[2] > first[2] + 0.1
    assert last[4] >= first[4]
    assert {row[1] for row in tables["lines"].rows} == {"memory", "mixture"}


def test_the_experiment_of_drift_tells_accuracy_and_alarms_of_every_strategy():
    record = quick("knnper.drift")

    tables = {table.name: table for table in record.tables}
    assert len(tables["summary"].rows) == 3 * 6
    found = {(row[0], row[1]): row[2:] for row in tables["summary"].rows}
    for other in ("fixed", "fifo", "concatenate", "reservoir"):
        better, low, high = found["concept", other][3:]
        assert better == pytest.approx(found["concept", "drift"][1] - found["concept", other][1])
        assert 0 < low <= better <= high
    assert [row[0] for row in tables["alarms"].rows] == list(SHIFTS)
