"""Searches by radius: HuFu, its extension, and range queries.

HuFu's coordinators count the objects within several radii until a radius has enough, then fetch the
objects within it. All take a query as in :mod:`~fedneighbors.methods.fedknn.protocol`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedneighbors.errors import ProtocolError
from fedneighbors.federation._loop import Coordinator, gather
from fedneighbors.methods.fedknn.algorithm import check_count, check_total_counts, merge
from fedneighbors.methods.fedknn.protocol import (
    ActiveProviders,
    Answer,
    NearestRequest,
    PartsAndCounts,
    RangeCountRequest,
    ask_bounds,
    certify_answer,
    make_answer,
    read_parts,
    second_round,
)

_MAX_DOUBLED = 2.0**64  # larger radii are replaced by infinity, which ends the doubling
_MAX_HALVINGS, _MAX_LATE_HALVINGS = 64, 8
"""Maximum number of halvings of a radius, each of which costs an exchange.

There are fewer in HuFu-Ext+, whose objects are verified by then: a smaller radius only
saves the transfer of surplus objects.
"""

_MIN_RELATIVE_GAP = 2.0**-40
"""Relative difference below which two radii are considered equal."""

_DIMENSION = 16.0
"""Assumed power of the radius by which counts grow, before two counts are known."""

_MAX_COUNT = 1 << 53
"""Maximum number of objects of a provider: the counts of many fit the 64 bits of a message."""

_MIN_GROWTH, _MAX_GROWTH = 1 / 32, 1 / 2  # limits of the relative growth of a radius
_MAX_SMALL_STEPS = 64  # number of radii after which the radius at least doubles


def hufu(
    query: bytes,
    k: int,
    *,
    name: str,
    step: float = 0.0,
    least: float = 0.0,
    first_radius: float = 0.0,
    allow_partial: bool = False,
    budget_s: float | None = None,
) -> Coordinator[Answer]:
    """Find a radius with k objects by binary search, then fetch them.

    The extension of HuFu to any metric in the paper's comparison (HuFu-Ext): every provider counts
    its objects at each step of the search. It ends when exactly k objects are within the radius, or
    when further radii are too close; the fetched objects are sorted and truncated.

    Parameters
    ----------
    query, k, name, allow_partial
        As for :func:`baseline`.
    step : float
        Unit of the distances, which are multiples of it; 0 for any number.
    least : float
        No distance is below this number.
    first_radius : float
        First radius of the search, 0 or more; 0 for the larger of ``step`` and 1.
    budget_s : float, optional
        Seconds after which a provider stops a count.
    """
    active = ActiveProviders(allow_partial=allow_partial, budget_s=budget_s)
    counts = _RangeCounts(query, name, active)
    low, high = math.nextafter(least, -math.inf), math.inf
    if (yield from counts.count(math.inf)) > k:
        high = first_radius or max(step, 1.0)
        while (yield from counts.count(high)) < min(k, counts.total(math.inf)):
            low = high
            high = 2 * high if high < _MAX_DOUBLED else math.inf
        high = yield from _bisect(counts, low, high, k=k, limit=k, step=step, rounds=_MAX_HALVINGS)
    return (yield from _fetch(counts, high, k, algorithm="hufu"))


def hufu_plus(
    query: bytes,
    k: int,
    *,
    name: str,
    step: float = 0.0,
    least: float = 0.0,
    allow_partial: bool = False,
    budget_s: float | None = None,
) -> Coordinator[Answer]:
    """Count within ascending radii until there are k objects; then fetch them.

    A stronger competitor than :func:`hufu` (HuFu-Ext+). The first radius is the k-th lowest of all
    lower bounds, which cannot exceed the k-th distance. Each following radius is slightly larger,
    so that few objects beyond that distance are verified. Verified objects are not verified again.

    Parameters
    ----------
    query, k, name, step, least, allow_partial, budget_s
        As for :func:`hufu`.
    """
    active = ActiveProviders(allow_partial=allow_partial, budget_s=budget_s)
    counts = _RangeCounts(query, name, active)
    bounds = yield from ask_bounds(query, k, name=name, active=active)
    lowest = np.sort(np.concatenate(list(bounds.values())))
    low, high = math.nextafter(least, -math.inf), math.inf
    if len(lowest) >= k:
        high = float(lowest[k - 1])
        radii = [high]
        while (yield from counts.count(high)) < min(
            k, sum(map(len, active.select(bounds).values()))
        ):
            if high == math.inf:
                check_total_counts(counts.active_counts(high), bounds)
            totals = [(radius, counts.total(radius)) for radius in radii]  # for active providers
            low, high = high, next_radius(totals, k, step=step)
            radii.append(high)
        high = yield from _bisect(
            counts, low, high, k=k, limit=2 * k, step=step, rounds=_MAX_LATE_HALVINGS
        )
    return (yield from _fetch(counts, high, k, algorithm="hufu+"))


class TooManyObjects(ValueError):  # noqa: N818 - the name states the error
    """More objects are within a radius than may be returned.

    Parameters
    ----------
    n_objects, limit : int
        Number of objects within the radius, and the largest allowed number.
    """

    def __init__(self, n_objects: int, limit: int) -> None:
        super().__init__(
            f"{n_objects} objects are within the radius, more than the limit of {limit}; use a "
            "smaller radius, or search for the nearest"
        )
        self.n_objects, self.limit = n_objects, limit


@dataclass(frozen=True)
class RangeCounts:
    """Number of objects within a radius.

    Parameters
    ----------
    counts : mapping of str to int
        Number at each provider that answered.
    missing : mapping of str to str
        Missing providers, and the reasons; empty unless partial answers are allowed.
    exact : bool
        False if the index of a provider may have missed objects.
    """

    counts: Mapping[str, int]
    missing: Mapping[str, str]
    exact: bool = True


def count_within(
    query: bytes,
    radius: float,
    *,
    name: str,
    allow_partial: bool = False,
    budget_s: float | None = None,
) -> Coordinator[RangeCounts]:
    """Count the objects within a distance of the query.

    The providers learn nothing about one another.

    Parameters
    ----------
    query, radius, name, allow_partial, budget_s
        As for :func:`range_search`.
    """
    active = ActiveProviders(allow_partial=allow_partial, budget_s=budget_s)
    counts = _RangeCounts(query, name, active)
    yield from counts.count(radius)
    return RangeCounts(counts.active_counts(radius), dict(active.missing), counts.exact)


def range_search(
    query: bytes,
    radius: float,
    *,
    name: str,
    limit: int | None = None,
    allow_partial: bool = False,
    budget_s: float | None = None,
) -> Coordinator[Answer]:
    """Find all objects within a distance of the query.

    Each provider counts its objects there, and then returns them; it learns nothing about the
    others.

    Parameters
    ----------
    query : bytes
        Query as bytes for providers.
    radius : float
        Radius, 0 or more, in the unit of the metric; objects at this distance are included.
    name : str
        Unique name of the query at the providers.
    limit : int, optional
        Largest allowed number of objects.
    allow_partial : bool
        Leave out a missing provider, and report it in the answer.
    budget_s : float, optional
        Seconds after which a provider stops the count.

    Raises
    ------
    TooManyObjects
        If more than ``limit`` objects are counted; none is requested.
    PartyMissing
        If a provider is missing and partial answers are not allowed.
    ProtocolError
        If a provider returns fewer objects than it counted, or violates the protocol in another
        way.
    """
    active = ActiveProviders(allow_partial=allow_partial, budget_s=budget_s)
    counts = _RangeCounts(query, name, active)
    n_objects = yield from counts.count(radius)
    if limit is not None and n_objects > limit:
        raise TooManyObjects(n_objects, limit)
    parts, verified = yield from _fetch_within(counts, radius)
    merged = merge(parts, sum(map(len, parts.values())))
    return make_answer(parts, verified, merged, algorithm="radius", active=counts.active)


class _RangeCounts:
    """Range counts of one query, by radius and provider."""

    def __init__(self, query: bytes, name: str, active: ActiveProviders) -> None:
        self.query, self.name, self.active = query, name, active
        self.by_radius: dict[float, dict[str, int]] = {}
        self.exact = True

    def count(self, radius: float) -> Coordinator[int]:
        """Count the objects of all active providers within a radius."""
        sent = radius if radius < math.inf else None
        budget_s = self.active.budget_s
        replies = yield self.active.ask(RangeCountRequest(self.name, self.query, sent, budget_s))
        each = self.active.read(replies, "the counts")
        self.by_radius[radius] = {provider: reply.count for provider, reply in each.items()}
        self.exact = self.exact and all(reply.exact for reply in each.values())
        for provider, count in self.by_radius[radius].items():
            self._check_monotonic(provider, radius, count)
        return self.total(radius)

    def active_counts(self, radius: float) -> dict[str, int]:
        """Return the known counts within a radius, of active providers."""
        return self.active.select(self.by_radius[radius])

    def total(self, radius: float) -> int:
        return sum(self.active_counts(radius).values())

    def _check_monotonic(self, provider: str, radius: float, count: int) -> None:
        for other, counts in self.by_radius.items():
            known = counts.get(provider, count)
            larger, smaller = (count, known) if other < radius else (known, count)
            if larger < smaller or not 0 <= count <= _MAX_COUNT:
                raise ProtocolError(
                    f"party {provider!r}: its count of {count} objects contradicts that of another "
                    f"radius, or is not from 0 to {_MAX_COUNT}"
                )


def _bisect(
    counts: _RangeCounts, low: float, high: float, *, k: int, limit: int, step: float, rounds: int
) -> Coordinator[float]:
    """Lower ``high`` until at most ``limit`` objects are within it.

    At least k objects remain within it. At the beginning fewer than k are within ``low``.
    """
    for _ in range(rounds):
        middle = middle_radius(low, min(high, float(np.finfo(np.float64).max)), step=step)
        if counts.total(high) <= limit or middle is None:
            break
        if (yield from counts.count(middle)) >= k:
            high = middle
        else:
            low = middle
    return high


def _fetch(counts: _RangeCounts, radius: float, k: int, *, algorithm: str) -> Coordinator[Answer]:
    """Fetch the objects within a radius, and answer with the k nearest.

    An infinite radius fetches all objects.
    """
    if radius not in counts.by_radius:
        yield from counts.count(radius)
    returned = yield from _fetch_within(counts, radius)
    parts, verified = yield from second_round(
        returned, k, query=counts.query, name=counts.name, active=counts.active
    )
    return certify_answer(parts, verified, k, algorithm=algorithm, active=counts.active)


def _fetch_within(counts: _RangeCounts, radius: float) -> Coordinator[PartsAndCounts]:
    """Fetch all objects within a radius with known counts."""
    cutoff = radius if radius < math.inf else None
    replies = yield gather(
        {  # one more than counted, so that the reply is exhausted
            provider: NearestRequest(counts.name, counts.query, count + 1, cutoff)
            for provider, count in counts.active_counts(radius).items()
        }
    )
    parts, verified = read_parts(
        replies, "the objects within the radius", active=counts.active, cutoff=cutoff
    )
    for provider, part in parts.items():
        check_count(provider, part, counts.active_counts(radius)[provider])
    return parts, verified


def middle_radius(low: float, high: float, *, step: float = 0.0) -> float | None:
    """Return a radius between two, or None if they are too close.

    Parameters
    ----------
    low, high : float
        Radii with too few and with enough objects. ``low`` may be minus infinity; ``high`` is
        finite.
    step : float
        Unit of the distances, which are multiples of it; 0 for any number.

    Examples
    --------
    >>> middle_radius(0.0, 8.0), middle_radius(2.0, 5.0, step=1.0)
    (4.0, 3.0)
    >>> middle_radius(-1.0, 8.0), middle_radius(-8.0, 0.0)
    (0.0, -4.0)
    >>> middle_radius(2.0, 3.0, step=1.0) is None
    True
    """
    if low < 0 < high:
        middle = 0.0
    elif low == -math.inf and high > -1:  # the scale is unknown
        middle = -1.0
    elif low < 0:
        opposite = middle_radius(-high, min(-low, float(np.finfo(np.float64).max)), step=step)
        return None if opposite is None else -opposite
    elif step > 0:
        middle = step * float(np.floor((low / 2 + high / 2) / step))
    elif low > 0 and high > 4 * low:
        middle = math.sqrt(low) * math.sqrt(high)
    else:
        middle = low / 2 + high / 2
    if not low < middle < high or high - low < _MIN_RELATIVE_GAP * high:
        return None
    return middle


def next_radius(counted: Sequence[tuple[float, int]], k: int, *, step: float = 0.0) -> float:
    """Return a larger radius that probably has few surplus objects.

    With a ``step``, radii are successive multiples of it. Otherwise, the growth between the last
    two counts is extrapolated to the required count, within limits. After many steps the radius
    doubles, so that the search ends. If the first radius is negative, all are moved so that it gets
    the opposite sign, and the result is moved back.

    Parameters
    ----------
    counted : sequence of (radius, count)
        Radii and the numbers of objects within them, ascending; at least one.
    k : int
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
    shift = 2 * counted[0][0]
    if shift == -math.inf:
        return math.inf
    if shift < 0:
        moved = next_radius([(other - shift, n) for other, n in counted], k, step=step)
        return max(moved + shift, math.nextafter(radius, math.inf))
    if step > 0:
        larger = radius + step
    elif radius <= 0:
        larger = 1.0  # the scale is unknown
    else:
        larger = radius * _estimate_growth(counted, max(k / max(count, 1), 1.0))
    if len(counted) > _MAX_SMALL_STEPS:
        larger = max(larger, 2 * radius)
    return max(larger, float(np.nextafter(radius, math.inf)))


def _estimate_growth(counted: Sequence[tuple[float, int]], count_factor: float) -> float:
    """Return the radius factor that multiplies counts by ``count_factor``."""
    growth = count_factor ** (1 / _DIMENSION)
    if len(counted) > 1 and counted[-2][0] > 0:
        (shorter, fewer), (longer, more) = counted[-2:]
        if more == fewer:
            growth = (longer / shorter) ** 2  # twice the last step on a logarithmic scale
        elif longer > shorter and fewer > 0:
            exponent = math.log(more / fewer) / math.log1p((longer - shorter) / shorter)
            growth = count_factor ** (1 / max(exponent, 1.0))
    return float(min(max(growth, 1 + _MIN_GROWTH), 1 + _MAX_GROWTH))
