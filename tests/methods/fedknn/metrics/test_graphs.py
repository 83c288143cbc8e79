import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.datasets._graphs import Graph
from fedneighbors.methods.fedknn.metrics._graphs import GraphEditMetric
from tests.methods.fedknn.metrics.brute_force import searches
from tests.naive.graph_edit import bounds as naive_bounds
from tests.naive.graph_edit import graphs as ged_graphs
from tests.naive.graph_edit import search as naive
from tests.seeds import cases

SMALL = ged_graphs.graphs(5).map(
    lambda pair: Graph([f"n{k}" for k in pair[0]], pair[1], [f"e{k}" for k in pair[1].values()])
)


def to_naive(graph):
    """Return the graph in the form of the naive functions."""
    return list(graph.node_labels), dict(zip(graph.edges, graph.edge_labels, strict=True))


@settings(max_examples=cases(200), deadline=None)
@given(searches(objects=SMALL, queries=SMALL))
def test_search_equals_brute_force(search):
    search.assert_equals_brute_force(GraphEditMetric())


@settings(max_examples=cases(200), deadline=None)
@given(SMALL, SMALL)
def test_a_distance_equals_the_naive_one(first, second):
    distance = GraphEditMetric().distance(first, second)

    assert distance == naive.edit_distance(to_naive(first), to_naive(second))
    assert distance == GraphEditMetric().distance(second, first)


@settings(max_examples=200, deadline=None)
@given(st.lists(SMALL, min_size=1, max_size=6), SMALL)
def test_bounds_equal_the_naive_ones(objects, query):
    index = GraphEditMetric().index(objects, ranks=np.arange(len(objects)))

    bounds = index.open(query).bounds()

    assert bounds.tolist() == [
        naive_bounds.bound_distance(to_naive(query), to_naive(item)) for item in objects
    ]


def chain(n):
    return Graph(["C"] * n, [(v, v + 1) for v in range(n - 1)])


def random_molecules(n, seed):
    rng = np.random.default_rng(seed)
    molecules = []
    for _ in range(n):
        size = int(rng.integers(13, 17))
        edges = [(int(rng.integers(max(0, v - 3), v)), v) for v in range(1, size)]
        bonds = rng.choice(["1", "1", "2"], len(edges)).tolist()
        molecules.append(Graph(rng.choice(["C", "C", "C", "N", "O"], size).tolist(), edges, bonds))
    return molecules


def test_a_deadline_returns_a_certified_prefix():
    objects = random_molecules(16, seed=0)
    index = GraphEditMetric().index(objects, ranks=np.arange(16)[::-1])
    unlimited = index.open(objects[3]).next(6)
    session = index.open(objects[3])

    parts, frontiers = [], []
    while sum(map(len, parts)) < 6:
        batch = session.next(6 - sum(map(len, parts)), deadline_s=0.0)
        assert batch.n_certified == len(batch.positions)
        parts.append(batch.positions)
        frontiers.append(batch.frontier)

    assert np.concatenate(parts).tolist() == unlimited.positions.tolist()
    assert len(parts) > 1
    assert frontiers == [*sorted(frontiers[:-1]), 0.0]
    assert unlimited.distances[0] == 0


def test_a_count_does_not_change_the_next_batch():
    objects = random_molecules(30, seed=1)
    index = GraphEditMetric().index(objects, ranks=np.arange(30))
    at_once = index.open(objects[0]).next(5)
    session = index.open(objects[0])

    first = session.next(2)
    n_within = session.count(at_once.distances[3])
    second = session.next(3)

    assert [*first.positions, *second.positions] == at_once.positions.tolist()
    assert n_within >= 4


def test_unknown_labels_match_nothing():
    index = GraphEditMetric().index([chain(3)], ranks=np.zeros(1, np.int64))

    batch = index.open(Graph(["X", "X", "X"], [(0, 1), (1, 2)], ["7", "7"])).next(1)

    assert batch.distances.tolist() == [5.0]


def test_a_query_larger_than_every_object_is_searched():
    index = GraphEditMetric().index([chain(2), Graph([])], ranks=np.arange(2))

    batch = index.open(chain(12)).next(2)

    assert batch.positions.tolist() == [0, 1]
    assert batch.distances.tolist() == [20.0, 23.0]


def test_an_empty_table_is_exhausted_at_once():
    session = GraphEditMetric().index([], ranks=np.empty(0, np.int64)).open(chain(3))

    batch = session.next(4)

    assert batch.exhausted
    assert batch.positions.tolist() == []
    assert session.count(100) == 0


@pytest.mark.parametrize("invalid", [None, 3, ([], [])])
def test_an_error_of_an_invalid_graph_gives_its_position(invalid):
    with pytest.raises(TypeError, match="expected a Graph or SMILES as object 1"):
        GraphEditMetric().index([chain(1), invalid], ranks=np.arange(2))
    with pytest.raises(TypeError, match="expected a Graph or SMILES as the query"):
        GraphEditMetric().index([chain(1)], ranks=np.arange(1)).open(invalid)


def test_a_wrong_number_of_ranks_is_refused():
    with pytest.raises(ValueError, match="expected 1 integer ranks"):
        GraphEditMetric().index([chain(1)], ranks=np.arange(2))
