"""Stored queries: those that run in the background, and answers for retries with the same key."""

import asyncio
import json
import math
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from fedneighbors.federation._loop import Replies
from fedneighbors.federation._messages import Message
from fedneighbors.methods.fedknn._eager import EagerRequest
from fedneighbors.methods.fedknn.algorithm import LAST_TIE, Part, count_certified, merge
from fedneighbors.methods.fedknn.protocol import NearestRequest, join_parts
from fedneighbors.records import Round
from fedneighbors.service._config import STEP_ERROR
from fedneighbors.service._messages import OfferedCollection
from fedneighbors.service._problems import Problem, encode_json

STORED_S = 3600.0
"""Seconds for which a finished query is stored."""

FORGOTTEN_S = 60.0
"""Seconds for which the answer of a query is stored that ran while a provider forgot objects."""

MAX_STORED = 1000
"""Maximum number of stored queries, half of it for a user; the oldest finished are removed."""

MAX_STORED_BYTES = 64 << 20
"""Maximum number of bytes of all answers and events, half of it for a user."""

_KEEP_ALIVE_S = 15.0  # proxies close connections without traffic, often after 60 s

DistanceSteps = Mapping[str, float | None]
"""Step of the distances that each provider shows to a user; None if it shows none."""


class StoredAnswer(NamedTuple):
    """The answer to a query: a status code, and JSON."""

    status: int
    content: bytes


Work = Callable[["StoredQuery"], Awaitable[StoredAnswer]]


