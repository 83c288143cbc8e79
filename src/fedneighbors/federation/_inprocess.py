"""Runtime in one machine: parties as threads or as worker processes."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Literal, TypeVar

from fedneighbors.federation._loop import Carried, Coordinator, FrameTransport, Outcome, run_rounds
from fedneighbors.federation._roles import Party, serve
from fedneighbors.records import Round

if TYPE_CHECKING:
    from fedneighbors.federation._masked_sums import MaskedSums  # which needs an extra


@dataclass(frozen=True)
class Link:
    """A link that is emulated by waiting, so that parties wait side by side.

    Parameters
    ----------
    delay_s : float
        Round trip in seconds, 0 or more: half before the party's work, half after it.
    bytes_per_s : float, optional
        Bandwidth in each direction. None for one without limit.

    Raises
    ------
    ValueError
        If the delay is negative or the bandwidth not positive.

    Examples
    --------
    >>> Link(0.064, bytes_per_s=1e6).one_way_s(8000)
    0.04
    """

    delay_s: float
    bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.delay_s < math.inf:
            raise ValueError(f"expected delay_s of 0 or more seconds, got {self.delay_s!r}")
        if self.bytes_per_s is not None and not self.bytes_per_s > 0:
            raise ValueError(f"expected bytes_per_s above 0 or None, got {self.bytes_per_s!r}")

    def one_way_s(self, n_bytes: int) -> float:
        """Return the seconds that a frame of ``n_bytes`` takes in one direction."""
        sending_s = 0.0 if self.bytes_per_s is None else n_bytes / self.bytes_per_s
        return self.delay_s / 2 + sending_s

    def travel(self, frame: bytes) -> None:
        """Wait as long as a frame takes in one direction."""
        if (seconds := self.one_way_s(len(frame))) > 0:
            time.sleep(seconds)


def links_of(link: Link | Mapping[str, Link] | None, names: Sequence[str]) -> dict[str, Link]:
    """Return each party's link, by default without delay.

    Raises
    ------
    ValueError
        If a link is given for a party that does not take part.
    """
    if link is None or isinstance(link, Link):
        return dict.fromkeys(names, link or Link(0.0))
    if unknown := sorted(set(link) - set(names)):
        raise ValueError(f"links for {unknown}, which do not take part; the parties are {names}")
    return {name: link.get(name, Link(0.0)) for name in names}


_START_S = 5.0
"""Wall seconds within which a thread begins, unless an interrupt kept it from being started."""


class Ended(Exception):  # noqa: N818 - says what became of the process
    """The process of a party is gone."""


@dataclass(frozen=True)
class Arrival:
    """A party's frame, or what was raised instead, and its wall seconds of work."""

    name: str
    answer: bytes | BaseException
    busy_s: float = 0.0


@dataclass(frozen=True)
class Job:
    """A frame to carry, and the queue of its answer."""

    frame: bytes
    arrivals: "SimpleQueue[Arrival]"
    over: threading.Event
    """Set when nobody waits any longer; a party that has not begun is then not asked."""


class Threads:
    """Threads that carry frames: as many as were ever at work at once, reused.

    They are daemons: a party that hangs keeps no program from ending.
    """

    def __init__(self) -> None:
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads: list[tuple[threading.Thread, threading.Event]] = []
        self._n_free = 0
        self._lock = threading.Lock()

    def begin(self, task: Callable[[], None]) -> None:
        """Run a task in an idle thread, or in a new one."""
        with self._lock:
            is_free = self._n_free > 0
            self._n_free -= is_free
        self._tasks.put(task)
        if not is_free:
            self._start()

    def end(self, *, wait: bool) -> None:
        """End the threads that are free, and the others after their tasks."""
        for _ in self._threads:
            self._tasks.put(None)
        if wait:
            for thread, begun in self._threads:
                if begun.wait(_START_S):
                    thread.join()

    def _start(self) -> None:
        begun = threading.Event()  # an interrupt may come before start() returns
        thread = threading.Thread(
            target=self._work, args=(begun,), name="line to a party", daemon=True
        )
        self._threads.append((thread, begun))
        thread.start()

    def _work(self, begun: threading.Event) -> None:
        begun.set()
        while (task := self._tasks.get()) is not None:
            task()
            with self._lock:
                self._n_free += 1


