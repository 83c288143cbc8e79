"""A provider's process: its collections, and the link to the broker."""

import asyncio
import contextlib
import logging
import ssl
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from websockets.exceptions import ConnectionClosed, InvalidHandshake

from fedneighbors.errors import FedneighborsError, WireError
from fedneighbors.federation._messages import decode, encode
from fedneighbors.federation._roles import Refusal, Refused, make_refusal
from fedneighbors.secure_sum._keys import Identity
from fedneighbors.service._attestation import AmdRules, EvidenceRefused, IntelRules
from fedneighbors.service._config import ProviderConfig
from fedneighbors.service._dialling import (
    CLOCK_CODES,
    ConnectionRejected,
    check_version,
    explain_certificate,
    open_link,
    read_link_fingerprint,
    verify_broker,
)
from fedneighbors.service._enrolment import read_key
from fedneighbors.service._messages import (
    MAX_REPLY_BYTES,
    TOO_LARGE,
    TOO_LONG,
    UNKNOWN_COLLECTION,
    Challenge,
    ChangedOffers,
    Hello,
    LinkReplies,
    LinkRequest,
    LinkRequests,
    OfferedCollection,
    Welcome,
)
from fedneighbors.service._offers import IDLE_S, CollectionReader, OfferedObjects
from fedneighbors.service._tracing import record_span
from fedneighbors.sources._sql import SqlQuery

log = logging.getLogger(__name__)

MIN_WAIT_S, MAX_WAIT_S = 0.2, 2.0  # a restarted broker is to be found within 5 s
"""Shortest and longest wait between attempts to connect."""

MAX_DEADLINE_S = 3600.0
"""Maximum number of seconds for a request."""

_LOOK_S = 0.5  # between looks at files that commands write
_MAX_BATCH_S, _MAX_BATCH_BYTES = 0.002, 1 << 20  # replies of more work are not sent together


