import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedneighbors.kernels import _gower as gower
from tests.naive import gower as naive

CELLS = st.sampled_from([0.0, 1.0, 2.0, 0.1, 0.3, np.nan]) | st.floats(0, 1)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 6), st.integers(0, 6), st.data())
def test_distances_equal_those_of_a_loop(n_rows, n_columns, data):
    rows = data.draw(arrays(np.float64, (n_rows, n_columns), elements=CELLS))
    query = data.draw(arrays(np.float64, n_columns, elements=CELLS))
    is_category = data.draw(arrays(bool, n_columns))

    found = gower.gower_distances(np.ascontiguousarray(rows.T), is_category, query)

    assert found.tolist() == naive.gower_distances(rows, is_category, query)


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
