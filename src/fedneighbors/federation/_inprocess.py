"""Runtime on one machine: parties in threads or in worker processes."""

import ctypes
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Literal, TypeVar, cast

from fedneighbors.federation._links import Link, resolve_links
from fedneighbors.federation._loop import (
    Coordinator,
    ExchangeResult,
    FrameTransport,
    Outcome,
    run_rounds,
)
from fedneighbors.federation._roles import Party, SharedRequests, serve_timed, set_end
from fedneighbors.records import Round

if TYPE_CHECKING:
    from fedneighbors.federation._masked_sums import MaskedSums  # which needs an extra


R = TypeVar("R")
_START_TIMEOUT_S = 5.0  # a thread takes milliseconds to start, unless an interrupt prevents it


class ThreadPool:
    """Reusable pool of threads that deliver frames.

    The pool grows to the largest number of concurrent tasks. Its threads are daemons, so that a
    party that hangs does not prevent the program from exiting.
    """

    def __init__(self) -> None:
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads: list[tuple[threading.Thread, threading.Event]] = []
        self._n_idle = 0
        self._lock = threading.Lock()

    def submit(self, task: Callable[[], None]) -> None:
        """Run a task in an idle thread or in a new one."""
        with self._lock:
            has_idle = self._n_idle > 0
            self._n_idle -= has_idle
        self._tasks.put(task)
        if not has_idle:
            self._start()

    def call(self, task: Callable[[], R]) -> R:
        """Run a task in a thread; return its result."""
        results: SimpleQueue[tuple[R | None, BaseException | None]] = SimpleQueue()

        def run() -> None:
            try:
                results.put((task(), None))
            except BaseException as error:
                results.put((None, error))

        self.submit(run)
        result, error = results.get()
        if error is not None:
            raise error
        return cast(R, result)

    def shutdown(self, *, wait: bool) -> None:
        """End idle threads now and the others after their tasks."""
        for _ in self._threads:
            self._tasks.put(None)
        if wait:
            for thread, started in self._threads:
                if started.wait(_START_TIMEOUT_S):
                    thread.join()

    def _start(self) -> None:
        started = threading.Event()  # an interrupt may come before start() returns
        thread = threading.Thread(
            target=self._work, args=(started,), name="connection to a party", daemon=True
        )
        self._threads.append((thread, started))
        thread.start()

    def _work(self, started: threading.Event) -> None:
        started.set()
        while (task := self._tasks.get()) is not None:
            task()
            with self._lock:
                self._n_idle += 1


class ProcessEnded(Exception):  # noqa: N818 - makes a party missing, is no error of the caller
    """A party's process has ended."""


class _Stopped(SystemExit):
    """Raised in the thread of a party when its work has to end; Python prints no traceback."""


@dataclass(frozen=True)
class PartyReply:
    """A party's reply frame or exception, its seconds of work, and the time it was ready."""

    name: str
    answer: bytes | BaseException
    busy_s: float = 0.0
    ready: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class Job:
    """A frame to deliver, and the queue for its reply."""

    frame: bytes
    requests: SharedRequests
    replies: "SimpleQueue[PartyReply]"
    cancelled: threading.Event
    """Set when the exchange has ended; jobs that have not started by then are skipped."""
    end: float  # monotonic time of the deadline


