"""Exact queries over the candidates of a source."""

import hmac
import math
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any

import numpy as np

from fedneighbors._typing import Floats, Integers
from fedneighbors.errors import DataError, SourceError
from fedneighbors.methods.fedknn._filters import FilterColumns, Where
from fedneighbors.methods.fedknn._sources import FoundObjects
from fedneighbors.methods.fedknn.algorithm import tie_keys
from fedneighbors.methods.fedknn.metrics._interfaces import Metric
from fedneighbors.methods.fedknn.metrics._sessions import (
    LATE,
    check_radius,
    check_request,
    check_time,
    end_at,
)
from fedneighbors.methods.fedknn.private._padding import EPOCH_BYTES, MAX_NAME_BYTES
from fedneighbors.sources._candidates import (
    CandidateBatch,
    Candidates,
    CandidateSource,
    SourceSettings,
)

_N_CELLS = 1 << 14  # memory of a query for its candidates, in cells
_MIN_READ = 16  # objects of the first read


def find_source(kind: str) -> Callable[[SourceSettings], CandidateSource]:
    """Return a source's class by the name of its entry point.

    Raises
    ------
    DataError
        If no installed package has such a source.
    """
    known = entry_points(group="fedneighbors.sources")
    if kind not in known.names:
        names = ", ".join(sorted(known.names)) or "none"
        raise DataError(f"unknown kind of source {kind!r}; installed are {names}")
    found: Callable[[SourceSettings], CandidateSource] = known[kind].load()
    return found


class PushedSource:
    """A source of candidates as the objects of a provider.

    Parameters
    ----------
    candidates : CandidateSource
        The objects in their database.
    metric : Metric
        The distance.
    owner : str
        Name of the provider.
    key : bytes
        Public key of the tie keys, the same at all providers.
    secret : bytes
        Secret of the provider; epochs are derived from it and the version of the objects.
    filters : mapping of str to str
        Columns for filters, and the kind of their cells.
    """

    n_cells = _N_CELLS

    def __init__(
        self,
        candidates: CandidateSource,
        metric: Metric,
        *,
        owner: str,
        key: bytes = b"",
        secret: bytes = b"",
        filters: Mapping[str, str] | None = None,
    ) -> None:
        self.candidates, self._metric, self._secret = candidates, metric, secret
        self._owner, self._key = owner, key
        self.least: float = getattr(metric, "least", 0.0)
        kinds = dict(filters or {})
        self._columns = FilterColumns.of({name: [] for name in kinds}, 0, kinds=kinds)
        sample = candidates.sample
        self._probe = None if sample is None else metric.index(sample, ranks=np.zeros(1, np.int64))

    def names_fit(self) -> bool:
        """Return whether all names fit into replies of fixed size."""
        return self.candidates.longest_name() <= MAX_NAME_BYTES

    def size(self, where: Where | None, *, end: float = math.inf) -> int:
        """Count the objects that meet a filter."""
        self._check(where)
        return self.candidates.size(where, deadline_s=_left_until(end))

    def open(self, query: Any, where: Where | None, *, end: float = math.inf) -> "PushedQuery":
        """Open a query over the objects that meet a filter."""
        check_time(end)
        self._check(where)
        if self._probe is not None:
            self._probe.open(query)
        found = self.candidates.open(query, where, deadline_s=_left_until(end))
        return PushedQuery(self, found, query)

    def _check(self, where: Where | None) -> None:
        if where is not None:
            self._columns.match(where)

    def epoch(self, version: str | None) -> bytes | None:
        """Return the epoch of a version of the objects."""
        if version is None:
            return None
        content = f"{self._owner} {self._metric.name} {len(version)} {version}".encode()
        return hmac.digest(self._secret, content + self._key, "sha256")[:EPOCH_BYTES]

    def measure(self, query: Any, objects: Any) -> Floats:
        """Return the distances of objects in their order."""
        n = len(objects)
        try:
            batch = self._metric.index(objects, ranks=np.arange(n)).open(query).next(n)
        except (TypeError, ValueError) as error:
            raise SourceError(f"an object is invalid for the metric: {error}") from None
        if len(batch.positions) != n:
            raise SourceError(f"expected distances of {n} objects, got {len(batch.positions)}")
        distances = np.empty(n)
        distances[batch.positions] = batch.distances
        return distances

    def ties(self, ids: list[str]) -> Integers:
        """Return the tie keys of objects."""
        return tie_keys(ids, owner=self._owner, key=self._key)


def _left_until(end: float) -> float | None:
    """Return the seconds until a monotonic time, None for infinity."""
    check_time(end)
    return None if end == math.inf else end - time.monotonic()


