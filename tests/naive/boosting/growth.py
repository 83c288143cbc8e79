"""Naive twin of the growth of a tree: one split at a time, on the rows themselves."""

from tests.naive.boosting.histograms import sum_bins
from tests.naive.boosting.splits import find_split


def grow(bins, starts, gradients, hessians, *, max_leaves, max_depth, **limits):
    """Return the splits, and the rows of the leaves.

    Both are mappings by place: place 1 is the root, places 2 p and 2 p + 1 are the children of p. A
    split is (column, bin, missing left).
    """
    leaves, splits = {1: list(range(len(gradients)))}, {}
    while len(leaves) < max_leaves:
        found = []
        for place, rows in leaves.items():
            if place.bit_length() > max_depth:
                continue
            histogram = sum_bins(bins, starts, rows, gradients, hessians)
            split = find_split(histogram, starts, **limits)
            if split is not None:
                found.append((-split[0], place, split))
        if not found:
            break
        _, place, (_, column, cut, missing_left, *_) = min(found)
        splits[place] = column, cut, missing_left
        missing = starts[column + 1] - starts[column] - 1
        for row in leaves.pop(place):
            cell = bins[column][row]
            goes_left = missing_left if cell == missing else cell <= cut
            leaves.setdefault(2 * place + (not goes_left), []).append(row)
    return splits, leaves
