"""The broker's side of FedKNN: the algorithms of the paper as coordinators.

Each is sent the query as bytes and returns an :class:`Answer`. The order of objects is total, so
that every one of them gives the same answer to the last tie. All take ``allow_partial``: whether to
go on without a provider that is missing. Queries stay open at the providers until they are told
:func:`~fedneighbors.methods.fedknn._answers.farewell`, for which no answer has to wait.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np

from fedneighbors._typing import Floats
from fedneighbors.errors import ProtocolError
from fedneighbors.federation._roles import Coordinator, gather
from fedneighbors.methods.fedknn._answers import Answer, Roll, finished, joined, read_parts
from fedneighbors.methods.fedknn._claims import (
    require_bounds,
    require_bounds_kept,
    require_count_kept,
    require_objects_of_bounds,
)
from fedneighbors.methods.fedknn._estimates import shared_counts
from fedneighbors.methods.fedknn._messages import BoundRequest, CountRequest, NearestRequest
from fedneighbors.methods.fedknn.algorithm import (
    Part,
    halfway,
    merge,
    next_radius,
    remaining_counts,
)

Returned = tuple[dict[str, Part], dict[str, int]]

Estimate = Callable[[Mapping[str, Floats], int], Mapping[str, int]]
"""From the k lowest bounds of each provider to the number of objects to ask of it at first."""

_DOUBLINGS, _HALVINGS, _FEW_HALVINGS = 64, 64, 8


def baseline(
    query: bytes, k: int, *, name: str, allow_partial: bool = False
) -> Coordinator[Answer]:
    """Ask every provider for its k nearest and merge them (section 4.1).

    Parameters
    ----------
    query : bytes
        As providers decode it.
    k : int
        Neighbours, 1 or more.
    name : str
        Names the query at the providers, new for each.
    allow_partial : bool
        Leave out a provider that is missing, and say so in the answer. Otherwise
        :class:`~fedneighbors.errors.PartyMissing` is raised.
    """
    roll = Roll(allow_partial=allow_partial)
    replies = yield roll.ask(NearestRequest(name, query, k, None))
    parts, verified = read_parts(replies, "the nearest objects", roll=roll)
    return finished(parts, verified, k, algorithm="baseline", roll=roll)


def dann(
    query: bytes,
    k: int,
    *,
    name: str,
    at_least: int = 1,
    with_cutoff: bool = True,
    estimate: Estimate = shared_counts,
    allow_partial: bool = False,
) -> Coordinator[Answer]:
    """Find the k nearest objects in three exchanges (Algorithm 1).

    Parameters
    ----------
    query, k, name, allow_partial
        As for :func:`baseline`.
    at_least : int
        Floor of the first counts; ``ceil(k / m)`` is the option of Lemma 4.7.
    with_cutoff : bool
        Send the place of the k-th object found so far along in the second round.
    estimate : callable
        How the first counts follow from the bounds. The paper's are
        :func:`~fedneighbors.methods.fedknn.algorithm.expected_counts`.
    """
    roll = Roll(allow_partial=allow_partial)
    replies = yield roll.ask(BoundRequest(name, query, k))
    bounds = {
        provider: reply.bounds for provider, reply in roll.read(replies, "the lower bounds").items()
    }
    require_bounds(bounds, k)
    first = {
        provider: NearestRequest(name, query, max(count, at_least, 1), None)
        for provider, count in estimate(bounds, k).items()
    }
    found = read_parts((yield gather(first)), "the first round", roll=roll)
    parts, verified = yield from _completed(
        found, k, query=query, name=name, roll=roll, with_cutoff=with_cutoff
    )
    require_bounds_kept(parts, bounds, k=k)
    return finished(parts, verified, k, algorithm="dann", roll=roll)


def _completed(
    found: Returned, k: int, *, query: bytes, name: str, roll: Roll, with_cutoff: bool = True
) -> Coordinator[Returned]:
    """Ask for what may still be in the result (Algorithm 1, lines 15-24).

    Once is enough: of each provider the objects asked for reach the k-th place. Only if one of them
    is missing do others have to stand in for its objects.
    """
    parts, verified = found
    while True:
        parts = roll.left(parts)
        merged = merge(parts, k)
        more = remaining_counts(parts, merged, k)
        if not more:
            return parts, verified
        place = merged.place(k) if with_cutoff and len(merged.ids) >= k else (None, None)
        replies = yield gather(
            {
                provider: NearestRequest(name, query, count, *place)
                for provider, count in more.items()
            }
        )
        during, (cutoff, tie) = "the second round", place
        again, so_far = read_parts(replies, during, roll=roll, within=cutoff, tie=tie)
        parts, verified = joined(parts, again), verified | so_far


def hufu(
    query: bytes, k: int, *, name: str, step: float = 0.0, allow_partial: bool = False
) -> Coordinator[Answer]:
    """Find the smallest radius with k objects by range counts, then fetch what lies within.

    The extension of HuFu to any metric that the paper compares with (HuFu-Ext): a binary search
    over the radius, a range count of every provider at each step. The search ends when the radius
    holds k objects, or when no other radius is worth a count; what lies within is sorted and cut.

    Parameters
    ----------
    query, k, name, allow_partial
        As for :func:`baseline`.
    step : float
        Distances are multiples of it; 0 if they may be any number.
    """
    roll = Roll(allow_partial=allow_partial)
    tally = _Tally(query, name, roll)
    low, high = -1.0, math.inf
    if (yield from tally.within(math.inf)) > k:
        high = max(step, 1.0)
        while (yield from tally.within(high)) < min(k, tally.total(math.inf)):
            low = high
            high = 2 * high if high < 2.0**_DOUBLINGS else math.inf
        high = yield from _narrowed(tally, low, high, k=k, enough=k, step=step, most=_HALVINGS)
    return (yield from _fetched(tally, high, k, algorithm="hufu"))


def hufu_plus(
    query: bytes, k: int, *, name: str, step: float = 0.0, allow_partial: bool = False
) -> Coordinator[Answer]:
    """Count within ascending radii until one holds k objects, then fetch what lies within.

    The fairer competitor (HuFu-Ext+). The first radius is the k-th lowest of all lower bounds,
    which the k-th distance cannot be below; the next ones are a little larger each, so that little
    is verified beyond that distance, and sessions keep every verdict.

    Parameters
    ----------
    query, k, name, step, allow_partial
        As for :func:`hufu`.
    """
    roll = Roll(allow_partial=allow_partial)
    tally = _Tally(query, name, roll)
    replies = yield roll.ask(BoundRequest(name, query, k))
    bounds = {
        provider: reply.bounds for provider, reply in roll.read(replies, "the lower bounds").items()
    }
    require_bounds(bounds, k)
    lowest = np.sort(np.concatenate(list(bounds.values())))
    low, high = -1.0, math.inf
    if len(lowest) >= k:
        high = float(lowest[k - 1])
        radii = [high]
        while (yield from tally.within(high)) < min(k, sum(map(len, roll.left(bounds).values()))):
            if high == math.inf:
                require_objects_of_bounds(tally.held(high), bounds)
            counted = [(radius, tally.total(radius)) for radius in radii]  # by who is still there
            low, high = high, next_radius(counted, k, step=step)
            radii.append(high)
        most = _FEW_HALVINGS  # what lies within is verified by now: they save objects sent alone
        high = yield from _narrowed(tally, low, high, k=k, enough=2 * k, step=step, most=most)
    return (yield from _fetched(tally, high, k, algorithm="hufu+"))


class _Tally:
    """Range counts of one query, by radius and provider."""

    def __init__(self, query: bytes, name: str, roll: Roll) -> None:
        self.query, self.name, self.roll = query, name, roll
        self._counts: dict[float, dict[str, int]] = {}

    def within(self, radius: float) -> Coordinator[int]:
        """Count the objects of all that are present within a radius."""
        sent = radius if radius < math.inf else None
        replies = yield self.roll.ask(CountRequest(self.name, self.query, sent))
        each = self.roll.read(replies, "the counts")
        self._counts[radius] = {provider: reply.count for provider, reply in each.items()}
        for provider, count in self._counts[radius].items():
            self._require_ascent(provider, radius, count)
        return self.total(radius)

    def held(self, radius: float) -> dict[str, int]:
        """Return what each that is present had counted within a radius."""
        return self.roll.left(self._counts[radius])

    def total(self, radius: float) -> int:
        return sum(self.held(radius).values())

    def knows(self, radius: float) -> bool:
        return radius in self._counts

    def _require_ascent(self, provider: str, radius: float, count: int) -> None:
        for other, counts in self._counts.items():
            known = counts.get(provider, count)
            larger, smaller = (count, known) if other < radius else (known, count)
            if larger < smaller or count < 0:
                raise ProtocolError(
                    f"party {provider!r}: it counts fewer objects within a larger radius, or fewer "
                    "than none"
                )


def _narrowed(
    tally: _Tally, low: float, high: float, *, k: int, enough: int, step: float, most: int
) -> Coordinator[float]:
    """Halve between two radii until the larger holds ``enough`` objects at most."""
    for _ in range(most):
        middle = halfway(low, min(high, float(np.finfo(np.float64).max)), step=step)
        if tally.total(high) <= enough or middle is None:
            break
        if (yield from tally.within(middle)) >= k:
            high = middle
        else:
            low = middle
    return high


def _fetched(tally: _Tally, radius: float, k: int, *, algorithm: str) -> Coordinator[Answer]:
    """Fetch what lies within a radius that holds k objects, and all if none does."""
    if not tally.knows(radius):
        yield from tally.within(radius)
    roll, cutoff = tally.roll, radius if radius < math.inf else None
    replies = yield gather(
        {  # one more than there are, so that the end is seen
            provider: NearestRequest(tally.name, tally.query, count + 1, cutoff)
            for provider, count in tally.held(radius).items()
        }
    )
    found = read_parts(replies, "the objects within the radius", roll=roll, within=cutoff)
    for provider, part in found[0].items():
        require_count_kept(provider, part, tally.held(radius)[provider])
    parts, verified = yield from _completed(found, k, query=tally.query, name=tally.name, roll=roll)
    return finished(parts, verified, k, algorithm=algorithm, roll=roll)
