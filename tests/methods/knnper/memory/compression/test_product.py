"""Product quantization, with a book of the client's own or one that it is given."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.errors import DataError, RebuildNeeded
from fedneighbors.methods.knnper.memory.compression._kinds import CodedDatastore
from fedneighbors.methods.knnper.memory.compression._product import (
    Codebook,
    ProductCodec,
    learned_codebook,
)
from tests.methods.knnper.memory.compression.tables import TIES, tables
from tests.naive import compression as naive

BITS = st.sampled_from([4, 8])
NARROW = (TIES, st.floats(-1e3, 1e3, width=32))


@given(tables(), st.integers(1, 12), BITS)
@settings(max_examples=40)
def test_numbers_are_those_of_the_slow_twin(rows, n_stretches, bits):
    codec = ProductCodec(n_stretches, bits).fitted(rows)
    entries = codec.book.entries.astype(float).tolist()

    codes = codec.encode(rows)

    expected = [naive.numbers(row, entries) for row in rows.tolist()]
    if bits == 4:
        expected = [[*code, 0] if len(code) % 2 else code for code in expected]
        expected = [
            [a | b << 4 for a, b in zip(code[::2], code[1::2], strict=True)] for code in expected
        ]
    assert codes.tolist() == expected
    assert codes.shape == (len(rows), codec.n_bytes)


@given(tables(width=6), st.integers(1, 8), BITS, st.integers(1, 9))
@settings(max_examples=30)
def test_neighbors_are_those_of_the_slow_twin(rows, n_stretches, bits, k):
    codec = ProductCodec(n_stretches, bits).fitted(rows[: len(rows) // 2 + 1])
    codes, queries = codec.encode(rows), rows[::-1][:4].copy()
    own = np.arange(len(rows))[::-1][:4].copy()

    for left_out in (None, own):
        found = codec.nearest(codes, queries, k, own=left_out)

        entries = codec.book.entries.astype(float).tolist()
        numbers = [naive.numbers(row, entries) for row in rows.tolist()]
        positions, distances = naive.asymmetric_nearest(
            numbers, entries, queries.tolist(), k, left_out
        )
        assert found.positions.tolist() == positions
        assert found.distances.tolist() == distances


@given(tables(most=10, cells=NARROW))
@settings(max_examples=30)
def test_few_rows_are_entries_of_the_book_themselves(rows):
    codec = ProductCodec(2, 8).fitted(rows)

    back = codec.decode(codec.encode(rows))

    np.testing.assert_allclose(back, rows, rtol=1e-6)


def test_many_queries_are_answered_block_after_block_as_at_once(monkeypatch):
    rows = np.random.default_rng(0).normal(size=(40, 6))
    codec = ProductCodec(3, 4).fitted(rows)
    at_once = codec.nearest(codec.encode(rows), rows, 5)

    monkeypatch.setattr("fedneighbors.methods.knnper.memory.compression._product._BLOCK", 90)
    in_blocks = codec.nearest(codec.encode(rows), rows, 5)

    assert in_blocks.positions.tolist() == at_once.positions.tolist()
    assert in_blocks.distances.tolist() == at_once.distances.tolist()


def test_an_own_book_belongs_to_the_memory_and_hinders_forgetting():
    rows = np.random.default_rng(0).normal(size=(50, 32))
    store = CodedDatastore(32, n_classes=10, codec=ProductCodec(8, 4))

    store.add(rows, np.arange(50) % 10)

    assert store.nbytes == 50 * (4 + 1) + 16 * 32 * 4
    with pytest.raises(RebuildNeeded, match="learned from these rows"):
        store.forget(["0"])
    assert len(store) == 50


def test_a_given_book_is_no_part_of_the_memory_and_rows_can_go():
    random = np.random.default_rng(0)
    book = learned_codebook(random.normal(size=(300, 32)), n_stretches=8, bits=8)
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


def codec_of(n_stretches, n_entries, bits):
    entries = np.zeros((n_stretches, n_entries, 1), np.float32)
    return ProductCodec(bits=bits, book=Codebook(entries, n_stretches))


@given(tables(), st.integers(1, 12), BITS)
@settings(max_examples=20)
def test_codes_of_any_rows_are_taken_for_codes(rows, n_stretches, bits):
    codec = ProductCodec(n_stretches, bits).fitted(rows)

    for codes in (codec.encode(rows), codec.encode(rows)[:0]):
        assert codec.refuse_codes(codes) is None


@pytest.mark.parametrize(
    ("codec", "codes", "words"),
    [
        (codec_of(2, 5, 8), [[4, 5]], "number that is beyond the book"),
        (codec_of(2, 5, 4), [[5]], "number that is beyond the book"),
        (codec_of(2, 5, 4), [[5 << 4]], "number that is beyond the book"),
        (codec_of(3, 16, 4), [[255, 15 + 16]], "a stretch that is none"),
        (codec_of(3, 16, 4), [[255]], "codes of 2 bytes a row"),
        (codec_of(3, 16, 4), [255, 15], "codes of 2 bytes a row"),
        (codec_of(3, 16, 4), np.empty((0, 3), np.uint8), "codes of 2 bytes a row"),
    ],
)
def test_what_are_no_codes_is_refused(codec, codes, words):
    with pytest.raises(ValueError, match=words):
        codec.refuse_codes(np.array(codes, np.uint8))


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: ProductCodec(4, 5), ValueError, "bits of 4 or 8, got 5"),
        (
            lambda: ProductCodec(bits=4, book=Codebook(np.zeros((2, 17, 1), np.float32), 2)),
            ValueError,
            "at most 16 entries for 4 bits, got 17",
        ),
        (lambda: learned_codebook(np.empty((0, 3))), ValueError, "expected rows"),
        (lambda: learned_codebook(np.ones((2, 3)), n_stretches=0), ValueError, "expected rows"),
        (lambda: learned_codebook(np.full((2, 3), 1e39)), DataError, "32 bits"),
        (lambda: ProductCodec().encode(np.ones((1, 2))), ValueError, "no codebook yet"),
    ],
)
def test_nonsense_is_refused(make, error, words):
    with pytest.raises(error, match=words):
        make()