class StoredQuery:
    """A query in the background, its events, and its answer.

    Parameters
    ----------
    query_id : str
        Name of the query.
    user : str
        User of the query, who alone may read it.
    key : str or None
        Idempotency-Key of the request.
    digest : bytes
        Digest of the request.
    request : tuple of str, str and bytes
        Kind of the query, name of the collection, and JSON of the request's body.
    """

    def __init__(
        self,
        query_id: str,
        user: str,
        key: str | None,
        digest: bytes,
        *,
        request: tuple[str, str, bytes] = ("", "", b""),
    ) -> None:
        self.query_id, self.user, self.key, self.digest = query_id, user, key, digest
        self.kind, self.collection, self.content = request
        self.answer: StoredAnswer | None = None
        self.since, self.n_bytes = time.monotonic(), len(self.content)
        self.is_outdated = False
        self._events: list[bytes] = []
        self._changed = asyncio.Event()
        self._parts: dict[str, Part] = {}
        self._names: set[str] = set()
        self._n_certified = 0
        self.task: asyncio.Task[StoredAnswer] | None = None

    async def run(self, work: Work) -> StoredAnswer:
        """Run the query to its answer."""
        self.answer = await work(self)
        self.since, self._parts = time.monotonic(), {}
        self._emit("done", self.answer.content)
        self.n_bytes += len(self.answer.content)  # which is stored twice
        return self.answer

    def on_round(
        self,
        record: Round,
        requests: Mapping[str, Message],
        replies: Replies,
        *,
        k: int | None,
        steps: Callable[[], DistanceSteps],
    ) -> None:
        """Add the events of an exchange.

        At most k objects are certified; all if k is None. No further ones are once a provider is
        missing, whose objects the answer leaves out. ``steps`` returns those for
        :func:`describe_neighbors`.
        """
        if record.index == 0:
            self._parts, self._n_certified, self._names = {}, 0, set(requests)
        described = {
            "index": record.index,
            "request": record.request,
            "seconds": record.seconds,
            "answered": sorted(replies.each),
            "missing": record.missing,
        }
        self._emit("round", encode_json(described))
        parts = {
            name: part
            for name, reply in replies.each.items()
            if (part := _read_part(requests[name], reply)) is not None
        }
        self._parts = join_parts(self._parts, parts)
        if replies.missing:
            self._names = set()
        if not self._names or self._parts.keys() != self._names:
            return
        n = count_certified(self._parts)
        merged = merge(self._parts, n if k is None else min(n, k))
        found = list(zip(merged.owners, merged.ids, merged.distances.tolist(), strict=True))
        if len(found) > self._n_certified:
            neighbors = describe_neighbors(found[self._n_certified :], steps())
            described = {"first": self._n_certified, "neighbors": neighbors}
            self._emit("certified", encode_json(described))
            self._n_certified = len(found)

    def _emit(self, name: str, content: bytes) -> None:
        number = len(self._events)
        self._events.append(b"event: %s\nid: %d\ndata: %s\n\n" % (name.encode(), number, content))
        self.n_bytes += len(content)
        self.notify()

    def progress(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the names and the contents of the events so far."""
        lines = [event.decode().split("\n") for event in self._events]
        return [(name[7:], json.loads(data[6:])) for name, _, data, *_ in lines]

    def notify(self) -> None:
        """Let those that wait for events continue."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def events(self, first: int = 0) -> AsyncIterator[bytes]:
        """Yield the events from a number on, until the last."""
        while True:
            while first < len(self._events):
                yield self._events[first]
                first += 1
            if self.task is None or self.task.done():
                return
            try:
                async with asyncio.timeout(_KEEP_ALIVE_S):
                    await self._changed.wait()
            except TimeoutError:
                yield b": keep-alive\n\n"


def describe_neighbors(
    found: list[tuple[str, str, float]], steps: DistanceSteps
) -> list[dict[str, Any]]:
    """Return objects (provider, id, distance) as JSON, with shown distances.

    There are none if one provider shows none: the order would place its objects between the
    distances of others.
    """
    shown = {} if None in steps.values() else steps
    return [
        {"provider": owner, "id": name, "distance": _round_up(distance, shown.get(owner))}
        for owner, name, distance in found
    ]


def _round_up(distance: float, step: float | None) -> float | None:
    """Return a distance as a multiple of a step; None without one."""
    if not step:
        return None if step is None else distance
    n_steps = distance / step
    if abs(n_steps) >= 1 / sys.float_info.epsilon:  # the step is below the distance's precision
        return distance
    return min(step * math.ceil(n_steps - STEP_ERROR), sys.float_info.max)


def _read_part(request: Message, reply: Any) -> Part | None:
    """Return the objects of a reply; None for replies of other kinds."""
    match request:
        case EagerRequest():
            place = request.close(reply)
            return Part(reply.distances, reply.ties, reply.ids, True, reply.exact, *place)
        case NearestRequest():
            cutoff = float("inf") if request.cutoff is None else request.cutoff
            tie = LAST_TIE if request.tie is None else request.tie
            return Part(
                reply.distances, reply.ties, reply.ids, reply.exhausted, reply.exact, cutoff, tie
            )
    return None


class QueryStore:
    """Stored queries, by name, and by user and key of the request."""

    def __init__(self) -> None:
        self._queries: dict[str, StoredQuery] = {}
        self._by_key: dict[tuple[str, str], StoredQuery] = {}
        self._n_forgotten: dict[tuple[str, str], int] = {}  # by provider and collection

    def find_earlier(self, user: str, key: str | None, digest: bytes) -> StoredQuery | None:
        """Return the earlier query of a key, if it is stored.

        Raises
        ------
        Problem
            If the earlier request was another one.
        """
        self._remove_old(user)
        earlier = None if key is None else self._by_key.get((user, key))
        if earlier is not None and earlier.digest != digest:
            detail = "the Idempotency-Key was used for another request; make a new key for each"
            raise Problem(422, "key-reused", detail)
        return earlier

    def start(self, query: StoredQuery, work: Work) -> StoredQuery:
        """Begin a query, and return it.

        Raises
        ------
        Problem
            If too many queries run.
        """
        user, key = query.user, query.key
        self._remove_old(user, n_new=1)
        n_own = sum(one.user == user for one in self._queries.values())
        if n_own >= (MAX_STORED + 1) // 2:
            detail = f"{n_own} queries of the user are stored"
            raise Problem(429, "too-many-queries", detail, retryable=True)
        if len(self._queries) >= MAX_STORED:
            raise Problem(503, "overloaded", "too many queries are stored", retryable=True)
        self._queries[query.query_id] = query
        if key is not None:
            self._by_key[user, key] = query
        query.task = asyncio.create_task(query.run(work))
        query.task.add_done_callback(lambda task: self._forget_failure(query, task))
        return query

    def find(self, query_id: str, user: str) -> StoredQuery:
        """Return a stored query of a user.

        Raises
        ------
        Problem
            If there is none.
        """
        self._remove_old(user)
        query = self._queries.get(query_id)
        if query is None or query.user != user:
            raise Problem(404, "unknown-query", f"the user has no query {query_id!r}, or no longer")
        return query

    def remove(self, query: StoredQuery) -> None:
        """Remove a query, and stop it if it still runs."""
        self._queries.pop(query.query_id, None)
        self._forget_key(query)
        if query.task is not None:
            query.task.cancel()

    def see_offer(self, provider: str, offer: OfferedCollection) -> None:
        """Remove stored queries after a provider has forgotten further objects.

        Events show objects also of a query that failed, or lost the provider. Those of queries that
        run are kept for a short time only.
        """
        place = provider, offer.name
        if self._n_forgotten.get(place, 0) == offer.n_forgotten:
            return
        self._n_forgotten[place] = offer.n_forgotten
        for query in [one for one in self._queries.values() if one.collection == offer.name]:
            if query.answer is None:
                query.is_outdated = True
            else:
                self.remove(query)

    def _forget_key(self, query: StoredQuery) -> None:
        if query.key is not None and self._by_key.get((query.user, query.key)) is query:
            del self._by_key[query.user, query.key]

    def _forget_failure(self, query: StoredQuery, task: "asyncio.Task[StoredAnswer]") -> None:
        """Let a retry run again after a failure that may pass."""
        if task.cancelled() or task.exception() or task.result().status >= 429:
            self._forget_key(query)
        query.notify()

    def _remove_old(self, user: str, *, n_new: int = 0) -> None:
        """Remove finished queries that are old, or the oldest of too many.

        Those of a user with more than half of the limits are removed first.
        """
        now = time.monotonic()
        for owner, share in ((user, 2), (None, 1)):
            found = [one for one in self._queries.values() if owner in (None, one.user)]
            n, n_bytes = len(found) + n_new, sum(one.n_bytes for one in found)
            for one in found:
                is_full = n > -(-MAX_STORED // share) or n_bytes > MAX_STORED_BYTES // share
                is_old = one.since < now - (FORGOTTEN_S if one.is_outdated else STORED_S)
                if one.task is not None and one.task.done() and (is_full or is_old):
                    n, n_bytes = n - 1, n_bytes - one.n_bytes
                    self.remove(one)
