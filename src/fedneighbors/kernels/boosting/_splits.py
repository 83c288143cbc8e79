"""Search for the best split of a node in its histograms."""

from typing import Any, NamedTuple

from numba import njit

from fedneighbors._typing import Integers

# Sums, squares and quotients each round by up to 2**-53; a smaller gain may be rounding alone.
_MIN_RELATIVE_GAIN = 2.0**-44


class NodeSplit(NamedTuple):
    """Best split of a node.

    Attributes
    ----------
    gain : float
        Decrease of the loss, times two, in units of squared gradients by Hessians.
    feature, bin : int
        Rows up to this bin of this column go left.
    missing_left : bool
        Direction of rows without a value in the column.
    gradient, hessian, n_rows : int
        Sums over the rows that go left.
    """

    gain: float
    feature: int
    bin: int
    missing_left: bool
    gradient: int
    hessian: int
    n_rows: int


@njit(cache=True, nogil=True, error_model="numpy")  # no divisor is 0: min_hessian is at least 1
def _find(histogram: Any, starts: Any, l2: float, min_hessian: int, min_rows: int) -> Any:
    gradient, hessian, n_rows = 0, 0, 0
    for k in range(starts[0], starts[1]):
        gradient += histogram[k, 0]
        hessian += histogram[k, 1]
        n_rows += histogram[k, 2]
    best = 0.0
    found = (-1, -1, False, 0, 0, 0)
    for j in range(starts.size - 1):
        missing = starts[j + 1] - 1  # the last bin of a column has its missing cells
        n_directions = 2 if histogram[missing, 2] > 0 else 1
        for direction in range(n_directions):
            left_g, left_h, left_n = 0, 0, 0
            if direction == 1:
                left_g, left_h = histogram[missing, 0], histogram[missing, 1]
                left_n = histogram[missing, 2]
            for k in range(starts[j], missing):
                if histogram[k, 2] == 0:  # the same split as that of the bin before
                    continue
                left_g += histogram[k, 0]
                left_h += histogram[k, 1]
                left_n += histogram[k, 2]
                right_h, right_n = hessian - left_h, n_rows - left_n
                if right_n < min_rows:
                    break
                if left_n < min_rows or left_h < min_hessian or right_h < min_hessian:
                    continue
                left_f, right_f = float(left_g), float(gradient - left_g)
                score = left_f * left_f / (left_h + l2) + right_f * right_f / (right_h + l2)
                if score > best:
                    best = score
                    goes_left = direction == 1
                    if n_directions == 1:  # without a missing cell: to the larger child
                        goes_left = left_n > right_n
                    found = (j, k - starts[j], goes_left, left_g, left_h, left_n)
    total = float(gradient)
    gain = best - total * total / (hessian + l2) if best > 0.0 else 0.0
    return gain, best, found


def find_split(
    histogram: Integers, starts: Integers, *, l2: float, min_hessian: int, min_rows: int
) -> NodeSplit | None:
    """Return the split with the largest gain, or None.

    Ties go to the lower column, then to missing cells on the right, then to the lower bin.

    Parameters
    ----------
    histogram : int64 array of shape (n_bins, 3)
        Sum of gradients, sum of Hessians and number of rows of each bin of the node; Hessians are
        not negative. The last bin of each column is that of its missing cells.
    starts : int64 array of shape (n_features + 1,)
        First bin of each column, and the total number of bins; at least one column.
    l2 : float
        Added to each sum of Hessians; not negative.
    min_hessian : int
        Minimum sum of Hessians of a child, at least 1.
    min_rows : int
        Minimum number of rows of a child, at least 1.
    """
    gain, best, (feature, cut, *rest) = _find(histogram, starts, l2, min_hessian, min_rows)
    if not gain > _MIN_RELATIVE_GAIN * best:
        return None
    return NodeSplit(gain, feature, cut, *rest)
