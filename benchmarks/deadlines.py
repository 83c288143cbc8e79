"""Largest gap between two clock checks of each search engine, and work after a deadline.

Sessions read the clock between two steps of their work. For each metric the script searches, counts
and bounds on one table, and prints the largest CPU time between two readings, in milliseconds, and
the call in which it occurred. Then a provider answers private requests and filtered ones until
several deadlines, and the script prints the longest CPU time that it worked after one. Tables have
one million objects by default (the first argument); those of strings, graphs and genomes have
fewer, as printed. Further arguments select metrics. All objects are generated.
"""

import sys
import time
from unittest import mock

import numpy as np

from fedneighbors.datasets._graphs import Graph
from fedneighbors.datasets._schema import Schema
from fedneighbors.datasets._schema_columns import CategoricalColumn, NumericColumn
from fedneighbors.federation._messages import encode
from fedneighbors.federation._roles import Refused
from fedneighbors.methods.fedknn._filters import FilterColumns, filter_text
from fedneighbors.methods.fedknn._provider import Provider
from fedneighbors.methods.fedknn._queries import FilteredQuery, decode_query, encode_query
from fedneighbors.methods.fedknn._warmup import warmup
from fedneighbors.methods.fedknn.metrics import metric_of
from fedneighbors.methods.fedknn.private._padding import PaddedBoundRequest, PaddedNearestRequest
from fedneighbors.methods.fedknn.protocol import NearestRequest, RangeCountRequest

TARGET_MS = 50.0
LATE_S = 3600.0  # no deadline passes
DEADLINES_S = (0.0, 0.02, 0.1, 0.5, 2.0)
N_NEAREST = np.array([10], np.int64)
REQUESTS = {
    "private bounds": lambda query, _: PaddedBoundRequest("q", query, 10, 0.0),
    "private nearest": lambda query, _: PaddedNearestRequest("q", query, N_NEAREST, 10, 0.0),
    "5 % left": lambda query, _: NearestRequest("q", keep(query, 0.05), 10, None),
    "half left": lambda query, _: NearestRequest("q", keep(query, 0.5), 10, None),
    "5 % counted": lambda query, radius: RangeCountRequest("q", keep(query, 0.05), radius),
    "half counted": lambda query, radius: RangeCountRequest("q", keep(query, 0.5), radius),
}


def keep(query, fraction):
    """Return a query whose filter leaves a fraction of objects."""
    return encode(FilteredQuery(query, filter_text({"place": {"<": fraction}})))


CALLS = {
    "next 10": lambda session, _: session.next(10, deadline_s=LATE_S),
    "next 10,000": lambda session, _: session.next(10_000, deadline_s=LATE_S),
    "count": lambda session, radius: session.count(radius, deadline_s=LATE_S),
    "bounds": lambda session, _: session.bounds(deadline_s=LATE_S),
}


class Readings:
    """A clock that measures the CPU time since its last reading."""

    def __init__(self):
        """Set the clock to now."""
        self._last, self.largest, self.n = time.process_time(), 0.0, 0

    def read(self):
        """Return the time, and record the gap."""
        now = time.process_time()
        self.largest, self._last = max(self.largest, now - self._last), now
        self.n += 1
        return now


def measure_call(index, query, call, radius):
    """Return the largest gap in milliseconds, and the number of readings."""
    readings = Readings()
    with mock.patch.object(time, "monotonic", readings.read):
        session = index.open(query)
        call(session, radius)
        readings.read()
    return 1e3 * readings.largest, readings.n


def measure_excess(provider, request):
    """Return the longest time after a deadline in milliseconds, and replies."""
    largest, n_replies = 0.0, 0
    with mock.patch.object(time, "monotonic", time.process_time):
        for deadline_s in DEADLINES_S:
            provider.source._filtered.clear()
            provider._open.clear()
            provider.end = time.process_time() + deadline_s
            try:
                provider.answer(request)
                n_replies += 1
            except Refused:
                pass
            largest = max(largest, time.process_time() - provider.end)
    return 1e3 * largest, n_replies


def make_provider(metric, objects):
    """Return a provider with a column for filters."""
    places = np.random.default_rng(1).random(len(objects))
    columns = FilterColumns.of({"place": places}, len(objects))
    with mock.patch.object(time, "monotonic", time.process_time):
        return Provider.of("p", objects, metric_of(metric), decode=decode_query, columns=columns)


