"""FedKNN's messages and coordinators: the algorithms of the paper.

Each takes the query as bytes and returns an :class:`Answer`. The order of objects is total, so all
of them give the same answer, ties included. All have ``allow_partial``: a provider that is missing
in an exchange is excluded from the rest of the query, with its objects, and the answer reports it.
Queries stay open at the providers until :func:`farewell`, for which no answer has to wait.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats, Integers
from fedneighbors.errors import PartyMissing, ProtocolError
from fedneighbors.federation._loop import Ask, Coordinator, Replies, gather
from fedneighbors.federation._messages import Message, message
from fedneighbors.methods.fedknn.algorithm import (
    LAST_TIE,
    Merged,
    Part,
    check_bounds,
    check_distances_against_bounds,
    is_certified,
    merge,
    remaining_counts,
    shared_counts,
)


def check_distances(what: str, values: Floats) -> None:
    """Raise if values are not a vector of ascending distances."""
    good = values.ndim == 1 and (np.isfinite(values) & (values >= 0)).all()
    if not good or (np.diff(values) < 0).any():
        raise ValueError(f"{what} are not an ascending vector of non-negative numbers")


def check_objects(distances: Floats, ties: Integers, ids: tuple[str, ...]) -> None:
    """Raise unless objects have distances, ascending, and tie keys."""
    check_distances("distances", distances)
    if distances.shape != (len(ids),) or ties.shape != distances.shape:
        raise ValueError("distances, ties and ids differ in number")


@message
class BoundReply:
    """The lowest bounds of a provider's objects, float64, ascending, at most k."""

    bounds: npt.NDArray[np.float64]

    def __post_init__(self) -> None:
        check_distances("bounds", self.bounds)


@message
class BoundRequest:
    """New query and request for the ``k`` lowest bounds."""

    reply: ClassVar[type] = BoundReply
    name: str
    query: bytes
    k: int


@message
class NearestReply:
    """The next objects of a provider in ascending order of distance and tie key.

    ``n_verified`` counts the distances computed for this query so far; ``exact`` is false if the
    provider's index may have missed objects.
    """

    distances: npt.NDArray[np.float64]
    ties: npt.NDArray[np.int64]
    ids: tuple[str, ...]
    exhausted: bool
    exact: bool
    n_verified: int

    def __post_init__(self) -> None:
        check_objects(self.distances, self.ties, self.ids)
        # not by differences of tie keys, which may overflow
        tied = np.diff(self.distances) == 0
        if (tied & (self.ties[1:] <= self.ties[:-1])).any():
            raise ValueError("objects are not in ascending order")
        if len(set(self.ids)) < len(self.ids):
            raise ValueError("an object is returned twice")

    def check_number(self, count: int) -> None:
        """Raise for more objects than ``count``, or too few.

        A provider with more objects must return ``count``.
        """
        n = len(self.ids)
        if n > count:
            raise ValueError(f"expected {count} objects, got {n}")
        if n < count and not self.exhausted:
            raise ValueError(f"expected {count} objects, got {n}, although more are left")


@message
class NearestRequest:
    """Request for the next ``count`` objects of a query, new or open.

    ``cutoff`` excludes objects farther away; None for no limit. Objects at the cutoff distance with
    a tie key above ``tie`` may be omitted.
    """

    reply: ClassVar[type] = NearestReply
    name: str
    query: bytes
    count: int
    cutoff: float | None
    tie: int | None = None

    def check(self, party: str, reply: NearestReply) -> None:  # noqa: ARG002 - passed by runtimes
        """Raise for more objects than requested, or too few.

        A provider with more objects must return all requested ones.
        """
        reply.check_number(self.count)
        if self.cutoff is not None and (reply.distances > self.cutoff).any():
            raise ValueError(f"an object is beyond the cutoff of {self.cutoff}")


@message
class RangeCountReply:
    """Number of objects within a radius."""

    count: int


@message
class RangeCountRequest:
    """Request for the number of objects within ``radius``, or of all objects."""

    reply: ClassVar[type] = RangeCountReply
    name: str
    query: bytes
    radius: float | None


@message
class Finished:
    """Confirmation that the queries are closed."""


@message
class FinishRequest:
    """Request to close queries."""

    reply: ClassVar[type] = Finished
    names: tuple[str, ...]


