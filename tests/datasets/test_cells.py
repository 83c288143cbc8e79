"""Rows are read by a schema, each independently of all others in the file."""

import codecs
import datetime
import gzip
import json

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.datasets import (
    CategoricalColumn,
    NumericColumn,
    Schema,
    TextFormat,
    read_rows,
    read_table,
)
from fedneighbors.errors import DataError, MissingDataError
from tests.datasets.hostile_rows import delimited_rows

SCHEMA = Schema(
    (NumericColumn("age", 0.0, 110.0, 40.0), CategoricalColumn("sex", ("f", "m", "x"), "x")),
    "died",
    ("no", "yes"),
)
ROWS = [(30, "f", "no"), (50, "m", "yes"), (70, "x", "no"), (41.5, "m", "no")]
ARFF = "@relation r\n@attribute age numeric\n@attribute sex string\n@attribute died {no,yes}\n@data"
HOSTILE = delimited_rows()


def lines_of(kind):
    if kind == "jsonl":
        names = ("age", "sex", "died")
        return [json.dumps(dict(zip(names, row, strict=True))).encode() for row in ROWS]
    head = ARFF if kind == "arff" else "age,sex,died"
    return [head.encode(), *(",".join(map(str, row)).encode() for row in ROWS)]


def read(folder, kind, lines):
    path = folder / f"rows.{kind}"
    path.write_bytes(b"\n".join(lines) + b"\n")
    return read_rows(path, SCHEMA)


def fingerprints(rows):
    """Return the bytes of each kept row and its label."""
    return [(row.tobytes(), label) for row, label in zip(rows.x, rows.y.tolist(), strict=True)]


def test_there_are_enough_hostile_rows():
    assert len(set(HOSTILE)) >= 200


@pytest.mark.parametrize("kind", ["csv", "arff", "jsonl"])
def test_a_hostile_row_changes_no_other_row(tmp_path, kind):
    lines = lines_of(kind)
    plain = fingerprints(read(tmp_path, kind, lines))
    first = len(lines) - len(ROWS)
    assert len(plain) == len(ROWS)

    for number, hostile in enumerate(HOSTILE):
        position = number % (len(ROWS) + 1)
        changed = [*lines[: first + position], hostile, *lines[first + position :]]

        found = fingerprints(read(tmp_path, kind, changed))

        added = found[position : len(found) - len(ROWS) + position]
        assert len(added) <= 1 + hostile.count(b"\n"), hostile[:50]
        assert [*found[:position], *found[position + len(added) :]] == plain, hostile[:50]


def write_parquet(path, rows):
    columns = zip(("age", "sex", "died"), zip(*rows, strict=True), strict=True)
    table = pyarrow.table({name: list(cells) for name, cells in columns})
    pyarrow.parquet.write_table(table, path, compression="zstd")


@pytest.mark.parametrize("length", [300_000, 1_000_000, 30_000_000])
@pytest.mark.parametrize("kind", ["csv", "arff", "jsonl", "parquet"])
def test_a_long_row_of_a_compressed_file_changes_no_other_row(tmp_path, kind, length):
    text = "x" * length
    if kind == "parquet":
        path = tmp_path / "rows.parquet"
        write_parquet(path, [*ROWS, (30.0, text, "no")])
    else:
        line = (
            f'{{"age": 30, "sex": "{text}", "died": "no"}}' if kind == "jsonl" else f"30,{text},no"
        )
        path = tmp_path / f"rows.{kind}.gz"
        path.write_bytes(gzip.compress(b"\n".join([*lines_of(kind), line.encode()])))
    plain = fingerprints(read(tmp_path, "csv", lines_of("csv")))

    found = fingerprints(read_rows(path, SCHEMA))

    assert found[: len(ROWS)] == plain
    assert len(found) <= len(ROWS) + 1


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_the_mark_of_a_json_line_changes_no_other_row(tmp_path, encoding):
    schema = Schema((CategoricalColumn("word", ("\xe9", "x"), "x"),))
    line = '{"word": "\xe9"}'.encode(encoding)
    path = tmp_path / "rows.jsonl"

    for marked in (0, 1, 2):
        lines = [codecs.BOM_UTF8 + line if n == marked else line for n in range(2)]
        path.write_bytes(b"\n".join(lines))
        rows = read_rows(path, schema, text_format=TextFormat(encoding=encoding))

        assert rows.x[:, 0].tolist() == [0.0] * (rows.x.shape[0])
        assert rows.n_unreadable == (encoding == "latin-1" and marked < 2)


CELLS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.binary(max_size=5)
)


