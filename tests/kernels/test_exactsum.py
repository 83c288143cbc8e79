import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from fedneighbors.kernels._exactsum import exact_moments
from tests.naive import exactsum as naive
from tests.seeds import cases

HOSTILE = st.floats(-1e60, 1e60, allow_nan=False) | st.sampled_from(
    [0.0, -0.0, 5e-324, -5e-324, 2.0**-200, -(2.0**-200), 2.0**-253, 1.6e60, -1.6e60, 0.1, 1e16]
)


def combine_limbs(limbs):
    return [sum(int(limb) << 32 * k for k, limb in enumerate(row)) for row in limbs]


@settings(max_examples=cases(2_000), deadline=None)
@given(
    arrays(
        np.float64, array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=6), elements=HOSTILE
    )
)
def test_sums_match_rational_arithmetic(x):
    sums, squares = exact_moments(x)

    expected = naive.exact_moments(x, x.shape[1])

    assert list(zip(combine_limbs(sums), combine_limbs(squares), strict=True)) == expected


@settings(max_examples=200, deadline=None)
@given(
    arrays(np.float64, (12, 2), elements=HOSTILE),
    st.permutations(range(12)),
    st.integers(0, 12),
)
def test_limbs_of_parts_add_up_in_any_order(x, order, cut):
    whole = exact_moments(x)
    shuffled = x[list(order)]

    parts = exact_moments(shuffled[:cut]), exact_moments(shuffled[cut:])

    for pooled, first, second in zip(whole, *parts, strict=True):
        assert combine_limbs(first + second) == combine_limbs(pooled)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 2.0**200])
def test_values_out_of_range_are_rejected(value):
    with pytest.raises(ValueError, match="rescale the column"):
        exact_moments(np.array([[1.0, value]]))
