"""Schedule of local training: steps, rates, and seeded row orders."""

import hashlib
import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Integers


@dataclass(frozen=True)
class Regime:
    """Settings of a client's stochastic gradient descent in one round.

    Parameters
    ----------
    epochs : int
        Passes over the client's rows.
    batch_size : int
        Rows per step.
    learning_rate : float
        Learning rate.
    momentum : float
        Fraction of the last step that is kept, in [0, 1).
    weight_decay : float
        Pull of the trained weights towards zero.
    proximal : float
        Pull towards the anchor: FedProx and Ditto penalize ``proximal / 2`` times the squared
        distance.
    """

    epochs: int = 1
    batch_size: int = 32
    learning_rate: float = 0.02
    momentum: float = 0.9
    weight_decay: float = 5e-4
    proximal: float = 0.0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"expected {name} as an integer of 1 or more, got {value!r}")
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"expected learning_rate above 0, got {self.learning_rate!r}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"expected momentum from 0 up to 1, got {self.momentum!r}")
        for name in ("weight_decay", "proximal"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"expected {name} of 0 or more, got {getattr(self, name)!r}")


def row_order(n_rows: int, *words: object) -> Integers:
    """Return the seeded row order of one pass.

    Parameters
    ----------
    n_rows : int
        Rows of the client.
    *words : objects
        Seed, name of the client, round, pass: together unique to this pass.
    """
    return np.random.default_rng(derive_seed(*words)).permutation(n_rows)


def derive_seed(*words: object, n_bytes: int = 16) -> int:
    """Return a seed derived from words.

    Parameters
    ----------
    *words : objects
        As in :func:`row_order`.
    n_bytes : int
        Bytes of the number.
    """
    digest = hashlib.sha256("\x1f".join(map(repr, words)).encode()).digest()
    return int.from_bytes(digest[:n_bytes], "little")


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """Batches of several clients together, clients with most batches first.

    Parameters
    ----------
    rows : list of int64 array of shape (n_active, batch_size)
        For each step, the rows of the clients with batches left; 0 in short batches.
    weights : list of float64 array of shape (n_active, batch_size)
        1 / (rows of the batch), and 0 in the unused places of short batches: weighted sums are
        means.
    order : int64 array of shape (n_clients,)
        Client at each position.
    """

    rows: list[Integers]
    weights: list[npt.NDArray[np.float64]]
    order: Integers


def batch_plan(passes: list[list[Integers]], batch_size: int, *, least_rows: int = 1) -> BatchPlan:
    """Return the clients' batches for given row orders.

    Parameters
    ----------
    passes : list of list of int64 array
        The rows of each pass, in order, for each client. All clients have equally many passes.
    batch_size : int
        Rows per batch; the last batch of a pass may have fewer.
    least_rows : int
        Minimum number of rows per batch, at most ``batch_size``. A smaller last batch is merged
        into the one before it; a pass with fewer rows has no batch.
    """
    each = [
        [part[a:b] for part in parts for a, b in _cuts(len(part), batch_size, least_rows)]
        for parts in passes
    ]
    order = np.argsort([-len(batches) for batches in each], kind="stable")
    n_steps = max(map(len, each), default=0)
    rows, weights = [], []
    for step in range(n_steps):
        active = [each[client][step] for client in order if step < len(each[client])]
        width = max(len(batch) for batch in active)
        index = np.zeros((len(active), width), np.int64)
        weight = np.zeros((len(active), width), np.float64)
        for place, batch in enumerate(active):
            index[place, : len(batch)] = batch
            weight[place, : len(batch)] = 1 / len(batch)
        rows.append(index)
        weights.append(weight)
    return BatchPlan(rows, weights, order)


def _cuts(n_rows: int, batch_size: int, least_rows: int) -> list[tuple[int, int]]:
    """Return the beginning and end of each batch of a pass."""
    if n_rows < least_rows:
        return []
    begins = list(range(0, n_rows, batch_size))
    if n_rows - begins[-1] < least_rows:
        begins.pop()
    return list(pairwise([*begins, n_rows]))