@dataclass(frozen=True)
class Answer:
    """Neighbours of one query, and statistics of the search.

    Parameters
    ----------
    merged : Merged
        Objects in the total order.
    exact : bool
        True if no other object of a provider can come earlier; false if an index is approximate or
        a provider is missing. The certificate over the returned objects is checked in any case.
    n_returned : mapping of str to int
        Objects returned by each provider.
    verified : mapping of str to int
        Objects whose distance each provider computed.
    algorithm : str
        Algorithm that was run.
    answered : tuple of str
        Providers whose objects were searched, ascending.
    missing : mapping of str to str
        Missing providers, and the reasons; empty unless partial answers are allowed.
    trust : str
        Protection against disclosure by the broker: ``"trusted"`` means none.
    """

    merged: Merged
    exact: bool
    n_returned: Mapping[str, int]
    verified: Mapping[str, int]
    algorithm: str
    answered: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    trust: str = "trusted"


class Roll:
    """Providers that participate in a query.

    Parameters
    ----------
    allow_partial : bool
        Continue without a missing provider. Otherwise raise an error.

    Attributes
    ----------
    missing : dict of str to str
        Missing providers, and the reasons.
    """

    def __init__(self, *, allow_partial: bool = False) -> None:
        self.missing: dict[str, str] = {}
        self._allow_partial = allow_partial
        self._names: tuple[str, ...] | None = None

    def __contains__(self, name: str) -> bool:
        return name not in self.missing

    def ask(self, request: Message) -> Ask:
        """Return one request for all present providers.

        The first exchange goes to all providers.
        """
        if self._names is None or not self.missing:
            return gather(request)
        return gather({name: request for name in self._names if name in self})

    def read(self, replies: Replies, during: str) -> dict[str, Any]:
        """Return the replies by provider; exclude providers without a reply.

        Raises
        ------
        PartyMissing
            If a provider is missing and partial answers are not allowed, or all are missing.
        """
        if replies.missing and not self._allow_partial:
            raise PartyMissing(replies.missing, during)
        if self._names is None:
            self._names = tuple(sorted([*replies.each, *replies.missing]))
        self.missing |= replies.missing
        if len(self.missing) == len(self._names):
            raise PartyMissing(self.missing, during)
        return dict(replies.each)

    def left(self, of: Mapping[str, Any]) -> dict[str, Any]:
        """Return the entries of present providers."""
        return {name: value for name, value in of.items() if name in self}


Returned = tuple[dict[str, Part], dict[str, int]]


Estimate = Callable[[Mapping[str, Floats], int], Mapping[str, int]]
"""Function from the k lowest bounds of each provider to its first request size."""


def baseline(
    query: bytes, k: int, *, name: str, allow_partial: bool = False
) -> Coordinator[Answer]:
    """Ask every provider for its k nearest and merge them (section 4.1).

    Parameters
    ----------
    query : bytes
        Query as bytes for providers.
    k : int
        Number of neighbours, 1 or more.
    name : str
        Unique name of the query at the providers.
    allow_partial : bool
        Leave out a missing provider, and report it in the answer. Otherwise
        :class:`~fedneighbors.errors.PartyMissing` is raised.
    """
    roll = Roll(allow_partial=allow_partial)
    replies = yield roll.ask(NearestRequest(name, query, k, None))
    parts, verified = read_parts(replies, "the nearest objects", roll=roll)
    return certify_answer(parts, verified, k, algorithm="baseline", roll=roll)


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
        Minimum of the first counts; ``ceil(k / m)`` is the option of Lemma 4.7.
    with_cutoff : bool
        Send the position of the k-th object found so far in the second round.
    estimate : callable
        Function from bounds to first counts. The paper's is
        :func:`~fedneighbors.methods.fedknn.algorithm.expected_counts`.
    """
    roll = Roll(allow_partial=allow_partial)
    bounds = yield from ask_bounds(query, k, name=name, roll=roll)
    first = {
        provider: NearestRequest(name, query, max(count, at_least, 1), None)
        for provider, count in estimate(bounds, k).items()
    }
    found = read_parts((yield gather(first)), "the first round", roll=roll)
    parts, verified = yield from second_round(
        found, k, query=query, name=name, roll=roll, with_cutoff=with_cutoff
    )
    check_distances_against_bounds(parts, bounds, k=k)
    return certify_answer(parts, verified, k, algorithm="dann", roll=roll)


def ask_bounds(query: bytes, k: int, *, name: str, roll: Roll) -> Coordinator[dict[str, Floats]]:
    """Ask every provider for its k lowest bounds."""
    replies = yield roll.ask(BoundRequest(name, query, k))
    each = roll.read(replies, "the lower bounds")
    bounds = {provider: reply.bounds for provider, reply in each.items()}
    check_bounds(bounds, k)
    return bounds


def second_round(
    found: Returned, k: int, *, query: bytes, name: str, roll: Roll, with_cutoff: bool = True
) -> Coordinator[Returned]:
    """Request the objects that may still be in the result.

    Algorithm 1, lines 15-24.

    One request is enough: the requested objects of each provider reach the k-th position. Only if a
    provider is missing then must others replace its objects.
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
        parts, verified = join_parts(parts, again), verified | so_far


