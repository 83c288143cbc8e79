import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from fedneighbors.kernels import _bitonic as bitonic
from fedneighbors.kernels._bitonic import (
    PADDING_RANK,
    PAYLOAD_WORDS,
    Entries,
    list_exchanges,
    merge_sorted,
    merge_with_swaps,
    move_payloads,
)
from tests.naive import bitonic as naive
from tests.seeds import cases

PADDING = (np.inf, PADDING_RANK, -1, -1)
DISTANCES = st.sampled_from([0.0, 5e-324, 0.1, 1.0, 1.0 + 2**-52, 7.0, 1e308, np.inf]) | st.floats(
    0, 100
)
REAL = st.tuples(
    DISTANCES,
    st.integers(0, 3) | st.sampled_from([-(2**63), PADDING_RANK - 1]),
    st.integers(0, 3),
    st.integers(0, 9),
)


@st.composite
def padded_lists(draw):
    """Draw sorted lists, padded to the same length."""
    n_lists, length = draw(st.integers(1, 9)), draw(st.integers(1, 20))
    rows = [sorted(draw(st.lists(REAL, max_size=length))) for _ in range(n_lists)]
    return [row + [PADDING] * (length - len(row)) for row in rows]


def make_entries(rows):
    columns = zip(*(zip(*row, strict=True) for row in rows), strict=True)
    distances, *keys = columns
    return Entries(np.array(distances, np.float64), *(np.array(key, np.int64) for key in keys))


def list_rows(merged):
    return list(zip(*(column.tolist() for column in merged), strict=True))


@settings(max_examples=cases(300), deadline=None)
@given(padded_lists(), st.data())
def test_merged_lists_match_sorted_entries(rows, data):
    k = data.draw(st.integers(0, len(rows[0])))

    merged = merge_sorted(make_entries(rows), k)

    assert list_rows(merged) == naive.merge_sorted(rows, k)


