"""The broker's side of the links to providers."""

import asyncio
import contextlib
import itertools
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

from fedneighbors.errors import FederationError, WireError
from fedneighbors.federation._loop import ExchangeResult
from fedneighbors.federation._messages import decode, encode
from fedneighbors.federation._roles import Refused, make_refusal
from fedneighbors.methods.fedknn._provider import SOURCE_FAILED
from fedneighbors.service._limits import MAX_HELLO_BYTES
from fedneighbors.service._messages import (
    MAX_LINK_VALUES,
    NOT_ENROLLED,
    OTHER_VERSION,
    ChangedOffers,
    Hello,
    LinkReplies,
    LinkRequest,
    LinkRequests,
    OfferedCollection,
    take_batch,
)
from fedneighbors.service._state import BrokerState
from fedneighbors.service._tracing import read_parent, record_span

log = logging.getLogger(__name__)
_MAX_PENDING = 1000  # requests of a link without a reply
_DISCONNECTED = "provider %s disconnected (%s)"
_MAX_CLOSED = 64  # names of ended queries in one request
_CLOSE_S = 0.2  # time for a request that names ended queries, and for a refusal
_SOURCE_FAILED = encode(make_refusal(Refused(SOURCE_FAILED)))
_MAX_WAITING_TO_CLOSE = 4096  # more are not named; the provider closes idle queries by itself
_numbers = itertools.count()  # of exchanges


class QueryLost(FederationError):  # noqa: N818 - the name states the error
    """A provider or its link lost the state of a query; the whole query can be run again.

    Parameters
    ----------
    party : str
        The provider.
    message : str
        Sentence for people.
    """

    def __init__(self, party: str, message: str) -> None:
        super().__init__(message)
        self.party = party


