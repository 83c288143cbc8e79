"""An encoder converts missing cells and nominal columns to numbers."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedneighbors.datasets import NominalColumn, NumericColumn, Table, TableEncoder
from fedneighbors.errors import DataError

NAN = float("nan")


def table(**columns):
    made = {
        name: np.array(cells, dtype=object if any(type(c) is str for c in cells) else float)
        for name, cells in columns.items()
    }
    return Table(made, source="example.csv")


def test_missing_numbers_become_the_median_of_the_rows_fitted_on():
    encoder = TableEncoder.fit(table(age=[1.0, NAN, 3.0, 10.0]))

    encoded = encoder.apply(table(age=[NAN, 7.0]))

    assert encoder.columns == (NumericColumn("age", 3.0),)
    assert encoded.tolist() == [[3.0], [7.0]]


def test_categories_become_one_feature_each_in_ascending_order():
    sites = table(site=["b", "c", "a", "b"])

    encoder = TableEncoder.fit(sites)

    assert encoder.feature_names == ("site=a", "site=b", "site=c")
    assert encoder.apply(sites).tolist() == [[0, 1, 0], [0, 0, 1], [1, 0, 0], [0, 1, 0]]


def test_two_categories_share_a_feature_1_for_the_second():
    answers = table(answer=["yes", "no", "yes"])

    encoder = TableEncoder.fit(answers)

    assert encoder.feature_names == ("answer=yes",)
    assert encoder.apply(answers).tolist() == [[1], [0], [1]]


def test_missing_words_are_a_category_of_their_own():
    answers = table(answer=["yes", None, "no"])

    encoder = TableEncoder.fit(answers)

    assert encoder.columns == (NominalColumn("answer", ("missing", "no", "yes")),)
    assert encoder.apply(answers).tolist() == [[0, 0, 1], [1, 0, 0], [0, 1, 0]]


def test_a_category_not_seen_in_fitting_becomes_all_zeros():
    encoder = TableEncoder.fit(table(site=["a", "b", "c"]))

    assert encoder.apply(table(site=["d", None, "c"])).tolist() == [[0, 0, 0], [0, 0, 0], [0, 0, 1]]


def test_a_single_category_keeps_its_feature():
    encoder = TableEncoder.fit(table(site=["a", "a"]))

    assert encoder.apply(table(site=["a", "b"])).tolist() == [[1], [0]]


@given(arrays.arrays(np.float64, (7, 3), elements=st.floats(allow_nan=False, allow_infinity=False)))
@settings(deadline=None)
def test_numbers_without_missing_cells_are_unchanged(x):
    numbers = Table({f"c{i}": x[:, i] for i in range(3)}, source="numbers")

    encoded = TableEncoder.fit(numbers).apply(numbers)

    assert encoded.tobytes() == x.tobytes()


def test_constants_depend_on_fitted_rows_only():
    whole = table(age=[1.0, 3.0, 100.0, NAN], site=["a", "b", "c", "a"])

    encoder = TableEncoder.fit(whole.take(slice(0, 2)))

    assert encoder.columns == (NumericColumn("age", 2.0), NominalColumn("site", ("a", "b")))
    assert encoder.apply(whole).tolist() == [[1, 0], [3, 1], [100, 0], [2, 0]]


def test_columns_are_found_by_name_and_others_ignored():
    encoder = TableEncoder.fit(table(age=[1.0, 2.0], weight=[5.0, 6.0]))

    encoded = encoder.apply(table(id=["x"], weight=[50.0], age=[10.0]))

    assert encoded.tolist() == [[10.0, 50.0]]


def test_a_missing_column_is_named_with_existing_ones():
    encoder = TableEncoder.fit(table(age=[1.0, 2.0], weight=[5.0, 6.0]))

    with pytest.raises(DataError, match="has no column 'weight'; its columns are 'age', 'hight'"):
        encoder.apply(table(age=[1.0], hight=[2.0]))


def test_a_column_of_the_other_kind_is_refused():
    numbers, words = table(c=[1.0, 2.0]), table(c=["a", "b"])

    with pytest.raises(DataError, match=r"column 'c' of example.csv has cells that are not num"):
        TableEncoder.fit(numbers).apply(words)
    with pytest.raises(DataError, match=r"column 'c' of example.csv is numeric; it was nominal"):
        TableEncoder.fit(words).apply(numbers)


def test_a_column_without_any_cell_is_refused():
    with pytest.raises(DataError, match="missing cells only in column 'a', 'b'; remove it"):
        TableEncoder.fit(
            Table(
                {
                    "a": np.array([NAN, NAN]),
                    "b": np.array([None, None], dtype=object),
                    "c": np.zeros(2),
                },
                source="example.csv",
            )
        )


def test_too_many_categories_are_refused_with_a_remedy():
    names = table(name=["ann", "bob", "eve"])

    with pytest.raises(DataError, match=r"column 'name' .* 3 distinct values, .* drop it, or list"):
        TableEncoder.fit(names, max_categories=2)


def test_an_encoder_is_read_back_from_json():
    encoder = TableEncoder.fit(table(age=[1.0, 0.1], site=["é", "b"], c=["x", None]))

    again = TableEncoder.from_json(encoder.to_json())

    assert again == encoder


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", "{}", '{"format": 1}', '{"format": 1, "columns": [3]}',
     '{"format": 1, "columns": [{"name": "a"}]}',
     '{"format": 1, "columns": [{"name": "a", "median": "x"}]}',
     '{"format": 1, "columns": [{"name": "a", "median": NaN}]}'],
)  # fmt: skip
def test_invalid_encoder_text_is_refused(text):
    with pytest.raises(DataError, match="not a table encoder"):
        TableEncoder.from_json(text)


def test_a_later_format_is_refused():
    with pytest.raises(DataError, match="has format 2; this version reads 1"):
        TableEncoder.from_json(json.dumps({"format": 2, "columns": []}))


def test_missing_cells_of_numbers_can_be_kept():
    table = Table(
        {"age": np.array([30.0, np.nan]), "site": np.array(["b", None], object)}, source="example"
    )

    encoder = TableEncoder.fit(table, keep_missing=True)
    again = TableEncoder.from_json(encoder.to_json())

    assert again == encoder
    np.testing.assert_array_equal(again.apply(table), [[30.0, 0.0], [np.nan, 1.0]])
    assert again.warnings_for(table) == ()