Waiting = deque[tuple[float, LinkRequest]]
Load = Callable[[Callable[[SqlQuery], None]], dict[str, OfferedObjects]]


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
    load, load_policies : callable, optional
        Read the collections again, the second under the present policies of the configuration; they
        are given a function that takes each query to a database before it is run.
    reload_s : float, optional
        Read them again each time that this number of seconds has passed.
    pause_file : path, optional
        While it exists, no link is open.
    forgotten_file : path, optional
        The collections are read again when it has changed.
    n_forgotten_bytes : int
        Size of this file before the collections were read.
    attestation : AmdRules or IntelRules, optional
        Rules for the broker's evidence; required for collections with trust ``"enclave"``.
    folder : path
        Folder of the files that the rules name.
    """

    def __init__(
        self,
        name: str,
        identity: Identity,
        collections: Mapping[str, OfferedObjects],
        load: Load | None = None,
        *,
        load_policies: Load | None = None,
        reload_s: float | None = None,
        pause_file: Path | None = None,
        forgotten_file: Path | None = None,
        n_forgotten_bytes: int = 0,
        attestation: AmdRules | IntelRules | None = None,
        folder: Path = Path(),
    ) -> None:
        self.name = name
        self._attestation, self._folder = attestation, folder
        self._identity, self._load, self._load_policies = identity, load, load_policies
        self._reload_s, self._pause_file = reload_s, pause_file
        self._forgotten_file, self._n_forgotten_bytes = forgotten_file, n_forgotten_bytes
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
    def of(cls, config: ProviderConfig, file: Path | None = None) -> "ProviderService":
        """Read the key and the collections of a configuration.

        Parameters
        ----------
        config : ProviderConfig
            The configuration.
        file : path, optional
            Its file, whose policies :meth:`reload` can read again.

        Raises
        ------
        DataError, ValueError, OSError
            If the key or a source is invalid.
        """
        section = config.provider
        identity = read_key(config.path(section.key))
        reader = CollectionReader(config, identity.private, file)
        n_forgotten_bytes = _size_of(config.forgotten_file)
        return cls(
            section.name,
            identity,
            reader.read(lambda _: None),
            reader.read,
            load_policies=reader.read_policies,
            reload_s=section.reload_s,
            pause_file=config.pause_file,
            forgotten_file=config.forgotten_file,
            n_forgotten_bytes=n_forgotten_bytes,
            attestation=config.attestation,
            folder=config.folder,
        )

    async def reload(self, *, policies: bool = False) -> bool:
        """Read the collections again, and replace them; return whether it was possible.

        Open queries keep the former ones for a while. After an error, which is logged, nothing is
        replaced.

        Parameters
        ----------
        policies : bool
            Read the policies of the configuration again, too.
        """
        load = self._load_policies if policies and self._load_policies else self._load
        if load is None:
            return False
        async with self._reloading:
            try:
                new = await asyncio.to_thread(load, self._set_query)
            except (FedneighborsError, ValueError, OSError) as error:
                log.error("the collections were not reloaded: %s", error)
                return False
            finally:
                self._query = None
            former = {name: self._collections[name] for name in new}
            announced = tuple(former[name].offer_under(one.policy) for name, one in new.items())
            if announced != self._offers():
                # before the first reply under a policy that may show no distances any more
                await self._announce(announced)
            run = asyncio.get_running_loop().run_in_executor
            replaced = (run(self._pools[name], self._replace, name, new[name]) for name in new)
            await asyncio.gather(*replaced)
            await self._announce(self._offers())
        for name, one in new.items():
            changed = "" if one.policy == former[name].policy else ", another policy"
            log.warning("reloaded %s: %d objects%s", name, one.offer.n_objects, changed)
        return True

    async def _announce(self, offers: tuple[OfferedCollection, ...]) -> None:
        """Send changed descriptions of the collections to the broker."""
        if self._connection is not None:
            with contextlib.suppress(ConnectionClosed):  # the next hello has them
                await self._connection.send(encode(ChangedOffers(offers)))

    def _set_query(self, query: SqlQuery) -> None:
        self._query = query

    def _replace(self, name: str, new: OfferedObjects) -> None:
        """Set a collection, in its thread."""
        self._collections[name].retired_at = time.monotonic()
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
            If the broker refuses the link, or has another certificate at the first attempt. Later,
            and if the clock may be wrong, it is logged, and further attempts follow.
        EvidenceRefused
            If a collection demands evidence of the broker, and it has none that is accepted.
        """
        wait_s, has_connected = MIN_WAIT_S, False

        def connected() -> None:
            nonlocal wait_s, has_connected
            wait_s, has_connected = MIN_WAIT_S, True
            log.info("connected to %s", broker)
            on_connected()

        upkeep = [
            asyncio.create_task(work())
            for work in (
                self._close_idle,
                self._reload_regularly,
                self._reload_changed,
                self._close_paused,
            )
        ]
        try:
            while True:
                while self._is_paused:
                    await asyncio.sleep(_LOOK_S)
                try:
                    await self._serve(broker, certificate, connected)
                except ssl.SSLCertVerificationError as error:
                    reason = explain_certificate(broker, error)
                    if not has_connected and error.verify_code not in CLOCK_CODES:
                        raise ConnectionRejected(reason) from None
                    log.error("%s; trying again in %.1f s", reason, wait_s)
                except OSError as error:
                    log.warning(
                        "cannot reach %s: %s; trying again in %.1f s", broker, error, wait_s
                    )
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, MAX_WAIT_S)
        finally:
            for task in upkeep:
                task.cancel()
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

    async def _reload_regularly(self) -> None:
        while self._reload_s is not None:
            await asyncio.sleep(self._reload_s)
            await self.reload()

    async def _reload_changed(self) -> None:
        """Read the collections again without the objects that were forgotten."""
        path = self._forgotten_file
        while path is not None:
            found, wait_s = _size_of(path), _LOOK_S
            if found != self._n_forgotten_bytes:
                if await self.reload():
                    self._n_forgotten_bytes = found
                else:
                    wait_s = MAX_WAIT_S
            await asyncio.sleep(wait_s)

    @property
    def _is_paused(self) -> bool:
        return self._pause_file is not None and self._pause_file.exists()

    async def _close_paused(self) -> None:
        """Close the link of a paused provider."""
        while True:
            await asyncio.sleep(_LOOK_S)
            if self._is_paused and self._connection is not None:
                log.warning("paused; `fedneighbors provider resume` ends it")
                await self._connection.close()

    async def _serve(self, broker: str, certificate: str, on_connected: Callable[[], None]) -> None:
        """Open a link and answer requests until it is closed."""
        try:
            async with open_link(broker, certificate) as connection:
                challenge = decode(_binary(await connection.recv()), (Challenge,))
                check_version(challenge)
                if any(offer.trust == "enclave" for offer in self._offers()):
                    await self._verify(connection)
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

    async def _verify(self, connection: Any) -> None:
        """Raise EvidenceRefused unless the broker runs in an accepted virtual machine."""
        if self._attestation is None:
            raise EvidenceRefused("rules", 'expected attestation, with trust = "enclave"')
        await verify_broker(connection, self._attestation, self._folder)

    def _sort(self, received: LinkRequests) -> dict[str, Waiting]:
        """Return requests and their deadlines for each collection with work."""
        since = time.monotonic()
        found: dict[str, Waiting] = {name: deque() for name in self._pools if received.closed}
        for frame in received.frames:
            request = decode(frame, (LinkRequest,))
            timed = since + min(request.remaining_ms / 1000, MAX_DEADLINE_S), request
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
                body, epoch = encode(make_refusal(Refused(UNKNOWN_COLLECTION, name))), b""
            elif not request.is_short:
                body, epoch = encode(make_refusal(Refused(TOO_LONG))), b""
            else:
                body, epoch = found.answer(request, deadline), found.party.epoch_of(request.query)
            if len(body) > MAX_REPLY_BYTES:
                body = encode(make_refusal(Refused(TOO_LARGE)))
            ended = time.perf_counter()
            n_bytes += len(body)
            if found is not None:
                self._trace(request, ended - begun)
            answers.append((request.number, int(1e6 * (ended - begun)), body, epoch))
        return encode(LinkReplies(*zip(*answers, strict=True))) if answers else b""

    def _trace(self, request: LinkRequest, seconds: float) -> None:
        """Record a span of a search that has just ended."""
        record_span(
            "search",
            time.time_ns() - int(1e9 * seconds),
            parent=request.trace,
            provider=self.name,
            collection=request.collection,
            query_id=request.query[:16],  # without the number of the run
        )


def _size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _binary(frame: str | bytes) -> bytes:
    return frame if isinstance(frame, bytes) else b""
