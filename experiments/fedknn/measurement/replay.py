"""Searches with providers one after another, and the time they would take in parallel.

One thread does all the work, so that providers on one machine do not slow one another. What each
provider and the broker spend is measured in CPU seconds; what a query takes is put together from
that: in every exchange the slowest provider counts, with its way there and back.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from fedneighbors.federation._inprocess import Link
from fedneighbors.federation._loop import (
    Coordinator,
    Delivery,
    Exchange,
    FrameTransport,
    run_rounds,
)
from fedneighbors.federation._messages import Message
from fedneighbors.federation._roles import Party, serve
from fedneighbors.methods.fedknn.protocol import Answer


class Late(Exception):  # noqa: N818 - says what became of a search
    """A provider did not finish within its time limit.

    Parameters
    ----------
    party : str
        Its name; empty if it does not know it.
    """

    def __init__(self, party: str = "") -> None:
        super().__init__(f"provider {party!r} was at work longer than the limit")
        self.party = party


class Clock(Protocol):
    """Function that returns the seconds of recorded work to add to measured seconds."""

    spent_s: float


@dataclass(frozen=True)
class Leg:
    """One exchange.

    Parameters
    ----------
    request : str
        Name of the request's message type.
    wanted : int
        Number of objects requested from all providers.
    local_s : mapping of str to float
        CPU seconds of each provider.
    download_bytes, upload_bytes : mapping of str to int
        Bytes to and from each provider.
    """

    request: str
    wanted: int
    local_s: Mapping[str, float]
    download_bytes: Mapping[str, int]
    upload_bytes: Mapping[str, int]

    def seconds(self, link: Link) -> float:
        """Return the seconds until the last reply is there."""
        return max(
            link.one_way_s(self.download_bytes[name]) + spent + link.one_way_s(sent)
            for (name, spent), sent in zip(
                self.local_s.items(), self.upload_bytes.values(), strict=True
            )
        )


@dataclass(frozen=True)
class Course:
    """Events and costs of one search.

    Parameters
    ----------
    answer : Answer or None
        None if a provider was late.
    legs : tuple of Leg
        The exchanges that were completed.
    broker_s : float
        CPU seconds of the coordinator: merging, counting, checking.
    carrying_s : float
        CPU seconds of the broker that went into packing, unpacking and checking messages.
    """

    answer: Answer | None
    legs: tuple[Leg, ...]
    broker_s: float
    carrying_s: float

    def seconds(self, link: Link) -> float:
        """Return the seconds from query to answer."""
        return self.broker_s + self.carrying_s + sum(leg.seconds(link) for leg in self.legs)

    @property
    def local_s(self) -> dict[str, float]:
        """Return the CPU seconds of each provider in all exchanges."""
        total: dict[str, float] = {}
        for leg in self.legs:
            for name, spent in leg.local_s.items():
                total[name] = total.get(name, 0.0) + spent
        return total


class _CpuTimer:
    """Context manager that sums up CPU seconds of this thread."""

    def __init__(self) -> None:
        self.spent_s = 0.0

    def __enter__(self) -> None:
        self._start = time.thread_time()

    def __exit__(self, *_: object) -> None:
        self.spent_s += time.thread_time() - self._start


def replay(
    coordinator: Coordinator[Answer],
    parties: Sequence[Party],
    *,
    clocks: Mapping[str, Clock] | None = None,
    limit_s: float = float("inf"),
) -> Course:
    """Run a search to its end, or until a provider is late.

    Parameters
    ----------
    coordinator : generator
        The search.
    parties : sequence of Party
        The providers. They are asked in this order, one after another.
    clocks : mapping of str to Clock, optional
        Recorded seconds to add to the measured time of providers with a recording.
    limit_s : float
        Seconds that each provider may spend on the query.

    Raises
    ------
    PartyRefused, WireError, ProtocolError
        As in any run.
    """
    by_name, clocks = {party.name: party for party in parties}, clocks or {}
    broker, whole, local = _CpuTimer(), _CpuTimer(), _CpuTimer()
    legs: list[Leg] = []
    asked: list[tuple[str, int]] = []

    def exchange(frames: Mapping[str, bytes]) -> tuple[dict[str, bytes], dict[str, str]]:
        spent, answers = {}, {}
        for name in (party.name for party in parties if party.name in frames):
            before = _so_far(local, clocks.get(name))
            with local:
                answers[name] = serve(by_name[name], frames[name])
            spent[name] = _so_far(local, clocks.get(name)) - before
            so_far = sum(leg.local_s.get(name, 0.0) for leg in legs)
            if so_far + spent[name] > limit_s:
                raise Late(name)
        sizes = ({name: len(some[name]) for name in answers} for some in (frames, answers))
        legs.append(Leg(*asked[-1], spent, *sizes))
        return answers, {}

    answer: Answer | None = None
    transport = _RecordingTransport(exchange, tuple(by_name), asked)
    with whole, suppress(Late):
        answer = run_rounds(coordinator, transport, watch=broker).result
    carrying_s = max(whole.spent_s - broker.spent_s - local.spent_s, 0.0)
    return Course(answer, tuple(legs), broker.spent_s, carrying_s)


def _so_far(seen: Clock, recorded: Clock | None) -> float:
    return seen.spent_s + (recorded.spent_s if recorded else 0.0)


class _RecordingTransport(FrameTransport):
    """Transport that records each request's kind and number of objects."""

    def __init__(
        self, exchange: Exchange, names: tuple[str, ...], asked: list[tuple[str, int]]
    ) -> None:
        super().__init__(exchange, names)
        self._asked = asked

    def carry(
        self, requests: Mapping[str, Message], *, reduce: Literal["gather", "sum"]
    ) -> Delivery:
        """Record the requests and carry them."""
        wanted = sum(int(np.sum(getattr(r, "count", 0))) for r in requests.values())
        self._asked.append((type(next(iter(requests.values()))).__name__, wanted))
        return super().carry(requests, reduce=reduce)