class Line:
    """The way to one party, which answers in a thread of this process."""

    def __init__(self, party: Party, link: Link, threads: Threads) -> None:
        self.name = party.name
        self._party = party
        self._link = link
        self._threads = threads
        self._jobs: deque[Job] = deque()
        self._n_open = 0
        self._lock = threading.Lock()

    @property
    def idle(self) -> bool:
        """Return whether nothing is to be carried."""
        return self._n_open == 0

    def put(self, job: Job) -> None:
        """Carry a frame after those that were put in before."""
        with self._lock:
            self._jobs.append(job)
            self._n_open += 1
            is_first = self._n_open == 1
        if is_first:
            self._threads.begin(self._carry)

    def ready(self) -> None:
        """Wait until the party can be asked."""

    def stop(self, *, at_once: bool) -> bool:  # noqa: ARG002 - a thread cannot be stopped
        """Stop unneeded work; return whether the line becomes idle soon."""
        return self.idle

    def leave(self) -> None:
        """Let the party go, once nothing is carried any longer."""

    def _carry(self) -> None:
        is_last = False
        while not is_last:
            job = self._jobs[0]
            arrival = None if job.over.is_set() else self._arrival(job.frame)
            with self._lock:  # before the answer is seen: who has it finds the line idle
                self._jobs.popleft()
                self._n_open -= 1
                is_last = self._n_open == 0
            if arrival is not None:
                job.arrivals.put(arrival)

    def _arrival(self, frame: bytes) -> Arrival:
        try:
            self._link.travel(frame)
            answer, busy_s = self._ask(frame)
            self._link.travel(answer)
        except BaseException as error:  # raised again by the run that waits for it
            return Arrival(self.name, error)
        return Arrival(self.name, answer, busy_s)

    def _ask(self, frame: bytes) -> tuple[bytes, float]:
        """Return the party's frame and the seconds that it was at work."""
        started = time.perf_counter()
        try:
            answer = serve(self._party, frame)
        except Exception as error:
            error.add_note(f"raised by party {self.name!r}")
            raise
        return answer, time.perf_counter() - started


R = TypeVar("R")


class Connected:
    """Parties that are ready to be asked by one coordinator after another.

    :func:`connected` makes and ends it. Coordinators may also run side by side in threads; a party
    answers one request at a time.
    """

    def __init__(
        self,
        lines: Mapping[str, Line],
        *,
        n_workers: int,
        deadline_s: float | None,
        sums: "MaskedSums | None",
    ) -> None:
        self.names = tuple(lines)
        self._lines = lines
        self._n_workers = n_workers
        self._deadline_s = deadline_s
        self._sums = sums
        self._open = True

    def run(
        self, coordinator: Coordinator[R], *, on_round: Callable[[Round], None] | None = None
    ) -> Outcome[R]:
        """Drive a coordinator to its end and return its result.

        Raises
        ------
        ValueError
            If the parties are no longer connected.
        Exception
            What :func:`run` raises.
        """
        if not self._open:
            raise ValueError("the parties are no longer connected; connect them again")
        transport = FrameTransport(self._exchange, self.names)
        return run_rounds(coordinator, transport, on_round=on_round, sums=self._sums)

    def _exchange(self, frames: Mapping[str, bytes]) -> Carried:
        over = threading.Event()
        try:
            came = self._collected(frames, over)
        finally:
            over.set()  # nobody waits any longer for parties that have not begun
        missing: dict[str, str] = {}
        for name in frames:
            if name not in came:
                missing[name] = f"no answer within {self._deadline_s:g} s"
            elif isinstance(came[name].answer, Ended):
                missing[name] = "its process ended"
        answers = {name: came[name].answer for name in frames if name not in missing}
        return Carried(
            {name: answer for name, answer in answers.items() if isinstance(answer, bytes)},
            missing,
            {name: came[name].busy_s for name in answers},
        )

    def _collected(self, frames: Mapping[str, bytes], over: threading.Event) -> dict[str, Arrival]:
        """Return the replies in time; raise the first party's exception."""
        end = math.inf if self._deadline_s is None else time.monotonic() + self._deadline_s
        arrivals: SimpleQueue[Arrival] = SimpleQueue()
        came: dict[str, Arrival] = {}
        errors: dict[str, BaseException] = {}
        unasked = list(frames)[::-1]
        n_asked = 0
        while True:
            while unasked and not errors and n_asked - len(came) < self._n_workers:
                name = unasked.pop()
                self._lines[name].put(Job(frames[name], arrivals, over))
                n_asked += 1
            if n_asked == len(came):
                break
            arrival = _next(arrivals, end)
            if arrival is None:
                break
            came[arrival.name] = arrival
            if isinstance(arrival.answer, BaseException) and not isinstance(arrival.answer, Ended):
                errors[arrival.name] = arrival.answer
        for name in frames:
            if name in errors:
                raise errors[name]
        return came


