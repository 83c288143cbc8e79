"""Providers that replay a recorded sample, and the replay of an algorithm over them.

The coordinator of the algorithm itself runs with these providers. Its requests depend on bounds,
distances and tie keys only, so they are the same as with the real providers.
"""

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedneighbors.federation._loop import Coordinator, Delivery, Replies, read_reply, run_rounds
from fedneighbors.federation._messages import Message, encode
from fedneighbors.federation._roles import Refused
from fedneighbors.methods.fedknn._provider import take_nearest
from fedneighbors.methods.fedknn.metrics._sessions import SessionBatch
from fedneighbors.methods.fedknn.planner._costs import SampleReply
from fedneighbors.methods.fedknn.private._padding import (
    EPOCH_BYTES,
    PaddedBoundRequest,
    PaddedNearestRequest,
    pad_bounds,
    pad_nearest,
)
from fedneighbors.methods.fedknn.protocol import (
    Answer,
    BoundReply,
    BoundRequest,
    NearestReply,
    NearestRequest,
)
from fedneighbors.records import Round

Candidate = Callable[..., Coordinator[Answer]]
"""Function from a query as bytes, k and ``name=`` to the coordinator of an algorithm."""

_LAST_TIES = 1 << 62  # above all tie keys


class SampledProvider:
    """A provider that answers one query from a recorded sample.

    Parameters
    ----------
    name : str
        Name of the provider.
    sample : SampleReply
        Its reply to a sample request. If the time limit ended the sample, the distances of further
        objects are assumed to be their lower bounds, and the time for k objects to be the time
        limit, or longer by extrapolation. Real distances and times may be larger.
    k : int
        Number of objects requested in the sample.
    limit_s : float
        Time limit of the sample.

    Attributes
    ----------
    spent_s : float
        Seconds that the real provider would have spent so far.
    n_verified : int
        Number of objects returned so far.
    """

    def __init__(self, name: str, sample: SampleReply, *, k: int, limit_s: float) -> None:
        self.name = name
        self.spent_s = 0.0
        self.n_verified = 0
        self.exact = sample.exact
        self._sample = sample
        self._search_s = 0.0  # part of spent_s
        self._is_open = self._has_bounds = False
        self._distances, self._ties, self._ids = sample.distances, sample.ties, sample.ids
        self._steps = [0, *sample.steps.tolist()]
        self._reached_s = [0.0, *sample.reached_s.tolist()]
        if not sample.complete:
            self._extrapolate(k, limit_s)

    def answer(self, request: Message) -> Message:
        """Return the real provider's reply and add its predicted seconds."""
        match request:
            case BoundRequest():
                self._open(with_bounds=True)
                return BoundReply(self._sample.bounds[: request.k])
            case NearestRequest():
                return self._answer_nearest(request.count, request.cutoff, request.tie)
            case PaddedBoundRequest():
                with self._delay_to_grid(request.grid_s):
                    self._open(with_bounds=True)
                    return pad_bounds(self._sample.bounds, request.k, bytes(EPOCH_BYTES))
            case PaddedNearestRequest():
                with self._delay_to_grid(request.grid_s):
                    return pad_nearest(self._answer_nearest(int(request.count[0])), request.k)
        raise Refused("a recorded sample does not support this", type(request).__name__)

    def next(
        self,
        k: int,
        *,
        cutoff: float = math.inf,
        deadline_s: float | None = None,  # noqa: ARG002 - a replay is never late
    ) -> SessionBatch:
        """Emit the next objects, like a session of the real provider."""
        first = self.n_verified
        n_within = int(self._distances.searchsorted(cutoff, side="right"))
        last = min(first + k, max(n_within, first))
        self._add_search_time(last, cutoff=cutoff if last < first + k else None)
        self.n_verified = last
        return SessionBatch(
            positions=np.arange(first, last),
            distances=self._distances[first:last],
            # nothing is known beyond the end of the sample; exhaustion lets the coordinator finish
            exhausted=last < first + k or (last >= n_within and self._is_end(last)),
            n_certified=last - first,
        )

    def bounds(self) -> npt.NDArray[np.float64]:
        """Return the lowest bounds, ascending."""
        return self._sample.bounds

    def count(self, radius: float) -> int:
        """Raise, because a sample ends with the k-th object."""
        raise Refused("a recorded sample does not support this", f"the objects within {radius}")

    def _answer_nearest(
        self, count: int, cutoff: float | None = None, tie: int | None = None
    ) -> NearestReply:
        self._open(with_bounds=False)
        return take_nearest(self, count, cutoff=cutoff, tie=tie, ties=self._ties, ids=self._ids)

    def _is_end(self, n: int) -> bool:
        """Return whether it is known that no object follows within the cutoff.

        The n-th object is the last of the sample within it.
        """
        return n < len(self._distances) or self._sample.exhausted

    def _open(self, *, with_bounds: bool) -> None:
        if not self._is_open:
            self.spent_s += self._sample.open_s
        if with_bounds and not self._has_bounds:
            self.spent_s += self._sample.bounds_s
        self._is_open = True
        self._has_bounds = self._has_bounds or with_bounds

    def _add_search_time(self, last: int, *, cutoff: float | None) -> None:
        """Add the seconds to find ``last`` objects and search to ``cutoff``."""
        end = float(last)
        if cutoff is not None and last < len(self._distances):
            before = self._distances[last - 1] if last else 0.0
            gap = float(self._distances[last] - before)
            end += (cutoff - float(before)) / gap if gap > 0 else 0.0
        seconds = self._interpolate_seconds(end)
        self.spent_s += max(seconds - self._search_s, 0.0)
        self._search_s = max(seconds, self._search_s)

    def _interpolate_seconds(self, n: float) -> float:
        """Return the seconds of search to the n-th object.

        If bounds were not requested, they include the work that bounds would have done.
        """
        seconds = float(np.interp(n, self._steps, self._reached_s))
        if self._has_bounds or n == 0 or len(self._steps) < 2:
            return seconds
        return seconds + float(max(self._sample.first_s - self._reached_s[1], 0.0))

    def _extrapolate(self, k: int, limit_s: float) -> None:
        """Extend distances and times beyond the time limit of the sample."""
        n, lowest = len(self._distances), self._sample.bounds
        last = self._distances[-1:] if n else np.zeros(1)
        self._distances = np.concatenate([self._distances, np.maximum(lowest[n:], last)])
        n_more = len(self._distances) - n
        self._ties = np.concatenate([self._ties, _LAST_TIES + np.arange(n_more)])
        self._ids = (*self._ids, *(f"not reached {i}" for i in range(n_more)))
        extrapolated_s = max(k, 1) / max(self._steps[-1], 1) * self._reached_s[-1]
        if k > self._steps[-1]:
            self._steps.append(k)
            self._reached_s.append(max(limit_s, extrapolated_s))

    @contextmanager
    def _delay_to_grid(self, grid_s: float) -> Iterator[None]:
        before = self.spent_s
        yield
        if grid_s > 0:
            self.spent_s = before + grid_s * np.ceil((self.spent_s - before) / grid_s)


