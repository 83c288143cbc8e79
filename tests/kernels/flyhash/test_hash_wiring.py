import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from fedneighbors.kernels.flyhash import _hash as kernel
from fedneighbors.kernels.flyhash._hash import draw_wiring
from tests.naive.flyhash import hash as naive
from tests.seeds import cases

# Counter, key and answer of philox4x32-10, from kat_vectors of Random123
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip
GOLDEN_SMALL = [[311, 474, 575, 687, 762], [22, 325, 335, 353, 714]]
GOLDEN_WIDE = [[83118, 447821, 622096], [110732, 522203, 941072]]


def from_hex(text):
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_philox_gives_the_known_answers(counter, key, answer):
    words = kernel._philox(*(np.uint64(word) for word in from_hex(counter) + from_hex(key)))

    assert [int(word) for word in words] == from_hex(answer)
    assert naive.philox(from_hex(counter), from_hex(key)) == from_hex(answer)


@settings(max_examples=cases(2_000), deadline=None)
@given(st.data())
def test_wiring_matches_naive_version(data):
    n_features = data.draw(st.sampled_from([1, 2, 3, 7, 64, 65, 100, 5_000, 70_000]))
    n_inputs = data.draw(st.integers(1, min(n_features, 40)))
    n_units, seed = data.draw(st.integers(1, 3)), data.draw(st.integers(0, 2**64 - 1))

    wiring = draw_wiring(n_features, n_units, n_inputs, seed)

    assert wiring.tolist() == naive.draw_wiring(n_features, n_units, n_inputs, seed)


@pytest.mark.parametrize(("n_features", "n_inputs"), [(1_000, 5), (50, 50), (300, 40)])
def test_bitmap_and_sorted_list_give_the_same_wiring(n_features, n_inputs):
    dense, sparse = (np.empty((100, n_inputs), np.uint16) for _ in range(2))

    kernel._draw_dense(dense, n_features, np.uint64(5))
    kernel._draw_sparse(sparse, n_features, np.uint64(5))

    np.testing.assert_array_equal(dense, sparse)


def test_golden_wiring_never_changes():
    assert draw_wiring(784, 2, 5, 0).tolist() == GOLDEN_SMALL
    assert draw_wiring(10**6, 2, 3, 2**64 - 1).tolist() == GOLDEN_WIDE


def test_inputs_of_a_unit_do_not_depend_on_n_units():
    np.testing.assert_array_equal(draw_wiring(100, 7, 9, 3), draw_wiring(100, 50, 9, 3)[:7])


def test_rejected_words_are_replaced_by_the_next_ones():
    # bounds just above 2**31 reject almost half of the words
    n_features = 2**31 + 10

    wiring = draw_wiring(n_features, 50, 6, 11)

    assert wiring.tolist() == naive.draw_wiring(n_features, 50, 6, 11)


def test_inputs_are_distinct_and_ascending():
    wiring = draw_wiring(64, 1_000, 30, 4).astype(int)

    assert (np.diff(wiring, axis=1) > 0).all()


@pytest.mark.parametrize(("n_features", "dtype"), [(2**16, np.uint16), (2**16 + 1, np.uint32)])
def test_index_dtype_follows_the_number_of_features(n_features, dtype):
    assert draw_wiring(n_features, 2, 3, 0).dtype == dtype


def test_every_subset_is_equally_likely():
    # 10 subsets of 2 out of 5; with random seeds, one test in 1,000 would fail
    wiring = draw_wiring(5, 20_000, 2, 2024).astype(int)
    _, observed = np.unique(wiring[:, 0] * 5 + wiring[:, 1], return_counts=True)

    statistic = ((observed - 2_000) ** 2 / 2_000).sum()

    assert observed.size == 10
    assert statistic < chi2.isf(1e-3, df=9)


def test_every_feature_is_equally_likely():
    # The factor accounts for the negative correlation of feature counts in subsets. With random
    # seeds, one test in 1,000 would fail.
    n_features, n_units, n_inputs = 784, 20_000, 19
    observed = np.bincount(
        draw_wiring(n_features, n_units, n_inputs, 7).ravel(), minlength=n_features
    )
    share = n_inputs / n_features

    squares = ((observed - n_units * share) ** 2).sum()
    statistic = squares / (n_units * share * (1 - share)) * (n_features - 1) / n_features

    assert statistic < chi2.isf(1e-3, df=n_features - 1)


def test_different_seeds_give_different_wirings():
    assert not np.array_equal(draw_wiring(100, 50, 9, 0), draw_wiring(100, 50, 9, 2**32))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0, 1, 1, 0), "n_features must be at least 1"),
        ((3, -1, 1, 0), "n_units must be at least 1"),
        ((3, 1, 0, 0), "n_inputs must be at least 1"),
        ((3, 1, 4, 0), "n_inputs=4 exceeds n_features=3"),
        ((2**32, 1, 1, 0), "use fewer features"),
        ((3, 1, 1, -1), "seed must lie in"),
        ((3, 1, 1, 2**64), "seed must lie in"),
    ],
)
def test_invalid_sizes_and_seeds_are_rejected(sizes, message):
    with pytest.raises(ValueError, match=message):
        draw_wiring(*sizes)
