"""Many queries of vectors in one exchange, as the baseline algorithm answers each of them."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedneighbors._limits import MAX_CELLS
from fedneighbors._typing import Floats, Integers
from fedneighbors.errors import ProtocolError
from fedneighbors.federation._loop import Coordinator, Outcome
from fedneighbors.federation._messages import message
from fedneighbors.kernels.vectors._lists import NearestLists
from fedneighbors.methods.fedknn._queries import QueryRecord
from fedneighbors.methods.fedknn.algorithm import MAX_K, Merged
from fedneighbors.methods.fedknn.protocol import ActiveProviders, Answer
from fedneighbors.records import Round

MAX_NEIGHBORS = 1 << 22
"""Maximum number of neighbours in one reply (96 MiB)."""


@message
class NearestBatchReply:
    """The nearest objects of each query, one row a query, in ascending order.

    ``positions`` are those of the objects at their provider.
    """

    distances: Floats
    positions: npt.NDArray[np.int32]

    def __post_init__(self) -> None:
        if self.distances.ndim != 2 or self.positions.shape != self.distances.shape:
            raise ValueError("distances and positions are not tables of one shape")


@message
class NearestBatchRequest:
    """Request for the ``k`` nearest objects of each of several vectors, one a row."""

    reply: ClassVar[type] = NearestBatchReply
    points: Floats
    k: int

    def __post_init__(self) -> None:
        if self.points.ndim != 2 or not 1 <= self.k <= MAX_K:
            raise ValueError(
                f"expected points as a table and k from 1 to {MAX_K}, got {self.points.shape} and "
                f"{self.k}"
            )
        if len(self.points) * self.k > MAX_CELLS:
            raise ValueError(f"expected at most {MAX_CELLS} neighbours in all")

    @cached_property
    def peak(self) -> float:
        """Return a bound of the magnitudes, NaN if any number is."""
        # a rounded sum of squares is never below the square of a power of two that a term exceeds
        return math.sqrt(np.vdot(self.points, self.points))

    def check(self, party: str, reply: NearestBatchReply) -> None:  # noqa: ARG002 - runtimes pass it
        """Raise for a wrong number of queries or objects."""
        n_queries, n_found = reply.distances.shape
        if n_queries != len(self.points) or n_found > self.k:
            raise ValueError(
                f"expected {len(self.points)} queries of up to {self.k} objects, got {n_queries} "
                f"of {n_found}"
            )


@dataclass(frozen=True)
class BatchResult:
    """The nearest objects of several queries.

    Parameters
    ----------
    distances : float64 array of shape (n_queries, n)
        Ascending.
    positions : int64 array of shape (n_queries, n)
        Positions of the objects in the federation.
    sizes : mapping of str to (int, int)
        Number of objects of each provider that answered: returned for a query, and in all.
    missing : mapping of str to str
        Missing providers, and the reasons.
    """

    distances: Floats
    positions: Integers
    sizes: Mapping[str, tuple[int, int]]
    missing: Mapping[str, str]


def nearest_batch(
    points: Floats,
    k: int,
    *,
    objects_of: Mapping[str, tuple[Integers, Integers]],
    allow_partial: bool = False,
) -> Coordinator[BatchResult]:
    """Request every provider's nearest objects of all queries and merge them.

    Parameters
    ----------
    points : float64 array of shape (n_queries, n_columns)
        Queries.
    k : int
        Number of neighbours, 1 or more.
    objects_of : mapping of str to a pair of int64 arrays
        Positions in the federation and tie keys of each provider's objects. Tie keys follow from
        public names, so that replies do not contain them.
    allow_partial : bool
        As for :func:`~fedneighbors.methods.fedknn.protocol.baseline`.
    """
    active = ActiveProviders(allow_partial=allow_partial)
    points = np.ascontiguousarray(points).view()
    points.flags.writeable = False  # as decoded from a request
    replies = yield active.ask(NearestBatchRequest(points, k))
    each = active.read(replies, "the nearest objects")
    names = sorted(each)
    n_found = min(k, sum(len(objects_of[name][0]) for name in names))
    lists = NearestLists(len(points), n_found)
    for name in names:
        _add_reply(lists, name, each[name], objects_of[name], k)
    sizes = {name: (each[name].distances.shape[1], len(objects_of[name][0])) for name in names}
    return BatchResult(lists.distances, lists.rows, sizes, dict(active.missing))


def _add_reply(
    lists: NearestLists,
    name: str,
    reply: NearestBatchReply,
    objects: tuple[Integers, Integers],
    k: int,
) -> None:
    """Check a provider's reply and merge it."""
    rows, ties = objects
    n_found, n_expected = reply.distances.shape[1], min(k, len(rows))
    if n_found != n_expected:
        raise ProtocolError(
            f"party {name!r}: expected {n_expected} objects of a query, got {n_found}"
        )
    try:
        lists.add(reply.distances, reply.positions, ties=ties, rows=rows)
    except ValueError as error:
        raise ProtocolError(f"party {name!r}: {error}") from None


