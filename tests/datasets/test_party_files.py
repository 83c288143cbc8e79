"""Files of several parties become one data set, or a message names file, column and row."""

import os
import re
from zipfile import ZipFile

import numpy as np
import pyarrow
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from fedneighbors.datasets import Schema, TextFormat, read_columns, read_party_files, read_rows
from fedneighbors.datasets._dataset import Dataset
from fedneighbors.datasets._party_files import check_classes, note_equal_rows
from fedneighbors.datasets._text_format import find_delimiter
from fedneighbors.errors import DataError, MissingDataError
from tests.seeds import over_seeds

NORTH = "age,sex,ill\n40,f,no\n50,m,yes\n,f,yes\n"


@pytest.fixture
def read(tmp_path):
    def read_files(label="ill", encoding="utf-8", **texts):
        options = {key: texts.pop(key) for key in ("drop", "schema", "text_format") if key in texts}
        files = {}
        for name, text in texts.items():
            files[name] = tmp_path / f"{name}.csv"
            files[name].write_bytes(text.encode(encoding))
        return read_party_files(files, label, **options)

    return read_files


def test_columns_are_matched_by_name_in_any_order(read):
    data = read(north=NORTH, south="ill,sex,age\nno,m,70\n")

    assert data.feature_names == ("age", "sex=m")
    assert data.x.tolist() == [[40, 0], [50, 1], [50, 0], [70, 1]]
    assert data.y.tolist() == ["no", "yes", "yes", "no"]
    assert data.parties.tolist() == ["north"] * 3 + ["south"]


def test_files_equal_one_file_with_a_party_column(read, tmp_path):
    south = "age,sex,ill\n61,m,no\n33,,yes\n"
    rows = [f"{row},north" for row in NORTH.split()[1:]] + [f"{r},south" for r in south.split()[1:]]
    (tmp_path / "all.csv").write_text("\n".join(["age,sex,ill,clinic", *rows]))

    several = read(north=NORTH, south=south)
    one = read_party_files({"all": tmp_path / "all.csv"}, "ill", party="clinic")

    assert several.x.tolist() == one.x.tolist()
    assert several.y.tolist() == one.y.tolist()
    assert several.parties.tolist() == one.parties.tolist()
    assert several.schema == one.schema


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("age;dose;ill\n40;0,5;no\n50;1,25;yes\n", "utf-8"),
        ("age\tdose\till\n40\t0,5\tno\n50\t1,25\tyes\n", "utf-8"),
        ("age|dose|ill\n40|0.5|no\n50|1.25|yes\n", "utf-8"),
        ("age;dose;ill\r\n40;0,5;no\r\n50;1,25;yes\r\n", "utf-8-sig"),
        ('"age, years";dose;ill\n40;0,5;no\n50;1,25;yes\n', "utf-8"),
    ],
    ids=["semicolon", "tab", "bar", "byte order mark", "comma in a name"],
)
def test_separators_and_decimal_commas_are_found(read, text, encoding):
    data = read(north=text, encoding=encoding)

    assert data.x.tolist() == [[40, 0.5], [50, 1.25]]


def test_another_encoding_is_named_with_line_and_byte(read):
    text = "age,ort,ill\n40,Bern,no\n50,Zürich,yes\n"

    with pytest.raises(
        DataError,
        match=r"north\.csv is not UTF-8 text \(line 3, byte 5 of the line\).*--encoding",
    ):
        read(north=text, encoding="latin-1")
    data = read(north=text, encoding="latin-1", text_format=TextFormat(encoding="cp1252"))

    assert data.feature_names == ("age", "ort=Zürich")


