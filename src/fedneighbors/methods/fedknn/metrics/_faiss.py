"""Approximate vector search with Faiss, for tables too large for an exact index.

Returned objects have exact distances; missed objects are not detected. Sessions report this: they
are not ``exact``, and no object is certified.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from fedneighbors._lazy import optional_module
from fedneighbors._typing import Floats, Integers
from fedneighbors.methods.fedknn.metrics._points import Measure
from fedneighbors.methods.fedknn.metrics._sessions import (
    Found,
    check_radius,
    check_ranks,
    check_step,
)
from fedneighbors.methods.fedknn.metrics._vectors import VectorMetric

Find = Callable[[int], Integers]
"""Function that returns about the ``k`` nearest positions, fewer if no more are found."""


class FaissMetric(VectorMetric):
    """A vector metric whose index is approximate.

    Parameters
    ----------
    name : {"euclidean", "cosine"}
        The distance.
    factory : str, default "HNSW32"
        Index type, in the syntax of ``faiss.index_factory``.

    Raises
    ------
    ValueError
        If the name is unknown.
    MissingExtraError
        If Faiss is not installed.
    """

    def __init__(self, name: str = "euclidean", *, factory: str = "HNSW32") -> None:
        if name not in ("euclidean", "cosine"):
            raise ValueError(f"expected 'euclidean' or 'cosine', got {name!r}")
        super().__init__(name)
        self.factory = factory
        optional_module("faiss", "faiss")

    def index(self, objects: Sequence[Any], *, ranks: Integers) -> "_FaissIndex":  # type: ignore[override]
        """Return an approximate index of vectors.

        Raises
        ------
        ValueError
            As for the exact index.
        """
        rows = self.scaled_rows(objects)
        return _FaissIndex(self, rows, check_ranks(ranks, len(rows)))


class ApproximateSession:
    """A query session with candidates from an approximate index.

    Parameters
    ----------
    ranks : int64 array of shape (n_objects,)
        Order of objects of equal distance.
    measure : callable
        Function that computes distances.
    find : callable
        Function that proposes candidates.
    """

    exact = False

    def __init__(self, ranks: Integers, measure: Measure, find: Find) -> None:
        self.n_verified = 0
        self._ranks = ranks
        self._measure = measure
        self._find = find
        self._given = np.zeros(len(ranks), np.bool_)
        self._known = np.full(len(ranks), np.nan)

    def bounds(self) -> Floats:
        """Return zeros: an approximate index has no bounds."""
        return np.zeros(len(self._ranks))

    def next(self, k: int, *, cutoff: float = math.inf, deadline_s: float | None = None) -> Found:  # noqa: ARG002 - a search cannot be interrupted
        """Return the next ``k`` of the candidates; none is certified.

        Raises
        ------
        ValueError
            If ``k`` is negative or ``cutoff`` is not a number.
        """
        check_step(k, cutoff)
        wanted = min(int(self._given.sum()) + k, len(self._ranks))
        found = self._find(wanted) if wanted else np.empty(0, np.int64)
        found = found[~self._given[found]]
        distances = self._distances(found)
        order = np.lexsort((self._ranks[found], distances))
        order = order[distances[order] <= cutoff][:k]
        self._given[found[order]] = True
        return Found(
            positions=found[order],
            distances=distances[order],
            exhausted=len(order) < k or bool(self._given.all()),
            n_certified=0,
        )

    def count(self, radius: float) -> int:
        """Return the number of objects within ``radius``, from all distances."""
        check_radius(radius)
        return int((self._distances(np.arange(len(self._ranks))) <= radius).sum())

    def _distances(self, positions: Integers) -> Floats:
        fresh = positions[np.isnan(self._known[positions])]
        self._known[fresh] = self._measure(fresh)
        self.n_verified += len(fresh)
        return np.asarray(self._known[positions])


class _FaissIndex:
    def __init__(self, metric: FaissMetric, rows: Floats, ranks: Integers) -> None:
        self.n_objects = len(rows)
        self._metric = metric
        self._rows = rows
        self._ranks = ranks
        faiss = optional_module("faiss", "faiss")
        self._index = faiss.index_factory(rows.shape[1], metric.factory)
        narrow = rows.astype(np.float32)
        if self.n_objects:
            self._index.train(narrow)
            self._index.add(narrow)

    def open(self, query: Any) -> ApproximateSession:
        point = self._metric.scaled_query(query, self._rows)
        measure = partial(self._metric.distances, self._rows, point)
        return ApproximateSession(self._ranks, measure, partial(self._find, point))

    def _find(self, point: Floats, k: int) -> Integers:
        _, positions = self._index.search(point[np.newaxis].astype(np.float32), k)
        return np.asarray(positions[0][positions[0] >= 0], np.int64)
