import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from fedneighbors.kernels.edit._lanes import N_LANES, N_WORDS, fill, load, store
from tests.naive.edit import lanes as naive

WORD = st.integers(0, 2**64 - 1)


@njit
def apply_all(words, word, results):
    first, second = load(words, 0), load(words, N_WORDS)
    store(results, 0 * N_WORDS, first & second)
    store(results, 1 * N_WORDS, first | second)
    store(results, 2 * N_WORDS, first ^ second)
    store(results, 3 * N_WORDS, ~first)
    store(results, 4 * N_WORDS, fill(word))


@settings(max_examples=200, deadline=None)
@given(st.lists(WORD, min_size=16, max_size=16), WORD)
def test_operations_match_512_bit_python_integers(words, word):
    words = np.array(words, np.uint64)
    results = np.empty(5 * N_WORDS, np.uint64)

    apply_all(words, np.uint64(word), results)

    first, second = naive.load(words, 0), naive.load(words, N_WORDS)
    expected = [first & second, first | second, first ^ second, naive.ALL ^ first, naive.fill(word)]
    assert results.tolist() == [part for value in expected for part in naive.split_words(value)]
    assert N_LANES == 512


def test_values_are_loaded_from_and_stored_at_any_word():
    words = np.arange(24, dtype=np.uint64)
    results = np.zeros(24, np.uint64)

    @njit
    def move(words, results):
        store(results, 5, load(words, 3))

    move(words, results)

    assert results.tolist() == [0] * 5 + list(range(3, 11)) + [0] * 11