class PushedQuery:
    """An open query over candidates.

    A candidate is certain if its distance is below the bound of the objects that were not read:
    then none of them can be nearer, or tied with it. The candidates are in ascending order of
    (distance, tie key); the first ``_n_emitted`` were emitted.

    Parameters
    ----------
    source : PushedSource
        The objects.
    candidates : Candidates
        Those of the query.
    query : object
        The query.
    """

    def __init__(self, source: PushedSource, candidates: Candidates, query: Any) -> None:
        self._source, self._candidates, self._query = source, candidates, query
        self.n_verified = 0
        self.epoch = source.epoch(candidates.version)
        self._distances, self._ties = np.empty(0), np.empty(0, np.int64)
        self._ids: list[str] = []
        self._rest = -math.inf
        self._n_emitted = 0

    @property
    def exact(self) -> bool:
        """Return whether order and distances are exact."""
        return self._candidates.exact

    def next(
        self, k: int, *, cutoff: float = math.inf, deadline_s: float | None = None
    ) -> FoundObjects:
        """Emit the next ``k`` objects with distances up to ``cutoff``."""
        check_request(k, cutoff)
        start = self._n_emitted
        self._read_until(start + k, cutoff, end_at(deadline_s))
        stop = min(start + k, self._n_certain(cutoff))
        self._n_emitted = stop
        following = self._distances[stop : stop + 1].tolist()
        frontier = min([self._rest, *following])
        return FoundObjects(
            distances=self._distances[start:stop],
            ties=self._ties[start:stop],
            ids=tuple(self._ids[start:stop]),
            exhausted=frontier > cutoff or frontier == math.inf,
            n_certified=stop - start,
            frontier=max(frontier, self._source.least),
        )

    def lowest_bounds(self, k: int, *, deadline_s: float | None = None) -> Floats:
        """Return the distances of the ``k`` nearest objects, ascending."""
        if not self._read_until(k, math.inf, end_at(deadline_s)):
            raise TimeoutError(LATE)
        return self._distances[: min(max(k, 0), self._n_certain(math.inf))]

    def separate_bounds(self, k: int, *, deadline_s: float | None = None) -> Floats:
        """Return the ``k`` lowest bounds that depend on one object each."""
        return self.lowest_bounds(k, deadline_s=deadline_s)

    def count(self, radius: float, *, deadline_s: float | None = None) -> int:
        """Count the objects within ``radius``."""
        check_radius(radius)
        end = end_at(deadline_s)
        if radius >= self._rest:
            found = self._candidates.count(radius, deadline_s=deadline_s)
            if found is not None:
                if not len(found.uncertain):
                    return found.n_certain
                near = self._source.measure(self._query, found.uncertain) <= radius
                return found.n_certain + int(near.sum())
        if not self._read_until(None, radius, end):
            raise TimeoutError(LATE)
        return int(np.count_nonzero(self._distances <= radius))

    def payload(self, ids: Sequence[str]) -> list[Mapping[str, Any]]:
        """Return the payload columns of objects that were emitted."""
        if not set(ids) <= set(self._ids[: self._n_emitted]):
            raise LookupError("an object was not emitted")
        return self._candidates.payload(ids)

    def close(self) -> None:
        """Release what the query holds."""
        self._candidates.close()

    def _n_certain(self, cutoff: float) -> int:
        """Return the number of emitted objects and certain ones within a cutoff."""
        following = self._distances[self._n_emitted :]
        n = int(following.searchsorted(cutoff, side="right"))
        if self._rest < math.inf and self.exact:
            n = min(n, int(following.searchsorted(self._rest, side="left")))
        return self._n_emitted + n

    def _read_until(self, n: int | None, cutoff: float, end: float) -> bool:
        """Read until ``n`` objects are certain; return False if late."""
        while self._rest <= cutoff and self._rest < math.inf:
            n_certain = self._n_certain(cutoff)
            if n is not None and n_certain >= n:
                break
            left_s = None if end == math.inf else end - time.monotonic()
            if left_s is not None and left_s <= 0:
                return False
            n_missing = 0 if n is None else n - n_certain
            n_wanted = max(_MIN_READ, n_missing + n_missing // 8 + 8, len(self._ids))
            try:
                self._add(self._candidates.read(n_wanted, deadline_s=left_s))
            except TimeoutError:
                return False
        return True

    def _add(self, batch: CandidateBatch) -> None:
        """Add objects that were read, in order."""
        ids = list(batch.ids)
        if math.isnan(batch.rest) or (self.exact and batch.rest < self._rest):
            raise SourceError(f"expected a bound of at least {self._rest}, got {batch.rest}")
        known = batch.distances
        n_objects = len(batch.objects if known is None else known)
        if len(ids) != n_objects or (not ids and batch.rest < math.inf):
            raise SourceError(
                f"expected a name for each of {n_objects} objects, and at least one object, got "
                f"{len(ids)} names"
            )
        if ids:
            distances = self._source.measure(self._query, batch.objects) if known is None else known
            if self.exact and distances.min() < self._rest:
                raise SourceError(
                    f"expected objects at least {self._rest} away, the bound of the batch before, "
                    f"got one at {distances.min()}"
                )
            self._ids += ids
            if len(set(self._ids)) < len(self._ids):
                raise SourceError("expected unique names, got an object twice")
            self.n_verified += len(ids)
            first = self._n_emitted
            distances = np.concatenate([self._distances, distances])
            ties = np.concatenate([self._ties, self._source.ties(ids)])
            order = np.arange(len(ties))
            order[first:] = first + np.lexsort((ties[first:], distances[first:]))
            self._distances, self._ties = distances[order], ties[order]
            self._ids = [self._ids[i] for i in order.tolist()]
        self._rest = batch.rest
