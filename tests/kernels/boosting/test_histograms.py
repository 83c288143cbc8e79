import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedneighbors.kernels.boosting._histograms import split_rows, sum_bins
from tests.naive.boosting import histograms as naive

# 40 rows of 2**56 stay below 2**62
STEPS = st.sampled_from([0, 1, -1, 2**56, -(2**56), 2**53 + 1]) | st.integers(-(2**40), 2**40)


@st.composite
def tables(draw):
    sizes = draw(st.lists(st.sampled_from([1, 2, 3, 256]), max_size=4))
    n_rows = draw(st.integers(0, 40))
    columns = [draw(arrays(np.uint8, n_rows, elements=st.integers(0, k - 1))) for k in sizes]
    bins = np.array(columns, np.uint8).reshape(len(sizes), n_rows)
    starts = np.cumsum([0, *sizes])
    rows = draw(st.lists(st.integers(0, n_rows - 1), unique=True)) if n_rows else []
    gradients, hessians = (draw(arrays(np.int64, n_rows, elements=STEPS)) for _ in range(2))
    return bins, starts, np.array(rows, np.intp), gradients, hessians


@pytest.mark.parametrize("constant", [False, True])
@settings(max_examples=100, deadline=None)
@given(tables())
def test_histograms_match_naive_version(constant, table):
    *parts, hessians = table
    hessians = None if constant else hessians
    out = np.zeros((parts[1][-1], 3), np.int64)

    sum_bins(*parts, hessians, out=out)

    expected = naive.sum_bins(*(part.tolist() for part in parts), hessians)
    assert out.tolist() == expected


def test_sums_are_added_to_the_output():
    out = np.full((2, 3), 10, np.int64)

    sum_bins(
        np.zeros((1, 1), np.uint8), np.array([0, 2]), np.array([0]), *np.ones((2, 1), int), out=out
    )

    assert out.tolist() == [[11, 11, 11], [10, 10, 10]]


@settings(max_examples=100, deadline=None)
@given(tables(), st.integers(0, 255), st.integers(0, 255))
def test_rows_on_each_side_match_naive_version(table, last, extra):
    bins, _, rows, *_ = table
    for column in bins:
        sides = split_rows(column, rows, last=last, extra=extra)

        expected = naive.split_rows(column.tolist(), rows.tolist(), last=last, extra=extra)
        assert tuple(side.tolist() for side in sides) == expected
