"""A provider: one organisation's objects and its open query sessions.

Under DANN* each lower bound that it sends depends on the query and one object only. The privacy
cost of the first counts relies on this: replacing an object changes a single bound. Bounds based on
the whole table (principal directions, the longest row, the known words) are tighter, but one object
can change all of them.
"""

import json
import math
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from fedneighbors._limits import MAX_CELLS
from fedneighbors._typing import Floats, Integers
from fedneighbors.errors import WireError
from fedneighbors.federation._messages import Message
from fedneighbors.federation._reply_grid import delay_to_grid
from fedneighbors.federation._roles import Refused
from fedneighbors.methods.fedknn._batch import NearestBatchReply, NearestBatchRequest
from fedneighbors.methods.fedknn._eager import EagerRequest
from fedneighbors.methods.fedknn._filters import FilterColumns, FilteredIndex
from fedneighbors.methods.fedknn._queries import FilteredQuery
from fedneighbors.methods.fedknn.algorithm import rank_objects, tie_keys
from fedneighbors.methods.fedknn.metrics._interfaces import Index, Metric, Session, SessionBatch
from fedneighbors.methods.fedknn.metrics._sessions import LATE, check_time
from fedneighbors.methods.fedknn.private._padding import (
    EPOCH_BYTES,
    MAX_NAME_BYTES,
    PaddedBoundRequest,
    PaddedNearestRequest,
    pad_bounds,
    pad_nearest,
    separate_bounds,
)
from fedneighbors.methods.fedknn.protocol import (
    BoundReply,
    BoundRequest,
    Finished,
    FinishRequest,
    NearestReply,
    NearestRequest,
    RangeCountReply,
    RangeCountRequest,
)

MAX_OPEN_QUERIES = 1000
"""Maximum number of open queries; limits memory if a broker never closes any."""

MAX_OPEN_BYTES = 256 << 20
"""Maximum number of bytes of all open queries."""

MAX_FILTERS = 64
"""Maximum number of filters with an index."""

_BUILD_MARGIN = 2
"""Ratio of the time reserved for an index of a filter to the expected time."""

INVALID_QUERY = "the query is not an object of this metric, or its filter does not suit the columns"

# RecursionError: of deeply nested JSON
INVALID_ERRORS = (TypeError, ValueError, ArithmeticError, LookupError, RecursionError, WireError)


@dataclass(frozen=True, eq=False)
class IndexedObjects:
    """Objects with an index: all objects of a provider, or those that meet a filter.

    Parameters
    ----------
    index : Index
        Index of the objects.
    ties : int64 array of shape (n_objects,)
        Tie key of each object.
    ids : array of str of shape (n_objects,)
        Name of each object.
    """

    index: Index
    ties: Integers
    ids: Any


