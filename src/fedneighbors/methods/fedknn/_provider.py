"""A provider: one organisation's objects and its open query sessions.

Under DANN* each lower bound that it sends depends on the query and one object only. The privacy
cost of the first counts relies on this: replacing an object changes a single bound. Bounds based on
the whole table (principal directions, the longest row, the known words) are tighter, but one object
can change all of them.
"""

import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import numpy as np

from fedneighbors._limits import MAX_CELLS
from fedneighbors.errors import SourceError, WireError
from fedneighbors.federation._messages import Message
from fedneighbors.federation._reply_grid import delay_to_grid
from fedneighbors.federation._roles import Refused
from fedneighbors.methods.fedknn._batch import NearestBatchReply, NearestBatchRequest
from fedneighbors.methods.fedknn._eager import EagerRequest
from fedneighbors.methods.fedknn._filters import FilterColumns, Where
from fedneighbors.methods.fedknn._payloads import PayloadReply, PayloadRequest
from fedneighbors.methods.fedknn._queries import FilteredQuery
from fedneighbors.methods.fedknn._sources import (
    MemorySource,
    ObjectSource,
    SourceQuery,
    take_eagerly,
    take_nearest,
)
from fedneighbors.methods.fedknn.metrics._interfaces import Metric
from fedneighbors.methods.fedknn.metrics._sessions import LATE, check_time
from fedneighbors.methods.fedknn.private._padding import (
    PaddedBoundRequest,
    PaddedNearestRequest,
    pad_bounds,
    pad_nearest,
)
from fedneighbors.methods.fedknn.protocol import (
    BoundReply,
    BoundRequest,
    Finished,
    FinishRequest,
    NearestRequest,
    RangeCountReply,
    RangeCountRequest,
)

log = logging.getLogger(__name__)

MAX_OPEN_QUERIES = 1000
"""Maximum number of open queries; limits memory if a broker never closes any."""

MAX_OPEN_BYTES = 256 << 20
"""Maximum number of bytes of all open queries."""

SOURCE_FAILED = "the source of the objects failed"

PRIVATE_FILTER = "the provider's policy allows no filter of a private search"

FEW_FILTERED = "the filter leaves, or leaves out, fewer objects than the provider's policy allows"

INVALID_QUERY = "the query is not an object of this metric, or its filter does not suit the columns"

PrivateRequest = PaddedBoundRequest | PaddedNearestRequest
"""Requests of DANN*."""

# RecursionError: of deeply nested JSON
INVALID_ERRORS = (TypeError, ValueError, ArithmeticError, LookupError, RecursionError, WireError)


