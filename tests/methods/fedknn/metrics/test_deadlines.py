"""Sessions read the clock after a bounded amount of work, and stop when a deadline passes."""

import contextlib
import itertools
import time
from unittest import mock

import numpy as np
import pytest

from fedneighbors.datasets._graphs import Graph
from fedneighbors.datasets._schema import Schema
from fedneighbors.datasets._schema_columns import NumericColumn, SetColumn
from fedneighbors.kernels import _sets as set_kernels
from fedneighbors.kernels.vectors import _quantized
from fedneighbors.methods.fedknn.metrics import (
    _fingerprints,
    _graphs,
    _mixed,
    _places,
    _sessions,
    _sets,
    _strings,
    _vectors,
    metric_of,
)

STEP = 1024
RNG = np.random.default_rng(0)
N = 3000


class Meter:
    """A clock that stands still and measures the work between two readings."""

    def __init__(self):
        self.work, self.largest, self.total = 0, 0, 0

    def read(self):
        self.largest, self.work = max(self.largest, self.work), 0
        return 0.0

    def add(self, work):
        self.work += work
        self.total += work

    def measure(self, module, name, work_of):
        """Return a patch of a function, with its work by its result and arguments."""
        function = getattr(module, name)

        def call(*args, **kwargs):
            result = function(*args, **kwargs)
            self.add(work_of(result, *args))
            return result

        return mock.patch.object(module, name, call)


def by_result(width):
    return lambda result, *_: width * len(result)


def by_budget(_, *args):
    return args[-1]


def by_blocks(_, rows, *args):
    (first, end), n_columns = args[-1], 2 * rows[0].shape[1]
    return 64 * n_columns * (end - first)


WORDS = [set((RNG.zipf(1.3, 8) % 50).tolist()) for _ in range(N)]
LONG = ["".join(RNG.choice(list("acgt"), 600)) for _ in range(150)]
TITLES = ["".join(RNG.choice(list("abcdefgh"), RNG.integers(5, 40))) for _ in range(N)]
PATH = [(i, i + 1) for i in range(7)]
GRAPHS = [Graph("".join(RNG.choice(list("CNO"), 8)), PATH) for _ in range(100)]
TABLE = Schema(tuple(NumericColumn(f"x{i}", 0, 1) for i in range(8)))
ROWS_WITH_WORDS = list(zip(RNG.random((N, 8)), WORDS, strict=True))
CASES = {
    "places": (
        "haversine",
        np.column_stack([RNG.uniform(-180, 180, N), RNG.uniform(-90, 90, N)]),
        [(_places, "great_circle_m", by_result(64)), (_places, "square_sums", by_result(64))],
    ),
    "few columns": (
        "euclidean",
        RNG.normal(size=(N, 3)),
        [(_vectors, "square_sums", by_result(3))],
    ),
    "many columns": (
        "euclidean",
        RNG.normal(size=(N, 32)),
        [(_vectors, "square_sums", by_result(32)), (_quantized, "_bound", by_blocks)],
    ),
    "manhattan": (
        "manhattan",
        RNG.normal(size=(N, 32)),
        [(_vectors, "absolute_sums", by_result(32))],
    ),
    "equal rows": (
        "euclidean",
        RNG.normal(size=(1100, 3))[RNG.integers(0, 1100, N)],
        [(_vectors, "square_sums", by_result(3))],
    ),
    "mixed": (TABLE, RNG.random((N, 8)), [(_mixed, "gower_distances", by_result(8))]),
    "mixed with sets": (
        Schema((*TABLE.columns, SetColumn("words", missing="keep"))),
        [
            _mixed.SetRow(np.append(cells, 0.0), (frozenset(map(str, words)),))
            for cells, words in ROWS_WITH_WORDS
        ],
        [
            (set_kernels, "count_holders", by_budget),
            (_sets._SetSession, "_measure", by_result(16)),
            (_mixed, "gower_distances", by_result(9)),
        ],
    ),
    "fingerprints": (
        "tanimoto",
        RNG.integers(0, 256, (N, 32), np.uint8),
        [(_fingerprints, "count_common", by_result(4))],
    ),
    "sets": (
        "jaccard",
        WORDS,
        [(set_kernels, "count_holders", by_budget), (_sets._SetSession, "_measure", by_result(16))],
    ),
    "long strings": (
        "edit",
        LONG,
        [(_strings, "verify_bands", by_budget), (_strings, "scan_slices", by_budget)],
    ),
    "short strings": ("edit", TITLES, [(_strings, "scan_slices", by_budget)]),
}
BY_TREE = ("places", "few columns", "equal rows")  # a tree counts at once


@pytest.mark.parametrize("case", CASES)
def test_the_work_between_two_readings_of_the_clock_is_bounded(case):
    metric, objects, functions = CASES[case]
    index = metric_of(metric).index(objects, ranks=RNG.permutation(len(objects)))
    radius = index.open(objects[0]).next(len(objects) // 2).distances[-1]
    meter = Meter()

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(_sessions, "STEP_CELLS", STEP))
        stack.enter_context(mock.patch.object(_fingerprints, "_ROWS_AT_ONCE", 1024))
        stack.enter_context(mock.patch.object(time, "monotonic", meter.read))
        for function in functions:
            stack.enter_context(meter.measure(*function))
        index.open(objects[0]).next(len(objects), deadline_s=1.0)
        index.open(objects[0]).count(radius, deadline_s=1.0)
        index.open(objects[0]).bounds(deadline_s=1.0)
        meter.read()

    assert meter.largest <= 2 * max(STEP, 64 * 64)  # a block of rows; two kinds of strings
    assert meter.total > 8 * STEP


@pytest.mark.parametrize("case", [*CASES, "graphs", "function"])
def test_a_late_count_raises_and_another_call_continues(case):
    metric, objects, _ = CASES.get(case, ("graph_edit", GRAPHS, None))
    if case == "function":
        metric, objects = (lambda x, y: abs(x - y)), list(range(50))
    index = metric_of(metric).index(objects, ranks=np.arange(len(objects)))
    radius = index.open(objects[0]).next(20).distances[-1]
    expected = index.open(objects[0]).count(radius)

    with (
        mock.patch.object(_sessions, "STEP_CELLS", 64),
        mock.patch.object(_graphs, "_CLOCK_CHECK_WORK", 1),
    ):
        session, n_late = index.open(objects[0]), 0
        with mock.patch.object(time, "monotonic", itertools.count().__next__):
            for _ in range(3):
                try:
                    assert session.count(radius, deadline_s=1) == expected
                except TimeoutError:
                    n_late += 1
        found = session.count(radius)

    assert n_late > 0 or case in BY_TREE
    assert found == expected
