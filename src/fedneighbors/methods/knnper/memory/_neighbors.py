"""Exact nearest keys of a memory, by a matrix product that proposes and distances that decide."""

from dataclasses import dataclass

import numpy as np

from fedneighbors._typing import Floats, Integers
from fedneighbors.kernels.vectors._distances import square_sums

_BLOCK = 1 << 22
"""Most products that are held at once: 32 MiB."""


@dataclass(frozen=True)
class Neighbors:
    """The nearest keys of some queries (Eqs 4 and 5 of the paper).

    Parameters
    ----------
    positions : int64 array of shape (n_queries, k)
        Rows of the keys, nearest first; of equally near ones the lower row first.
    distances : float64 array of shape (n_queries, k)
        Euclidean, ascending.
    """

    positions: Integers
    distances: Floats

    def first(self, k: int) -> "Neighbors":
        """Return the k nearest of them, or all if there are fewer."""
        return Neighbors(self.positions[:, :k], self.distances[:, :k])


def nearest(keys: Floats, queries: Floats, k: int, *, own: Integers | None = None) -> Neighbors:
    """Return the k nearest keys of each query, all of them if there are fewer.

    A distance depends on its two rows alone: neither on the other rows nor on the machine.

    Parameters
    ----------
    keys : float64 array of shape (n_keys, n_dimensions), C order
        Finite.
    queries : float64 array of shape (n_queries, n_dimensions), C order
        Finite.
    k : int
        1 or more.
    own : int64 array of shape (n_queries,), optional
        For each query a key that does not count, because it is the query itself; -1 for none. Every
        query must have one or none may have.

    Returns
    -------
    Neighbors
        With ``min(k, n_keys)`` columns, one less where queries have a key of their own.

    Raises
    ------
    ValueError
        If shapes disagree, k is below 1 or a query is not finite.
    """
    if keys.ndim != 2 or queries.ndim != 2 or keys.shape[1] != queries.shape[1]:
        raise ValueError(
            f"expected keys and queries of one width, got shapes {keys.shape} and {queries.shape}"
        )
    if k < 1:
        raise ValueError(f"expected k of 1 or more, got {k}")
    refuse_infinite(queries)
    own = np.full(len(queries), -1) if own is None else own
    n_found = min(k, len(keys) - int(len(own) > 0 and own.max() >= 0))
    positions = np.empty((len(queries), max(n_found, 0)), np.int64)
    squares = np.empty(positions.shape)
    if positions.size:
        step = max(1, _BLOCK // len(keys))
        for first in range(0, len(queries), step):
            rows = slice(first, first + step)
            proposed = _proposed(keys, queries[rows], own[rows], n_found)
            for row, candidates in enumerate(proposed, start=first):
                near = square_sums(keys, queries[row], candidates)
                order = np.argsort(near, kind="stable")[:n_found]
                positions[row], squares[row] = candidates[order], near[order]
    return Neighbors(positions, np.sqrt(squares))


def refuse_infinite(queries: Floats) -> None:
    """Refuse queries of which no distance can be told.

    Parameters
    ----------
    queries : float64 array of shape (n_queries, n_dimensions)
        What is asked.

    Raises
    ------
    ValueError
        If a cell is not finite.
    """
    bad = ~np.isfinite(queries).all(axis=1)
    if bad.any():
        raise ValueError(
            f"expected finite queries, got {int(bad.sum())} of {len(queries)} with cells that are "
            "not; embed rows whose cells are all finite"
        )


def _proposed(keys: Floats, queries: Floats, own: Integers, k: int) -> list[Integers]:
    """Return for each query the keys, ascending, among which its k nearest are."""
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = np.einsum("ij,ij->i", keys, keys)
        reach = np.einsum("ij,ij->i", queries, queries)
        squares = lengths + reach[:, None] - 2.0 * (queries @ keys.T)
        # What a product of n terms and a sum of squares may be off by, twice: (n + 8) roundings of
        # at most the squares of both lengths each.
        slack = 8 * (keys.shape[1] + 8) * np.finfo(float).eps * (reach + lengths.max())
    told = np.flatnonzero(own >= 0)
    squares[told, own[told]] = np.inf
    safe = np.isfinite(slack)
    kth = np.full(len(queries), np.inf)
    kth[safe] = np.partition(squares[safe], k - 1, axis=1)[:, k - 1]
    bound = kth + slack
    each = []
    for row in range(len(queries)):
        near = squares[row] <= bound[row] if safe[row] else np.ones(len(keys), bool)
        near[own[row : row + 1][own[row : row + 1] >= 0]] = False
        each.append(np.flatnonzero(near))
    return each
