"""Sources: where the objects of a provider are, and its open queries.

A provider answers from a source. :class:`MemorySource` has an index of objects in memory; other
sources read from a database.
"""

import math
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from fedneighbors._typing import Floats, Integers
from fedneighbors.kernels.vectors._table import TableRows
from fedneighbors.methods.fedknn._eager import EagerRequest
from fedneighbors.methods.fedknn._filters import FilterColumns, FilteredIndex, Where, filter_text
from fedneighbors.methods.fedknn._names import Names
from fedneighbors.methods.fedknn.algorithm import rank_objects, tie_keys
from fedneighbors.methods.fedknn.metrics._interfaces import Index, Metric, Session
from fedneighbors.methods.fedknn.private._padding import EPOCH_BYTES, MAX_NAME_BYTES
from fedneighbors.methods.fedknn.protocol import NearestReply

MAX_FILTERS = 64  # with an index
_BUILD_MARGIN = 2  # ratio of the time reserved for an index of a filter to the expected time


@dataclass(frozen=True, eq=False)
class FoundObjects:
    """The next objects of a query, in ascending order of (distance, tie key).

    Parameters
    ----------
    distances : float64 array of shape (n,)
        Distances to the query, in the unit of the metric.
    ties : int64 array of shape (n,)
        Tie key of each object.
    ids : tuple of str
        Name of each object.
    exhausted, n_certified, frontier : bool, int and float
        As in :class:`~fedneighbors.methods.fedknn.metrics._interfaces.SessionBatch`.
    """

    distances: Floats
    ties: Integers
    ids: tuple[str, ...]
    exhausted: bool
    n_certified: int
    frontier: float = 0.0


class SourceQuery(Protocol):
    """One open query of a source; it sees one version of the objects."""

    @property
    def exact(self) -> bool:
        """Return whether order and distances are exact."""
        ...

    @property
    def n_verified(self) -> int:
        """Return the number of distances computed so far."""
        ...

    @property
    def epoch(self) -> bytes | None:
        """Return the id of the objects' version, if there is one."""
        ...

    def next(
        self, k: int, *, cutoff: float = math.inf, deadline_s: float | None = None
    ) -> FoundObjects:
        """Emit the next ``k`` objects with distances up to ``cutoff``."""
        ...

    def lowest_bounds(self, k: int, *, deadline_s: float | None = None) -> Floats:
        """Return the ``k`` lowest of the objects' lower bounds, ascending.

        Raises
        ------
        TimeoutError
            If more than ``deadline_s`` seconds have passed.
        """
        ...

    def separate_bounds(self, k: int, *, deadline_s: float | None = None) -> Floats:
        """Return the ``k`` lowest bounds that depend on one object each.

        Raises
        ------
        TimeoutError
            If more than ``deadline_s`` seconds have passed.
        """
        ...

    def count(self, radius: float, *, deadline_s: float | None = None) -> int:
        """Count the objects within ``radius``.

        Raises
        ------
        TimeoutError
            If more than ``deadline_s`` seconds have passed.
        """
        ...

    def payload(self, ids: Sequence[str]) -> list[Mapping[str, Any]]:
        """Return the payload columns, if any, of emitted objects.

        Raises
        ------
        LookupError
            If an object was not emitted.
        """
        ...

    def close(self) -> None:
        """Release what the query holds."""
        ...


class ObjectSource(Protocol):
    """The objects of a provider."""

    n_cells: int
    """Memory of an open query in cells of 8 bytes."""

    def names_fit(self) -> bool:
        """Return whether all names fit into replies of fixed size."""
        ...

    def size(self, where: Where | None, *, end: float = math.inf) -> int:
        """Count the objects that meet a filter."""
        ...

    def open(self, query: Any, where: Where | None, *, end: float = math.inf) -> SourceQuery:
        """Open a query over the objects that meet a filter.

        Raises
        ------
        TypeError, ValueError
            If the query is not an object of the metric, or the filter does not suit the columns.
        TimeoutError
            If the monotonic time ``end`` has passed.
        """
        ...


