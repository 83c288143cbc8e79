import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.kernels.graph_edit._bounds import Counts, table_bounds
from tests.naive.graph_edit import bounds as naive
from tests.naive.graph_edit import search as naive_search
from tests.naive.graph_edit.graphs import graphs
from tests.seeds import cases


def count_graphs(items, n_labels=4, n_edge_labels=3, n_degrees=8):
    """Return the arrays that the kernel takes, one column per graph."""
    labels = np.array([[graph[0].count(k) for graph in items] for k in range(n_labels)], np.uint16)
    edge_labels = [
        [list(graph[1].values()).count(k) for graph in items] for k in range(n_edge_labels)
    ]
    degrees = [
        [sum(d > t for d in naive.list_degrees(graph)) for graph in items] for t in range(n_degrees)
    ]
    sizes = [np.array([len(graph[part]) for graph in items], np.int32) for part in (0, 1)]
    return Counts(*sizes, labels, np.array(edge_labels, np.uint16), np.array(degrees, np.uint16))


def compute_bounds(items, query):
    return table_bounds(count_graphs(items), count_graphs([query]))


@settings(max_examples=cases(1_000))
@given(st.lists(graphs(7), min_size=1, max_size=5), graphs(8))
def test_bounds_match_naive_version(items, query):
    bounds = compute_bounds(items, query)

    assert bounds.tolist() == [naive.bound_distance(query, item) for item in items]


@settings(max_examples=300)
@given(graphs(5), graphs(5))
def test_bounds_never_exceed_the_distance(item, query):
    bound = compute_bounds([item], query)[0]

    assert bound <= naive_search.edit_distance(query, item)


def test_tables_of_several_blocks_are_bounded_completely():
    items = [([0] * (i % 7), {}) for i in range(5_000)]

    bounds = compute_bounds(items, ([0, 0, 0], {}))

    assert bounds.tolist() == [abs(i % 7 - 3) for i in range(5_000)]