class Provider:
    """One organisation's objects and its replies.

    Parameters
    ----------
    name : str
        Name in the federation.
    objects : sequence
        Objects of the metric; may be empty.
    metric : Metric
        The distance.
    decode : callable
        Function from the bytes of a query to an object.
    ids : sequence of str, optional
        Unique names of the objects; by default their positions.
    key : bytes
        Public key of the tie keys, the same at all providers.
    epoch : str, optional
        Hexadecimal id of this version of the objects; by default a new one.
    columns : FilterColumns, optional
        Columns of the objects for filters.

    Attributes
    ----------
    end : float
        Monotonic time at which searches stop; set by a runtime.

    Raises
    ------
    ValueError
        If the number of ids differs from that of objects, or two ids are equal.
    """

    accepts: tuple[type[Any], ...] = (
        BoundRequest,
        NearestRequest,
        EagerRequest,
        NearestBatchRequest,
        RangeCountRequest,
        PaddedBoundRequest,
        PaddedNearestRequest,
        FinishRequest,
    )

    def __init__(
        self,
        name: str,
        objects: Sequence[Any],
        metric: Metric,
        *,
        decode: Callable[[bytes], Any],
        ids: Sequence[str] | None = None,
        key: bytes = b"",
        epoch: str | None = None,
        columns: FilterColumns | None = None,
    ) -> None:
        self.name, self.end = name, math.inf
        self.ids = [str(k) for k in range(len(objects))] if ids is None else list(ids)
        if len(self.ids) != len(objects) or len(set(self.ids)) < len(self.ids):
            raise ValueError(
                f"expected a unique name for each of {len(objects)} objects of {name!r}"
            )
        longest = max((len(item.encode("utf-8", "replace")) for item in self.ids), default=0)
        self._names_fit = longest <= MAX_NAME_BYTES
        self.ties = tie_keys(self.ids, owner=name, key=key)
        self._ranks, start = rank_objects(self.ties), time.monotonic()
        index = metric.index(objects, ranks=self._ranks)
        self._index_s = time.monotonic() - start
        self._all = IndexedObjects(index, self.ties, np.array(self.ids, object))
        self._filtered: dict[str, IndexedObjects] = {}
        self._objects = None if columns is None else objects
        self._columns, self._metric = columns, metric
        self._decode = decode
        self._epoch = bytes.fromhex(epoch or secrets.token_hex(EPOCH_BYTES))
        self._open: dict[str, tuple[bytes, Session, IndexedObjects]] = {}

    def answer(self, request: Message) -> Message:
        """Return the reply to one of the requests in ``accepts``."""
        try:
            return self._answer(request)
        except TimeoutError as error:
            raise Refused(LATE) from error

    def _answer(self, request: Message) -> Message:
        match request:
            case BoundRequest():
                session, left_s = self._get_timed(request)
                return BoundReply(lowest(session.bounds(deadline_s=left_s), request.k))
            case EagerRequest():
                start = time.monotonic()  # the budget includes opening the session
                session, found = self._get_session(request)
                return take_eagerly(
                    session, request, start=start, ties=found.ties, ids=found.ids, latest=self.end
                )
            case NearestRequest():
                count = request.count
                reply = self._answer_nearest(
                    request, count, request.cutoff, request.tie, end=self.end
                )
                if len(reply.ids) < count and not reply.exhausted:
                    raise Refused(LATE)
                return reply
            case NearestBatchRequest():
                return self._answer_batch(request)
            case PaddedBoundRequest() | PaddedNearestRequest():
                return self._answer_privately(request)
            case RangeCountRequest():
                if request.radius is None:  # needs no search
                    return RangeCountReply(self._decode_query(request.query)[1].index.n_objects)
                session, left_s = self._get_timed(request)
                return RangeCountReply(session.count(request.radius, deadline_s=left_s))
            case FinishRequest():
                for name in request.names:
                    self._open.pop(name, None)
                return Finished()
        raise Refused("unknown request")

    def _answer_privately(self, request: PaddedBoundRequest | PaddedNearestRequest) -> Message:
        """Reply on the time grid.

        A reply that is not ready for the last step before the deadline is refused, so that a
        refusal reveals no more than a step.
        """
        if not self._names_fit:
            raise Refused("a name is too long for replies of fixed size")
        with delay_to_grid(request.grid_s, self.end) as end:
            check_time(end)
            if isinstance(request, PaddedBoundRequest):
                bounds = separate_bounds(self._get_session(request)[0], end)
                reply: Message = pad_bounds(lowest(bounds, request.k), request.k, self._epoch)
            else:
                found = self._answer_nearest(request, int(request.count[0]), end=end)
                reply = pad_nearest(found, request.k)
            check_time(end)
            return reply

    def _answer_nearest(
        self,
        request: NearestRequest | PaddedNearestRequest,
        count: int,
        cutoff: float | None = None,
        tie: int | None = None,
        end: float = math.inf,
    ) -> NearestReply:
        session, found = self._get_session(request)
        return take_nearest(
            session, max(count, 0), cutoff=cutoff, tie=tie, ties=found.ties, ids=found.ids, end=end
        )

    def _answer_batch(self, request: NearestBatchRequest) -> NearestBatchReply:
        search: Any = getattr(self._all.index, "nearest", None)
        if search is None:
            raise Refused("this metric answers one query at a time")
        try:
            distances, positions = search(request.points, request.k, peak=request.peak)
        except (TypeError, ValueError) as error:
            raise Refused(INVALID_QUERY) from error
        return NearestBatchReply(distances, positions.astype(np.int32))

    def _get_timed(self, request: BoundRequest | RangeCountRequest) -> tuple[Session, float | None]:
        """Return the session of a query, and the remaining seconds."""
        start = time.monotonic()  # the budget includes opening the session
        session, _ = self._get_session(request)
        end = self.end if request.budget_s is None else min(self.end, start + request.budget_s)
        return session, None if end == math.inf else end - time.monotonic()

    def _get_session(self, request: Any) -> tuple[Session, IndexedObjects]:
        """Return the session of a query; open one for a new name."""
        entry = self._open.get(request.name)
        if entry is not None:
            if entry[0] != request.query:
                raise Refused("another query has this name")
            return entry[1:]
        n_bytes = sum(len(query) for query, *_ in self._open.values()) + len(request.query)
        n_cells = len(self._open) * self._all.index.n_objects
        if len(self._open) >= MAX_OPEN_QUERIES or n_bytes > MAX_OPEN_BYTES or n_cells > MAX_CELLS:
            raise Refused("too many queries are open; close some")
        item, found = self._decode_query(request.query)
        session = open_session(found.index, item)
        self._open[request.name] = request.query, session, found
        return session, found

    def _decode_query(self, query: bytes) -> tuple[Any, IndexedObjects]:
        """Return a query's object, and the objects to search."""
        try:
            item = self._decode(query)
            if not isinstance(item, FilteredQuery):
                return item, self._all
            return self._decode(item.query), self._select(item.where)
        except INVALID_ERRORS as error:
            raise Refused(INVALID_QUERY) from error

    def _select(self, where: str) -> IndexedObjects:
        """Return the objects that meet a filter, with an index."""
        if self._columns is None or self._objects is None:
            raise ValueError("there are no columns")
        found = self._filtered.pop(where, None)
        if found is None:
            rows = np.flatnonzero(self._columns.match(json.loads(where), end=self.end))
            index = FilteredIndex(self._all.index, rows, partial(self._build_index, rows))
            found = IndexedObjects(index, self._all.ties[rows], self._all.ids[rows])
        self._filtered[where] = found  # the latest is the last
        sizes = [one.index.n_objects for one in self._filtered.values()]
        while len(sizes) > 1 and (len(sizes) > MAX_FILTERS or sum(sizes) > len(self.ids)):
            del self._filtered[next(iter(self._filtered))], sizes[0]
        return found

    def _build_index(self, rows: Integers) -> Index | None:
        """Return the index of the objects at ``rows``; None if it would be late.

        The time is that of the index of all objects, in proportion and with a margin.
        """
        if self._objects is None:
            raise ValueError("there are no columns")
        needed_s = _BUILD_MARGIN * self._index_s * len(rows) / max(len(self.ids), 1)
        if needed_s > max(self.end - time.monotonic(), 0.0):
            return None
        objects = self._objects
        if isinstance(objects, np.ndarray):
            return self._metric.index(objects[rows], ranks=self._ranks[rows])
        selected = [objects[row] for row in rows.tolist()]
        return self._metric.index(selected, ranks=self._ranks[rows])


