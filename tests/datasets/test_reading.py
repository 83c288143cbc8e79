"""CSV and Parquet files are read; invalid ones are refused with a reason."""

import datetime
import gzip
import sys

import numpy as np
import pyarrow
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from pyarrow import parquet

from fedneighbors.datasets import (
    TextFormat,
    read_columns,
    read_features,
    read_rows,
    read_table,
)
from fedneighbors.errors import DataError, MissingDataError, MissingExtraError


@pytest.fixture
def write(tmp_path):
    def write_file(text, name="example.csv"):
        path = tmp_path / name
        content = text if isinstance(text, bytes) else text.encode()
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return path

    return write_file


def test_a_csv_becomes_numbers_and_labels(write):
    data = read_table(write("a,b,target\n1,2.5,yes\n-3,1e2,no\n"))

    assert data.name == "example"
    assert data.feature_names == ("a", "b")
    assert data.x.tolist() == [[1.0, 2.5], [-3.0, 100.0]]
    assert data.y.tolist() == ["yes", "no"]


def test_a_gzipped_file_reads_like_a_plain_one(write):
    text = "a,target\n1,0\n2,1\n"

    plain, compressed = read_table(write(text)), read_table(write(text, "example.csv.gz"))

    assert compressed.x.tolist() == plain.x.tolist()
    assert compressed.name == plain.name


@given(
    x=arrays.arrays(
        np.float64,
        st.tuples(st.integers(1, 1300), st.just(2)),
        elements=st.floats(allow_nan=False, allow_infinity=False),
        fill=st.floats(-1, 1),
    )
)
@settings(deadline=None, max_examples=30, suppress_health_check=list(HealthCheck))
def test_numbers_are_read_bit_for_bit(x, tmp_path_factory):
    path = tmp_path_factory.mktemp("numbers") / "x.csv"
    path.write_text("a,b\n" + "".join(f"{float(a)!r},{float(b)!r}\n" for a, b in x))

    features = read_features(path, ["a", "b"])

    assert features.tobytes() == x.tobytes()


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["1", "-2"], [1, -2]),
        (["1.0", "2."], [1, 2]),
        (["007", "1"], ["007", "1"]),
        (["0.5", "1"], ["0.5", "1"]),
        (["1", "one"], ["1", "one"]),
        (["9" * 30, "1"], ["9" * 30, "1"]),
    ],
)
def test_labels_are_numbers_only_if_all_are_integers(write, cells, expected):
    data = read_table(write("a,target\n" + "".join(f"0,{cell}\n" for cell in cells)))

    assert data.y.tolist() == expected


def test_label_and_party_columns_may_have_any_name_and_place(write):
    data = read_table(write("site,kind,a\n1,x,3\n2,y,4\n"), "kind", party="site")

    assert data.y.tolist() == ["x", "y"]
    assert data.parties.tolist() == ["1", "2"]
    assert data.feature_names == ("a",)


def test_dropped_columns_are_left_out(write):
    data = read_table(write("id,a,target\nx_1,3,0\nx_2,4,1\n"), drop=["id"])

    assert data.feature_names == ("a",)


def test_question_marks_blanks_and_nan_are_missing(write):
    data = read_table(write("a,b,target\n1,u,0\n?,,0\n ,?,1\nnan,v,1\n4,w,1\n"))

    assert data.x[:, 0].tolist() == [1.0, 2.5, 2.5, 2.5, 4.0]
    assert data.feature_names == ("a", "b=missing", "b=u", "b=v", "b=w")


def test_markers_of_missing_cells_can_be_chosen(write):
    data = read_table(write("a,target\n1,0\n-,0\n3,1\n"), text_format=TextFormat(missing=["-"]))

    assert data.x.tolist() == [[1.0], [2.0], [3.0]]


def test_text_late_in_a_long_column_makes_it_nominal(write):
    cells = ["0", "1"] * 700 + ["x"]

    table = read_columns(write("a,b\n" + "".join(f"{cell},7\n" for cell in cells)))

    assert table.columns["a"].tolist() == cells
    assert table.columns["b"].dtype == np.float64


def test_names_with_underscores_are_not_numbers(write):
    table = read_columns(write("a,b\n1_2,1\n3_4,2\n"))

    assert table.columns["a"].tolist() == ["1_2", "3_4"]


