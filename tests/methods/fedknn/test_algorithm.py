"""Counts of DANN's first request, and certified prefixes."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedneighbors.methods.fedknn._names import Names
from fedneighbors.methods.fedknn.algorithm import (
    LAST_TIE,
    Part,
    count_certified,
    expected_counts,
    merge,
    proportional_counts,
)
from tests.naive.fedknn import certified

BOUNDS = st.dictionaries(
    st.sampled_from(["a", "b", "c", "d", "e"]),
    st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0, 1e300]), max_size=12),
    min_size=1,
)


def lowest_bounds(values, k):
    return {name: np.sort(np.array(values, float))[:k] for name, values in values.items()}


@given(BOUNDS, st.integers(1, 12))
def test_counts_are_between_one_and_k(values, k):
    counts = proportional_counts(lowest_bounds(values, k), k)

    assert sorted(counts) == sorted(values)
    assert all(1 <= count <= k for count in counts.values())


@given(BOUNDS, st.integers(1, 12))
def test_without_surplus_counts_add_up_to_k_or_one_each(values, k):
    bounds = lowest_bounds(values, k)
    n_bounds = sum(map(len, bounds.values()))

    counts = proportional_counts(bounds, k, surplus=0.0)

    total = sum(counts.values())
    assert min(k, n_bounds) <= total <= min(k, n_bounds) + len(counts)


@given(BOUNDS, st.integers(1, 12), st.floats(0, 2))
def test_surplus_never_lowers_a_count(values, k, surplus):
    bounds = lowest_bounds(values, k)

    plain = proportional_counts(bounds, k, surplus=0.0)
    more = proportional_counts(bounds, k, surplus=surplus)

    assert sum(more.values()) >= sum(plain.values())


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.integers(1, 9))
def test_exchanged_names_change_a_count_by_at_most_one(sizes, k):
    bounds = {f"p{i}": np.ones(min(size, k)) for i, size in enumerate(sizes)}
    exchanged = dict(zip(bounds, reversed(bounds.values()), strict=True))

    counts, exchanged_counts = proportional_counts(bounds, k), proportional_counts(exchanged, k)

    pairs = zip(counts.values(), reversed(exchanged_counts.values()), strict=True)
    assert all(abs(first - second) <= 1 for first, second in pairs)


@given(st.permutations(range(30)), st.integers(1, 10))
def test_without_ties_counts_equal_those_of_the_paper(values, k):
    bounds = lowest_bounds({f"p{i}": values[i::3] for i in range(3)}, k)

    assert proportional_counts(bounds, k, surplus=0.0) == expected_counts(bounds, k)


def test_ties_are_divided_among_all_providers():
    bounds = {name: np.full(16, 5.0) for name in "abcd"}

    assert expected_counts(bounds, 16) == {"a": 16, "b": 1, "c": 1, "d": 1}
    assert proportional_counts(bounds, 16, surplus=0.0) == dict.fromkeys("abcd", 4)
    assert proportional_counts(bounds, 16) == {"a": 5, "b": 5, "c": 4, "d": 4}


@given(st.data())
def test_certified_objects_are_a_prefix_of_the_result(data):
    """Providers return a part of their objects, some up to a cutoff."""
    keys = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=12))
    n_providers = data.draw(st.integers(1, 3))
    objects = [(float(distance), tie) for tie, distance in enumerate(keys)]
    parts, seen = {}, []
    for provider in range(n_providers):
        own = sorted(objects[provider::n_providers])
        n = data.draw(st.integers(0, len(own)))
        cutoff = data.draw(st.sampled_from([math.inf, 2.0, 4.0]))
        last = (cutoff, LAST_TIE)
        n = min(n, sum(key <= last for key in own))
        is_exhausted = n == sum(key <= last for key in own)
        returned = own[:n]
        parts[f"p{provider}"] = Part(
            np.array([distance for distance, _ in returned]),
            np.array([tie for _, tie in returned], np.int64),
            Names.pack(str(tie) for _, tie in returned),
            is_exhausted,
            True,
            *last,
        )
        closed = last if is_exhausted else (returned or [(-math.inf, 0)])[-1]
        seen.append((returned, closed))

    n_certified = count_certified(parts)

    assert n_certified == len(certified(seen))
    assert list(merge(parts, n_certified).ids) == [str(tie) for _, tie in certified(seen)]
    assert certified(seen) == sorted(objects)[:n_certified]


def test_an_index_that_may_miss_objects_certifies_none():
    part = Part(np.array([1.0]), np.array([0]), Names.pack(["a"]), True, False)

    assert count_certified({"p": part}) == 0
