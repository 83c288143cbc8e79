"""Declared schemas: rules of columns, labels, TOML text, drafts."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedneighbors.datasets import CategoricalColumn, NumericColumn, Schema, SetColumn, Table
from fedneighbors.errors import DataError, MissingDataError

NAN = float("nan")
AGE = NumericColumn("age", 0.0, 110.0, 40.0)
SEX = CategoricalColumn("sex", ("f", "m", "x"), "x")
SCHEMA = Schema((AGE, SEX), "died", ("no", "yes"))

HOSTILE_CELLS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.just(10**400),
    st.just(-(10**400)),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["", "?", "NA", "1e999", "-inf", "nan", "1_0", " 7 ", "f", " m", "yes", "no"]),
    st.binary(max_size=4),
    st.dates(),
    st.lists(st.integers(), max_size=2),
)


def table(**columns):
    cells = {
        name: np.array(cells, dtype=object if any(type(c) is str for c in cells) else float)
        for name, cells in columns.items()
    }
    return Table(cells, source="example.csv")


def draft(source, **options):
    return Schema.draft(source, with_ranges=False, **options)


@given(st.lists(st.tuples(HOSTILE_CELLS, HOSTILE_CELLS, HOSTILE_CELLS), max_size=12))
def test_each_row_is_converted_independently(rows):
    def encode(subset):
        ages, sexes, labels = ([row[i] for row in subset] for i in range(3))
        return SCHEMA.encode({"age": ages, "sex": sexes, "died": labels})

    all_rows, single_rows = encode(rows), [encode([row]) for row in rows]

    expected = [single.x for single in single_rows if single.kept.all()]
    assert all_rows.kept.tolist() == [bool(single.kept.all()) for single in single_rows]
    assert all_rows.x.tobytes() == np.concatenate([np.zeros((0, 4)), *expected]).tobytes()
    assert all_rows.y.tolist() == [label for single in single_rows for label in single.y.tolist()]
    assert sum(single.n_unlabelled for single in single_rows) == all_rows.n_unlabelled
    for counts in ("missing", "clipped"):
        total = {
            name: sum(getattr(single, counts)[name] for single in single_rows)
            for name in ("age", "sex")
        }
        assert getattr(all_rows, counts) == total


@given(HOSTILE_CELLS)
def test_features_of_any_cell_stay_within_the_bounds(cell):
    low, high = SCHEMA.bounds

    x = SCHEMA.encode_all({"age": [cell], "sex": [cell]})

    assert ((np.array(low) <= x) & (x <= np.array(high))).all()


@pytest.mark.parametrize(
    ("cell", "value"),
    [("7", 7), (" 7.5 ", 7.5), ("-3", 0), ("1e999", 110), (10**400, 110), ("-inf", 0), (True, 1),
     ("seven", 40), ("", 40), (None, 40), (NAN, 40), ("1_0", 40), ([], 40), (b"12", 12)],
)  # fmt: skip
def test_numbers_are_clipped_and_other_cells_filled(cell, value):
    features, _, _ = AGE.encode([cell])

    assert features.tolist() == [[value]]


@pytest.mark.parametrize(
    ("cell", "features"),
    [("f", [1, 0, 0]), (" m ", [0, 1, 0]), ("F", [0, 0, 1]), (None, [0, 0, 1]), (3, [0, 0, 1])],
)
def test_an_unknown_category_becomes_the_declared_one(cell, features):
    found, _, _ = SEX.encode([cell])

    assert found.tolist() == [features]


def test_whole_numbers_match_categories_of_digits():
    column = CategoricalColumn("grade", ("1", "2", "3"))

    features, missing, _ = column.encode([1, 2.0, "3", 2.5])

    assert features.argmax(axis=1).tolist()[:3] == [0, 1, 2]
    assert missing.tolist() == [False, False, False, True]


def test_two_categories_share_a_feature():
    column = CategoricalColumn("answer", ("no", "yes"), "keep")

    features, _, _ = column.encode(["yes", "no", None])

    assert column.feature_names == ("answer=yes",)
    assert features.tolist() == [[1], [0], [0]]


def test_rows_with_other_labels_are_dropped():
    rows = SCHEMA.encode({"age": [1, 2, 3], "sex": ["f"] * 3, "died": ["no", "perhaps", "yes"]})

    assert rows.y.tolist() == ["no", "yes"]
    assert rows.kept.tolist() == [True, False, True]
    assert rows.n_unlabelled == 1


def test_integer_labels_match_text_and_floats():
    schema = Schema((AGE,), "y", (0, 1))

    rows = schema.encode({"age": [1] * 5, "y": ["0", "1.0", 1.0, True, "one"]})

    assert rows.y.tolist() == [0, 1, 1]
    assert rows.y.dtype == np.int64


def test_a_row_without_a_value_is_dropped_by_the_default_rule():
    schema = Schema((NumericColumn("a", 0, 1), NumericColumn("b", 0, 1, "keep")))

    rows = schema.encode(np.array([[0.5, NAN], [NAN, 0.5]]))

    np.testing.assert_array_equal(rows.x, [[0.5, NAN]])
    with pytest.raises(DataError, match="1 rows, first row 2, have no valid cell in column 'a'"):
        schema.encode_all(np.array([[0.5, NAN], [NAN, 0.5]]))


def test_frames_tables_and_arrays_give_the_same_features():
    frame = pd.DataFrame({"other": [0, 0], "sex": ["m", None], "age": [None, 70]})
    expected = [[40, 0, 1, 0], [70, 0, 0, 1]]

    assert SCHEMA.encode_all(frame).tolist() == expected
    assert SCHEMA.encode_all(Table.from_frame(frame)).tolist() == expected
    assert SCHEMA.encode_all(frame[["age", "sex"]].to_numpy(object)).tolist() == expected


def test_an_invalid_cell_does_not_change_others_of_a_data_frame():
    schema = Schema((CategoricalColumn("b", ("False", "True", "x"), "x"),), "y", (2**60, 2**60 + 1))
    frame = pd.DataFrame({"b": [True, False], "y": [2**60, 2**60 + 1]})
    odd = pd.concat([frame, pd.DataFrame({"b": ["?"], "y": ["?"]})], ignore_index=True)

    rows, with_odd = schema.encode(frame), schema.encode(odd)

    assert rows.x.tolist() == with_odd.x.tolist() == [[0, 1, 0], [1, 0, 0]]
    assert rows.y.tolist() == with_odd.y.tolist() == [2**60, 2**60 + 1]


def test_a_missing_column_is_named_with_existing_ones():
    with pytest.raises(DataError, match="have no column 'sex'; their columns are 'age', 'sx'"):
        SCHEMA.encode({"age": [1], "sx": ["f"]})


def test_an_array_of_another_width_is_refused():
    with pytest.raises(DataError, match=r"the 2 columns of the schema, got shape \(3, 5\)"):
        SCHEMA.encode(np.zeros((3, 5)))


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: NumericColumn("a", 2, 1), "low of at most high"),
        (lambda: NumericColumn("a", NAN, 1), "low of at most high"),
        (lambda: NumericColumn("a", 0, 1, 2), "missing within the range"),
        (lambda: NumericColumn("a", missing=math.inf), "missing within the range"),
        (lambda: NumericColumn("a", missing="fill"), "a number, 'drop' or 'keep'"),
        (lambda: CategoricalColumn("a", ()), "distinct categories"),
        (lambda: CategoricalColumn("a", ("x", "x")), "distinct categories"),
        (lambda: CategoricalColumn("a", ("x", "y"), "z"), "a category, 'drop' or 'keep'"),
        (lambda: Schema(()), "no columns"),
        (lambda: Schema((AGE, AGE)), "repeats these column names: 'age'"),
        (lambda: Schema((AGE,), "age"), "repeats these column names: 'age'"),
        (lambda: Schema((AGE,), "y", ("a", 1)), "all texts or all integers"),
        (lambda: Schema((AGE,), "y", (True, False)), "all texts or all integers"),
        (lambda: Schema((AGE,), "y", ("a", "a")), "repeats a class"),
        (lambda: Schema((AGE,), "y", ("a",)), "at least two labels"),
        (lambda: Schema((AGE,), "", ("a", "b")), "need a label column"),
        (lambda: Schema((NumericColumn("a"),)).bounds, "declares no range for column 'a'"),
    ],
)
def test_invalid_declarations_are_refused(declare, message):
    with pytest.raises(ValueError, match=message):
        declare()


NAMES = st.text(min_size=1, max_size=6).filter(lambda name: name == name.strip() != "")
NUMBERS = st.floats(-1e300, 1e300, allow_nan=False)


@st.composite
def columns(draw):
    name = draw(NAMES)
    if draw(st.booleans()):
        low, value, high = sorted(draw(st.tuples(NUMBERS, NUMBERS, NUMBERS)))
        low, high = draw(st.sampled_from([(low, high), (-math.inf, math.inf), (low, math.inf)]))
        return NumericColumn(name, low, high, draw(st.sampled_from([value, "drop", "keep"])))
    categories = tuple(draw(st.lists(NAMES, min_size=1, max_size=4, unique=True)))
    return CategoricalColumn(name, categories, draw(st.sampled_from([*categories, "drop", "keep"])))


@given(
    st.lists(columns(), min_size=1, max_size=5, unique_by=lambda column: column.name),
    st.sampled_from([(), (0, 1), ("a", 'b"\\\n')]),
    st.text(max_size=5),
)
def test_a_schema_is_read_back_from_its_toml_text(declared, classes, name):
    label = "" if not classes else "label of no column"
    schema = Schema(tuple(declared), label, classes, name)

    parsed = Schema.from_toml(schema.to_toml())

    assert parsed == schema
    assert parsed.name == name
    assert parsed.digest == schema.digest


def test_the_digest_depends_on_every_rule():
    schemas = [
        SCHEMA,
        Schema((SEX, AGE), "died", ("no", "yes")),
        Schema((AGE, SEX), "dead", ("no", "yes")),
        Schema((AGE, SEX), "died", ("yes", "no")),
        Schema((NumericColumn("age", 0.0, 110.0, 41.0), SEX), "died", ("no", "yes")),
        Schema((NumericColumn("age", 0.0, 111.0, 40.0), SEX), "died", ("no", "yes")),
        Schema((NumericColumn("age", high=110.0, missing=40.0), SEX), "died", ("no", "yes")),
        Schema((NumericColumn("age", low=0.0, missing=40.0), SEX), "died", ("no", "yes")),
        Schema((AGE, CategoricalColumn("sex", ("f", "m", "x"), "f")), "died", ("no", "yes")),
        Schema((replace(AGE, name="years"), SEX), "died", ("no", "yes")),
        Schema((replace(AGE, weight=2.0), SEX), "died", ("no", "yes")),
        Schema((AGE, SEX, SetColumn("codes"))),
        Schema((AGE, SEX, SetColumn("codes", "keep"))),
    ]

    assert len({schema.digest for schema in schemas}) == len(schemas)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no columns"),
        ("a = ", "not valid TOML"),
        ("colums = {}", "unknown schema key 'colums'; did you mean 'columns'"),
        ("columns = 3", "a table for each column"),
        ("label = 3", "label of the schema as texts"),
        ('classes = "ab"', "classes of the schema as a list"),
        ("columns.a = 3", "expected a table columns.a, got 3"),
        ("[columns.a]", "column 'a': expected kind 'number', 'category' or 'set', got None"),
        ('[columns.a]\nkind = "text"', "got 'text'"),
        ('[columns.a]\nknd = "number"', "'a' has an unknown key 'knd'; did you mean 'kind'"),
        ('[columns.a]\nkind = "number"\nmin = 3', "column 'a' has an unknown key 'min'"),
        ('[columns.a]\nkind = "number"\nlow = [1]', r"column 'a': expected a number, got \[1\]"),
        ('[columns.a]\nkind = "number"\nlow = "a"', "column 'a': expected a number, got 'a'"),
        ('[columns.a]\nkind = "category"', "column 'a': expected distinct categories"),
        ('[columns.a]\nkind = "category"\ncategories = [1]', "categories as a list of texts"),
    ],
)
def test_invalid_schema_text_is_refused(text, message):
    with pytest.raises(DataError, match=message):
        Schema.from_toml(text)


def test_a_schema_file_is_loaded_and_named_in_errors(tmp_path):
    path = tmp_path / "schema.toml"
    path.write_text(SCHEMA.to_toml(), "utf-8")

    assert Schema.load(path) == SCHEMA
    path.write_text("oops", "utf-8")
    with pytest.raises(DataError, match=r"schema\.toml: the schema is not valid TOML"):
        Schema.load(path)
    with pytest.raises(MissingDataError):
        Schema.load(tmp_path / "none.toml")


def test_a_draft_has_ranges_categories_and_labels():
    rows = table(
        age=[1.0, NAN, 3.0], weight=[5.0, 6.0, 5.5], sex=["m", "f", None], died=list("nyn")
    )

    schema = Schema.draft(rows, "died")

    assert schema == Schema(
        (
            NumericColumn("age", 1.0, 3.0, 2.0),
            NumericColumn("weight", 5.0, 6.0),
            CategoricalColumn("sex", ("f", "m", "missing"), "missing"),
        ),
        "died",
        ("n", "y"),
    )


def test_missing_numbers_become_the_median_of_the_drafted_rows():
    schema = draft(table(age=[1.0, NAN, 3.0, 10.0]))

    assert schema.encode_all(table(age=[NAN, 700.0])).tolist() == [[3.0], [700.0]]


def test_missing_text_is_a_separate_category():
    schema = draft(table(answer=["yes", None, "no"]))

    assert schema.columns == (CategoricalColumn("answer", ("missing", "no", "yes"), "missing"),)


def test_a_category_not_in_the_draft_becomes_all_zeros():
    schema = draft(table(site=["a", "b", "c"]))

    assert schema.encode_all(table(site=["d", None, "c"])).tolist() == [
        [0, 0, 0],
        [0, 0, 0],
        [0, 0, 1],
    ]


def test_missing_cells_of_numbers_can_be_kept():
    schema = draft(table(age=[30.0, NAN]), keep_missing=True)

    np.testing.assert_array_equal(schema.encode_all(table(age=[30.0, NAN])), [[30.0], [NAN]])


@given(arrays.arrays(np.float64, (7, 3), elements=st.floats(allow_nan=False, allow_infinity=False)))
def test_numbers_without_missing_cells_are_unchanged(x):
    numbers = Table({f"c{i}": x[:, i] for i in range(3)}, source="numbers")

    assert draft(numbers).encode_all(numbers).tobytes() == x.tobytes()


def test_a_column_without_any_cell_is_refused():
    with pytest.raises(DataError, match="missing cells only in column 'a'; remove it"):
        draft(Table({"a": np.array([NAN, NAN]), "c": np.zeros(2)}, source="example.csv"))


def test_too_many_categories_are_refused_with_a_remedy():
    with pytest.raises(
        DataError, match=r"column 'name' .* 3 distinct values, .* \(--drop, or --id if"
    ):
        draft(table(name=["ann", "bob", "eve"]), max_categories=2)


def test_notes_name_text_among_numbers_that_stay_missing():
    schema = Schema((NumericColumn("age", missing="keep"), CategoricalColumn("site", ("a", "ö"))))

    rows = schema.encode({"age": ["3,5", None], "site": ["\ufffd", "ö"]})

    assert schema.notes(rows) == (
        "column 'age': 1 cells are no numbers and count as missing; if they have decimal commas, "
        "state it (--decimal ,)",
        "column 'site': 1 cells are missing or invalid and drop their rows",
        "column 'site': 1 of these are not empty, but none of 'a', 'ö'",
        "column 'site': 1 cells are text of another encoding; state it (--encoding), often cp1252",
    )


def test_notes_name_filled_and_unknown_cells():
    schema = draft(table(age=[30.0, 50.0, 40.0], site=["a", "b", "c"], sex=["f", "m", "m"]))

    rows = schema.encode({"age": [None, "x"], "site": ["B", "a"], "sex": ["f", None]})

    assert schema.notes(rows) == (
        "column 'age': 2 cells are missing or invalid and become 40.0",
        "column 'age': 1 of these are not empty, but no numbers",
        "column 'site': 1 cells are none of 'a', 'b', 'c' and count as no category",
        "column 'sex': 1 cells are none of 'f', 'm' and count as 'f'",
    )