def read_parts(
    replies: Replies,
    during: str,
    *,
    roll: Roll,
    within: float | None = None,
    tie: int | None = None,
) -> tuple[dict[str, Part], dict[str, int]]:
    """Return the providers' objects and their verified counts.

    Parameters
    ----------
    replies : Replies
        Replies of :class:`NearestReply`.
    during : str
        Name of the request for errors.
    roll : Roll
        Participating providers.
    within, tie : float and int, optional
        The cutoff of the request, and its tie key.

    Raises
    ------
    PartyMissing
        If a provider is missing and partial answers are not allowed.
    """
    each = roll.read(replies, during)
    limit = math.inf if within is None else within, LAST_TIE if tie is None else tie
    parts = {
        provider: Part(reply.distances, reply.ties, reply.ids, reply.exhausted, reply.exact, *limit)
        for provider, reply in each.items()
    }
    return parts, {provider: reply.n_verified for provider, reply in each.items()}


def join_parts(parts: Mapping[str, Part], more: Mapping[str, Part]) -> dict[str, Part]:
    """Return each provider's part with its next one appended.

    Raises
    ------
    ProtocolError
        If a provider's next objects are not after its first, or one is repeated; the error names
        it.
    """
    result = dict(parts)
    for provider, part in more.items():
        result[provider] = parts[provider].append(part) if provider in parts else part
        _check_order(provider, result[provider])
    return result


def certify_answer(
    parts: Mapping[str, Part],
    verified: Mapping[str, int],
    k: int,
    *,
    algorithm: str,
    roll: Roll,
) -> Answer:
    """Check that the objects are the k nearest and build the answer.

    Parameters
    ----------
    parts, verified
        By provider; providers that are missing by now are ignored.
    k : int
        Number of neighbours.
    algorithm : str
        Algorithm that was run.
    roll : Roll
        Participating providers.

    Raises
    ------
    ProtocolError
        If a provider's objects contradict each other, or the result is not certified.
    """
    used = roll.left(parts)
    for provider, part in used.items():
        _check_order(provider, part)
    merged = merge(used, k)
    if not is_certified(used, merged, k):
        raise ProtocolError(
            "the result is not certified: a provider returned fewer objects than requested; run "
            "the query again, or without it"
        )
    return build_answer(used, verified, merged, algorithm=algorithm, roll=roll)


def build_answer(
    parts: Mapping[str, Part],
    verified: Mapping[str, int],
    merged: Merged,
    *,
    algorithm: str,
    roll: Roll,
) -> Answer:
    """Return the answer of these parts and their merge."""
    return Answer(
        merged=merged,
        exact=not roll.missing and all(part.exact for part in parts.values()),
        n_returned={provider: len(part) for provider, part in parts.items()},
        verified={provider: verified[provider] for provider in parts},
        algorithm=algorithm,
        answered=tuple(sorted(parts)),
        missing=dict(roll.missing),
    )


def _check_order(provider: str, part: Part) -> None:
    if len(set(part.ids)) < len(part.ids):
        raise ProtocolError(f"party {provider!r}: an object is repeated in the second round")
    rise = np.diff(part.distances)
    if (rise < 0).any() or ((rise == 0) & (np.diff(part.ties) <= 0)).any():
        raise ProtocolError(f"party {provider!r}: its second objects are before its first")


def farewell(names: Sequence[str] | Mapping[str, Sequence[str]]) -> Coordinator[None]:
    """Close queries.

    No answer waits for it; missing replies are ignored.

    Parameters
    ----------
    names : sequence of str, or mapping of str to sequence of str
        Names of the queries to close, at all providers or by provider.
    """
    if isinstance(names, Mapping):
        yield gather({provider: FinishRequest(tuple(own)) for provider, own in names.items()})
    else:
        yield gather(FinishRequest(tuple(names)))
