"""Objects of a search are read from tables, lines and graph files; errors name a position."""

import gzip
import lzma

import numpy as np
import pytest

from fedneighbors.datasets import CategoricalColumn, NumericColumn, Schema, load, read_rows
from fedneighbors.datasets._files import read_lines
from fedneighbors.datasets._molecules import fingerprint_from_smiles, graph_from_smiles
from fedneighbors.datasets._object_cells import parse_object
from fedneighbors.datasets._objects import read_objects, read_party_objects
from fedneighbors.errors import DataError, MissingDataError

PLACES = "name,lat,lon,country\nLyon,45.75,4.85,FR\nBern,46.95,7.45,CH\n"


@pytest.fixture
def write_text(tmp_path):
    def write(name, text):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name

    return write


@pytest.mark.parametrize(
    ("name", "compress"),
    [("w.txt", bytes), ("w.txt.gz", gzip.compress), ("w.txt.xz", lzma.compress)],
)
def test_lines_are_strings_also_in_a_compressed_file(tmp_path, name, compress):
    (tmp_path / name).write_bytes(compress("Zürich\r\n\nBern\n".encode()))

    assert read_lines(tmp_path / name) == ["Zürich", "", "Bern"]


def test_a_line_with_invalid_utf_8_is_named(tmp_path):
    (tmp_path / "w.txt").write_bytes(b"one\ntwo\nthr\xff\n")

    with pytest.raises(DataError, match=r"w\.txt, line 3: expected UTF-8 text"):
        read_lines(tmp_path / "w.txt")


@pytest.mark.parametrize(("name", "content"), [("w.txt", b""), ("w.gz", b"no gzip"), ("w.xz", b"")])
def test_files_without_lines_are_refused(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)

    with pytest.raises(DataError, match=r"is empty|is it damaged"):
        read_lines(tmp_path / name)


def test_vectors_consist_of_the_numeric_columns(write_text):
    objects = read_objects(
        write_text("cities.csv", PLACES), "vectors", owner="country", label="name"
    )

    assert objects.items.tolist() == [[45.75, 4.85], [46.95, 7.45]]
    assert objects.labels == ("Lyon", "Bern")
    assert objects.owners.tolist() == ["FR", "CH"]


def test_vector_columns_keep_the_order_of_their_names(write_text):
    objects = read_objects(write_text("cities.csv", PLACES), "vectors", columns=["lon", "lat"])

    assert objects.items.tolist() == [[4.85, 45.75], [7.45, 46.95]]
    assert objects.labels == ("row 1", "row 2")


def test_a_place_is_longitude_and_latitude(write_text):
    by_default = read_objects(write_text("cities.csv", PLACES), "places")
    named = read_objects(write_text("cities.csv", PLACES), "places", columns=["lon", "lat"])

    assert by_default.items.tolist() == named.items.tolist() == [[4.85, 45.75], [7.45, 46.95]]


def test_a_name_selects_a_data_set(monkeypatch):
    monkeypatch.delenv("FEDNEIGHBORS_DATA", raising=False)

    assert np.array_equal(read_objects("iris", "vectors").items, load("iris").x)


@pytest.mark.parametrize("options", [{"owner": "x"}, {"label": "x"}, {"columns": ["x"]}], ids=str)
def test_columns_of_a_named_set_of_vectors_are_refused(options):
    with pytest.raises(DataError, match="'iris' is not a file: it is read as a data set"):
        read_objects("iris", "vectors", **options)


def test_a_name_selects_a_file_of_the_data_folder(tmp_path, monkeypatch):
    (tmp_path / "strings").mkdir()
    (tmp_path / "strings" / "rivers.txt").write_text("Rhine\nAare\n")
    monkeypatch.setenv("FEDNEIGHBORS_DATA", str(tmp_path))

    assert read_objects("rivers", "strings").items == ["Rhine", "Aare"]
    with pytest.raises(MissingDataError, match="did you mean 'rivers'"):
        read_objects("river", "strings")


def test_words_of_a_line_are_a_set(write_text):
    objects = read_objects(write_text("w.txt", "graph search\nsearch search\n"), "sets")

    assert objects.items == [{"graph", "search"}, {"search"}]
    assert objects.labels == ("graph search", "search search")


def test_strings_are_read_from_a_column_even_if_numeric(write_text):
    objects = read_objects(write_text("w.csv", "code,n\n007,1\n7,2\n"), "strings", columns=["code"])

    assert objects.items == ["007", "7"]


