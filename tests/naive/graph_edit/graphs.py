"""Strategy for small graphs, including edge cases, and a naive conversion to arrays."""

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
    bonds = st.integers(-draw(st.integers(0, 3)), draw(st.integers(0, 2)))
    drawn = draw(st.lists(bonds, min_size=len(pairs), max_size=len(pairs)))
    return labels, {pair: bond for pair, bond in zip(pairs, drawn, strict=True) if bond >= 0}


def table_of(items):
    """Convert graphs to the arrays that the kernels take."""
    first_node, first_arc = [0], [0]
    label, end, bond, twin = [], [], [], []
    for labels, edges in items:
        label += labels
        first_node.append(len(label))
        twin += search.twins(labels, edges)
        for v in range(len(labels)):
            arcs = sorted(
                (b if a == v else a, name) for (a, b), name in edges.items() if v in (a, b)
            )
            end += [arc[0] for arc in arcs]
            bond += [arc[1] for arc in arcs]
            first_arc.append(len(end))
    places = [np.array(x, np.int64) for x in (first_node, first_arc)]
    label, end, bond, twin = (np.array(x, np.int32) for x in (label, end, bond, twin))
    return GraphTable(places[0], label, places[1], end, bond, twin)