@dataclass(frozen=True, eq=False)
class IndexedObjects:
    """Objects with an index: all objects of a source, or those that meet a filter.

    Parameters
    ----------
    index : Index
        Index of the objects.
    ties : int64 array of shape (n_objects,)
        Tie key of each object.
    ids : object array of shape (n_objects,)
        Name of each object.
    rows : int64 array of shape (n_objects,)
        Position of each object among all objects.
    payload : mapping of str to sequence
        Payload columns of all objects.
    """

    index: Index
    ties: Integers
    ids: Any
    rows: Integers
    payload: Mapping[str, Sequence[Any]] = field(default_factory=dict)


class MemoryQuery:
    """A session of an index, with names and tie keys.

    Parameters
    ----------
    session : Session
        An open query.
    found : IndexedObjects
        The objects that it searches.
    epoch : bytes
        Id of their version.
    """

    def __init__(self, session: Session, found: IndexedObjects, epoch: bytes) -> None:
        self.session, self.exact, self.epoch = session, session.exact, epoch
        self._found, self._ties, self._ids = found, found.ties, found.ids
        self._emitted: list[Integers] = []

    @property
    def n_verified(self) -> int:
        """Return the number of distances computed so far."""
        return self.session.n_verified

    def next(
        self, k: int, *, cutoff: float = math.inf, deadline_s: float | None = None
    ) -> FoundObjects:
        """Emit the next ``k`` objects with distances up to ``cutoff``."""
        batch = self.session.next(k, cutoff=cutoff, deadline_s=deadline_s)
        if self._found.payload:
            self._emitted.append(batch.positions)
        return FoundObjects(
            distances=batch.distances,
            ties=self._ties[batch.positions],
            ids=tuple(self._ids[batch.positions].tolist()),
            exhausted=batch.exhausted,
            n_certified=batch.n_certified,
            frontier=batch.frontier,
        )

    def lowest_bounds(self, k: int, *, deadline_s: float | None = None) -> Floats:
        """Return the ``k`` lowest of the objects' lower bounds, ascending."""
        return lowest(self.session.bounds(deadline_s=deadline_s), k)

    def separate_bounds(self, k: int, *, deadline_s: float | None = None) -> Floats:
        """Return the ``k`` lowest bounds that depend on one object each.

        A session that supports such bounds has a method ``separate_bounds``. For others the bound
        is 0, which holds for every distance.
        """
        compute: Any = getattr(self.session, "separate_bounds", None)
        if compute is None:
            return np.zeros(min(max(k, 0), len(self._ids)))
        return lowest(compute(deadline_s=deadline_s), k)

    def count(self, radius: float, *, deadline_s: float | None = None) -> int:
        """Count the objects within ``radius``."""
        return self.session.count(radius, deadline_s=deadline_s)

    def payload(self, ids: Sequence[str]) -> list[Mapping[str, Any]]:
        """Return the payload columns of objects that were emitted."""
        if not (columns := self._found.payload):
            return [{} for _ in ids]
        emitted = np.concatenate([np.empty(0, np.int64), *self._emitted])
        row_of = dict(zip(self._ids[emitted].tolist(), self._found.rows[emitted], strict=True))
        rows = [row_of[name] for name in ids]
        return [{name: cells[row] for name, cells in columns.items()} for row in rows]

    def close(self) -> None:
        """Release nothing."""


