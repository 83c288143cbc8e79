"""Generated graphs are connected, have the requested size and density, and share substructures."""

from collections import Counter

import numpy as np
import pytest

from experiments.datasets.graphs import synthetic_graphs

SETTINGS = {"mean_edges": 16.0, "density": 0.3, "n_node_labels": 6, "n_edge_labels": 2}


@pytest.fixture(scope="module")
def graphs():
    return synthetic_graphs(2000, n_patterns=20, seed=3, **SETTINGS).graphs


def reached_from_first(graph):
    reached, changed = {0}, True
    while changed:
        more = {v for edge in graph.edges if set(edge) & reached for v in edge}
        changed = not more <= reached
        reached |= more
    return len(reached)


def test_every_graph_is_connected(graphs):
    assert all(reached_from_first(graph) == graph.n_nodes for graph in graphs)


def test_sizes_and_densities_are_as_requested(graphs):
    edges = np.array([graph.n_edges for graph in graphs])
    nodes = np.array([graph.n_nodes for graph in graphs])

    # a Poisson mean of 2,000 numbers errs by .09; graphs may be a little larger than drawn
    assert 15.5 < edges.mean() < 17
    assert 0.24 < (2 * edges / (nodes * (nodes - 1))).mean() < 0.36


def test_labels_are_as_requested_lower_ones_more_frequent(graphs):
    of_nodes = Counter(label for graph in graphs for label in graph.node_labels)
    of_edges = Counter(label for graph in graphs for label in graph.edge_labels)

    assert set(of_nodes) <= set("012345")
    assert set(of_edges) == set("01")
    assert of_edges["0"] > of_edges["1"]


def neighborhoods(graph):
    """Return each node's label with the labels around it."""
    around = [[] for _ in graph.node_labels]
    for (u, v), label in zip(graph.edges, graph.edge_labels, strict=True):
        around[u].append((label, graph.node_labels[v]))
        around[v].append((label, graph.node_labels[u]))
    return {
        (own, tuple(sorted(near)))
        for own, near in zip(graph.node_labels, around, strict=True)
        if len(near) > 3
    }


def test_graphs_of_few_patterns_share_more_than_those_of_many():
    def most_frequent(n_patterns):
        found = synthetic_graphs(400, n_patterns=n_patterns, seed=0, **SETTINGS).graphs
        return Counter(n for graph in found for n in neighborhoods(graph)).most_common(1)[0][1]

    assert most_frequent(3) > 2 * most_frequent(400)


def test_a_seed_gives_the_same_graphs_and_another_seed_others():
    first, again, other = (synthetic_graphs(20, seed=seed, **SETTINGS).graphs for seed in (5, 5, 6))

    assert first == again
    assert first != other


def test_fewer_graphs_of_a_seed_are_of_the_same_kind():
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