def test_numbers_can_be_declared_nominal(write):
    data = read_table(write("a,target\n1,0\n2,0\n3,1\n"), nominal=["a"])

    assert data.feature_names == ("a=1", "a=2", "a=3")


def test_a_column_declared_nominal_must_exist(write):
    with pytest.raises(DataError, match="has no column 'b'; its columns are 'a', 'target'"):
        read_table(write("a,target\n1,0\n"), nominal=["b"])


def test_quoted_cells_may_contain_separators_and_line_ends(write):
    table = read_columns(write('a,b\n"x,y","two\nlines"\n"z",""\n'))

    assert table.columns["a"].tolist() == ["x,y", "z"]
    assert table.columns["b"].tolist() == ["two\nlines", None]


def test_windows_files_read_like_others(write):
    data = read_table(write(b"\xef\xbb\xbfa;target\r\n1;x\r\n2;y\r\n\r\n"))

    assert data.feature_names == ("a",)
    assert data.y.tolist() == ["x", "y"]


def test_a_second_file_can_be_encoded_like_the_first(write):
    first = read_table(write("a,b,target\n1,u,0\n,v,1\n5,w,1\n", "first.csv"))

    second = read_table(write("b,a,target\nw,,0\nz,9,1\n", "second.csv"), schema=first.schema)

    assert second.feature_names == first.feature_names
    assert second.x.tolist() == [[3.0, 0, 0, 1], [9.0, 0, 0, 0]]


def test_a_schema_reads_categories_that_look_like_numbers(write):
    first = read_table(write("grade,target\n1,0\n2,0\nx,1\n", "first.csv"))

    rows = read_rows(write("grade\n2\n1\n", "second.csv"), first.schema, labelled=False)

    assert rows.x.tolist() == [[0, 1, 0], [1, 0, 0]]


def test_features_for_prediction_are_found_by_name(write):
    rows = read_features(write("id,b,a\nx,2,1\ny,4,3\n"), ["a", "b"])

    assert rows.tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_missing_features_are_named(write):
    path = write("a,c\n1,2\n")

    with pytest.raises(DataError, match="has no column 'b', 'd'; its columns are 'a', 'c'"):
        read_features(path, ["a", "b", "d"])


def test_missing_cells_and_text_require_a_schema(write):
    path = write("a,b\n1,x\n,y\n")

    with pytest.raises(
        DataError, match=r"column 'a' of .* has 1 missing cells; read it by the schema"
    ):
        read_features(path, ["a"])
    with pytest.raises(DataError, match=r"column 'b' of .* not numbers; read it by the schema"):
        read_features(path, ["b"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; expected a header row"),
        ("\n\n", "is empty; expected a header row"),
        ("a,target\n", "has no rows; expected a header and data below it"),
        ("a,b\n1,2\n", "has no column 'target'; its columns are 'a', 'b'"),
        ("a,b,a,target\n1,2,3,4\n", "repeats these column names: 'a'"),
        ("a,,target\n1,2,3\n", "has no name for column 2"),
        ("a,target\n1,0\n1\n", r"line 3 of .* has 1 cells; every row needs the 2 cells"),
        ("a,target\n1\n1,2\n1,2,3\n4\n", r"line 2 of .*; other such lines: 4, 5$"),
        ("a,target\n1\n" + "1,2,3\n" * 12, r"lines: 3, 4, .*, 12 and 2 more$"),
        ('a,target\n1\n1,2,3\n"1,2\n', r"line 2 of .*; other such lines: 3$"),
        ("a,target\n1,0\n1,2,3\n", r"line 3 of .* has 3 cells; every row needs the 2 cells"),
        ("a,target\n1,0\n\n2,1\n", r"line 4 of .* follows a blank line"),
        ("a,target\n1,0\ninf,1\n", "column 'a' of .* is infinite in data row 2"),
        ("a,target\n1,0\n1e999,1\n", "column 'a' of .* is infinite in data row 2"),
        ('a,target\n"1,0\n', "cannot be read as delimited text: unexpected end of data"),
        ("a,target\n,0\n?,1\n", "missing cells only in column 'a'"),
        ("a,target\n1,0\n2,\n", "column 'target' of .* missing in 1 rows, first in data row 2"),
        ("target\n1\n", "has no columns besides"),
        ("a,target\n\xe9,1\n".encode("latin-1"), "is not UTF-8 text"),
        ("sep=;\na;target\n1;0\n", "begins with the line 'sep=' of a spreadsheet program"),
    ],
)
@pytest.mark.parametrize("name", ["broken.csv", "broken.csv.gz"])
def test_invalid_files_are_explained(write, text, message, name):
    path = write(text, name)

    with pytest.raises(DataError, match=message) as caught:
        read_table(path)

    assert str(path) in str(caught.value)


