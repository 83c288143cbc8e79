from hypothesis import given, settings

from fedneighbors.kernels.graph_edit._gedtwins import find_twins
from tests.naive import gedtwins as naive
from tests.naive.ged_graphs import graphs, table_of


@settings(max_examples=2_000)
@given(graphs(6), graphs(7))
def test_twins_equal_those_of_the_slow_twin(first, second):
    table = table_of([first, second])

    found = find_twins(*table[:5])

    assert found.tolist() == naive.twins(*first) + naive.twins(*second)


def test_twins_with_and_without_an_edge_between_them_are_found():
    benzene_like = [0, 0, 0, 0], {(0, 1): 1, (2, 3): 1, (0, 2): 0}

    found = find_twins(*table_of([([5] * 3, {(0, 1): 0, (0, 2): 0, (1, 2): 0}), benzene_like])[:5])

    assert found.tolist() == [-1, 0, 1, -1, -1, -1, -1]
