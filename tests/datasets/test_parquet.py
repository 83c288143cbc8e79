"""Parquet files."""

import datetime
import sys

import pyarrow
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from fedneighbors.datasets import read_columns, read_table
from fedneighbors.errors import DataError, MissingExtraError


@pytest.fixture
def write(tmp_path):
    def write_file(columns, names=None):
        path = tmp_path / "example.parquet"
        if names is None:
            table = pyarrow.table(columns)
        else:
            table = pyarrow.Table.from_arrays(columns, names=names)
        parquet.write_table(table, path)
        return path

    return write_file


def test_types_decide_what_is_numeric(write):
    path = write(
        {
            "whole": [1, None, 3],
            "real": [0.5, 1.5, float("nan")],
            "flag": [True, False, None],
            "code": pyarrow.array(["1", "?", "2"]),
            "kind": pyarrow.array(["u", None, "u"]).dictionary_encode(),
        }
    )

    table = read_columns(path)

    assert table.columns["whole"][[0, 2]].tolist() == [1.0, 3.0]
    assert table.columns["flag"][:2].tolist() == [1.0, 0.0]
    for name in ("whole", "real", "flag"):
        assert sum(table.columns[name] != table.columns[name]) == 1
    assert table.columns["code"].tolist() == ["1", None, "2"]
    assert table.columns["kind"].tolist() == ["u", None, "u"]


@pytest.mark.parametrize("labels", [[1, 0], [1.0, 0.0], ["1", "0"]])
def test_labels_of_every_type_become_whole_numbers(write, labels):
    data = read_table(write({"a": [1.0, 2.0], "target": labels}))

    assert data.y.tolist() == [1, 0]
    assert data.x.tolist() == [[1.0], [2.0]]


def test_parties_may_be_numbers(write):
    data = read_table(write({"a": [1.0, 2.0], "site": [10, 7], "target": [0, 1]}), party="site")

    assert data.parties.tolist() == ["10", "7"]


def test_columns_of_other_types_are_refused(write):
    path = write({"day": [datetime.date(2020, 1, 1)], "target": [1]})

    with pytest.raises(DataError, match=r"column 'day' of .* has type date32"):
        read_table(path)


def test_repeated_names_infinite_numbers_and_missing_labels_are_refused(write):
    one = pyarrow.array([1.0, 2.0])

    with pytest.raises(DataError, match="more than once: 'a'"):
        read_table(write([one, one, one], names=["a", "a", "target"]))
    with pytest.raises(DataError, match=r"column 'a' of .* infinite"):
        read_table(write({"a": [1.0, float("inf")], "target": [0, 1]}))
    with pytest.raises(DataError, match=r"column 'target' of .* missing in 1 rows"):
        read_table(write({"a": [1.0, 2.0], "target": [0, None]}))
    with pytest.raises(DataError, match="holds no rows"):
        read_table(write({"a": pyarrow.array([], pyarrow.float64())}))


def test_a_file_that_is_no_parquet_is_refused(tmp_path):
    path = tmp_path / "broken.parquet"
    path.write_bytes(b"PAR1 and nothing more")

    with pytest.raises(DataError, match="cannot be read as Parquet"):
        read_table(path)


@given(place=st.integers(0, 10_000), bit=st.integers(0, 7))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_changed_bit_changes_the_rows_or_is_refused_as_data(tmp_path, place, bit):
    path = tmp_path / "changed.parquet"
    parquet.write_table(pyarrow.table({"a": [0.5, 1.5] * 20, "target": [0, 1] * 20}), path)
    content = bytearray(path.read_bytes())
    content[place % len(content)] ^= 1 << bit
    path.write_bytes(bytes(content))

    try:
        data = read_table(path)
    except DataError:
        return

    assert data.n_features == 1


def test_without_pyarrow_the_extra_is_named(write, monkeypatch):
    path = write({"a": [1.0], "target": [0]})
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(MissingExtraError, match=r"pip install 'fedneighbors\[data\]'"):
        read_table(path)
