"""Searches by radius: HuFu, its extension, and range queries.

A coordinator counts the objects within radii until one has enough, then fetches these objects. Each
takes a query as in :mod:`~fedneighbors.methods.fedknn.protocol`.
"""

import math
from collections.abc import Sequence

import numpy as np

from fedneighbors.errors import ProtocolError
from fedneighbors.federation._loop import Coordinator, gather
from fedneighbors.methods.fedknn.algorithm import (
    check_count,
    check_total_counts,
    merge,
)
from fedneighbors.methods.fedknn.protocol import (
    Answer,
    NearestRequest,
    RangeCountRequest,
    Returned,
    Roll,
    ask_bounds,
    build_answer,
    certify_answer,
    read_parts,
    second_round,
)

_DOUBLINGS, _HALVINGS, _FEW_HALVINGS = 64, 64, 8

_FINEST = 2.0**-40
"""Relative difference below which two radii are considered equal."""

_DIMENSION = 16.0
"""Assumed power of the radius by which counts grow, before two counts are known."""

_MIN_GROWTH, _MAX_GROWTH, _SMALL_STEPS = 1 / 32, 1 / 2, 64


def hufu(
    query: bytes, k: int, *, name: str, step: float = 0.0, allow_partial: bool = False
) -> Coordinator[Answer]:
    """Find the smallest radius with k objects by counts, then fetch.

    The extension of HuFu to any metric in the paper's comparison (HuFu-Ext): a binary search over
    the radius, with a range count of every provider at each step. The search ends when the radius
    has exactly k objects, or when no other radius is worth a count; the fetched objects are sorted
    and truncated.

    Parameters
    ----------
    query, k, name, allow_partial
        As for :func:`baseline`.
    step : float
        Unit of the distances, which are multiples of it; 0 for any number.
    """
    roll = Roll(allow_partial=allow_partial)
    tally = _Tally(query, name, roll)
    low, high = -1.0, math.inf
    if (yield from tally.within(math.inf)) > k:
        high = max(step, 1.0)
        while (yield from tally.within(high)) < min(k, tally.total(math.inf)):
            low = high
            high = 2 * high if high < 2.0**_DOUBLINGS else math.inf
        high = yield from _bisect(tally, low, high, k=k, enough=k, step=step, most=_HALVINGS)
    return (yield from _fetch(tally, high, k, algorithm="hufu"))


