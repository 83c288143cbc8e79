"""Votes of the nearest objects: weights by distance, and sums for each class."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from fedneighbors._typing import Array, Floats, Integers

WEIGHTS = ("uniform", "distance")
NEGATIVE = (
    "distances of {} may be negative, so that their inverses are no weights; use "
    "weights='uniform' or another metric"
)
"""Message for weights that are inverses of negative distances."""


def check_weights(weights: Any) -> None:
    """Raise ValueError unless the kind of weights is known."""
    if weights not in WEIGHTS:
        raise ValueError(f"expected weights as one of {WEIGHTS}, got {weights!r}")


def group_by_number(
    distances: Sequence[Floats], positions: Sequence[Integers]
) -> Iterator[tuple[Integers, Floats, Integers]]:
    """Group queries by their number of neighbors.

    Yields the positions of the queries, and tables of distances and positions of their neighbors.
    """
    lengths = np.array(list(map(len, positions)))
    for length in np.unique(lengths):
        group = np.flatnonzero(lengths == length)
        queries = group.tolist()
        near = np.stack([distances[query] for query in queries])
        yield group, near, np.stack([positions[query] for query in queries])


def weigh(distances: Floats, copies: Floats, weights: str) -> Floats:
    """Return the weights of each query's neighbors.

    Parameters
    ----------
    distances : float64 array of shape (n_queries, n_neighbors)
        Distances, ascending.
    copies : float64 array of shape (n_queries, n_neighbors)
        How often each neighbor counts; 0 for not at all.
    weights : {"uniform", "distance"}
        Equal weights, or the inverse of the distance. With the latter, if some neighbors are at
        distance 0, only these count.
    """
    if weights == "uniform":
        return copies
    with np.errstate(divide="ignore", over="ignore"):
        inverses = 1.0 / distances
    infinite = np.isinf(inverses) & (copies > 0)
    at_zero = infinite.any(axis=1, keepdims=True)
    return np.where(at_zero, infinite, np.where(copies > 0, inverses, 0.0)) * copies


def count_votes(
    groups: Iterable[tuple[Any, Integers, Floats]], codes: Array, n_classes: int
) -> Floats:
    """Return each class's fraction of the neighbors' total weight.

    Parameters
    ----------
    groups : iterable of (queries, positions, weights)
        Queries with the same number of neighbors, and these neighbors.
    codes : int64 array of shape (n_objects,)
        Number of the class of each object.
    n_classes : int
        Number of classes.

    Returns
    -------
    float64 array of shape (n_queries, n_classes)
        Rows sum to 1.
    """
    found = list(groups)
    totals = np.zeros((sum(len(positions) for _, positions, _ in found), n_classes))
    for queries, positions, weights in found:
        rows = np.arange(len(positions))[:, None] * n_classes
        cells = (rows + codes[positions]).ravel()
        counts = np.bincount(cells, weights.ravel(), len(positions) * n_classes)
        totals[queries] = counts.reshape(len(positions), -1)
    return np.asarray(totals / totals.sum(axis=1, keepdims=True))
