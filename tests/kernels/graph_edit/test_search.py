import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.kernels.graph_edit._search import find_twins, new_search, verify_many
from tests.naive.graph_edit import search as naive
from tests.naive.graph_edit.graphs import graphs, make_table
from tests.seeds import cases

UNKNOWN = 1 << 30
FOREVER = 1 << 40


def decide_all(table, query, n_graphs, tau, state, budget=None):
    """Verify all graphs at one threshold, calling until all are decided."""
    lower, upper, search = state
    position, n_found = 0, 0
    while position < n_graphs:
        position, n_more = verify_many(
            table, query, np.arange(n_graphs), tau=tau, lower=lower, upper=upper, search=search,
            start=position, budget=budget,
        )  # fmt: skip
        n_found += n_more
    return n_found


def set_up(items, query, patience=150):
    table, query_table = make_table(items), make_table([query])
    lower, upper = np.zeros(len(items), np.int32), np.full(len(items), UNKNOWN, np.int32)
    return table, query_table, (lower, upper, new_search(table, query_table, patience=patience))


BUDGETS = st.sampled_from([None, 0, 3])
PATIENCES = st.sampled_from([FOREVER, 20, 0])  # tree search only, both, branch and bound only


@settings(max_examples=cases(300))
@given(st.lists(graphs(6), min_size=1, max_size=3), graphs(6), BUDGETS, PATIENCES)
def test_rising_thresholds_give_distances_of_naive_version(items, query, budget, patience):
    table, query_table, state = set_up(items, query, patience)
    distances = [naive.edit_distance(item, query) for item in items]

    for tau in range(max(distances) + 1):
        n_found = decide_all(table, query_table, len(items), tau, state, budget)

        lower, upper, _ = state
        assert n_found == sum(distance <= tau for distance in distances)
        for high, low, distance in zip(upper, lower, distances, strict=True):
            assert high == distance if distance <= tau else tau < low <= distance


@settings(max_examples=cases(200))
@given(graphs(7), graphs(7), st.integers(0, 30), PATIENCES)
def test_decisions_at_one_threshold_match_naive_version(item, query, tau, patience):
    table, query_table, state = set_up([item], query, patience)
    distance = naive.edit_distance(item, query)

    decide_all(table, query_table, 1, tau, state)

    lower, upper, _ = state
    if distance <= tau:
        assert distance <= upper[0] <= tau
    else:
        assert tau < lower[0] <= distance


def draw_molecule(rng, n_nodes):
    """Draw a graph with chains, branches and rings, like a molecule."""
    edges = {(int(rng.integers(max(0, v - 3), v)), v): int(v % 3 == 0) for v in range(1, n_nodes)}
    edges |= {(v - 5, v): int(rng.integers(2)) for v in range(5, n_nodes, 6)}
    return rng.choice([0, 0, 0, 0, 1, 2], n_nodes).tolist(), edges


def permute_nodes(rng, graph):
    """Permute the nodes of a graph."""
    order = rng.permutation(len(graph[0])).tolist()
    edges = {tuple(sorted((order[u], order[v]))): label for (u, v), label in graph[1].items()}
    return [graph[0][order.index(v)] for v in range(len(order))], edges


def find_distance(item, query, patience=150):
    table, query_table, state = set_up([item], query, patience)
    for tau in range(100):
        if decide_all(table, query_table, 1, tau, state):
            return tau, int(state[1][0])


@pytest.mark.hypothesis
def test_distances_of_small_molecules_match_naive_version():
    rng = np.random.default_rng(0)
    for _ in range(cases(40)):
        first, second = (
            draw_molecule(rng, rng.integers(7, 9)),
            draw_molecule(rng, rng.integers(7, 10)),
        )

        by_tree, by_bounds = find_distance(first, second, FOREVER), find_distance(first, second, 0)

        assert by_tree == by_bounds == (naive.pruned_distance(first, second),) * 2


