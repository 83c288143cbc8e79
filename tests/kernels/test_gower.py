import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedneighbors.kernels import _gower as gower
from tests.naive import gower as naive

CELLS = st.sampled_from([0.0, 1.0, 2.0, 0.1, 0.3, np.nan]) | st.floats(0, 1)
WEIGHTS = st.sampled_from([0.0, 1.0, 5e-324, 0.1, 1e9]) | st.floats(0, 1e9)
# also numbers at the edge of a step or outside the range, and more categories than codes
ODD_CELLS = CELLS | st.integers(-300, 600).map(float) | st.integers(0, 508).map(lambda n: n / 508)


def compute_bounds(rows, is_category, query):
    codes = gower.encode_cells(np.ascontiguousarray(rows.T), is_category)
    bounds = gower.bound_distances(codes, is_category, query, len(rows))
    while not bounds.is_complete:
        bounds.extend(1)
    return bounds


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 6), st.integers(0, 6), st.data())
def test_distances_equal_those_of_a_loop(n_rows, n_columns, data):
    rows = data.draw(arrays(np.float64, (n_rows, n_columns), elements=CELLS))
    query = data.draw(arrays(np.float64, n_columns, elements=CELLS))
    is_category = data.draw(arrays(bool, n_columns))

    found = gower.gower_distances(np.ascontiguousarray(rows.T), is_category, query)

    assert found.tolist() == naive.gower_distances(rows, is_category, query)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 6), st.integers(0, 6), st.data())
def test_weighted_distances_equal_those_of_a_loop(n_rows, n_columns, data):
    rows = data.draw(arrays(np.float64, (n_rows, n_columns), elements=CELLS))
    query = data.draw(arrays(np.float64, n_columns, elements=CELLS))
    is_category = data.draw(arrays(bool, n_columns))
    weights = data.draw(arrays(np.float64, n_columns, elements=WEIGHTS))
    columns = np.ascontiguousarray(rows.T)

    found = gower.gower_distances(columns, is_category, query, weights=weights)
    at = gower.gower_distances(columns, is_category, query, np.arange(n_rows), weights=weights)

    assert found.tolist() == naive.gower_distances(rows, is_category, query, weights)
    assert at.tolist() == found.tolist()
    assert ((found >= 0) & (found <= 1)).all() or np.nanmax(np.c_[rows.T, query]) > 1


def test_distances_of_several_blocks_equal_those_of_a_loop():
    rng = np.random.default_rng(0)
    rows = rng.random((3000, 7))
    rows[:, 3:] = rng.integers(0, 3, (3000, 4))
    rows[rng.random((3000, 7)) < 0.2] = np.nan
    is_category = np.arange(7) >= 3

    found = gower.gower_distances(np.ascontiguousarray(rows.T), is_category, rows[5])

    assert found.tolist() == naive.gower_distances(rows, is_category, rows[5])


def test_another_number_of_cells_is_refused():
    with pytest.raises(ValueError, match="expected 2 kinds and cells, got 3 cells"):
        gower.gower_distances(np.zeros((2, 1)), np.zeros(2, bool), np.zeros(3))


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 70), st.integers(1, 6), st.data())
def test_bounds_are_those_of_a_loop_and_at_most_the_distances(n_rows, n_columns, data):
    rows = data.draw(arrays(np.float64, (n_rows, n_columns), elements=ODD_CELLS))
    query = data.draw(arrays(np.float64, n_columns, elements=ODD_CELLS))
    is_category = data.draw(arrays(bool, n_columns))

    bounds = compute_bounds(rows, is_category, query)

    assert bounds.values[:n_rows].tolist() == [
        naive.bound_distance(row, is_category, query) for row in rows
    ]
    assert (bounds.values[:n_rows] <= naive.gower_distances(rows, is_category, query)).all()
    assert np.isinf(bounds.values[n_rows:]).all()
    assert bounds.minima.tolist() == bounds.values.reshape(-1, 64).min(axis=1).tolist()


@pytest.mark.parametrize("n_columns", [1, 20, 255])
def test_bounds_are_within_two_steps_of_the_distances(n_columns):
    rng = np.random.default_rng(n_columns)
    rows = rng.random((200, n_columns))
    is_category = np.arange(n_columns) % 3 == 2
    rows[:, is_category] = rng.integers(0, 4, (200, is_category.sum()))
    rows[rng.random(rows.shape) < 0.3] = np.nan

    distances = np.array(naive.gower_distances(rows, is_category, rows[3]))
    bounds = compute_bounds(rows, is_category, rows[3]).values[:200]

    assert (bounds <= distances).all()
    assert (distances - bounds <= gower.MAX_LOSS + 2.0**-19).all()


def test_the_farthest_rows_of_the_most_columns_have_bound_1():
    n = gower.MAX_CODED_COLUMNS

    bounds = compute_bounds(np.zeros((64, n)), np.zeros(n, bool), np.ones(n))

    assert bounds.values.min() > 1 - 1.5 / 254


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 6), st.integers(0, 6), st.data())
def test_distances_at_positions_equal_those_of_all_rows(n_rows, n_columns, data):
    rows = data.draw(arrays(np.float64, (n_rows, n_columns), elements=CELLS))
    query = data.draw(arrays(np.float64, n_columns, elements=CELLS))
    is_category = data.draw(arrays(bool, n_columns))
    positions = np.array(data.draw(st.lists(st.integers(0, n_rows - 1))), np.int64)
    columns = np.ascontiguousarray(rows.T)

    found = gower.gower_distances(columns, is_category, query, positions)

    assert found.tolist() == gower.gower_distances(columns, is_category, query)[positions].tolist()
