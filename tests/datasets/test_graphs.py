import copy

import numpy as np
import pytest

from fedneighbors.datasets._graphs import Graph, GraphSet


def test_equal_graphs_are_equal_in_whatever_order_their_edges_are_named():
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

    with pytest.raises(AttributeError, match="does not change"):
        graph.edges = ()
    assert copy.deepcopy(graph) == graph


def test_edges_without_labels_are_labelled_one():
    assert Graph([6, 6], [(0, 1)]) == Graph(["6", "6"], [(1, 0)], ["1"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["C"], [(0, 0)]), "edge 0 joins node 0 with itself"),
        ((["C", "C"], [(0, 1), (1, 0)]), "edge \\(0, 1\\) stands twice"),
        ((["C", "C"], [(0, 2)]), "edge 0 names node 2, but the nodes are 0 to 1"),
        ((["C", "C"], [(-1, 0)]), "edge 0 names node -1"),
        ((["C", "C"], [(0, 1)], ["1", "2"]), "expected one label per edge: 1, got 2"),
    ],
)
def test_what_is_no_simple_graph_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Graph(*arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([None],), "label of node 0, got NoneType"),
        (([True],), "label of node 0, got bool"),
        (([1.5],), "label of node 0, got float"),
        ((["C", "C"], [(0, 1)], [b"1"]), "label of edge 0, got bytes"),
        ((["C", "C"], [(0, 1.0)]), "whole numbers as the nodes of edge 0"),
        ((["C", "C"], [3]), "expected a pair of nodes as edge 0"),
    ],
)
def test_labels_and_nodes_of_another_kind_are_refused(arguments, message):
    with pytest.raises(TypeError, match=message):
        Graph(*arguments)


def test_a_set_of_graphs_needs_one_name_each():
    with pytest.raises(ValueError, match="same name"):
        GraphSet([Graph([]), Graph([])], ["a", "a"])
    with pytest.raises(ValueError, match="1 graphs, 2 names, 1 classes"):
        GraphSet([Graph([])], ["a", "b"], [""])
