"""Slow twin of ``fedneighbors.kernels._bitonic``: sorting, and a heap whose accesses tell tales."""

import heapq


def merge_sorted(lists, k):
    rows = [entry for row in lists for entry in row]
    return sorted(rows)[:k]


def merge_by_heap(table, n_lists, size, k):
    """Merge as a heap of list heads would; ``table[i]`` is looked up as entries are needed."""
    heap = [(tuple(table[r * size]), r, 0) for r in range(n_lists)]
    heapq.heapify(heap)
    merged = []
    for _ in range(k):
        entry, r, i = heapq.heappop(heap)
        merged.append(entry)
        if i + 1 < size:
            heapq.heappush(heap, (tuple(table[r * size + i + 1]), r, i + 1))
    return merged
