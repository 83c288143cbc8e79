"""The broker's side of FedKNN: the algorithms of the paper as coordinators.

Each is sent the query as bytes and returns an :class:`Answer`. The order of objects is total, so
that every one of them gives the same answer to the last tie.
"""

import numpy as np

from fedneighbors.federation.roles import Coordinator, gather
from fedneighbors.methods.fedknn.algorithm import (
    expected_counts,
    merge,
    remaining_counts,
)
from fedneighbors.methods.fedknn.answers import Answer, finished, read_parts
from fedneighbors.methods.fedknn.messages import (
    BoundRequest,
    CountRequest,
    NearestRequest,
)

__all__ = ["Answer", "baseline", "dann", "hufu"]

_HALVINGS = 64


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
    parts, verified = read_parts(replies, "the nearest objects")
    return (yield from finished(parts, verified, k, name=name, algorithm="baseline"))


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
    parts, verified = read_parts(replies, "the first round")
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
        seconds, again = read_parts(replies, "the second round")
        parts |= {provider: parts[provider].then(part) for provider, part in seconds.items()}
        verified |= again
    return (yield from finished(parts, verified, k, name=name, algorithm="dann"))


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
    parts, verified = read_parts(replies, "the objects within the radius")
    return (yield from finished(parts, verified, k, name=name, algorithm="hufu"))


def _count(query: bytes, radius: float, name: str) -> Coordinator[int]:
    replies = yield gather(CountRequest(name, query, radius))
    return sum(reply.count for reply in replies.complete("the counts").each.values())
