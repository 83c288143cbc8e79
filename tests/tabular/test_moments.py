"""Mean and deviation of columns are those of rational arithmetic."""

from fractions import Fraction

import numpy as np
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from fedneighbors.tabular._schema import BLOCK_ROWS, blocks, column_moments, mean_and_deviation
from tests.naive import flynn as naive

# Integer multiples of the quantum (2**-200), so that nothing is truncated and the twin is exact.
VALUES = st.floats(-(2.0**120), 2.0**120, width=64).map(lambda v: v if abs(v) > 1e-40 else 0.0)
TABLES = arrays(np.float64, array_shapes(min_dims=2, max_dims=2, max_side=7), elements=VALUES)


def is_square_root(root, square):
    """Return whether ``root`` is within one float of the exact square root."""
    low, high = (Fraction(float(np.nextafter(root, bound))) for bound in (-np.inf, np.inf))
    return low < 0 or low * low <= square <= high * high


@given(TABLES)
def test_mean_and_deviation_are_those_of_rational_arithmetic(x):
    mean, deviation = mean_and_deviation(column_moments(x))

    for j in range(x.shape[1]):
        exact_mean, variance = naive.mean_and_variance(x[:, j])
        assert mean[j] == float(exact_mean)
        assert is_square_root(deviation[j], variance) if variance else deviation[j] == 0


def test_a_column_far_from_zero_loses_no_precision():
    rng = np.random.default_rng(0)
    x = 1e9 + 1e-3 * rng.normal(size=(1_000, 1))
    exact_mean, variance = naive.mean_and_variance(x[:, 0])

    mean, deviation = mean_and_deviation(column_moments(x))

    assert mean[0] == float(exact_mean)
    assert is_square_root(deviation[0], variance)
    assert 0.9e-3 < deviation[0] < 1.1e-3


def test_moments_of_sparse_and_dense_tables_are_equal():
    rng = np.random.default_rng(1)
    x = np.where(
        rng.random((2 * BLOCK_ROWS + 5, 3)) < 0.2, rng.normal(size=(2 * BLOCK_ROWS + 5, 3)), 0
    )

    dense, sparse = column_moments(x), column_moments(scipy.sparse.csr_array(x))

    assert len(list(blocks(x))) == 3
    assert (dense.sums == sparse.sums).all()
    assert (dense.squares == sparse.squares).all()
    assert float(naive.mean_and_variance(x[:, 0])[0]) == mean_and_deviation(dense)[0][0]