def test_both_searches_agree_on_permuted_and_swapped_molecules():
    rng = np.random.default_rng(1)
    for _ in range(100):
        first, second = (
            draw_molecule(rng, rng.integers(8, 15)),
            draw_molecule(rng, rng.integers(8, 15)),
        )

        forward = find_distance(permute_nodes(rng, first), permute_nodes(rng, second), FOREVER)
        backward = find_distance(permute_nodes(rng, second), permute_nodes(rng, first), 0)

        assert forward == backward  # the searches are not symmetric, the distance is
        assert forward[0] == forward[1]


@pytest.mark.parametrize("patience", [FOREVER, 20, 0])
def test_interrupted_pair_resumes_in_the_next_call(patience):
    rng = np.random.default_rng(1)
    first, second = draw_molecule(rng, 14), draw_molecule(rng, 15)
    distance, _ = find_distance(first, second)
    table, query_table, (lower, upper, search) = set_up([first], second, patience)
    arguments = {"lower": lower, "upper": upper, "search": search, "tau": distance}
    n_calls, position = 0, 0

    while position < 1:
        position, _ = verify_many(table, query_table, np.arange(1), budget=0, **arguments)
        n_calls += 1

    assert n_calls > (3 if patience == FOREVER else 1)
    assert upper.tolist() == [distance]


@pytest.mark.parametrize("patience", [FOREVER, 20, 0])
def test_unfinished_pair_does_not_affect_the_next_pair(patience):
    rng = np.random.default_rng(2)
    first, second = draw_molecule(rng, 14), draw_molecule(rng, 15)
    distance, _ = find_distance(first, second)
    table, query_table, (lower, upper, search) = set_up([first, second], second, patience)
    arguments = {"tau": distance - 1, "lower": lower, "upper": upper, "search": search}

    verify_many(table, query_table, np.array([0]), budget=0, **arguments)
    position, n_found = verify_many(table, query_table, np.array([1]), **arguments)

    assert (position, n_found) == (1, 1)
    assert upper.tolist() == [UNKNOWN, 0]


def test_search_stops_after_n_wanted_graphs():
    items = [([0], {}), ([1], {}), ([0], {}), ([0], {})]
    table, query_table, (lower, upper, search) = set_up(items, ([0], {}))

    position, n_found = verify_many(
        table, query_table, np.arange(4), tau=0, lower=lower, upper=upper, search=search, n_wanted=2
    )

    assert (position, n_found) == (3, 2)
    assert lower.tolist() == [0, 1, 0, 0]


@settings(max_examples=100)
@given(graphs(6), graphs(6))
def test_both_naive_versions_agree(first, second):
    assert naive.pruned_distance(first, second) == naive.edit_distance(first, second)


@settings(max_examples=100)
@given(graphs(3), graphs(3))
def test_deleting_nodes_of_the_smaller_graph_is_never_needed(first, second):
    assert naive.edit_distance(first, second) == naive.distance_with_deletions(first, second)


@pytest.mark.parametrize("n_nodes", [0, 1])
def test_distance_from_empty_or_single_node_graph(n_nodes):
    triangle = [0, 1, 1], {(0, 1): 0, (0, 2): 0, (1, 2): 1}
    table, query_table, state = set_up([triangle], ([0] * n_nodes, {}))

    decide_all(table, query_table, 1, 20, state)

    assert state[1].tolist() == [6 - n_nodes]


@settings(max_examples=cases(2_000))
@given(graphs(6), graphs(7))
def test_twins_match_naive_version(first, second):
    table = make_table([first, second])

    twins = find_twins(*table[:5])

    assert twins.tolist() == naive.find_twins(*first) + naive.find_twins(*second)


def test_twins_may_or_may_not_be_adjacent():
    benzene_like = [0, 0, 0, 0], {(0, 1): 1, (2, 3): 1, (0, 2): 0}

    twins = find_twins(
        *make_table([([5] * 3, {(0, 1): 0, (0, 2): 0, (1, 2): 0}), benzene_like])[:5]
    )

    assert twins.tolist() == [-1, 0, 1, -1, -1, -1, -1]
