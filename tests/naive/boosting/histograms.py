"""Naive twins of the histograms of gradients and of the rows on each side of a split."""


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


def split_rows(column, rows, *, last, extra):
    """Return the rows on the left and on the right."""
    left = [row for row in rows if column[row] <= last or column[row] == extra]
    return left, [row for row in rows if row not in left]
