"""Searches in one thread, with a computed latency over a network.

Providers run one after another, so that they do not slow down one another. The CPU seconds of each
provider and of the broker are measured. The latency of a query is the broker's time plus, for each
exchange, the time of the slowest provider including the transfer of its messages.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from fedneighbors.federation._links import Link
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


class Late(Exception):  # noqa: N818 - an outcome of a search, not an error
    """A provider did not finish within its time limit.

    Parameters
    ----------
    party : str
        Its name; empty where it is unknown.
    """

    def __init__(self, party: str = "") -> None:
        super().__init__(f"provider {party!r} exceeded its time limit")
        self.party = party


class Clock(Protocol):
    """Counter of the seconds of recorded work, to add to measured seconds."""

    spent_s: float


@dataclass(frozen=True)
class ExchangeCosts:
    """Request and costs of one exchange.

    Parameters
    ----------
    request : str
        Name of the request's message type.
    n_requested : int
        Number of objects requested from all providers.
    local_s : mapping of str to float
        CPU seconds of each provider.
    download_bytes, upload_bytes : mapping of str to int
        Bytes to and from each provider.
    """

    request: str
    n_requested: int
    local_s: Mapping[str, float]
    download_bytes: Mapping[str, int]
    upload_bytes: Mapping[str, int]

    def seconds(self, link: Link) -> float:
        """Return the seconds until the last reply arrives."""
        return max(
            link.one_way_s(self.download_bytes[name]) + spent + link.one_way_s(sent)
            for (name, spent), sent in zip(
                self.local_s.items(), self.upload_bytes.values(), strict=True
            )
        )


@dataclass(frozen=True)
class SearchCosts:
    """Answer and costs of one search.

    Parameters
    ----------
    answer : Answer or None
        The answer; None if the search was late.
    exchanges : tuple of ExchangeCosts
        The completed exchanges.
    broker_s : float
        CPU seconds of the coordinator: merging, counting, checking.
    carrying_s : float
        CPU seconds of the broker for encoding, decoding and checking messages.
    """

    answer: Answer | None
    exchanges: tuple[ExchangeCosts, ...]
    broker_s: float
    carrying_s: float

    def seconds(self, link: Link) -> float:
        """Return the seconds from query to answer."""
        return (
            self.broker_s
            + self.carrying_s
            + sum(exchange.seconds(link) for exchange in self.exchanges)
        )

    @property
    def local_s(self) -> dict[str, float]:
        """Return the CPU seconds of each provider in all exchanges."""
        total: dict[str, float] = {}
        for exchange in self.exchanges:
            for name, spent in exchange.local_s.items():
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
) -> SearchCosts:
    """Run a search to its end, or until it is late.

    Parameters
    ----------
    coordinator : generator
        The search.
    parties : sequence of Party
        The providers, in the order in which they run.
    clocks : mapping of str to Clock, optional
        Counters of recorded seconds, for providers with a recording.
    limit_s : float
        Seconds that the query may take: the slowest providers of all exchanges together.

    Raises
    ------
    PartyRefused, WireError, ProtocolError
        As in any run.
    """
    by_name, clocks = {party.name: party for party in parties}, clocks or {}
    broker, total, local = _CpuTimer(), _CpuTimer(), _CpuTimer()
    exchanges: list[ExchangeCosts] = []
    requests: list[tuple[str, int]] = []

    def exchange(frames: Mapping[str, bytes]) -> tuple[dict[str, bytes], dict[str, str]]:
        spent, answers = {}, {}
        earlier = sum(max(exchange.local_s.values()) for exchange in exchanges)
        for name in (party.name for party in parties if party.name in frames):
            before = _total_seconds(local, clocks.get(name))
            with local:
                answers[name] = serve(by_name[name], frames[name])
            spent[name] = _total_seconds(local, clocks.get(name)) - before
            if earlier + spent[name] > limit_s:
                raise Late(name)
        sizes = ({name: len(group[name]) for name in answers} for group in (frames, answers))
        exchanges.append(ExchangeCosts(*requests[-1], spent, *sizes))
        return answers, {}

    answer: Answer | None = None
    transport = _RecordingTransport(exchange, tuple(by_name), requests)
    with total, suppress(Late):
        answer = run_rounds(coordinator, transport, watch=broker).result
    carrying_s = max(total.spent_s - broker.spent_s - local.spent_s, 0.0)
    return SearchCosts(answer, tuple(exchanges), broker.spent_s, carrying_s)


def _total_seconds(measured: Clock, recorded: Clock | None) -> float:
    return measured.spent_s + (recorded.spent_s if recorded else 0.0)


class _RecordingTransport(FrameTransport):
    """Transport that records each request's kind and number of objects."""

    def __init__(
        self, exchange: Exchange, names: tuple[str, ...], log: list[tuple[str, int]]
    ) -> None:
        super().__init__(exchange, names)
        self._log = log

    def deliver(
        self, requests: Mapping[str, Message], *, reduce: Literal["gather", "sum"]
    ) -> Delivery:
        """Record the requests and send them."""
        n_requested = sum(int(np.sum(getattr(r, "count", 0))) for r in requests.values())
        self._log.append((type(next(iter(requests.values()))).__name__, n_requested))
        return super().deliver(requests, reduce=reduce)
