"""Keys as eight-bit codes and as product codes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.errors import DataError, RebuildNeeded
from fedneighbors.methods.knnper.memory._codes import (
    SCALE_BYTES,
    Codebook,
    EightBitCodec,
    ProductCodec,
    fit_codebook,
)
from fedneighbors.methods.knnper.memory._compressed import CodedDatastore
from tests.methods.knnper.memory.tables import TIES, tables
from tests.naive import compression as naive
from tests.naive import knnper


def make_memory(rows, labels=None):
    store = CodedDatastore(rows.shape[1], n_classes=3, codec=EightBitCodec(rows.shape[1]))
    return store.add(rows, np.arange(len(rows)) % 3 if labels is None else labels)


@given(tables())
def test_eight_bit_codes_equal_the_naive_ones(rows):
    codes = EightBitCodec(rows.shape[1]).encode(rows)

    scale = codes[:, :SCALE_BYTES].copy().view("<f4")
    for row, (low, step), code in zip(rows, scale.tolist(), codes[:, SCALE_BYTES:], strict=True):
        assert naive.quantize_row(row.tolist()) == (low, step, code.tolist())


@given(tables())
def test_a_cell_is_off_by_half_a_step_and_rounding(rows):
    codec = EightBitCodec(rows.shape[1])

    decoded = codec.decode(codec.encode(rows))

    magnitude = np.abs(rows).max(axis=1, keepdims=True)
    step = (rows.max(axis=1, keepdims=True) - rows.min(axis=1, keepdims=True) / 1) / 255
    assert (np.abs(decoded - rows) <= 0.5 * step + 1e-6 * magnitude + 1e-42).all()


@given(tables())
def test_neighbors_are_nearest_among_decoded_keys(rows):
    store, k = make_memory(rows), min(4, len(rows))

    neighbors = store.nearest(rows[:3], k)

    positions, distances = knnper.nearest(store.keys.tolist(), rows[:3].tolist(), k)
    assert neighbors.positions.tolist() == positions
    assert neighbors.distances.tolist() == distances


@given(tables(), tables(width=3))
def test_a_code_depends_on_its_row_only(first, second):
    codec, width = EightBitCodec(3), first.shape[1]
    rows = np.concatenate([second, second[::-1]])

    together = codec.encode(rows)

    assert together[: len(second)].tolist() == codec.encode(second).tolist()
    assert EightBitCodec(width).encode(first[:1]).tolist() == (
        EightBitCodec(width).encode(first)[:1].tolist()
    )


def test_a_forgotten_row_leaves_no_trace_in_the_memory():
    rows = np.random.default_rng(0).normal(size=(6, 4))
    without_rows = CodedDatastore(4, n_classes=3, codec=EightBitCodec(4))
    without_rows.add(rows[[0, 2, 3, 5]], [0, 2, 0, 2], ids=["0", "2", "3", "5"])

    store = make_memory(rows).forget(["1", "4"])

    assert store.codes.tolist() == without_rows.codes.tolist()
    assert (store.labels.tolist(), store.ids) == (without_rows.labels.tolist(), without_rows.ids)


def test_a_row_takes_a_byte_for_each_cell_a_scale_and_a_label():
    store = make_memory(np.zeros((10, 128)))

    assert store.nbytes == 10 * (128 + 8 + 1)


def test_a_full_memory_drops_the_oldest_codes():
    store = CodedDatastore(1, 3, "fifo", n_classes=9, codec=EightBitCodec(1))

    for value in range(7):
        store.add([[float(value)]], [value])

    assert store.labels.tolist() == [4, 5, 6]
    assert store.keys[:, 0].tolist() == [4.0, 5.0, 6.0]


def test_unfit_keys_and_labels_are_refused_without_effect():
    store = make_memory(np.ones((2, 2)))

    with pytest.raises(DataError, match="overflows float32"):
        store.add([[1e39, 0.0]], [0])
    with pytest.raises(ValueError, match="expected classes from 0 to 2, got"):
        store.add([[1.0, 0.0]], [3])

    assert len(store) == 2


def test_an_empty_memory_has_no_votes():
    store = CodedDatastore(2, n_classes=3, codec=EightBitCodec(2))

    assert store.votes(np.zeros((1, 2)), 3, n_neighbors=5) is None
    assert (store.nbytes, store.keys.shape) == (0, (0, 2))


BITS = st.sampled_from([4, 8])
NARROW = (TIES, st.floats(-1e3, 1e3, width=32))


@given(tables(), st.integers(1, 12), BITS)
@settings(max_examples=40)
def test_product_codes_equal_the_naive_ones(rows, n_stretches, bits):
    codec = ProductCodec(n_stretches, bits).fit(rows)
    entries = codec.book.entries.astype(float).tolist()

    codes = codec.encode(rows)

    expected = [naive.nearest_entries(row, entries) for row in rows.tolist()]
    if bits == 4:
        expected = [[*code, 0] if len(code) % 2 else code for code in expected]
        expected = [
            [a | b << 4 for a, b in zip(code[::2], code[1::2], strict=True)] for code in expected
        ]
    assert codes.tolist() == expected
    assert codes.shape == (len(rows), codec.n_bytes)


@given(tables(width=6), st.integers(1, 8), BITS, st.integers(1, 9))
@settings(max_examples=30)
def test_neighbors_of_product_codes_equal_the_naive_ones(rows, n_stretches, bits, k):
    codec = ProductCodec(n_stretches, bits).fit(rows[: len(rows) // 2 + 1])
    codes, queries = codec.encode(rows), rows[::-1][:4].copy()
    skipped = np.arange(len(rows))[::-1][:4].copy()

    for skip in (None, skipped):
        neighbors = codec.nearest(codes, queries, k, skip=skip)

        entries = codec.book.entries.astype(float).tolist()
        numbers = [naive.nearest_entries(row, entries) for row in rows.tolist()]
        positions, distances = naive.asymmetric_nearest(numbers, entries, queries.tolist(), k, skip)
        assert neighbors.positions.tolist() == positions
        assert neighbors.distances.tolist() == distances


@given(tables(max_first=10, cells=NARROW))
@settings(max_examples=30)
def test_few_rows_become_entries_of_the_codebook(rows):
    codec = ProductCodec(2, 8).fit(rows)

    decoded = codec.decode(codec.encode(rows))

    np.testing.assert_allclose(decoded, rows, rtol=1e-6)


def test_blockwise_queries_equal_a_single_block(monkeypatch):
    rows = np.random.default_rng(0).normal(size=(40, 6))
    codec = ProductCodec(3, 4).fit(rows)
    at_once = codec.nearest(codec.encode(rows), rows, 5)

    monkeypatch.setattr("fedneighbors.methods.knnper.memory._codes._MAX_DISTANCES", 90)
    in_blocks = codec.nearest(codec.encode(rows), rows, 5)

    assert in_blocks.positions.tolist() == at_once.positions.tolist()
    assert in_blocks.distances.tolist() == at_once.distances.tolist()


def test_a_fitted_codebook_prevents_forgetting():
    rows = np.random.default_rng(0).normal(size=(50, 32))
    store = CodedDatastore(32, n_classes=10, codec=ProductCodec(8, 4))

    store.add(rows, np.arange(50) % 10)

    assert store.nbytes == 50 * (4 + 1) + 16 * 32 * 4
    with pytest.raises(RebuildNeeded, match="fitted on these rows"):
        store.forget(["0"])
    assert len(store) == 50


def test_an_external_codebook_allows_deletion():
    random = np.random.default_rng(0)
    book = fit_codebook(random.normal(size=(300, 32)), n_stretches=8, bits=8)
    rows = random.normal(size=(50, 32))
    store = CodedDatastore(32, n_classes=10, codec=ProductCodec(book=book))

    store.add(rows, np.arange(50) % 10)
    before = store.codes.copy()
    store.forget(["7"])

    assert store.nbytes == 49 * (8 + 1)
    assert store.codes.tolist() == np.delete(before, 7, axis=0).tolist()


def test_later_rows_are_coded_by_the_book_of_the_first():
    rows = np.random.default_rng(0).normal(size=(30, 4))
    store = CodedDatastore(4, n_classes=2, codec=ProductCodec(2, 4))

    store.add(rows[:0], np.zeros(0, int)).add(rows[:20], np.zeros(20, int))
    book = store.codec.book
    store.add(rows[20:], np.ones(10, int))

    assert store.codec.book is book
    assert store.codes[20:].tolist() == store.codec.encode(rows[20:]).tolist()


def make_codec(n_stretches, n_entries, bits):
    entries = np.zeros((n_stretches, n_entries, 1), np.float32)
    return ProductCodec(bits=bits, book=Codebook(entries, n_stretches))


@given(tables(), st.integers(1, 12), BITS)
@settings(max_examples=20)
def test_codes_of_any_rows_pass_the_check(rows, n_stretches, bits):
    codec = ProductCodec(n_stretches, bits).fit(rows)

    for codes in (codec.encode(rows), codec.encode(rows)[:0]):
        assert codec.check_codes(codes) is None


@pytest.mark.parametrize(
    ("codec", "codes", "words"),
    [
        (make_codec(2, 5, 8), [[4, 5]], "index beyond the codebook"),
        (make_codec(2, 5, 4), [[5]], "index beyond the codebook"),
        (make_codec(2, 5, 4), [[5 << 4]], "index beyond the codebook"),
        (make_codec(3, 16, 4), [[255, 15 + 16]], "unused bits of a code must be zero"),
        (make_codec(3, 16, 4), [[255]], "codes of 2 bytes per row"),
        (make_codec(3, 16, 4), [255, 15], "codes of 2 bytes per row"),
        (make_codec(3, 16, 4), np.empty((0, 3), np.uint8), "codes of 2 bytes per row"),
    ],
)
def test_invalid_codes_are_refused(codec, codes, words):
    with pytest.raises(ValueError, match=words):
        codec.check_codes(np.array(codes, np.uint8))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: ProductCodec(4, 5), ValueError, "bits of 4 or 8, got 5"),
        (
            lambda: ProductCodec(bits=4, book=Codebook(np.zeros((2, 17, 1), np.float32), 2)),
            ValueError,
            "at most 16 entries for 4 bits, got 17",
        ),
        (lambda: fit_codebook(np.empty((0, 3))), ValueError, "expected rows"),
        (lambda: fit_codebook(np.ones((2, 3)), n_stretches=0), ValueError, "expected rows"),
        (lambda: fit_codebook(np.full((2, 3), 1e39)), DataError, "overflows float32"),
        (lambda: ProductCodec().encode(np.ones((1, 2))), ValueError, "no codebook yet"),
    ],
)
def test_invalid_arguments_are_refused(call, error, words):
    with pytest.raises(error, match=words):
        call()