def hufu_plus(
    query: bytes, k: int, *, name: str, step: float = 0.0, allow_partial: bool = False
) -> Coordinator[Answer]:
    """Count within ascending radii until there are k objects; then fetch.

    A stronger competitor (HuFu-Ext+). The first radius is the k-th lowest of all lower bounds,
    which cannot exceed the k-th distance. Each following radius is slightly larger, so that few
    objects beyond that distance are verified, and sessions keep their results.

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
                check_total_counts(tally.present_counts(high), bounds)
            counted = [(radius, tally.total(radius)) for radius in radii]  # over present providers
            low, high = high, next_radius(counted, k, step=step)
            radii.append(high)
        most = (
            _FEW_HALVINGS  # all objects within are verified already: this only saves sending some
        )
        high = yield from _bisect(tally, low, high, k=k, enough=2 * k, step=step, most=most)
    return (yield from _fetch(tally, high, k, algorithm="hufu+"))


def within(
    query: bytes, radius: float, *, name: str, allow_partial: bool = False
) -> Coordinator[Answer]:
    """Find all objects within a distance of the query.

    Each provider is asked for the number of objects that it counted there; it learns nothing about
    the others.

    Parameters
    ----------
    query : bytes
        Query as bytes for providers.
    radius : float
        Radius, 0 or more, in the unit of the metric; objects at exactly this distance count.
    name : str
        Unique name of the query at the providers.
    allow_partial : bool
        Leave out a missing provider, and report it in the answer.

    Raises
    ------
    PartyMissing
        If a provider is missing and partial answers are not allowed.
    ProtocolError
        If a provider returns fewer objects than it counted, or violates the protocol in another
        way.
    """
    tally = _Tally(query, name, Roll(allow_partial=allow_partial))
    yield from tally.within(radius)
    parts, verified = yield from _objects_within(tally, radius)
    merged = merge(parts, sum(map(len, parts.values())))
    return build_answer(parts, verified, merged, algorithm="radius", roll=tally.roll)


class _Tally:
    """Range counts of one query, by radius and provider."""

    def __init__(self, query: bytes, name: str, roll: Roll) -> None:
        self.query, self.name, self.roll = query, name, roll
        self._counts: dict[float, dict[str, int]] = {}

    def within(self, radius: float) -> Coordinator[int]:
        """Count the objects of all present providers within a radius."""
        sent = radius if radius < math.inf else None
        replies = yield self.roll.ask(RangeCountRequest(self.name, self.query, sent))
        each = self.roll.read(replies, "the counts")
        self._counts[radius] = {provider: reply.count for provider, reply in each.items()}
        for provider, count in self._counts[radius].items():
            self._check_ascending(provider, radius, count)
        return self.total(radius)

    def present_counts(self, radius: float) -> dict[str, int]:
        """Return the counts of the present providers within a radius."""
        return self.roll.left(self._counts[radius])

    def total(self, radius: float) -> int:
        return sum(self.present_counts(radius).values())

    def knows(self, radius: float) -> bool:
        return radius in self._counts

    def _check_ascending(self, provider: str, radius: float, count: int) -> None:
        for other, counts in self._counts.items():
            known = counts.get(provider, count)
            larger, smaller = (count, known) if other < radius else (known, count)
            if larger < smaller or count < 0:
                raise ProtocolError(
                    f"party {provider!r}: it counts fewer objects within a larger radius, or a "
                    "negative number"
                )


def _bisect(
    tally: _Tally, low: float, high: float, *, k: int, enough: int, step: float, most: int
) -> Coordinator[float]:
    """Halve between two radii until the larger has ``enough`` objects."""
    for _ in range(most):
        middle = halfway(low, min(high, float(np.finfo(np.float64).max)), step=step)
        if tally.total(high) <= enough or middle is None:
            break
        if (yield from tally.within(middle)) >= k:
            high = middle
        else:
            low = middle
    return high


def _fetch(tally: _Tally, radius: float, k: int, *, algorithm: str) -> Coordinator[Answer]:
    """Fetch all objects within a radius with at least k objects.

    Fetch all objects if there is no such radius.
    """
    if not tally.knows(radius):
        yield from tally.within(radius)
    found = yield from _objects_within(tally, radius)
    parts, verified = yield from second_round(
        found, k, query=tally.query, name=tally.name, roll=tally.roll
    )
    return certify_answer(parts, verified, k, algorithm=algorithm, roll=tally.roll)


def _objects_within(tally: _Tally, radius: float) -> Coordinator[Returned]:
    """Fetch all objects within a radius with known counts."""
    cutoff = radius if radius < math.inf else None
    replies = yield gather(
        {  # one more than counted, so that the reply reports the end
            provider: NearestRequest(tally.name, tally.query, count + 1, cutoff)
            for provider, count in tally.present_counts(radius).items()
        }
    )
    found = read_parts(replies, "the objects within the radius", roll=tally.roll, within=cutoff)
    for provider, part in found[0].items():
        check_count(provider, part, tally.present_counts(radius)[provider])
    return found


def halfway(low: float, high: float, *, step: float = 0.0) -> float | None:
    """Return a radius between two, or None if not worthwhile.

    Parameters
    ----------
    low, high : float
        The first has too few objects within it, the second enough. A negative radius has none.
    step : float
        Unit of the distances, which are multiples of it; 0 for any number.

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

    With a ``step``, radii are successive multiples of it. Otherwise, the growth between the last
    two counts is extrapolated to the required count, within limits. After many steps the radius
    doubles, so that the search ends.

    Parameters
    ----------
    counted : sequence of (radius, count)
        Known counts, ascending; at least one.
    wanted : int
        Required number of objects within the radius.
    step : float
        Unit of the distances, which are multiples of it; 0 for any number.

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
        grown = 1.0  # the scale is unknown
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
        if more == fewer:  # no objects in between: grow faster
            growth = (longer / shorter) ** 2
        elif longer > shorter and fewer > 0:
            steepness = math.log(more / fewer) / math.log1p((longer - shorter) / shorter)
            growth = lacking ** (1 / max(steepness, 1.0))
    return float(min(max(growth, 1 + _MIN_GROWTH), 1 + _MAX_GROWTH))
