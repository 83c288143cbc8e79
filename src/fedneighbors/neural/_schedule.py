"""Schedule of local training: settings of SGD, seeded row orders, and batches."""

import hashlib
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fedneighbors._typing import Floats, Integers

MAX_SETTING = 2.0**64
"""Maximum of the settings of a step, which float32 can represent."""


@dataclass(frozen=True)
class Regime:
    """Settings of a client's stochastic gradient descent in one round.

    Parameters
    ----------
    epochs : int
        Passes over the client's rows.
    batch_size : int
        Number of rows per step.
    learning_rate : float
        Learning rate in this round.
    momentum : float
        Fraction of the last step that is added to a step, in [0, 1).
    weight_decay : float
        Multiple of the weights that is added to their gradient (L2 penalty).
    proximal : float
        Penalty of FedProx and Ditto: ``proximal / 2`` times the squared distance of the weights to
        the anchor is added to the loss.
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
        if not 0 < self.learning_rate <= MAX_SETTING:
            raise ValueError(
                f"expected learning_rate above 0, at most 2**64, got {self.learning_rate!r}"
            )
        if not 0 <= self.momentum < 1:
            raise ValueError(f"expected momentum from 0 up to 1, got {self.momentum!r}")
        for name in ("weight_decay", "proximal"):
            if not 0 <= getattr(self, name) <= MAX_SETTING:
                raise ValueError(f"expected {name} from 0 to 2**64, got {getattr(self, name)!r}")


def row_order(n_rows: int, *seed_parts: object) -> Integers:
    """Return a random order of rows, determined by the seed parts.

    Parameters
    ----------
    n_rows : int
        Number of rows.
    *seed_parts : objects
        Values with a fixed ``repr``, for example seed, client, round and pass: together, they
        should be unique to this order.
    """
    return np.random.default_rng(derive_seed(*seed_parts)).permutation(n_rows)


def derive_seed(*seed_parts: object, n_bytes: int = 16) -> int:
    """Return an integer seed from the digest of seed parts.

    Parameters
    ----------
    *seed_parts : objects
        As in :func:`row_order`.
    n_bytes : int
        Number of bytes of the seed.
    """
    digest = hashlib.sha256("\x1f".join(map(repr, seed_parts)).encode()).digest()
    return int.from_bytes(digest[:n_bytes], "little")


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """Batches of several clients, step by step; clients with most batches come first.

    Parameters
    ----------
    rows : list of int64 array of shape (n_active, batch_size)
        For each step, the batches of the clients that have batches left, padded with 0.
    weights : list of float64 array of shape (n_active, batch_size)
        Weights of the rows: 1 / (number of rows in the batch), and 0 for padding. A weighted sum of
        losses is then the mean over the batch.
    order : int64 array of shape (n_clients,)
        Client at each position of a step.
    """

    rows: list[Integers]
    weights: list[Floats]
    order: Integers


def batch_plan(passes: list[list[Integers]], batch_size: int, *, min_rows: int = 1) -> BatchPlan:
    """Return the batches of all clients, step by step.

    Parameters
    ----------
    passes : list of list of int64 array
        Rows in order of each pass, for each client. All clients have the same number of passes.
    batch_size : int
        Number of rows per batch; the last batch of a pass may have fewer.
    min_rows : int
        Minimum number of rows per batch, at most ``batch_size``. A smaller last batch is merged
        into the one before it. A pass with fewer rows in total has no batch.
    """
    batches = [
        [order[a:b] for order in orders for a, b in _batch_bounds(len(order), batch_size, min_rows)]
        for orders in passes
    ]
    order = np.argsort([-len(own) for own in batches], kind="stable")
    n_steps = max(map(len, batches), default=0)
    rows, weights = [], []
    for step in range(n_steps):
        active = [batches[client][step] for client in order if step < len(batches[client])]
        width = max(len(batch) for batch in active)
        index = np.zeros((len(active), width), np.int64)
        weight = np.zeros((len(active), width), np.float64)
        for position, batch in enumerate(active):
            index[position, : len(batch)] = batch
            weight[position, : len(batch)] = 1 / len(batch)
        rows.append(index)
        weights.append(weight)
    return BatchPlan(rows, weights, order)


def _batch_bounds(n_rows: int, batch_size: int, min_rows: int) -> list[tuple[int, int]]:
    """Return the start and end of each batch of a pass."""
    if n_rows < min_rows:
        return []
    starts = list(range(0, n_rows, batch_size))
    if n_rows - starts[-1] < min_rows:
        starts.pop()
    return list(pairwise([*starts, n_rows]))
