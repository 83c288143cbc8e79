"""A run on a user's table selects the requested columns, and reports them with a reason."""

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from fedneighbors._typing import silent
from fedneighbors.records import read_record, write_record
from fedneighbors.runs._fedpnn import run


@pytest.fixture(autouse=True)
def one_thread():
    with threadpool_limits(1):  # baselines of a few rows gain nothing from more
        yield


def table(n=160):
    rng = np.random.default_rng(5)
    y = np.arange(n) % 2
    x = rng.normal(size=(n, 5))
    x[:, 2] += 2 * y
    x[:, 4] += y
    x[:, 1] = 3.0
    return x, y, np.array(["north", "south"])[np.arange(n) // 2 % 2]


def columns_of(record):
    return [t for t in record.tables if t.name == "columns"]


@pytest.mark.parametrize("n", [2, 4])
def test_the_record_lists_kept_columns_and_statistics(n, tmp_path):
    x, y, owner = table()

    model, record = run(
        x, y, owner,
        feature_names=tuple("abcde"), parameters={"n_features_to_select": n}, progress=silent,
    )  # fmt: skip
    write_record(record, tmp_path / "record.jsonl")

    (shown,) = columns_of(read_record(tmp_path / "record.jsonl"))
    names, statistics = zip(*shown.rows, strict=True)
    assert set(names) == set(model.feature_names_in_[model.support_])
    assert names[:2] == ("c", "e")
    assert sorted(statistics, reverse=True) == list(statistics)
    assert sorted(statistics) == sorted(model.t_statistics_.tolist())
    assert "sums of each class" in str([t for t in record.tables if t.name == "traffic"])


def test_constant_columns_come_last_without_statistics():
    x, y, owner = table()
    x[:, 3] = y  # classes differ without variance

    _, record = run(
        x[:, [1, 1, 2, 3]], y, owner,
        feature_names=tuple("abcd"), parameters={"n_features_to_select": 3}, progress=silent,
    )  # fmt: skip

    (shown,) = columns_of(record)
    assert [name for name, _ in shown.rows] == ["d", "c", "a"]
    assert [t is None for _, t in shown.rows] == [True, False, True]


def test_a_record_of_all_columns_shows_none():
    x, y, owner = table()

    _, record = run(x, y, owner, feature_names=tuple("abcde"), progress=silent)

    assert columns_of(record) == []


def test_too_rare_classes_are_scored_with_baselines_too():
    x, y, owner = table()
    y = y.copy()
    y[:8] = 2

    model, record = run(x, y, owner, feature_names=tuple("abcde"), progress=silent)

    (summary,) = (t for t in record.tables if t.name == "summary")
    assert model.classes_.tolist() == [0, 1, 2]
    assert len(summary.rows) == 5
