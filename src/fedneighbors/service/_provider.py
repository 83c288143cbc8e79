"""A provider's process: its collections, and the link to the broker."""

import asyncio
import contextlib
import logging
import ssl
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from websockets.exceptions import ConnectionClosed, InvalidHandshake

from fedneighbors.errors import FedneighborsError, WireError
from fedneighbors.federation._messages import decode, encode
from fedneighbors.federation._roles import Refusal, serve_safely
from fedneighbors.methods.fedknn._provider import MAX_OPEN_QUERIES, Provider
from fedneighbors.methods.fedknn._queries import decode_query, encode_query
from fedneighbors.methods.fedknn._sources import MemorySource
from fedneighbors.methods.fedknn.metrics import metric_of
from fedneighbors.methods.fedknn.metrics._sessions import LATE
from fedneighbors.methods.fedknn.protocol import BoundRequest, FinishRequest, NearestRequest
from fedneighbors.secure_sum._keys import Identity
from fedneighbors.service._config import OfferSection, ProviderConfig, PushedSection
from fedneighbors.service._dialling import (
    ConnectionRejected,
    check_version,
    open_link,
    read_link_fingerprint,
)
from fedneighbors.service._loading import compute_epoch, read_source
from fedneighbors.service._messages import (
    UNKNOWN_COLLECTION,
    UNKNOWN_QUERY,
    Challenge,
    ChangedOffers,
    Hello,
    LinkReplies,
    LinkRequest,
    LinkRequests,
    OfferedCollection,
    Welcome,
)
from fedneighbors.sources._candidates import SourceSettings
from fedneighbors.sources._pushed import PushedSource, find_source
from fedneighbors.sources._sql import SqlQuery

log = logging.getLogger(__name__)

IDLE_S = 60.0
"""Seconds after its last request and its deadline, after which a query is closed."""

MIN_WAIT_S, MAX_WAIT_S = 0.2, 5.0
"""Shortest and longest wait between attempts to connect."""

_MAX_BATCH_S, _MAX_BATCH_BYTES = 0.002, 1 << 20  # replies of more work are not sent together


Waiting = deque[tuple[float, LinkRequest]]
Load = Callable[[Callable[[SqlQuery], None]], dict[str, "OfferedObjects"]]


