"""The experiments on real rows leave tables that say what was measured."""

import numpy as np
import pytest

from fedneighbors.methods.fedpnn.experiment import EXPERIMENTS
from fedneighbors.methods.fedpnn.rivals import RIVALS
from fedneighbors.methods.fedpnn.studies.real import OURS, SETS, interval, load_set
from fedneighbors.methods.fedpnn.training import run
from fedneighbors.records import read_record, write_record
from fedneighbors.records.study import silent


@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_a_quick_run_scores_every_method_and_can_be_read_again(name, tmp_path):
    record = EXPERIMENTS[name].run(quick=True)
    write_record(record, tmp_path / "record.jsonl")

    (table,) = read_record(tmp_path / "record.jsonl").tables
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]

    assert {row["method"] for row in rows} >= {OURS, *RIVALS}
    assert all(0.4 < row["ROC-AUC"] <= 1 for row in rows)
    assert all(row["balanced accuracy"] > 0.9 for row in rows if row["method"] == OURS)


@pytest.mark.parametrize(
    ("name", "shape", "n_rare"),
    list(zip(SETS, [(699, 9), (7027, 64), (14240, 29)], [241, 271, 23], strict=True)),
)
def test_sets_keep_their_missing_cells_and_their_rare_class(name, shape, n_rare):
    x, y = load_set(name)

    assert x.shape == shape
    assert y.sum() == n_rare
    assert np.isnan(x).any() == (name != "Credit card, subset")


def test_an_interval_of_overlapping_training_sets_is_wider_than_that_of_a_mean():
    gaps = [0.1, 0.3, 0.2, 0.4]

    low, high = interval(gaps)

    assert (low + high) / 2 == pytest.approx(0.25)
    # t of 3 degrees 3.1824, deviation .1291, 1/4 + 1 in place of 1/4
    assert high - low == pytest.approx(2 * 3.182446 * 0.1290994 * np.sqrt(1.25), rel=1e-5)


def test_a_run_on_a_table_is_scored_beside_rivals_and_says_what_is_exposed():
    x, y = load_set("Breast Cancer Wisconsin")
    names = tuple(f"c{j}" for j in range(9))
    owner = np.array(["a", "b", "c"])[np.arange(len(y)) % 3]

    model, record = run(x, y, owner, feature_names=names, progress=silent)

    tables = {table.name: table for table in record.tables}
    summary = [
        dict(zip(tables["summary"].columns, row, strict=True)) for row in tables["summary"].rows
    ]
    exposure = [
        dict(zip(tables["exposure"].columns, row, strict=True)) for row in tables["exposure"].rows
    ]
    assert summary[0]["balanced accuracy"] > 0.93
    assert summary[-1]["balanced accuracy"] == 0.5
    assert [row["party"] for row in exposure] == ["a", "b", "c"]
    assert all(row["fewest"] >= 5 and row["risk"] <= 0.2 for row in exposure)
    assert model.feature_names_in_.tolist() == list(names)
