import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedneighbors.datasets._graphs import Graph, GraphSet
from fedneighbors.datasets._graphs_text import read_graphs, write_graphs
from fedneighbors.errors import DataError, MissingDataError

GOOD = "t # 0 CI\nv 0 C\nv 1 O\n\ne 0 1 2\nt # 1\nt # x\nv 0 Na\n"


def file_of(folder, text, name="graphs.txt"):
    path = folder / name
    path.write_text(text)
    return path


def test_graphs_are_read_with_names_and_classes(tmp_path):
    found = read_graphs(file_of(tmp_path, GOOD))

    assert found.graphs == [Graph("CO", [(0, 1)], ["2"]), Graph([]), Graph(["Na"])]
    assert found.names == ["0", "1", "x"]
    assert found.classes == ["CI", "", ""]


@pytest.mark.parametrize("name", ["out.txt", "out.txt.gz"])
def test_what_is_written_is_read_back_equal(tmp_path, name):
    found = read_graphs(file_of(tmp_path, GOOD))

    write_graphs(tmp_path / name, found)
    again = read_graphs(tmp_path / name)

    assert vars(again) == vars(found)


WORDS = st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1, max_size=4)


@given(st.lists(WORDS, max_size=4), st.lists(WORDS, min_size=6, max_size=6), st.booleans())
def test_any_words_survive(tmp_path_factory, labels, bonds, dense):
    pairs = [(u, v) for u in range(len(labels)) for v in range(u) if dense or u == v + 1]
    graphs = GraphSet([Graph(labels, pairs, bonds[: len(pairs)])], ["name"], ["class"])
    path = tmp_path_factory.mktemp("graphs") / "one.txt"

    write_graphs(path, graphs)

    assert vars(read_graphs(path)) == vars(graphs)


def test_reading_stops_at_the_end_mark_or_when_there_are_enough(tmp_path):
    assert len(read_graphs(file_of(tmp_path, GOOD + "t # -1\nnonsense"))) == 3
    assert len(read_graphs(file_of(tmp_path, GOOD), max_graphs=2)) == 2
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
        ("t # 0\nv 0 C\n\ne 0 1 1", "line 4: expected nodes 0 to 0, got 1"),
        ("t # 0\nv 0 C\ne 0 0 1", "line 3: expected an edge between two nodes, got a loop at 0"),
        ("t # 0\nv 0 C\nv 1 C\ne 0 1 1\ne 1 0 2", "line 5: expected each edge once, got 0 1 again"),
        ("t # 0\nv 0 C\ne -1 0 1", "line 3: expected a node number, got '-1'"),
        ("t # 0\nt # 0", "names two graphs '0'"),
    ],
)
def test_a_malformed_file_is_an_error_that_names_the_line(tmp_path, text, message):
    path = file_of(tmp_path, text)

    with pytest.raises(DataError) as caught:
        read_graphs(path)

    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_files_that_are_not_there_or_damaged_are_typed_errors(tmp_path):
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(GOOD.encode())[:-12])
    (tmp_path / "plain.txt.gz").write_text(GOOD)
    (tmp_path / "latin.txt").write_bytes(b"t # \xe9\n")

    with pytest.raises(MissingDataError, match="there is no file"):
        read_graphs(tmp_path / "none.txt")
    with pytest.raises(DataError, match="cannot be read"):
        read_graphs(tmp_path / "cut.txt.gz")
    with pytest.raises(DataError, match="cannot be read"):
        read_graphs(tmp_path / "plain.txt.gz")
    with pytest.raises(DataError, match="not UTF-8"):
        read_graphs(tmp_path / "latin.txt")
    with pytest.raises(DataError, match="cannot be read"):
        read_graphs(tmp_path)


@pytest.mark.parametrize(
    ("graph", "name", "message"),
    [
        (Graph(["a b"]), "x", "without white space, got 'a b'"),
        (Graph([""]), "x", "without white space, got ''"),
        (Graph([]), "-1", "which ends a file"),
        (Graph([]), "", "without white space"),
    ],
)
def test_words_that_cannot_be_read_back_are_not_written(tmp_path, graph, name, message):
    with pytest.raises(ValueError, match=message):
        write_graphs(tmp_path / "out.txt", GraphSet([graph], [name]))

    assert not (tmp_path / "out.txt").exists()
