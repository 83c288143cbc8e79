"""Naive version of ``fedneighbors.kernels.vectors._duplicates``."""


def group_rows(rows, ranks):
    """Return the rows of each distinct row, in the order of their ranks."""
    groups = {}
    for row in sorted(range(len(rows)), key=lambda i: ranks[i]):
        groups.setdefault(rows[row].tobytes(), []).append(row)
    return sorted(groups.values())


def nearest_rows(distances, ranks, k):
    """Sort all rows by (distance, rank)."""
    order = sorted(range(len(distances)), key=lambda row: (distances[row], ranks[row]))[:k]
    return [distances[row] for row in order], order
