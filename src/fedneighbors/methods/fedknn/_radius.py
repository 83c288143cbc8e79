"""Searches by radius: HuFu, its extension, and range queries.

A coordinator counts what lies within radii until one holds enough, then fetches it. Each takes a
query as :mod:`~fedneighbors.methods.fedknn.protocol` does.
"""

import math
from collections.abc import Sequence

import numpy as np

from fedneighbors.errors import ProtocolError
from fedneighbors.federation._loop import Coordinator, gather
from fedneighbors.methods.fedknn.algorithm import (
    merge,
    require_count_kept,
    require_objects_of_bounds,
)
from fedneighbors.methods.fedknn.protocol import (
    Answer,
    NearestRequest,
    RangeCountRequest,
    Returned,
    Roll,
    answer_of,
    ask_bounds,
    completed,
    finished,
    read_parts,
)

_DOUBLINGS, _HALVINGS, _FEW_HALVINGS = 64, 64, 8

_FINEST = 2.0**-40
"""Radii that differ by less in proportion are one."""

_DIMENSION = 16.0
"""Power of the radius by which counts are taken to grow before two of them tell."""

_LEAST_GROWTH, _MOST_GROWTH, _SMALL_STEPS = 1 / 32, 1 / 2, 64


def hufu(
    query: bytes, k: int, *, name: str, step: float = 0.0, allow_partial: bool = False
) -> Coordinator[Answer]:
    """Find the smallest radius with k objects by counts, then fetch.

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
    """Count within ascending radii until k objects lie within; then fetch.

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
    bounds = yield from ask_bounds(query, k, name=name, roll=roll)
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
        most = (
            _FEW_HALVINGS  # all objects within are verified by now, so this saves only objects sent
        )
        high = yield from _narrowed(tally, low, high, k=k, enough=2 * k, step=step, most=most)
    return (yield from _fetched(tally, high, k, algorithm="hufu+"))


def within(
    query: bytes, radius: float, *, name: str, allow_partial: bool = False
) -> Coordinator[Answer]:
    """Find all objects within a distance of the query.

    Each provider is asked for as many objects as it says that it holds there; it learns nothing of
    the others.

    Parameters
    ----------
    query : bytes
        As providers decode it.
    radius : float
        0 or more, in the unit of the metric; objects at this very distance count.
    name : str
        Names the query at the providers, new for each.
    allow_partial : bool
        Leave out a provider that is missing, and say so in the answer.

    Raises
    ------
    PartyMissing
        If a provider is missing and must not be.
    ProtocolError
        If a provider returns less than it counted, or breaks the protocol in another way.
    """
    tally = _Tally(query, name, Roll(allow_partial=allow_partial))
    yield from tally.within(radius)
    parts, verified = yield from _objects_within(tally, radius)
    merged = merge(parts, sum(map(len, parts.values())))
    return answer_of(parts, verified, merged, algorithm="radius", roll=tally.roll)


class _Tally:
    """Range counts of one query, by radius and provider."""

    def __init__(self, query: bytes, name: str, roll: Roll) -> None:
        self.query, self.name, self.roll = query, name, roll
        self._counts: dict[float, dict[str, int]] = {}

    def within(self, radius: float) -> Coordinator[int]:
        """Count the objects of all that are present within a radius."""
        sent = radius if radius < math.inf else None
        replies = yield self.roll.ask(RangeCountRequest(self.name, self.query, sent))
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
    """Fetch all objects within a radius that holds k.

    Fetches all objects if no radius holds k.
    """
    if not tally.knows(radius):
        yield from tally.within(radius)
    found = yield from _objects_within(tally, radius)
    parts, verified = yield from completed(
        found, k, query=tally.query, name=tally.name, roll=tally.roll
    )
    return finished(parts, verified, k, algorithm=algorithm, roll=tally.roll)


def _objects_within(tally: _Tally, radius: float) -> Coordinator[Returned]:
    """Fetch all objects within a radius in which providers have counted theirs."""
    cutoff = radius if radius < math.inf else None
    replies = yield gather(
        {  # one more than there are, so that the end is seen
            provider: NearestRequest(tally.name, tally.query, count + 1, cutoff)
            for provider, count in tally.held(radius).items()
        }
    )
    found = read_parts(replies, "the objects within the radius", roll=tally.roll, within=cutoff)
    for provider, part in found[0].items():
        require_count_kept(provider, part, tally.held(radius)[provider])
    return found


def halfway(low: float, high: float, *, step: float = 0.0) -> float | None:
    """Return a radius between two, or None if not worthwhile.

    Parameters
    ----------
    low, high : float
        Too few objects lie within the one, enough within the other. A negative one holds none.
    step : float
        Distances are multiples of it; 0 if they may be any number.

    Examples
    --------
    >>> halfway(0.0, 8.0), halfway(2.0, 5.0, step=1.0), halfway(2.0, 3.0, step=1.0)
    (4.0, 3.0, None)
    """
    if low < 0:
        middle = 0.0
    elif step > 0:
        middle = step * float(np.floor((low / 2 + high / 2) / step))
    elif low > 0 and high > 4 * low:
        middle = math.sqrt(low) * math.sqrt(high)
    else:
        middle = low / 2 + high / 2
    if not low < middle < high or high - low < _FINEST * high:
        return None
    return middle


def next_radius(counted: Sequence[tuple[float, int]], wanted: int, *, step: float = 0.0) -> float:
    """Return a slightly larger radius with few surplus objects.

    Multiples of ``step`` follow one another. Where distances may be any number, the last two counts
    tell how fast counts grow with the radius, and the next is to reach what is wanted, within
    bounds. After many steps they double, so that there is an end.

    Parameters
    ----------
    counted : sequence of (radius, count)
        Known counts, ascending; at least one.
    wanted : int
        Objects that the radius must hold.
    step : float
        Distances are multiples of it; 0 if they may be any number.

    Examples
    --------
    >>> next_radius([(3.0, 7)], 10, step=1.0)
    4.0
    >>> next_radius([(1.0, 10), (1.25, 20)], 40)
    1.5625
    """
    radius, count = counted[-1]
    if step > 0:
        grown = radius + step
    elif radius <= 0:
        grown = 1.0  # nothing tells the scale
    else:
        grown = radius * _growth(counted, max(wanted / max(count, 1), 1.0))
    if len(counted) > _SMALL_STEPS:
        grown = max(grown, 2 * radius)
    return max(grown, float(np.nextafter(radius, math.inf)))


def _growth(counted: Sequence[tuple[float, int]], lacking: float) -> float:
    """Return the radius factor that multiplies counts by ``lacking``."""
    growth = lacking ** (1 / _DIMENSION)
    if len(counted) > 1 and counted[-2][0] > 0:
        (shorter, fewer), (longer, more) = counted[-2:]
        if more == fewer:  # nothing is near: go faster
            growth = (longer / shorter) ** 2
        elif longer > shorter and fewer > 0:
            steepness = math.log(more / fewer) / math.log1p((longer - shorter) / shorter)
            growth = lacking ** (1 / max(steepness, 1.0))
    return float(min(max(growth, 1 + _LEAST_GROWTH), 1 + _MOST_GROWTH))