@pytest.mark.parametrize(("n_lists", "length"), [(1, 1), (2, 1), (3, 5), (8, 128), (16, 100)])
def test_large_lists_are_merged_in_order(n_lists, length):
    rng = np.random.default_rng(n_lists)
    distances = np.sort(rng.integers(0, 50, (n_lists, length)) / 8, axis=1)
    ranks = np.arange(n_lists * length).reshape(n_lists, length)
    providers = np.repeat(np.arange(n_lists), length).reshape(n_lists, length)

    merged = merge_sorted(Entries(distances, ranks, providers, ranks % 7))

    order = np.lexsort((ranks.ravel(), distances.ravel()))[:length]
    assert merged.ranks.tolist() == order.tolist()
    assert merged.distances.tolist() == distances.ravel()[order].tolist()
    assert merged.providers.tolist() == (order // length).tolist()
    assert merged.positions.tolist() == (order % 7).tolist()


def flatten(payloads):
    return payloads.reshape(-1, PAYLOAD_WORDS)


def draw_payloads(rng, n_lists, length):
    return rng.integers(-(2**63), 2**63, (n_lists, length, PAYLOAD_WORDS), dtype=np.int64)


@settings(max_examples=cases(200), deadline=None)
@given(padded_lists(), st.integers(0, 2**32), st.data())
def test_payloads_follow_their_entries(rows, seed, data):
    lists, k = make_entries(rows), data.draw(st.integers(0, len(rows[0])))
    payloads = draw_payloads(np.random.default_rng(seed), *lists.distances.shape)
    n_before = Counter(
        zip((entry for row in rows for entry in row), map(bytes, flatten(payloads)), strict=True)
    )

    merge = merge_with_swaps(lists, k)
    moved = move_payloads(payloads, merge)

    assert list_rows(merge.smallest) == naive.merge_sorted(rows, k)
    n_after = Counter(zip(list_rows(merge.smallest), map(bytes, moved), strict=True))
    unpadded = {pair: number for pair, number in n_after.items() if pair[0] != PADDING}
    assert all(number <= n_before[pair] for pair, number in unpadded.items())


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_empty_lists_have_no_payloads(shape):
    lists = Entries(np.zeros(shape), *(np.zeros(shape, np.int64) for _ in range(3)))

    moved = move_payloads(np.zeros((*shape, PAYLOAD_WORDS), np.int64), merge_with_swaps(lists))

    assert moved.shape == (0, PAYLOAD_WORDS)


def test_payloads_of_wrong_shape_are_rejected():
    merge = merge_with_swaps(make_entries([[(0.0, 0, 0, 0)], [(1.0, 1, 1, 1)]]))

    for shape in ((2, 1, PAYLOAD_WORDS - 1), (3, 1, PAYLOAD_WORDS), (2, 2, PAYLOAD_WORDS)):
        with pytest.raises(ValueError, match="for each merged entry"):
            move_payloads(np.zeros(shape, np.int64), merge)


class RecordingTable:
    """Table that records which rows are read and written, in order."""

    def __init__(self, table):
        self.table = table
        self.accesses = []

    def __getitem__(self, index):
        self.accesses.append(("read", get_row(index)))
        return self.table[index]

    def __setitem__(self, index, value):
        self.accesses.append(("write", get_row(index)))
        self.table[index] = value


def get_row(index):
    return int(index[0] if isinstance(index, tuple) else index)


def draw_table(n_lists, size, seed):
    rng = np.random.default_rng(seed)
    table = np.zeros((n_lists, size, 4), np.int64)
    table[:, :, 0] = np.sort(rng.integers(0, rng.integers(1, 10**6), (n_lists, size)), axis=1)
    table[:, :, 2] = np.arange(n_lists)[:, np.newaxis]
    table[:, :, 3] = np.arange(size)
    return table.reshape(-1, 4)


def record_network(table, n_lists, size):
    recording = RecordingTable(table)
    pairs = list_exchanges(n_lists, size)
    # run the uncompiled function in Python, on a table that records accesses
    swap_masks = RecordingTable(np.zeros((len(pairs), 1), np.int8))
    bitonic._exchange.py_func(recording, pairs, swap_masks)
    assert swap_masks.accesses == [("write", e) for e in range(len(pairs))]
    return recording.accesses


def record_payloads(table, n_lists, size):
    """Return the accesses made when payloads follow the entries of a table."""
    pairs = list_exchanges(n_lists, size)
    swap_masks = np.empty(len(pairs), np.int8)
    bitonic._exchange(table.copy(), pairs, swap_masks)
    recording = RecordingTable(np.repeat(table[:, :1], PAYLOAD_WORDS, axis=1))
    bitonic._move.py_func(recording, pairs, swap_masks)
    assert recording.table[:size, 0].tolist() == sorted(table[:, 0].tolist())[:size]
    return recording.accesses


def record_heap(table, n_lists, size):
    recording = RecordingTable(table)
    naive.merge_by_heap(recording, n_lists, size, size)
    return recording.accesses


@pytest.mark.parametrize(("n_lists", "size"), [(2, 8), (5, 16), (8, 4)])
def test_memory_access_of_merge_depends_only_on_shape(n_lists, size):
    traces = [record_network(draw_table(n_lists, size, seed), n_lists, size) for seed in range(100)]

    expected = [
        (call, row)
        for i, j in list_exchanges(n_lists, size).tolist()
        for call in ("read", "write")
        for row in [i] * 4 + [j] * 4
    ]
    assert all(accesses == expected for accesses in traces)


@pytest.mark.parametrize(("n_lists", "size"), [(2, 8), (5, 16), (8, 4)])
def test_memory_access_of_payloads_depends_only_on_shape(n_lists, size):
    traces = {
        tuple(record_payloads(draw_table(n_lists, size, seed), n_lists, size)) for seed in range(50)
    }

    expected = [
        (call, row)
        for i, j in list_exchanges(n_lists, size).tolist()
        for _ in range(PAYLOAD_WORDS)
        for call, row in (
            *(("read", i), ("read", j)),
            *(("read", i), ("write", i)),
            *(("read", j), ("write", j)),
        )
    ]
    assert traces == {tuple(expected)}


@pytest.mark.slow
@pytest.mark.parametrize("record", [record_network, record_payloads])
def test_all_inputs_leave_the_same_access_trace(record):
    traces = {tuple(record(draw_table(3, 4, seed), 3, 4)) for seed in range(100_000)}

    assert len(traces) == 1


@pytest.mark.parametrize(("n_lists", "size"), [(2, 8), (5, 16), (8, 4)])
def test_heap_merge_leaves_data_dependent_traces(n_lists, size):
    traces = {
        tuple(record_heap(draw_table(n_lists, size, seed), n_lists, size)) for seed in range(100)
    }

    assert len(traces) > 50


def test_recorded_network_sorts_its_table():
    table = draw_table(4, 8, seed=0)
    expected = sorted(map(tuple, table.tolist()))[:8]

    record_network(table, 4, 8)

    assert list(map(tuple, table[:8].tolist())) == expected


@pytest.mark.parametrize("kernel", [bitonic._exchange, bitonic._move])
def test_compiled_exchange_has_no_data_dependent_branch(kernel):
    compiled = njit(nogil=True)(kernel.py_func)
    pairs = list_exchanges(2, 1)

    compiled(np.zeros((2, PAYLOAD_WORDS), np.int64), pairs, np.zeros(len(pairs), np.int8))

    # One branch skips an empty network, one closes the loop; a third would depend on entries. Some
    # versions of LLVM unroll the loop, and name the branches after their counters of iterations.
    (code,) = compiled.inspect_llvm().values()
    code = code.split("define ")[1]
    branches = re.findall(r"br i1 (%\S+),", code)
    assert len(branches) == code.count("br i1")
    counters = re.compile(r"%(niter|epil\.iter|lcmp\.mod|xtraiter)\b")
    assert len([name for name in branches if not counters.match(name)]) <= 2
    assert "switch" not in code
    (machine,) = compiled.inspect_asm().values()
    jumps = re.findall(r"^\s+j(?!mp)[a-z]+\s", machine.split(".Lfunc_end0:")[0], re.MULTILINE)
    assert len(jumps) <= len(branches)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_empty_lists_merge_to_an_empty_result(shape):
    merged = merge_sorted(Entries(np.zeros(shape), *(np.zeros(shape, np.int64) for _ in range(3))))

    assert [len(column) for column in merged] == [0, 0, 0, 0]
    assert [column.dtype.kind for column in merged] == list("fiii")


def test_merge_does_not_modify_its_input():
    lists = make_entries([[(1.0, 0, 0, 0)], [(0.0, 1, 1, 1)]])

    merge_sorted(lists)

    assert lists.distances.tolist() == [[1.0], [0.0]]


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([[(0.0, 0, 0, 0), (1.0, 0, 0, 0)], [(1.0, 0, 0, 0), (0.0, 0, 0, 0)]], "list 1 is not"),
        ([[(0.0, 1, 0, 0), (0.0, 0, 0, 0)]], "list 0 is not"),
        ([[(-1.0, 0, 0, 0), (-2.0, 0, 0, 0)]], "list 0 is not"),
        ([[(np.nan, 0, 0, 0)]], "got NaN"),
    ],
)
def test_unsorted_or_invalid_distances_are_rejected(rows, reason):
    with pytest.raises(ValueError, match=reason):
        merge_sorted(make_entries(rows))


@pytest.mark.parametrize("k", [-1, 2])
def test_k_out_of_range_is_rejected(k):
    with pytest.raises(ValueError, match="from 0 to"):
        merge_sorted(make_entries([[(0.0, 0, 0, 0)]]), k)


def test_columns_of_different_shapes_are_rejected():
    zeros = np.zeros((2, 2), np.int64)

    with pytest.raises(ValueError, match="the same shape"):
        merge_sorted(Entries(np.zeros((2, 3)), zeros, zeros, zeros))