class OfferedObjects:
    """A collection of a provider, and the queries that are open in it.

    Parameters
    ----------
    party : Provider
        The objects.
    offer : OfferedCollection
        Its description for the broker.
    epoch : str, optional
        Hexadecimal id of this version of the objects, if it survives restarts.
    release : callable
        Closes what the objects are read from.
    """

    def __init__(
        self,
        party: Provider,
        offer: OfferedCollection,
        epoch: str | None = None,
        release: Callable[[], None] = lambda: None,
    ) -> None:
        self.party, self.offer, self.epoch, self.release = party, offer, epoch, release
        # number of requests, and the later of the time and the deadline of the last
        self._steps: OrderedDict[str, tuple[int, float]] = OrderedDict()

    @classmethod
    def read(
        cls,
        provider: str,
        name: str,
        section: OfferSection,
        folder: Path,
        *,
        secret: bytes,
        on_query: Callable[[SqlQuery], None] = lambda _: None,
    ) -> "OfferedObjects":
        """Read the objects of a collection, and build their index.

        Parameters
        ----------
        provider, name : str
            Names of the provider and of the collection.
        section : OfferSection
            Configuration.
        folder : path
            Folder to which files are relative.
        secret : bytes
            Secret of the provider that survives restarts. The epoch of the objects is derived from
            it and their content, so that a private query is charged once.
        on_query : callable
            Called with the query to a database before it is run.

        Raises
        ------
        DataError
            If the source is invalid.
        """
        if isinstance(section.source, PushedSection):
            return cls._open(provider, name, section, section.source, folder, secret)
        source = read_source(section, section.source, folder, on_query)
        epoch = compute_epoch(secret, name, section, source)
        objects = MemorySource(
            source.items,
            metric_of(section.metric),
            owner=provider,
            epoch=None if epoch is None else bytes.fromhex(epoch),
            ids=source.ids,
            key=section.tie_key.encode(),
            columns=source.columns,
            payload=source.payload,
        )
        party = Provider(
            provider, objects, decode=decode_query, min_filtered=section.policy.min_filtered
        )
        n_objects = len(source.items)
        if n_objects:
            _search_once(party, source.items[0])
        offer = OfferedCollection(
            name, section.metric, section.tie_key, n_objects, dict(section.filters)
        )
        return cls(party, offer, epoch)

    @classmethod
    def _open(
        cls,
        provider: str,
        name: str,
        section: OfferSection,
        source: PushedSection,
        folder: Path,
        secret: bytes,
    ) -> Self:
        """Open a collection whose objects stay in a database."""
        kinds: dict[str, str] = dict(section.filters)
        options = source.model_extra or {}
        candidates = find_source(source.kind)(
            SourceSettings(section.metric, options, kinds, section.policy.payload, folder)
        )
        with ExitStack() as opened:  # closed after an error
            opened.callback(candidates.close)
            pushed = PushedSource(
                candidates,
                metric_of(section.metric),
                owner=provider,
                key=section.tie_key.encode(),
                # an equal version under other settings may be one of other objects
                secret=secret + repr([name, source.kind, sorted(options.items()), kinds]).encode(),
                filters=kinds,
            )
            party = Provider(
                provider, pushed, decode=decode_query, min_filtered=section.policy.min_filtered
            )
            if candidates.sample is not None:
                query = pushed.open(candidates.sample[0], None)  # its errors tell what is wrong
                query.next(1)
                query.close()
            n_objects = pushed.size(None)
            opened.pop_all()
        offer = OfferedCollection(name, section.metric, section.tie_key, n_objects, kinds)
        return cls(party, offer, release=candidates.close)

    def answer(self, request: LinkRequest, deadline: float) -> bytes:
        """Return the frame of the reply to a request.

        Parameters
        ----------
        request : LinkRequest
            The request.
        deadline : float
            Monotonic time at which the search stops, or after which it is not started.
        """
        if time.monotonic() > deadline:
            return encode(Refusal(LATE, ""))
        step, _ = self._steps.get(request.query, (0, 0.0))
        if step != request.step:
            return encode(Refusal(UNKNOWN_QUERY, ""))
        if step == 0:
            self.drop_old()
        self.party.end = deadline
        frame = serve_safely(self.party, request.body)
        self._steps[request.query] = step + 1, max(time.monotonic(), deadline)
        self._steps.move_to_end(request.query)
        return frame

    def has(self, query: str) -> bool:
        """Return whether a query is open."""
        return query in self._steps

    @property
    def is_used(self) -> bool:
        """Return whether queries are open, after closing idle ones."""
        self.drop_old()
        return bool(self._steps)

    def drop_old(self) -> None:
        """Close queries long after their deadline, and the oldest of too many."""
        oldest = time.monotonic() - IDLE_S
        idle = [query for query, (_, until) in self._steps.items() if until < oldest]
        surplus = max(len(self._steps) - len(idle) - MAX_OPEN_QUERIES + 1, 0)
        self.close((*idle, *list(self._steps)[:surplus]))

    def close(self, queries: tuple[str, ...]) -> None:
        """Close the queries that are open."""
        known = tuple(query for query in queries if self._steps.pop(query, None))
        if known:
            self.party.answer(FinishRequest(known))

    def close_all(self) -> None:
        """Close all queries."""
        self.close(tuple(self._steps))


def _search_once(party: Provider, item: Any) -> None:
    """Run a query, so that no user waits for compilers."""
    name, query = "warm-up", encode_query(item)
    for request in (
        BoundRequest(name, query, 1),
        NearestRequest(name, query, 1, None),
        FinishRequest((name,)),
    ):
        party.answer(request)


