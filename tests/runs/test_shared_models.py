"""Runs of boosting, discriminants and neighbors on a table: the scores of compare, real traffic."""

from dataclasses import replace

import numpy as np
import pytest

from fedneighbors._typing import silent
from fedneighbors.comparison._table import PartyRows
from fedneighbors.comparison._worker import run_task
from fedneighbors.runs._figures import RunTable, column_medians, tabulate_traffic
from fedneighbors.runs._shared_models import METHODS, run


def make_table(task="classification", n_rows=240):
    rng = np.random.default_rng(0)
    parties = np.array(["north", "south", "west"])[np.arange(n_rows) // 2 % 3]
    x = rng.normal(size=(n_rows, 4))
    target = x[:, 0] + rng.normal(size=n_rows) / 2
    y = np.array(["no", "yes"])[(target > 0).astype(int)]
    x[rng.random(x.shape) < 0.1] = np.nan
    return x, target.astype(str) if task == "regression" else y, parties


def train(method, task="classification", **parameters):
    x, y, parties = make_table(task)
    y = y.astype(float) if task == "regression" else y
    table = RunTable(x, y, parties, tuple("abcd"), task=task)
    if method != "boosting":
        table = replace(table, fills=column_medians(x[table.split[0]]))
    return run(table, method=method, parameters=parameters, progress=silent)


def table_of(record, name):
    return next(table for table in record.tables if table.name == name)


@pytest.mark.parametrize(
    ("method", "task"),
    [
        *((method, "classification") for method in METHODS),
        ("boosting", "regression"),
        ("neighbors", "regression"),
    ],
)
def test_scores_are_those_of_the_first_split_of_compare(method, task):
    x, y, parties = make_table(task)
    is_class = task == "classification"
    targets = np.unique(y, return_inverse=True)[1] if is_class else y.astype(float)
    rows = PartyRows(x, targets, np.unique(parties, return_inverse=True)[1])
    title = METHODS[method].title

    _, record = train(method, task)

    settings = {"candidate": title, "task": task, "n_classes": 2 * is_class, "seed": 0, "repeat": 0}
    summary = table_of(record, "summary")
    scores = dict(zip(summary.columns[1:], summary.rows[0][1:], strict=True))
    assert summary.rows[0][0] == title
    assert scores == run_task(rows, settings)["scores"]


@pytest.mark.parametrize(
    ("method", "parameters", "requests"),
    [
        (
            "boosting",
            {"max_iter": 2},
            ["columns and labels", "sums of the target", "counts of values", "histograms"],
        ),
        (
            "discriminants",
            {"quadratic": False},
            ["columns and labels", "sums of columns", "class counts", "sums and products by class"],
        ),
        ("neighbors", {"n_neighbors": 3}, ["columns", "sums of columns", "nearest rows"]),
    ],
)
def test_the_traffic_is_that_of_a_training_over_the_parties(method, parameters, requests):
    model, record = train(method, **parameters)

    titles = {row[0].split(". ")[1] for row in table_of(record, "traffic").rows}
    assert all(any(title.startswith(name) for title in titles) for name in requests)
    assert set(record.rounds[-1].upload_bytes) == {"north", "south", "west"}
    assert min(row[2] for row in table_of(record, "traffic").rows if row[1] == "sent") > 0
    assert [entry.index for entry in record.rounds] == list(range(len(record.rounds)))
    assert {name: getattr(model, name) for name in parameters} == parameters


def test_many_rounds_are_summed_by_request():
    _, record = train("boosting")

    table, _ = tabulate_traffic(record.rounds)

    histograms = [entry for entry in record.rounds if entry.request == "HistogramRequest"]
    sent = {row[0]: row[2] for row in table.rows if row[1] == "sent"}
    expected = sum(sum(entry.upload_bytes.values()) / 3 for entry in histograms)
    assert len(sent) == 5
    assert sent[f"histograms ({len(histograms):,})"] == pytest.approx(expected)
    assert table.title == "Bytes per party and request"


def test_a_class_of_a_single_row_has_no_covariance():
    x, y, parties = make_table()
    y = np.where(np.arange(len(y)) == 0, "rare", y)
    table = RunTable(x, y, parties, tuple("abcd"))

    model, record = run(
        replace(table, fills=column_medians(x[table.split[0]])),
        method="discriminants",
        parameters={},
        progress=silent,
    )

    assert not model.quadratic
    assert "best of 2 on held-out training rows" in record.notes[0]


def test_the_choice_of_settings_is_noted():
    chosen, _ = train("neighbors")[1].notes
    (given,) = train("neighbors", n_neighbors=3)[1].notes

    assert chosen.startswith("The settings (n_neighbors=")
    assert "best of 3 on held-out training rows" in chosen
    assert "The model file has all rows and labels of all parties" in given


def test_numbers_are_joined_by_their_errors():
    _, record = train("boosting", "regression")

    joining = table_of(record, "joining")
    assert joining.title == "Mean absolute error of each party alone and joined"
    assert {row[0] for row in joining.rows} == {"north", "south", "west"}
    assert [table.name for table in record.tables] == ["summary", "joining", "traffic"]
    assert 0 < min(row[-1] for row in joining.rows) < 1
