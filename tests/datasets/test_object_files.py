"""Objects of JSON lines, Arrow, SDF and FASTA, also of damaged and hostile files."""

import gzip
import json
import struct

import numpy as np
import pytest

from fedneighbors.datasets import Graph
from fedneighbors.datasets._graphs import graph_from_text
from fedneighbors.datasets._molecules import fingerprint_from_smiles, graph_from_smiles
from fedneighbors.datasets._object_cells import items_from_cells
from fedneighbors.datasets._objects import read_objects
from fedneighbors.errors import DataError, MissingDataError

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
chem = pytest.importorskip("rdkit.Chem")
SMILES = {"ethanol": "CCO", "benzene": "c1ccccc1", "odd": "CN(C)(C)(C)C"}


def write_sdf(path, molecules=SMILES):
    text = ""
    for name, smiles in molecules.items():
        molecule = chem.MolFromSmiles(smiles, sanitize=False)
        molecule.SetProp("_Name", name)
        text += chem.MolToMolBlock(molecule, kekulize=False) + "$$$$\n"
    path.write_text(text, encoding="utf-8")
    return text


def test_molecules_of_sdf_are_those_of_smiles(tmp_path):
    text = write_sdf(tmp_path / "m.sdf")
    (tmp_path / "m.sdf.gz").write_bytes(gzip.compress(text.encode()))
    for name in ("m.sdf", "m.sdf.gz"):
        found = read_objects(tmp_path / name, "graphs")
        assert (found.labels, found.is_named) == (tuple(SMILES), True)
        assert found.items == [graph_from_smiles(smiles) for smiles in SMILES.values()]
    with pytest.raises(DataError, match=r"m\.sdf, record 3: RDKit rejects the molecule: .*valence"):
        read_objects(tmp_path / "m.sdf", "fingerprints")
    write_sdf(tmp_path / "two.sdf", {"": "CCO", "benzene": "c1ccccc1"})
    found = read_objects(tmp_path / "two.sdf", "fingerprints")
    assert found.labels == ("1", "benzene")
    expected = [fingerprint_from_smiles(smiles) for smiles in ("CCO", "c1ccccc1")]
    np.testing.assert_array_equal(found.items, expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[:-5], "record 3: expected \\$\\$\\$\\$ at the end; is it truncated"),
        (lambda text: text.replace("  3  2", "999999", 1), "record 1: expected the atoms"),
        (lambda text: text.replace("M  END", "", 1), "record 1: expected the atoms"),
        (lambda text: text.replace("benzene", "ethanol"), "record 2: expected a new name"),
        (lambda text: "$$$$\n" + text, "record 1: expected the atoms"),
    ],
)
def test_a_damaged_sdf_names_the_record(tmp_path, change, message):
    text = write_sdf(tmp_path / "m.sdf")
    assert change(text) != text
    (tmp_path / "m.sdf").write_text(change(text), encoding="utf-8")
    with pytest.raises(DataError, match=message):
        read_objects(tmp_path / "m.sdf", "graphs")


def test_sequences_of_fasta_have_names(tmp_path):
    (tmp_path / "s.fasta").write_text("\n>a first one\nACGT\nAC GT\n\n>b\r\nTT\r\n")
    found = read_objects(tmp_path / "s.fasta", "strings")
    assert found.labels == ("a", "b")
    assert found.items == ["ACGTACGT", "TT"]
    assert found.is_named


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ACGT\n>a\nA\n", "line 1: expected a line >name"),
        (">a\nA\n>a\nC\n", "line 3: expected a new name after >, got 'a'"),
        (">\nA\n", "line 1: expected a new name after >, got ''"),
        (">a\n>b\nA\n", "the sequence 'a' is empty"),
        (">a\nA\n>b\n", "the sequence 'b' is empty"),
        ("", "is empty"),
    ],
)
def test_a_damaged_fasta_names_the_line(tmp_path, text, message):
    (tmp_path / "s.fa").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        read_objects(tmp_path / "s.fa", "strings")


def write_json(path, *rows):
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")


def test_json_lines_have_objects_in_one_column_or_in_several(tmp_path):
    path = tmp_path / "t.jsonl"
    write_json(path, {"n": "a", "v": [1, 2.5], "x": 3}, {"n": "b", "x": 4, "v": [0, -1]})
    found = read_objects(path, "vectors", columns=["v"], label="n", owner="x")
    assert found.items.tolist() == [[1, 2.5], [0, -1]]
    assert (found.labels, found.owners.tolist()) == (("a", "b"), ["3", "4"])
    assert read_objects(path, "vectors", columns=["x", "x"]).items.tolist() == [[3, 3], [4, 4]]
    assert read_objects(path, "sets", columns=["n"]).items == [frozenset("a"), frozenset("b")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"v": [1]}\n[1]', "line 2: expected a JSON object"),
        ('{"v": [1]}\n{"v": [1', "line 2: expected a JSON object"),
        ("[" * 100_000, "line 1: expected a JSON object"),
        ('{"v": "' + "1" * (1 << 21) + '"}', "line 1: expected a JSON object of less than 1048576"),
        ('{"v": [1]}\n{"v": [1, 2]}', r"vectors of one length in column 'v' of .*got \[1, 2\]"),
        ('{"v": [1]}\n{"w": [1]}', "data row 2, column 'v': the cell is missing"),
        ('{"v": [1]}\n{"v": [NaN]}', "data row 2, column 'v': expected finite numbers"),
        ('{"v": [[1]]}', "data row 1, column 'v': expected a list of numbers"),
        ('{"v": 1}\n{"v": "a"}\n{"v": 2}\n{"w": 2}', "'a'; other such rows: 4$"),
        ('{"v": 1}\n{"v": [1]}', "data row 2, column 'v': expected a finite number"),
        ('{"v": 1}\n{"v": true, "w": 1}\n{"v": "1"}', "data row 3, column 'v': expected a finite"),
    ],
)
def test_json_lines_that_do_not_suit_are_named(tmp_path, text, message):
    path = tmp_path / "t.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        read_objects(path, "vectors", columns=["v"])