def test_a_wrong_separator_is_visible_in_the_error(write):
    with pytest.raises(DataError, match="no column 'target'; its columns are 'a;target'"):
        read_table(write("a;target\n1;0\n"), text_format=TextFormat(","))


def test_a_dropped_column_must_exist(write):
    with pytest.raises(DataError, match="has no column 'id'"):
        read_table(write("a,target\n1,0\n"), drop=["id"])


@pytest.mark.parametrize("end", [b"0000", b""], ids=["checksum", "length"])
def test_a_damaged_gzip_file_of_undecodable_text_is_refused(tmp_path, end):
    path = tmp_path / "rows.csv.gz"
    path.write_bytes(gzip.compress(b"a,target\n1,\xff")[:-8] + end)

    with pytest.raises(DataError, match="is it damaged"):
        read_table(path)


def test_a_truncated_or_invalid_gzip_file_is_refused(tmp_path):
    truncated, uncompressed = tmp_path / "cut.csv.gz", tmp_path / "none.csv.gz"
    truncated.write_bytes(gzip.compress(b"a,target\n" + b"1.25,0\n" * 5000)[:60])
    uncompressed.write_bytes(b"a,target\n1,0\n")

    for path in (truncated, uncompressed):
        with pytest.raises(DataError, match="is not a complete gzip file"):
            read_table(path)


@pytest.mark.parametrize("name", ["nowhere.csv", "nowhere.csv.gz", "nowhere.parquet"])
def test_a_missing_file_is_reported(tmp_path, name):
    with pytest.raises(MissingDataError, match="there is no file"):
        read_table(tmp_path / name)


def test_a_folder_is_refused_as_a_file(tmp_path):
    with pytest.raises(DataError, match="cannot be opened"):
        read_table(tmp_path)


@pytest.fixture
def write_parquet(tmp_path):
    def write_file(columns, names=None):
        path = tmp_path / "example.parquet"
        if names is None:
            table = pyarrow.table(columns)
        else:
            table = pyarrow.Table.from_arrays(columns, names=names)
        parquet.write_table(table, path)
        return path

    return write_file


def test_types_determine_the_numeric_columns(write_parquet):
    path = write_parquet(
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
def test_labels_of_every_type_become_integers(write_parquet, labels):
    data = read_table(write_parquet({"a": [1.0, 2.0], "target": labels}))

    assert data.y.tolist() == [1, 0]
    assert data.x.tolist() == [[1.0], [2.0]]


def test_parties_may_be_numbers(write_parquet):
    data = read_table(
        write_parquet({"a": [1.0, 2.0], "site": [10, 7], "target": [0, 1]}), party="site"
    )

    assert data.parties.tolist() == ["10", "7"]


def test_columns_of_other_types_are_refused(write_parquet):
    path = write_parquet({"day": [datetime.date(2020, 1, 1)], "target": [1]})

    with pytest.raises(DataError, match=r"column 'day' of .* has type date32"):
        read_table(path)


def test_repeated_names_infinities_and_missing_labels_raise(write_parquet):
    column = pyarrow.array([1.0, 2.0])

    with pytest.raises(DataError, match="repeats these column names: 'a'"):
        read_table(write_parquet([column, column, column], names=["a", "a", "target"]))
    with pytest.raises(DataError, match=r"column 'a' of .* infinite"):
        read_table(write_parquet({"a": [1.0, float("inf")], "target": [0, 1]}))
    with pytest.raises(DataError, match=r"column 'target' of .* missing in 1 rows"):
        read_table(write_parquet({"a": [1.0, 2.0], "target": [0, None]}))
    with pytest.raises(DataError, match="has no rows"):
        read_table(write_parquet({"a": pyarrow.array([], pyarrow.float64())}))


def test_an_invalid_parquet_file_is_refused(tmp_path):
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


def test_without_pyarrow_the_extra_is_named(write_parquet, monkeypatch):
    path = write_parquet({"a": [1.0], "target": [0]})
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(MissingExtraError, match=r"pip install 'fedneighbors\[data\]'"):
        read_table(path)