class ProviderLink:
    """An open link to a provider.

    Parameters
    ----------
    hello : Hello
        Checked first message of the provider.
    key : bytes
        Key that signed it.
    send : async callable
        Sends a frame.
    check : callable
        Raises Refused if a provider's collections do not suit the broker's.

    Attributes
    ----------
    name, key : str and bytes
        Name of the provider, and its key.
    collections : dict of str to OfferedCollection
        Collections that the provider offers.
    since : float
        Unix time at which the link was opened.
    is_check : bool
        The provider only wants to know whether it would be accepted.
    epochs : dict of str to str
        Hexadecimal id of the version of each collection, from the last reply of a query.
    """

    def __init__(
        self,
        hello: Hello,
        key: bytes,
        send: Callable[[bytes], Awaitable[None]],
        check: Callable[[str, Mapping[str, OfferedCollection]], None],
    ) -> None:
        self.name, self.key = hello.provider, key
        self.collections = {one.name: one for one in hello.collections}
        self.since, self.is_check = time.time(), hello.is_check
        self.epochs: dict[str, str] = {}
        self._send, self._check = send, check
        self._pending: dict[int, PendingReplies] = {}
        self._unsent: deque[bytes] = deque()
        self._sender: asyncio.Task[None] | None = None
        self._ended: list[str] = []
        self.is_open = True

    def request(self, number: int, frame: bytes, replies: "PendingReplies") -> None:
        """Send the frame of a request, together with others.

        Raises
        ------
        QueryLost
            If the link is closed.
        """
        if not self.is_open:
            raise QueryLost(self.name, f"the link to {self.name!r} is closed")
        self._pending[number] = replies
        self._unsent.append(frame)
        if self._sender is None:
            self._sender = asyncio.create_task(self._send_requests())

    async def _send_requests(self) -> None:
        """Send the requests of all queries that ran since the last message."""
        try:
            while self.is_open:
                closed, self._ended = self._ended[:_MAX_CLOSED], self._ended[_MAX_CLOSED:]
                frames = take_batch(self._unsent) if self._unsent else ()
                message = LinkRequests(tuple(closed), frames)
                await self._send(encode(message))
                if not self._unsent:  # ended queries can wait
                    break
        except Exception:
            self.close()  # it may look open until the transport has timed out
        finally:
            self._sender = None

    @property
    def is_busy(self) -> bool:
        """Return whether too many requests are pending for another one."""
        return len(self._pending) >= _MAX_PENDING

    def receive(self, frame: bytes) -> None:
        """Deliver replies, or take changed collections.

        A reply that nobody awaits any more is ignored.

        Raises
        ------
        WireError
            If the frame is neither.
        Refused
            If the collections do not suit the broker's.
        """
        message = decode(frame, (LinkReplies, ChangedOffers), max_values=MAX_LINK_VALUES)
        if isinstance(message, ChangedOffers):
            offered = {one.name: one for one in message.collections}
            self._check(self.name, offered)
            self.collections, self.epochs = offered, {}
            return
        columns = (message.numbers, message.busy_us, message.bodies, message.epochs)
        for number, busy_us, body, epoch in zip(*columns, strict=True):
            pending = self._pending.pop(number, None)
            if pending is not None:
                pending.deliver(self.name, body, busy_us, epoch)

    def forget(self, number: int) -> None:
        """Ignore the reply to a request."""
        self._pending.pop(number, None)

    def end_query(self, query: str) -> None:
        """Name an ended query in the next message, which is soon."""
        if len(self._ended) < _MAX_WAITING_TO_CLOSE:
            self._ended.append(query)
        if len(self._ended) == 1:
            asyncio.get_running_loop().call_later(_CLOSE_S, self._send_ended)

    def _send_ended(self) -> None:
        """Name the ended queries that no request has named."""
        if self._ended and self.is_open:
            if self._sender is None:
                self._sender = asyncio.create_task(self._send_requests())
            else:
                asyncio.get_running_loop().call_later(_CLOSE_S, self._send_ended)

    async def reject(self, error: Refused) -> None:
        """Close the link, and send the reason to the provider."""
        self.close()
        with contextlib.suppress(Exception):  # the link may be lost already
            async with asyncio.timeout(_CLOSE_S):  # or its provider may not read
                await self._send(encode(make_refusal(error)))

    def close(self) -> None:
        """Close the link; pending requests fail."""
        self.is_open = False
        pending, self._pending = self._pending, {}
        for replies in pending.values():
            replies.fail(QueryLost(self.name, f"the link to {self.name!r} was lost"))