def test_a_byte_order_mark_outweighs_the_stated_encoding(tmp_path):
    files = {"north": tmp_path / "north.csv", "south": tmp_path / "south.csv"}
    for (path, encoding), town in zip(
        [(files["north"], "utf-8-sig"), (files["south"], "cp1252")], ["Zürich", "Köln"], strict=True
    ):
        path.write_text(f"ort,age,ill\n{town},40,no\n{town},50,yes\n", encoding=encoding)
    form = TextFormat(encoding="cp1252")
    data = read_party_files(files, "ill", text_format=form)
    assert data.feature_names == ("ort=Zürich", "age")
    assert data.schema.column_names == ("ort", "age")
    schema = Schema.draft(read_columns(files["north"], text_format=form), "ill")
    assert read_rows(files["north"], schema, text_format=form).missing == {"ort": 0, "age": 0}


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252"])
def test_the_stated_encoding_is_that_of_files_that_are_not_utf_8(tmp_path, encoding):
    towns = ["Zürich", "Köln", "Bern"]
    form = TextFormat(encoding="cp1252")
    path = tmp_path / "north.csv"
    rows = "".join(f"{town},40,no\n{town},50,yes\n" for town in towns)
    path.write_text(f"ort,age,ill\n{rows}", encoding=encoding)
    table = read_columns(path, text_format=form)
    assert set(table.columns["ort"]) == set(towns)
    encoded = read_rows(path, Schema.draft(table, "ill"), text_format=form)
    assert encoded.missing == {"ort": 0, "age": 0}


def test_an_encoding_of_several_bytes_is_as_stated(read):
    text = "ort,age,ill\n脛,40,no\n脛,50,yes\n"  # in GBK, it has the bytes of Ä in UTF-8
    assert "脛".encode("gbk") == "Ä".encode()
    data = read(north=text, encoding="gbk", text_format=TextFormat(encoding="gbk"))
    assert data.schema.columns[0].categories == ("脛",)


def test_utf_16_needs_its_encoding(read):
    with pytest.raises(DataError, match=r"or give its encoding .* utf-16"):
        read(north=NORTH, encoding="utf-16")

    data = read(north=NORTH, encoding="utf-16", text_format=TextFormat(encoding="utf-16"))

    assert data.feature_names == ("age", "sex=m")


def test_usual_marks_of_missing_cells_are_read(read):
    cells = ["NA", "N/A", "NULL", ".", "", "?", "na", "n/a", "null", "NaN", "nan", "None", "#N/A"]

    data = read(north="age,ill\n" + "".join(f"{cell},no\n" for cell in cells) + "3,yes\n5,yes\n")

    assert data.x.ravel().tolist() == [4] * len(cells) + [3, 5]
    words = read(north="sex,ill\n" + "".join(f"{cell},no\n" for cell in cells) + "f,yes\nm,no\n")
    assert words.schema.columns[0].categories == ("f", "m", "missing")


def test_words_that_may_be_categories_are_kept(read):
    data = read(north="ion,pain,ill\nNa,none,no\nK,mild,yes\n")

    assert [column.categories for column in data.schema.columns] == [("K", "Na"), ("mild", "none")]


@pytest.mark.parametrize("dash", ["-", "--", "\N{EN DASH}"])
def test_a_dash_among_numbers_is_named(dash, read):
    text = f"age,ill\n1,no\n{dash},no\n{dash},yes\n"

    with pytest.raises(DataError) as refused:
        read(north=text)
    with pytest.raises(DataError) as other:
        read(north=f"age,ill\n{dash},no\n", south="age,ill\n1,yes\n")
    data = read(north=text, text_format=TextFormat(missing=[dash]))

    assert re.search(
        r"column 'age' of .*north\.csv: all other cells are numbers, but the cell in data row 2 "
        rf"is '{dash}'; list it as missing \(--missing {dash}\)",
        str(refused.value),
    )
    assert f"(--missing {dash})" in str(other.value)
    assert data.x.ravel().tolist() == [1, 1, 1]


def test_labels_with_decimal_commas_equal_those_with_points(read):
    data = read(north="age;dose\n1;0,5\n2;1\n", south="age,dose\n3,0.5\n4,1\n", label="dose")

    assert data.y.tolist() == ["0.5", "1", "0.5", "1"]
    with pytest.raises(DataError, match="40 distinct numbers with decimals, which look like a"):
        check_classes(
            read(north="age;dose\n" + "".join(f"1;{n},5\n" for n in range(40)), label="dose"),
            "dose",
        )


