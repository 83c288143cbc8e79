"""In which order clients see their rows; it follows from a few words, not from who trains them."""

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["BatchPlan", "batch_plan", "row_order"]

Integers = npt.NDArray[np.int64]


def row_order(n_rows: int, *words: object) -> Integers:
    """Return the rows of one pass, shuffled as the words say.

    Parameters
    ----------
    n_rows : int
        Rows of the client.
    *words : objects
        Seed, name of the client, round, pass: whatever tells this pass from all others.
    """
    digest = hashlib.sha256("\x1f".join(map(repr, words)).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:16], "little")).permutation(n_rows)


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """The batches of several clients side by side, those with most batches first.

    Parameters
    ----------
    rows : list of int64 array of shape (n_active, batch_size)
        For each step the rows of the clients that are not through, 0 where a batch is short.
    weights : list of float64 array of shape (n_active, batch_size)
        One over the rows of the batch, 0 where it is short: sums are means.
    order : int64 array of shape (n_clients,)
        Which client stands where.
    """

    rows: list[Integers]
    weights: list[npt.NDArray[np.float64]]
    order: Integers


def batch_plan(passes: list[list[Integers]], batch_size: int) -> BatchPlan:
    """Return the batches of clients that go through their rows in given orders.

    Parameters
    ----------
    passes : list of list of int64 array
        For each client the rows of each of its passes, in order. All have equally many passes.
    batch_size : int
        Rows of a batch; the last of a pass may have fewer.
    """
    each = [
        [part[i : i + batch_size] for part in parts for i in range(0, len(part), batch_size)]
        for parts in passes
    ]
    order = np.argsort([-len(batches) for batches in each], kind="stable")
    n_steps = max(map(len, each), default=0)
    rows, weights = [], []
    for step in range(n_steps):
        active = [each[client][step] for client in order if step < len(each[client])]
        index = np.zeros((len(active), batch_size), np.int64)
        weight = np.zeros((len(active), batch_size), np.float64)
        for place, batch in enumerate(active):
            index[place, : len(batch)] = batch
            weight[place, : len(batch)] = 1 / len(batch)
        width = max(len(batch) for batch in active)
        rows.append(index[:, :width])
        weights.append(weight[:, :width])
    return BatchPlan(rows, weights, order)