def test_molecules_are_read_from_smiles_and_from_a_column(write_text):
    lines = read_objects(write_text("m.smi", "CCO ethanol\nCC ethane\n"), "graphs")
    column = read_objects(write_text("m.csv", "smiles\nCCO\nCC\n"), "graphs", columns=["smiles"])
    default = read_objects(write_text("m.csv", "id,smiles\n1,CCO\n2,CC\n"), "graphs")

    assert (
        lines.items
        == column.items
        == default.items
        == [graph_from_smiles("CCO"), graph_from_smiles("CC")]
    )
    assert lines.labels == ("ethanol", "ethane")


def test_fingerprints_are_read_from_smiles_and_from_a_column(write_text):
    lines = read_objects(write_text("m.smi", "CCO ethanol\nCC ethane\n"), "fingerprints")
    column = read_objects(
        write_text("m.csv", "smiles\nCCO\nCC\n"), "fingerprints", columns=["smiles"]
    )

    expected = [fingerprint_from_smiles("CCO").tolist(), fingerprint_from_smiles("CC").tolist()]
    assert [item.tolist() for item in lines.items] == expected
    assert [item.tolist() for item in column.items] == expected
    assert lines.labels == ("ethanol", "ethane")


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("apex.csv", "id,smiles\n1,CC\n", "graphs"),
        ("apex.jsonl", '{"id": 1, "smiles": "CC"}\n', "fingerprints"),
        ("apex.jsonl", '{"structure": "CC"}\n', "graphs"),
        ("apex.txt", "t # one\nv 0 C\nv 1 C\ne 0 1 1\n", "graphs"),
    ],
)
@pytest.mark.parametrize("is_first", [False, True])
def test_parties_may_have_molecules_in_different_formats(write_text, name, text, kind, is_first):
    files = {"acme": write_text("acme.smi", "CCO ethanol\n"), "apex": write_text(name, text)}
    if is_first:
        files = dict(reversed(files.items()))

    objects = read_party_objects(files, kind)

    parse = graph_from_smiles if kind == "graphs" else fingerprint_from_smiles
    expected = {"acme": parse("CCO"), "apex": parse("CC")}
    for owner, item in zip(objects.owners.tolist(), objects.items, strict=True):
        np.testing.assert_equal(item, expected[owner])
    assert objects.owners.tolist() == list(files)


def test_graphs_are_read_from_their_own_format(write_text):
    objects = read_objects(write_text("g.txt", "t # one\nv 0 C\nv 1 O\ne 0 1 2\n"), "graphs")

    assert objects.labels == ("one",)
    assert objects.items[0].edge_labels == ("2",)


@pytest.mark.parametrize(
    ("name", "text", "kind", "options", "message"),
    [
        ("v.csv", "a,b\n1,2\n3,x\n", "vectors", {"columns": ["a", "b"]}, "row 2: .* 'b', got 'x'"),
        ("v.csv", "a,b\n1,2\n,4\n", "vectors", {}, "data row 2: .* 'a', got a missing cell"),
        ("v.csv", "a,b\n1,2\n,4\n3,\n,5\n", "vectors", {}, "data row 2: .*; other such rows: 4$"),
        ("v.csv", "a,b\n1,2\n3\n", "vectors", {}, "line 3 of .* has 1 cells"),
        ("v.csv", "a\nx\n", "vectors", {}, "has no numeric column"),
        ("v.csv", "a\n1\n", "vectors", {"columns": ["b"]}, "has no column 'b'"),
        ("v.csv", "a\n1\n", "vectors", {"columns": ["target"]}, "has no column 'target'; .* 'a'$"),
        ("v.txt", "1 2\n", "vectors", {}, "expected a table of vectors"),
        ("p.csv", "x,y\n1,2\n", "places", {}, "has no columns lon and lat"),
        ("p.csv", "lon,lat,h\n1,2,3\n", "places", {"columns": ["lon"]}, "expected two columns"),
        ("s.csv", "a,b\nx,y\n", "strings", {}, "name its column of strings"),
        ("s.csv", "a\nx\n\n", "strings", {"columns": ["c"]}, "has no column 'c'"),
        ("s.csv", "a,b\nx,1\n,2\n", "strings", {"columns": ["a"]}, "data row 2: expected text"),
        ("s.txt", "x\n", "strings", {"label": "name"}, "has no columns"),
        ("g.txt", "t # one\nv 0 C\ne 0 1 2\n", "graphs", {}, "line 3"),
        ("g.smi", "CCO a\nC(C b\n", "graphs", {}, "line 2: expected SMILES"),
        ("g.smi", "CCO a\n", "graphs", {"columns": ["m"]}, "has no column 'm'; .* 'smiles'$"),
        ("g.smi", "CCO a\n", "strings", {"columns": ["smiles"]}, "has no columns"),
        ("g.smi", "CCO a\n", "sets", {}, "molecules: compare them by tanimoto or graph_edit"),
        ("g.csv", "m\nCC\n", "fingerprints", {}, "no column 'smiles'; .* 'm'; name the column"),
        ("g.csv", "m\nCC\nC(\n", "graphs", {"columns": ["m"]}, "data row 2: expected SMILES"),
    ],
)  # fmt: skip
def test_invalid_input_is_reported_with_its_position(
    write_text, name, text, kind, options, message
):
    with pytest.raises(DataError, match=message):
        read_objects(write_text(name, text), kind, **options)


