"""The nearest rows of many queries equal those of a sort of all distances, bit for bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.kernels.vectors._nearest import (
    HALF,
    MIN_PRODUCT_COLUMNS,
    PLAIN,
    ROOT,
    RowSearch,
    merge_nearest,
)
from tests.naive.vectors import nearest as naive

KINDS = [ROOT, PLAIN, HALF]
SCALES = (1.0, 1e-160, 1e-300, 5e-324, 1e140)


@st.composite
def searches(draw):
    """Draw rows, ranks and queries of few values, so that many distances are tied or nearly so."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n_columns = draw(st.sampled_from([1, 2, 9, MIN_PRODUCT_COLUMNS, 30]))
    n_rows, scale = draw(st.integers(0, 40)), draw(st.sampled_from(SCALES))
    values = rng.normal(size=5) + draw(st.sampled_from([0.0, 1e8])) if scale == 1.0 else range(5)
    x = rng.choice(values, (n_rows, n_columns)) * scale
    queries = rng.choice(values, (3, n_columns)) * scale
    queries[0] = np.nextafter(queries[0], np.inf)
    return x, rng.permutation(n_rows), queries


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(searches(), st.integers(1, 45))
def test_rows_equal_those_of_a_sort_bit_for_bit(kind, search, k):
    x, ranks, queries = search

    distances, positions = RowSearch.of(x, ranks, kind=kind).nearest(queries, k)

    for query, found, rows in zip(queries, distances.tolist(), positions.tolist(), strict=True):
        assert (found, rows) == naive.nearest_rows(x, ranks, query, k, kind=kind)


def test_blocks_of_queries_give_the_same_rows(monkeypatch):
    rng = np.random.default_rng(1)
    x, queries = rng.normal(size=(50, 20)), rng.normal(size=(30, 20))
    search = RowSearch.of(x, np.arange(50), kind=ROOT)
    expected = search.nearest(queries, 7)

    monkeypatch.setattr("fedneighbors.kernels.vectors._nearest._MAX_PRODUCTS", 200)

    assert np.array_equal(search.nearest(queries, 7), expected)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 12))
def test_merged_lists_equal_a_sort(seed, k):
    rng = np.random.default_rng(seed)
    parts = []
    for size in rng.integers(0, 5, 3):
        entries = np.sort(rng.integers(0, 4, (2, size)), axis=1).astype(float)
        parts.append((entries, np.tile(np.arange(size), (2, 1))))

    distances, columns = merge_nearest(parts, k)

    for query in range(2):
        lists = [list(zip(*(part[query].tolist() for part in each), strict=True)) for each in parts]
        assert (distances[query].tolist(), columns[query].tolist()) == naive.merge_nearest(lists, k)
