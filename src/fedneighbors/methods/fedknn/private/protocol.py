"""Coordinator of DANN* (Algorithm 2): counts that reveal little about other providers.

Providers see the query and their own two counts, which are noisy. Replies have a fixed size and are
delayed to a time grid. The broker's merge accesses memory independently of the data. Comments name
the lines of the algorithm; PAPER.md lists the corrections and has the proofs.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedneighbors._typing import Booleans, Floats, Integers
from fedneighbors.errors import ProtocolError
from fedneighbors.federation._loop import Coordinator, gather
from fedneighbors.federation._messages import Message
from fedneighbors.methods.fedknn.private._noise import hash_parts
from fedneighbors.methods.fedknn.private._oblivious import ReturnedObjects, count_bounds
from fedneighbors.methods.fedknn.private._padding import (
    MAX_NAME_BYTES,
    PaddedBoundReply,
    PaddedBoundRequest,
    PaddedNearestReply,
    PaddedNearestRequest,
)
from fedneighbors.methods.fedknn.protocol import Answer

Flags = Booleans

_NAME = np.dtype((np.void, MAX_NAME_BYTES))

NoiseOf = Callable[[bytes, tuple[str, ...]], Mapping[str, tuple[int, int]]]
"""Function from the federation's epoch and the providers to the noise on both counts of each.