class PendingReplies:
    """Replies to the requests of one exchange.

    Parameters
    ----------
    names : iterable of str
        Providers that are asked.

    Attributes
    ----------
    bodies : dict of str to bytes
        Frame of each reply.
    busy_s : dict of str to float
        Seconds of work for each reply.
    epochs : dict of str to bytes
        Version of the objects of each provider; empty if unknown.
    arrived : dict of str to int
        Nanoseconds since 1970 at which each reply came.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.bodies: dict[str, bytes] = {}
        self.busy_s: dict[str, float] = {}
        self.epochs: dict[str, bytes] = {}
        self.arrived: dict[str, int] = {}
        self._missing = set(names)
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def deliver(self, name: str, body: bytes, busy_us: int, epoch: bytes) -> None:
        """Add a provider's reply."""
        self.bodies[name], self.busy_s[name] = body, busy_us / 1e6
        self.epochs[name], self.arrived[name] = epoch, time.time_ns()
        self._missing.discard(name)
        if not self._missing and not self._done.done():
            self._done.set_result(None)

    def fail(self, error: Exception) -> None:
        """Let :meth:`wait` raise an error."""
        if not self._done.done():
            self._done.set_exception(error)
            self._done.exception()  # marks it as seen: the query may have ended

    async def wait(self, seconds: float) -> None:
        """Wait for all replies, or until the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await self._done
        for _ in range(5):  # steps in which a busy broker reads the replies that came in time
            await asyncio.sleep(0)


@dataclass(frozen=True)
class Origin:
    """User of a query, its groups, purpose and size, by the broker's word.

    Parameters
    ----------
    user, groups, purpose : str, tuple of str, str
        Name and groups of the user, and the stated purpose; empty if there is none.
    k : int
        Number of neighbours; 0 for another kind of query.
    """

    user: str = ""
    groups: tuple[str, ...] = ()
    purpose: str = ""
    k: int = 0


NOBODY = Origin()


class LinkRegistry:
    """The open links, one for each provider.

    Parameters
    ----------
    state : BrokerState
        Keys of the providers.
    fingerprint : bytes
        SHA-256 digest of the server's certificate; empty without TLS.
    check : callable
        Raises Refused if a provider's collections do not suit the broker's.

    Attributes
    ----------
    n_joining : int
        Number of connections whose provider is not known yet.
    last_seen : dict of str to float
        Unix time at which the last link of each provider was closed.
    """

    def __init__(
        self,
        state: BrokerState,
        fingerprint: bytes,
        check: Callable[[str, Mapping[str, OfferedCollection]], None],
    ) -> None:
        self.links: dict[str, ProviderLink] = {}
        self.n_joining = 0
        self.last_seen: dict[str, float] = {}
        self._state, self._fingerprint, self._check = state, fingerprint, check
        self._changed = asyncio.Event()

    def accept(
        self, frame: bytes, nonce: bytes, send: Callable[[bytes], Awaitable[None]]
    ) -> ProviderLink:
        """Check a provider's first frame and return its link.

        The link takes part in queries after :meth:`add`.

        Raises
        ------
        Refused
            If the provider is unknown, its signature is wrong, or its collections do not suit.
        """
        try:
            if len(frame) > MAX_HELLO_BYTES:
                raise WireError("the hello is too long")
            hello = decode(frame, (Hello,))
        except WireError:
            raise Refused(OTHER_VERSION) from None
        content, roster = hello.content(nonce, self._fingerprint), self._state.keys()
        if not roster.has_signed(hello.provider, content, hello.signature):
            raise Refused(NOT_ENROLLED)
        offered = {one.name: one for one in hello.collections}
        self._check(hello.provider, offered)
        return ProviderLink(hello, roster.keys[hello.provider], send, self._check)

    async def add(self, link: ProviderLink) -> None:
        """Add a link in place of an older one of the provider.

        The older one was lost, or its process ends with the reason.
        """
        old, reason = self.links.get(link.name), "another process has connected as this provider"
        self.links[link.name] = link
        self._notify()
        if old is not None:
            log.info(_DISCONNECTED, old.name, reason)
        log.info("provider %s connected", link.name)
        if old is not None:
            await old.reject(Refused(reason))

    async def reject_revoked(self) -> None:
        """Close the links of providers whose keys are revoked or replaced."""
        keys = self._state.keys().keys
        old = [link for link in self.links.values() if keys.get(link.name) != link.key]
        reasons = {
            link: "the key of the provider is "
            + ("replaced at an enrolment" if link.name in keys else "revoked")
            for link in old
        }
        for link, reason in reasons.items():  # no query uses them from now on
            self.remove(link, reason)
        for link, reason in reasons.items():
            await link.reject(Refused(reason))

    def remove(self, link: ProviderLink, reason: str) -> None:
        """Close a link and remove it, unless it was replaced.

        The reason is logged.
        """
        link.close()
        if self.links.get(link.name) is link:
            log.info(_DISCONNECTED, link.name, reason)
            del self.links[link.name]
            self.last_seen[link.name] = time.time()
            self._notify()

    async def wait_for(self, names: tuple[str, ...], seconds: float) -> None:
        """Wait until all named providers are connected, or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not all(name in self.links and self.links[name].is_open for name in names):
                    await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class QueryExchange:
    """Delivers the frames of one query over links.

    Parameters
    ----------
    registry : LinkRegistry
        The open links.
    collection, query : str
        Names of the collection and the query.
    deadline : float
        Monotonic time after which providers without a reply are missing.
    is_patient : bool
        Wait until the deadline in each exchange. Otherwise wait for half of the remaining time, so
        that the query can go on without a missing provider; one whose source fails is missing, too.
    origin : Origin
        Its user, groups, purpose and size.
    noise_of : callable
        Returns the id of the noise of a private query; empty before it is drawn.

    Attributes
    ----------
    epochs : dict of str to str
        Hexadecimal id of the version of each provider's objects, from its last reply.
    """

    def __init__(
        self,
        registry: LinkRegistry,
        collection: str,
        query: str,
        deadline: float,
        *,
        is_patient: bool,
        origin: Origin = NOBODY,
        noise_of: Callable[[], str] = str,
    ) -> None:
        self._origin, self._noise_of = origin, noise_of
        self._registry, self._links = registry, registry.links
        self._collection, self._query, self._deadline = collection, query, deadline
        self._is_patient, self._share = is_patient, 1.0 if is_patient else 0.5
        self._used: dict[str, ProviderLink] = {}
        self._steps: dict[str, int] = {}
        self.epochs: dict[str, str] = {}

    async def __call__(self, frames: Mapping[str, bytes]) -> ExchangeResult:
        """Deliver one frame to each provider, and return the replies.

        Raises
        ------
        QueryLost
            If a provider that took part was restarted, its link is lost, or its objects changed.
        """
        await self._registry.reject_revoked()
        remaining_s = max(self._deadline - time.monotonic(), 0.0) * self._share
        links, missing = self._find_links(frames)
        number, replies = next(_numbers), PendingReplies(links)
        trace, started = read_parent(), time.time_ns()
        encoded: dict[tuple[int, int], bytes] = {}
        try:
            for name, link in links.items():
                self._used[name] = link
                key = self._steps.get(name, 0), id(frames[name])
                if key not in encoded:
                    encoded[key] = encode(
                        LinkRequest(
                            number=number,
                            collection=self._collection,
                            query=self._query,
                            step=key[0],
                            remaining_ms=int(1000 * remaining_s),
                            body=frames[name],
                            **vars(self._origin),
                            noise=self._noise_of(),
                            trace=trace,
                        )
                    )
                link.request(number, encoded[key], replies)
            if links:
                await replies.wait(remaining_s)
        finally:
            for name, link in links.items():
                link.forget(number)
                if trace:
                    end, late = replies.arrived.get(name), {"error": "missing"}
                    unanswered = late if end is None else {}
                    record_span("call", started, end, parent=trace, provider=name, **unanswered)
        for name in links:
            if name not in replies.bodies:
                missing[name] = "no answer before the deadline"
                continue
            self._steps[name] = self._steps.get(name, 0) + 1
            if not self._is_patient and replies.bodies[name] == _SOURCE_FAILED:
                del replies.bodies[name]
                missing[name] = SOURCE_FAILED
        epochs = {name: epoch.hex() for name, epoch in replies.epochs.items() if epoch}
        for name, epoch in epochs.items():
            links[name].epochs[self._collection] = epoch
            if self.epochs.setdefault(name, epoch) != epoch:
                raise QueryLost(name, f"the objects of provider {name!r} changed during the query")
        return ExchangeResult(replies.bodies, missing, replies.busy_s)

    def _find_links(self, names: Iterable[str]) -> tuple[dict[str, ProviderLink], dict[str, str]]:
        """Return the usable links, and why each other provider is missing."""
        links, missing = dict[str, ProviderLink](), dict[str, str]()
        for name in names:
            link, used = self._links.get(name), self._used.get(name)
            if used is not None and (link is not used or not used.is_open):
                raise QueryLost(name, f"the link to provider {name!r} was lost during the query")
            if link is None or not link.is_open:
                missing[name] = "it is not connected"
            elif self._collection not in link.collections:
                missing[name] = "it does not offer the collection"
            elif link.is_busy:
                missing[name] = "it has too many requests"
            else:
                links[name] = link
        return links, missing

    def end(self) -> None:
        """Let the providers close the query."""
        for link in self._used.values():
            link.end_query(self._query)
