import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.kernels.edit._bands import LIMIT, KnownDistances, init_state
from fedneighbors.kernels.edit._slices import OpenScan, cut_slices, locate_digits, scan_slices
from tests.naive.edit import slices as naive

UNKNOWN = np.iinfo(np.int32).max
CODES = st.one_of(st.integers(1, 2), st.integers(1, 15), st.integers(1, 2**21 - 1))


def string_lists(codes):
    return st.lists(st.lists(codes, max_size=9), min_size=1, max_size=12)


def make_slices(strings, n_bits, firsts=None):
    codes = np.array([code for string in strings for code in string], np.int32)
    offsets = np.cumsum([0, *map(len, strings)])
    firsts = np.array([0, len(strings)] if firsts is None else firsts)
    sliced = np.ones(len(firsts) - 1, bool)
    return cut_slices(codes, offsets, firsts, sliced=sliced, n_bits=n_bits)


def scan(
    slices,
    query,
    *,
    groups=None,
    bounds=None,
    wanted=10**6,
    limit=None,
    budget=2**62,
    n_calls_at_most=1,
):
    letters, indices = np.unique(np.array(query, np.int64), return_inverse=True)
    groups = np.arange(len(slices.rows)) if groups is None else groups
    bounds = np.zeros(len(groups), np.int64) if bounds is None else bounds
    distances = np.full(len(slices.lengths), UNKNOWN, np.int32)
    largest = max(len(query), int(slices.lengths.max()))
    tally = np.zeros(largest + 1, np.int64)
    state = init_state(tally, limit=largest if limit is None else limit, wanted=wanted)
    coded, known = (
        (locate_digits(letters, slices.n_bits), indices),
        KnownDistances(distances, tally, state),
    )
    open_scan, n_scanned, n_calls = OpenScan.of(len(query)), 0, 0
    while n_calls < n_calls_at_most and n_scanned < len(groups):
        left = groups[n_scanned:], bounds[n_scanned:]
        n_scanned += scan_slices(slices, *left, coded, known, open_scan, budget)
        n_calls += 1
    return n_scanned, distances, tally, state


@settings(max_examples=200, deadline=None)
@given(CODES.flatmap(lambda top: string_lists(st.integers(1, top))), st.data())
def test_distances_match_naive_version(strings, data):
    letters = sorted({0, *(code for string in strings for code in string)})
    query = data.draw(st.lists(st.sampled_from(letters), max_size=9))
    slices = make_slices(strings, n_bits=max(letters).bit_length() or 1)

    _, distances, tally, _ = scan(slices, query)

    # A letter of the query that no string has gets code 0, which no string contains.
    expected = [naive.edit_distance(query, string) for string in strings]
    assert distances.tolist() == expected
    assert tally.tolist() == np.bincount(expected, minlength=len(tally)).tolist()


def test_an_interrupted_group_is_resumed_after_each_block_of_rows():
    rng = np.random.default_rng(0)
    strings = [rng.integers(1, 5, rng.integers(250, 300)).tolist() for _ in range(20)]
    query = rng.integers(0, 5, 200).tolist()
    slices = make_slices(strings, 3, [0, 9, 20])

    first, *_ = scan(slices, query, budget=1)
    n_scanned, distances, *_ = scan(slices, query, budget=1, n_calls_at_most=10)

    # each call fills one block of 64 rows; the longest string has five blocks
    assert (first, n_scanned) == (0, 2)
    assert distances.tolist() == [naive.edit_distance(query, string) for string in strings]


@settings(max_examples=50, deadline=None)
@given(string_lists(st.integers(1, 6)))
def test_bit_planes_match_naive_version(strings):
    assert make_slices(strings, n_bits=3).planes.tolist() == naive.bit_planes(strings, 3)


def test_full_group_spanning_several_row_blocks_is_exact():
    rng = np.random.default_rng(3)
    base = rng.integers(1, 5, 150)
    lengths = rng.integers(120, 150, 520)
    strings = [np.where(rng.random(n) < 0.1, 1, base[:n]).tolist() for n in lengths]
    slices = make_slices(strings, n_bits=3, firsts=[0, 512, 520])

    _, distances, _, _ = scan(slices, base.tolist()[:131])

    sample = [0, 1, 63, 64, 65, 300, 511, 512, 519]
    expected = [naive.edit_distance(base.tolist()[:131], strings[i]) for i in sample]
    assert distances[sample].tolist() == expected


def test_scan_stops_at_first_group_bound_above_limit():
    strings = [[1, 1], [1, 2], [1, 1, 1, 1], [2] * 6]
    slices = make_slices(strings, n_bits=2, firsts=[0, 2, 3, 4])
    bounds = np.array([0, 2, 4])

    n_scanned, distances, _, state = scan(slices, [1, 1], bounds=bounds, wanted=2)

    assert (n_scanned, state[LIMIT]) == (1, 1)
    assert distances.tolist() == [0, 1, UNKNOWN, UNKNOWN]


def test_group_with_bound_equal_to_limit_is_scanned():
    slices = make_slices([[1, 2], [1, 1, 1]], n_bits=2, firsts=[0, 1, 2])

    n_scanned, distances, _, _ = scan(slices, [1, 1], bounds=np.array([0, 1]), wanted=1)

    assert n_scanned == 2
    assert distances.tolist() == [1, 1]


def test_scan_stops_when_budget_is_spent():
    strings = [[1] * n for n in (2, 3, 4)]
    slices = make_slices(strings, n_bits=1, firsts=[0, 1, 2, 3])

    n_scanned, distances, _, _ = scan(slices, [1, 1], budget=1)

    assert n_scanned == 1
    assert distances.tolist() == [0, UNKNOWN, UNKNOWN]


def test_rescanned_strings_are_not_counted_again():
    slices = make_slices([[1], [2]], n_bits=2)

    n_scanned, _, tally, state = scan(slices, [1], groups=np.array([0, 0]))

    assert n_scanned == 2
    assert tally.tolist() == [1, 1]
    assert state[LIMIT] == 1