def lowest(bounds: Floats, k: int) -> Floats:
    """Return the k lowest bounds, ascending; all if there are fewer."""
    k = max(k, 0)
    near = np.partition(bounds, k)[:k] if k < len(bounds) else bounds
    return np.sort(near)


def open_session(index: Index, item: Any) -> Session:
    """Open a session for a query.

    Raises
    ------
    Refused
        If the query is not an object of the metric.
    """
    try:
        return index.open(item)
    except INVALID_ERRORS as error:
        raise Refused(INVALID_QUERY) from error


def take_nearest(
    session: Session,
    count: int,
    *,
    cutoff: float | None,
    tie: int | None,
    ties: Integers,
    ids: Sequence[str],
    end: float = math.inf,
) -> NearestReply:
    """Return the next objects of a session as a reply.

    Parameters
    ----------
    session : Session
        An open query.
    count : int
        Number of objects, 0 or more.
    cutoff, tie : float and int, optional
        As in :class:`~fedneighbors.methods.fedknn.protocol.NearestRequest`.
    ties, ids : int64 array and sequence of str
        Tie key and name of each object, by position.
    end : float
        Monotonic time after which an exact session stops; the reply may then have fewer objects.
    """
    if cutoff is None or tie is None:
        limit = math.inf if cutoff is None else cutoff
        batch = next_certified(session, count, cutoff=limit, end=end)
    else:
        batch = next_until(session, count, cutoff=cutoff, tie=tie, ties=ties, end=end)
    is_late = len(batch.positions) < count and end < math.inf and session.exact
    return NearestReply(
        distances=batch.distances,
        ties=ties[batch.positions],
        ids=tuple(ids[position] for position in batch.positions.tolist()),
        exhausted=batch.exhausted or (len(batch.positions) < count and not is_late),
        exact=session.exact,
        n_verified=session.n_verified,
        frontier=batch.frontier
        if is_late and math.isfinite(batch.frontier)
        else min(batch.frontier, 0.0),
    )


