"""FedKNN as pure functions: total order, merge, expected counts, certificate, checks.

Symbols of the paper: m providers, k neighbours, k_i objects requested from provider i in the first
round, k_i' in both rounds, q_i the rank of a provider's last object in the merged result. Objects
are in ascending order of (distance, tie key). Tie keys are keyed digests of the objects' providers
and names, so that all objects of the federation have one order, which favours no provider.

A broker cannot detect that a provider hides objects. It refuses objects that contradict the
provider's own bounds or counts.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedneighbors._typing import Floats, Integers
from fedneighbors.errors import ProtocolError
from fedneighbors.methods.fedknn._names import Names

LAST_TIE = 2**63 - 1
"""Greater than every tie key, which has 62 bits."""

MAX_K = 1 << 20
"""Maximum number of neighbours."""

MAX_QUERY_BYTES = 16 << 20
MAX_NAME_LENGTH = 200  # characters of a query's name


def check_query(query: bytes, name: str = "", k: int = 1, *, max_k: int = MAX_K) -> None:
    """Raise ValueError if a query's size, name or k is excessive."""
    if len(query) > MAX_QUERY_BYTES or len(name) > MAX_NAME_LENGTH or not 1 <= k <= max_k:
        raise ValueError(
            f"expected a query of at most {MAX_QUERY_BYTES} bytes, a name of at most "
            f"{MAX_NAME_LENGTH} characters, and k from 1 to {max_k}; got {len(query)}, "
            f"{len(name)} and {k}"
        )