class ProviderService:
    """Connects a provider to its broker, and answers requests.

    Parameters
    ----------
    name : str
        Name of the provider.
    identity : Identity
        Key with which it enrolled.
    collections : mapping of str to OfferedObjects
        Collections by name.
    load : callable, optional
        Reads the collections again; it is given a function that takes each query to a database
        before it is run.
    """

    def __init__(
        self,
        name: str,
        identity: Identity,
        collections: Mapping[str, OfferedObjects],
        load: Load | None = None,
    ) -> None:
        self.name = name
        self._identity, self._load = identity, load
        self._collections = dict(collections)
        # former versions with queries that are open
        self._retired: dict[str, list[OfferedObjects]] = {name: [] for name in collections}
        self._connection: Any = None
        self._reloading = asyncio.Lock()
        self._query: SqlQuery | None = None
        # one thread for each collection: sessions of a party are not made for several
        self._pools = {name: ThreadPoolExecutor(1, f"search {name}") for name in collections}
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    def of(cls, config: ProviderConfig) -> "ProviderService":
        """Read the key and the collections of a configuration.

        Raises
        ------
        DataError, ValueError, OSError
            If the key or a source is invalid.
        """
        section, folder = config.provider, config.folder
        identity = Identity.read(config.path(section.key))
        secret = identity.private

        def load(on_query: Callable[[SqlQuery], None]) -> dict[str, OfferedObjects]:
            found = {}
            with ExitStack() as opened:  # closed after an error
                for name, one in config.collections.items():
                    found[name] = OfferedObjects.read(
                        section.name, name, one, folder, secret=secret, on_query=on_query
                    )
                    opened.callback(found[name].release)
                opened.pop_all()
            return found

        return cls(section.name, identity, load(lambda _: None), load)

    async def reload(self) -> None:
        """Read the collections again, and replace them.

        Open queries keep the former ones. After an error, which is logged, nothing is replaced.
        """
        if self._load is None:
            return
        async with self._reloading:
            try:
                new = await asyncio.to_thread(self._load, self._set_query)
            except (FedneighborsError, ValueError, OSError) as error:
                log.error("the collections were not reloaded: %s", error)
                return
            finally:
                self._query = None
            run = asyncio.get_running_loop().run_in_executor
            replaced = (run(self._pools[name], self._replace, name, new[name]) for name in new)
            await asyncio.gather(*replaced)
            if self._connection is not None:
                with contextlib.suppress(ConnectionClosed):  # the next hello has the new ones
                    await self._connection.send(encode(ChangedOffers(self._offers())))
        for one in new.values():
            log.warning("reloaded %s: %d objects", one.offer.name, one.offer.n_objects)

    def _set_query(self, query: SqlQuery) -> None:
        self._query = query

    def _replace(self, name: str, new: OfferedObjects) -> None:
        """Set a collection, in its thread."""
        self._retired[name].append(self._collections[name])
        self._collections[name] = new

    def _offers(self) -> tuple[OfferedCollection, ...]:
        return tuple(one.offer for one in self._collections.values())

    async def run(
        self,
        broker: str,
        certificate: str,
        *,
        on_connected: Callable[[], None] = lambda: None,
    ) -> None:
        """Keep a link to the broker open until cancelled.

        Parameters
        ----------
        broker : str
            Address, such as ``"https://broker.example"``.
        certificate : str
            The broker's certificate (PEM); empty without TLS.
        on_connected : callable
            Called when a link is open.

        Raises
        ------
        ConnectionRejected
            If the broker refuses the link.
        """
        wait_s = MIN_WAIT_S

        def connected() -> None:
            nonlocal wait_s
            wait_s = MIN_WAIT_S
            on_connected()

        idle = asyncio.create_task(self._close_idle())
        try:
            while True:
                try:
                    await self._serve(broker, certificate, connected)
                except ssl.SSLCertVerificationError:
                    raise ConnectionRejected(
                        f"{broker} has another certificate than at the enrolment: a proxy may "
                        "inspect TLS, or the certificate was renewed; enrol again"
                    ) from None
                except OSError as error:
                    log.warning(
                        "cannot reach %s: %s; trying again in %.1f s", broker, error, wait_s
                    )
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, MAX_WAIT_S)
        finally:
            idle.cancel()
            if self._query is not None:
                self._query.cancel()

    def _versions(self, name: str) -> list[OfferedObjects]:
        return [self._collections[name], *self._retired[name]]

    def _all(self) -> list[tuple[ThreadPoolExecutor, OfferedObjects]]:
        """Return each version of each collection, with its thread."""
        return [(pool, one) for name, pool in self._pools.items() for one in self._versions(name)]

    async def _close_idle(self) -> None:
        """Close idle queries now and then; databases keep their snapshots."""
        while True:
            await asyncio.sleep(IDLE_S / 4)
            for pool, one in self._all():
                pool.submit(one.drop_old)

    async def _serve(self, broker: str, certificate: str, on_connected: Callable[[], None]) -> None:
        """Open a link and answer requests until it is closed."""
        try:
            async with open_link(broker, certificate) as connection:
                challenge = decode(_binary(await connection.recv()), (Challenge,))
                check_version(challenge)
                hello = Hello.signed(
                    self.name,
                    self._offers(),
                    self._identity,
                    challenge=challenge,
                    fingerprint=read_link_fingerprint(connection),
                )
                await connection.send(encode(hello))
                reply = decode(_binary(await connection.recv()), (Welcome, Refusal))
                if isinstance(reply, Refusal):
                    detail = f": {reply.detail}" if reply.detail else ""
                    raise ConnectionRejected(f"{broker} refuses the link: {reply.code}{detail}")
                self._connection = connection
                on_connected()
                async for frame in connection:
                    received = decode(_binary(frame), (LinkRequests, Refusal))
                    if isinstance(received, Refusal):
                        raise ConnectionRejected(f"{broker} ends the link: {received.code}")
                    # requests wait for the threads of searches, not for the reader: their deadlines
                    # run, and heartbeats are answered
                    for name, waiting in self._sort(received).items():
                        work = self._reply(connection, name, waiting, received.closed)
                        task = asyncio.create_task(work)
                        self._tasks.add(task)
                        task.add_done_callback(self._tasks.discard)
        except (ConnectionClosed, InvalidHandshake, WireError) as error:
            raise ConnectionError(f"the link was closed: {error}") from error
        finally:
            self._connection = None
            for pool, one in self._all():  # the broker runs lost queries again
                pool.submit(one.close_all)

    def _sort(self, received: LinkRequests) -> dict[str, Waiting]:
        """Return requests and their deadlines for each collection with work."""
        since = time.monotonic()
        found: dict[str, Waiting] = {name: deque() for name in self._pools if received.closed}
        for frame in received.frames:
            request = decode(frame, (LinkRequest,))
            timed = since + request.remaining_ms / 1000, request
            found.setdefault(request.collection, deque()).append(timed)
        return found

    async def _reply(
        self, connection: Any, name: str, waiting: Waiting, closed: tuple[str, ...]
    ) -> None:
        """Answer requests in the thread of their collection."""
        run, pool = asyncio.get_running_loop().run_in_executor, self._pools.get(name)
        with contextlib.suppress(ConnectionClosed):  # nobody awaits the replies any more
            while waiting or closed:
                replies = await run(pool, self._answer, name, waiting, closed)
                closed = ()
                if replies:
                    await connection.send(replies)

    def _answer(self, name: str, waiting: Waiting, closed: tuple[str, ...]) -> bytes:
        """Answer requests for a short time; return a frame of replies.

        Replies to fast requests are sent together, which is cheaper.
        """
        versions = self._versions(name) if name in self._pools else []
        for one in versions:
            one.close(closed)
        for one in [one for one in versions[1:] if not one.is_used]:
            self._retired[name].remove(one)
            one.release()
        answers: list[tuple[int, int, bytes, bytes]] = []
        started = ended = time.perf_counter()
        n_bytes = 0
        while waiting and ended - started < _MAX_BATCH_S and n_bytes < _MAX_BATCH_BYTES:
            (deadline, request), begun = waiting.popleft(), ended
            used = (one for one in versions if one.has(request.query))
            found = next(used, versions[0] if versions else None)
            if found is None:
                body, epoch = encode(Refusal(UNKNOWN_COLLECTION, name[:64])), b""
            else:
                body, epoch = found.answer(request, deadline), found.party.epoch_of(request.query)
            ended = time.perf_counter()
            n_bytes += len(body)
            answers.append((request.number, int(1e6 * (ended - begun)), body, epoch))
        return encode(LinkReplies(*zip(*answers, strict=True))) if answers else b""


def _binary(frame: str | bytes) -> bytes:
    return frame if isinstance(frame, bytes) else b""
