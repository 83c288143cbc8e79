"""kNN-Per as mathematics: votes of neighbors, their mixture with a shared model, and its weight.

Equations are those of the paper: Marfoq, Neglia, Kameni and Vidal, "Personalized Federated Learning
through Local Memorization", ICML 2022.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedneighbors.methods.knnper.neighbors import Neighbors

__all__ = [
    "GRID",
    "KERNELS",
    "averaged",
    "best_mixture",
    "closeness",
    "local_means",
    "local_votes",
    "mixed",
]

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Kernel = Literal["paper", "gaussian", "uniform"]

KERNELS: tuple[Kernel, ...] = ("paper", "gaussian", "uniform")
GRID = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
"""Weights of the memory among which each client chooses."""


def closeness(distances: Floats, *, kernel: Kernel = "paper", sigma: float = 1.0) -> Floats:
    """Return what each neighbor's vote weighs (Eq 6), up to a factor for each query.

    Parameters
    ----------
    distances : float64 array of shape (n_queries, k)
        Ascending, not negative.
    kernel : {"paper", "gaussian", "uniform"}
        ``exp(-d / sigma)``, ``exp(-d^2 / (2 sigma^2))``, or 1.
    sigma : float
        Unit of the distances.

    Returns
    -------
    float64 array of shape (n_queries, k)
        In [0, 1]; the nearest weighs 1, so that no query is left without a vote.
    """
    if kernel == "uniform":
        return np.ones_like(distances)
    scaled = distances / sigma
    with np.errstate(invalid="ignore", over="ignore"):
        if kernel == "paper":
            gaps = scaled - scaled[:, :1]
        else:
            # (a - b) (a + b) / 2 stays exact where a and b are large and near
            gaps = (scaled - scaled[:, :1]) * (scaled + scaled[:, :1]) / 2
    return np.exp(-np.where(distances == distances[:, :1], 0.0, gaps))


def local_votes(
    found: Neighbors,
    labels: Integers,
    n_classes: int,
    *,
    kernel: Kernel = "paper",
    sigma: float = 1.0,
    counts: Floats | None = None,
) -> Floats:
    """Return the classes' shares of the neighbors' votes (Eq 6).

    Parameters
    ----------
    found : Neighbors
        Of n queries, at least one each.
    labels : int64 array of shape (n_keys,)
        Class of each key, from 0.
    n_classes : int
        Classes.
    kernel, sigma
        As :func:`closeness` takes them.
    counts : float64 array of shape (n_keys,), optional
        How many rows each key stands for.

    Returns
    -------
    float64 array of shape (n_queries, n_classes)
        Rows sum to 1.

    Raises
    ------
    ValueError
        If there are no neighbors.
    """
    weights = _weights(found, kernel, sigma, counts)
    shares = np.zeros((len(weights), n_classes))
    rows = np.arange(len(weights))
    for place in range(weights.shape[1]):  # nearest first: one order of additions
        shares[rows, labels[found.positions[:, place]]] += weights[:, place]
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))


def local_means(
    found: Neighbors,
    targets: Floats,
    *,
    kernel: Kernel = "paper",
    sigma: float = 1.0,
    counts: Floats | None = None,
) -> Floats:
    """Return the weighted means of the neighbors' targets, for regression.

    Parameters
    ----------
    found : Neighbors
        Of n queries, at least one each.
    targets : float64 array of shape (n_keys, n_outputs)
        Target of each key.
    kernel, sigma, counts
        As :func:`local_votes` takes them.

    Returns
    -------
    float64 array of shape (n_queries, n_outputs)

    Raises
    ------
    ValueError
        If there are no neighbors.
    """
    weights = _weights(found, kernel, sigma, counts)
    sums = np.zeros((len(weights), targets.shape[1]))
    for place in range(weights.shape[1]):
        sums += weights[:, place, None] * targets[found.positions[:, place]]
    return np.asarray(sums / weights.sum(axis=1, keepdims=True))


def _weights(found: Neighbors, kernel: Kernel, sigma: float, counts: Floats | None) -> Floats:
    if found.positions.shape[1] == 0:
        raise ValueError("expected at least one neighbor; an empty memory has no vote")
    weights = closeness(found.distances, kernel=kernel, sigma=sigma)
    return weights if counts is None else weights * counts[found.positions]


def mixed(local: Floats, shared: Floats, weight: float) -> Floats:
    """Return ``weight`` of the memory and the rest of the shared model (Eq 7).

    Parameters
    ----------
    local, shared : float64 array of shape (n_queries, n_classes)
        Of the memory, and of the model.
    weight : float
        lambda of the client, in [0, 1].
    """
    if not 0 <= weight <= 1:
        raise ValueError(f"expected a weight from 0 to 1, got {weight!r}")
    return weight * local + (1 - weight) * shared


def best_mixture(
    local: Floats, shared: Floats, labels: Integers, grid: Sequence[float] = GRID
) -> float:
    """Return the weight of the memory that gets most held-out rows right.

    Among equally good ones the middle one is taken, the lower of two.

    Parameters
    ----------
    local, shared : float64 array of shape (n_rows, n_classes)
        For rows that neither the memory nor the model has seen.
    labels : int64 array of shape (n_rows,)
        Their classes.
    grid : sequence of float
        Ascending.

    Returns
    -------
    float
    """
    right = [int((mixed(local, shared, w).argmax(axis=1) == labels).sum()) for w in grid]
    best = [w for w, n in zip(grid, right, strict=True) if n == max(right)]
    return best[(len(best) - 1) // 2]


def averaged(before: Floats, updates: Mapping[str, Floats], shares: Mapping[str, float]) -> Floats:
    """Return the next shared model when some clients took part (Eq 13).

    Those who did not are taken to hold what they were sent: their share of the average is the
    model before.

    Parameters
    ----------
    before : float64 array
        Weights that the clients were sent.
    updates : mapping of str to float64 array
        Weights of those who took part.
    shares : mapping of str to float
        Of each client in all rows; of all clients they sum to 1.

    Returns
    -------
    float64 array
        The same whatever the order of the mappings; ``before`` itself, bit for bit, where no client
        changed it.
    """
    change = np.zeros_like(before)
    for name in sorted(updates):
        change += shares[name] * (updates[name] - before)
    return before + change
