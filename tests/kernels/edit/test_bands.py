import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.kernels.edit._bands import (
    LIMIT,
    PIECE_LENGTH,
    WITHIN,
    KnownDistances,
    OpenBand,
    Strings,
    bound_bands,
    count_pieces,
    count_value,
    init_state,
    verify_bands,
)
from tests.naive.edit import bands as naive
from tests.seeds import cases

UNKNOWN = np.iinfo(np.int32).max
LENGTHS = st.one_of(st.integers(0, 12), st.sampled_from([63, 64, 65, 127, 128, 130]))


@st.composite
def searches(draw):
    """Draw a query and strings that are random, edited or shifted."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n_letters = draw(st.sampled_from([1, 2, 4, 40]))
    query = rng.integers(1, n_letters + 1, draw(LENGTHS)).tolist()
    strings = []
    for kind in draw(st.lists(st.sampled_from(["random", "edited", "shifted"]), max_size=5)):
        if kind == "random":
            strings.append(rng.integers(1, n_letters + 1, draw(LENGTHS)).tolist())
        elif kind == "shifted":
            cut = draw(st.integers(0, 70))
            strings.append(query[cut:] + query[:cut])
        else:
            strings.append(edit_string(query, draw(st.integers(0, 20)), n_letters, rng))
    return query, strings


def edit_string(query, n_edits, n_letters, rng):
    string = list(query)
    for _ in range(n_edits):
        position = int(rng.integers(0, len(string) + 1))
        letters = rng.integers(1, n_letters + 1, rng.integers(0, 3)).tolist()
        string[position : position + 1] = letters
    return string


def make_strings(lists):
    codes = np.array([code for letters in lists for code in letters], np.int32)
    return Strings(codes, np.cumsum([0, *map(len, lists)]))


def compute_bounds(query, strings):
    counts = count_pieces(make_strings([query]))[0]
    lengths = np.array([len(string) for string in strings], np.int64)
    return bound_bands(count_pieces(make_strings(strings)), lengths, counts, len(query))


def verify(
    query, strings, *, limit, wanted=10**6, order=None, bounds=None, budget=2**62, n_calls=1
):
    letters, indices = np.unique(np.array(query, np.int64), return_inverse=True)
    letter_of = np.full(100, -1, np.int32)
    letter_of[letters] = np.arange(len(letters))
    largest = max([len(query), *map(len, strings)])
    tally = np.zeros(largest + 1, np.int64)
    state = init_state(tally, limit=min(limit, largest), wanted=wanted)
    bounds = np.zeros(len(strings), np.int32) if bounds is None else bounds
    distances = np.full(len(strings), UNKNOWN, np.int32)
    order = np.arange(len(strings)) if order is None else order
    coded_query, known = (letter_of, indices), KnownDistances(distances, tally, state)
    table, band, n_processed = make_strings(strings), OpenBand.of(len(query)), 0
    for _ in range(n_calls):
        left = order[n_processed:]
        n_processed += verify_bands(table, left, coded_query, bounds, known, band, budget)
    return n_processed, bounds, distances, state


@settings(max_examples=cases(150), deadline=None)
@given(searches(), st.one_of(st.integers(0, 10), st.integers(0, 140)))
def test_distances_within_limit_match_naive_version(search, limit):
    query, strings = search

    _, bounds, distances, _ = verify(query, strings, limit=limit)

    limit = min(limit, max([len(query), *map(len, strings)]))
    for string, bound, distance in zip(strings, bounds, distances.tolist(), strict=True):
        expected = naive.distance_within(query, string, limit)
        assert (bound, distance) == (
            (limit + 1, UNKNOWN) if expected is None else (expected, expected)
        )


def test_an_interrupted_comparison_is_resumed_after_64_columns():
    rng = np.random.default_rng(0)
    query = rng.integers(1, 5, 300).tolist()
    strings = [edit_string(query, n, 4, rng) for n in (3, 40, 90)]

    in_steps = [verify(query, strings, limit=200, budget=1, n_calls=n) for n in (1, 3, 18)]

    expected = [naive.edit_distance(query, string) for string in strings]
    assert [steps[0] for steps in in_steps] == [0, 0, 3]
    assert in_steps[-1][2].tolist() == expected


@settings(max_examples=cases(150), deadline=None)
@given(searches())
def test_bounds_never_exceed_distance_or_exact_count_bounds(search):
    query, strings = search

    bounds = compute_bounds(query, strings).tolist()

    for string, bound in zip(strings, bounds, strict=True):
        assert abs(len(query) - len(string)) <= bound <= naive.edit_distance(query, string)
        assert bound <= naive.bound_without_buckets(query, string, PIECE_LENGTH)


def test_counts_saturate_without_overflow():
    repeated = [1] * 70_000

    bounds = compute_bounds(repeated[:10], [repeated, [1] * 66_000])

    assert count_pieces(make_strings([repeated])).max() == 65535
    assert bounds.tolist() == [69_990, 65_990]


def test_bound_equal_to_longer_length_gives_the_distance():
    bounds = np.array([3, 4], np.int32)

    n_processed, _, distances, _ = verify([1, 1, 1], [[2, 2], [2, 2, 2, 2]], limit=9, bounds=bounds)

    assert n_processed == 2
    assert distances.tolist() == [3, 4]


def test_limit_decreases_with_near_strings_and_ends_search():
    query, bounds = [1, 2, 3, 4], np.array([0, 1, 2], np.int32)

    n_processed, _, distances, state = verify(
        query, [[1, 2, 3, 4], [1, 2, 3], [1, 2]], limit=4, wanted=1, bounds=bounds
    )

    assert (n_processed, state[LIMIT]) == (1, 0)
    assert distances.tolist() == [0, UNKNOWN, UNKNOWN]


def test_verification_stops_when_budget_is_spent():
    n_processed, _, distances, _ = verify([1, 2, 3], [[1, 2], [1]], limit=3, budget=1)

    assert n_processed == 1
    assert distances.tolist() == [1, UNKNOWN]


VALUES = st.lists(st.integers(0, 12), max_size=40)


@settings(max_examples=300, deadline=None)
@given(VALUES, VALUES, st.integers(-1, 12), st.integers(1, 20))
def test_limit_is_always_the_kth_smallest_value(before, after, limit, wanted):
    tally = np.bincount(np.array(before, np.int64), minlength=13)

    state = init_state(tally, limit=limit, wanted=wanted)

    assert state[LIMIT] == naive.kth_smallest(before, limit, wanted)
    counted = list(before)
    for value in after:
        count_value(tally, state, value)
        counted.append(value)
        assert state[LIMIT] == naive.kth_smallest(counted, limit, wanted)
        assert state[WITHIN] == sum(value <= state[LIMIT] for value in counted)
    assert tally.tolist() == np.bincount(counted, minlength=13).tolist()
