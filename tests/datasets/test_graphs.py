"""Graphs are checked, and read in gSpan format, SMILES and SDF."""

import copy
import gzip
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedneighbors.datasets._graphs import Graph, GraphSet, read_graphs
from fedneighbors.datasets._molecules import (
    fingerprint_from_smiles,
    graph_from_smiles,
    read_fingerprints,
    read_molecules,
    read_smiles,
)
from fedneighbors.datasets._objects import read_objects
from fedneighbors.errors import DataError, MissingDataError, MissingExtraError


def test_equal_graphs_are_equal_in_any_edge_order():
    first = Graph(["C", "O", "N"], [(2, 0), (0, 1)], [1, 2])
    second = Graph(("C", "O", "N"), np.array([[0, 1], [0, 2]]), np.array([2, 1]))

    assert first == second
    assert hash(first) == hash(second)
    assert first.edges == ((0, 1), (0, 2))
    assert first.edge_labels == ("2", "1")
    assert first != Graph(["C", "O", "N"], [(0, 1), (0, 2)], [1, 1])
    assert first != "CON"


def test_a_graph_does_not_change():
    graph = Graph(["C"])

    with pytest.raises(AttributeError, match="is immutable"):
        graph.edges = ()
    assert copy.deepcopy(graph) == graph


def test_edges_without_labels_are_labelled_one():
    assert Graph([6, 6], [(0, 1)]) == Graph(["6", "6"], [(1, 0)], ["1"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["C"], [(0, 0)]), "edge 0 joins node 0 with itself"),
        ((["C", "C"], [(0, 1), (1, 0)]), "edge \\(0, 1\\) is repeated"),
        ((["C", "C"], [(0, 2)]), "edge 0 has node 2, but the graph has 2 nodes"),
        ((["C", "C"], [(-1, 0)]), "edge 0 has node -1"),
        ((["C", "C"], [(0, 1)], ["1", "2"]), "expected one label per edge: 1, got 2"),
    ],
)
def test_an_invalid_graph_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Graph(*arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([None],), "label of node 0, got NoneType"),
        (([True],), "label of node 0, got bool"),
        (([1.5],), "label of node 0, got float"),
        ((["C", "C"], [(0, 1)], [b"1"]), "label of edge 0, got bytes"),
        ((["C", "C"], [(0, 1.0)]), "integers as the nodes of edge 0"),
        ((["C", "C"], [3]), "expected a pair of nodes as edge 0"),
    ],
)
def test_labels_and_nodes_of_another_kind_are_refused(arguments, message):
    with pytest.raises(TypeError, match=message):
        Graph(*arguments)


def test_each_graph_of_a_set_needs_a_name_of_its_own():
    with pytest.raises(ValueError, match="same name"):
        GraphSet([Graph([]), Graph([])], ["a", "a"])
    with pytest.raises(ValueError, match="1 graphs, 2 names, 1 classes"):
        GraphSet([Graph([])], ["a", "b"], [""])


GSPAN_TEXT = "t # 0 CI\nv 0 C\nv 1 O\n\ne 0 1 2\nt # 1\nt # x\nv 0 Na\n"


def file_of(folder, text, name="graphs.txt"):
    path = folder / name
    path.write_text(text)
    return path


def test_graphs_are_read_with_names_and_classes(tmp_path):
    found = read_graphs(file_of(tmp_path, GSPAN_TEXT))

    assert found.graphs == [Graph("CO", [(0, 1)], ["2"]), Graph([]), Graph(["Na"])]
    assert found.names == ["0", "1", "x"]
    assert found.classes == ["CI", "", ""]


def gspan(graph, name, label):
    """Return a graph in the format of `read_graphs`."""
    lines = [f"t # {name} {label}", *(f"v {i} {node}" for i, node in enumerate(graph.node_labels))]
    edges = zip(graph.edges, graph.edge_labels, strict=True)
    return "\n".join([*lines, *(f"e {u} {v} {bond}" for (u, v), bond in edges)])


def test_compressed_graphs_are_read(tmp_path):
    (tmp_path / "some.txt.gz").write_bytes(gzip.compress(GSPAN_TEXT.encode()))

    found = read_graphs(tmp_path / "some.txt.gz")

    assert vars(found) == vars(read_graphs(file_of(tmp_path, GSPAN_TEXT)))


