"""The broker's side of FedKNN: the algorithms of the paper as coordinators.

Each is sent the query as bytes and returns an :class:`Answer`. The order of objects is total, so
that every one of them gives the same answer to the last tie.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedneighbors.errors import ProtocolError
from fedneighbors.federation.roles import Coordinator, Replies, gather
from fedneighbors.methods.fedknn.algorithm import (
    Merged,
    Part,
    certified,
    expected_counts,
    merge,
    remaining_counts,
)
from fedneighbors.methods.fedknn.messages import (
    BoundRequest,
    CountRequest,
    FinishRequest,
    NearestRequest,
)

__all__ = ["Answer", "baseline", "dann", "hufu"]

_HALVINGS = 64


@dataclass(frozen=True)
class Answer:
    """The neighbours of one query and how they were found.

    Parameters
    ----------
    merged : Merged
        Objects in the total order.
    exact : bool
        Whether nothing that a provider holds can come before; false where one has an approximate
        index. The certificate over what was returned is checked in either case.
    asked : mapping of str to int
        Objects that each provider returned.
    verified : mapping of str to int
        Objects whose distance each provider computed.
    algorithm : str
        What was run.
    """

    merged: Merged
    exact: bool
    asked: Mapping[str, int]
    verified: Mapping[str, int]
    algorithm: str


def baseline(query: bytes, k: int, *, name: str) -> Coordinator[Answer]:
    """Ask every provider for its k nearest and merge them (section 4.1).

    Parameters
    ----------
    query : bytes
        As providers decode it.
    k : int
        Neighbours, 1 or more.
    name : str
        Names the query at the providers, new for each.
    """
    replies = yield gather(NearestRequest(name, query, k, None))
    parts, verified = _parts(replies, "the nearest objects")
    return (yield from _finished(parts, verified, k, name=name, algorithm="baseline"))


def dann(
    query: bytes, k: int, *, name: str, at_least: int = 1, with_cutoff: bool = True
) -> Coordinator[Answer]:
    """Find the k nearest objects in three exchanges (Algorithm 1).

    Parameters
    ----------
    query, k, name
        As for :func:`baseline`.
    at_least : int
        Floor of the first counts; ``ceil(k / m)`` is the option of Lemma 4.7.
    with_cutoff : bool
        Send the k-th distance found so far along in the second round.
    """
    replies = yield gather(BoundRequest(name, query, k))
    bounds = {
        provider: reply.bounds
        for provider, reply in replies.complete("the lower bounds").each.items()
    }
    counts = expected_counts(bounds, k, at_least=at_least)
    replies = yield gather(
        {provider: NearestRequest(name, query, count, None) for provider, count in counts.items()}
    )
    parts, verified = _parts(replies, "the first round")
    merged = merge(parts, k)
    more = remaining_counts(parts, merged, k)
    if more:
        cutoff = float(merged.distances[-1]) if with_cutoff and len(merged.ids) == k else None
        replies = yield gather(
            {
                provider: NearestRequest(name, query, count, cutoff)
                for provider, count in more.items()
            }
        )
        seconds, again = _parts(replies, "the second round")
        parts |= {provider: parts[provider].then(part) for provider, part in seconds.items()}
        verified |= again
    return (yield from _finished(parts, verified, k, name=name, algorithm="dann"))


def hufu(query: bytes, k: int, *, name: str) -> Coordinator[Answer]:
    """Find the smallest radius with k objects by range counts, then fetch what lies within.

    The extension of HuFu to any metric that the paper compares with (HuFu-Ext): a binary search
    over the radius, a range count of every provider at each step.
    """
    replies = yield gather(CountRequest(name, query, float(np.finfo(np.float64).max)))
    total = sum(reply.count for reply in replies.complete("the counts").each.values())
    low, high = 0.0, 1.0
    while total and (yield from _count(query, high, name)) < min(k, total):
        low, high = high, high * 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        if (yield from _count(query, middle, name)) >= min(k, total):
            high = middle
        else:
            low = middle
    replies = yield gather(NearestRequest(name, query, total + 1, high))  # one more than there are
    parts, verified = _parts(replies, "the objects within the radius")
    return (yield from _finished(parts, verified, k, name=name, algorithm="hufu"))


def _count(query: bytes, radius: float, name: str) -> Coordinator[int]:
    replies = yield gather(CountRequest(name, query, radius))
    return sum(reply.count for reply in replies.complete("the counts").each.values())


def _parts(replies: Replies, during: str) -> tuple[dict[str, Part], dict[str, int]]:
    each = replies.complete(during).each
    parts = {
        provider: Part(reply.distances, reply.ties, reply.ids, reply.exhausted, reply.exact)
        for provider, reply in each.items()
    }
    return parts, {provider: reply.n_verified for provider, reply in each.items()}


def _finished(
    parts: Mapping[str, Part], verified: Mapping[str, int], k: int, *, name: str, algorithm: str
) -> Coordinator[Answer]:
    """Close the query, check what was returned, and put the answer together."""
    (yield gather(FinishRequest(name))).complete("the farewell")
    for provider, part in parts.items():
        if len(set(part.ids)) < len(part.ids):
            raise ProtocolError(f"party {provider!r}: an object came in both rounds")
        rise = np.diff(part.distances)
        if (rise < 0).any() or ((rise == 0) & (np.diff(part.ties) <= 0)).any():
            raise ProtocolError(f"party {provider!r}: its second objects come before its first")
    merged = merge(parts, k)
    if not certified(parts, merged, k):
        raise ProtocolError(
            "the result is not certain: a provider returned less than it was asked for; run the "
            "query again, or without it"
        )
    return Answer(
        merged=merged,
        exact=all(part.exact for part in parts.values()),
        asked={provider: len(part) for provider, part in parts.items()},
        verified=dict(verified),
        algorithm=algorithm,
    )