def tie_keys(ids: Sequence[str], *, owner: str, key: bytes) -> Integers:
    """Compute each object's tie key; lower keys come first.

    Parameters
    ----------
    ids : sequence of str
        Names of the objects at their provider.
    owner : str
        Provider; objects with the same name at two providers get different keys.
    key : bytes
        Public key of the digests, the same at all providers; at most 64 bytes.

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


def rank_objects(ties: Integers) -> Integers:
    """Rank objects by tie key, then by position."""
    ranks = np.empty(len(ties), np.int64)
    ranks[np.argsort(ties, kind="stable")] = np.arange(len(ties))
    return ranks


@dataclass(frozen=True)
class Part:
    """Objects returned by one provider so far.

    Parameters
    ----------
    distances : float64 array of shape (n,)
        Distances; objects are in ascending order of (distance, tie key).
    ties : int64 array of shape (n,)
        Tie keys.
    ids : Names
        Names of the objects.
    exhausted : bool
        True if the provider has no further object up to the cutoff.
    exact : bool
        True if its index is exact.
    cutoff, cutoff_tie : float and int
        Distance and tie key of the limit of the last request; infinity and ``LAST_TIE`` for none.
    """

    distances: Floats
    ties: Integers
    ids: Names
    exhausted: bool
    exact: bool = True
    cutoff: float = math.inf
    cutoff_tie: int = LAST_TIE

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def closed(self) -> tuple[float, int]:
        """Return the place up to which all objects were returned."""
        if not self.exact or not (self.exhausted or len(self)):
            return -math.inf, 0
        if self.exhausted:
            return self.cutoff, self.cutoff_tie
        return float(self.distances[-1]), int(self.ties[-1])

    @property
    def is_complete(self) -> bool:
        """Return whether these are all objects of the provider."""
        return self.exhausted and self.exact and self.cutoff == math.inf

    def append(self, more: "Part") -> "Part":
        """Return this part with the next one appended."""
        return Part(
            np.concatenate([self.distances, more.distances]),
            np.concatenate([self.ties, more.ties]),
            self.ids + more.ids,
            more.exhausted,
            self.exact and more.exact,
            more.cutoff,
            more.cutoff_tie,
        )


@dataclass(frozen=True)
class Merged:
    """The k nearest of all returned objects, in the total order.

    Parameters
    ----------
    distances : float64 array of shape (n,)
        Distances, ascending; n is at most k.
    owners : tuple of str
        Provider of each object.
    ids : tuple of str
        Name of each object at its provider.
    ranks_of_last : mapping of str to int
        Rank in the result, from 1, of the last object that each provider returned (q_i); no entry
        if that object is outside the result.
    last_tie : int
        Tie key of the last object of the result; ``LAST_TIE`` if unknown.
    """

    distances: Floats
    owners: tuple[str, ...]
    ids: tuple[str, ...]
    ranks_of_last: Mapping[str, int]
    last_tie: int = LAST_TIE

    def sort_key(self, k: int) -> tuple[float, int]:
        """Return the distance and tie key of the k-th object.

        Both are greater than those of any object if there are fewer than ``k``.
        """
        if len(self.ids) < k:
            return math.inf, LAST_TIE
        return (float(self.distances[-1]) if self.ids else -math.inf), self.last_tie


def merge(parts: Mapping[str, Part], k: int) -> Merged:
    """Return the k nearest objects of all parts: r in Algorithm 1.

    Parameters
    ----------
    parts : mapping of str to Part
        Objects by provider.
    k : int
        Number of objects; all if there are fewer.

    Examples
    --------
    >>> first = Part(np.array([8.0]), np.array([1]), Names.pack(["d1"]), False)
    >>> second = Part(np.array([6.0, 10.0]), np.array([2, 3]), Names.pack(["d4", "d5"]), False)
    >>> merge({"P1": first, "P2": second}, 2).ids
    ('d4', 'd1')
    """
    names = sorted(parts)
    sizes = [len(parts[name]) for name in names]
    distances = np.concatenate([parts[name].distances for name in names])
    ties = np.concatenate([parts[name].ties for name in names])
    order = np.lexsort((ties, distances))[:k]  # stable: then by provider and position
    provider = np.repeat(np.arange(len(names)), sizes)[order]
    n_chosen = np.bincount(provider, minlength=len(names)).tolist()
    # a provider's objects are in order, so those in the result are its first
    unread = [iter(parts[name].ids.first(n)) for name, n in zip(names, n_chosen, strict=True)]
    ranks_of_last = {
        name: int(np.flatnonzero(provider == i)[-1]) + 1
        for i, name in enumerate(names)
        if n_chosen[i] == sizes[i] > 0
    }
    owners = provider.tolist()
    return Merged(
        distances=distances[order],
        owners=tuple([names[i] for i in owners]),
        ids=tuple([next(unread[i]) for i in owners]),
        ranks_of_last=ranks_of_last,
        last_tie=int(ties[order[-1]]) if len(order) else LAST_TIE,
    )


def expected_counts(bounds: Mapping[str, Floats], k: int, *, at_least: int = 1) -> dict[str, int]:
    """Compute the first request size of each provider: Algorithm 1, lines 5-10.

    It is the number of the provider's bounds among the k lowest of all, but at least one. Equal
    bounds are ordered by the providers' names; this may affect a count, but never an answer.

    Parameters
    ----------
    bounds : mapping of str to float64 array
        The k lowest bounds of each provider, ascending; fewer if it has fewer objects.
    k : int
        Number of neighbours.
    at_least : int
        Minimum of each count; Lemma 4.7 proposes ``ceil(k / m)`` for m providers.

    Returns
    -------
    dict of str to int
        k_i, between ``at_least`` and k.

    Examples
    --------
    >>> bounds = {"P1": [2.0, 8.0, 8.0], "P2": [3.0, 6.0, 9.0], "P3": [7.0, 8.0, 10.0]}
    >>> expected_counts({name: np.array(row) for name, row in bounds.items()}, 3)
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
    """Compute the maximum number of further results per provider: k - q_i.

    It is k for a provider that returned no object. A provider is omitted if its last object is
    outside the result or the k-th, or if it has no further object up to the k-th (Algorithm 1,
    lines 15-19: k_i' is the number returned plus this number).

    Parameters
    ----------
    parts : mapping of str to Part
        Objects returned by each provider.
    merged : Merged
        Their merge to k.
    k : int
        Number of neighbours.
    """
    remaining = {}
    for name, part in parts.items():
        if part.exhausted and (part.cutoff, part.cutoff_tie) >= merged.sort_key(k):
            continue
        rank = 0 if len(part) == 0 else merged.ranks_of_last.get(name, k)
        if rank < k:
            remaining[name] = k - rank
    return remaining