class MemorySource:
    """Objects in memory, with an index.

    Parameters
    ----------
    objects : sequence
        Objects of the metric; may be empty.
    metric : Metric
        The distance.
    owner : str
        Name of the provider.
    epoch : bytes, optional
        Id of this version of the objects; by default a new one.
    ids : sequence of str, optional
        Unique names of the objects; by default their positions.
    key : bytes
        Public key of the tie keys, the same at all providers.
    columns : FilterColumns, optional
        Columns of the objects for filters.
    payload : mapping of str to sequence of shape (n_objects,), optional
        Columns that are returned with found objects; cells are values of JSON.

    Raises
    ------
    ValueError
        If the number of ids differs from that of objects, or two ids are equal.
    """

    def __init__(
        self,
        objects: Sequence[Any],
        metric: Metric,
        *,
        owner: str,
        epoch: bytes | None = None,
        ids: Sequence[str] | None = None,
        key: bytes = b"",
        columns: FilterColumns | None = None,
        payload: Mapping[str, Sequence[Any]] | None = None,
    ) -> None:
        self.ids = [str(k) for k in range(len(objects))] if ids is None else list(ids)
        if len(self.ids) != len(objects) or len(set(self.ids)) < len(self.ids):
            raise ValueError(
                f"expected a unique name for each of {len(objects)} objects of {owner!r}"
            )
        self._longest = max((len(item.encode("utf-8", "replace")) for item in self.ids), default=0)
        self.ties = tie_keys(self.ids, owner=owner, key=key)
        self._epoch, self.n_cells = epoch or secrets.token_bytes(EPOCH_BYTES), len(self.ids)
        self._ranks, start = rank_objects(self.ties), time.monotonic()
        index = metric.index(objects, ranks=self._ranks)
        self._index_s = time.monotonic() - start
        self._all = IndexedObjects(
            index,
            self.ties,
            np.array(self.ids, object),
            np.arange(len(self.ids)),
            payload or {},
        )
        self._filtered: dict[str, IndexedObjects] = {}
        self._objects = None if columns is None else objects
        self._columns, self._metric, self._end = columns, metric, math.inf

    @property
    def nearest(self) -> Any:
        """Return the search of many queries at once, if any."""
        return getattr(self._all.index, "nearest", None)

    def names_fit(self) -> bool:
        """Return whether all names fit into replies of fixed size."""
        return self._longest <= MAX_NAME_BYTES

    def size(self, where: Where | None, *, end: float = math.inf) -> int:
        """Count the objects that meet a filter."""
        return self._select(where, end).index.n_objects

    def open(self, query: Any, where: Where | None, *, end: float = math.inf) -> MemoryQuery:
        """Open a query over the objects that meet a filter."""
        found = self._select(where, end)
        return MemoryQuery(found.index.open(query), found, self._epoch)

    def _select(self, where: Where | None, end: float) -> IndexedObjects:
        """Return the objects that meet a filter, with an index."""
        if where is None:
            return self._all
        if self._columns is None or self._objects is None:
            raise ValueError("there are no columns")
        text = filter_text(where)
        found = self._filtered.pop(text, None)
        if found is None:
            rows = np.flatnonzero(self._columns.match(where, end=end))
            index = FilteredIndex(self._all.index, rows, partial(self._build_index, rows))
            whole = self._all
            found = IndexedObjects(index, whole.ties[rows], whole.ids[rows], rows, whole.payload)
        self._end = end  # the deadline of an index
        self._filtered[text] = found  # the latest is the last
        sizes = [one.index.n_objects for one in self._filtered.values()]
        while len(sizes) > 1 and (len(sizes) > MAX_FILTERS or sum(sizes) > len(self.ids)):
            del self._filtered[next(iter(self._filtered))], sizes[0]
        return found

    def _build_index(self, rows: Integers) -> Index | None:
        """Return the index of some objects; None if it would be late.

        The time is that of the index of all objects, in proportion and with a margin.
        """
        needed_s = _BUILD_MARGIN * self._index_s * len(rows) / max(len(self.ids), 1)
        if needed_s > max(self._end - time.monotonic(), 0.0):
            return None
        objects: Any = self._objects
        if isinstance(objects, TableRows | np.ndarray):
            objects = objects.select(rows) if isinstance(objects, TableRows) else objects[rows]
        else:
            objects = [objects[row] for row in rows.tolist()]
        return self._metric.index(objects, ranks=self._ranks[rows])


def lowest(bounds: Floats, k: int) -> Floats:
    """Return the k lowest bounds, ascending; all if there are fewer."""
    return np.sort(np.partition(bounds, max(k, 0))[: max(k, 0)] if k < len(bounds) else bounds)


