import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.kernels.vectors import _duplicates as duplicates
from tests.naive.vectors import duplicates as naive


@st.composite
def tables(draw):
    """Draw rows with many equal ones, and ranks."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    dtype = draw(st.sampled_from([np.float64, np.float32, np.uint8]))
    n_columns, n_rows = draw(st.integers(1, 17)), draw(st.integers(1, 60))
    few = rng.integers(0, 3, (draw(st.integers(1, 4)), n_columns)).astype(dtype)
    rows = few[rng.integers(0, len(few), n_rows)]
    if dtype != np.uint8 and draw(st.booleans()):
        rows[rng.integers(n_rows)] *= -1  # zeros of both signs
    return rows, rng.permutation(n_rows)


@settings(max_examples=300, deadline=None)
@given(tables())
def test_groups_match_naive_version(table):
    rows, ranks = table
    expected = naive.group_rows(rows, ranks)

    distinct = duplicates.DistinctRows.find(rows, ranks)

    if distinct is None:
        assert len(expected) > 0.9 * len(rows)
        return
    every = np.arange(len(distinct.first))
    found = [distinct.members(every[i : i + 1])[0].tolist() for i in every]
    assert sorted(found) == expected
    assert distinct.first.tolist() == [rows[0] for rows in found]
    assert [found[group].count(row) for row, group in enumerate(distinct.groups)] == [1] * len(rows)
    positions, counts = distinct.members(every[::-1])
    assert positions.tolist() == [row for rows in found[::-1] for row in rows]
    assert counts.tolist() == [len(rows) for rows in found[::-1]]


@settings(max_examples=300, deadline=None)
@given(tables(), st.integers(1, 70), st.integers(0, 2**32))
def test_lists_of_rows_match_naive_version(table, k, seed):
    rows, ranks = table
    distinct = duplicates.DistinctRows.find(rows, ranks)
    if distinct is not None:
        check_list(distinct, ranks, k, seed)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 700))
def test_long_lists_of_tied_groups_match_naive_version(seed, k):
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, rng.integers(1, 90), (600, 1)).astype(float)
    ranks = rng.permutation(600)

    check_list(duplicates.DistinctRows.find(rows, ranks), ranks, k, seed)


def check_list(distinct, ranks, k, seed):
    """Compare the list of a query with a sort; distances have few values."""
    of_group = np.random.default_rng(seed).integers(0, 3, len(distinct.first)).astype(float)
    order = np.lexsort((ranks[distinct.first], of_group))[:k]

    distances, positions = distinct.list_members(of_group[order][None], order[None], k)

    expected = naive.nearest_rows(of_group[distinct.groups].tolist(), ranks, k)
    assert (distances[0].tolist(), positions[0].tolist()) == expected


def test_different_rows_have_different_hashes():
    rng = np.random.default_rng(0)
    rows = np.unique(rng.integers(0, 4, (20_000, 9)).astype(float), axis=0)

    assert len(np.unique(duplicates.hash_rows(rows))) == len(rows)