class Provider:
    """One organisation's objects and its replies.

    Parameters
    ----------
    name : str
        Name in the federation.
    source : ObjectSource
        The objects.
    decode : callable
        Function from the bytes of a query to an object.
    min_filtered : int
        Number of objects that a filter must leave, and leave out unless it leaves all; other
        filters are refused.

    Attributes
    ----------
    end : float
        Monotonic time at which searches stop; set by a runtime.
    charge : callable
        Called with each private request and the epoch of its query before the search, so that
        nothing depends on the objects yet; raises Refused to prevent it. Set by a runtime.
    """

    accepts: tuple[type[Any], ...] = (
        BoundRequest,
        NearestRequest,
        EagerRequest,
        NearestBatchRequest,
        RangeCountRequest,
        PaddedBoundRequest,
        PaddedNearestRequest,
        PayloadRequest,
        FinishRequest,
    )

    def __init__(
        self,
        name: str,
        source: ObjectSource,
        *,
        decode: Callable[[bytes], Any],
        min_filtered: int = 0,
    ) -> None:
        self.name, self.source, self.end = name, source, math.inf
        self.charge: Callable[[PrivateRequest, bytes], None] = charge_nothing
        self._min_filtered = min_filtered
        self._decode = decode
        self._open: dict[str, tuple[bytes, SourceQuery]] = {}
        self._n_open_bytes = 0

    @classmethod
    def of(
        cls,
        name: str,
        objects: Sequence[Any],
        metric: Metric,
        *,
        decode: Callable[[bytes], Any],
        ids: Sequence[str] | None = None,
        key: bytes = b"",
        epoch: str | None = None,
        columns: FilterColumns | None = None,
    ) -> Self:
        """Return a provider of objects in memory.

        Parameters
        ----------
        name, decode : str and callable
            As for the class.
        objects, metric, ids, key, columns : optional
            As for :class:`~fedneighbors.methods.fedknn._sources.MemorySource`.
        epoch : str, optional
            Hexadecimal id of this version of the objects; by default a new one.
        """
        source = MemorySource(
            objects,
            metric,
            owner=name,
            epoch=None if epoch is None else bytes.fromhex(epoch),
            ids=ids,
            key=key,
            columns=columns,
        )
        return cls(name, source, decode=decode)

    def epoch_of(self, name: str) -> bytes:
        """Return the version of the objects that a query sees.

        The id is empty if the query is not open, or the source has no versions.
        """
        return (self._open[name][1].epoch or b"") if name in self._open else b""

    def answer(self, request: Message) -> Message:
        """Return the reply to one of the requests in ``accepts``."""
        with self._refuse_failures(getattr(request, "name", "")):
            return self._answer(request)

    def read_filter(self, query: bytes) -> Where | None:
        """Return the filter of a query, None without one."""
        with refuse_invalid():
            item = self._decode(query)
            return json.loads(item.where) if isinstance(item, FilteredQuery) else None

    def size(self, where: Where | None) -> int:
        """Count the objects that meet a filter, or refuse."""
        with self._refuse_failures(""), refuse_invalid():
            return self.source.size(where, end=self.end)

    @contextmanager
    def _refuse_failures(self, name: str) -> Iterator[None]:
        """Refuse a request if the source fails or is late."""
        try:
            yield
        except SourceError as error:  # its text may contain values
            log.error("%s: %s", self.name, " ".join(str(error).split()))
            self._close(name)
            raise Refused(SOURCE_FAILED) from None
        except TimeoutError as error:
            raise Refused(LATE) from error

    def _answer(self, request: Message) -> Message:
        match request:
            case BoundRequest():
                query, left_s = self._get_timed(request)
                return BoundReply(query.lowest_bounds(request.k, deadline_s=left_s))
            case EagerRequest():
                start = time.monotonic()  # the budget includes opening the query
                query = self._get_query(request)
                return take_eagerly(query, request, start=start, latest=self.end)
            case NearestRequest():
                count, limits = max(request.count, 0), (request.cutoff, request.tie)
                reply = take_nearest(self._get_query(request), count, *limits, end=self.end)
                if len(reply.ids) < count and not reply.exhausted:
                    raise Refused(LATE)
                return reply
            case NearestBatchRequest():
                return self._answer_batch(request)
            case PaddedBoundRequest() | PaddedNearestRequest():
                return self._answer_privately(request)
            case RangeCountRequest():
                if request.radius is None:  # needs no search
                    where = self.read_filter(request.query)
                    with refuse_invalid():
                        n_objects = self.source.size(where, end=self.end)
                    self._check_filtered(where, n_objects)
                    return RangeCountReply(n_objects)
                query, left_s = self._get_timed(request)
                n_objects = query.count(request.radius, deadline_s=left_s)
                return RangeCountReply(n_objects, query.exact)
            case PayloadRequest():
                if request.name not in self._open:
                    raise Refused("the query is not open")
                with refuse_invalid():
                    rows = self._get_query(request).payload(request.ids)
                return PayloadReply(tuple(json.dumps(row) for row in rows))
            case FinishRequest():
                for name in request.names:
                    self._close(name)
                return Finished()
        raise Refused("unknown request")

    def _answer_privately(self, request: PrivateRequest) -> Message:
        """Reply on the time grid.

        A reply that is not ready for the last step before the deadline is refused, so that a
        refusal reveals no more than a step.
        """
        if self._min_filtered:  # the number that a filter leaves depends on the rows
            with refuse_invalid():
                if self._decode_query(request.query)[1] is not None:
                    raise Refused(PRIVATE_FILTER)
        with delay_to_grid(request.grid_s, self.end) as end:
            check_time(end)
            query = self._get_query(request)
            if not query.exact:  # results depend on all objects: counts reveal more than charged
                raise Refused("a private search needs an exact index")
            if query.epoch is None:  # the same query could not be recognized
                raise Refused("a private search needs a version of the objects")
            if not self.source.names_fit():
                raise Refused("a name is too long for replies of fixed size")
            self.charge(request, query.epoch)
            if isinstance(request, PaddedBoundRequest):
                left_s = None if end == math.inf else end - time.monotonic()
                bounds = query.separate_bounds(request.k, deadline_s=left_s)
                reply: Message = pad_bounds(bounds, request.k, query.epoch)
            else:
                count = int(request.count[0])
                found = take_nearest(query, count, end=end)
                if len(found.ids) < count and not found.exhausted:
                    raise TimeoutError(LATE)
                reply = pad_nearest(found, request.k)
            check_time(end)
            return reply

    def _answer_batch(self, request: NearestBatchRequest) -> NearestBatchReply:
        search: Any = getattr(self.source, "nearest", None)
        if search is None:
            raise Refused("this metric answers one query at a time")
        try:  # a context manager takes as long as a small search
            distances, positions = search(request.points, request.k, peak=request.peak)
        except INVALID_ERRORS as error:
            raise Refused(INVALID_QUERY) from error
        positions = positions.astype(np.int32)
        distances.flags.writeable = positions.flags.writeable = False  # as decoded from a reply
        return NearestBatchReply(distances, positions)

    def _get_timed(
        self, request: BoundRequest | RangeCountRequest
    ) -> tuple[SourceQuery, float | None]:
        """Return an open query, and the remaining seconds."""
        start = time.monotonic()  # the budget includes opening the query
        query = self._get_query(request)
        end = self.end if request.budget_s is None else min(self.end, start + request.budget_s)
        return query, None if end == math.inf else end - time.monotonic()

    def _get_query(self, request: Any) -> SourceQuery:
        """Return an open query; open one for a new name."""
        entry = self._open.get(request.name)
        if entry is not None:
            if entry[0] != request.query:
                raise Refused("another query has this name")
            return entry[1]
        n_bytes = self._n_open_bytes + len(request.query)
        n_cells = len(self._open) * self.source.n_cells
        if len(self._open) >= MAX_OPEN_QUERIES or n_bytes > MAX_OPEN_BYTES or n_cells > MAX_CELLS:
            raise Refused("too many queries are open; close some")
        with refuse_invalid():
            item, where = self._decode_query(request.query)
            if where is not None and self._min_filtered:
                self._check_filtered(where, self.source.size(where, end=self.end))
            query = self.source.open(item, where, end=self.end)
        self._open[request.name], self._n_open_bytes = (request.query, query), n_bytes
        return query

    def _close(self, name: str) -> None:
        """Close a query, if it is open."""
        if name in self._open:
            frame, query = self._open.pop(name)
            self._n_open_bytes -= len(frame)
            query.close()

    def _check_filtered(self, where: Where | None, n_objects: int) -> None:
        """Refuse a filter that leaves, or leaves out, too few objects."""
        if where is None or not self._min_filtered:
            return
        n_out = self.source.size(None, end=self.end) - n_objects
        if n_objects < self._min_filtered or 0 < n_out < self._min_filtered:
            raise Refused(FEW_FILTERED)

    def _decode_query(self, query: bytes) -> tuple[Any, Where | None]:
        """Return a query's object, and its filter."""
        item = self._decode(query)
        if not isinstance(item, FilteredQuery):
            return item, None
        return self._decode(item.query), json.loads(item.where)


def charge_nothing(_: PrivateRequest, __: bytes) -> None:
    """Accept a private request; the coordinator's ledger is charged."""


@contextmanager
def refuse_invalid() -> Iterator[None]:
    """Refuse a request with an invalid query or filter."""
    try:
        yield
    except INVALID_ERRORS as error:
        raise Refused(INVALID_QUERY) from error
