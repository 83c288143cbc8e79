"""Which search finds the nearest keys: our own, or Faiss for large memories; both find the same."""

from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats, Integers
from fedneighbors.errors import MissingExtraError
from fedneighbors.kernels.vectors._distances import square_sums
from fedneighbors.methods.knnper.memory._neighbors import Neighbors, nearest, refuse_infinite

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
