import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from fedneighbors.kernels import bitonic
from fedneighbors.kernels.bitonic import PADDING_RANK, Entries, merge_sorted, trace
from tests.naive import bitonic as naive

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
def shelves(draw):
    """Lists of one length, each sorted, some of them short and padded."""
    n_lists, length = draw(st.integers(1, 9)), draw(st.integers(1, 20))
    rows = [sorted(draw(st.lists(REAL, max_size=length))) for _ in range(n_lists)]
    return [row + [PADDING] * (length - len(row)) for row in rows]


def entries(rows):
    columns = zip(*(zip(*row, strict=True) for row in rows), strict=True)
    distances, *keys = columns
    return Entries(np.array(distances, np.float64), *(np.array(key, np.int64) for key in keys))


def rows_of(merged):
    return list(zip(*(column.tolist() for column in merged), strict=True))


@settings(max_examples=300, deadline=None)
@given(shelves(), st.data())
def test_merging_lists_is_sorting_them(rows, data):
    k = data.draw(st.integers(0, len(rows[0])))

    merged = merge_sorted(entries(rows), k)

    assert rows_of(merged) == naive.merge_sorted(rows, k)


@pytest.mark.parametrize(("n_lists", "length"), [(1, 1), (2, 1), (3, 5), (8, 128), (16, 100)])
def test_large_shapes_merge_in_order(n_lists, length):
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


class Watched:
    """A table that notes which rows are read and written, in order."""

    def __init__(self, table):
        self.table = table
        self.touched = []

    def __getitem__(self, where):
        row = where[0] if isinstance(where, tuple) else where
        self.touched.append(("read", int(row)))
        return self.table[where]

    def __setitem__(self, where, value):
        self.touched.append(("write", int(where[0])))
        self.table[where] = value


def random_table(n_lists, size, seed):
    rng = np.random.default_rng(seed)
    table = np.zeros((n_lists, size, 4), np.int64)
    table[:, :, 0] = np.sort(rng.integers(0, rng.integers(1, 10**6), (n_lists, size)), axis=1)
    table[:, :, 2] = np.arange(n_lists)[:, np.newaxis]
    table[:, :, 3] = np.arange(size)
    return table.reshape(-1, 4)


def touched_by_network(table, n_lists, size):
    watched = Watched(table)
    # the function that is compiled, run as plain Python on a table that keeps watch
    bitonic._exchange.py_func(watched, trace(n_lists, size))
    return watched.touched


def touched_by_heap(table, n_lists, size):
    watched = Watched(table)
    naive.merge_by_heap(watched, n_lists, size, size)
    return watched.touched


@pytest.mark.parametrize(("n_lists", "size"), [(2, 8), (5, 16), (8, 4)])
def test_what_is_touched_depends_on_the_shape_alone(n_lists, size):
    traces = [
        touched_by_network(random_table(n_lists, size, seed), n_lists, size) for seed in range(100)
    ]

    laid_out = [
        (call, row)
        for i, j in trace(n_lists, size).tolist()
        for call in ("read", "write")
        for row in [i] * 4 + [j] * 4
    ]
    assert all(touched == laid_out for touched in traces)


@pytest.mark.slow
def test_a_hundred_thousand_inputs_leave_one_trace():
    traces = {tuple(touched_by_network(random_table(3, 4, seed), 3, 4)) for seed in range(100_000)}

    assert len(traces) == 1


@pytest.mark.parametrize(("n_lists", "size"), [(2, 8), (5, 16), (8, 4)])
def test_a_heap_in_its_place_is_caught(n_lists, size):
    traces = {
        tuple(touched_by_heap(random_table(n_lists, size, seed), n_lists, size))
        for seed in range(100)
    }

    assert len(traces) > 50


def test_the_watched_network_sorts():
    table = random_table(4, 8, seed=0)
    expected = sorted(map(tuple, table.tolist()))[:8]

    touched_by_network(table, 4, 8)

    assert list(map(tuple, table[:8].tolist())) == expected


def test_an_exchange_is_compiled_without_a_branch_on_the_data():
    compiled = njit(nogil=True)(bitonic._exchange.py_func)

    compiled(random_table(2, 1, seed=0), trace(2, 1))

    # one branch skips an empty network, one closes the loop; a third would look at entries
    (code,) = compiled.inspect_llvm().values()
    assert code.split("define ")[1].count("br i1") <= 2
    assert "switch" not in code.split("define ")[1]
    (machine,) = compiled.inspect_asm().values()
    jumps = re.findall(r"^\s+j(?!mp)[a-z]+\s", machine.split(".Lfunc_end0:")[0], re.MULTILINE)
    assert len(jumps) <= 2


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_nothing_merges_to_nothing(shape):
    merged = merge_sorted(Entries(np.zeros(shape), *(np.zeros(shape, np.int64) for _ in range(3))))

    assert [len(column) for column in merged] == [0, 0, 0, 0]
    assert [column.dtype.kind for column in merged] == list("fiii")


def test_lists_are_left_as_they_were():
    lists = entries([[(1.0, 0, 0, 0)], [(0.0, 1, 1, 1)]])

    merge_sorted(lists)

    assert lists.distances.tolist() == [[1.0], [0.0]]


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([[(0.0, 0, 0, 0), (1.0, 0, 0, 0)], [(1.0, 0, 0, 0), (0.0, 0, 0, 0)]], "list 1 is not"),
        ([[(0.0, 1, 0, 0), (0.0, 0, 0, 0)]], "list 0 is not"),
        ([[(-1.0, 0, 0, 0)]], "negative"),
        ([[(np.nan, 0, 0, 0)]], "negative one or NaN"),
    ],
)
def test_lists_that_are_not_sorted_distances_are_refused(rows, reason):
    with pytest.raises(ValueError, match=reason):
        merge_sorted(entries(rows))


@pytest.mark.parametrize("k", [-1, 2])
def test_more_than_a_list_holds_is_refused(k):
    with pytest.raises(ValueError, match="from 0 to"):
        merge_sorted(entries([[(0.0, 0, 0, 0)]]), k)


def test_columns_of_different_shapes_are_refused():
    zeros = np.zeros((2, 2), np.int64)

    with pytest.raises(ValueError, match="one shape"):
        merge_sorted(Entries(np.zeros((2, 3)), zeros, zeros, zeros))