def _next(arrivals: "SimpleQueue[Arrival]", end: float) -> Arrival | None:
    """Return the next arrival; None if none comes before ``end``."""
    if end == math.inf:
        return arrivals.get()
    try:
        return arrivals.get(timeout=max(end - time.monotonic(), 0.0))
    except Empty:
        return None


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
) -> Iterator[Connected]:
    """Connect local parties so that many coordinators can use them.

    Requests and replies pass through their canonical bytes exactly as on a network. At the end
    worker processes are gone, also one that hangs; a party that hangs in a thread cannot be
    stopped, but keeps neither the program nor its end waiting.

    Parameters
    ----------
    parties : sequence of Party
        Names must differ.
    workers : {"threads", "processes"}
        Where parties answer. Under ``"processes"`` each party lives in a process of its own, with
        what it has built, from the first coordinator to the last.
    n_workers : int, optional
        How many parties answer at the same time. None means all of them under ``"processes"``,
        with a link or with a deadline, else one.
    link : Link or mapping of str to Link, optional
        Emulated link to all parties or to each; a party that is not in the mapping has none.
    deadline_s : float, optional
        Seconds from the begin of an exchange after which a party that has not answered is missing
        from it. Its late reply is dropped, and it answers nothing else before it has given it.
    sums : {"plain", "masked"}
        ``"masked"`` forms sums by secure aggregation, each party with a key made here.
    threshold : int, optional
        Least number of parties in a masked sum, see
        :class:`~fedneighbors.federation.MaskedSums`.

    Yields
    ------
    Connected
        Its method ``run`` drives a coordinator.

    Raises
    ------
    ValueError
        If there is no party, two have one name, or an argument is out of range.
    MissingExtraError
        If sums are to be masked and the extra ``privacy`` is not installed.
    """
    names = [party.name for party in parties]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"expected parties with different names, got {names}; rename or add one")
    if workers not in ("threads", "processes"):
        raise ValueError(f"expected workers 'threads' or 'processes', got {workers!r}")
    if n_workers is not None and n_workers < 1:
        raise ValueError(f"expected n_workers of at least 1, got {n_workers}")
    if deadline_s is not None and not 0 < deadline_s < math.inf:
        raise ValueError(f"expected deadline_s above 0 or None, got {deadline_s!r}")
    if sums not in ("plain", "masked"):
        raise ValueError(f"expected sums 'plain' or 'masked', got {sums!r}")
    if threshold is not None and sums == "plain":
        raise ValueError("a threshold belongs to masked sums; say sums='masked' or leave it out")
    links = links_of(link, names)
    if n_workers is None:
        together = workers == "processes" or link is not None or deadline_s is not None
        n_workers = len(names) if together else 1
    asked, masked = (parties, None) if sums == "plain" else _enrolled(parties, threshold)
    with _lines(asked, links, workers) as lines:
        federation = Connected(lines, n_workers=n_workers, deadline_s=deadline_s, sums=masked)
        try:
            yield federation
        finally:
            federation._open = False


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
    """Run a federation on this machine and return the coordinator's result.

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
        If there is no party, two have one name, or an argument is out of range.
    AggregationError
        If a masked sum cannot be formed.
    MissingExtraError
        If sums are to be masked and the extra ``privacy`` is not installed.
    PartyMissing, PartyRefused, WireError, ProtocolError
        As the coordinator and the loop decide.
    Exception
        Any other exception of a party under ``"threads"``, with a note that names the party.
        Under ``"processes"`` it is a :class:`~fedneighbors.errors.PartyRefused` that tells its
        type alone.
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


def _enrolled(
    parties: Sequence[Party], threshold: int | None
) -> "tuple[Sequence[Party], MaskedSums]":
    """Return masked parties with new keys that all parties know."""
    from fedneighbors.federation._masked_party import MaskedParty
    from fedneighbors.federation._masked_sums import MaskedSums
    from fedneighbors.federation._masking import MemoryStore
    from fedneighbors.secure_sum._key_agreement import Identity, Roster

    keys = {party.name: Identity.new() for party in parties}
    roster = Roster({name: key.public for name, key in keys.items()})
    masked = [
        MaskedParty(party, identity=keys[party.name], roster=roster, store=MemoryStore())
        for party in parties
    ]
    return masked, MaskedSums(roster, threshold=threshold)


@contextmanager
def _lines(
    parties: Sequence[Party], links: Mapping[str, Link], workers: Literal["threads", "processes"]
) -> Iterator[dict[str, Line]]:
    kind = Line
    if workers == "processes":
        from fedneighbors.federation._processes import ProcessLine

        kind = ProcessLine
    threads, lines, failed = Threads(), dict[str, Line](), True
    try:
        for party in parties:
            lines[party.name] = kind(party, links[party.name], threads)
        for line in lines.values():
            line.ready()
        yield lines
        failed = False
    finally:
        fall_idle = [line.stop(at_once=failed) for line in lines.values()]
        threads.end(wait=all(fall_idle))
        for line in lines.values():
            line.leave()
