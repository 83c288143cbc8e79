import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedneighbors.errors import AggregationError
from fedneighbors.secure_sum._masks import (
    check_layout,
    from_cells,
    layout_of,
    modulus_bits,
    n_cells,
    to_cells,
)

DTYPES = ["u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8"]


@st.composite
def arrays_of_parties(draw):
    """Draw arrays of one layout for several parties, without overflow of the sum."""
    n = draw(st.integers(1, 5))
    layout = draw(
        st.lists(
            st.tuples(
                st.sampled_from(DTYPES), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0)
            ),
            min_size=1,
            max_size=3,
        )
    )
    bits = 32 if all(np.dtype(code).itemsize <= 4 for code, _ in layout) else 64

    def numbers(code, shape):
        limits = np.iinfo(code)
        largest = ((1 << (bits - 1)) - 1) // n
        low, high = max(limits.min // n, -largest), min(limits.max // n, largest)
        return hnp.arrays(code, shape, elements=st.integers(low, high))

    return [[draw(numbers(code, shape)) for code, shape in layout] for _ in range(n)]


@given(arrays_of_parties())
@settings(max_examples=150, deadline=None)
def test_sum_of_vectors_converts_to_the_sum_of_arrays(parties):
    layout = layout_of(parties[0])

    vectors = [to_cells(arrays, n_parties=len(parties)) for arrays in parties]
    total = sum(vectors[1:], vectors[0])

    assert {vector.dtype.itemsize * 8 for vector in vectors} == {modulus_bits(layout)}
    assert total.shape == (n_cells(layout),)
    for k, summed in enumerate(from_cells(total, layout)):
        exact = sum(arrays[k].astype(object) for arrays in parties)
        assert summed.dtype == parties[0][k].dtype
        assert summed.astype(object).tolist() == np.asarray(exact).tolist()


@pytest.mark.parametrize(("code", "bits"), [("i4", 32), ("u4", 32), ("i8", 64), ("u8", 64)])
@pytest.mark.parametrize("n", [3, 4, 7, 8])
def test_largest_number_below_the_bound_is_accepted(code, bits, n):
    largest = -(-(1 << (bits - 1)) // n) - 1
    assert largest * n < 1 << (bits - 1) <= (largest + 1) * n

    to_cells([np.array([largest], code)], n_parties=n)

    with pytest.raises(AggregationError, match=f"too large for a masked sum of {n} parties"):
        to_cells([np.array([largest + 1], code)], n_parties=n)


def test_negative_number_beyond_the_bound_is_refused():
    with pytest.raises(AggregationError, match="too large"):
        to_cells([np.array([np.iinfo("i8").min])], n_parties=3)


@pytest.mark.parametrize(
    ("numbers", "code"),
    [([256], "|u1"), ([2**32 - 1], "|u1"), ([2**32 - 129], "|i1"), ([2**31], "<u4")],
)
def test_sum_that_does_not_fit_its_dtype_is_refused(numbers, code):
    with pytest.raises(AggregationError, match="a sum does not fit"):
        from_cells(np.array(numbers, "<u4"), ((code, (1,)),))


@pytest.mark.parametrize(
    "layout",
    [
        (("<f8", (2,)),),
        (("|b1", (2,)),),
        (("O", (2,)),),
        ((">u4", (2,)),),
        (("<u4", (-1,)),),
        (("<u4", (1, 1, 1, 1, 1)),),
        (("<u4", (1 << 20, 1 << 20)),),
        (("<u4", ()),) * 65,
    ],
)
def test_invalid_layout_is_refused(layout):
    with pytest.raises(ValueError, match="masked sum"):
        check_layout(layout)
