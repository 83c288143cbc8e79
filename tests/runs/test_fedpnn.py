"""A run of FedPNN on a user's table: report of selected columns, rare classes."""

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from fedneighbors._typing import silent
from fedneighbors.records import read_record, write_record
from fedneighbors.runs._fedpnn import run
from fedneighbors.runs._figures import RunTable


@pytest.fixture(autouse=True)
def limit_threads():
    with threadpool_limits(1):  # for few rows, more threads make the baselines no faster
        yield


def make_table(n_rows=160):
    rng = np.random.default_rng(5)
    y = np.arange(n_rows) % 2
    x = rng.normal(size=(n_rows, 5))
    x[:, 2] += 2 * y
    x[:, 4] += y
    x[:, 1] = 3.0
    return x, y, np.array(["north", "south"])[np.arange(n_rows) // 2 % 2]


def column_tables(record):
    return [table for table in record.tables if table.name == "columns"]


@pytest.mark.parametrize("n", [2, 4])
def test_record_lists_selected_columns_and_statistics(n, tmp_path):
    x, y, owners = make_table()

    model, record = run(
        RunTable(x, y, owners, tuple("abcde")),
        parameters={"n_features_to_select": n}, progress=silent,
    )  # fmt: skip
    write_record(record, tmp_path / "record.jsonl")

    (selected,) = column_tables(read_record(tmp_path / "record.jsonl"))
    names, statistics = zip(*selected.rows, strict=True)
    assert set(names) == set(model.feature_names_in_[model.support_])
    assert names[:2] == ("c", "e")
    assert sorted(statistics, reverse=True) == list(statistics)
    assert sorted(statistics) == sorted(model.t_statistics_.tolist())
    assert "sums of each class" in str(
        [table for table in record.tables if table.name == "traffic"]
    )


def test_constant_columns_come_last_without_statistics():
    x, y, owners = make_table()
    x[:, 3] = y  # classes differ without variance

    _, record = run(
        RunTable(x[:, [1, 1, 2, 3]], y, owners, tuple("abcd")),
        parameters={"n_features_to_select": 3}, progress=silent,
    )  # fmt: skip

    (selected,) = column_tables(record)
    assert [name for name, _ in selected.rows] == ["d", "c", "a"]
    assert [statistic is None for _, statistic in selected.rows] == [True, False, True]


def test_record_without_selection_lists_no_columns():
    x, y, owners = make_table()

    _, record = run(RunTable(x, y, owners, tuple("abcde")), parameters={}, progress=silent)

    assert column_tables(record) == []


def test_classes_below_min_count_are_scored_too():
    x, y, owners = make_table()
    y = y.copy()
    y[:8] = 2

    model, record = run(RunTable(x, y, owners, tuple("abcde")), parameters={}, progress=silent)

    (summary,) = (table for table in record.tables if table.name == "summary")
    assert model.classes_.tolist() == [0, 1, 2]
    assert len(summary.rows) == 5