def test_a_file_whose_delimiter_is_the_decimal_separator_is_named(read, tmp_path):
    comma = TextFormat(decimal=",")

    with pytest.raises(
        DataError, match=r"cells of .*south\.csv are separated by ',', which is dec"
    ):
        read(north="age;ill\n1,5;no\n", south="age,ill\n1,no\n", text_format=comma)
    schema = Schema.from_toml('[columns.age]\nkind = "number"\n')
    with pytest.raises(
        DataError, match=r"cells of .*south\.csv are separated by ',', which is dec"
    ):
        read_rows(tmp_path / "south.csv", schema, text_format=comma)


def test_a_point_among_decimal_commas_is_no_dash(read):
    with pytest.raises(DataError, match="most cells are numbers, but the cell in data row 1 is no"):
        read(north="age;ill\n1,5;no\n2,5;yes\n", text_format=TextFormat(decimal="."))


@pytest.mark.parametrize("mark", ["", " NA", "n/a"])
def test_a_schema_reads_marks_in_labels_and_parties(mark, tmp_path):
    schema = Schema.from_toml('[columns.age]\nkind = "number"\n')
    (tmp_path / "t.csv").write_text(f"age,ill,site\n1,no,a\n2,yes,b\n3,{mark},b\n4,no,{mark}\n")

    with pytest.raises(DataError, match=r"'site' of .*t\.csv is missing in 1 rows, .* data row 4"):
        read_party_files({"": tmp_path / "t.csv"}, "ill", party="site", schema=schema)
    data = read_party_files({"": tmp_path / "t.csv"}, "ill", schema=schema)

    assert data.y.tolist() == ["no", "yes", "no"]


def test_a_dash_among_words_is_a_category(read):
    data = read(north="sex,ill\nf,no\n-,yes\nm,yes\n")

    assert data.schema.columns[0].categories == ("-", "f", "m")


def test_a_number_can_mark_missing_cells(read):
    form = TextFormat(missing=["-999", "unknown"])

    data = read(north="age,ill\n-999.0,no\nunknown,no\n3,yes\n", text_format=form)

    assert data.x.ravel().tolist() == [3, 3, 3]


@pytest.mark.parametrize(
    ("south", "message"),
    [
        ("age,gender,ill\n1,f,no\n", r"north\.csv has a column .*south\.csv has no column 'sex'"),
        ("Age,sex,ill\n1,f,no\n", r"south\.csv has no column 'age'; .* did you mean 'Age'"),
        (
            "age,sex,bmi,ill\n1,f,2,no\n",
            r"south\.csv has a column .*north\.csv has no column 'bmi'",
        ),
        ("age,sex,ILL\n1,f,no\n", r"south\.csv has no column 'ill'; .* did you mean 'ILL'"),
        ("age,sex,ill\n1,3,no\n", r"column 'sex' of .*north\.csv: the cell in data row 1 is no"),
        ("age,sex,ill\nold,f,no\n", r"column 'age' of .*south\.csv: the cell in data row 1 is no"),
        (
            "age,sex,ill\n1,f,no\nx,m,no\n3,f,no\n",
            r"'age' of .*south\.csv: .* data row 2 is no num",
        ),
        (
            "age,sex,ill\n1,f,0\n",
            "label 'ill' has whole numbers in .*south.csv, but not in .*north",
        ),
        (
            "age,sex,ill\n1,f,0.5\n",
            "label 'ill' has text in .*north.csv, but not in .*south",
        ),
        ("age,sex,ill\n1,f,\n", r"column 'ill' of .*south\.csv is missing in 1 rows, first .* 1"),
        ("age,sex,ill\n1,f\n", r"line 2 of .*south\.csv has 2 cells"),
        ("", r"south\.csv is empty"),
    ],
)
def test_files_that_differ_are_refused_with_the_place(read, south, message):
    with pytest.raises(DataError, match=message):
        read(north=NORTH, south=south)


