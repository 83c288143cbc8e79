"""CPU milliseconds of the oblivious merge, compared with ``heapq.merge`` and a full sort.

Merges sorted lists into the k nearest, for numbers and lengths of lists that are typical for a
broker. Prints medians for the compare-exchanges alone and for the whole call, and the ratios of the
peers to the whole call. The peers' memory accesses reveal which entries are the nearest; those of
the sorting network do not.
"""

import heapq
import itertools
import statistics
import time

import numpy as np

from fedneighbors.kernels._bitonic import (
    Entries,
    _exchange,
    _next_power_of_two,
    _to_integers,
    list_exchanges,
    merge_sorted,
)

REPEATS = 51
TARGET_MS = 0.1  # per 1,024 entries
SHAPES = [(8, 128), (16, 256), (4, 16), (16, 64)]


def measure_ms(task, *, prepare=lambda: ()):
    """Return the median CPU milliseconds of a call, without its preparation."""
    times = []
    for _ in range(REPEATS):
        arguments = prepare()
        start = time.process_time_ns()
        task(*arguments)
        times.append(time.process_time_ns() - start)
    return statistics.median(times) / 1e6


def draw_sorted_lists(n_lists, length):
    """Return sorted lists with ties."""
    rng = np.random.default_rng(n_lists)
    distances = np.sort(rng.integers(0, 4 * length, (n_lists, length)).astype(float), axis=1)
    positions = np.tile(np.arange(length), (n_lists, 1))
    providers = np.repeat(np.arange(n_lists), length).reshape(n_lists, length)
    ranks = positions * n_lists + providers  # ascending within a list
    return Entries(distances, ranks, providers, positions)


def merge_by_heap(lists, k):
    """Return the k smallest entries by a heap."""
    return list(itertools.islice(heapq.merge(*lists), k))


def merge_by_sort(entries, k):
    """Return the order of the k smallest entries by a full sort."""
    return np.lexsort((entries.ranks.ravel(), entries.distances.ravel()))[:k]


def main():
    """Print the table."""
    print(
        "lists x length  exchanges   network ms  whole call ms  heapq.merge ms  lexsort ms  ratio"
    )
    for n_lists, length in SHAPES:
        entries = draw_sorted_lists(n_lists, length)
        lists = [list(zip(*(column[r].tolist() for column in entries), strict=True))
                for r in range(n_lists)]  # fmt: skip
        merged = merge_sorted(entries, length)
        assert list(zip(*(c.tolist() for c in merged), strict=True)) == merge_by_heap(lists, length)
        pairs = list_exchanges(n_lists, length)
        network_ms = measure_ms(_exchange, prepare=lambda e=entries, n=length, p=pairs: (
            _make_table(e, n), p, np.empty(len(p), np.int8)))  # fmt: skip
        call_ms = measure_ms(lambda e=entries, n=length: merge_sorted(e, n))
        heap_ms = measure_ms(lambda s=lists, n=length: merge_by_heap(s, n))
        sort_ms = measure_ms(lambda e=entries, n=length: merge_by_sort(e, n))
        limit = f"{TARGET_MS} ms {'met' if call_ms <= TARGET_MS else 'MISSED'}"
        print(
            f"{n_lists:5} x {length:<8} {len(pairs):9} {network_ms:12.4f} {call_ms:9.4f} "
            f"{heap_ms:15.4f} {sort_ms:11.4f} {heap_ms / call_ms:6.2f}x heap, "
            f"{sort_ms / call_ms:.2f}x sort"
            + (f"; target {limit}" if n_lists * length == 1024 else "")
        )


def _make_table(entries, length):
    return _to_integers(entries, _next_power_of_two(length)).reshape(-1, 4)


if __name__ == "__main__":
    main()
