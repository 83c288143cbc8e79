"""Lines to the parties of one machine: a thread for each, and a worker process where wanted.

A line carries one frame after another, so that a party is never at work on two. Each frame comes
with the queue that its answer goes to; an answer that comes when nobody waits any longer lands in a
queue that nobody reads, and cannot be taken for that to a later frame.
"""

import signal
import struct
import threading
import time
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from typing import Any

from fedneighbors.federation.links import Link
from fedneighbors.federation.roles import Party, serve, serve_apart

__all__ = ["Arrival", "Ended", "Job", "Line", "ProcessLine"]

_CLOCK = struct.Struct("<d")


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


class Line:
    """The way to one party, which answers in a thread of its own.

    The thread is a daemon: a party that hangs keeps no program from ending.
    """

    def __init__(self, party: Party, link: Link) -> None:
        self.name = party.name
        self._party = party
        self._link = link
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._n_open = 0
        self._count = threading.Lock()
        self._thread = threading.Thread(
            target=self._carry, name=f"line to {self.name}", daemon=True
        )
        self._thread.start()

    @property
    def idle(self) -> bool:
        """Whether nothing is to be carried."""
        return self._n_open == 0

    def put(self, job: Job) -> None:
        """Carry a frame after those that were put in before."""
        self._add(1)
        self._jobs.put(job)

    def ready(self) -> None:
        """Wait until the party can be asked."""

    def close(self) -> None:
        """End the thread; one whose party is at work ends when that does."""
        self._jobs.put(None)
        if self.idle:
            self._thread.join()

    def kill(self) -> None:
        """End the thread without waiting; a party at work in a thread cannot be stopped."""
        self.close()

    def _add(self, number: int) -> None:
        with self._count:
            self._n_open += number

    def _carry(self) -> None:
        while (job := self._jobs.get()) is not None:
            arrival = None if job.over.is_set() else self._arrival(job.frame)
            self._add(-1)  # before the answer is seen: who has it finds the line idle
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

    def __init__(self, party: Party, link: Link) -> None:
        self._process, self._end = _start(party)
        super().__init__(party, link)

    def close(self) -> None:
        """Let the process end; one that is at work on an answer is killed."""
        if not self.idle:
            self._process.kill()  # nobody will read the answer
        self._jobs.put(None)
        self._thread.join()
        self._end.close()
        self._process.join()

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self.close()

    def ready(self) -> None:
        """Wait until the party lives in its process, or the process is gone."""
        try:
            self._end.recv_bytes()
        except (EOFError, OSError):
            return  # the first frame will tell

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
