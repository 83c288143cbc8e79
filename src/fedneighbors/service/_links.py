"""The broker's side of the links to providers."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Awaitable, Callable, Mapping

from fedneighbors.errors import FederationError, WireError
from fedneighbors.federation._loop import ExchangeResult
from fedneighbors.federation._messages import decode, encode
from fedneighbors.federation._roles import Refused, make_refusal
from fedneighbors.service._messages import (
    NOT_ENROLLED,
    OTHER_VERSION,
    ChangedOffers,
    Hello,
    LinkReply,
    LinkRequest,
    OfferedCollection,
)
from fedneighbors.service._state import BrokerState

_MAX_HELLO_BYTES = 1 << 16
_MAX_PENDING = 1000  # requests of a link without a reply
_MAX_CLOSED = 64  # names of ended queries in one request
_MAX_WAITING_TO_CLOSE = 4096  # more are not named; the provider closes idle queries by itself


class QueryLost(FederationError):  # noqa: N818 - the name states the error
    """A provider lost the state of a query; the whole query can be run again."""


class LinkLost(FederationError):  # noqa: N818 - the name states the error
    """A link was closed before the reply arrived."""


class ProviderLink:
    """An open link to a provider.

    Parameters
    ----------
    hello : Hello
        Checked first message of the provider.
    send : async callable
        Sends a frame.
    check : callable
        Raises Refused if a provider's collections do not suit the broker's.

    Attributes
    ----------
    name : str
        Name of the provider.
    collections : dict of str to OfferedCollection
        Collections that the provider offers.
    since : float
        Unix time at which the link was opened.
    is_check : bool
        The provider only wants to know whether it would be accepted.
    """

    def __init__(
        self,
        hello: Hello,
        send: Callable[[bytes], Awaitable[None]],
        check: Callable[[str, Mapping[str, OfferedCollection]], None],
    ) -> None:
        self.name = hello.provider
        self.collections = {one.name: one for one in hello.collections}
        self.since, self.is_check = time.time(), hello.is_check
        self._send, self._check = send, check
        self._numbers = itertools.count()
        self._pending: dict[int, asyncio.Future[LinkReply]] = {}
        self._ended: list[str] = []
        self.is_open = True

    async def request(
        self, collection: str, query: str, step: int, frame: bytes, *, remaining_s: float
    ) -> "asyncio.Future[LinkReply]":
        """Send a request; return the future reply, which may be cancelled.

        Raises
        ------
        LinkLost
            If the link is closed.
        """
        number = next(self._numbers)
        closed, self._ended = self._ended[:_MAX_CLOSED], self._ended[_MAX_CLOSED:]
        message = LinkRequest(
            number, collection, query, step, int(1000 * remaining_s), tuple(closed), frame
        )
        future: asyncio.Future[LinkReply] = asyncio.get_running_loop().create_future()
        self._pending[number] = future
        future.add_done_callback(lambda _: self._pending.pop(number, None))
        try:
            await self._send(encode(message))
        except Exception:
            future.cancel()
            self.close()  # it may look open until the transport has timed out
            raise LinkLost(f"the link to {self.name!r} is closed") from None
        return future

    @property
    def is_busy(self) -> bool:
        """Return whether too many requests are pending for another one."""
        return len(self._pending) >= _MAX_PENDING

    def receive(self, frame: bytes) -> None:
        """Deliver a reply, or take changed collections.

        A reply that nobody awaits any more is ignored.

        Raises
        ------
        WireError
            If the frame is neither.
        Refused
            If the collections do not suit the broker's.
        """
        reply = decode(frame, (LinkReply, ChangedOffers))
        if isinstance(reply, ChangedOffers):
            offered = {one.name: one for one in reply.collections}
            self._check(self.name, offered)
            self.collections = offered
            return
        future = self._pending.get(reply.number)
        if future is not None and not future.done():
            future.set_result(reply)

    def end_query(self, query: str) -> None:
        """Name an ended query in a later request."""
        if len(self._ended) < _MAX_WAITING_TO_CLOSE:
            self._ended.append(query)

    async def reject(self, error: Refused) -> None:
        """Close the link, and send the reason to the provider."""
        self.close()
        with contextlib.suppress(Exception):  # the link may be lost already
            await self._send(encode(make_refusal(error)))

    def close(self) -> None:
        """Close the link; pending requests fail."""
        self.is_open = False
        for future in list(self._pending.values()):
            if not future.done():
                future.set_exception(LinkLost(f"the link to {self.name!r} was lost"))
                future.exception()  # marks it as seen: the query may have ended


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
    """

    def __init__(
        self,
        state: BrokerState,
        fingerprint: bytes,
        check: Callable[[str, Mapping[str, OfferedCollection]], None],
    ) -> None:
        self.links: dict[str, ProviderLink] = {}
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
            if len(frame) > _MAX_HELLO_BYTES:  # nobody has signed it yet
                raise WireError("the hello is too long")
            hello = decode(frame, (Hello,))
        except WireError:
            raise Refused(OTHER_VERSION) from None
        content = hello.content(nonce, self._fingerprint)
        if not self._state.has_signed(hello.provider, content, hello.signature):
            raise Refused(NOT_ENROLLED)
        offered = {one.name: one for one in hello.collections}
        self._check(hello.provider, offered)
        return ProviderLink(hello, send, self._check)

    async def add(self, link: ProviderLink) -> None:
        """Add a link in place of an older one of the provider.

        The older one was lost, or its process ends with the reason.
        """
        old = self.links.get(link.name)
        self.links[link.name] = link
        self._notify()
        if old is not None:
            await old.reject(Refused("another process has connected as this provider"))

    async def reject_revoked(self) -> None:
        """Close the links of providers whose keys are revoked."""
        for one in self._state.providers():
            link = self.links.get(one.name)
            if one.is_revoked and link is not None:
                self.remove(link)
                await link.reject(Refused("the key of the provider is revoked"))

    def remove(self, link: ProviderLink) -> None:
        """Close a link and remove it, unless it was replaced."""
        link.close()
        if self.links.get(link.name) is link:
            del self.links[link.name]
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
        Names of the collection and of the query.
    deadline : float
        Monotonic time after which providers without a reply are missing.
    is_patient : bool
        Wait until the deadline in each exchange. Otherwise wait for half of the remaining time, so
        that the query can go on without a missing provider.

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
    ) -> None:
        self._links = registry.links
        self._collection, self._query, self._deadline = collection, query, deadline
        self._share = 1.0 if is_patient else 0.5
        self._used: dict[str, ProviderLink] = {}
        self._steps: dict[str, int] = {}
        self.epochs: dict[str, str] = {}

    async def __call__(self, frames: Mapping[str, bytes]) -> ExchangeResult:
        """Deliver one frame to each provider, and return the replies.

        Raises
        ------
        QueryLost
            If a provider that took part was restarted, or its link is lost.
        """
        futures: dict[str, asyncio.Future[LinkReply]] = {}
        missing: dict[str, str] = {}
        remaining_s = max(self._deadline - time.monotonic(), 0.0) * self._share
        for name, frame in frames.items():
            link = self._links.get(name)
            used = self._used.get(name)
            if used is not None and (link is not used or not used.is_open):
                raise QueryLost(f"the link to provider {name!r} was lost during the query")
            if link is None or not link.is_open:
                missing[name] = "it is not connected"
                continue
            if self._collection not in link.collections:
                missing[name] = "it does not offer the collection"
                continue
            if link.is_busy:
                missing[name] = "it has too many requests"
                continue
            self._used[name] = link
            step = self._steps.get(name, 0)
            try:
                futures[name] = await link.request(
                    self._collection, self._query, step, frame, remaining_s=remaining_s
                )
            except LinkLost as error:
                raise QueryLost(str(error)) from None
        if futures:
            await asyncio.wait(
                futures.values(), timeout=remaining_s, return_when=asyncio.FIRST_EXCEPTION
            )
            lost = [f.exception() for f in futures.values() if f.done() and f.exception()]
            if lost:  # the query is run again
                for future in futures.values():
                    future.cancel()
                raise QueryLost(str(lost[0]))
        answers, busy_s = {}, {}
        for name, future in futures.items():
            if not future.done():
                future.cancel()
                missing[name] = "no answer before the deadline"
                continue
            reply = future.result()
            self._steps[name] = self._steps.get(name, 0) + 1
            self.epochs[name] = reply.epoch.hex()
            answers[name], busy_s[name] = reply.body, reply.busy_us / 1e6
        return ExchangeResult(answers, missing, busy_s)

    def end(self) -> None:
        """Let the providers close the query."""
        for link in self._used.values():
            link.end_query(self._query)