@dataclass(frozen=True)
class Replay:
    """Predicted answer, exchanges and times of one query.

    Parameters
    ----------
    answer : Answer
        The coordinator's answer.
    exchanges : tuple of Round
        Exchanges in order, with the seconds of search of each provider.
    broker_s : float
        Seconds of the coordinator, and of encoding and decoding messages.
    """

    answer: Answer
    exchanges: tuple[Round, ...]
    broker_s: float


def replay(coordinator: Coordinator[Answer], providers: Mapping[str, SampledProvider]) -> Replay:
    """Run a coordinator over recorded providers.

    Raises
    ------
    Refused
        If it requests data that samples do not contain, such as range counts.
    FederationError
        Any exception of the coordinator.
    """
    watch = _Stopwatch()
    transport = _SampleTransport(providers, watch)
    outcome = run_rounds(coordinator, transport, watch=watch, log_level=logging.DEBUG)
    return Replay(outcome.result, outcome.rounds, watch.spent_s)


class _Stopwatch:
    """Context manager that adds up the wall seconds of its blocks."""

    def __init__(self) -> None:
        self.spent_s = 0.0

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.spent_s += time.perf_counter() - self._start


class _SampleTransport:
    """Transport to recorded providers; the watch measures encoding and decoding."""

    def __init__(self, providers: Mapping[str, SampledProvider], watch: _Stopwatch) -> None:
        self.names = tuple(sorted(providers))
        self._providers = providers
        self._watch = watch

    def deliver(
        self,
        requests: Mapping[str, Message],
        *,
        reduce: Literal["gather", "sum"],  # noqa: ARG002 - searches do not request sums
    ) -> Delivery:
        each, upload_bytes, busy_s, encoding_s = {}, {}, {}, 0.0
        with self._watch:
            download_bytes = {name: len(encode(request)) for name, request in requests.items()}
        for name in sorted(requests):
            before = self._providers[name].spent_s
            reply, encoding = self._providers[name].answer(requests[name]), _Stopwatch()
            busy_s[name] = self._providers[name].spent_s - before
            with encoding:
                frame = encode(reply)
            upload_bytes[name], encoding_s = len(frame), max(encoding_s, encoding.spent_s)
            with self._watch:
                each[name] = read_reply(name, requests[name], frame)
        self._watch.spent_s += encoding_s  # the longest, because providers encode in parallel
        return Delivery(Replies(each, None, {}), upload_bytes, download_bytes, busy_s)