def draw_strings(rng, n, letters, lengths):
    """Return random strings, each with a few edits of an earlier one."""
    sizes = rng.integers(*lengths, max(n // 100, 1))
    stems = ["".join(rng.choice(list(letters), size)) for size in sizes]
    strings = []
    for i in range(n):
        letter, stem = rng.choice(list(letters)), stems[i % len(stems)]
        cut = int(rng.integers(0, len(stem)))
        strings.append(stem[:cut] + letter + stem[cut + int(rng.integers(0, 4)) :])
    return strings


def draw_graph(rng):
    """Return a tree of 6 to 12 nodes."""
    n = int(rng.integers(6, 13))
    edges = [(int(rng.integers(0, i)), i) for i in range(1, n)]
    return Graph("".join(rng.choice(list("CCCNO"), n)), edges)


def make_cases(rng, n):
    """Yield (name, metric, objects, radius)."""
    places = np.column_stack([rng.uniform(-180, 180, n), rng.uniform(-85, 85, n)])
    yield "haversine", "haversine", places, 8e6
    yield "euclidean, 3 columns", "euclidean", rng.normal(size=(n, 3)), 2.0
    yield "euclidean, 64 columns", "euclidean", rng.normal(size=(n, 64)).astype("f4"), 11.0
    yield "euclidean, equal rows", "euclidean", rng.integers(0, 9, (n, 4)).astype(float), 5.0
    yield "manhattan, 64 columns", "manhattan", rng.normal(size=(n, 64)).astype("f4"), 72.0
    columns = [NumericColumn(f"x{i}", 0, 1) for i in range(10)]
    words = [CategoricalColumn(f"w{i}", ("a", "b", "c")) for i in range(10)]
    cells = np.column_stack([rng.random((n, 10)), rng.integers(0, 3, (n, 10))])
    yield "tabular, 20 columns", Schema((*columns, *words)), cells, 0.4
    bits = rng.integers(0, 256, (n, 256), np.uint8) & rng.integers(0, 256, (n, 256), np.uint8)
    bits &= rng.integers(0, 256, (n, 256), np.uint8) & rng.integers(0, 256, (n, 256), np.uint8)
    yield "tanimoto, 2,048 bits", "tanimoto", bits, 0.95
    del bits
    words = (rng.zipf(1.2, (n, 8)) % 100_000).tolist()
    yield "jaccard, Zipf words", "jaccard", words, 0.8
    yield "jaccard, equal sets", "jaccard", [list(range(8))] * n, 0.5
    n_strings = min(n, 300_000)
    titles = draw_strings(rng, n_strings, "abcdefghijklmnop ", (20, 80))
    yield f"edit, {n_strings} titles", "edit", titles, 30.0
    genomes = draw_strings(rng, min(n, 2_000), "acgt", (9_000, 11_000))
    yield f"edit, {len(genomes)} genomes of 10,000 letters", "edit", genomes, 3_000.0
    graphs = [draw_graph(rng) for _ in range(min(n, 20_000))]
    yield f"graph_edit, {len(graphs)} graphs", "graph_edit", graphs, 3.0


def main():
    """Print the table."""
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    only = sys.argv[2:]
    warmup()
    for name, metric, objects, radius in make_cases(np.random.default_rng(0), n):
        if only and not any(name.startswith(word) for word in only):
            continue
        provider = make_provider(metric, objects)
        index, query = provider.source._all.index, objects[len(objects) // 3]
        gaps = {key: measure_call(index, query, call, radius) for key, call in CALLS.items()}
        largest = max(gap for gap, _ in gaps.values())
        details = ", ".join(f"{key} {gap:.1f} ({n} readings)" for key, (gap, n) in gaps.items())
        print(
            f"{name:<44} largest gap {largest:6.1f} ms (target {TARGET_MS:g} ms: "
            f"{'met' if largest <= TARGET_MS else 'MISSED'}); {details}",
            flush=True,
        )
        frame = encode_query(query)
        late = {
            key: measure_excess(provider, make(frame, radius)) for key, make in REQUESTS.items()
        }
        largest = max(excess for excess, _ in late.values())
        details = ", ".join(
            f"{key} {excess:.1f} ({n} replies)" for key, (excess, n) in late.items()
        )
        print(
            f"{'':<44} after an end {largest:5.1f} ms (target {TARGET_MS:g} ms: "
            f"{'met' if largest <= TARGET_MS else 'MISSED'}); {details}",
            flush=True,
        )
        del provider, index


if __name__ == "__main__":
    main()
