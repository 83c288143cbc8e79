"""In which order clients see their rows; it follows from a few words, not from who trains them."""

import hashlib
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Integers


def row_order(n_rows: int, *words: object) -> Integers:
    """Return the rows of one pass, shuffled as the words say.

    Parameters
    ----------
    n_rows : int
        Rows of the client.
    *words : objects
        Seed, name of the client, round, pass: whatever tells this pass from all others.
    """
    return np.random.default_rng(words_seed(*words)).permutation(n_rows)


def words_seed(*words: object, n_bytes: int = 16) -> int:
    """Return the number that words stand for.

    Parameters
    ----------
    *words : objects
        As :func:`row_order` takes them.
    n_bytes : int
        Length of the number.
    """
    digest = hashlib.sha256("\x1f".join(map(repr, words)).encode()).digest()
    return int.from_bytes(digest[:n_bytes], "little")


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


def batch_plan(passes: list[list[Integers]], batch_size: int, *, least_rows: int = 1) -> BatchPlan:
    """Return the batches of clients that go through their rows in given orders.

    Parameters
    ----------
    passes : list of list of int64 array
        For each client the rows of each of its passes, in order. All have equally many passes.
    batch_size : int
        Rows of a batch; the last of a pass may have fewer.
    least_rows : int
        Rows that a batch must have, at most ``batch_size``. A last batch of fewer is put to the one
        before it; a pass of fewer has no batch.
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
    """Return where each batch of a pass begins and ends."""
    if n_rows < least_rows:
        return []
    begins = list(range(0, n_rows, batch_size))
    if n_rows - begins[-1] < least_rows:
        begins.pop()
    return list(pairwise([*begins, n_rows]))
