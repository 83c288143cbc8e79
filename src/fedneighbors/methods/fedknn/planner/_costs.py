"""What a federation costs: sample queries at its providers, and the links to them."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from fedneighbors.federation._loop import Outcome
from fedneighbors.federation._messages import Message
from fedneighbors.federation._roles import Coordinator, gather
from fedneighbors.methods.fedknn.planner._messages import EchoRequest, SampleReply, SampleRequest

R = TypeVar("R")

_N_ECHOES = 3
_ECHOED = 1 << 18  # 0.1 s at 20 Mbit/s
_LIMIT_S = 10.0


class Federation(Protocol):
    """Whoever can run a coordinator, such as :class:`~fedneighbors.federation.Connected`."""

    def run(self, coordinator: Coordinator[R]) -> Outcome[R]:
        """Drive a coordinator to its end."""
        ...


@dataclass(frozen=True)
class LinkCost:
    """What the way to a provider and back costs.

    Parameters
    ----------
    round_trip_s : float
        Seconds of an exchange of next to nothing, with all that a runtime adds.
    download_s, upload_s : float
        Seconds for each byte to and from the provider.
    """

    round_trip_s: float
    download_s: float = 0.0
    upload_s: float = 0.0

    def seconds(self, *, download_bytes: int, upload_bytes: int) -> float:
        """Return the seconds of one exchange on the link."""
        return self.round_trip_s + download_bytes * self.download_s + upload_bytes * self.upload_s


@dataclass(frozen=True)
class Costs:
    """What was measured.

    Parameters
    ----------
    k : int
        Objects that the samples searched for.
    samples : tuple of mapping of str to SampleReply
        For each sample query what each provider found, and when.
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
    federation: Federation,
    queries: Sequence[bytes],
    k: int,
    *,
    limit_s: float = _LIMIT_S,
    apart: bool = False,
) -> Costs:
    """Measure links by echoes and local search by sample queries (section 5 of the paper).

    A sample costs each provider what the baseline costs it, its bounds, and one nearest object.
    Providers return the names and distances of their nearest objects and the time of each step,
    nothing of what was asked of others.

    Parameters
    ----------
    federation : Federation
        The providers; :func:`~fedneighbors.federation.connected` yields one.
    queries : sequence of bytes
        Sample queries as providers decode them, like those to come. The first is also asked
        beforehand for one object, so that nothing is measured that happens once only.
    k : int
        Neighbours, 1 or more; plans for fewer follow from the same samples.
    limit_s : float
        Seconds that a sample may take a provider.
    apart : bool
        Ask the providers one after another. Those that share a machine then do not slow one
        another, and each link is measured by itself; it takes as many times the round trips.

    Raises
    ------
    ValueError
        If there is no query, or k or the limit is out of range.
    PartyMissing, PartyRefused, WireError, ProtocolError
        If a provider does not answer as it should.
    """
    if not queries:
        raise ValueError("expected at least one sample query")
    if isinstance(k, bool) or k < 1:
        raise ValueError(f"expected k of 1 or more, got {k!r}")
    if not 0 < limit_s < math.inf:
        raise ValueError(f"expected limit_s above 0, got {limit_s!r}")
    warm = federation.run(_asked(SampleRequest(queries[0], 1, limit_s))).result
    groups = [[name] for name in warm] if apart else [list(warm)]
    links: dict[str, LinkCost] = {}
    for group in groups:
        links |= dict.fromkeys(group, _link(federation, group))
    samples = []
    for query in queries:
        request = SampleRequest(query, k, limit_s)
        found: dict[str, SampleReply] = {}
        for group in groups:
            found |= federation.run(_asked(dict.fromkeys(group, request))).result
        samples.append(found)
    return Costs(k=k, samples=tuple(samples), links=links, limit_s=limit_s)


def _asked(requests: Message | Mapping[str, Message]) -> Coordinator[dict[str, SampleReply]]:
    replies = yield gather(requests)
    return dict(replies.complete("the samples").each)


def _link(federation: Federation, names: Sequence[str]) -> LinkCost:
    """Return the cost of asking some providers at once."""
    small_s = _echo_s(federation, names, EchoRequest(b"", 0))
    down_s = _echo_s(federation, names, EchoRequest(bytes(_ECHOED), 0))
    up_s = _echo_s(federation, names, EchoRequest(b"", _ECHOED))
    return LinkCost(
        round_trip_s=small_s,
        download_s=max(down_s - small_s, 0.0) / _ECHOED,
        upload_s=max(up_s - small_s, 0.0) / _ECHOED,
    )


def _echo_s(federation: Federation, names: Sequence[str], request: EchoRequest) -> float:
    outcome = federation.run(_echoed(dict.fromkeys(names, request)))
    return statistics.median(record.seconds for record in outcome.rounds)


def _echoed(requests: Mapping[str, Message]) -> Coordinator[None]:
    for _ in range(_N_ECHOES):
        (yield gather(requests)).complete("the echoes")
