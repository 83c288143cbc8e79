import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.kernels.graph_edit._bounds import Counts, table_bounds
from tests.naive.graph_edit import bounds as naive
from tests.naive.graph_edit import search as naive_distance
from tests.naive.graph_edit.graphs import graphs


def counts(items, n_kinds=4, n_bonds=3, n_degrees=8):
    """Return the arrays that the kernel takes, one column per graph."""
    labels = np.array([[g[0].count(k) for g in items] for k in range(n_kinds)], np.uint16)
    bonds = [[list(g[1].values()).count(k) for g in items] for k in range(n_bonds)]
    above = [[sum(d > t for d in naive.degrees(g)) for g in items] for t in range(n_degrees)]
    sizes = [np.array([len(g[part]) for g in items], np.int32) for part in (0, 1)]
    return Counts(*sizes, labels, np.array(bonds, np.uint16), np.array(above, np.uint16))


def bounds_to(items, query):
    return table_bounds(counts(items), counts([query]))


@settings(max_examples=1_000)
@given(st.lists(graphs(7), min_size=1, max_size=5), graphs(8))
def test_bounds_match_naive_version(items, query):
    bounds = bounds_to(items, query)

    assert bounds.tolist() == [naive.bound(query, item) for item in items]


@settings(max_examples=300)
@given(graphs(5), graphs(5))
def test_bounds_never_exceed_the_distance(item, query):
    bound = bounds_to([item], query)[0]

    assert bound <= naive_distance.distance(query, item)


def test_tables_of_several_blocks_are_bounded_completely():
    items = [([0] * (i % 7), {}) for i in range(5_000)]

    bounds = bounds_to(items, ([0, 0, 0], {}))

    assert bounds.tolist() == [abs(i % 7 - 3) for i in range(5_000)]
