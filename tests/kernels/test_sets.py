import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.kernels._sets import count_holders, make_keys, measure_sets
from tests.naive import sets as naive

SETS = st.lists(st.sets(st.integers(0, 8)), max_size=8)


def count_in_steps(sets, query, budget):
    holders = [[i for i, item in enumerate(sets) if element in item] for element in range(9)]
    starts = np.cumsum([0, *map(len, holders)])
    flat = np.array([i for item in holders for i in item], np.uint32)
    elements = np.array(sorted(query), np.int64)
    common, place, n_calls = np.zeros(len(sets), np.int32), np.zeros(3, np.int64), 0
    touched = np.empty(len(sets), np.uint32)
    while place[0] < len(elements):
        count_holders(flat, starts, elements, place, common, touched, budget)
        n_calls += 1
    return common, touched[: place[2]], n_calls


@settings(max_examples=300, deadline=None)
@given(SETS, st.sets(st.integers(0, 8)), st.sampled_from([1, 2, 5, 1000]))
def test_common_elements_equal_the_naive_ones_in_any_steps(sets, query, budget):
    common, touched, n_calls = count_in_steps(sets, query, budget)

    expected = naive.common_elements(sets, query)
    assert common.tolist() == expected
    assert touched.tolist() == naive.touched(sets, query)
    # elements without sets cost nothing, but at the end of the budget they wait for the next call
    assert n_calls <= sum(expected) // budget + len(query) + 1


@settings(max_examples=300, deadline=None)
@given(SETS, st.sets(st.integers(0, 8)))
def test_distances_equal_the_naive_ones(sets, query):
    common = np.array(naive.common_elements(sets, query), np.int32)
    sizes = np.array([len(item) for item in sets], np.int32)
    positions = np.flatnonzero(common)[::-1].copy()
    distances = np.empty(len(positions))

    measure_sets(common, sizes, len(query), positions, distances)

    expected = naive.distances(sets, query)
    assert distances.tolist() == [expected[position] for position in positions]


def test_two_empty_sets_with_an_uncounted_element_have_distance_0():
    distances = np.empty(1)

    measure_sets(np.ones(1, np.int32), np.zeros(1, np.int32), 0, np.zeros(1, np.int64), distances)

    assert distances.tolist() == [0.0]


@st.composite
def measured_sets(draw):
    """Draw distances of unions of up to 2**u - 1 elements, many of them close, and u."""
    n_bits = draw(st.integers(1, 26))
    unions = draw(st.lists(st.integers(max(1, 2**n_bits - 5), 2**n_bits - 1), min_size=1))
    share = draw(st.floats(0, 1))
    offsets = st.integers(-1, 1)
    return [min(max(round(share * n) + draw(offsets), 0), n) / n for n in unions], n_bits


@settings(max_examples=300, deadline=None)
@given(measured_sets(), st.randoms(use_true_random=False))
def test_keys_sort_like_pairs_of_distance_and_position(measured, random):
    distances, n_bits = measured
    positions = random.sample(range(max(len(distances), 64)), len(distances))
    keys = np.empty(len(distances), np.int64)

    scale, position_bits = 2.0 ** (2 * n_bits + 1), max(positions).bit_length()
    make_keys(np.array(distances), np.array(positions, np.uint32), scale, position_bits, keys)

    assert np.argsort(keys).tolist() == naive.order(distances, positions)
    assert (keys & (2**position_bits - 1)).tolist() == positions
