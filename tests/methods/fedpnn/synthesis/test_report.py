import numpy as np
import pandas as pd
import pytest

from fedneighbors.methods.fedpnn.synthesis import quality_record
from fedneighbors.records import read_record, write_record
from fedneighbors.reports._html import write_report


def make_rows(seed, n=80):
    rng = np.random.default_rng(seed)
    y = np.repeat(["no", "yes"], n // 2)
    frame = pd.DataFrame(
        {
            "size": rng.normal(size=n) + 3.0 * (y == "yes"),
            "price": rng.gamma(1.0, size=n),
            "city": rng.choice(["Oslo", "Rome"], n),
        }
    )
    frame.loc[::6, "price"] = np.nan
    return frame, y


def test_report_with_figures_is_rendered_from_the_record(tmp_path):
    record = quality_record(
        make_rows(0), make_rows(1), test=make_rows(2), parameters={"noise": "mixture"}
    )

    write_record(record, tmp_path / "quality.jsonl")
    write_report([read_record(tmp_path / "quality.jsonl")], tmp_path / "quality.html")

    page = (tmp_path / "quality.html").read_text()
    assert page.count("data:image/svg+xml") == 4
    for words in ("KS complement", "separability gap", "Class by class", "copies of real rows"):
        assert words in page


def test_summary_contains_every_measure():
    record = quality_record(make_rows(0), make_rows(1), test=make_rows(2))

    summary = {row[0]: row[1] for row in record.tables[0].rows}
    assert set(summary) == {
        "KS complement, mean",
        "correlation similarity, mean",
        "category coverage, mean",
        "copies of real rows",
        "repeated real rows",
        "closer than usual",
        "rare values, synthetic rows",
        "rare values, held-out rows",
        "train synthetic, test real",
        "train real, test real",
        "separability gap",
    }
    assert summary["category coverage, mean"] == 1.0
    assert summary["copies of real rows"] == 0.0


def test_report_without_labels_and_numbers_is_smaller(tmp_path):
    text = pd.DataFrame({"w": ["a", "b", "a", None], "v": ["x", "y", "x", "x"]})

    record = quality_record((text, None), (text, None))
    write_report([record], tmp_path / "words.html")

    assert {table.name for table in record.tables} == {"summary", "columns", "distances"}
    assert [figure.name for figure in record.figures] == ["nearest-records"]


def test_copies_are_noted():
    x, y = make_rows(0)

    record = quality_record((x, y), (x, y))

    assert any("100.0% of the synthetic rows are copies" in note for note in record.notes)


def test_record_contains_no_values_of_real_rows():
    real = make_rows(0)

    record = quality_record(real, make_rows(1), test=make_rows(2))

    cells = {cell for table in record.tables for row in table.rows for cell in row}
    assert not cells & set(real[0]["size"])
    assert not cells & set(real[0]["price"].dropna())


def test_class_without_synthetic_rows_is_listed():
    x, y = make_rows(0)

    record = quality_record((x, y), (x[y == "no"], y[y == "no"]))

    classes = next(table for table in record.tables if table.name == "classes")
    assert classes.rows[1] == ("yes", 40, 0, None, None)
    assert classes.rows[0][3] == pytest.approx(1.0)