@dataclass(frozen=True)
class BatchCost:
    """Cost of an exchange; the records of its queries are made on request.

    Parameters
    ----------
    sizes, missing : mapping
        As in :class:`BatchResult`.
    rounds : tuple of Round
        The exchange.
    n_queries : int
        Number of queries, which share the cost equally.
    seconds : float
        Total wall time.
    """

    sizes: Mapping[str, tuple[int, int]]
    missing: Mapping[str, str]
    rounds: tuple[Round, ...]
    n_queries: int
    seconds: float

    def list_records(self) -> list[QueryRecord]:
        """Return the record of each query."""
        answer, n = self._describe_query(), self.n_queries
        why = "queries of vectors share one exchange"
        record = QueryRecord.of(Outcome(answer, self.rounds), seconds=self.seconds, why=why)
        if n == 1:
            return [record]

        def divide(values: Mapping[str, float]) -> dict[str, Any]:
            return {name: value / n for name, value in values.items()}

        part = replace(
            record,
            upload_bytes=record.upload_bytes // n,
            download_bytes=record.download_bytes // n,
            seconds=self.seconds / n,
            phase_seconds=divide(record.phase_seconds),
            busy_seconds=divide(record.busy_seconds),
        )
        return [part] * n

    def _describe_query(self) -> Answer:
        """Return the statistics of one of the queries, without objects."""
        return Answer(
            merged=Merged(np.empty(0), (), (), {}),
            exact=not self.missing,
            n_returned={name: n_found for name, (n_found, _) in self.sizes.items()},
            verified={name: n_objects for name, (_, n_objects) in self.sizes.items()},
            algorithm="baseline",
            answered=tuple(self.sizes),
            missing=self.missing,
        )


def search_blocks(
    run: Callable[[Coordinator[BatchResult]], Outcome[BatchResult]],
    points: Floats,
    k: int,
    *,
    objects_of: Mapping[str, tuple[Integers, Integers]],
    allow_partial: bool,
) -> tuple[Floats, Integers, list[BatchCost]]:
    """Search many queries in exchanges of limited size.

    Parameters
    ----------
    run : callable
        Runs a coordinator.
    points, k, objects_of, allow_partial
        As for :func:`nearest_batch`; ``k`` may exceed the number of objects.

    Returns
    -------
    distances, positions : float64 and int64 array of shape (n_queries, n_found)
        The nearest objects of each query.
    costs : list of BatchCost
        Cost of each exchange.
    """
    n_objects = sum([len(rows) for rows, _ in objects_of.values()])
    step = max(1, MAX_NEIGHBORS // min(k, max(1, n_objects)))
    costs, batches = list[BatchCost](), list[BatchResult]()
    for first in range(0, len(points), step):
        block, start = points[first : first + step], time.perf_counter()
        outcome = run(
            nearest_batch(block, min(k, MAX_K), objects_of=objects_of, allow_partial=allow_partial)
        )
        found = outcome.result
        batches.append(found)
        seconds = time.perf_counter() - start
        cost = BatchCost(found.sizes, found.missing, outcome.rounds, len(block), seconds)
        costs.append(cost)
    if len(batches) == 1:
        return batches[0].distances, batches[0].positions, costs
    return (
        np.concatenate([batch.distances for batch in batches]),
        np.concatenate([batch.positions for batch in batches]),
        costs,
    )
