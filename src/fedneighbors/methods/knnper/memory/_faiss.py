"""Exact search of large memories by Faiss: it proposes keys, exact distances decide."""

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats, Integers
from fedneighbors.errors import MissingExtraError
from fedneighbors.methods.knnper.algorithm import (
    Neighbors,
    left_out,
    nearest,
    ranked,
    refuse_infinite,
)

SPARE = 16
"""More neighbors that Faiss is asked for, so that rounding and ties rarely leave a doubt."""


def nearest_by_faiss(
    keys: Floats, queries: Floats, k: int, *, own: Integers | None = None
) -> Neighbors:
    """Return what :func:`~.algorithm.nearest` returns: Faiss proposes, exact distances decide.

    Faiss adds up in 32 bits. A key that it does not propose is further than those it does, but for
    its rounding, of which there is a bound; where that leaves a doubt, all keys are looked at.

    Parameters
    ----------
    keys, queries, k, own
        As :func:`~.algorithm.nearest` takes them.

    Raises
    ------
    MissingExtraError
        If Faiss is not installed.
    ValueError
        As :func:`~.algorithm.nearest` raises it.
    """
    try:
        import faiss
    except ImportError:
        raise MissingExtraError("faiss", "faiss") from None
    refuse_infinite(queries)
    n_asked = k + SPARE
    with np.errstate(over="ignore"):
        narrow, asked = (np.ascontiguousarray(rows, np.float32) for rows in (keys, queries))
        slack = _slack(narrow, asked)
    if k < 1 or n_asked >= len(keys) or keys.shape[1:] != queries.shape[1:] or slack is None:
        return nearest(keys, queries, k, own=own)
    own, n_found = left_out(own, len(queries), len(keys), k)
    index = faiss.IndexFlatL2(keys.shape[1])
    index.add(narrow)
    about, proposed = index.search(asked, n_asked)
    positions = np.empty((len(queries), n_found), np.int64)
    squares = np.empty(positions.shape)
    doubtful = []
    for row, (query, candidates) in enumerate(zip(queries, np.sort(proposed), strict=True)):
        others = candidates[candidates != own[row]]
        positions[row], squares[row] = ranked(keys, query, others, n_found)
        if not squares[row, -1] < about[row, -1] - slack[row]:
            doubtful.append(row)
    distances = np.sqrt(squares)
    if doubtful:
        exact = nearest(keys, queries[doubtful], k, own=own[doubtful])
        positions[doubtful], distances[doubtful] = exact.positions, exact.distances
    return Neighbors(positions, distances)


def _slack(keys: npt.NDArray[np.float32], queries: npt.NDArray[np.float32]) -> Floats | None:
    """Return by how much Faiss may be off for each query; None where 32 bits do not hold it."""
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