def is_certified(parts: Mapping[str, Part], merged: Merged, k: int) -> bool:
    """Return whether the result is certified to be exact.

    It is if each provider is exhausted, or its last object is outside the result or the k-th:
    then the provider's further objects come after the result in the total order.
    """
    return not remaining_counts(parts, merged, k)


def count_certified(parts: Mapping[str, Part]) -> int:
    """Return the number of objects that are certainly the nearest ones.

    No provider has a further object that precedes one of them.

    Examples
    --------
    >>> near = Part(np.array([1.0, 2.0]), np.array([5, 3]), ("a", "b"), False)
    >>> far = Part(np.array([2.0]), np.array([4]), ("c",), False)
    >>> count_certified({"P1": near, "P2": far})
    2
    """
    distance, tie = min(part.closed for part in parts.values())
    return sum(
        int(
            np.count_nonzero(
                (p.distances < distance) | ((p.distances == distance) & (p.ties <= tie))
            )
        )
        for p in parts.values()
    )


SURPLUS = 0.25
"""Additional objects requested from each provider, in units of the square root of its share.

The true number of a provider's objects among the nearest deviates from its share by about this
root. Requests for too few objects in total are expensive: with fewer than k objects, the second
round has no cutoff. The value was chosen by measurements on titles, places and molecules, see
``benchmarks/counts.py``.
"""

_ROUNDING = 1e-9  # above the rounding error of a sum of shares, which is often an integer


def proportional_counts(
    bounds: Mapping[str, Floats], k: int, *, surplus: float = SURPLUS
) -> dict[str, int]:
    """Compute the first request size of each provider by proportional shares.

    A provider's share of the k nearest is the number of its bounds below the k-th lowest of all.
    The rest of k is divided among the bounds equal to it, in proportion to each provider's number
    of them. A surplus proportional to the square root is added to each share.

    Parameters
    ----------
    bounds : mapping of str to float64 array
        The k lowest bounds of each provider, ascending; fewer if it has fewer objects.
    k : int
        Number of neighbours, 1 or more.
    surplus : float
        Surplus factor; 0 for none.

    Returns
    -------
    dict of str to int
        Between 1 and k. Before these limits, the sum is that of shares and surpluses, rounded down.

    Examples
    --------
    >>> tied = {"north": np.full(8, 3.0), "south": np.array([1.0] + [3.0] * 7)}
    >>> proportional_counts(tied, 8, surplus=0.0)
    {'north': 4, 'south': 4}
    """
    names = sorted(bounds)
    shares = _count_shares([bounds[name] for name in names], k)
    sizes = shares + surplus * np.sqrt(shares)
    counts = _round_shares(sizes, int(sizes.sum() + _ROUNDING))
    return {
        name: min(max(count, 1), max(k, 1))
        for name, count in zip(names, counts.tolist(), strict=True)
    }


def _count_shares(bounds: list[Floats], k: int) -> Floats:
    """Count each provider's bounds among the k lowest, with ties divided."""
    lowest = np.sort(np.concatenate(bounds))
    if len(lowest) <= k:
        return np.array([len(values) for values in bounds], np.float64)
    kth = lowest[k - 1]
    below = np.array([np.searchsorted(values, kth, side="left") for values in bounds], np.float64)
    tied = np.array([np.searchsorted(values, kth, side="right") for values in bounds]) - below
    return np.asarray(below + tied * ((k - below.sum()) / tied.sum()))


