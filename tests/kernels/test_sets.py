import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.kernels._sets import count_holders, measure_sets, rate_sets
from tests.naive import sets as naive

SETS = st.lists(st.sets(st.integers(0, 8)), max_size=8)


def count_in_steps(sets, query, budget):
    holders = [[i for i, item in enumerate(sets) if element in item] for element in range(9)]
    starts = np.cumsum([0, *map(len, holders)])
    flat = np.array([i for item in holders for i in item], np.int32)
    elements = np.array(sorted(query), np.int64)
    common, place, n_calls = np.zeros(len(sets), np.int32), np.zeros(2, np.int64), 0
    while place[0] < len(elements):
        count_holders(flat, starts, elements, place, common, budget)
        n_calls += 1
    return common, n_calls


@settings(max_examples=300, deadline=None)
@given(SETS, st.sets(st.integers(0, 8)), st.sampled_from([1, 2, 5, 1000]))
def test_common_elements_equal_the_naive_ones_in_any_steps(sets, query, budget):
    common, n_calls = count_in_steps(sets, query, budget)

    expected = naive.common_elements(sets, query)
    assert common.tolist() == expected
    # elements without sets cost nothing, but at the end of the budget they wait for the next call
    assert n_calls <= sum(expected) // budget + len(query) + 1


@settings(max_examples=300, deadline=None)
@given(SETS, st.sets(st.integers(0, 8)))
def test_levels_equal_the_naive_ones(sets, query):
    common = np.array(naive.common_elements(sets, query), np.int32)
    sizes = np.array([len(item) for item in sets], np.int64)
    levels, counts = np.empty(len(sets), np.uint8), np.zeros(256, np.int64)

    rate_sets(common, sizes, len(query), levels, counts)

    expected = naive.levels(sets, query)
    assert levels.tolist() == expected
    rated = [level for level, n in zip(expected, common, strict=True) if n]
    assert counts.tolist() == np.bincount(rated, minlength=256).tolist()


@settings(max_examples=300, deadline=None)
@given(SETS, st.sets(st.integers(0, 8)))
def test_distances_equal_the_naive_ones(sets, query):
    common = np.array(naive.common_elements(sets, query), np.int32)
    sizes = np.array([len(item) for item in sets], np.int64)
    positions = np.flatnonzero(common)[::-1].copy()
    distances = np.empty(len(positions))

    measure_sets(common, sizes, len(query), positions, distances)

    expected = naive.distances(sets, query)
    assert distances.tolist() == [expected[position] for position in positions]


def test_a_quotient_just_below_an_integer_is_not_rounded_up():
    unions = np.arange(2**26, 2**26 - 2000, -1)
    common = (unions * 100 - 1) // 255  # 255 common / union is just below 100
    levels, counts = np.empty(len(unions), np.uint8), np.zeros(256, np.int64)

    rate_sets(common.astype(np.int32), unions - 1 + common, 1, levels, counts)

    assert (levels == 255 * common // unions).all()
    assert levels.max() == 99
