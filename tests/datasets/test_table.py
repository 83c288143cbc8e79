"""Tables of columns in memory."""

import numpy as np
import pandas as pd
import pytest

from fedneighbors.datasets import Table, dataset_from_table
from fedneighbors.errors import DataError


def test_a_data_frame_becomes_numeric_and_nominal_columns():
    frame = pd.DataFrame(
        {"n": [1, 2], "f": [0.5, np.nan], "b": [True, False], "s": ["x", None], "d": ["1", "2"]}
    )

    table = Table.from_frame(frame)

    assert table.columns["n"].tolist() == [1.0, 2.0]
    assert table.columns["f"][0] == 0.5
    assert np.isnan(table.columns["f"][1])
    assert table.columns["b"].tolist() == [1.0, 0.0]
    assert table.columns["s"].tolist() == ["x", None]
    assert table.columns["d"].tolist() == ["1", "2"]


def test_a_data_frame_that_repeats_a_name_is_refused():
    frame = pd.DataFrame([[1, 2]], columns=["a", "a"])

    with pytest.raises(DataError, match="the data frame repeats these column names: 'a'"):
        Table.from_frame(frame)


def test_taking_rows_keeps_the_columns():
    table = Table({"a": np.arange(4.0), "b": np.array(list("wxyz"), dtype=object)}, "example")

    taken = table.take(np.array([True, False, False, True]))

    assert taken.n_rows == 2
    assert taken.columns["a"].tolist() == [0.0, 3.0]
    assert taken.columns["b"].tolist() == ["w", "z"]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({}, "has no rows"),
        ({"a": np.empty(0)}, "has no rows"),
        ({"a": np.zeros(1), "b": np.zeros(2)}, r"columns of different lengths \[1, 2\]"),
    ],
)
def test_columns_of_unequal_lengths_are_refused(columns, message):
    with pytest.raises(DataError, match=message):
        Table(columns, "example")


def test_long_lists_of_columns_are_cut_in_messages():
    table = Table({f"c{i}": np.zeros(1) for i in range(100)}, "example")

    with pytest.raises(DataError, match=r"'c29' and 70 more; name the label column"):
        table.require(["target"])


def test_a_table_in_memory_becomes_a_data_set():
    table = Table(
        {"a": np.array([1.0, 2.0]), "kind": np.array(["x", "y"], dtype=object)}, "example"
    )

    data = dataset_from_table(table, "kind", name="mine")

    assert (data.name, data.source, data.feature_names) == ("mine", "example", ("a",))
    assert data.y.tolist() == ["x", "y"]