WORDS = st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1, max_size=4)


@given(st.lists(WORDS, max_size=4), st.lists(WORDS, min_size=6, max_size=6), st.booleans())
def test_any_names_and_labels_are_read_back(tmp_path_factory, labels, bonds, dense):
    pairs = [(u, v) for u in range(len(labels)) for v in range(u) if dense or u == v + 1]
    graph = Graph(labels, pairs, bonds[: len(pairs)])
    path = tmp_path_factory.mktemp("graphs") / "one.txt"
    path.write_text(gspan(graph, "name", "class"), encoding="utf-8")

    assert vars(read_graphs(path)) == vars(GraphSet([graph], ["name"], ["class"]))


def test_reading_stops_at_the_end_mark(tmp_path):
    assert len(read_graphs(file_of(tmp_path, GSPAN_TEXT + "t # -1\nnonsense"))) == 3
    assert len(read_graphs(file_of(tmp_path, ""))) == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("v 0 C", "line 1: expected a line 't # name' before"),
        ("t # 0\nw 0 C", "line 2: expected a line that begins with t, v or e, got 'w'"),
        ("t 0", "line 1: expected 't # name'"),
        ("t # 0 a b", "line 1: expected 't # name'"),
        ("t # 0\nv 1 C", "line 2: expected node 0 next, got 1"),
        ("t # 0\nv 0", "line 2: expected 'v node label'"),
        ("t # 0\nv x C", "line 2: expected a node number, got 'x'"),
        ("t # 0\nv \u0663 C", "line 2: expected a node number"),
        ("t # 0\nv 0 C\nv 1 C\ne 0 1", "line 4: expected 'e node node label'"),
        ("t # 0\nv 0 C\n\ne 0 1 1", "line 4: expected a node of an earlier 'v' line, got 1"),
        ("t # 0\nv 0 C\ne 0 0 1", "line 3: expected an edge between two nodes, got a loop at 0"),
        (
            "t # 0\nv 0 C\nv 1 C\ne 0 1 1\ne 1 0 2",
            "line 5: expected each edge once, but edge 0 1 is",
        ),
        ("t # 0\nv 0 C\ne -1 0 1", "line 3: expected a node number, got '-1'"),
        ("t # 0\nt # 0", "has two graphs '0'"),
    ],
)
def test_an_error_names_the_malformed_line(tmp_path, text, message):
    path = file_of(tmp_path, text)

    with pytest.raises(DataError) as caught:
        read_graphs(path)

    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_missing_or_damaged_files_are_refused(tmp_path):
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(GSPAN_TEXT.encode())[:-12])
    (tmp_path / "plain.txt.gz").write_text(GSPAN_TEXT)
    (tmp_path / "latin.txt").write_bytes(b"t # \xe9\n")

    with pytest.raises(MissingDataError, match="there is no file"):
        read_graphs(tmp_path / "none.txt")
    with pytest.raises(DataError, match="cannot be read"):
        read_graphs(tmp_path / "cut.txt.gz")
    with pytest.raises(DataError, match="cannot be read"):
        read_graphs(tmp_path / "plain.txt.gz")
    with pytest.raises(DataError, match="not UTF-8"):
        read_graphs(tmp_path / "latin.txt")
    with pytest.raises(DataError, match="cannot be opened"):
        read_graphs(tmp_path)


RING = [(0, 1), (0, 5), (1, 2), (2, 3), (3, 4), (4, 5)]


def test_nodes_are_heavy_atoms_and_edges_are_bonds():
    assert graph_from_smiles("CC(=O)C#N") == Graph(
        ["C", "C", "O", "C", "N"], [(0, 1), (1, 2), (1, 3), (3, 4)], [1, 2, 1, 3]
    )
    assert graph_from_smiles("[H]O[H].[Na+]") == Graph(["O", "Na"])


def test_bonds_of_aromatic_rings_alternate():
    benzene = graph_from_smiles("c1ccccc1")

    assert benzene.edges == tuple(RING)
    assert sorted(benzene.edge_labels) == ["1", "1", "1", "2", "2", "2"]


