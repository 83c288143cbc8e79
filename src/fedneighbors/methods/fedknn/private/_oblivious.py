"""Data-oblivious broker steps of DANN*.

Until :meth:`ReturnedObjects.nearest` builds the user's result, memory access depends only on k, the
number m of providers, and the number of rounds. Returned objects are stored in a row of k slots for
each provider and round, padded with infinite distances. The bitonic network of
:mod:`~fedneighbors.kernels._bitonic` merges the rows and finally moves the names. Counts and ranks
are sums over whole arrays, so that no memory address depends on the returned objects. This does not
cover the Python interpreter, which caches small integers; an enclave needs compiled code.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fedneighbors._typing import Booleans, Floats, Integers
from fedneighbors.kernels._bitonic import (
    PAYLOAD_WORDS,
    Entries,
    Merge,
    merge_sorted,
    merge_with_swaps,
    move_payloads,
)
from fedneighbors.methods.fedknn.algorithm import Merged
from fedneighbors.methods.fedknn.private._padding import MAX_NAME_BYTES, PaddedNearestReply


def count_bounds(bounds: Mapping[str, Floats], k: int) -> dict[str, int]:
    """Count each provider's bounds among the k lowest: Algorithm 2, lines 5-9.

    Equal bounds are ordered by the providers' names. The counts are those of
    :func:`~fedneighbors.methods.fedknn.algorithm.expected_counts` without their minimum of 1.

    Parameters
    ----------
    bounds : mapping of str to float64 array of shape (k,)
        Ascending, padded with infinity.
    k : int
        Number of neighbours.

    Examples
    --------
    >>> count_bounds({"P1": np.array([2.0, 8.0]), "P2": np.array([1.0, np.inf])}, 2)
    {'P1': 1, 'P2': 1}
    """
    names = sorted(bounds)
    rows = np.array([bounds[name] for name in names])[:, np.newaxis]
    lowest = merge_sorted(_make_entries(rows, np.int64(0), np.arange(rows.shape[2])), k)
    owners = np.arange(len(names))[:, np.newaxis]
    counts = ((lowest.providers == owners) & np.isfinite(lowest.distances)).sum(axis=1)
    return dict(zip(names, counts.tolist(), strict=True))


@dataclass(frozen=True)
class ReturnedObjects:
    """Objects that the providers returned, in k slots for each provider and round.

    Parameters
    ----------
    providers : tuple of str
        Names of the providers, ascending.
    replies : tuple of tuples of PaddedNearestReply
        For each round, the reply of each provider.
    distances : float64 array of shape (m, n_rounds, k)
        Distances, ascending in each row; infinite in empty slots.
    ties : int64 array of shape (m, n_rounds, k)
        Tie keys; 0 in empty slots.
    filled : int64 array of shape (m, n_rounds)
        Number of filled slots, from the left.
    exhausted : bool array of shape (m,)
        True if the provider has no further object.
    exact : bool array of shape (m,)
        True if its index is exact.
    """

    providers: tuple[str, ...]
    replies: tuple[tuple[PaddedNearestReply, ...], ...]
    distances: Floats
    ties: Integers
    filled: Integers
    exhausted: Booleans
    exact: Booleans

    @classmethod
    def of(cls, replies: Mapping[str, PaddedNearestReply]) -> "ReturnedObjects":
        """Return the objects of one reply of each provider."""
        names = tuple(sorted(replies))
        rows = tuple(replies[name] for name in names)
        numbers = np.array([reply.numbers for reply in rows], np.int64)
        flags = np.array([reply.flags for reply in rows], np.bool_)
        return cls(
            providers=names,
            replies=(rows,),
            distances=np.array([reply.distances for reply in rows])[:, np.newaxis],
            ties=np.array([reply.ties for reply in rows])[:, np.newaxis],
            filled=numbers[:, :1],
            exhausted=flags[:, 0],
            exact=flags[:, 1],
        )

    @property
    def k(self) -> int:
        """Return the number of slots per row."""
        return int(self.distances.shape[2])

    @property
    def n_objects(self) -> Integers:
        """Return each provider's number of objects in all rounds."""
        total: Integers = self.filled.sum(axis=1)
        return total

    @property
    def positions(self) -> Integers:
        """Return each object's position among its provider's objects.

        Shape (m, n_rounds, k).
        """
        before = self.filled.cumsum(axis=1) - self.filled
        positions: Integers = before[:, :, np.newaxis] + np.arange(self.k)
        return positions

    @property
    def verified(self) -> dict[str, int]:
        """Return each provider's number of computed distances.

        The last reply is enough: its number includes those of earlier rounds.
        """
        last_replies = zip(self.providers, self.replies[-1], strict=True)
        return {name: int(reply.numbers[1]) for name, reply in last_replies}

    def append(self, more: "ReturnedObjects") -> "ReturnedObjects":
        """Return these objects, followed by those of the next round."""
        return ReturnedObjects(
            providers=self.providers,
            replies=self.replies + more.replies,
            distances=np.concatenate([self.distances, more.distances], axis=1),
            ties=np.concatenate([self.ties, more.ties], axis=1),
            filled=np.concatenate([self.filled, more.filled], axis=1),
            exhausted=self.exhausted | more.exhausted,
            exact=self.exact & more.exact,
        )

    def truncate(self, counts: Mapping[str, int]) -> "ReturnedObjects":
        """Return the first objects of each provider, at most ``counts``."""
        limits = np.array([counts[name] for name in self.providers], np.int64)[:, np.newaxis]
        before = self.filled.cumsum(axis=1) - self.filled
        included = self.positions < limits[:, :, np.newaxis]
        return replace(
            self,
            distances=np.where(included, self.distances, np.inf),
            ties=np.where(included, self.ties, 0),
            filled=np.clip(limits - before, 0, self.filled),
            exhausted=self.exhausted & (self.n_objects <= limits[:, 0]),
        )

    def ranks_of_last(self) -> dict[str, int]:
        """Return q_i: the rank of each provider's last object.

        Ranks start at 1. The rank is k if the object is outside the result, or if the provider
        returned no object (Algorithm 2, lines 18-19).
        """
        ranks = np.where(self._ranks > 0, self._ranks, self.k)
        return dict(zip(self.providers, ranks.tolist(), strict=True))

    def is_certified(self) -> bool:
        """Return whether these objects' k nearest are certified as exact.

        They are if each provider is exhausted, or its last object is outside the result or the
        k-th.
        """
        outside = (self._ranks == self.k) | ((self._ranks == 0) & (self.n_objects > 0))
        return bool((outside | self.exhausted).all())

    def nearest(self) -> Merged:
        """Return the k nearest of these objects, for the user."""
        smallest = self._merge.smallest
        n = int(np.isfinite(smallest.distances).sum())
        payloads = move_payloads(self._pack_names(), self._merge)[:n]
        raw, width = payloads[:, :-1].tobytes(), MAX_NAME_BYTES
        ends = (np.arange(n) * width + payloads[:, -1]).tolist()
        ranks = zip(self.providers, self._ranks.tolist(), strict=True)
        return Merged(
            distances=smallest.distances[:n],
            owners=tuple(self.providers[i] for i in smallest.providers[:n].tolist()),
            ids=tuple(raw[i * width : end].decode() for i, end in enumerate(ends)),
            ranks_of_last={name: rank for name, rank in ranks if rank > 0},
        )

    @cached_property
    def _merge(self) -> Merge:
        return merge_with_swaps(_make_entries(self.distances, self.ties, self.positions))

    @cached_property
    def _ranks(self) -> Integers:
        """Return each last object's rank, from 1; 0 if outside the result."""
        smallest = self._merge.smallest
        owners = np.arange(len(self.providers))[:, np.newaxis]
        last = smallest.positions == self.n_objects[:, np.newaxis] - 1
        last &= (smallest.providers == owners) & np.isfinite(smallest.distances)
        ranks: Integers = (last * np.arange(1, self.k + 1)).sum(axis=1)
        return ranks

    def _pack_names(self) -> Integers:
        """Return the names' bytes and lengths as eight-byte words."""
        m, n_rounds, k = self.distances.shape
        words = np.empty((m, n_rounds, k, PAYLOAD_WORDS), np.int64)
        for number, round_ in enumerate(self.replies):
            for row, reply in enumerate(round_):
                words[row, number, :, :-1] = np.ascontiguousarray(reply.names).view(np.int64)
                words[row, number, :, -1] = reply.lengths
        return words.reshape(m * n_rounds, k, PAYLOAD_WORDS)


def _make_entries(distances: Floats, ties: Integers | np.int64, positions: Integers) -> Entries:
    """Return rows as entries of the network; infinite distances are padding."""
    shape, zeros = (-1, distances.shape[2]), np.zeros(distances.shape, np.int64)
    owners = np.arange(len(distances))[:, np.newaxis, np.newaxis]
    return Entries(
        distances.reshape(shape),
        (zeros + ties).reshape(shape),
        (zeros + owners).reshape(shape),
        (zeros + positions).reshape(shape),
    )


def warm_up() -> None:
    """Load the kernels of merges, which takes about a second."""
    table = np.zeros((2, 4), np.int64)
    lists = Entries(np.zeros((2, 4)), table, table, np.arange(8).reshape(2, 4))
    move_payloads(np.zeros((2, 4, PAYLOAD_WORDS), np.int64), merge_with_swaps(lists))
