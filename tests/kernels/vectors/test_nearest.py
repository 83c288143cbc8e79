"""The nearest rows of many queries equal those of a sort of all distances, bit for bit."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedneighbors.kernels.vectors import _nearest
from fedneighbors.kernels.vectors._lists import NearestLists
from fedneighbors.kernels.vectors._nearest import (
    HALF,
    PLAIN,
    PRODUCT,
    ROOT,
    SQUARE,
    RowSearch,
)
from fedneighbors.kernels.vectors._table import TableRows
from tests.naive.vectors import nearest as naive

KINDS = [ROOT, PLAIN, HALF, SQUARE, PRODUCT]
SCALES = (1.0, 1e-160, 1e-300, 5e-324, 1e140, 1e150)


@pytest.fixture
def products(monkeypatch):
    """Use products also for small tables."""
    monkeypatch.setattr(_nearest, "MIN_PRODUCT_CELLS", 0)
    monkeypatch.setattr(_nearest, "MIN_PRODUCT_COLUMNS", 1)


@st.composite
def searches(draw):
    """Draw rows, ranks and queries of few values, so that many distances are tied or nearly so."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n_columns = draw(st.sampled_from([1, 2, 3, 8, 9, 16, 30]))
    n_rows, scale = draw(st.integers(0, 40)), draw(st.sampled_from(SCALES))
    values = rng.normal(size=5) + draw(st.sampled_from([0.0, 1e8])) if scale == 1.0 else range(5)
    x = rng.choice(values, (n_rows, n_columns)) * scale * draw(st.sampled_from([1.0, -1.0]))
    if n_rows and draw(st.booleans()):
        x[rng.integers(n_rows)] *= 1e6  # one row far from the others
    queries = rng.choice(values, (3, n_columns)) * scale
    queries[0] = np.nextafter(queries[0], np.inf)
    return x, rng.permutation(n_rows), queries


def check_search(search, k, *, kind):
    """Compare the found rows with those of the naive version."""
    x, ranks, queries = search
    distances, positions = RowSearch.of(x, ranks, kind=kind).nearest(queries, k)
    for query, found, rows in zip(queries, distances.tolist(), positions.tolist(), strict=True):
        assert (found, rows) == naive.nearest_rows(x, ranks, query, k, kind=kind)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(searches(), st.integers(1, 45))
