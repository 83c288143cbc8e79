import numpy as np
import pytest

from fedneighbors.datasets import Table, read_columns
from fedneighbors.datasets._writing import delimited, table_cells


def test_a_table_that_was_written_is_read_as_it_was(tmp_path):
    words = np.array(["Oslo, north", None, 'the "old" town'], np.object_)
    numbers = {
        "whole": np.array([3.0, np.nan, -7.0]),
        "parts": np.array([0.1, 1e300, np.nan]),
        "large": np.array([2.0**60, 1.0, 0.0]),
    }
    table = Table({"place": words, **numbers}, "here")

    (tmp_path / "t.csv").write_bytes(delimited(table_cells(table)))

    found = read_columns(tmp_path / "t.csv")
    assert found.names == table.names
    assert found.columns["place"].tolist() == words.tolist()
    for name, column in numbers.items():
        np.testing.assert_array_equal(found.columns[name], column)


def test_whole_numbers_are_written_without_a_point_unless_a_column_has_parts():
    table = Table({"a": np.array([1.0, 2.0]), "b": np.array([1.0, 2.5])}, "here")

    assert delimited(table_cells(table)) == b"a,b\n1,1.0\n2,2.5\n"


def test_columns_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="shorter"):
        delimited({"a": [1, 2], "b": [1]})
