import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.kernels._inversion import UNDECIDED, invert_words
from tests.naive import inversion as naive
from tests.seeds import cases

N_BITS = 10


def make_guide(limits, guide_bits, n_bits=N_BITS):
    starts = np.arange(1 << guide_bits, dtype=np.uint64) << np.uint64(n_bits - guide_bits)
    return np.searchsorted(limits, starts).astype(np.int32)


@settings(max_examples=cases(300), deadline=None)
@given(
    st.lists(st.integers(1, 1 << N_BITS), min_size=1, max_size=40).map(sorted),
    st.integers(0, N_BITS),
    st.booleans(),
)
def test_inverted_words_match_naive_version(limits, guide_bits, symmetric):
    limits = np.array(limits, np.uint64)
    words = np.arange(2 << N_BITS, dtype=np.uint64)
    values = np.empty(len(words), np.int64)

    n_undecided = invert_words(
        words,
        limits,
        make_guide(limits, guide_bits),
        n_bits=N_BITS,
        symmetric=symmetric,
        values=values,
    )

    assert values.tolist() == naive.invert_words(words, limits, symmetric)
    assert n_undecided == (values == UNDECIDED).sum()


def test_all_bits_of_63_bit_words_are_used():
    limits = np.array([1 << 62, (1 << 62) + (1 << 61), 1 << 63], np.uint64)
    prefixes = [0, (1 << 62) - 2, (1 << 62) - 1, 1 << 62, (1 << 62) + 1, (1 << 63) - 2]
    words = np.array([p << 1 | sign for p in prefixes for sign in (0, 1)], np.uint64)
    values = np.empty(len(words), np.int64)

    invert_words(words, limits, make_guide(limits, 8, 63), n_bits=63, symmetric=True, values=values)

    assert values.tolist() == naive.invert_words(words, limits, symmetric=True)
    assert values.tolist() == [0, 0, 0, 0, *[UNDECIDED] * 4, 1, -1, 2, -2]
