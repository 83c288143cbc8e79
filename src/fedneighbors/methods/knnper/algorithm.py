"""Functions of kNN-Per: nearest keys, votes, mixtures with a shared model, averaged weights.

Equations are those of the paper: Marfoq, Neglia, Kameni and Vidal, "Personalized Federated Learning
through Local Memorization", ICML 2022.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Array, Floats, Integers
from fedneighbors.kernels.vectors._nearest import SQUARE, RowSearch

Kernel = Literal["paper", "gaussian", "uniform"]

KERNELS: tuple[Kernel, ...] = ("paper", "gaussian", "uniform")
MEMORY_WEIGHTS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
"""Candidates for the weight of the memory (lambda), from which each client chooses."""

MAX_CHANGE_BITS = 6
"""Training has diverged if a weight changes by more than 2 to this power in one round."""


@dataclass(frozen=True)
class Neighbors:
    """The nearest keys of queries (Eqs 4 and 5 of the paper).

    Parameters
    ----------
    positions : int64 array of shape (n_queries, k)
        Positions of the keys, nearest first; ties to the lower position.
    distances : float64 array of shape (n_queries, k)
        Euclidean distances, ascending.
    """

    positions: Integers
    distances: Floats

    def first(self, k: int) -> "Neighbors":
        """Return the first k neighbors of each query, or all if fewer."""
        return Neighbors(self.positions[:, :k], self.distances[:, :k])


def nearest(keys: Floats, queries: Floats, k: int, *, skip: Integers | None = None) -> Neighbors:
    """Find the k nearest keys of each query, or all if fewer.

    A distance depends on the key and the query only, not on other rows or the machine.

    Parameters
    ----------
    keys : float64 array of shape (n_keys, n_dimensions), C order
        Finite keys.
    queries : float64 array of shape (n_queries, n_dimensions), C order
        Finite queries.
    k : int
        Number of neighbors, at least 1.
    skip : int64 array of shape (n_queries,), optional
        For each query, the position of the key to skip because it is the query itself; -1 for
        none. Either every query has such a key, or none has.

    Returns
    -------
    Neighbors
        With k columns, or as many as there are keys that are not skipped, if fewer.

    Raises
    ------
    ValueError
        If shapes disagree, k is below 1 or a query is not finite.
    """
    if keys.ndim != 2 or queries.ndim != 2 or keys.shape[1] != queries.shape[1]:
        raise ValueError(
            f"expected keys and queries of equal width, got {keys.shape} and {queries.shape}"
        )
    if k < 1:
        raise ValueError(f"expected k of 1 or more, got {k}")
    check_finite(queries)
    skip, n_found = fill_skip(skip, len(queries), len(keys), k)
    if not n_found:
        return Neighbors(np.empty((len(queries), 0), np.int64), np.empty((len(queries), 0)))
    search = RowSearch.of(keys, np.arange(len(keys)), kind=SQUARE)
    is_skipping = skip.max(initial=-1) >= 0
    squares, positions = search.nearest(queries, n_found + int(is_skipping))
    if is_skipping:
        is_other = positions != skip[:, None]
        is_other[is_other.all(axis=1), -1] = False
        squares, positions = (
            found[is_other].reshape(-1, n_found) for found in (squares, positions)
        )
    return Neighbors(positions, np.sqrt(squares))


def fill_skip(skip: Integers | None, n_queries: int, n_keys: int, k: int) -> tuple[Integers, int]:
    """Return the key to skip for each query, and the neighbor count."""
    skip = np.full(n_queries, -1) if skip is None else skip
    return skip, max(0, min(k, n_keys - int(skip.max(initial=-1) >= 0)))


def check_finite(queries: Floats) -> None:
    """Raise ValueError if a number in a query is not finite."""
    bad = ~np.isfinite(queries).all(axis=1)
    if bad.any():
        raise ValueError(
            f"expected finite queries, got {int(bad.sum())} of {len(queries)} with NaN or infinity"
            "; embed only rows with finite cells"
        )


def kernel_weights(distances: Floats, *, kernel: Kernel = "paper", sigma: float = 1.0) -> Floats:
    """Compute the weight of each neighbor's vote (Eq 6), without normalization.

    The weights of a query are divided by that of its nearest neighbor.

    Parameters
    ----------
    distances : float64 array of shape (n_queries, k)
        Distances, ascending, not negative.
    kernel : {"paper", "gaussian", "uniform"}
        ``exp(-d / sigma)``, ``exp(-d^2 / (2 sigma^2))``, or 1.
    sigma : float
        Scale of the distances.

    Returns
    -------
    float64 array of shape (n_queries, k)
        In [0, 1]; the nearest neighbor has weight 1, so weights never sum to 0.
    """
    if kernel == "uniform":
        return np.ones_like(distances)
    scaled = distances / sigma
    with np.errstate(invalid="ignore", over="ignore"):
        if kernel == "paper":
            exponents = scaled - scaled[:, :1]
        else:
            # (a - b) (a + b) / 2 stays accurate if a and b are large and close
            exponents = (scaled - scaled[:, :1]) * (scaled + scaled[:, :1]) / 2
    return np.exp(-np.where(distances == distances[:, :1], 0.0, exponents))


def median_distance(distances: Floats, k: int) -> float:
    """Return the median distance of the k-th nearest key.

    Parameters
    ----------
    distances : float64 array of shape (n_queries, n_found)
        Distances, ascending.
    k : int
        Number of the neighbor, from 1; the last one found if there are fewer.

    Returns
    -------
    float
        The median over all queries; 1 if there are no distances or the median is 0.
    """
    if not distances.size:
        return 1.0
    return float(np.median(distances[:, min(k, distances.shape[1]) - 1])) or 1.0


def local_votes(
    neighbors: Neighbors,
    labels: Integers,
    n_classes: int,
    *,
    kernel: Kernel = "paper",
    sigma: float = 1.0,
    counts: Floats | None = None,
) -> Floats:
    """Return the class shares of the neighbors' votes (Eq 6).

    Parameters
    ----------
    neighbors : Neighbors
        Neighbors of n queries, at least one for each.
    labels : int64 array of shape (n_keys,)
        Class of each key, from 0.
    n_classes : int
        Number of classes.
    kernel, sigma
        As in :func:`kernel_weights`.
    counts : float64 array of shape (n_keys,), optional
        Number of rows represented by each key.

    Returns
    -------
    float64 array of shape (n_queries, n_classes)
        Rows sum to 1.

    Raises
    ------
    ValueError
        If there are no neighbors, or a label is not among the classes.
    """
    weights = _weights(neighbors, kernel, sigma)
    if counts is not None:
        weights = weights * counts[neighbors.positions]
    check_classes(labels, n_classes)
    shares = np.zeros((len(weights), n_classes))
    rows = np.arange(len(weights))
    for column in range(weights.shape[1]):  # nearest first: a fixed order of additions
        shares[rows, labels[neighbors.positions[:, column]]] += weights[:, column]
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))


def check_classes(classes: Array, n_classes: int) -> None:
    """Raise unless labels are integers from 0 to ``n_classes - 1``."""
    if not len(classes):
        return
    if classes.dtype.kind not in "iu":
        raise ValueError(f"expected classes from 0 to {n_classes - 1}, got {classes[:5].tolist()}")
    if not 0 <= classes.min() <= classes.max() < n_classes:
        unknown = np.unique(classes[(classes < 0) | (classes >= n_classes)])
        raise ValueError(f"expected classes from 0 to {n_classes - 1}, got {unknown[:5].tolist()}")


def local_means(
    neighbors: Neighbors,
    targets: Floats,
    *,
    kernel: Kernel = "paper",
    sigma: float = 1.0,
) -> Floats:
    """Return the weighted means of the neighbors' targets, for regression.

    Parameters
    ----------
    neighbors : Neighbors
        Neighbors of n queries, at least one for each.
    targets : float64 array of shape (n_keys, n_outputs)
        Target of each key.
    kernel, sigma
        As in :func:`local_votes`.

    Returns
    -------
    float64 array of shape (n_queries, n_outputs)

    Raises
    ------
    ValueError
        If there are no neighbors.
    """
    weights = _weights(neighbors, kernel, sigma)
    sums = np.zeros((len(weights), targets.shape[1]))
    for column in range(weights.shape[1]):
        sums += weights[:, column, None] * targets[neighbors.positions[:, column]]
    return np.asarray(sums / weights.sum(axis=1, keepdims=True))


def _weights(neighbors: Neighbors, kernel: Kernel, sigma: float) -> Floats:
    if neighbors.positions.shape[1] == 0:
        raise ValueError("expected at least one neighbor; an empty memory has no votes")
    return kernel_weights(neighbors.distances, kernel=kernel, sigma=sigma)


def mix(local: Floats, shared: Floats, weight: float) -> Floats:
    """Return the weighted mean of memory and shared model (Eq 7).

    Parameters
    ----------
    local, shared : float64 array of shape (n_queries, n_classes)
        Class shares, or predicted targets, of the memory and of the model.
    weight : float
        Weight of the memory (lambda), in [0, 1]; the model has the remaining weight.
    """
    if not 0 <= weight <= 1:
        raise ValueError(f"expected a weight from 0 to 1, got {weight!r}")
    return weight * local + (1 - weight) * shared


def most_accurate_weight(local: Floats, shared: Floats, labels: Integers) -> float:
    """Return the memory weight with the highest accuracy on held-out rows.

    It is one of :data:`MEMORY_WEIGHTS`. Of several such weights, the middle one is returned; of two
    middle ones, the lower.

    Parameters
    ----------
    local, shared : float64 array of shape (n_rows, n_classes)
        For rows that neither the memory nor the model has seen.
    labels : int64 array of shape (n_rows,)
        Classes of the rows.
    """
    correct = [int((mix(local, shared, w).argmax(axis=1) == labels).sum()) for w in MEMORY_WEIGHTS]
    return _middle(correct, max(correct))


def least_squares_weight(local: Floats, shared: Floats, targets: Floats) -> float:
    """Return the memory weight with the lowest squared error on held-out rows.

    It is one of :data:`MEMORY_WEIGHTS`. Ties are broken as in :func:`most_accurate_weight`.

    Parameters
    ----------
    local, shared : float64 array of shape (n_rows, n_outputs)
        For rows that neither the memory nor the model has seen.
    targets : float64 array of shape (n_rows, n_outputs)
        Targets of the rows.
    """
    errors = [float(((mix(local, shared, w) - targets) ** 2).sum()) for w in MEMORY_WEIGHTS]
    return _middle(errors, min(errors))


def _middle(scores: Sequence[float], best: float) -> float:
    weights = [w for w, score in zip(MEMORY_WEIGHTS, scores, strict=True) if score == best]
    return weights[(len(weights) - 1) // 2]


def binary_places(n_rows: int) -> int:
    """Return the binary places with which summed weight changes fit int64.

    The sum of :func:`weighted_change` over all rows is below 2 to the power of 62.

    Parameters
    ----------
    n_rows : int
        Number of rows of all clients together.
    """
    return 62 - MAX_CHANGE_BITS - n_rows.bit_length()


def weighted_change(
    before: npt.NDArray[np.floating[Any]],
    after: npt.NDArray[np.floating[Any]],
    *,
    n_rows: int,
    bits: int,
) -> Integers:
    """Return a client's contribution to the averaged weights (Eq 13).

    Parameters
    ----------
    before, after : float array of shape (n_weights,)
        Weights sent to the client, and its weights after training.
    n_rows : int
        Number of the client's rows.
    bits : int
        Binary places, from :func:`binary_places` for the rows of all clients.

    Returns
    -------
    int64 array of shape (n_weights,)
        ``n_rows`` times the change in fixed point: sums do not depend on the order of clients.

    Raises
    ------
    FloatingPointError
        If a weight changed by more than 64 or is not finite: training has diverged.
    """
    change = after.astype(np.float64) - before.astype(np.float64)
    if not (np.abs(change) <= 2.0**MAX_CHANGE_BITS).all():
        raise FloatingPointError("training has diverged; lower the learning rate")
    return np.rint(np.ldexp(n_rows * change, bits)).astype(np.int64)


def average_changes(
    before: npt.NDArray[np.floating[Any]], total: Integers, *, n_rows: int, bits: int
) -> npt.NDArray[np.floating[Any]]:
    """Return the shared weights after a round (Eq 13).

    Clients that do not take part in the round count with zero change.

    Parameters
    ----------
    before : float array of shape (n_weights,)
        Weights sent to the clients.
    total : int64 array of shape (n_weights,)
        Sum of :func:`weighted_change` over the participants.
    n_rows : int
        Number of rows of all clients, including those that do not take part.
    bits : int
        Binary places of ``total``.

    Returns
    -------
    float array of shape (n_weights,)
        With the dtype of ``before``, and equal to ``before`` if no client changed it.
    """
    change = np.ldexp(total.astype(np.float64), -bits) / n_rows
    return (before.astype(np.float64) + change).astype(before.dtype)


SOFTENING = 0.02
"""Fraction of the uniform distribution in the votes; prevents log(0) for classes without votes."""


def soften(shares: Floats) -> Floats:
    """Return the logarithms of votes mixed with the uniform distribution.

    Parameters
    ----------
    shares : float64 array of shape (n_rows, n_classes)
        Rows sum to 1.
    """
    return np.asarray(np.log((1 - SOFTENING) * shares + SOFTENING / shares.shape[1]))


def local_prior(labels: Integers, overall: Floats) -> Floats:
    """Return a client's smoothed class shares.

    One row is added, divided among the classes by the overall shares.

    Parameters
    ----------
    labels : int64 array of shape (n_rows,)
        Class of each row of the client.
    overall : float64 array of shape (n_classes,)
        Class shares over all clients, above 0.
    """
    counts = np.bincount(labels, minlength=len(overall))
    return (counts + overall) / (len(labels) + 1)


def local_mean(targets: Floats) -> Floats:
    """Return a client's smoothed mean.

    One row with the mean of all clients, which is 0, is added.

    Parameters
    ----------
    targets : float64 array of shape (n_rows, n_outputs)
        Standardized targets.
    """
    return np.asarray(targets.sum(axis=0) / (len(targets) + 1))


KERNEL_EXPONENT = 0.5
"""Value of ``rate * d^2`` in the random features' kernel ``exp(-rate * d^2)``, for the mean squared
distance of two rows."""


def feature_rate(deviations: Floats) -> float:
    """Return the rate of the random features' kernel.

    Parameters
    ----------
    deviations : float64 array of shape (n_columns,)
        Standard deviations of the columns over all clients; twice the sum of their squares is the
        mean squared distance of two rows. It counts as 1 if the rate would be 0 or infinite.
    """
    with np.errstate(over="ignore"):
        mean_square = 2 * (deviations**2).sum()
        rate = float(KERNEL_EXPONENT / mean_square) if mean_square > 0 else np.inf
    return rate if 0 < rate < np.inf else KERNEL_EXPONENT
