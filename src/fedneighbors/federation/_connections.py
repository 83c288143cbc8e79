"""Emulated links: how long frames travel between the coordinator and a party of one machine."""

import math
import signal
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from typing import Any

from fedneighbors.federation._roles import Party, serve, serve_apart


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
    """Return the link of each party; one without delay where none is given.

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


_CLOCK = struct.Struct("<d")
_START_S = 5.0
"""Wall seconds within which a thread begins, unless an interrupt kept it from being started."""


class Ended(Exception):  # noqa: N818 - says what became of the process
    """The process of a party is gone."""


@dataclass(frozen=True)
class Arrival:
    """What came back on a line.

    Parameters
    ----------
    name : str
        The party.
    answer : bytes or BaseException
        Its frame, or what was raised instead.
    busy_s : float
        Wall seconds that it was at work.
    """

    name: str
    answer: bytes | BaseException
    busy_s: float = 0.0


@dataclass(frozen=True)
class Job:
    """A frame to carry.

    Parameters
    ----------
    frame : bytes
        The request.
    arrivals : queue
        Where the answer goes.
    over : event
        Set when nobody waits any longer; a party that has not begun is then not asked.
    """

    frame: bytes
    arrivals: "SimpleQueue[Arrival]"
    over: threading.Event


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
        """Do a task in a thread that is free, or in a new one."""
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
        """Whether nothing is to be carried."""
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
        """Stop work that nobody waits for; return whether the line falls idle soon."""
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


class ProcessLine(Line):
    """The way to one party that lives in a process of its own."""

    def __init__(self, party: Party, link: Link, threads: Threads) -> None:
        super().__init__(party, link, threads)
        self._process, self._end = _start(party)

    def ready(self) -> None:
        """Wait until the party lives in its process, or the process is gone."""
        try:
            self._end.recv_bytes()
        except (EOFError, OSError):
            return  # the first frame will tell

    def stop(self, *, at_once: bool) -> bool:
        """Kill the process if it is at work on an answer that nobody will read."""
        if at_once or not self.idle:
            self._process.kill()
        return True

    def leave(self) -> None:
        """Let the process end."""
        self._end.close()
        self._process.join()

    def _ask(self, frame: bytes) -> tuple[bytes, float]:
        try:
            self._end.send_bytes(frame)
            reply = self._end.recv_bytes()
        except (EOFError, OSError):
            raise Ended from None
        return reply[_CLOCK.size :], _CLOCK.unpack_from(reply)[0]


def _start(party: Party) -> "tuple[BaseProcess, Connection[Any, Any]]":
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(party, theirs), daemon=True)
    try:
        process.start()
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return process, ours


def _work(party: Party, end: "Connection[Any, Any]") -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the parent's to handle
    answer = partial(serve_apart, party)
    try:
        end.send_bytes(b"ready")
        while True:
            frame = end.recv_bytes()
            started = time.perf_counter()
            reply = answer(frame)
            end.send_bytes(_CLOCK.pack(time.perf_counter() - started) + reply)
    except (EOFError, OSError):
        return