def _round_shares(shares: Floats, total: int) -> Integers:
    """Round to integers with the given sum by largest remainder.

    Of equal remainders the first is rounded up.
    """
    counts = np.floor(shares + _ROUNDING).astype(np.int64)
    order = np.argsort(counts - shares, kind="stable")
    counts[order[: max(total - int(counts.sum()), 0)]] += 1
    return counts


def check_ascending(name: str, values: Floats) -> None:
    """Raise unless values are an ascending vector of finite numbers."""
    # NaN is in no order, and no number between two finite ones is infinite
    # count_nonzero takes a fifth of the time of all() and any() for few values
    if (
        values.ndim != 1
        or np.count_nonzero(values[1:] >= values[:-1]) < len(values) - 1
        or (len(values) and not (math.isfinite(values[0]) and math.isfinite(values[-1])))
    ):
        raise ValueError(f"{name} are not an ascending vector of finite numbers")


def check_order(
    distances: Floats, ties: Integers, ids: Names, *, unordered: str, repeated: str
) -> None:
    """Raise ValueError unless objects are unique and in ascending order."""
    # compared directly, because differences may overflow
    is_farther = distances[1:] > distances[:-1]
    if np.count_nonzero(is_farther) < len(is_farther):
        is_nearer = distances[1:] < distances[:-1]
        if is_nearer.any() or not (is_farther | (ties[1:] > ties[:-1])).all():
            raise ValueError(unordered)
    if not ids.are_unique():
        raise ValueError(repeated)


def check_bounds(bounds: Mapping[str, Floats], k: int) -> None:
    """Raise if a provider sent more bounds than requested.

    Raises
    ------
    ProtocolError
        The error names the provider.
    """
    for provider, lowest in bounds.items():
        if len(lowest) > k:
            raise ProtocolError(f"party {provider!r}: expected {k} bounds, got {len(lowest)}")


def check_distances_against_bounds(
    parts: Mapping[str, Part], bounds: Mapping[str, Floats], *, k: int
) -> None:
    """Raise for objects that contradict their provider's lower bounds.

    The j-th smallest distance is never below the j-th smallest bound. A provider with fewer than k
    objects sends as many bounds as it has objects.

    Parameters
    ----------
    parts : mapping of str to Part
        Objects returned by each provider.
    bounds : mapping of str to float64 array
        The k lowest bounds sent before, ascending.
    k : int
        Number of requested bounds.

    Raises
    ------
    ProtocolError
        The error names the provider.
    """
    for provider, part in parts.items():
        lowest = bounds[provider]
        n = min(len(part), len(lowest))
        if (part.distances[:n] < lowest[:n]).any():
            raise ProtocolError(
                f"party {provider!r}: an object is nearer than its lower bounds allow"
            )
        if len(lowest) < k and len(part) > len(lowest):
            raise ProtocolError(
                f"party {provider!r}: returned {len(part)} objects, but sent {len(lowest)} bounds"
            )
        if part.is_complete and len(part) < len(lowest):
            raise ProtocolError(
                f"party {provider!r}: it has no more than {len(part)} objects, but sent "
                f"{len(lowest)} bounds"
            )


def check_count(provider: str, part: Part, count: int) -> None:
    """Raise if a provider's objects within a radius differ from its count.

    An approximate index may find fewer.

    Raises
    ------
    ProtocolError
        The error names the provider.
    """
    if len(part) > count or (part.exact and len(part) < count):
        raise ProtocolError(
            f"party {provider!r}: it returned {len(part)} objects within a radius, but counted "
            f"{count}"
        )


def check_total_counts(counts: Mapping[str, int], bounds: Mapping[str, Floats]) -> None:
    """Raise if a provider counts fewer objects than it sent bounds.

    Raises
    ------
    ProtocolError
        The error names the provider.
    """
    for provider, count in counts.items():
        if count < len(bounds[provider]):
            raise ProtocolError(
                f"party {provider!r}: it counts {count} objects in total, but sent "
                f"{len(bounds[provider])} bounds"
            )
