"""FedKNN as pure functions: one total order, the merge, expected counts, the certificate.

Letters of the paper: m providers, k neighbours, k_i objects asked of provider i in the first round,
k_i' in all, q_i the rank of a provider's last object in the merged result. A row of objects is in
ascending order of (distance, tie); ties are keyed digests of the objects' ids, so that all objects
of the federation stand in one order that tells nothing of who holds them.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedneighbors._typing import Floats, Integers

LAST_TIE = 2**63 - 1
"""Comes after every tie key."""

_FINEST = 2.0**-40
"""Radii that differ by less in proportion are one."""

_DIMENSION = 16.0
"""Power of the radius by which counts are taken to grow before two of them tell."""

_LEAST_GROWTH, _MOST_GROWTH, _SMALL_STEPS = 1 / 32, 1 / 2, 64


def tie_keys(ids: Sequence[str], *, owner: str, key: bytes) -> Integers:
    """Return the place of each object among objects of equal distance, lower first.

    Parameters
    ----------
    ids : sequence of str
        Names of the objects at their provider.
    owner : str
        The provider, so that objects of one name at two of them differ.
    key : bytes
        Public key of the federation, 64 bytes at most.

    Returns
    -------
    int64 array of shape (n_objects,)
        62-bit digests.

    Examples
    --------
    >>> tie_keys(["a", "b"], owner="north", key=b"2026").shape
    (2,)
    """
    digests = [
        hashlib.blake2b(f"{len(owner)} {owner}{name}".encode(), digest_size=8, key=key).digest()
        for name in ids
    ]
    words = np.frombuffer(b"".join(digests), "<u8") >> np.uint64(2)
    return words.astype(np.int64)


def ranks_of(ties: Integers) -> Integers:
    """Return the rank of each object by its tie key; equal keys are ranked by position."""
    ranks = np.empty(len(ties), np.int64)
    ranks[np.argsort(ties, kind="stable")] = np.arange(len(ties))
    return ranks


@dataclass(frozen=True)
class Part:
    """What one provider has returned so far.

    Parameters
    ----------
    distances : float64 array of shape (n,)
        Ascending with ``ties``.
    ties : int64 array of shape (n,)
        Tie keys.
    ids : tuple of str
        Names of the objects.
    exhausted : bool
        Whether the provider has no further object within a distance of ``within``.
    exact : bool
        Whether its index can have missed none.
    within, within_tie : float and int
        The place in the total order up to which it was asked last: objects at that distance with a
        greater tie key did not matter. Infinity for everything.
    """

    distances: Floats
    ties: Integers
    ids: tuple[str, ...]
    exhausted: bool
    exact: bool = True
    within: float = math.inf
    within_tie: int = LAST_TIE

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def hides_nothing(self) -> bool:
        """Whether these are all of the provider's objects, by its own words."""
        return self.exhausted and self.exact and self.within == math.inf

    def then(self, more: "Part") -> "Part":
        """Return this part with the next one behind it."""
        return Part(
            np.concatenate([self.distances, more.distances]),
            np.concatenate([self.ties, more.ties]),
            self.ids + more.ids,
            more.exhausted,
            self.exact and more.exact,
            more.within,
            more.within_tie,
        )


@dataclass(frozen=True)
class Merged:
    """The k nearest of what all providers returned, in the total order.

    Parameters
    ----------
    distances : float64 array of shape (n,)
        At most k.
    owners : tuple of str
        Provider of each object.
    ids : tuple of str
        Its name there.
    last : mapping of str to int
        Rank, from 1, of each provider's last object in the result (q_i); absent if it is outside.
    last_tie : int
        Tie key of the last object; greater than all if it is not known.
    """

    distances: Floats
    owners: tuple[str, ...]
    ids: tuple[str, ...]
    last: Mapping[str, int]
    last_tie: int = LAST_TIE

    def place(self, k: int) -> tuple[float, int]:
        """Return the place in the total order of the k-th object, or the end if there is none."""
        if len(self.ids) < k:
            return math.inf, LAST_TIE
        return (float(self.distances[-1]) if self.ids else -math.inf), self.last_tie