def take_nearest(
    query: SourceQuery,
    count: int,
    cutoff: float | None = None,
    tie: int | None = None,
    end: float = math.inf,
) -> NearestReply:
    """Return the next objects of a query as a reply.

    Parameters
    ----------
    query : SourceQuery
        An open query.
    count : int
        Number of objects, 0 or more.
    cutoff, tie : float and int, optional
        As in :class:`~fedneighbors.methods.fedknn.protocol.NearestRequest`.
    end : float
        Monotonic time after which an exact query stops; the reply may then have fewer objects.
    """
    if cutoff is None or tie is None:
        limit = math.inf if cutoff is None else cutoff
        found = next_certified(query, count, cutoff=limit, end=end)
    else:
        found = next_until(query, count, cutoff=cutoff, tie=tie, end=end)
    is_late = len(found.ids) < count and end < math.inf and query.exact
    is_known = is_late and math.isfinite(found.frontier)
    return NearestReply(
        distances=found.distances,
        ties=found.ties,
        ids=Names.pack(found.ids),
        exhausted=found.exhausted or (len(found.ids) < count and not is_late),
        exact=query.exact,
        n_verified=query.n_verified,
        frontier=found.frontier if is_known else min(found.frontier, 0.0),
    )


def next_certified(query: SourceQuery, k: int, *, cutoff: float, end: float) -> FoundObjects:
    """Emit the next ``k`` objects; at ``end``, those that are certified.

    The certificate of an approximate query is empty, so it is not interrupted.
    """
    if end == math.inf or not query.exact:
        return query.next(k, cutoff=cutoff)
    found = query.next(k, cutoff=cutoff, deadline_s=max(end - time.monotonic(), 0.0))
    if (n := found.n_certified) == len(found.ids):
        return found
    return replace(found, distances=found.distances[:n], ties=found.ties[:n], ids=found.ids[:n])


def take_eagerly(
    query: SourceQuery, request: EagerRequest, *, start: float, latest: float = math.inf
) -> NearestReply:
    """Return the next objects of a query within time limits.

    Parameters
    ----------
    query : SourceQuery
        An open query.
    request : EagerRequest
        Number of objects, and limits.
    start : float
        Monotonic time at which the request arrived.
    latest : float
        Monotonic time at which the search stops in any case.
    """
    take = partial(take_nearest, query, cutoff=request.cutoff, tie=request.tie)
    end = latest if request.budget_s is None else min(start + request.budget_s, latest)
    if not query.exact or request.enough is None or request.enough >= request.count:
        return take(request.count, end=end)
    first = take(request.enough, end=end)
    # An interrupted search may be slow to continue, so "enough" is searched for in one step.
    end = min(end, start + request.grace_s)
    if first.exhausted or len(first.ids) < request.enough or time.monotonic() >= end:
        return first
    more = take(request.count - request.enough, end=end)
    return replace(
        more,
        distances=np.concatenate([first.distances, more.distances]),
        ties=np.concatenate([first.ties, more.ties]),
        ids=first.ids + more.ids,
    )


def next_until(
    query: SourceQuery, k: int, *, cutoff: float, tie: int, end: float = math.inf
) -> FoundObjects:
    """Emit the next ``k`` objects up to a limit, few beyond it.

    The limit is a distance and a tie key. Objects at the cutoff distance are emitted in growing
    batches, so that few of many tied objects are beyond the limit.

    Parameters
    ----------
    query : SourceQuery
        An open query.
    k : int
        Number of objects, 0 or more.
    cutoff : float
        Distance of the limit.
    tie : int
        Tie key of the limit.
    end : float
        As for :func:`take_nearest`.

    Returns
    -------
    FoundObjects
        ``exhausted`` is true if no further object is up to the limit.
    """
    below = float(np.nextafter(cutoff, -math.inf))
    parts = [next_certified(query, k, cutoff=below, end=end)]
    n_left, batch_size, exhausted = k - len(parts[0].ids), 1, False
    is_timed = end < math.inf and query.exact
    is_late = is_timed and n_left > 0 and not parts[0].exhausted
    while n_left > 0 and not exhausted and not is_late:
        n_wanted = min(batch_size, n_left)
        parts.append(next_certified(query, n_wanted, cutoff=cutoff, end=end))
        exhausted = parts[-1].exhausted or bool((parts[-1].ties[-1:] > tie).any())
        is_late = is_timed and len(parts[-1].ids) < n_wanted
        n_left -= len(parts[-1].ids)
        batch_size *= 2
    return FoundObjects(
        distances=np.concatenate([part.distances for part in parts]),
        ties=np.concatenate([part.ties for part in parts]),
        ids=tuple(name for part in parts for name in part.ids),
        exhausted=exhausted,
        n_certified=sum(part.n_certified for part in parts),
        frontier=parts[-1].frontier,
    )