class PartyConnection:
    """Connection to one party that answers in a thread of this process.

    Without a pool it answers in the thread that sends a request.
    """

    def __init__(self, party: Party, link: Link | None, pool: ThreadPool | None) -> None:
        self.name = party.name
        self._party = party
        self._link = link
        self._pool = pool
        self._jobs: deque[Job] = deque()
        self._n_pending = 0
        self._lock = threading.Lock()
        self._worker: int | None = None  # thread in which the party works

    @property
    def is_idle(self) -> bool:
        """Return whether no frame is pending."""
        return self._n_pending == 0

    def put(self, job: Job) -> None:
        """Queue a frame for delivery."""
        with self._lock:
            self._jobs.append(job)
            self._n_pending += 1
            is_first = self._n_pending == 1
        if not is_first:
            return  # the thread that delivers the earlier frames continues
        if self._pool is None:
            self._deliver_jobs()
        else:
            self._pool.submit(self._deliver_jobs)

    def wait_ready(self) -> None:
        """Wait until the party can receive requests."""

    def stop(self, *, at_once: bool) -> bool:  # noqa: ARG002 - always at once
        """Stop pending work; return whether the connection is or will be idle."""
        with self._lock:  # compiled code runs to the end of its call
            if self._worker is not None:
                raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
                raise_in(ctypes.c_ulong(self._worker), ctypes.py_object(_Stopped))
        return self.is_idle

    def close(self) -> None:
        """Release the party once no frame is pending."""

    def _deliver_jobs(self) -> None:
        is_last = False
        while not is_last:
            job = self._jobs[0]
            is_cancelled = job.cancelled.is_set()
            reply = PartyReply(self.name, b"") if is_cancelled else self._make_reply(job)
            with self._lock:  # before the reply is queued, so that its receiver sees `is_idle`
                self._jobs.popleft()
                self._n_pending -= 1
                is_last = self._n_pending == 0
            job.replies.put(reply)

    def _make_reply(self, job: Job) -> PartyReply:
        try:
            if self._link:
                self._link.travel(job.frame)
            answer, busy_s = self._ask(job)
            if self._link:
                self._link.travel(answer)
        except BaseException as error:  # re-raised by the run that waits for the reply
            return PartyReply(self.name, error)
        return PartyReply(self.name, answer, busy_s)

    def _ask(self, job: Job) -> tuple[bytes, float]:
        """Return the party's reply frame and the seconds that it worked."""
        with self._lock:
            self._worker = threading.get_ident()
        try:
            set_end(self._party, job.end)
            return serve_timed(self._party, job.frame, job.requests)
        finally:
            with self._lock:
                self._worker = None


class ConnectedParties:
    """Connected parties that serve several coordinators.

    Created and closed by :func:`connected`. Coordinators run one after another, or concurrently in
    threads; a party answers one request at a time.
    """

    def __init__(
        self,
        connections: Mapping[str, PartyConnection],
        *,
        n_workers: int,
        pool: ThreadPool | None,
        deadline_s: float | None,
        sums: "MaskedSums | None",
    ) -> None:
        self.names = tuple(connections)
        self._connections = connections
        self._n_workers = n_workers
        self._pool = pool
        self._deadline_s = deadline_s
        self._sums = sums
        self._is_open = True

    def run(
        self, coordinator: Coordinator[R], *, on_round: Callable[[Round], None] | None = None
    ) -> Outcome[R]:
        """Run a coordinator; return its result and the record of each round.

        Raises
        ------
        ValueError
            If the parties are no longer connected.
        Exception
            As for :func:`run`.
        """
        if not self._is_open:
            raise ValueError("the parties are no longer connected; connect them again")
        transport = FrameTransport(self._exchange, self.names)
        return run_rounds(coordinator, transport, on_round=on_round, sums=self._sums)

    def _exchange(self, frames: Mapping[str, bytes]) -> ExchangeResult:
        cancelled = threading.Event()
        try:
            collect = partial(self._collect_replies, frames, cancelled)
            received = collect() if self._pool is None else self._pool.call(collect)
        finally:
            cancelled.set()  # parties that have not started skip the request
        missing: dict[str, str] = {}
        for name in frames:
            if name not in received:
                missing[name] = f"no answer within {self._deadline_s:g} s"
            elif isinstance(received[name].answer, ProcessEnded):
                missing[name] = "its process ended"
        answers = {name: received[name].answer for name in frames if name not in missing}
        return ExchangeResult(
            {name: answer for name, answer in answers.items() if isinstance(answer, bytes)},
            missing,
            {name: received[name].busy_s for name in answers},
        )

    def _collect_replies(
        self, frames: Mapping[str, bytes], cancelled: threading.Event
    ) -> dict[str, PartyReply]:
        """Return the replies that arrive in time.

        Raise the exception of the first party, in the order of ``frames``, that raised one.
        """
        deadline = math.inf if self._deadline_s is None else time.monotonic() + self._deadline_s
        replies: SimpleQueue[PartyReply] = SimpleQueue()
        requests = SharedRequests()
        received: dict[str, PartyReply] = {}
        errors: dict[str, BaseException] = {}
        unsent, n_sent = list(frames)[::-1], 0  # `pop` takes the last
        while True:
            # after an error no further party is asked
            while unsent and not errors and n_sent - len(received) < self._n_workers:
                name = unsent.pop()
                job = Job(frames[name], requests, replies, cancelled, deadline)
                self._connections[name].put(job)
                n_sent += 1
            if n_sent == len(received) or cancelled.is_set():
                break
            reply = _next_reply(replies, deadline)
            if reply is None:
                break
            received[reply.name] = reply
            if isinstance(reply.answer, BaseException) and not isinstance(
                reply.answer, ProcessEnded
            ):
                errors[reply.name] = reply.answer
        for name in frames:
            if name in errors:
                raise errors[name]
        return received