def next_certified(session: Session, k: int, *, cutoff: float, end: float) -> SessionBatch:
    """Emit the next ``k`` objects; at ``end``, those that are certified.

    The certificate of an approximate session is empty, so it is not interrupted.
    """
    if end == math.inf or not session.exact:
        return session.next(k, cutoff=cutoff)
    batch = session.next(k, cutoff=cutoff, deadline_s=max(end - time.monotonic(), 0.0))
    n = batch.n_certified
    return replace(batch, positions=batch.positions[:n], distances=batch.distances[:n])


def take_eagerly(
    session: Session,
    request: EagerRequest,
    *,
    start: float,
    ties: Integers,
    ids: Sequence[str],
    latest: float = math.inf,
) -> NearestReply:
    """Return the next objects of a session within time limits.

    Parameters
    ----------
    session : Session
        An open query.
    request : EagerRequest
        Number of objects, and limits.
    start : float
        Monotonic time at which the request arrived.
    ties, ids : int64 array and sequence of str
        As for :func:`take_nearest`.
    latest : float
        Monotonic time at which the search stops in any case.
    """
    take = partial(
        take_nearest, session, cutoff=request.cutoff, tie=request.tie, ties=ties, ids=ids
    )
    end = latest if request.budget_s is None else min(start + request.budget_s, latest)
    if not session.exact or request.enough is None or request.enough >= request.count:
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
    session: Session, k: int, *, cutoff: float, tie: int, ties: Integers, end: float = math.inf
) -> SessionBatch:
    """Emit the next ``k`` objects up to a limit, few beyond it.

    The limit is a distance and a tie key. Objects at the cutoff distance are emitted in growing
    batches, so that few of many tied objects are beyond the limit.

    Parameters
    ----------
    session : Session
        An open query.
    k : int
        Number of objects, 0 or more.
    cutoff : float
        Distance of the limit.
    tie : int
        Tie key of the limit.
    ties : int64 array of shape (n_objects,)
        Tie key of each object; the session's ranks have the same order.
    end : float
        As for :func:`take_nearest`.

    Returns
    -------
    SessionBatch
        ``exhausted`` is true if no further object is up to the limit.
    """
    below = float(np.nextafter(cutoff, -math.inf))
    batches = [next_certified(session, k, cutoff=below, end=end)]
    n_left, batch_size, exhausted = k - len(batches[0].positions), 1, False
    is_timed = end < math.inf and session.exact
    is_late = is_timed and n_left > 0 and not batches[0].exhausted
    while n_left > 0 and not exhausted and not is_late:
        n_wanted = min(batch_size, n_left)
        batches.append(next_certified(session, n_wanted, cutoff=cutoff, end=end))
        positions = batches[-1].positions
        exhausted = batches[-1].exhausted or bool((ties[positions[-1:]] > tie).any())
        is_late = is_timed and len(positions) < n_wanted
        n_left -= len(positions)
        batch_size *= 2
    return SessionBatch(
        positions=np.concatenate([batch.positions for batch in batches]),
        distances=np.concatenate([batch.distances for batch in batches]),
        exhausted=exhausted,
        n_certified=sum(batch.n_certified for batch in batches),
        frontier=batches[-1].frontier,
    )
