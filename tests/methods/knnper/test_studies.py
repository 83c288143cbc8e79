"""kNN-Per's experiments: each runs, and says what it measured."""

import pytest

from fedneighbors.methods.knnper.experiment import EXPERIMENTS


@pytest.mark.parametrize("name", sorted(set(EXPERIMENTS) - {"knnper.drift"}))
def test_an_experiment_runs_and_leaves_a_table_for_seen_and_unseen_clients(name):
    record = EXPERIMENTS[name].run(quick=True)

    assert [table.name for table in record.tables] == ["seen", "unseen"]
    for table in record.tables:
        accuracy = [row[2] for row in table.rows]
        assert all(0 < value <= 1 for value in accuracy)
        assert max(accuracy) > 0.5
        assert len(set(accuracy)) > 1


def test_the_experiment_of_drift_tells_accuracy_and_alarms_of_every_strategy():
    record = EXPERIMENTS["knnper.drift"].run(quick=True)

    tables = {table.name: table for table in record.tables}
    assert len(tables["summary"].rows) == 2 * 5
    found = {(row[0], row[1]): row[2:] for row in tables["summary"].rows}
    assert found["concept", "drift"][2] > found["concept", "fixed"][2]
    assert [row[0] for row in tables["alarms"].rows] == ["labels", "concept"]
