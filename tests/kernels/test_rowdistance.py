import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedneighbors.kernels.vectors import _rowdistance as rowdistance
from tests.naive import rowdistance as naive

HOSTILE = st.floats(-1e150, 1e150, allow_nan=False) | st.sampled_from(
    [0.0, -0.0, 5e-324, 1e-170, 1e16, 1e16 + 2, 0.1, 0.3, -1.0, 2.0**500]
)
NAMES = ["square_sums", "absolute_sums"]


@st.composite
def tables(draw, dtype=np.float64, elements=HOSTILE):
    n_columns = draw(st.integers(1, 35))
    shape = draw(st.integers(0, 6)), n_columns
    return (
        draw(arrays(dtype, shape, elements=elements)),
        draw(arrays(np.float64, n_columns, elements=HOSTILE)),
    )


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=500, deadline=None)
@given(tables())
def test_sums_equal_the_stated_order_of_additions_bit_for_bit(name, table):
    x, query = table

    sums = getattr(rowdistance, name)(x, query)

    assert sums.tolist() == getattr(naive, name)(x, query)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=200, deadline=None)
@given(tables(np.float32, st.floats(-(2.0**100), 2.0**100, width=32)))
def test_narrow_rows_are_widened_first(name, table):
    x, query = table

    sums = getattr(rowdistance, name)(x, query)

    assert sums.tolist() == getattr(naive, name)(x, query)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=200, deadline=None)
@given(tables(), st.lists(st.integers(0, 5), max_size=9))
def test_a_row_has_one_value_whichever_rows_are_asked_for(name, table, wanted):
    x, query = table
    positions = np.array([p for p in wanted if p < len(x)], np.int64)

    sums = getattr(rowdistance, name)(x, query, positions)

    assert sums.tolist() == getattr(rowdistance, name)(x, query)[positions].tolist()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("position", [-1, 3])
def test_a_position_outside_the_table_is_refused(name, position):
    with pytest.raises(ValueError, match="from 0 to 2"):
        getattr(rowdistance, name)(np.zeros((3, 2)), np.zeros(2), np.array([0, position]))


@pytest.mark.parametrize("name", NAMES)
def test_a_query_of_another_length_is_refused(name):
    with pytest.raises(ValueError, match=r"shape \(2,\), got \(3,\)"):
        getattr(rowdistance, name)(np.zeros((3, 2)), np.zeros(3))