It charges for the noise, and returns the same noise for the same query and epoch.
"""


def dann_star(
    query: bytes,
    k: int,
    *,
    name: str,
    noise_of: NoiseOf,
    always_exact: bool = True,
    grid_s: float = 0.0,
) -> Coordinator[Answer]:
    """Find the k nearest objects with noisy counts (Algorithm 2, corrected).

    Parameters
    ----------
    query : bytes
        Query as bytes for providers.
    k : int
        Number of neighbours, 1 or more.
    name : str
        Unique name of the query at the providers.
    noise_of : callable
        Function that returns the noise, see :data:`NoiseOf`.
    always_exact : bool
        True if the noise rules out requests for too few objects. A result that is not certified is
        then an error; if False, such an answer is marked as not exact.
    grid_s : float
        Replies are delayed to this many seconds after the request, times a power of two; 0 for no
        delay.

    Raises
    ------
    BudgetExceeded
        If the budget for the noise is spent; no count was sent to a provider.
    ProtocolError
        If a provider violates the protocol; the error names the provider if it is known.
    """
    # Phase 1, lines 5-10: lower bounds
    replies = yield gather(PaddedBoundRequest(name, query, k, grid_s))
    each = replies.complete("the lower bounds").each
    counts = count_bounds({provider: reply.bounds for provider, reply in each.items()}, k)
    noise = noise_of(_digest_epoch(each), tuple(sorted(each)))
    # Phase 2, lines 11-16: the first round; then the second one
    first = {
        provider: first_request_size(count, noise[provider][0], k)
        for provider, count in counts.items()
    }
    request = PaddedNearestRequest(name, query, np.zeros(1, np.int64), k, grid_s)
    replies = yield gather(_make_requests(request, first))
    returned = ReturnedObjects.of(replies.complete("the first round").each)
    bounds = {provider: reply.bounds for provider, reply in each.items()}
    return (
        yield from _continue(
            request, returned, first, noise, bounds=bounds, always_exact=always_exact
        )
    )


def dann_star_in_two(
    query: bytes,
    k: int,
    *,
    name: str,
    first: int,
    noise_of: NoiseOf,
    always_exact: bool = True,
    grid_s: float = 0.0,
) -> Coordinator[Answer]:
    """Find the k nearest in two exchanges; only second counts are noisy.

    Parameters
    ----------
    query, k, name, always_exact, grid_s
        As for :func:`dann_star`.
    first : int
        First count of each provider, from 1 to k: a function of public numbers.
    noise_of : callable
        As for :func:`dann_star`. The noise of the first counts is not used. In place of the epoch,
        the function gets a digest of the first objects, from which the second counts are computed.

    Raises
    ------
    BudgetExceeded, ProtocolError
        As for :func:`dann_star`.
    """
    request = PaddedNearestRequest(name, query, np.array([first], np.int64), k, grid_s)
    replies = yield gather(request)
    each = replies.complete("the first round").each
    noise = noise_of(_digest_objects(each), tuple(sorted(each)))
    returned, counts = ReturnedObjects.of(each), dict.fromkeys(each, first)
    return (yield from _continue(request, returned, counts, noise, always_exact=always_exact))


def _continue(
    request: PaddedNearestRequest,
    returned: ReturnedObjects,
    first: Mapping[str, int],
    noise: Mapping[str, tuple[int, int]],
    *,
    bounds: Mapping[str, Floats] | None = None,
    always_exact: bool,
) -> Coordinator[Answer]:
    """Run the second round (lines 17-23), and return the answer.

    It continues from the requested counts ``first``; ``request`` is that of the first round.
    """
    k = request.k
    second = {
        provider: second_request_size(first[provider], rank, noise[provider][1], k)
        for provider, rank in returned.ranks_of_last().items()
    }
    replies = yield gather(_make_requests(request, second))
    more = ReturnedObjects.of(replies.complete("the second round").each)
    _check_order(returned, more)
    returned = returned.append(more)
    if bounds is not None:
        _check_bounds(bounds, returned)
    is_certified = returned.is_certified()
    if always_exact and not is_certified:
        raise ProtocolError(
            "the result is not certified, which noise cannot cause: a provider returned fewer "
            "objects than requested; run the query again, or without this provider"
        )
    return _make_answer(returned, is_certified=is_certified, algorithm="dann*")


def dann_star_as_printed(
    query: bytes, k: int, *, name: str, noise_of: NoiseOf, grid_s: float = 0.0
) -> Coordinator[Answer]:
    """Run Algorithm 2 as printed, for comparison; its answers are often wrong.

    The second count starts from the count without noise (line 20), and the result consists of the
    second round's objects only (line 22), which may be fewer than the first round's.

    Parameters
    ----------
    query, k, name, noise_of, grid_s
        As for :func:`dann_star`.
    """
    replies = yield gather(PaddedBoundRequest(name, query, k, grid_s))
    each = replies.complete("the lower bounds").each
    bounds = {provider: reply.bounds for provider, reply in each.items()}
    counts = {provider: max(n, 1) for provider, n in count_bounds(bounds, k).items()}
    noise = noise_of(_digest_epoch(each), tuple(sorted(each)))
    first = {
        provider: first_request_size(count, noise[provider][0], k)
        for provider, count in counts.items()
    }
    request = PaddedNearestRequest(name, query, np.zeros(1, np.int64), k, grid_s)
    replies = yield gather(_make_requests(request, first))
    returned = ReturnedObjects.of(replies.complete("the first round").each)
    second = {
        provider: first_request_size(counts[provider] + k - rank, noise[provider][1], k)
        for provider, rank in returned.ranks_of_last().items()
    }
    more = {provider: max(second[provider] - first[provider], 0) for provider in second}
    replies = yield gather(_make_requests(request, more))
    returned = returned.append(ReturnedObjects.of(replies.complete("the second round").each))
    returned = returned.truncate(second)
    return _make_answer(returned, is_certified=False, algorithm="dann* as printed")


def first_request_size(count: int, noise: int, k: int) -> int:
    """Return a provider's first request size, from 1 to k (lines 12-13)."""
    return min(max(count + noise, 1), k)


def second_request_size(first: int, rank: int, noise: int, k: int) -> int:
    """Return a provider's second request size.

    No provider is asked for more than k objects in both rounds.

    Parameters
    ----------
    first : int
        Number of objects requested in the first round. The second request continues from there, not
        from the count without noise (line 20 as printed).
    rank : int
        Rank of the provider's last object (q_i).
    noise : int
        Noise on the second count.
    k : int
        Number of neighbours.
    """
    return min(max(k - rank + noise, 0), k - first)


