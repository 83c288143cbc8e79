"""Which search finds the nearest keys: our own, or Faiss for large memories; both find the same."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats, Integers
from fedneighbors.errors import MissingExtraError
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


Search = Literal["auto", "own", "faiss"]

SEARCHES: tuple[Search, ...] = get_args(Search)

FAISS_FROM = 20_000
"""Keys from which ``"auto"`` takes Faiss, if it is installed."""

SPARE = 16
"""More neighbors that Faiss is asked for, so that rounding and ties rarely leave a doubt."""


def searched(
    keys: Floats, queries: Floats, k: int, *, own: Integers | None = None, search: Search = "auto"
) -> Neighbors:
    """Return the k nearest keys of each query, by the search that is asked for.

    Parameters
    ----------
    keys, queries, k, own
        As :func:`~.neighbors.nearest` takes them.
    search : {"auto", "own", "faiss"}
        ``"auto"`` takes Faiss for many keys if it is installed. What is found is the same.

    Raises
    ------
    MissingExtraError
        If Faiss is asked for and not installed.
    ValueError
        As :func:`~.neighbors.nearest` raises it.
    """
    if search == "faiss" or (search == "auto" and len(keys) >= FAISS_FROM):
        try:
            return nearest_by_faiss(keys, queries, k, own=own)
        except MissingExtraError:
            if search == "faiss":
                raise
    return nearest(keys, queries, k, own=own)


def nearest_by_faiss(
    keys: Floats, queries: Floats, k: int, *, own: Integers | None = None
) -> Neighbors:
    """Return what :func:`~.neighbors.nearest` returns: Faiss proposes, exact distances decide.

    Faiss adds up in 32 bits. A key that it does not propose is further than those it does, but for
    its rounding, of which there is a bound; where that leaves a doubt, all keys are looked at.

    Parameters
    ----------
    keys, queries, k, own
        As :func:`~.neighbors.nearest` takes them.

    Raises
    ------
    MissingExtraError
        If Faiss is not installed.
    ValueError
        As :func:`~.neighbors.nearest` raises it.
    """
    faiss = _faiss()
    refuse_infinite(queries)
    n_asked = k + SPARE
    narrow, asked = _narrowed(keys), _narrowed(queries)
    slack = _slack(narrow, asked)
    if k < 1 or n_asked >= len(keys) or keys.shape[1:] != queries.shape[1:] or slack is None:
        return nearest(keys, queries, k, own=own)
    own = np.full(len(queries), -1) if own is None else own
    n_found = min(k, len(keys) - int(len(own) > 0 and own.max() >= 0))
    index = faiss.IndexFlatL2(keys.shape[1])
    index.add(narrow)
    about, proposed = index.search(asked, n_asked)
    positions = np.empty((len(queries), n_found), np.int64)
    squares = np.empty(positions.shape)
    doubtful = []
    for row, (query, candidates) in enumerate(zip(queries, np.sort(proposed), strict=True)):
        others = candidates[candidates != own[row]]
        near = square_sums(keys, query, others)
        order = np.argsort(near, kind="stable")[:n_found]
        positions[row], squares[row] = others[order], near[order]
        if not squares[row, -1] < about[row, -1] - slack[row]:
            doubtful.append(row)
    distances = np.sqrt(squares)
    if doubtful:
        exact = nearest(keys, queries[doubtful], k, own=own[doubtful] if own.max() >= 0 else None)
        positions[doubtful], distances[doubtful] = exact.positions, exact.distances
    return Neighbors(positions, distances)


def _narrowed(rows: Floats) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(rows, np.float32)


def _slack(keys: npt.NDArray[np.float32], queries: npt.NDArray[np.float32]) -> Floats | None:
    """Return by how much Faiss may be off for each query; None where 32 bits do not hold it."""
    with np.errstate(over="ignore"):
        lengths = np.einsum("ij,ij->i", keys, keys).max(initial=0)
        reach = np.einsum("ij,ij->i", queries, queries)
        if not np.isfinite(4 * (reach.max(initial=0) + lengths)):
            return None
    # As for products in 64 bits: some (n + 8) roundings of the squares of both lengths. Below the
    # smallest normal number a rounding may be as large as that number itself.
    info = np.finfo(np.float32)
    roundings = 16 * (keys.shape[1] + 8)
    total = reach.astype(np.float64) + float(lengths)
    return np.asarray(roundings * (float(info.eps) * total + float(info.tiny)))


def _faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise MissingExtraError("faiss", "faiss") from None
    return faiss
