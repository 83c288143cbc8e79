"""The broker's steps of DANN* on shelves of one size: what is touched depends on m and k alone.

A shelf holds one row of k places for each provider, filled up with infinite distances. Rows are
merged by the bitonic network of :mod:`~fedneighbors.kernels.bitonic`; counts and ranks are sums
over whole arrays, rows grow by shifts in which all take part, and names are fetched by a product
with a matrix that has one 1 in each row, so that no address depends on what a shelf holds. (That
Python itself keeps no secret of small integers is left aside: an enclave would run this compiled.)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors.kernels.bitonic import Entries, merge_sorted
from fedneighbors.methods.fedknn.algorithm import Merged
from fedneighbors.methods.fedknn.private.padding import MOST_BYTES_OF_A_NAME, PaddedNearestReply

__all__ = ["Shelf", "counts_of_bounds"]

_BLOCK = 1 << 22
"""Entries of a one-hot matrix that are made at a time."""

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


def counts_of_bounds(bounds: Mapping[str, Floats], k: int) -> dict[str, int]:
    """Return how many of the k lowest bounds are each provider's (Algorithm 2, lines 5-9).

    Ties go to the provider of the lower name. The counts are those of
    :func:`~fedneighbors.methods.fedknn.algorithm.expected_counts` without their floor of 1.

    Parameters
    ----------
    bounds : mapping of str to float64 array of shape (k,)
        Ascending, filled up with infinity.
    k : int
        Neighbours wanted.

    Examples
    --------
    >>> counts_of_bounds({"P1": np.array([2.0, 8.0]), "P2": np.array([1.0, np.inf])}, 2)
    {'P1': 1, 'P2': 1}
    """
    names = sorted(bounds)
    rows = np.stack([bounds[name] for name in names])
    lowest = merge_sorted(_entries(rows, np.zeros(rows.shape, np.int64)), k)
    counts = (lowest.providers == np.arange(len(names))[:, np.newaxis]).sum(axis=1)
    return dict(zip(names, counts.tolist(), strict=True))


@dataclass(frozen=True)
class Shelf:
    """What the providers returned so far, a row of k places for each.

    Parameters
    ----------
    providers : tuple of str
        In ascending order.
    distances : float64 array of shape (m, k)
        Ascending, then infinite.
    ties : int64 array of shape (m, k)
        Tie keys.
    names : uint8 array of shape (m, k, bytes)
        Names of the objects, filled up with zeros.
    lengths : int64 array of shape (m, k)
        Bytes of each name.
    filled : int64 array of shape (m,)
        Places taken, from the left.
    exhausted : bool array of shape (m,)
        Whether the provider has no further object.
    exact : bool array of shape (m,)
        Whether its index can have missed none.
    verified : int64 array of shape (m,)
        Objects that it has verified.
    """

    providers: tuple[str, ...]
    distances: Floats
    ties: Integers
    names: npt.NDArray[np.uint8]
    lengths: Integers
    filled: Integers
    exhausted: npt.NDArray[np.bool_]
    exact: npt.NDArray[np.bool_]
    verified: Integers

    @classmethod
    def of(cls, replies: Mapping[str, PaddedNearestReply]) -> "Shelf":
        """Lay out one reply of each provider."""
        names = tuple(sorted(replies))
        rows = [replies[name] for name in names]
        return cls(
            providers=names,
            distances=np.stack([reply.distances for reply in rows]),
            ties=np.stack([reply.ties for reply in rows]),
            names=np.stack([reply.names for reply in rows]),
            lengths=np.stack([reply.lengths for reply in rows]),
            filled=np.array([reply.numbers[0] for reply in rows], np.int64),
            exhausted=np.array([reply.flags[0] for reply in rows], np.bool_),
            exact=np.array([reply.flags[1] for reply in rows], np.bool_),
            verified=np.array([reply.numbers[1] for reply in rows], np.int64),
        )

    @property
    def k(self) -> int:
        """Places in a row."""
        return int(self.distances.shape[1])

    def then(self, more: "Shelf") -> "Shelf":
        """Return each row with what came next behind it; what has no place is left out.

        All rows take part in shifts by 1, 2, 4, ... places; each keeps those of its own number.
        """
        own = np.arange(self.k) < self.filled[:, np.newaxis]
        words, next_words = _as_words(self.names), _as_words(more.names)
        names = np.where(own[:, :, np.newaxis], words, _moved(next_words, self.filled, 0))
        return Shelf(
            providers=self.providers,
            distances=np.where(own, self.distances, _moved(more.distances, self.filled, np.inf)),
            ties=np.where(own, self.ties, _moved(more.ties, self.filled, 0)),
            names=np.ascontiguousarray(names).view(np.uint8),
            lengths=np.where(own, self.lengths, _moved(more.lengths, self.filled, 0)),
            filled=np.minimum(self.filled + more.filled, self.k),
            exhausted=self.exhausted | more.exhausted,
            exact=self.exact & more.exact,
            verified=more.verified,
        )

    def cut(self, lengths: Mapping[str, int]) -> "Shelf":
        """Return each row cut to a number of objects, as if no more had come."""
        limits = np.array([lengths[name] for name in self.providers], np.int64)
        kept = np.arange(self.k) < limits[:, np.newaxis]
        return Shelf(
            providers=self.providers,
            distances=np.where(kept, self.distances, np.inf),
            ties=np.where(kept, self.ties, 0),
            names=np.where(kept[:, :, np.newaxis], self.names, 0).astype(np.uint8),
            lengths=np.where(kept, self.lengths, 0),
            filled=np.minimum(self.filled, limits),
            exhausted=self.exhausted & (self.filled <= limits),
            exact=self.exact,
            verified=self.verified,
        )

    def ranks_of_last(self) -> dict[str, int]:
        """Return q_i: the rank, from 1, of each provider's last object, k where it is outside.

        Algorithm 2, lines 18-19. A provider without objects counts as outside.
        """
        ranks = self._ranks(self._merged)
        return dict(zip(self.providers, np.where(ranks > 0, ranks, self.k).tolist(), strict=True))

    def certain(self) -> bool:
        """Return whether the k nearest on the shelf are surely those of all objects."""
        ranks = self._ranks(self._merged)
        outside = (ranks == self.k) | ((ranks == 0) & (self.filled > 0))
        return bool((outside | self.exhausted).all())

    def nearest(self) -> Merged:
        """Return the k nearest objects on the shelf, for the user."""
        merged = self._merged
        names, lengths = self._fetched(merged.providers * self.k + merged.positions)
        ranks = zip(self.providers, self._ranks(merged).tolist(), strict=True)
        n = int(np.isfinite(merged.distances).sum())
        return Merged(
            distances=merged.distances[:n],
            owners=tuple(self.providers[place] for place in merged.providers[:n].tolist()),
            ids=tuple(names[t, : lengths[t]].tobytes().decode() for t in range(n)),
            last={name: rank for name, rank in ranks if rank > 0},
        )

    def _ranks(self, merged: Entries) -> Integers:
        """Return the rank of each provider's last object, from 1, and 0 where it is outside."""
        owners = np.arange(len(self.providers))[:, np.newaxis]
        last = (merged.providers == owners) & (merged.positions == self.filled[:, np.newaxis] - 1)
        # padding stands at position -1, as the last object of an empty row would
        last &= merged.positions >= 0
        ranks: Integers = (last * np.arange(1, self.k + 1)).sum(axis=1)
        return ranks

    def _fetched(self, wanted: Integers) -> tuple[npt.NDArray[np.uint8], Integers]:
        """Return names and lengths of places of the shelf, by one-hot products block by block."""
        names = self.names.reshape(-1, MOST_BYTES_OF_A_NAME).astype(np.float32)  # exact for bytes
        found, lengths = [], []
        step = max(_BLOCK // max(len(names), 1), 1)
        for start in range(0, len(wanted), step):
            chosen = wanted[start : start + step, np.newaxis] == np.arange(len(names))
            found.append((chosen.astype(np.float32) @ names).astype(np.uint8))
            lengths.append((chosen * self.lengths.ravel()).sum(axis=1))
        return np.concatenate(found), np.concatenate(lengths)

    @cached_property
    def _merged(self) -> Entries:
        return merge_sorted(_entries(self.distances, self.ties))


def _entries(distances: Floats, ties: Integers) -> Entries:
    """Return rows as entries of the network; what is infinite is filling and comes last."""
    m, k = distances.shape
    filling = np.isinf(distances)
    owners = np.broadcast_to(np.arange(m)[:, np.newaxis], (m, k))
    places = np.broadcast_to(np.arange(k), (m, k))
    return Entries(
        distances,
        np.where(filling, np.iinfo(np.int64).max, ties),
        np.where(filling, -1, owners),
        np.where(filling, -1, places),
    )


def _moved(rows: npt.NDArray[Any], steps: Integers, filling: float) -> npt.NDArray[Any]:
    """Return each row moved to the right by its own number of places, filled up on the left."""
    k = rows.shape[1]
    for bit in range(k.bit_length()):
        by = min(1 << bit, k)
        shifted = np.full_like(rows, filling)
        shifted[:, by:] = rows[:, : k - by]
        kept = (steps >> bit & 1) == 0
        rows = np.where(kept.reshape(-1, *[1] * (rows.ndim - 1)), rows, shifted)
    return rows


def _as_words(names: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """Return names as words of eight bytes, which are moved faster."""
    return np.ascontiguousarray(names).view(np.uint64)
