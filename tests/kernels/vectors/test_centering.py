"""Rows are skipped only if they are farther than others, whatever their magnitudes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.kernels.vectors._centering import CenteredRows
from tests.naive.vectors.distances import negative_products

N_COMPARED = 200
TERMS = {"rows", "query", "center"}


def skips_too_much(rows, query, terms=TERMS):
    """Return whether a bound puts a row behind one that is not nearer."""
    rounding = 2 * (rows.shape[1] + 8) * 2.0**-24  # as in RowSearch
    centered = CenteredRows(rows, rounding, of_products=True)
    scaled, (query_error,) = centered.center(query[np.newaxis])
    bounds, errors = centered.bounds, centered.errors
    if "rows" not in terms:
        bounds, errors = bounds * 0, errors * 0
    error = rounding * float((scaled.astype(float) ** 2).sum()) * ("query" in terms)
    error += query_error * ("center" in terms)
    lower = bounds - (scaled @ centered.table.T)[0]
    limits = lower + errors + error
    limits += np.abs(limits) * 2.0**-23
    distances = np.array(negative_products(rows[:N_COMPARED], query))
    is_skipped = lower[:N_COMPARED, np.newaxis] > limits[:N_COMPARED]
    return bool((is_skipped & (distances[:, np.newaxis] <= distances)).any())


@st.composite
def tables(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n_columns = draw(st.sampled_from([1, 2, 8, 20]))
    query = rng.normal(size=n_columns)
    rows = rng.normal(size=(60, n_columns)) * draw(st.sampled_from([0.0, 1e-30, 1e-6, 1.0]))
    if draw(st.booleans()):  # almost tied
        rows -= np.outer(rows @ query, query) / (query @ query)
    if draw(st.booleans()):
        rows *= rng.choice([1.0, 1e-3, 1e-20], (60, 1))
    rows += draw(st.sampled_from([0.0, 0.0, 1.0, 1e11]))
    sizes = st.sampled_from([1.0, 1e-160, 1e-300, 1e140])
    return rows * draw(sizes), query * draw(sizes)


@settings(max_examples=300, deadline=None)
@given(tables())
def test_no_row_is_skipped_that_may_be_nearer(table):
    assert not skips_too_much(*table)


def narrow_tables():
    """Yield rows and queries that leave little room for each error."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        query = rng.normal(size=2)
        across = np.array([-query[1], query[0]])
        close = rng.normal(size=(500, 1)) * across + rng.normal(size=(500, 1)) * query * 1e-7
        yield "rows", np.concatenate([close[:10], np.zeros((30_000, 2))]), query
        yield "query", np.concatenate([close, 1e3 * np.tile(across, (5, 1))]), query
        yield "center", 1 + 2.0**-36 * close, query


@pytest.mark.parametrize("term", sorted(TERMS))
def test_each_error_of_inner_products_is_needed(term):
    tables = [(rows, query) for name, rows, query in narrow_tables() if name == term]

    assert not any(skips_too_much(*table) for table in tables)
    assert any(skips_too_much(*table, terms=TERMS - {term}) for table in tables)
