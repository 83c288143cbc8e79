"""Best splits equal those of the exhaustive search, on ties and extreme sums too."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.kernels.boosting._splits import NodeSplit, find_split
from tests.naive.boosting import splits as naive
from tests.seeds import cases

GRADIENTS = st.sampled_from([0, 1, -1, 3, 2**55, -(2**55), 2**53 + 1]) | st.integers(-99, 99)
HESSIANS = st.sampled_from([0, 1, 2, 2**55]) | st.integers(0, 99)
ROWS = st.lists(
    st.tuples(
        st.tuples(GRADIENTS, HESSIANS), st.lists(st.integers(0, 255), min_size=4, max_size=4)
    ),
    max_size=12,
)


@st.composite
def nodes(draw):
    """Draw the histogram of rows, each of which has a bin in every column."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))  # 1: missing cells only
    rows = draw(ROWS)
    starts = np.cumsum([0, *sizes])
    histogram = np.zeros((starts[-1], 3), np.int64)
    for (gradient, hessian), places in rows:
        for start, size, place in zip(starts, sizes, places, strict=False):
            histogram[start + place % size] += gradient, hessian, 1
    return histogram, starts


@settings(max_examples=cases(250), deadline=None)
@given(
    nodes(),
    st.sampled_from([0.0, 1.0, 0.1, 1e300, 5e-324]),
    st.sampled_from([1, 2, 50]),
    st.integers(1, 3),
)
def test_splits_match_naive_version_bit_for_bit(node, l2, min_hessian, min_rows):
    histogram, starts = node
    limits = {"l2": l2, "min_hessian": min_hessian, "min_rows": min_rows}

    found = find_split(histogram, starts, **limits)

    assert found == naive.find_split(histogram.tolist(), starts.tolist(), **limits)


def cells(*columns):
    """Return a histogram of (gradient, rows) by bin, with Hessians equal to rows."""
    flat = [(g, n, n) for column in columns for g, n in column]
    return np.array(flat, np.int64), np.cumsum([0, *map(len, columns)])


def search(*columns, min_rows=1):
    return find_split(*cells(*columns), l2=0.0, min_hessian=1, min_rows=min_rows)


def test_missing_cells_go_to_the_better_side():
    column = [(-4, 2), (4, 2), (-6, 3)]

    assert search(column) == NodeSplit(28.0 - 36 / 7, 0, 0, True, -10, 5, 5)


def test_missing_cells_can_be_split_from_all_values():
    found = search([(1, 1), (3, 3), (-8, 2)])

    assert (found.bin, found.missing_left, found.n_rows) == (1, False, 4)


def test_ties_go_to_the_lower_column_and_bin():
    column = [(-2, 2), (0, 0), (2, 2), (0, 0)]

    assert search(column, column)[1:4] == (0, 0, False)


def test_constant_columns_have_no_split():
    assert search([(5, 9), (0, 0)]) is None
    assert search([(0, 0), (5, 9)]) is None


def test_rounding_alone_is_no_gain():
    # equal means on both sides: the gain is 0 up to rounding
    assert search([(10**15 + 1, 3), (10**15 + 1, 3), (0, 0)]) is None
    assert find_split(*cells([(1, 3), (2, 6), (0, 0)]), l2=0.0, min_hessian=1, min_rows=1) is None
