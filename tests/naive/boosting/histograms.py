"""Naive twin of the histograms of gradients."""


def sum_bins(bins, starts, rows, gradients, hessians):
    """Return the sums [gradient, Hessian, rows] of each bin."""
    result = [[0, 0, 0] for _ in range(starts[-1])]
    for j, column in enumerate(bins):
        for row in rows:
            cell = result[starts[j] + column[row]]
            cell[0] += gradients[row]
            cell[1] += 0 if hessians is None else hessians[row]
            cell[2] += 1
    return result