def test_errors_of_all_files_are_reported_together(read):
    with pytest.raises(DataError, match=r"line 2 of .*north\.csv has 2 cells") as found:
        read(
            north="age,sex,ill\n1,f\n",
            south="age,sex,ill\n1,f,no\nx,m,no\n3,f,no\n",
            east="age,sex,ill\n1,f,\n",
            west=NORTH,
        )
    column, label = found.value.__notes__
    assert re.search(r"column 'age' of .*south\.csv: .* the cell in data row 2 is no num", column)
    assert re.search(r"column 'ill' of .*east\.csv is missing in 1 rows", label)


def test_all_problems_of_a_file_are_reported_together(read):
    with pytest.raises(DataError, match=r"has no column 'bmi'") as found:
        read(
            north="age,sex,bmi,day,ill\n1,f,2,3,no\n",
            south="age,sex,day,ill\n1,3,2026-01-02,no\n2,4,2026-01-03,\n",
            east="age,sex,bmi,day,ill\nx,m,2,2026-01-02,no\n1,f,x,3,no\n2,m,x,4,yes\n3,m,x,5,yes\n",
        )

    expected = [
        r"'sex' of .*north\.csv: .* no number, but the column has numbers in .*south\.csv",
        r"'day' of .*south\.csv has dates",
        r"'day' of .*east\.csv: most cells are numbers",
        r"'age' of .*east\.csv: most cells are numbers",
        r"'bmi' of .*east\.csv: .* no number, but the column has numbers in .*north\.csv",
        r"'ill' of .*south\.csv is missing in 1 rows",
    ]
    notes = found.value.__notes__
    assert len(notes) == len(expected)
    assert all(any(re.search(text, note) for note in notes) for text in expected)


def test_many_problems_are_counted(read):
    names = [f"day_{number}" for number in range(24)]

    with pytest.raises(DataError, match=r"column 'day_0' of .*north\.csv has dates") as found:
        read(north=f"{','.join(names)},ill\n" + "2026-01-02," * 24 + "no\n")

    assert len(found.value.__notes__) == 21
    assert found.value.__notes__[-1] == "and 3 more problems"


def test_all_files_with_other_columns_are_named(read):
    with pytest.raises(DataError, match=r"south\.csv has no column 'sex'") as found:
        read(north=NORTH, south="age,ill\n1,no\n", east="age,sex,bmi,ill\n1,f,3,no\n")
    assert re.search(r"east\.csv has a column .*'bmi'", found.value.__notes__[0])


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(MissingDataError, match=r"south"):
        read_party_files({"south": tmp_path / "south.csv"}, "ill")


@pytest.mark.parametrize("cell", ["12 kg", '"1.234,5"', "1_2"])
def test_the_first_cell_that_is_no_number_is_named(read, cell):
    rows = "".join(f"{age},no\n" for age in range(30))

    with pytest.raises(DataError, match=r"column 'age' of .* data row 31 is no number") as caught:
        read(north=f"age,ill\n{rows}{cell},yes\n")

    assert cell not in str(caught.value)


def test_codes_that_are_seldom_numbers_are_categories(read):
    data = read(north="code,ill\nV58,no\n250,yes\nE849,no\n")

    assert data.feature_names == ("code=250", "code=E849", "code=V58")


@pytest.mark.parametrize("cell", ["2024-02-29", "2024-02-29 12:30:00", "29.02.2024", "2/29/24"])
def test_dates_are_refused(read, cell):
    with pytest.raises(DataError, match=r"column 'day' of .* has dates.*--drop day"):
        read(north=f"day,ill\n{cell},no\n,yes\n")


def test_an_unclear_comma_is_refused(read):
    text = "dose\till\n1,250\tno\n2\tyes\n"

    with pytest.raises(DataError, match=r"column 'dose' of .*: the comma in data row 1 may"):
        read(north=text)

    assert read(north=text, text_format=TextFormat(decimal=",")).x.tolist() == [[1.25], [2]]
    assert read(north=text.replace("2\t", "0,5\t")).x.tolist() == [[1.25], [0.5]]


def test_columns_can_be_left_out_even_if_one_file_lacks_them(read):
    data = read(north=NORTH, south="bmi,age,ill\n21,70,no\n", drop=["sex", "bmi"])

    assert data.feature_names == ("age",)
    with pytest.raises(DataError, match=r"has no column 'sexx'.*did you mean 'sex'"):
        read(north=NORTH, drop=["sexx"])
    with pytest.raises(DataError, match="column 'ill' is the label or party; do not drop it"):
        read(north=NORTH, south=NORTH, drop=["ill"])


