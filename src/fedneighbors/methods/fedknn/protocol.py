"""FedKNN's messages and coordinators: the algorithms of the paper.

Each coordinator takes the query as bytes and returns an :class:`Answer`. The order of objects is
total, so all coordinators give the same answer, ties included. With ``allow_partial`` a provider
that is missing in an exchange is excluded from the rest of the query, with its objects, and the
answer reports it. Queries stay open at the providers until :func:`close_queries`, a separate
exchange after the search.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from fedneighbors._typing import Floats, Integers
from fedneighbors.errors import PartyMissing, ProtocolError
from fedneighbors.federation._loop import Ask, Coordinator, Replies, gather
from fedneighbors.federation._messages import Message, message
from fedneighbors.methods.fedknn._names import Names
from fedneighbors.methods.fedknn.algorithm import (
    LAST_TIE,
    Merged,
    Part,
    check_ascending,
    check_bounds,
    check_distances_against_bounds,
    check_order,
    check_query,
    is_certified,
    merge,
    proportional_counts,
    remaining_counts,
)

_MAX_COUNT = 1 << 62
"""Maximum number of objects of a request: with those returned before, it fits 64 bits."""


@message
class BoundReply:
    """The k smallest lower bounds of a provider, ascending; fewer if it has fewer objects."""

    bounds: Floats

    def __post_init__(self) -> None:
        check_ascending("bounds", self.bounds)


@message
class BoundRequest:
    """New query and request for the ``k`` lowest bounds, refused after ``budget_s`` seconds."""

    reply: ClassVar[type] = BoundReply
    name: str
    query: bytes
    k: int
    budget_s: float | None = None

    def __post_init__(self) -> None:
        check_query(self.query, self.name, self.k)


@message
class NearestReply:
    """The next objects of a provider in ascending order of distance and tie key.

    ``exhausted`` is true if no further object is within the limits of the request; ``exact`` is
    false if the provider's index may have missed objects. ``n_verified`` counts the distances
    computed for this query so far. Every object nearer than ``frontier`` has been returned; if
    unknown, it is a number that no distance is below.
    """

    distances: Floats
    ties: Integers
    ids: Names
    exhausted: bool
    exact: bool
    n_verified: int
    frontier: float = 0.0

    def __post_init__(self) -> None:
        check_ascending("distances", self.distances)
        if self.distances.shape != (len(self.ids),) or self.ties.shape != self.distances.shape:
            raise ValueError("distances, ties and ids differ in number")
        check_order(
            self.distances,
            self.ties,
            self.ids,
            unordered="objects are not in ascending order",
            repeated="an object is returned twice",
        )

    def check_n_objects(self, count: int) -> None:
        """Raise unless there are ``count`` objects, or fewer if exhausted."""
        n = len(self.ids)
        if n > count:
            raise ValueError(f"expected {count} objects, got {n}")
        if n < count and not self.exhausted:
            raise ValueError(f"expected {count} objects, got {n}, although more are left")


@message
class NearestRequest:
    """Request for the next ``count`` objects of a query, which it opens if it is new.

    ``cutoff`` excludes objects farther away; None for no limit. Objects at the cutoff distance with
    a tie key above ``tie`` may be omitted.
    """

    reply: ClassVar[type] = NearestReply
    name: str
    query: bytes
    count: int
    cutoff: float | None
    tie: int | None = None

    def __post_init__(self) -> None:
        check_query(self.query, self.name)
        if not 0 <= self.count <= _MAX_COUNT:
            raise ValueError(f"expected a count from 0 to {_MAX_COUNT}, got {self.count}")

    def check(self, party: str, reply: NearestReply) -> None:  # noqa: ARG002 - passed by runtimes
        """Raise for a wrong number of objects, or objects beyond the cutoff."""
        reply.check_n_objects(self.count)
        if self.cutoff is not None and (reply.distances > self.cutoff).any():
            raise ValueError(f"an object is beyond the cutoff of {self.cutoff}")


@message
class RangeCountReply:
    """Number of objects within a radius; at least this number if not ``exact``."""

    count: int
    exact: bool = True


@message
class RangeCountRequest:
    """Request for a count within ``radius`` (None for all), refused after ``budget_s`` seconds."""

    reply: ClassVar[type] = RangeCountReply
    name: str
    query: bytes
    radius: float | None
    budget_s: float | None = None

    def __post_init__(self) -> None:
        check_query(self.query, self.name)


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
        The neighbours, in the total order.
    exact : bool
        True if they are the neighbours among all objects of all providers; false if an index is
        approximate, a provider is missing, or the result of DANN* is not certified.
    n_returned : mapping of str to int
        Number of objects that each provider returned.
    verified : mapping of str to int
        Number of objects whose distance each provider computed.
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


class ActiveProviders:
    """Providers that participate in a query.

    Parameters
    ----------
    allow_partial : bool
        Continue without a missing provider. Otherwise raise an error.
    budget_s : float, optional
        Seconds after which a provider stops computing bounds and counts.

    Attributes
    ----------
    missing : dict of str to str
        Missing providers, and the reasons.
    """

    def __init__(self, *, allow_partial: bool = False, budget_s: float | None = None) -> None:
        self.missing: dict[str, str] = {}
        self.budget_s, self._allow_partial = budget_s, allow_partial
        self._names: tuple[str, ...] | None = None

    def __contains__(self, name: str) -> bool:
        return name not in self.missing

    def ask(self, request: Message) -> Ask:
        """Return an exchange of one request with all active providers."""
        if self._names is None or not self.missing:
            return gather(request)
        return gather({name: request for name in self._names if name in self})

    def read(self, replies: Replies, during: str) -> dict[str, Any]:
        """Return the replies by provider; record providers without a reply as missing.

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

    def select(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the entries of providers that are not missing."""
        return {name: value for name, value in values.items() if name in self}


PartsAndCounts = tuple[dict[str, Part], dict[str, int]]
"""Returned objects, and number of objects whose distance was computed, by provider."""

Estimate = Callable[[Mapping[str, Floats], int], Mapping[str, int]]
"""Function from the k lowest bounds of each provider, and k, to their first request sizes."""


def baseline(
    query: bytes, k: int, *, name: str, allow_partial: bool = False
) -> Coordinator[Answer]:
    """Request the k nearest objects of every provider and merge them.

    Section 4.1 of the paper.

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
    active = ActiveProviders(allow_partial=allow_partial)
    replies = yield active.ask(NearestRequest(name, query, k, None))
    parts, verified = read_parts(replies, "the nearest objects", active=active)
    return certify_answer(parts, verified, k, algorithm="baseline", active=active)


def dann(
    query: bytes,
    k: int,
    *,
    name: str,
    at_least: int = 1,
    with_cutoff: bool = True,
    estimate: Estimate = proportional_counts,
    allow_partial: bool = False,
    budget_s: float | None = None,
) -> Coordinator[Answer]:
    """Find the k nearest objects in three exchanges (Algorithm 1).

    Parameters
    ----------
    query, k, name, allow_partial
        As for :func:`baseline`.
    at_least : int
        Minimum of the first request sizes; Lemma 4.7 proposes ``ceil(k / m)`` for m providers.
    with_cutoff : bool
        Send the k-th place found so far in the second round, so that providers omit later objects.
    estimate : callable
        Function from bounds and k to the first request sizes. The paper's is
        :func:`~fedneighbors.methods.fedknn.algorithm.expected_counts`.
    budget_s : float, optional
        Seconds after which a provider stops computing bounds.
    """
    active = ActiveProviders(allow_partial=allow_partial, budget_s=budget_s)
    bounds = yield from ask_bounds(query, k, name=name, active=active)
    first = {
        provider: NearestRequest(name, query, max(count, at_least, 1), None)
        for provider, count in estimate(bounds, k).items()
    }
    returned = read_parts((yield gather(first)), "the first round", active=active)
    parts, verified = yield from second_round(
        returned, k, query=query, name=name, active=active, with_cutoff=with_cutoff
    )
    check_distances_against_bounds(parts, bounds, k=k)
    return certify_answer(parts, verified, k, algorithm="dann", active=active)


def ask_bounds(
    query: bytes, k: int, *, name: str, active: ActiveProviders
) -> Coordinator[dict[str, Floats]]:
    """Ask every provider for its k lowest bounds."""
    request = BoundRequest(name, query, k, active.budget_s)
    each = active.read((yield active.ask(request)), "the lower bounds")
    bounds = {provider: reply.bounds for provider, reply in each.items()}
    check_bounds(bounds, k)
    return bounds


def second_round(
    returned: PartsAndCounts,
    k: int,
    *,
    query: bytes,
    name: str,
    active: ActiveProviders,
    with_cutoff: bool = True,
) -> Coordinator[PartsAndCounts]:
    """Request the objects that may still be in the result.

    Algorithm 1, lines 15-24.

    One exchange is enough, because each provider is asked for all objects that can be among the k
    nearest. It is repeated if a provider is missing, because others must replace its objects.
    """
    parts, verified = returned
    while True:
        parts = active.select(parts)
        merged = merge(parts, k)
        more = remaining_counts(parts, merged, k)
        if not more:
            return parts, verified
        has_cutoff = with_cutoff and len(merged.ids) >= k
        cutoff, tie = merged.sort_key(k) if has_cutoff else (None, None)
        requests = {p: NearestRequest(name, query, n, cutoff, tie) for p, n in more.items()}
        replies = yield gather(requests)
        new, counts = read_parts(replies, "the second round", active=active, cutoff=cutoff, tie=tie)
        parts, verified = join_parts(parts, new), verified | counts


def read_parts(
    replies: Replies,
    during: str,
    *,
    active: ActiveProviders,
    cutoff: float | None = None,
    tie: int | None = None,
) -> PartsAndCounts:
    """Return each provider's objects, and its number of verified objects.

    Parameters
    ----------
    replies : Replies
        Replies of :class:`NearestReply`.
    during : str
        Name of the exchange, for errors.
    active : ActiveProviders
        Participating providers.
    cutoff, tie : float and int, optional
        As in the request.

    Raises
    ------
    PartyMissing
        If a provider is missing and partial answers are not allowed.
    """
    each = active.read(replies, during)
    limit = math.inf if cutoff is None else cutoff, LAST_TIE if tie is None else tie
    parts = {
        provider: Part(reply.distances, reply.ties, reply.ids, reply.exhausted, reply.exact, *limit)
        for provider, reply in each.items()
    }
    return parts, {provider: reply.n_verified for provider, reply in each.items()}


def join_parts(parts: Mapping[str, Part], more: Mapping[str, Part]) -> dict[str, Part]:
    """Return each provider's objects, followed by its next ones.

    Raises
    ------
    ProtocolError
        If a provider's next objects do not come after its first ones, or one is repeated; the error
        names the provider.
    """
    result = dict(parts)
    for provider, part in more.items():
        result[provider] = part
        if provider in parts:
            result[provider] = joined = parts[provider].append(part)
            try:
                check_order(
                    joined.distances,
                    joined.ties,
                    joined.ids,
                    unordered="its second objects do not follow its first",
                    repeated="an object is repeated in the second round",
                )
            except ValueError as error:
                raise ProtocolError(f"party {provider!r}: {error}") from None
    return result


def certify_answer(
    parts: Mapping[str, Part],
    verified: Mapping[str, int],
    k: int,
    *,
    algorithm: str,
    active: ActiveProviders,
) -> Answer:
    """Check that the objects are the k nearest and build the answer.

    Parameters
    ----------
    parts, verified
        Objects and number of verified objects by provider; missing providers are ignored.
    k : int
        Number of neighbours.
    algorithm : str
        Algorithm that was run.
    active : ActiveProviders
        Participating providers.

    Raises
    ------
    ProtocolError
        If the result is not certified.
    """
    present = active.select(parts)
    merged = merge(present, k)
    if not is_certified(present, merged, k):
        raise ProtocolError(
            "the result is not certified: a provider returned fewer objects than requested; run "
            "the query again, or without it"
        )
    return make_answer(present, verified, merged, algorithm=algorithm, active=active)


def make_answer(
    parts: Mapping[str, Part],
    verified: Mapping[str, int],
    merged: Merged,
    *,
    algorithm: str,
    active: ActiveProviders,
) -> Answer:
    """Return the answer with the merged objects of these parts."""
    return Answer(
        merged=merged,
        exact=not active.missing and all(part.exact for part in parts.values()),
        n_returned={provider: len(part) for provider, part in parts.items()},
        verified={provider: verified[provider] for provider in parts},
        algorithm=algorithm,
        answered=tuple(sorted(parts)),
        missing=dict(active.missing),
    )


def close_queries(names: Sequence[str] | Mapping[str, Sequence[str]]) -> Coordinator[None]:
    """Close queries at the providers; ignore missing replies.

    Parameters
    ----------
    names : sequence of str, or mapping of str to sequence of str
        Names of the queries to close, at all providers or by provider.
    """
    if isinstance(names, Mapping):
        yield gather({provider: FinishRequest(tuple(n)) for provider, n in names.items()})
    else:
        yield gather(FinishRequest(tuple(names)))
