"""Hypothesis strategy for small graphs, and a naive conversion to arrays."""

import numpy as np
from hypothesis import strategies as st

from fedneighbors.kernels.graph_edit._search import GraphTable
from tests.naive.graph_edit import search


@st.composite
def graphs(draw, max_nodes):
    """Draw a graph (node labels, {(u, v): edge label}).

    Graphs may be empty, complete, without edges or with twins.
    """
    n = draw(st.integers(0, max_nodes))
    labels = draw(st.lists(st.integers(0, draw(st.integers(0, 3))), min_size=n, max_size=n))
    pairs = [(u, v) for u in range(n) for v in range(u + 1, n)]
    edge_label = st.integers(-draw(st.integers(0, 3)), draw(st.integers(0, 2)))
    edge_labels = draw(st.lists(edge_label, min_size=len(pairs), max_size=len(pairs)))
    return labels, {
        pair: label for pair, label in zip(pairs, edge_labels, strict=True) if label >= 0
    }


def make_table(graphs):
    """Convert graphs to the arrays that the kernels take."""
    first_node, first_arc = [0], [0]
    node_labels, targets, edge_labels, prior_twins = [], [], [], []
    for labels, edges in graphs:
        node_labels += labels
        first_node.append(len(node_labels))
        prior_twins += search.find_twins(labels, edges)
        for v in range(len(labels)):
            arcs = sorted(
                (b if a == v else a, label) for (a, b), label in edges.items() if v in (a, b)
            )
            targets += [arc[0] for arc in arcs]
            edge_labels += [arc[1] for arc in arcs]
            first_arc.append(len(targets))
    starts = [np.array(x, np.int64) for x in (first_node, first_arc)]
    node_labels, targets, edge_labels, prior_twins = (
        np.array(x, np.int32) for x in (node_labels, targets, edge_labels, prior_twins)
    )
    return GraphTable(starts[0], node_labels, starts[1], targets, edge_labels, prior_twins)