@settings(max_examples=50)
@given(st.lists(st.tuples(CELLS, CELLS, CELLS), max_size=6))
def test_json_lines_keep_the_type_of_each_cell(tmp_path_factory, rows):
    plain = [[None if isinstance(cell, bytes) else cell for cell in row] for row in rows]
    names = ("age", "sex", "died")
    lines = [json.dumps(dict(zip(names, row, strict=True))).encode() for row in plain]

    found = read(tmp_path_factory.mktemp("rows"), "jsonl", lines)

    columns = [[row[i] for row in plain] for i in range(3)]
    expected = SCHEMA.encode(dict(zip(names, columns, strict=True)))
    assert fingerprints(found) == fingerprints(expected)


@pytest.mark.parametrize(
    ("kind", "cells"),
    [
        (pyarrow.int64(), [1, 2, 2**62]),
        (pyarrow.float32(), [1.5, float("inf"), float("nan")]),
        (pyarrow.string(), ["1", "two", None]),
        (pyarrow.dictionary(pyarrow.int8(), pyarrow.string()), ["1", "two", "1"]),
        (pyarrow.bool_(), [True, False, None]),
        (pyarrow.date32(), [datetime.date(2024, 1, 1), None, datetime.date(1, 1, 1)]),
        (pyarrow.list_(pyarrow.int8()), [[1], [], None]),
        (pyarrow.decimal128(5, 2), [1, 2, 3]),
    ],
)
def test_parquet_columns_of_any_type_are_read_cell_by_cell(tmp_path, kind, cells):
    age = pyarrow.array(cells, kind)
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(
        pyarrow.table({"died": ["no"] * 3, "age": age, "sex": ["f", "m", "x"]}), path
    )

    rows = read_rows(path, SCHEMA)

    expected, _, _ = SCHEMA.columns[0].encode(age.to_pylist())
    assert rows.x[:, 0].tolist() == expected[:, 0].tolist()


def test_parquet_text_that_is_not_utf8_and_far_dates_are_missing(tmp_path):
    sex = pyarrow.array([b"\xff", b"m"], pyarrow.binary()).view(pyarrow.string())
    age = pyarrow.array([2**40, 1], pyarrow.int64()).cast(pyarrow.timestamp("s"))
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"age": age, "sex": sex, "died": ["no"] * 2}), path)

    rows = read_rows(path, SCHEMA)

    assert rows.x.tolist() == [[40, 0, 0, 1], [40, 0, 1, 0]]


def test_gzipped_text_with_bom_and_windows_line_ends_is_read(tmp_path):
    path = tmp_path / "rows.csv.gz"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbfage;sex;died\r\n3; m ;no\r\n\r\n"))

    rows = read_rows(path, SCHEMA, text_format=TextFormat(";"))

    assert rows.x.tolist() == [[3, 0, 1, 0]]


@pytest.mark.parametrize("kind", ["csv", "arff", "jsonl"])
def test_a_file_without_rows_has_no_rows(tmp_path, kind):
    rows = read(tmp_path, kind, lines_of(kind)[: -len(ROWS)])

    assert rows.x.shape == (0, 4)
    assert rows.y.shape == (0,)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"", "no header row"),
        ("a.csv", b"age,sex\n1,f\n", "has no column 'died'; its columns are 'age', 'sex'"),
        ("a.csv", b"age,age,sex,died\n", "repeats these column names: 'age'"),
        ("a.csv.gz", b"age,sex,died\n", "not a complete gzip file"),
        ("a.arff", b"age,sex,died\n", "invalid in an ARFF header"),
        ("a.parquet", b"age,sex,died\n", "cannot be read as Parquet"),
    ],
)
def test_a_file_with_an_invalid_header_is_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)

    with pytest.raises(DataError, match=message):
        read_rows(tmp_path / name, SCHEMA)


@pytest.mark.parametrize("name", ["a.csv", "a.arff", "a.jsonl", "a.parquet"])
def test_a_missing_file_is_named(tmp_path, name):
    with pytest.raises(MissingDataError, match=f"there is no file .*{name}"):
        read_rows(tmp_path / name, SCHEMA)


def test_labels_are_not_required_for_prediction(tmp_path):
    (tmp_path / "new.csv").write_text("sex,age\nm,\n")

    rows = read_rows(tmp_path / "new.csv", SCHEMA, labelled=False)

    assert rows.x.tolist() == [[40, 0, 1, 0]]
    assert rows.y is None


def test_a_table_is_read_by_a_schema_with_owners(tmp_path):
    (tmp_path / "a.csv").write_text("site,sex,age,died\nn,m,1,no\ns,f,2,perhaps\ns,f,3,yes\n")

    data = read_table(tmp_path / "a.csv", schema=SCHEMA, party="site")

    assert data.x.tolist() == [[1, 0, 1, 0], [3, 1, 0, 0]]
    assert data.y.tolist() == ["no", "yes"]
    assert data.parties.tolist() == ["n", "s"]
    assert data.feature_names == SCHEMA.feature_names
    np.testing.assert_array_equal(data.classes, ["no", "yes"])
