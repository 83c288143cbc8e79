"""Sum of the values of regression trees for rows."""

from typing import Any

from numba import njit

from fedneighbors._typing import Floats


@njit(cache=True, nogil=True)
def _add(
    x: Any,
    features: Any,
    thresholds: Any,
    missing_left: Any,
    children: Any,
    values: Any,
    roots: Any,
    first: int,
    scores: Any,
) -> None:
    n_rows, n_scores = scores.shape
    for t in range(roots.size):
        column = (first + t) % n_scores
        for i in range(n_rows):
            node = roots[t]
            while features[node] >= 0:
                value = x[i, features[node]]
                goes_left = missing_left[node] if value != value else value <= thresholds[node]
                node = children[node] if goes_left else children[node] + 1
            scores[i, column] += values[node]


def add_values(x: Floats, trees: Any, *, first: int, scores: Floats) -> None:
    """Add the values of trees to the scores of rows.

    The trees are added one after another, so that trees of several calls give the same bits as
    those of one.

    Parameters
    ----------
    x : float64 array of shape (n_rows, n_features)
        Rows; missing cells are NaN.
    trees : object with the arrays of trees
        ``features`` (int32, the column of each inner node, -1 for a leaf), ``thresholds`` (float64,
        rows up to it go left), ``missing_left`` (bool), ``children`` (int32, the left child; the
        right one is the next node), ``values`` (float64, of leaves), and ``roots`` (int64, by
        tree). They are trusted: each child has a larger index than its parent and exists, and each
        column exists.
    first : int
        Number of the first tree; tree t adds to score t modulo the number of scores.
    scores : float64 array of shape (n_rows, n_scores)
        Changed in place.
    """
    _add(
        x,
        trees.features,
        trees.thresholds,
        trees.missing_left,
        trees.children,
        trees.values,
        trees.roots[first:],
        first,
        scores,
    )