def _next_reply(replies: "SimpleQueue[PartyReply]", deadline: float) -> PartyReply | None:
    """Return the next reply that was ready before the deadline, else None."""
    try:
        left_s = None if deadline == math.inf else max(deadline - time.monotonic(), 0.0)
        reply = replies.get(timeout=left_s)
    except Empty:
        return None
    return reply if reply.ready <= deadline else None


@contextmanager
def connected(
    parties: Sequence[Party],
    *,
    workers: Literal["threads", "processes"] = "threads",
    n_workers: int | None = None,
    link: Link | Mapping[str, Link] | None = None,
    deadline_s: float | None = None,
    sums: Literal["plain", "masked"] = "plain",
    threshold: int | None = None,
) -> Iterator[ConnectedParties]:
    """Connect parties on this machine for use by several coordinators.

    Requests and replies are encoded to and decoded from their canonical bytes, as on a network.
    On exit all worker processes are ended, including one that hangs. A party that still works in a
    thread is stopped as soon as it runs Python code, and delays neither this exit nor the exit of
    the program.

    Parameters
    ----------
    parties : sequence of Party
        Names must differ.
    workers : {"threads", "processes"}
        Run parties as threads or processes. With ``"processes"`` each party has its own
        process, which keeps its state from the first coordinator to the last.
    n_workers : int, optional
        Maximum number of parties that answer concurrently. None means all parties with
        ``"processes"``, a link or a deadline, otherwise one.
    link : Link or mapping of str to Link, optional
        Emulated link to all parties, or to each party by name; a party that is not in the mapping
        has a link without delay.
    deadline_s : float, optional
        Seconds of an exchange after which a party that has not answered counts as missing, and its
        search stops. Its late reply is dropped; it answers no other request before sending it.
    sums : {"plain", "masked"}
        ``"masked"`` forms sums by secure aggregation, with a new key for each party.
    threshold : int, optional
        Minimum number of parties in a masked sum, see
        :class:`~fedneighbors.federation.MaskedSums`.

    Yields
    ------
    ConnectedParties
        The connected parties; its method ``run`` runs a coordinator.

    Raises
    ------
    ValueError
        If there is no party, two have the same name, or an argument is out of range.
    MissingExtraError
        If ``sums="masked"`` and the extra ``privacy`` is not installed.
    """
    names = [party.name for party in parties]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"expected parties with distinct names, got {names}; rename or add one")
    if workers not in ("threads", "processes"):
        raise ValueError(f"expected workers 'threads' or 'processes', got {workers!r}")
    if n_workers is not None and n_workers < 1:
        raise ValueError(f"expected n_workers of at least 1, got {n_workers}")
    if deadline_s is not None and not 0 < deadline_s < math.inf:
        raise ValueError(f"expected deadline_s above 0 or None, got {deadline_s!r}")
    if sums not in ("plain", "masked"):
        raise ValueError(f"expected sums 'plain' or 'masked', got {sums!r}")
    if threshold is not None and sums == "plain":
        raise ValueError("threshold needs masked sums; set sums='masked' or omit it")
    links = {} if link is None else resolve_links(link, names)
    if n_workers is None:
        concurrent = workers == "processes" or link is not None or deadline_s is not None
        n_workers = len(names) if concurrent else 1
    wrapped, masked = (parties, None) if sums == "plain" else _enroll_parties(parties, threshold)
    # One thread for all parties is faster than a change of threads for each. It is not the
    # caller's, which can be interrupted while a party works.
    pool = ThreadPool()
    is_serial = n_workers == 1 and deadline_s is None
    with _open_connections(wrapped, links, workers, pool=pool, is_serial=is_serial) as connections:
        federation = ConnectedParties(
            connections,
            n_workers=n_workers,
            pool=pool if is_serial else None,
            deadline_s=deadline_s,
            sums=masked,
        )
        try:
            yield federation
        finally:
            federation._is_open = False