def merge(parts: Mapping[str, Part], k: int) -> Merged:
    """Return the k nearest of all parts (the priority queue r of Algorithm 1).

    Parameters
    ----------
    parts : mapping of str to Part
        By provider.
    k : int
        How many; all if there are fewer.

    Examples
    --------
    >>> one = Part(np.array([8.0]), np.array([1]), ("d1",), False)
    >>> two = Part(np.array([6.0, 10.0]), np.array([2, 3]), ("d4", "d5"), False)
    >>> merge({"P1": one, "P2": two}, 2).ids
    ('d4', 'd1')
    """
    names = sorted(parts)
    distances = np.concatenate([parts[name].distances for name in names])
    ties = np.concatenate([parts[name].ties for name in names])
    provider = np.repeat(np.arange(len(names)), [len(parts[name]) for name in names])
    within = np.concatenate([np.arange(len(parts[name])) for name in names])
    order = np.lexsort((within, provider, ties, distances))[:k]
    last = {}
    for rank, place in enumerate(order.tolist(), start=1):
        name = names[provider[place]]
        if within[place] == len(parts[name]) - 1:
            last[name] = rank
    return Merged(
        distances=distances[order],
        owners=tuple(names[provider[place]] for place in order.tolist()),
        ids=tuple(parts[names[provider[place]]].ids[within[place]] for place in order.tolist()),
        last=last,
        last_tie=int(ties[order[-1]]) if len(order) else LAST_TIE,
    )


def expected_counts(bounds: Mapping[str, Floats], k: int, *, at_least: int = 1) -> dict[str, int]:
    """Return how many objects to ask of each provider at first (Algorithm 1, lines 5-10).

    Counts whose lower bounds are among the k lowest of all, and at least one. Bounds of equal value
    go to the provider of the lower name, which a count may depend on and an answer may not.

    Parameters
    ----------
    bounds : mapping of str to float64 array
        The k lowest bounds of each provider, ascending; fewer if it has fewer objects.
    k : int
        Neighbours wanted.
    at_least : int
        Floor of each count; Lemma 4.7's option is ``ceil(k / m)``.

    Returns
    -------
    dict of str to int
        k_i, between ``at_least`` and k.

    Examples
    --------
    >>> bounds = {"P1": [2.0, 8.0, 8.0], "P2": [3.0, 6.0, 9.0], "P3": [7.0, 8.0, 10.0]}
    >>> expected_counts({name: np.array(low) for name, low in bounds.items()}, 3)
    {'P1': 1, 'P2': 2, 'P3': 1}
    """
    names = sorted(bounds)
    values = np.concatenate([bounds[name] for name in names])
    provider = np.repeat(np.arange(len(names)), [len(bounds[name]) for name in names])
    lowest = provider[np.argsort(values, kind="stable")[:k]]
    counts = np.bincount(lowest, minlength=len(names))
    return {
        name: min(max(int(count), at_least, 1), max(k, 1))
        for name, count in zip(names, counts, strict=True)
    }


def remaining_counts(parts: Mapping[str, Part], merged: Merged, k: int) -> dict[str, int]:
    """Return how many more objects each provider may still have in the result: k - q_i.

    Only providers whose last object is in the result, not at its end, and which are not exhausted
    within the k-th distance (Algorithm 1, lines 15-19: k_i' is what was returned plus this).

    Parameters
    ----------
    parts : mapping of str to Part
        What was returned.
    merged : Merged
        Their merge to k.
    k : int
        Neighbours wanted.
    """
    more = {}
    for name, part in parts.items():
        if part.exhausted and (part.within, part.within_tie) >= merged.place(k):
            continue
        rank = 0 if len(part) == 0 else merged.last.get(name, k)
        if rank < k:
            more[name] = k - rank
    return more


def certified(parts: Mapping[str, Part], merged: Merged, k: int) -> bool:
    """Return whether the result is surely that of all objects of the federation.

    It is if every provider is exhausted, or its last object lies outside the result or at its end:
    then whatever it holds beyond comes later in the total order.
    """
    return not remaining_counts(parts, merged, k)


def halfway(low: float, high: float, *, step: float = 0.0) -> float | None:
    """Return a radius between two, or None if it is not worth a count.

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
    """Return a radius somewhat larger, that holds few more objects than are wanted.

    Multiples of ``step`` follow one another. Where distances may be any number, the last two counts
    tell how fast counts grow with the radius, and the next is to reach what is wanted, within
    bounds. After many steps they double, so that there is an end.

    Parameters
    ----------
    counted : sequence of (radius, count)
        What is known, ascending; at least one.
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
    """Return the factor by which the radius is to grow for counts to grow by ``lacking``."""
    growth = lacking ** (1 / _DIMENSION)
    if len(counted) > 1 and counted[-2][0] > 0:
        (shorter, fewer), (longer, more) = counted[-2:]
        if more == fewer:  # nothing is near: go faster
            growth = (longer / shorter) ** 2
        elif longer > shorter and fewer > 0:
            steepness = math.log(more / fewer) / math.log1p((longer - shorter) / shorter)
            growth = lacking ** (1 / max(steepness, 1.0))
    return float(min(max(growth, 1 + _LEAST_GROWTH), 1 + _MOST_GROWTH))
