"""CSV tables are written and read back; ARFF files are read."""

import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedneighbors.datasets import Table, read_columns, read_table
from fedneighbors.datasets._text_tables import _split_arff_line, serialize_csv, table_cells
from fedneighbors.errors import DataError, MissingDataError


def test_a_written_table_is_read_back_equal(tmp_path):
    words = np.array(["Oslo, north", None, 'the "old" town'], np.object_)
    numbers = {
        "whole": np.array([3.0, np.nan, -7.0]),
        "parts": np.array([0.1, 1e300, np.nan]),
        "large": np.array([2.0**60, 1.0, 0.0]),
    }
    table = Table({"place": words, **numbers}, "here")

    (tmp_path / "t.csv").write_bytes(serialize_csv(table_cells(table)))

    table_read = read_columns(tmp_path / "t.csv")
    assert table_read.names == table.names
    assert table_read.columns["place"].tolist() == words.tolist()
    for name, column in numbers.items():
        np.testing.assert_array_equal(table_read.columns[name], column)


def test_integers_are_written_without_a_point():
    table = Table({"a": np.array([1.0, 2.0]), "b": np.array([1.0, 2.5])}, "here")

    assert serialize_csv(table_cells(table)) == b"a,b\n1,1.0\n2,2.5\n"


def test_columns_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="shorter"):
        serialize_csv({"a": [1, 2], "b": [1]})


GENES = """% OpenML writes such lines
@RELATION OVA_Example

@ATTRIBUTE ID_REF numeric
@attribute '1007_s_at' REAL
@Attribute "a gene's name" Integer
@ATTRIBUTE Tissue {Omentum, Other}
@ATTRIBUTE note string

@DATA
1, 7.25,3,Omentum,'one, \\'two\\''
% between rows
2,?,4 ,Other,?

3,-1e-3,?,Other,"plain"
"""


@pytest.fixture
def write(tmp_path):
    def write_file(text, name="example.arff"):
        path = tmp_path / name
        path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
        return path

    return write_file


@pytest.mark.parametrize("name", ["example.arff", "Example.ARFF", "example.arff.gz"])
def test_numbers_words_and_missing_cells_are_preserved(write, name):
    table = read_columns(write(GENES, name))

    assert table.names == ("ID_REF", "1007_s_at", "a gene's name", "Tissue", "note")
    np.testing.assert_array_equal(table.columns["1007_s_at"], [7.25, np.nan, -0.001])
    np.testing.assert_array_equal(table.columns["a gene's name"], [3, 4, np.nan])
    assert table.columns["Tissue"].tolist() == ["Omentum", "Other", "Other"]
    assert table.columns["note"].tolist() == ["one, 'two'", None, "plain"]


def test_an_arff_file_is_read_as_a_labelled_data_set(write):
    data = read_table(write(GENES), "Tissue", drop=["ID_REF", "note"])

    assert data.y.tolist() == ["Omentum", "Other", "Other"]
    assert data.x.shape[0] == 3


def test_a_numeric_column_can_be_read_as_nominal(write):
    table = read_columns(write(GENES), nominal=["ID_REF"])

    assert table.columns["ID_REF"].tolist() == ["1", "2", "3"]


def test_rows_of_several_blocks_are_in_order(write):
    rows = "\n".join(map(str, range(1000)))

    table = read_columns(write(f"@attribute a real\n@data\n{rows}"))

    assert table.columns["a"].tolist() == list(range(1000))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2", "invalid in an ARFF header"),
        ("@relation r\n@attribute a real\n", "no line @data"),
        ("@relation r\n@data\n1", "has no column"),
        ("@attribute a real\n@attribute a real\n@data\n1,2", "repeats these column names"),
        ("@attribute a date yyyy\n@data\n1", "of kind 'date yyyy'"),
        ("@attribute a real\n@data\n{0 1}", "line 3 .* is sparse"),
        ("@attribute a real\n@attribute b real\n@data\n1,2\n1", "line 5 .* has 1 cells"),
        ("@attribute a real\n@data\nx", "expected a number"),
        ("@attribute a real\n@data\n1e999", "infinite"),
        ("@attribute a string\n@attribute b real\n@data\n'x,1", "cells"),
        ("@attribute a real\n@data\n", "no rows"),
    ],
)
def test_an_invalid_arff_file_is_refused_with_a_reason(write, text, message):
    with pytest.raises(DataError, match=message):
        read_columns(write(text))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(MissingDataError, match=r"no file .*gone\.arff"):
        read_columns(tmp_path / "gone.arff")


@pytest.mark.parametrize(
    ("raw", "message"), [(b"\xff\xfe", "UTF-8"), (gzip.compress(b"@data", mtime=0)[:-4], "gzip")]
)
def test_binary_content_is_refused(tmp_path, raw, message):
    path = tmp_path / ("a.arff" if message == "UTF-8" else "a.arff.gz")
    path.write_bytes(raw)

    with pytest.raises(DataError, match=message):
        read_columns(path)


@given(st.lists(st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"])), min_size=1))
def test_quoted_cells_with_any_content_are_read_back(cells):
    quoted = ["'" + cell.replace("\\", "\\\\").replace("'", "\\'") + "'" for cell in cells]

    assert _split_arff_line(", ".join(quoted), 1, len(cells), "a file") == cells
