"""Naive versions of ``kernels._bitonic``: sorting, and a heap whose accesses reveal the data."""

import heapq


def merge_sorted(lists, k):
    rows = [entry for row in lists for entry in row]
    return sorted(rows)[:k]


def merge_by_heap(table, n_lists, size, k):
    """Merge lists with a heap of their heads, reading entries on demand."""
    heap = [(tuple(table[r * size]), r, 0) for r in range(n_lists)]
    heapq.heapify(heap)
    merged = []
    for _ in range(k):
        entry, r, i = heapq.heappop(heap)
        merged.append(entry)
        if i + 1 < size:
            heapq.heappush(heap, (tuple(table[r * size + i + 1]), r, i + 1))
    return merged
