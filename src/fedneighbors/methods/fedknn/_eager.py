"""Search in which providers verify objects before they know how many are needed.

A provider returns objects in order until a time budget is spent, and the *closed place*: the
distance and tie key up to which it has returned all its objects. The broker asks again only where
the closed place is before the k-th object found so far. Bounds are derived in ``PAPER.md``.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist

from fedneighbors.federation._loop import Coordinator, gather
from fedneighbors.federation._messages import message
from fedneighbors.methods.fedknn.algorithm import LAST_TIE, Part, merge, remaining_counts
from fedneighbors.methods.fedknn.protocol import (
    ActiveProviders,
    Answer,
    NearestReply,
    NearestRequest,
    certify_answer,
    join_parts,
)

MIN_BUDGET_S = 0.03
"""Minimum time budget of the first exchange: an interrupted search has a cost, too."""

_GROWTH = 0.5  # budget over the sum of earlier ones; the bounds in PAPER.md depend on it
_TICK_S = 1e-3  # minimum budget, so that budgets grow
_MAX_BUDGET_S = 3600.0  # larger budgets are unlimited, so that no clock can prevent the end
_RISK = 0.05  # probability that "enough" objects of some provider do not suffice


@message
class EagerRequest(NearestRequest):
    """Request for the next ``count`` objects, or those found within a time budget.

    ``budget_s`` is None for no limit. After ``grace_s`` seconds, ``enough`` objects suffice; None
    for ``count``.
    """

    budget_s: float | None = None
    enough: int | None = None
    grace_s: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.budget_s or 0, self.grace_s) < 0 or (
            self.enough is not None and self.enough < 1
        ):
            raise ValueError(
                "expected seconds of 0 or more, and enough of 1 or more, got "
                f"{self.budget_s}, {self.grace_s} and {self.enough}"
            )

    def check(self, party: str, reply: NearestReply) -> None:
        """Raise for an invalid number of objects, or objects beyond the cutoff."""
        if self.budget_s is None and self.enough is None:
            super().check(party, reply)
        elif len(reply.ids) > self.count:
            raise ValueError(f"expected at most {self.count} objects, got {len(reply.ids)}")
        elif self.cutoff is not None and (reply.distances > self.cutoff).any():
            raise ValueError(f"an object is beyond the cutoff of {self.cutoff}")

    def close(self, reply: NearestReply) -> tuple[float, int]:
        """Return the place up to which all objects were returned."""
        place = math.nextafter(reply.frontier, -math.inf), LAST_TIE
        if len(reply.ids):
            place = max(place, (float(reply.distances[-1]), int(reply.ties[-1])))
        if not reply.exhausted:
            return place
        if self.cutoff is None:
            return math.inf, LAST_TIE
        return max(place, (self.cutoff, LAST_TIE if self.tie is None else self.tie))


@dataclass(frozen=True)
class Pace:
    """Time limits of the exchanges of :func:`eager`.

    Parameters
    ----------
    budget_s : float
        Time budget of the first exchange; infinity for no limit.
    grows : bool
        Later exchanges have growing budgets. Otherwise they have none, so that there are at most
        two.
    enough : mapping of str to int, optional
        Number of objects of each provider that suffices in the first exchange; None for k.
    grace_s : float
        Seconds in which more than ``enough`` objects are searched.
    """

    budget_s: float = MIN_BUDGET_S
    grows: bool = True
    enough: Mapping[str, int] | None = None
    grace_s: float = 0.0

    @classmethod
    def for_link(cls, round_trip_s: float, enough: Mapping[str, int] | None) -> "Pace":
        """Return the limits for the round trip of a link.

        The budget was chosen by replays on generated graphs and genomes, see PAPER.md. The grace is
        the expected cost of another exchange, which more objects than ``enough`` avoid.
        """
        return cls(max(2 * round_trip_s, MIN_BUDGET_S), enough=enough, grace_s=_RISK * round_trip_s)

    def next_budget(self, spent_s: float) -> float:
        """Return the budget that follows budgets with the sum ``spent_s``."""
        if not self.grows:
            return math.inf
        return max(self.budget_s, _GROWTH * spent_s, _TICK_S)


DEFAULT_PACE = Pace()


def count_enough(sizes: Mapping[str, int], k: int) -> dict[str, int]:
    """Compute the number of objects of each provider that probably suffices.

    If objects are distributed at random, no provider has as many among the k nearest, except with
    a probability of 5 %. The binomial distribution is approximated by a normal one.

    Parameters
    ----------
    sizes : mapping of str to int
        Number of objects of each provider.
    k : int
        Number of neighbours, 1 or more.

    Examples
    --------
    >>> count_enough({"north": 900, "south": 100}, 16)
    {'north': 16, 'south': 5}
    """
    deviations = NormalDist().inv_cdf(1 - _RISK / max(len(sizes), 1))
    total = max(sum(sizes.values()), 1)
    shares = {provider: n / total for provider, n in sizes.items()}
    return {
        provider: min(k, math.ceil(k * p + deviations * math.sqrt(k * p * (1 - p))) + 1)
        for provider, p in shares.items()
    }


def eager(
    query: bytes, k: int, *, name: str, pace: Pace = DEFAULT_PACE, allow_partial: bool = False
) -> Coordinator[Answer]:
    """Find the k nearest objects in exchanges with time budgets.

    The answer does not depend on times; only the number of exchanges does.

    Parameters
    ----------
    query, k, name, allow_partial
        As for :func:`~fedneighbors.methods.fedknn.protocol.baseline`.
    pace : Pace
        Time limits of the exchanges.
    """
    active = ActiveProviders(allow_partial=allow_partial)
    parts: dict[str, Part] = {}
    verified: dict[str, int] = {}
    budget_s = spent_s = pace.budget_s
    request = EagerRequest(name, query, k, None, None, _limit(budget_s), grace_s=pace.grace_s)
    requests = {
        provider: replace(request, enough=enough if enough < k else None)
        for provider, enough in (pace.enough or {}).items()
    }
    ask = gather(requests) if requests else active.ask(request)
    while True:
        each = active.read((yield ask), "the nearest objects")
        more = {p: _read_part(requests.get(p, request), reply) for p, reply in each.items()}
        verified |= {provider: reply.n_verified for provider, reply in each.items()}
        parts = active.select(join_parts(parts, more))
        merged = merge(parts, k)
        remaining = remaining_counts(parts, merged, k)
        if not remaining:
            return certify_answer(parts, verified, k, algorithm="eager", active=active)
        distance, tie = merged.sort_key(k)
        has_cutoff = distance < math.inf
        budget_s = pace.next_budget(spent_s)
        # further objects could only change the order of ties, not the distance of the k-th
        if all(math.nextafter(parts[p].cutoff, math.inf) >= distance for p in remaining):
            budget_s = math.inf
        spent_s += budget_s
        requests = {
            provider: EagerRequest(
                name,
                query,
                n,
                distance if has_cutoff else None,
                tie if has_cutoff else None,
                _limit(budget_s),
            )
            for provider, n in remaining.items()
        }
        ask = gather(requests)


def _limit(budget_s: float) -> float | None:
    return budget_s if budget_s <= _MAX_BUDGET_S else None


def _read_part(request: EagerRequest, reply: NearestReply) -> Part:
    """Return the objects of a reply, exhausted up to its closed place."""
    place = request.close(reply)
    return Part(reply.distances, reply.ties, reply.ids, True, reply.exact, *place)
