import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.kernels.flyhash._bloom import accumulate, grid_hits, novelty
from tests.naive.flyhash import bloom as naive
from tests.seeds import cases, over_seeds

CASES = 10_000


def draw_filters(rng):
    n_rows, n_active = rng.integers(0, 6), rng.integers(0, 5)
    n_units, n_classes = rng.integers(1, 7), rng.integers(1, 5)
    active = rng.integers(0, n_units, (n_rows, n_active)).astype(np.int32)
    labels = rng.integers(0, n_classes, n_rows)
    counts = rng.integers(0, 5, (n_units, n_classes)).astype(np.int32)
    weights = rng.normal(size=5 * n_classes) * 10.0 ** rng.integers(-8, 8, 5 * n_classes)
    offsets = rng.integers(0, 5 * n_classes - 4, n_classes)
    return active, labels, counts, weights, offsets


@over_seeds(CASES)
def test_counts_match_naive_version(seed):
    active, labels, counts, _, _ = draw_filters(np.random.default_rng(seed))
    expected = counts.tolist()
    naive.accumulate(active.tolist(), labels.tolist(), expected)

    accumulate(active, labels, counts)

    assert counts.tolist() == expected


@over_seeds(CASES)
def test_novelty_matches_naive_version_bit_for_bit(seed):
    active, _, counts, weights, offsets = draw_filters(np.random.default_rng(seed))

    result = novelty(active, counts, weights, offsets)

    arrays = (array.tolist() for array in (active, counts, weights, offsets))
    assert result.tolist() == naive.novelty(*arrays)
    assert result.shape == (active.shape[0], counts.shape[1])


@pytest.mark.parametrize("n_threads", [2, 3])
def test_novelty_does_not_depend_on_the_number_of_threads(n_threads):
    rng = np.random.default_rng(1)
    active = rng.integers(0, 50, (5_000, 6)).astype(np.int32)
    counts = rng.integers(0, 9, (50, 12)).astype(np.int32)
    weights, offsets = rng.random(9), np.zeros(12, np.int64)

    single = novelty(active, counts, weights, offsets)

    np.testing.assert_array_equal(
        single, novelty(active, counts, weights, offsets, n_threads=n_threads)
    )


@pytest.mark.parametrize("count", [-1, 4, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("n_classes", [1, 20])
def test_novelty_rejects_counts_outside_the_weights(count, n_classes):
    counts = np.zeros((3, n_classes), np.int32)
    counts[1, -1] = count

    with pytest.raises(ValueError, match="outside the table of 4 weights"):
        novelty(np.array([[0, 1]], np.int32), counts, np.ones(4), np.zeros(n_classes, np.int64))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"active": np.array([[0, 3]])}, ValueError, r"active must lie in \[0, 3\)"),
        ({"active": np.array([[-1]])}, ValueError, r"active must lie in \[0, 3\)"),
        ({"active": np.array([0])}, ValueError, "two dimensions"),
        ({"active": np.array([[0.0]])}, TypeError, "active must hold integers"),
        ({"labels": np.array([2])}, ValueError, r"labels must lie in \[0, 2\)"),
        ({"labels": np.array([0, 1])}, ValueError, "expected labels of shape"),
        ({"labels": np.array([0.0])}, TypeError, "labels must be integers"),
        ({"counts": np.zeros((3, 2))}, TypeError, "int32 array"),
        ({"counts": np.zeros((2, 3), np.int32).T}, TypeError, "C order"),
    ],
)
def test_accumulate_rejects_invalid_arguments(change, error, message):
    arguments = {
        "active": np.array([[0, 1]]),
        "labels": np.array([1]),
        "counts": np.zeros((3, 2), np.int32),
    } | change

    with pytest.raises(error, match=message):
        accumulate(**arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"offsets": np.zeros(3, np.int64)}, "expected offsets of shape"),
        ({"weights": np.ones((2, 2))}, "one-dimensional"),
        ({"n_threads": 0}, "n_threads must be at least 1"),
    ],
)
def test_novelty_rejects_invalid_arguments(change, message):
    arguments = {
        "active": np.array([[0, 1]]),
        "counts": np.zeros((3, 2), np.int32),
        "weights": np.ones(2),
        "offsets": np.zeros(2, np.int64),
    } | change

    with pytest.raises(ValueError, match=message):
        novelty(**arguments)


@st.composite
def grid_cases(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n_rows, n_active = draw(st.integers(0, 5)), draw(st.integers(1, 4))
    n_units, n_classes = draw(st.integers(n_active, 6)), draw(st.integers(1, 4))
    max_count = draw(st.integers(1, 4))
    leave_one_out = draw(st.booleans())
    used = rng.integers(int(leave_one_out), max_count + 1, (n_units, n_classes)).astype(np.int32)
    held_out = rng.integers(0, 3, used.shape).astype(np.uint16)
    active = rng.integers(0, n_units, (n_rows, n_active)).astype(np.int32)
    labels = rng.integers(0, n_classes, n_rows)
    weights = rng.integers(0, 3, ((max_count + 1) * n_classes, draw(st.integers(1, 4)))) / 2
    offsets = np.arange(n_classes) * (max_count + 1)
    offsets[rng.random(n_classes) < 0.2] = -1
    return active, labels, used + held_out, held_out, weights, offsets, leave_one_out


@settings(max_examples=cases(3_000), deadline=None)
@given(grid_cases())
def test_grid_hits_match_naive_version(case):
    *arrays, leave_one_out = case

    hits = grid_hits(*arrays, leave_one_out=leave_one_out)

    assert hits.tolist() == naive.grid_hits(*(a.tolist() for a in arrays), leave_one_out)


def test_grid_hits_reject_counts_outside_the_weights():
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
def test_grid_hits_reject_labels_outside_the_classes(label):
    active = np.zeros((1, 1), np.int32)

    with pytest.raises(ValueError, match="labels must lie in"):
        grid_hits(
            active,
            np.array([label]),
            np.zeros((1, 1), np.int32),
            np.zeros((1, 1), np.int32),
            np.ones((1, 1)),
            np.zeros(1, np.int64),
        )