def _digest_epoch(replies: Mapping[str, PaddedBoundReply]) -> bytes:
    """Return a digest that changes when the objects of a provider change.

    It includes the bounds: a provider that sends other bounds in the same epoch gets other noise,
    which is charged, and cannot compute the difference of two values with the same noise.
    """
    return hash_parts(
        part
        for provider, reply in sorted(replies.items())
        for part in (provider.encode(), reply.epoch, reply.bounds.tobytes())
    )


def _digest_objects(replies: Mapping[str, PaddedNearestReply]) -> bytes:
    """Return a digest of returned objects.

    Second counts are computed from these objects, so that equal digests have equal counts.
    """
    return hash_parts(
        part
        for provider, reply in sorted(replies.items())
        for part in (
            provider.encode(),
            reply.distances.tobytes(),
            reply.ties.tobytes(),
            reply.names.tobytes(),
            reply.lengths.tobytes(),
        )
    )


def _make_requests(request: PaddedNearestRequest, counts: Mapping[str, int]) -> dict[str, Message]:
    """Return the request with each provider's count."""
    return {
        provider: replace(request, count=np.array([count], np.int64))
        for provider, count in counts.items()
    }


def _check_order(returned: ReturnedObjects, more: ReturnedObjects) -> None:
    """Raise if a provider's objects of both rounds are not in order."""
    rows, n, n_more = np.arange(len(returned.providers)), returned.n_objects, more.n_objects
    distances, ties = returned.distances[rows, 0, n - 1], returned.ties[rows, 0, n - 1]
    next_distances, next_ties = more.distances[:, 0, 0], more.ties[:, 0, 0]
    before = next_distances < distances
    before |= (next_distances == distances) & (next_ties <= ties)
    repeated = [
        not _list_names(part).isdisjoint(_list_names(next_part))
        for part, next_part in zip(returned.replies[0], more.replies[0], strict=True)
    ]
    for broken, reason in (
        ((n_more > 0) & returned.exhausted, "it had no more objects, but returned some"),
        ((n_more > 0) & (n > 0) & before, "its second objects do not follow its first"),
        (np.array(repeated), "an object is repeated in the second round"),
    ):
        _raise_first(returned, broken, reason)


def _list_names(reply: PaddedNearestReply) -> set[tuple[bytes, int]]:
    """Return a reply's names and lengths, as names may end in zeros."""
    n = int(reply.numbers[0])
    names: list[Any] = reply.names[:n].view(_NAME).ravel().tolist()
    return set(zip(names, reply.lengths[:n].tolist(), strict=True))


def _check_bounds(bounds: Mapping[str, Floats], returned: ReturnedObjects) -> None:
    """Raise for objects that contradict their provider's lower bounds.

    The j-th smallest distance is never below the j-th smallest bound, and a provider sends as many
    bounds as it has objects, at most k.
    """
    table = np.array([bounds[provider] for provider in returned.providers])
    rows = np.arange(len(table))[:, np.newaxis, np.newaxis]
    minima = table[rows, np.minimum(returned.positions, returned.k - 1)]
    nearer: Any = returned.distances < minima
    _raise_first(
        returned, nearer.any(axis=(1, 2)), "an object is nearer than its lower bounds allow"
    )
    n = returned.n_objects
    n_bounds: Integers = np.isfinite(table).sum(axis=1)
    missing = returned.exhausted & returned.exact & (n < n_bounds)
    row = int(missing.argmax())
    _raise_first(
        returned, missing, f"it has no more than {n[row]} objects, but sent {n_bounds[row]} bounds"
    )


def _raise_first(returned: ReturnedObjects, broken: Flags, reason: str) -> None:
    """Raise an error that names the first provider with a violation."""
    if broken.any():
        raise ProtocolError(f"party {returned.providers[int(broken.argmax())]!r}: {reason}")


def _make_answer(returned: ReturnedObjects, *, is_certified: bool, algorithm: str) -> Answer:
    return Answer(
        merged=returned.nearest(),
        exact=is_certified and bool(returned.exact.all()),
        n_returned=dict(zip(returned.providers, returned.n_objects.tolist(), strict=True)),
        verified=returned.verified,
        algorithm=algorithm,
        answered=returned.providers,
    )
