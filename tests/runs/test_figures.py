"""Parts that reports of several methods share."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from fedneighbors._typing import silent
from fedneighbors.comparison import compare
from fedneighbors.records import Round
from fedneighbors.runs._fedpnn import run as run_fedpnn
from fedneighbors.runs._figures import (
    RunTable,
    column_medians,
    fill_cells,
    split_rows_by_party,
    tabulate_joining,
    tabulate_traffic,
)
from fedneighbors.runs._flynn import run as run_flynn
from fedneighbors.runs._knnper import run as run_knnper
from fedneighbors.runs._shared_models import run as run_shared


@pytest.mark.parametrize(
    ("request_", "title"),
    [
        ("CentersRequest", "centers"),
        ("PublicSchemaRequest", "columns and labels"),
        ("PrivateModelRelease", "the model"),
        ("MaskedClassSumsRequest: DealShares", "noised class sums: shares of keys"),
        ("MomentsRequest: Unmask", "sums of columns: unmasked"),
        ("SomethingElse", "SomethingElse"),
    ],
)
def test_rounds_have_readable_names(request_, title):
    record = Round(2, request_, "gather", {"p": 10, "q": 30}, {"p": 6, "q": 6}, 0.1)

    table, _ = tabulate_traffic([record])

    assert table.rows == ((f"3. {title}", "sent", 20.0), (f"3. {title}", "received", 6.0))


def make_table(n_rows=240):
    rng = np.random.default_rng(0)
    y = np.array(["no", "yes"])[np.arange(n_rows) % 2]
    parties = np.array(["north", "south", "west"])[np.arange(n_rows) // 2 % 3]
    x = rng.normal(size=(n_rows, 3))
    x[:, 0] += 2 * (y == "yes")
    return x, y, parties


def test_the_same_fraction_of_each_class_of_a_party_is_held_out():
    _, y, parties = make_table()

    rows, held_out = split_rows_by_party(y, parties, 0.25, 0)

    assert sorted([*rows, *held_out]) == list(range(240))
    counts = Counter(zip(parties[held_out], y[held_out], strict=True))
    assert set(counts.values()) == {10}


def test_joining_pays_for_a_party_that_it_helps():
    x, y, parties = make_table()
    x[parties == "west"] = 0  # nothing to learn from
    _, held_out = split_rows_by_party(y, parties, 0.25, 0)
    truth, owners = y[held_out], parties[held_out]
    joined = {
        "north": np.where(truth == "yes", "no", "yes"),
        "south": truth,
        "west": np.where(owners == "west", truth, "no"),
    }

    table = tabulate_joining(RunTable(x, y, parties, tuple("abc")), method="M", predict=joined.get)

    by_party = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert by_party["north"]["M, own"] == by_party["north"]["M, all"] == 0
    assert by_party["west"]["boosting, own"] == 0.5
    assert by_party["west"]["joining pays?"] == "Yes: 10 more of 20 rows are right."
    assert by_party["north"]["joining pays?"].startswith("No: ")
    assert by_party["south"]["M, own"] == 1
    assert by_party["south"]["training rows"] == 60


def test_reports_of_all_methods_have_the_same_figures_alone():
    x, y, parties = make_table(n_rows=250)  # some fractions of a row are rounded
    table, knnper = (
        RunTable(x, y, parties, tuple("abc")),
        {"with_baselines": False, "progress": silent},
    )

    records = [
        run_flynn(table, search=False, parameters={}, progress=silent)[1],
        run_fedpnn(table, parameters={}, progress=silent)[1],
        run_knnper(table, parameters={"n_rounds": 2}, **knnper)[1],
    ]

    candidates = ["alone", "averaged linear models"]
    compared = compare(x, y, parties=parties, minutes=1, candidates=candidates).record

    alone = [figures_alone(record, "joining") for record in records]
    assert alone[0] == alone[1] == alone[2]
    assert min(map(min, alone[0])) > 0.6
    assert figures_alone(compared, "parties") == [row[:2] for row in alone[0]]


def test_parties_alone_see_the_same_missing_cells_in_all_reports():
    x, y, parties = make_table()
    x[np.random.default_rng(1).random(x.shape) < 0.2] = np.nan
    fills = column_medians(x[split_rows_by_party(y, parties, 0.25, 0)[0]])
    table = RunTable(x, y, parties, tuple("abc"))
    filled = replace(table, fills=fills)
    knnper = {"parameters": {"representation": "discriminants"}, "with_baselines": False}
    boosting = {"method": "boosting", "parameters": {"max_iter": 1}}

    records = [
        run_flynn(filled, search=False, parameters={}, progress=silent)[1],
        run_fedpnn(table, parameters={}, progress=silent)[1],
        run_knnper(filled, **knnper, progress=silent)[1],
        run_shared(table, **boosting, progress=silent)[1],
    ]

    candidates = ["alone", "averaged linear models"]
    compared = compare(x, y, parties=parties, minutes=1, candidates=candidates).record
    alone = [figures_alone(record, "joining") for record in records]
    assert alone[0] == alone[1] == alone[2] == alone[3]
    assert figures_alone(compared, "parties") == [row[:2] for row in alone[0]]


def test_cells_of_held_out_rows_do_not_fill_training_rows():
    x = np.array([[1.0, np.nan], [3.0, np.nan], [np.nan, 7.0]])

    medians = column_medians(x[:2])

    assert medians.tolist() == [2.0, 0.0]
    assert fill_cells(x, medians).tolist() == [[1.0, 0.0], [3.0, 0.0], [2.0, 7.0]]
    assert fill_cells(x, None) is x


def figures_alone(record, name):
    (table,) = (table for table in record.tables if table.name == name)
    columns = [
        i for i, title in enumerate(table.columns) if title.split(",")[0] in ("boosting", "kNN")
    ]
    return [[row[i] for i in columns] for row in table.rows]