def test_a_molecule_with_invalid_valence_is_unchanged():
    assert graph_from_smiles("CN(C)(C)(C)C").n_edges == 5
    assert graph_from_smiles("c1cccc1").edge_labels == ("4",) * 5


@pytest.mark.parametrize(
    ("smiles", "nodes", "edges"),
    [
        ("CC(=O)C#N", "CCCNO", "1123"),
        ("C1CCCCC1", "CCCCCC", "111111"),
        ("O=C1C=CC(=O)C=C1", "CCCCCCOO", "11112222"),
    ],
)
def test_edges_have_the_orders_of_bonds(smiles, nodes, edges):
    graph = graph_from_smiles(smiles)

    assert sorted(graph.node_labels) == list(nodes)
    assert sorted(graph.edge_labels) == list(edges)


def test_atoms_without_bonds_are_nodes():
    assert graph_from_smiles("[Na].[Cl]") == Graph(["Na", "Cl"])


def test_molecules_are_read_line_by_line(tmp_path):
    path = tmp_path / "some.smi"
    path.write_text("CCO ethanol\n\nC=C\n")

    found = read_molecules(path)

    assert found.names == ["ethanol", "3"]
    assert found.graphs[0] == Graph("CCO", [(0, 1), (1, 2)])
    assert found.graphs[1] == Graph("CC", [(0, 1)], ["2"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("C a\nC(C b", "line 2: expected SMILES"),
        ("C a\nCC a", "line 2: expected a new name, got 'a' again"),
        ("C a\nC(C b\nCC c\nC(( d", r"line 2: expected SMILES, got 'C\(C'; nor can lines 4"),
        ("SMILES name\nC a", "line 1: expected SMILES, got 'SMILES'; it looks like a header"),
        ("canonical_smiles\nC a", "line 1: expected SMILES.*; it looks like a header: remove it"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(tmp_path, text, message):
    path = tmp_path / "bad.smi"
    path.write_text(text)

    with pytest.raises(DataError, match=message):
        read_molecules(path)


def test_unreadable_lines_are_skipped_and_numbered_on_request(tmp_path):
    path = tmp_path / "some.smi"
    path.write_text("SMILES name\nCCO ethanol\nC(C b\nC=C\n")
    skipped = []

    found = read_molecules(path, skipped=skipped)

    assert found.names == ["ethanol", "4"]
    assert skipped == [1, 3]
    assert list(read_fingerprints(path, skipped=[])) == found.names
    assert read_smiles(path, found.names) == ["CCO", "C=C"]


def test_compressed_molecules_are_read_up_to_a_limit(tmp_path):
    path = tmp_path / "some.smi.gz"
    path.write_bytes(gzip.compress(b"CCO ethanol\nC=C\n"))
    bomb = tmp_path / "bomb.smi.gz"
    bomb.write_bytes(gzip.compress(b"C" * 10_000_000))

    assert read_molecules(path).names == ["ethanol", "2"]
    assert read_objects(path, "fingerprints").labels == ("ethanol", "2")
    with pytest.raises(DataError, match="as a file made to exhaust memory would"):
        read_molecules(bomb)


def test_a_missing_smiles_file_is_refused(tmp_path):
    with pytest.raises(MissingDataError, match="there is no file"):
        read_molecules(tmp_path / "none.smi")


def test_fingerprints_are_those_of_the_molecule_and_not_of_its_text():
    assert fingerprint_from_smiles("OCC").tolist() == fingerprint_from_smiles("C(O)C").tolist()
    assert fingerprint_from_smiles("[H]OCC").tolist() == fingerprint_from_smiles("OCC").tolist()
    assert fingerprint_from_smiles("C").shape == (256,)


def test_a_line_without_a_fingerprint_is_named(tmp_path):
    path = tmp_path / "bad.smi"
    path.write_text("CC a\nc1cccc1 b\n")

    with pytest.raises(DataError, match=r"line 2: RDKit rejects the SMILES 'c1cccc1': .*kekulize"):
        read_fingerprints(path)


def test_without_rdkit_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "rdkit", None)

    with pytest.raises(MissingExtraError, match=r"fedneighbors\[chem\]"):
        graph_from_smiles("C")
