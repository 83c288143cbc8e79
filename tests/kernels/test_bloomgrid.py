import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.kernels.flyhash._bloomgrid import grid_hits
from tests.naive import bloomgrid as naive


@st.composite
def cases(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n_rows, n_active = draw(st.integers(0, 5)), draw(st.integers(1, 4))
    n_units, n_classes = draw(st.integers(n_active, 6)), draw(st.integers(1, 4))
    top = draw(st.integers(1, 4))
    leave_one_out = draw(st.booleans())
    left = rng.integers(int(leave_one_out), top + 1, (n_units, n_classes)).astype(np.int32)
    held_out = rng.integers(0, 3, left.shape).astype(np.uint16)
    active = rng.integers(0, n_units, (n_rows, n_active)).astype(np.int32)
    labels = rng.integers(0, n_classes, n_rows)
    weights = rng.integers(0, 3, ((top + 1) * n_classes, draw(st.integers(1, 4)))) / 2
    offsets = np.arange(n_classes) * (top + 1)
    offsets[rng.random(n_classes) < 0.2] = -1
    return active, labels, left + held_out, held_out, weights, offsets, leave_one_out


@settings(max_examples=3_000, deadline=None)
@given(cases())
def test_hits_equal_those_of_the_slow_twin(case):
    *arrays, leave_one_out = case

    hits = grid_hits(*arrays, leave_one_out=leave_one_out)

    assert hits.tolist() == naive.grid_hits(*(a.tolist() for a in arrays), leave_one_out)


def test_a_count_outside_the_weights_is_refused():
    active = np.zeros((1, 1), np.int32)
    counts = np.full((1, 1), 7, np.int32)

    with pytest.raises(ValueError, match="outside the weights"):
        grid_hits(
            active,
            np.zeros(1, np.int64),
            counts,
            np.zeros_like(counts),
            np.ones((7, 1)),
            np.zeros(1, np.int64),
        )


@pytest.mark.parametrize("label", [-1, 1])
def test_a_label_outside_the_classes_is_refused(label):
    active = np.zeros((1, 1), np.int32)

    with pytest.raises(ValueError, match="labels reach outside"):
        grid_hits(
            active,
            np.array([label]),
            np.zeros((1, 1), np.int32),
            np.zeros((1, 1), np.int32),
            np.ones((1, 1)),
            np.zeros(1, np.int64),
        )