def run(
    coordinator: Coordinator[R],
    parties: Sequence[Party],
    *,
    workers: Literal["threads", "processes"] = "threads",
    n_workers: int | None = None,
    on_round: Callable[[Round], None] | None = None,
    sums: Literal["plain", "masked"] = "plain",
    threshold: int | None = None,
    link: Link | Mapping[str, Link] | None = None,
    deadline_s: float | None = None,
) -> Outcome[R]:
    """Run a coordinator on this machine; return its result and rounds.

    Parameters
    ----------
    coordinator : generator
        The coordinator.
    parties, workers, n_workers, sums, threshold, link, deadline_s
        As for :func:`connected`, which serves several coordinators.
    on_round : callable, optional
        Called with each round's record.

    Raises
    ------
    ValueError
        If there is no party, two have the same name, or an argument is out of range.
    AggregationError
        If a masked sum cannot be formed.
    MissingExtraError
        If ``sums="masked"`` and the extra ``privacy`` is not installed.
    PartyMissing, PartyRefused, WireError, ProtocolError
        As raised by the coordinator and :func:`run_rounds`.
    Exception
        With ``"threads"`` any other exception of a party, with a note that names the party.
        With ``"processes"`` a :class:`~fedneighbors.errors.PartyRefused` without the type and the
        text of the exception; the party's process logs the type.
    """
    with connected(
        parties,
        workers=workers,
        n_workers=n_workers,
        link=link,
        deadline_s=deadline_s,
        sums=sums,
        threshold=threshold,
    ) as federation:
        return federation.run(coordinator, on_round=on_round)


def _enroll_parties(
    parties: Sequence[Party], threshold: int | None
) -> "tuple[Sequence[Party], MaskedSums]":
    """Wrap parties for masked sums with new keys and a roster."""
    from fedneighbors.federation._masked_party import MaskedParty
    from fedneighbors.federation._masked_sums import MaskedSums
    from fedneighbors.federation._stores import MemoryStore
    from fedneighbors.secure_sum._keys import Identity, Roster

    identities = {party.name: Identity.new() for party in parties}
    roster = Roster({name: identity.public for name, identity in identities.items()})
    masked = [
        MaskedParty(party, identity=identities[party.name], roster=roster, store=MemoryStore())
        for party in parties
    ]
    return masked, MaskedSums(roster, threshold=threshold)


@contextmanager
def _open_connections(
    parties: Sequence[Party],
    links: Mapping[str, Link],
    workers: Literal["threads", "processes"],
    *,
    pool: ThreadPool,
    is_serial: bool,
) -> Iterator[dict[str, PartyConnection]]:
    connection_class = PartyConnection
    if workers == "processes":
        from fedneighbors.federation._processes import ProcessConnection

        connection_class = ProcessConnection
    connections, has_failed = dict[str, PartyConnection](), True
    threads = None if is_serial else pool
    try:
        for party in parties:
            connections[party.name] = connection_class(party, links.get(party.name), threads)
        for connection in connections.values():
            connection.wait_ready()
        yield connections
        has_failed = False
    finally:
        become_idle = [connection.stop(at_once=has_failed) for connection in connections.values()]
        pool.shutdown(wait=all(become_idle))  # a hanging thread would block the exit
        for connection in connections.values():
            connection.close()