def test_first_objects_keep_their_owners(write_text):
    objects = read_objects(write_text("cities.csv", PLACES), "places", owner="country").first(1)

    assert (len(objects), objects.items.tolist(), objects.owners.tolist()) == (
        1,
        [[4.85, 45.75]],
        ["FR"],
    )


@pytest.mark.parametrize("text", ["1,2", "1,2,3,4", "1,2,x", "", "1,2,nan", "1,2,inf"])
def test_a_vector_must_have_as_many_numbers_as_the_data(text):
    with pytest.raises(DataError, match="expected 3 comma-separated numbers"):
        parse_object(text, "vectors", n_columns=3)


PATIENTS = """name,age,ward,stay
ann,40,a,2
bob,,b,3
cyd,500,c,4
dan,50,,5
"""
SCHEMA = Schema(
    (
        NumericColumn("age", 0.0, 100.0, "drop"),
        CategoricalColumn("ward", ("a", "b", "c"), "b"),
    ),
    "stay",
    (2, 3),
)


def test_a_schema_converts_the_rows_of_vectors(write_text):
    file = write_text("patients.csv", PATIENTS)

    objects = read_objects(file, "vectors", schema=SCHEMA, owner="ward", label="name")

    assert objects.items.tolist() == [[40, 1, 0, 0], [100, 0, 0, 1], [50, 0, 1, 0]]
    assert objects.labels == ("ann", "cyd", "dan")  # bob has no age, and labels are not used
    assert objects.owners.tolist() == ["a", "c", ""]
    assert read_objects(file, "vectors", schema=SCHEMA).labels == ("row 1", "row 3", "row 4")
    assert objects.rows == (1, 3, 4)
    assert [objects.find_row(row) for row in (1, 2, 3, 5)] == [0, None, 1, None]
    assert "1 cells are missing or invalid and drop their rows" in objects.notes[0]
    with pytest.raises(DataError, match="1 rows, first row 2, have no valid cell"):
        read_objects(file, "vectors", schema=SCHEMA, complete=True)


def test_vectors_of_a_schema_equal_those_of_other_readers(write_text):
    schema = Schema((CategoricalColumn("code", ("1", "2", "3")), NumericColumn("a")))
    table = write_text("t.csv", "code,a\n01,1\n2,2\n3\n3,4\n")
    lines = write_text("t.jsonl", '{"code": 1, "a": 1}\n{"a": 2, "code": "2"}\n')

    objects = read_objects(table, "vectors", schema=schema)

    assert (objects.items == read_rows(table, schema).x).all()
    assert objects.labels == ("row 2", "row 3")
    assert objects.notes[-1] == "1 rows have another number of cells than the header; dropped"
    assert read_objects(lines, "vectors", schema=schema).items.tolist() == [
        [1, 0, 0, 1],
        [0, 1, 0, 2],
    ]


@pytest.mark.parametrize(
    ("kind", "columns"), [("vectors", ["age"]), ("strings", []), ("places", [])]
)
def test_a_schema_is_for_vectors_in_place_of_columns(write_text, kind, columns):
    file = write_text("patients.csv", PATIENTS)

    with pytest.raises(DataError, match="a schema describes the columns of vectors or rows"):
        read_objects(file, kind, columns=columns, schema=SCHEMA)


def test_a_schema_of_lines_is_refused(write_text):
    with pytest.raises(DataError, match="has no columns"):
        read_objects(write_text("lines.txt", "a\nb\n"), "strings", schema=SCHEMA)
