"""Generated graphs are connected, have the requested size and density, and share substructures."""

from collections import Counter

import numpy as np
import pytest

from experiments.datasets.graphs import synthetic_graphs

SETTINGS = {"mean_edges": 16.0, "density": 0.3, "n_node_labels": 6, "n_edge_labels": 2}


@pytest.fixture(scope="module")
def graphs():
    return synthetic_graphs(2000, n_patterns=20, seed=3, **SETTINGS).graphs


def count_reachable(graph):
    reached, changed = {0}, True
    while changed:
        reachable = {v for edge in graph.edges if set(edge) & reached for v in edge}
        changed = not reachable <= reached
        reached |= reachable
    return len(reached)


def test_every_graph_is_connected(graphs):
    assert all(count_reachable(graph) == graph.n_nodes for graph in graphs)


def test_sizes_and_densities_are_as_requested(graphs):
    edges = np.array([graph.n_edges for graph in graphs])
    nodes = np.array([graph.n_nodes for graph in graphs])

    # the standard error of the mean is .09; graphs may be larger than the number drawn
    assert 15.5 < edges.mean() < 17
    assert 0.24 < (2 * edges / (nodes * (nodes - 1))).mean() < 0.36


def test_lower_labels_are_more_frequent(graphs):
    node_counts = Counter(label for graph in graphs for label in graph.node_labels)
    edge_counts = Counter(label for graph in graphs for label in graph.edge_labels)

    assert set(node_counts) <= set("012345")
    assert set(edge_counts) == set("01")
    assert edge_counts["0"] > edge_counts["1"]


def neighborhoods(graph):
    """Return each node's label with the labels around it."""
    neighbors = [[] for _ in graph.node_labels]
    for (u, v), label in zip(graph.edges, graph.edge_labels, strict=True):
        neighbors[u].append((label, graph.node_labels[v]))
        neighbors[v].append((label, graph.node_labels[u]))
    return {
        (label, tuple(sorted(pairs)))
        for label, pairs in zip(graph.node_labels, neighbors, strict=True)
        if len(pairs) > 3
    }


def test_fewer_patterns_give_more_common_substructures():
    def most_frequent(n_patterns):
        graphs = synthetic_graphs(400, n_patterns=n_patterns, seed=0, **SETTINGS).graphs
        return Counter(n for graph in graphs for n in neighborhoods(graph)).most_common(1)[0][1]

    assert most_frequent(3) > 2 * most_frequent(400)


def test_a_seed_gives_the_same_graphs_and_another_seed_others():
    first, again, other = (synthetic_graphs(20, seed=seed, **SETTINGS).graphs for seed in (5, 5, 6))

    assert first == again
    assert first != other


def test_names_of_graphs_are_distinct():
    assert len(set(synthetic_graphs(50, seed=0, **SETTINGS).names)) == 50


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_graphs", 0),
        ("mean_edges", 0.5),
        ("mean_edges", float("inf")),
        ("density", 0.0),
        ("density", 1.1),
        ("n_node_labels", 0),
        ("n_edge_labels", 0),
        ("n_patterns", 0),
        ("seed", -1),
    ],
)
def test_an_argument_out_of_range_is_named(name, value):
    settings = {"n_graphs": 5, "seed": 0, name: value}

    with pytest.raises(ValueError, match="seed" if name == "seed" else name):
        synthetic_graphs(**settings)