def test_an_empty_column_takes_the_type_of_other_files(read):
    data = read(north=NORTH, south="age,sex,ill\n,,no\n")

    assert data.feature_names == ("age", "sex=f", "sex=m", "sex=missing")
    assert any("'sex' of" in note and "is empty" in note for note in data.notes)


def test_a_column_that_is_empty_in_every_file_is_refused(read, tmp_path):
    table = pyarrow.table({"age": [3], "sex": pyarrow.array([None], "str"), "ill": ["no"]})
    parquet.write_table(table, tmp_path / "south.parquet")
    (tmp_path / "north.csv").write_text("age,sex,ill\n1,,no\n")
    files = {"north": tmp_path / "north.csv", "south": tmp_path / "south.parquet"}

    with pytest.raises(DataError, match="has missing cells only in column 'sex'"):
        read_party_files(files, "ill")


def test_constant_and_identifying_columns_are_noted(read):
    rows = "".join(f"p{n},{n},ward 3,{n % 4},no\n" for n in range(20))

    data = read(north=f"patient,number,ward,score,ill\n{rows}")

    assert [note.split("'")[1] for note in data.notes] == ["patient", "number", "ward"]
    assert "--id patient" in data.notes[0]
    assert "--drop ward" in data.notes[2]


def test_a_number_that_is_constant_in_one_file_is_noted(read):
    rows = "".join(f"{n % 7},no\n" for n in range(20))
    constant = "".join("-999,no\n" for _ in range(20))

    (note,) = read(north=f"age,ill\n{rows}", south=f"age,ill\n{constant}").notes

    assert "column 'age' has the same number in every row of" in note
    assert "south.csv, but not in other files" in note
    assert "999" not in note


def test_labels_that_differ_in_case_are_noted(read):
    data = read(north=NORTH, south="age,sex,ill\n1,f,No\n2,m,yes\n")
    letters = read(north="a,letter\n1,b\n2,B\n", label="letter")

    (note,) = check_classes(data, "ill")

    assert "'No', 'no'; if these are one class, spell it alike" in note
    assert check_classes(letters, "letter") == ()


def test_a_workbook_is_named_as_one(tmp_path):
    with ZipFile(tmp_path / "north.xlsx", "w") as archive:
        archive.writestr("sheet.xml", os.urandom(999))

    with pytest.raises(DataError, match=r"north\.xlsx is a workbook or archive, not text; export"):
        read_party_files({"north": tmp_path / "north.xlsx"}, "ill")


def test_a_file_with_codes_of_its_own_is_noted(read):
    female = NORTH.replace("f", "female").replace(",m", ",male")

    (note,) = read(north=female, south=NORTH, west=NORTH).notes

    assert "column 'sex': no category of" in note
    assert "north.csv occurs in another file; the files may code the same facts" in note
    assert "female" not in note
    assert len(read(north=female, south=NORTH).notes) == 1
    assert read(north=NORTH, south=NORTH.replace(",m", ",x")).notes == ()


def test_a_party_of_one_class_is_noted(read):
    data = read(north=NORTH, south="age,sex,ill\n1,f,no\n2,m,no\n")

    (note,) = check_classes(data, "ill")

    assert "all rows of party 'south' are of class 'no'" in note


def make_rows(seed, n_rows):
    """Return the text of rows of two numbers, one in eight missing, and a label."""
    rng = np.random.default_rng(seed)
    return [
        f"{rng.normal() if row % 8 else ''},{rng.normal()},{'yes' if row % 3 else 'no'}\n"
        for row in range(n_rows)
    ]


@pytest.mark.parametrize(("n_shared", "n_noted"), [(40, 40), (6, 6), (3, 0)])
def test_equal_rows_of_two_parties_are_noted(n_shared, n_noted, read):
    header, rows, others = "a,b,ill\n", make_rows(0, 40), make_rows(1, 40)
    south = "".join(rows[:n_shared] + others[n_shared:])

    data = read(
        north=header + "".join(rows), south=header + south, west=header + "".join(make_rows(2, 9))
    )

    notes = note_equal_rows(data)
    assert len(notes) == bool(n_noted)
    if n_noted:
        assert notes[0].startswith(f"parties 'north' and 'south' have {n_noted} equal rows: ")