def test_rows_equal_those_of_a_sort_bit_for_bit(kind, search, k):
    check_search(search, k, kind=kind)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_long_lists_equal_those_of_a_sort(kind, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    n_rows, n_columns = data.draw(st.integers(60, 200)), data.draw(st.sampled_from([1, 3, 9]))
    x = rng.choice(rng.normal(size=data.draw(st.sampled_from([2, 5, 300]))), (n_rows, n_columns))
    queries = x[rng.integers(n_rows, size=3)] + rng.choice([0.0, 1e-9, 10.0], (3, 1))
    k = data.draw(st.sampled_from([1, 5, 16, 17, 64, 65, n_rows - 1, n_rows]))

    check_search((x, rng.permutation(n_rows), queries), k, kind=kind)


@pytest.mark.parametrize("k", [64, 65, 150, 199, 200])
@pytest.mark.parametrize("kind", [ROOT, HALF, SQUARE, PRODUCT])
def test_products_find_the_same_long_lists(products, kind, k):
    rng = np.random.default_rng(k)
    x = rng.choice(rng.normal(size=7), (200, 3))

    check_search((x, rng.permutation(200), x[:20] + rng.choice([0.0, 0.1], (20, 1))), k, kind=kind)


@pytest.mark.parametrize("kind", [ROOT, HALF, SQUARE, PRODUCT])
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_tiles_of_products_find_the_same_rows(products, kind, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    n_rows, scale = data.draw(st.integers(60, 400)), data.draw(st.sampled_from(SCALES))
    values = rng.normal(size=data.draw(st.sampled_from([2, 5, 300]))) * scale
    x = rng.choice(values, (n_rows, data.draw(st.sampled_from([1, 3, 9]))))
    queries = x[rng.integers(n_rows, size=20)]
    k = data.draw(st.sampled_from([1, 2, 16, 64, 65, n_rows - 1, n_rows]))

    sizes = {"_MAX_PRODUCTS": 64 * data.draw(st.sampled_from([1, 40])), "_MIN_ROOM": 0}
    with mock.patch.multiple(_nearest, **sizes):
        check_search((x, rng.permutation(n_rows), queries), k, kind=kind)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_a_larger_table_equal_a_copy(products, kind):
    rng = np.random.default_rng(4)
    table, positions = rng.normal(size=(300, 20)), rng.permutation(300)[:90]
    ranks, queries = rng.permutation(90), rng.normal(size=(20, 20))

    found = RowSearch.of(TableRows(table, positions), ranks, kind=kind).nearest(queries, 9)

    copied = RowSearch.of(table[positions], ranks, kind=kind).nearest(queries, 9)
    assert np.array_equal(found, copied)


@pytest.mark.parametrize("kind", [ROOT, HALF, SQUARE, PRODUCT])
@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(searches(), st.integers(1, 45))
def test_products_find_the_same_rows(products, kind, search, k):
    check_search(search, k, kind=kind)


@pytest.mark.parametrize("kind", [ROOT, HALF, SQUARE, PRODUCT])
@pytest.mark.parametrize("max_cells", [-1, 1 << 16])
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(searches(), st.integers(1, 45))
def test_one_query_finds_the_same_rows_in_a_scan(products, max_cells, kind, search, k):
    x, ranks, queries = search
    with mock.patch.object(_nearest, "_MAX_SCANNED_CELLS", max_cells):
        check_search((x, ranks, queries[1:2]), k, kind=kind)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([1, 2, 9, 20]), st.integers(1, 30))
def test_rows_of_several_chunks_and_tiles_are_found(kind, seed, n_columns, k):
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 9, (rng.integers(60, 130), n_columns)) * 0.1

    check_search((x, rng.permutation(len(x)), x[:4] + 0.05), k, kind=kind)


def near_ties(offset):
    """Return rows whose distances to the query differ by the last bits, far from zero."""
    rng = np.random.default_rng(3)
    x = np.full((200, 20), offset)
    x[np.arange(200), rng.integers(0, 20, 200)] += rng.choice([1.0, -1.0], 200)
    x += rng.choice([0.0, np.spacing(offset)], x.shape)
    return x, rng.permutation(200), np.full((3, 20), offset)


@pytest.mark.parametrize("offset", [1.0, 1e8])
def test_products_separate_rows_that_differ_in_the_last_bits(products, offset):
    check_search(near_ties(offset), 7, kind=SQUARE)


def test_products_without_their_error_bound_miss_rows(products, monkeypatch):
    rng = np.random.default_rng(3)
    directions = rng.normal(size=(200, 20))
    x = 3.0 + directions / np.linalg.norm(directions, axis=1, keepdims=True)
    x[::2] = rng.normal(size=(100, 20))  # so that the center is far from the query
    search = x, rng.permutation(200), np.full((3, 20), 3.0)

    with monkeypatch.context() as patch:
        patch.setattr(RowSearch, "_rounding", 0.0)
        with pytest.raises(AssertionError):
            check_search(search, 7, kind=SQUARE)

    check_search(search, 7, kind=SQUARE)


def turned_rows(offset):
    """Return rows far from zero that have almost the same inner product with a query."""
    rng = np.random.default_rng(3)
    query = rng.normal(size=20)
    directions = rng.normal(size=(200, 20))
    directions -= np.outer(directions @ query, query) / (query @ query)
    return offset + directions, rng.permutation(200), np.tile(query, (3, 1))