def test_a_vector_next_to_numbers_has_to_be_named_alone(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"v": [1, 2], "beds": 3}', encoding="utf-8")
    with pytest.raises(DataError, match="the object has 2 columns, 'v', 'beds': name it alone"):
        read_objects(path, "vectors", columns=["v", "beds"])
    assert read_objects(path, "vectors", columns=["v"]).items.tolist() == [[1, 2]]


def write_arrow(path, table, *, is_stream=False, compression=None):
    options = pyarrow.ipc.IpcWriteOptions(compression=compression)
    new = pyarrow.ipc.new_stream if is_stream else pyarrow.ipc.new_file
    with new(str(path), table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=2)


@pytest.mark.parametrize("is_stream", [False, True])
def test_arrow_files_and_streams_are_read(tmp_path, is_stream):
    vectors = pyarrow.array([[1, 2], [3, 4], [5, 6]], pyarrow.list_(pyarrow.float32(), 2))
    words = pyarrow.array(["a", "b", "a"]).dictionary_encode()
    table = pyarrow.table({"v": vectors, "w": words})
    write_arrow(tmp_path / "t.arrow", table, is_stream=is_stream)
    found = read_objects(tmp_path / "t.arrow", "vectors", label="w")
    assert found.items.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert found.labels == ("a", "b", "a")


def test_parquet_files_with_lists_are_read(tmp_path):
    vectors = pyarrow.array([[1, 2], [3, 4], [5, 6]], pyarrow.list_(pyarrow.float32(), 2))
    table = pyarrow.table({"v": vectors, "w": ["a", "b", "a"], "n": [1, 2, 3]})
    parquet.write_table(table, tmp_path / "t.parquet")
    found = read_objects(tmp_path / "t.parquet", "vectors", columns=["v"], label="w", owner="n")
    assert found.items.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert (found.labels, found.owners.tolist()) == (("a", "b", "a"), ["1", "2", "3"])
    assert read_objects(tmp_path / "t.parquet", "sets", columns=["w"]).items[1] == frozenset("b")


@pytest.mark.parametrize("name", ["t.feather", "t.parquet"])
def test_a_damaged_arrow_file_is_an_error(tmp_path, name):
    path = tmp_path / name
    table = pyarrow.table({"v": [[1.0, 2.0]] * 50, "w": ["word"] * 50})
    if path.suffix == ".parquet":
        parquet.write_table(table, path)
    else:
        write_arrow(path, table)
    content = path.read_bytes()
    read, messages = 0, []
    for cut in range(0, len(content), 97):
        for damaged in (
            content[:cut],
            content[:cut] + b"\xff\xff\xff\x7f" + content[cut + 4 :],
        ):
            path.write_bytes(damaged)
            try:
                read_objects(path, "vectors", columns=["v"])
                read += 1  # a number was damaged, or nothing that matters
            except DataError as error:
                messages.append(str(error))
    assert all(str(path) in message for message in messages)
    assert read < len(content) // 97
    with pytest.raises(MissingDataError):
        read_objects(tmp_path / f"none{path.suffix}", "vectors")


def test_an_arrow_file_that_expands_is_refused(tmp_path):
    path = tmp_path / "t.arrow"
    table = pyarrow.table({"v": pyarrow.array(np.zeros(1 << 22))})
    with pyarrow.ipc.new_file(
        str(path), table.schema, options=pyarrow.ipc.IpcWriteOptions(compression="zstd")
    ) as writer:
        writer.write_table(table)
    assert path.stat().st_size < 1 << 15
    with pytest.raises(DataError, match="expands to more than"):
        read_objects(path, "vectors", columns=["v"])


def point(x, y, *, srid=None, order="<", kind=1):
    flags = kind | (0 if srid is None else 0x20000000)
    head = struct.pack(f"{order}BI", order == "<", flags)
    middle = b"" if srid is None else struct.pack(f"{order}I", srid)
    return head + middle + struct.pack(f"{order}2d", x, y)


def test_points_of_either_byte_order_are_places():
    cells = {"at": [point(1, 2), point(3, 4, srid=4326, order=">"), [5, 6]]}
    places = items_from_cells(cells, ["at"], "places", source="t")
    assert places.tolist() == [[1, 2], [3, 4], [5, 6]]


@pytest.mark.parametrize(
    "cell",
    [
        b"",
        b"\x01",
        point(1, 2)[:-1],
        point(1, 2) + b"0",
        point(np.nan, np.nan),
        point(1, 2, kind=2),
    ],
)
def test_bytes_that_are_no_point_are_refused(cell):
    with pytest.raises(DataError, match="data row 1, column 'at': expected a point"):
        items_from_cells({"at": [cell]}, ["at"], "places", source="t")


def test_a_graph_is_read_from_text():
    graph = Graph(["C", "O"], [(0, 1)], [2])
    assert graph_from_text("v 0 C\nv 1 O\ne 0 1 2") == graph
    assert graph_from_text("t # name\nv 0 C\nv 1 O\ne 0 1 2\n") == graph
    with pytest.raises(DataError, match="expected one graph, got 2"):
        graph_from_text("t # a\nv 0 C\nt # b\nv 0 C")
    with pytest.raises(DataError, match="graph, line 2: expected"):
        graph_from_text("v 0 C\ne 0 1")
