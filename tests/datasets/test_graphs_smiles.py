import sys

import pytest

from fedneighbors.datasets._graphs import Graph, GraphSet
from fedneighbors.datasets._graphs_smiles import (
    graph_from_smiles,
    graph_to_smiles,
    read_smiles,
    write_smiles,
)
from fedneighbors.errors import DataError, MissingDataError, MissingExtraError

RING = [(0, 1), (0, 5), (1, 2), (2, 3), (3, 4), (4, 5)]


def test_heavy_atoms_and_bond_orders_make_the_graph():
    assert graph_from_smiles("CC(=O)C#N") == Graph(
        ["C", "C", "O", "C", "N"], [(0, 1), (1, 2), (1, 3), (3, 4)], [1, 2, 1, 3]
    )
    assert graph_from_smiles("[H]O[H].[Na+]") == Graph(["O", "Na"])


def test_aromatic_rings_alternate():
    benzene = graph_from_smiles("c1ccccc1")

    assert benzene.edges == tuple(RING)
    assert sorted(benzene.edge_labels) == ["1", "1", "1", "2", "2", "2"]


def test_what_has_no_accepted_valence_is_kept_as_it_stands():
    assert graph_from_smiles("CN(C)(C)(C)C").n_edges == 5
    assert graph_from_smiles("c1cccc1").edge_labels == ("4",) * 5


@pytest.mark.parametrize("smiles", ["CC(=O)C#N", "C1CCCCC1", "[Na].[Cl]", "O=C1C=CC(=O)C=C1"])
def test_a_graph_survives_its_smiles(smiles):
    graph = graph_from_smiles(smiles)

    again = graph_from_smiles(graph_to_smiles(graph))

    assert sorted(again.node_labels) == sorted(graph.node_labels)
    assert sorted(again.edge_labels) == sorted(graph.edge_labels)


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (Graph(["Xx"]), "expected the symbol of an element, got 'Xx'"),
        (Graph("CC", [(0, 1)], ["9"]), "expected a bond of order 1, 2 or 3, got '9'"),
    ],
)
def test_a_graph_that_is_no_molecule_has_no_smiles(graph, message):
    with pytest.raises(ValueError, match=message):
        graph_to_smiles(graph)


def test_a_file_is_read_and_written_by_lines(tmp_path):
    path = tmp_path / "some.smi"
    path.write_text("CCO ethanol\n\nC=C\n")

    found = read_smiles(path)
    write_smiles(tmp_path / "again.smi", found)

    assert found.names == ["ethanol", "3"]
    assert found.graphs[0] == Graph("CCO", [(0, 1), (1, 2)])
    assert [g.n_edges for g in read_smiles(tmp_path / "again.smi").graphs] == [2, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("C a\nC(C b", "line 2: expected SMILES"),
        ("C a\nCC a", "line 2: expected a new name, got 'a' again"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(tmp_path, text, message):
    path = tmp_path / "bad.smi"
    path.write_text(text)

    with pytest.raises(DataError, match=message):
        read_smiles(path)


def test_a_missing_file_is_a_typed_error(tmp_path):
    with pytest.raises(MissingDataError, match="there is no file"):
        read_smiles(tmp_path / "none.smi")


def test_an_empty_graph_is_not_written(tmp_path):
    with pytest.raises(ValueError, match="graph 'x' has no nodes"):
        write_smiles(tmp_path / "out.smi", GraphSet([Graph([])], ["x"]))


def test_without_rdkit_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "rdkit", None)

    with pytest.raises(MissingExtraError, match=r"fedneighbors\[chem\]"):
        graph_from_smiles("C")
