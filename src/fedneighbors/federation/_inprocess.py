"""Runtime in one machine: parties as threads or as worker processes."""

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Literal, TypeVar

from fedneighbors.federation._connections import (
    Arrival,
    Ended,
    Job,
    Line,
    Link,
    ProcessLine,
    Threads,
    links_of,
)
from fedneighbors.federation._loop import Carried, FrameTransport, Outcome, run_rounds
from fedneighbors.federation._roles import Coordinator, Party
from fedneighbors.records import Round

if TYPE_CHECKING:
    from fedneighbors.federation._masked_sums import MaskedSums  # which needs an extra


R = TypeVar("R")


class Connected:
    """Parties that are ready to be asked by one coordinator after another.

    :func:`connected` makes and ends it. Coordinators may also run side by side in threads; a party
    answers one request at a time.

    Parameters
    ----------
    lines : mapping of str to Line
        The way to each party, in the order of the parties.
    n_workers : int
        How many parties answer a coordinator at the same time.
    deadline_s : float or None
        Seconds after which a party is missing from an exchange.
    sums : MaskedSums or None
        How sums are masked.
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
            raise ValueError("the parties are no longer connected; connect them anew")
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
        """Return what came in time; raise what the first of the parties raised."""
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
    """Connect parties on this machine, so that many coordinators can ask them in a row.

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
        :class:`~fedneighbors.federation._masked_sums.MaskedSums`.

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
    """Return the parties behind masks, with fresh keys that all of them know."""
    from fedneighbors.federation._masked_party import MaskedParty
    from fedneighbors.federation._masked_state import MemoryStore
    from fedneighbors.federation._masked_sums import MaskedSums
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
    threads, lines, failed = Threads(), dict[str, Line](), True
    kind = Line if workers == "threads" else ProcessLine
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