def test_equal_rows_of_several_pairs_are_one_note(read):
    header, rows = "a,b,ill\n", make_rows(0, 40)

    data = read(
        north=header + "".join(rows[:20]),
        south=header + "".join(rows),
        west=header + "".join(rows[10:]),
    )

    (note,) = note_equal_rows(data)
    assert note.startswith("parties 'south' and 'west' have 30 equal rows, and 2 more pairs of")


@over_seeds(600)
def test_rows_of_few_values_are_equal_by_chance(seed):
    rng = np.random.default_rng(seed)
    n_values, sizes = rng.integers(1, 400), rng.integers(10, 300, 2)
    weights = rng.random(n_values) ** rng.integers(1, 6)
    x = rng.choice(n_values, sizes.sum(), p=weights / weights.sum())[:, None] * 1.0
    y = np.zeros(len(x), np.int64)

    data = Dataset("set", x, y, ("a",), "here", parties=np.repeat(["north", "south"], sizes))

    assert note_equal_rows(data) == ()


def test_labels_that_look_like_measurements_are_refused(read):
    days = read(north="age,days\n" + "".join(f"{n},{n / 2}\n" for n in range(50)), label="days")
    grades = read(north="age,g\n" + "".join(f"{n},{n % 9 / 2}\n" for n in range(50)), label="g")
    ages = read(north="a,age\n" + "".join(f"{n % 7},{n}\n" for n in range(50)), label="age")

    with pytest.raises(DataError, match=r"label 'days' .* 50 distinct numbers with decimals"):
        check_classes(days, "days")
    assert check_classes(grades, "g") == ()
    assert "50 distinct numbers in 50 rows" in check_classes(ages, "age")[0]


def test_files_are_read_by_a_schema(read):
    schema = Schema.from_toml(
        'label = "ill"\nclasses = ["no", "yes"]\n[columns.age]\nkind = "number"\nmissing = 50\n'
    )

    data = read(north=NORTH, south="ill;age\nyes;61,5\nperhaps;3\n", schema=schema)

    assert data.x.ravel().tolist() == [40, 50, 50, 61.5]
    assert data.parties.tolist() == ["north"] * 3 + ["south"]
    assert any("south.csv: 1 rows have no declared label" in note for note in data.notes)
    with pytest.raises(DataError, match=r"south\.csv has no row that the schema allows"):
        read(north=NORTH, south="ill,age\nmaybe,3\n", schema=schema)


def test_a_schema_reads_marked_numbers_as_missing(read):
    schema = Schema.from_toml('label = "ill"\n[columns.age]\nkind = "number"\nmissing = 50\n')
    form = TextFormat(missing=["-999"])

    data = read(north="age,ill\n-999,no\n1,yes\n", schema=schema, text_format=form)

    assert data.x.ravel().tolist() == [50, 1]


@given(rows=st.lists(st.sampled_from(["1;2;3", "1,2,3", "a\tb\tc", "1|2", ""]), max_size=5))
@settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck))
def test_rows_do_not_decide_how_a_schema_is_read(rows, tmp_path_factory):
    schema = Schema.from_toml('[columns.a]\nkind = "number"\n[columns.b]\nkind = "number"\n')
    path = tmp_path_factory.mktemp("rows") / "t.csv"
    path.write_text("\n".join(["a;b", "1;2,5", *rows]))

    assert read_rows(path, schema, labelled=False).x[0].tolist() == [1, 2.5]


@given(st.lists(st.text("ab ,;\t|", min_size=1, max_size=5), min_size=1, max_size=6))
def test_a_quoted_header_is_split_by_its_delimiter(names):
    header = ";".join(f'"{name}"' for name in names)

    assert len(names) == 1 or find_delimiter(header) == ";"


