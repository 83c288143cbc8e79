"""Measured costs of a federation: sample queries at its providers, echoes over its links."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedneighbors._typing import Floats, Integers
from fedneighbors.federation._inprocess import ConnectedParties
from fedneighbors.federation._loop import Coordinator, gather
from fedneighbors.federation._messages import Message, message
from fedneighbors.methods.fedknn.algorithm import check_query
from fedneighbors.methods.fedknn.metrics._sessions import Session
from fedneighbors.methods.fedknn.protocol import check_ascending, check_objects

MAX_ECHO_BYTES = 1 << 24
"""Maximum number of bytes that a party may be asked to send; limits its memory."""

_N_ECHOES = 3  # the median ignores one outlier
_ECHO_BYTES = 1 << 18  # 0.1 s at 20 Mbit/s
_LIMIT_S = 10.0  # default time limit of a sample
MAX_LIMIT_S = 600.0


@message
class EchoReply:
    """The requested number of bytes."""

    payload: bytes


@message
class EchoRequest:
    """Request for ``n_bytes`` bytes; its own ``payload`` measures the other direction."""

    reply: ClassVar[type] = EchoReply
    payload: bytes
    n_bytes: int

    def __post_init__(self) -> None:
        if not 0 <= self.n_bytes <= MAX_ECHO_BYTES:
            raise ValueError(f"expected 0 to {MAX_ECHO_BYTES} bytes, got {self.n_bytes}")

    def check(self, party: str, reply: EchoReply) -> None:  # noqa: ARG002 - passed by runtimes
        """Raise for an echo of another length."""
        if len(reply.payload) != self.n_bytes:
            raise ValueError(f"expected {self.n_bytes} bytes, got {len(reply.payload)}")


@message
class SampleReply:
    """Result of a sample query at one provider, with the time of each step.

    Objects are in the order of a :class:`~fedneighbors.methods.fedknn.protocol.NearestReply`; the
    ``bounds`` are the k lowest, ascending. ``exhausted`` is true if the provider has no other
    objects, ``complete`` if it found all requested ones within the time limit.

    Seconds: ``open_s`` to open a session; ``bounds_s`` to compute its bounds; ``reached_s[i]`` from
    then until ``steps[i]`` objects are found (1, 2, 4 and so on, ascending); ``first_s`` to the
    first object in a session without bounds, 0 if not measured.
    """

    bounds: Floats
    distances: Floats
    ties: Integers
    ids: tuple[str, ...]
    exhausted: bool
    exact: bool
    complete: bool
    open_s: float
    bounds_s: float
    first_s: float
    steps: Integers
    reached_s: Floats

    def __post_init__(self) -> None:
        check_objects(self.distances, self.ties, self.ids)
        check_ascending("bounds", self.bounds)
        check_ascending("seconds", self.reached_s)
        check_ascending("seconds", np.sort([self.open_s, self.bounds_s, self.first_s]))
        if self.steps.shape != self.reached_s.shape:
            raise ValueError("steps and their seconds differ in number")
        if (np.diff(self.steps, prepend=0) <= 0).any() or (self.steps > len(self.ids)).any():
            raise ValueError("steps do not ascend, or are above the number of objects")


@message
class SampleRequest:
    """Request for a timed search of the ``k`` nearest objects of a query.

    The search ends after ``limit_s`` seconds with the objects found so far.
    """

    reply: ClassVar[type] = SampleReply
    query: bytes
    k: int
    limit_s: float

    def __post_init__(self) -> None:
        check_query(self.query, k=self.k)
        if not 0 < self.limit_s <= MAX_LIMIT_S:
            raise ValueError(f"expected a limit of up to {MAX_LIMIT_S} s, got {self.limit_s}")

    def check(self, party: str, reply: SampleReply) -> None:  # noqa: ARG002 - passed by runtimes
        """Raise for more objects or bounds than requested."""
        if max(len(reply.ids), len(reply.bounds)) > self.k:
            raise ValueError(f"expected at most {self.k} objects and bounds, got more")


def sample(
    open_session: Callable[[], Session],
    request: SampleRequest,
    *,
    ties: Integers,
    ids: Sequence[str],
) -> SampleReply:
    """Search for the k nearest by doubling steps; return the times.

    A first session computes the bounds, then searches for k objects. A second one searches for one
    object without computing bounds: if this takes longer, the bounds had done part of the search.

    Parameters
    ----------
    open_session : callable
        Function that opens a session of the query.
    request : SampleRequest
        Query and time limit.
    ties : int64 array of shape (n_objects,)
        Tie key of each object.
    ids : sequence of str
        Name of each object.
    """
    start = time.perf_counter()
    end = start + request.limit_s
    session = open_session()
    open_time = time.perf_counter()
    bounds = np.sort(session.bounds())[: request.k]
    bounds_time = time.perf_counter()
    positions, distances = np.empty(0, np.int64), np.empty(0)
    steps, reached_s = [], []
    exhausted = complete = False
    for step in _doubling_steps(request.k):
        n_wanted = step - len(positions)
        batch = session.next(n_wanted, deadline_s=max(end - time.perf_counter(), 0.0))
        seconds = time.perf_counter() - bounds_time
        # an approximate index certifies nothing, but emits no object twice
        n = batch.n_certified if session.exact else len(batch.positions)
        positions = np.concatenate([positions, batch.positions[:n]])
        distances = np.concatenate([distances, batch.distances[:n]])
        exhausted = batch.exhausted and n == len(batch.positions)
        complete = exhausted or n == n_wanted
        if complete and n:
            steps.append(len(positions))
            reached_s.append(seconds)
        if exhausted or not complete:
            break
    return SampleReply(
        bounds=np.ascontiguousarray(bounds),
        distances=distances,
        ties=ties[positions],
        ids=tuple(ids[position] for position in positions.tolist()),
        exhausted=exhausted,
        exact=session.exact,
        complete=complete,
        open_s=open_time - start,
        bounds_s=bounds_time - open_time,
        first_s=_time_first(open_session, end) if complete else 0.0,
        steps=np.array(steps, np.int64),
        reached_s=np.array(reached_s, np.float64),
    )


def _doubling_steps(k: int) -> Iterator[int]:
    """Yield 1, 2, 4 and so on, and finally k."""
    step = 1
    while step < k:
        yield step
        step *= 2
    yield k


def _time_first(open_session: Callable[[], Session], end: float) -> float:
    session = open_session()
    start = time.perf_counter()
    session.next(1, deadline_s=max(end - start, 0.0))
    return time.perf_counter() - start


@dataclass(frozen=True)
class LinkCost:
    """Cost of a round trip to a provider.

    Parameters
    ----------
    round_trip_s : float
        Seconds of an almost empty exchange, including the runtime's overhead.
    download_s, upload_s : float
        Seconds per byte to and from the provider.
    """

    round_trip_s: float
    download_s: float = 0.0
    upload_s: float = 0.0

    def seconds(self, *, download_bytes: int, upload_bytes: int) -> float:
        """Return the seconds that one exchange spends on the link."""
        return self.round_trip_s + download_bytes * self.download_s + upload_bytes * self.upload_s


@dataclass(frozen=True)
class Costs:
    """Measured costs of a federation.

    Parameters
    ----------
    k : int
        Number of objects requested in the samples.
    samples : tuple of mapping of str to SampleReply
        For each sample query, the reply of each provider.
    links : mapping of str to LinkCost
        The link to each provider.
    limit_s : float
        Time limit of a sample.
    """

    k: int
    samples: tuple[Mapping[str, SampleReply], ...]
    links: Mapping[str, LinkCost]
    limit_s: float = _LIMIT_S


def measure(
    federation: ConnectedParties,
    queries: Sequence[bytes],
    k: int,
    *,
    limit_s: float = _LIMIT_S,
    sequential: bool = False,
) -> Costs:
    """Measure links by echoes and local search by sample queries.

    Section 5 of the paper.

    For each sample a provider computes its bounds, its k nearest objects and, in a second session,
    its nearest object. Providers return the names and distances of their nearest objects and the
    time of each step; they learn nothing about the other providers.

    Parameters
    ----------
    federation : ConnectedParties
        The providers, from :func:`~fedneighbors.federation.connected`.
    queries : sequence of bytes
        Sample queries as bytes for providers, similar to future ones. The first one is run for one
        object beforehand, so that one-time costs are not measured.
    k : int
        Number of neighbours, 1 or more; plans for fewer use the same samples.
    limit_s : float
        Time limit per sample and provider, in seconds.
    sequential : bool
        Measure one provider after the other. Providers on the same machine then do not slow each
        other down, and each link is measured separately, but this takes more round trips.

    Raises
    ------
    ValueError
        If there is no query, or k or the limit is out of range.
    PartyMissing, PartyRefused, WireError, ProtocolError
        If a provider does not reply correctly.
    """
    if not queries:
        raise ValueError("expected at least one sample query")
    if isinstance(k, bool) or k < 1:
        raise ValueError(f"expected k of 1 or more, got {k!r}")
    if not 0 < limit_s <= MAX_LIMIT_S:
        raise ValueError(f"expected limit_s above 0, up to {MAX_LIMIT_S}, got {limit_s!r}")
    first = federation.run(_ask_samples(SampleRequest(queries[0], 1, limit_s))).result
    groups = [[name] for name in first] if sequential else [list(first)]
    links: dict[str, LinkCost] = {}
    for group in groups:
        links |= dict.fromkeys(group, _measure_link(federation, group))
    samples = []
    for query in queries:
        request = SampleRequest(query, k, limit_s)
        replies: dict[str, SampleReply] = {}
        for group in groups:
            replies |= federation.run(_ask_samples(dict.fromkeys(group, request))).result
        samples.append(replies)
    return Costs(k=k, samples=tuple(samples), links=links, limit_s=limit_s)


def _ask_samples(requests: Message | Mapping[str, Message]) -> Coordinator[dict[str, SampleReply]]:
    replies = yield gather(requests)
    return dict(replies.complete("the samples").each)


def _measure_link(federation: ConnectedParties, names: Sequence[str]) -> LinkCost:
    """Measure the cost of an exchange with several providers at once."""
    small_s = _time_echoes(federation, names, EchoRequest(b"", 0))
    down_s = _time_echoes(federation, names, EchoRequest(bytes(_ECHO_BYTES), 0))
    up_s = _time_echoes(federation, names, EchoRequest(b"", _ECHO_BYTES))
    return LinkCost(
        round_trip_s=small_s,
        download_s=max(down_s - small_s, 0.0) / _ECHO_BYTES,
        upload_s=max(up_s - small_s, 0.0) / _ECHO_BYTES,
    )


def _time_echoes(federation: ConnectedParties, names: Sequence[str], request: EchoRequest) -> float:
    outcome = federation.run(_echo(dict.fromkeys(names, request)))
    return statistics.median(record.seconds for record in outcome.rounds)


def _echo(requests: Mapping[str, Message]) -> Coordinator[None]:
    for _ in range(_N_ECHOES):
        (yield gather(requests)).complete("the echoes")
