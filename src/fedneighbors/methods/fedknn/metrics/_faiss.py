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
    SessionBatch,
    check_radius,
    check_ranks,
    check_request,
)
from fedneighbors.methods.fedknn.metrics._vectors import VectorMetric

Find = Callable[[int], Integers]
"""Function from k to the positions of about k nearest objects, fewer if no more are found."""


class FaissMetric(VectorMetric):
    """A vector metric with an approximate index.

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
        rows = self.scale_rows(objects)
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
        self._emitted = np.zeros(len(ranks), np.bool_)
        self._known_distances = np.full(len(ranks), np.nan)

    def bounds(self) -> Floats:
        """Return zeros, because an approximate index has no bounds."""
        return np.zeros(len(self._ranks))

    def next(
        self,
        k: int,
        *,
        cutoff: float = math.inf,
        deadline_s: float | None = None,  # noqa: ARG002 - never interrupted
    ) -> SessionBatch:
        """Emit the next ``k`` of the candidates; none is certified.

        Raises
        ------
        ValueError
            If ``k`` is negative or ``cutoff`` is not a number.
        """
        check_request(k, cutoff)
        wanted = min(int(self._emitted.sum()) + k, len(self._ranks))
        positions = self._find(wanted) if wanted else np.empty(0, np.int64)
        positions = positions[~self._emitted[positions]]
        distances = self._distances(positions)
        order = np.lexsort((self._ranks[positions], distances))
        order = order[distances[order] <= cutoff][:k]
        self._emitted[positions[order]] = True
        return SessionBatch(
            positions=positions[order],
            distances=distances[order],
            exhausted=len(order) < k or bool(self._emitted.all()),
            n_certified=0,
        )

    def count(self, radius: float) -> int:
        """Return the exact number of objects within ``radius``, from all distances."""
        check_radius(radius)
        return int((self._distances(np.arange(len(self._ranks))) <= radius).sum())

    def _distances(self, positions: Integers) -> Floats:
        new = positions[np.isnan(self._known_distances[positions])]
        self._known_distances[new] = self._measure(new)
        self.n_verified += len(new)
        return np.asarray(self._known_distances[positions])


class _FaissIndex:
    def __init__(self, metric: FaissMetric, rows: Floats, ranks: Integers) -> None:
        self.n_objects = len(rows)
        self._metric = metric
        self._rows = rows
        self._ranks = ranks
        faiss = optional_module("faiss", "faiss")
        self._index = faiss.index_factory(rows.shape[1], metric.factory)
        rows32 = rows.astype(np.float32)
        if self.n_objects:
            self._index.train(rows32)
            self._index.add(rows32)

    def open(self, query: Any) -> ApproximateSession:
        point = self._metric.scale_query(query, self._rows)
        measure = partial(self._metric.distances, self._rows, point)
        return ApproximateSession(self._ranks, measure, partial(self._find, point))

    def _find(self, point: Floats, k: int) -> Integers:
        _, positions = self._index.search(point[np.newaxis].astype(np.float32), k)
        return np.asarray(positions[0][positions[0] >= 0], np.int64)
