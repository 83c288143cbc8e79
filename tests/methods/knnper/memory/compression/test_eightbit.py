"""Keys in eight bits."""

import numpy as np
import pytest
from hypothesis import given

from fedneighbors.errors import DataError
from fedneighbors.methods.knnper.memory.compression._codes import SCALE_BYTES, EightBitCodec
from fedneighbors.methods.knnper.memory.compression._kinds import CodedDatastore
from tests.methods.knnper.memory.compression.tables import tables
from tests.naive import compression as naive
from tests.naive import knnper


def memory(rows, labels=None):
    store = CodedDatastore(rows.shape[1], n_classes=3, codec=EightBitCodec(rows.shape[1]))
    return store.add(rows, np.arange(len(rows)) % 3 if labels is None else labels)


@given(tables())
def test_codes_are_those_of_the_slow_twin(rows):
    codes = EightBitCodec(rows.shape[1]).encode(rows)

    scale = codes[:, :SCALE_BYTES].copy().view("<f4")
    for row, (low, step), code in zip(rows, scale.tolist(), codes[:, SCALE_BYTES:], strict=True):
        assert naive.eight_bits(row.tolist()) == (low, step, code.tolist())


@given(tables())
def test_a_cell_is_off_by_half_a_step_and_rounding(rows):
    codec = EightBitCodec(rows.shape[1])

    back = codec.decode(codec.encode(rows))

    reach = np.abs(rows).max(axis=1, keepdims=True)
    step = (rows.max(axis=1, keepdims=True) - rows.min(axis=1, keepdims=True) / 1) / 255
    assert (np.abs(back - rows) <= 0.5 * step + 1e-6 * reach + 1e-42).all()


@given(tables())
def test_neighbors_are_the_nearest_of_what_codes_stand_for(rows):
    store, k = memory(rows), min(4, len(rows))

    found = store.nearest(rows[:3], k)

    positions, distances = knnper.nearest(store.keys.tolist(), rows[:3].tolist(), k)
    assert found.positions.tolist() == positions
    assert found.distances.tolist() == distances


@given(tables(), tables(width=3))
def test_a_code_depends_on_its_row_alone(one, other):
    codec, width = EightBitCodec(3), one.shape[1]
    rows = np.concatenate([other, other[::-1]])

    together = codec.encode(rows)

    assert together[: len(other)].tolist() == codec.encode(other).tolist()
    assert EightBitCodec(width).encode(one[:1]).tolist() == (
        EightBitCodec(width).encode(one)[:1].tolist()
    )


def test_a_forgotten_row_leaves_the_memory_as_if_it_had_never_come():
    rows = np.random.default_rng(0).normal(size=(6, 4))
    never = CodedDatastore(4, n_classes=3, codec=EightBitCodec(4))
    never.add(rows[[0, 2, 3, 5]], [0, 2, 0, 2], ids=["0", "2", "3", "5"])

    store = memory(rows).forget(["1", "4"])

    assert store.codes.tolist() == never.codes.tolist()
    assert (store.labels.tolist(), store.ids) == (never.labels.tolist(), never.ids)


def test_a_row_takes_a_byte_for_each_cell_a_scale_and_a_label():
    store = memory(np.zeros((10, 128)))

    assert store.nbytes == 10 * (128 + 8 + 1)


def test_a_full_memory_drops_the_oldest_codes():
    store = CodedDatastore(1, 3, "fifo", n_classes=9, codec=EightBitCodec(1))

    for value in range(7):
        store.add([[float(value)]], [value])

    assert store.labels.tolist() == [4, 5, 6]
    assert store.keys[:, 0].tolist() == [4.0, 5.0, 6.0]


def test_keys_and_labels_that_do_not_fit_are_refused_and_change_nothing():
    store = memory(np.ones((2, 2)))

    with pytest.raises(DataError, match="beyond the numbers of 32 bits"):
        store.add([[1e39, 0.0]], [0])
    with pytest.raises(ValueError, match="expected classes from 0 to 2, got"):
        store.add([[1.0, 0.0]], [3])

    assert len(store) == 2


def test_an_empty_memory_has_nothing_to_say():
    store = CodedDatastore(2, n_classes=3, codec=EightBitCodec(2))

    assert store.votes(np.zeros((1, 2)), 3, n_neighbors=5) is None
    assert (store.nbytes, store.keys.shape) == (0, (0, 2))