@pytest.mark.parametrize("offset", [0.0, 3.0, 1e8, 1e15])
def test_products_separate_inner_products_that_differ_in_the_last_bits(products, offset):
    check_search(turned_rows(offset), 7, kind=PRODUCT)


def test_products_verify_few_rows_far_from_zero(products):
    rng = np.random.default_rng(5)
    x = 1e8 + rng.normal(size=(500, 20))
    rows = RowSearch.of(x, np.arange(500), kind=ROOT)._centered

    assert (rows.errors < 1e-5 * rows.bounds).all()


def test_blocks_of_queries_give_the_same_rows(products, monkeypatch):
    rng = np.random.default_rng(1)
    x, queries = rng.normal(size=(50, 20)), rng.normal(size=(30, 20))
    search = RowSearch.of(x, np.arange(50), kind=ROOT)
    expected = search.nearest(queries, 7)

    monkeypatch.setattr(_nearest, "_MAX_PRODUCTS", 200)

    assert np.array_equal(search.nearest(queries, 7), expected)


@pytest.mark.parametrize("k", [3, 40])
def test_rows_that_products_cannot_separate_are_scanned(products, k):
    x = np.full((50, 20), 0.1)
    x[::7] += 1.0
    search = RowSearch.of(x, np.random.default_rng(2).permutation(50), kind=ROOT)
    queries = np.repeat(x[1:3], 20, axis=0)

    check_search((x, search.ranks, queries), k, kind=ROOT)

    search.nearest(queries, k)
    assert "_scan" in vars(search)


def draw_part(rng, size, first_row):
    """Return an owner's lists of two queries, and the tie keys and rows of its objects."""
    n_objects = size + int(rng.integers(0, 3))
    ties, rows = rng.permutation(n_objects) // 2 * 1000 + np.arange(n_objects), np.arange(n_objects)
    distances = np.sort(rng.integers(-2, 2, (2, size)), axis=1).astype(float)
    positions = np.empty((2, size), np.int32)
    for query in range(2):
        objects = rng.permutation(n_objects)[:size]
        positions[query] = objects[np.lexsort([ties[objects]])]
        for value in np.unique(distances[query]):  # tied objects ascend in their keys
            tied = distances[query] == value
            chosen = positions[query, tied]
            positions[query, tied] = chosen[np.argsort(ties[chosen])]
    return distances, positions, ties, rows + first_row


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 12))
def test_merged_lists_equal_a_sort(seed, k):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, rng.choice([5, 40]), 3)
    parts = [draw_part(rng, size, 100 * i) for i, size in enumerate(sizes)]

    lists = NearestLists(2, min(k, sum(sizes)))
    for distances, positions, ties, rows in parts:
        lists.add(distances, positions, ties=ties, rows=rows)

    for query in range(2):
        entries = [
            list(zip(d[query].tolist(), t[p[query]].tolist(), r[p[query]].tolist(), strict=True))
            for d, p, t, r in parts
        ]
        found = lists.distances[query].tolist(), lists.rows[query].tolist()
        assert found == naive.merge_lists(entries, k)


@pytest.mark.parametrize(
    ("distances", "positions", "message"),
    [
        ([1.0, np.nan], [0, 1], "not finite numbers"),
        ([1.0, np.inf], [0, 1], "not finite numbers"),
        ([-np.inf, 1.0], [0, 1], "not finite numbers"),
        ([-1.0, -1.5], [0, 1], "ascending"),
        ([1.0, 2.0], [0, 3], "does not have"),
        ([1.0, 2.0], [-1, 0], "does not have"),
        ([2.0, 1.0], [0, 1], "ascending"),
        ([1.0, 1.0], [1, 0], "ascending"),
        ([1.0, 2.0], [1, 1], "twice"),
    ],
)
def test_invalid_lists_are_rejected(distances, positions, message):
    keys = np.arange(3)
    part = np.array([distances]), np.array([positions], np.int32)

    with pytest.raises(ValueError, match=message):
        NearestLists(1, 2).add(*part, ties=keys, rows=keys)
