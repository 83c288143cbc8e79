import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedneighbors.kernels import _fingerprints as fingerprints
from tests.naive import fingerprints as naive

WORDS = st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2**63, 2**64 - 1])


@st.composite
def tables(draw):
    n_words = draw(st.integers(1, 3))
    rows = draw(arrays(np.uint64, (draw(st.integers(0, 5)), n_words), elements=WORDS))
    return rows, draw(arrays(np.uint64, n_words, elements=WORDS))


@settings(max_examples=200, deadline=None)
@given(tables(), st.data())
def test_common_bits_equal_those_of_sets(table, data):
    rows, query = table
    positions = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=6)) if len(rows) else []

    expected = naive.count_common(rows, query)

    assert fingerprints.count_common(rows, query).tolist() == expected
    selected = fingerprints.count_common(rows, query, np.array(positions, np.int64))
    assert selected.tolist() == [expected[i] for i in positions]


@settings(max_examples=200, deadline=None)
@given(tables(), st.integers(1, 2), st.data())
def test_bounds_equal_those_of_sets_and_are_not_below_the_common_bits(table, n_words, data):
    rows, query = table
    n_bits = 64 * rows.shape[1]
    places = data.draw(arrays(np.int64, n_bits, elements=st.integers(0, 64 * n_words - 1)))

    blocks = fingerprints.fold(rows, places, n_words)
    weights = np.bincount(places[sorted(naive.bits_of(query))], minlength=64 * n_words)
    bounds = fingerprints.bound_common(blocks, weights, len(rows))

    sketches = blocks.transpose(0, 2, 1).reshape(-1, n_words)
    assert [naive.bits_of(row) for row in sketches[: len(rows)]] == naive.fold(rows, places)
    assert not sketches[len(rows) :].any()
    assert bounds.tolist() == naive.bound_common(rows, query, places)
    assert (bounds >= fingerprints.count_common(rows, query)).all()


def test_sketches_of_several_blocks_equal_those_of_sets():
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 2**64, (2 * fingerprints.BLOCK_ROWS + 5, 2), np.uint64)
    places = rng.integers(0, 64, 128)

    blocks = fingerprints.fold(rows, places, 1)
    weights = np.bincount(places[sorted(naive.bits_of(rows[7]))], minlength=64)

    assert len(blocks) == 3
    bounds = fingerprints.bound_common(blocks, weights, len(rows))
    assert bounds.tolist() == naive.bound_common(rows, rows[7], places)


@settings(max_examples=500, deadline=None)
@given(st.integers(0, fingerprints.MAX_BITS), st.data())
def test_levels_equal_those_of_exact_fractions(n_query, data):
    sizes = data.draw(st.lists(st.integers(0, fingerprints.MAX_BITS), max_size=20))
    common = [data.draw(st.integers(0, n_query)) for _ in sizes]
    levels, counts = np.empty(len(sizes), np.uint8), np.zeros(256, np.int64)

    fingerprints.rate(
        np.array(common, np.uint16), np.array(sizes, np.uint16), n_query, levels, counts
    )

    expected = [naive.rate(c, size, n_query) for c, size in zip(common, sizes, strict=True)]
    assert levels.tolist() == expected
    assert counts.tolist() == np.bincount(expected, minlength=256).tolist()


@pytest.mark.parametrize("size", [51, 102, 255, 510, 1020, 25500, fingerprints.MAX_BITS])
def test_levels_of_similarities_at_a_limit_are_exact(size):
    common = np.arange(size + 1, dtype=np.uint16)
    levels, counts = np.empty(size + 1, np.uint8), np.zeros(256, np.int64)

    fingerprints.rate(common, np.full(size + 1, size, np.uint16), size, levels, counts)

    unions = 2 * size - common.astype(np.int64)
    assert levels.tolist() == (255 * common.astype(np.int64) // unions).tolist()


def test_invalid_arguments_are_refused():
    rows = np.zeros((3, 2), np.uint64)

    with pytest.raises(ValueError, match=r"expected a query of shape \(2,\), got \(3,\)"):
        fingerprints.count_common(rows, np.zeros(3, np.uint64))
    for position in (-1, 3):
        with pytest.raises(ValueError, match="expected positions from 0 to 2"):
            fingerprints.count_common(rows, rows[0], np.array([position]))
    for places in (np.zeros(64, np.int64), np.full(128, 64), np.full(128, -1)):
        with pytest.raises(ValueError, match="expected 128 places from 0 to 63"):
            fingerprints.fold(rows, places, 1)