def test_parquet_and_text_files_are_joined(tmp_path, read):
    parquet.write_table(
        pyarrow.table({"ill": ["no"], "sex": ["f"], "age": [7]}), tmp_path / "south.parquet"
    )
    (tmp_path / "north.csv").write_text(NORTH)

    data = read_party_files(
        {"north": tmp_path / "north.csv", "south": tmp_path / "south.parquet"}, "ill"
    )

    assert data.x[:, 0].tolist() == [40, 50, 40, 7]


def test_a_number_marks_missing_cells_of_parquet_files(tmp_path):
    parquet.write_table(pyarrow.table({"a": [1.5, -999.0], "n": [-999, 2]}), tmp_path / "t.parquet")

    table = read_columns(tmp_path / "t.parquet", text_format=TextFormat(missing=["-999"]))

    np.testing.assert_array_equal(table.columns["a"], [1.5, np.nan])
    np.testing.assert_array_equal(table.columns["n"], [np.nan, 2])


@pytest.mark.parametrize(
    "options",
    [
        {"delimiter": ";;"},
        {"delimiter": ""},
        {"decimal": ";"},
        {"delimiter": ",", "decimal": ","},
        {"encoding": "latin-77"},
        {"missing": "NA"},
    ],
    ids=str,
)
def test_an_invalid_form_of_text_is_refused(options):
    with pytest.raises(ValueError, match=r"expected|differ"):
        TextFormat(**options)


def test_arrays_are_flattened_and_keep_their_parties(tmp_path):
    x = np.arange(24).reshape(3, 2, 4).astype(np.uint8)
    np.savez(tmp_path / "north.npz", x=x, y=[0, 1, 0], parties=["a", "b", "a"])
    np.savez(tmp_path / "south.npz", x=x[:1], y=[1])

    alone = read_party_files({"north": tmp_path / "north.npz"})
    both = read_party_files({name: tmp_path / f"{name}.npz" for name in ("north", "south")})

    assert alone.x.dtype == np.uint8
    assert alone.parties.tolist() == ["a", "b", "a"]
    assert both.x.tolist() == [*x.reshape(3, 8).tolist(), x[0].ravel().tolist()]
    assert both.y.tolist() == [0, 1, 0, 1]
    assert both.parties.tolist() == ["north"] * 3 + ["south"]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y": [0]}, "not a complete set of arrays: .*x.npy"),
        ({"x": [[1.0]]}, "not a complete set of arrays: .*y.npy"),
        ({"x": [1.0], "y": [0]}, r"array 'x' of .* has shape \(1,\)"),
        ({"x": [["a"]], "y": [0]}, "array 'x' .* expected numbers"),
        ({"x": [[1.0], [np.nan]], "y": [0, 1]}, "no finite number in row 2, column 1"),
        ({"x": [[1.0]], "y": [[0]]}, r"array 'y' of .* has shape \(1, 1\)"),
        ({"x": [[1.0]], "y": [0, 1]}, "has 1 rows but labels of shape"),
        ({"x": [[1.0]], "y": np.array([None])}, "not a complete set of arrays"),
    ],
)
def test_invalid_arrays_are_explained(tmp_path, arrays, message):
    np.savez(tmp_path / "a.npz", **{name: np.asarray(value) for name, value in arrays.items()})

    with pytest.raises(DataError, match=message):
        read_party_files({"a": tmp_path / "a.npz"})


def test_arrays_of_another_width_are_refused(tmp_path):
    np.savez(tmp_path / "north.npz", x=np.zeros((2, 3)), y=[0, 1])
    np.savez(tmp_path / "south.npz", x=np.zeros((2, 4)), y=[0, 1])

    with pytest.raises(DataError, match=r"south\.npz has 4 features and .*north\.npz has 3"):
        read_party_files({name: tmp_path / f"{name}.npz" for name in ("north", "south")})


def test_a_comma_in_a_quoted_cell_is_no_decimal(tmp_path):
    (tmp_path / "a.csv").write_text('pair,n\n"1,2",1\n"2,3",2\n')

    assert read_columns(tmp_path / "a.csv").columns["pair"].tolist() == ["1,2", "2,3"]
