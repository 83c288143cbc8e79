"""Interfaces of metrics, indexes and sessions, and the common emission logic.

A session answers one query. It emits objects in batches, in ascending order of distance; at equal
distance, the object of lower *rank* comes first. The second round of a federated search continues
the first. An object is *certified* if it is known to be the next one in this order; certified
objects are never emitted again.

:class:`BrowsingSession` implements resumable, exact emission for searches that verify objects (that
is, compute their distances) in the order of a lower bound. Verified objects are in a pool until
they are emitted; all objects that are not verified are at least as far as the *frontier*.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats, Integers


@dataclass(frozen=True)
class SessionBatch:
    """The next objects of a session, in ascending order of (distance, rank).

    Parameters
    ----------
    positions : int64 array of shape (n,)
        Positions of the objects in the index.
    distances : float64 array of shape (n,)
        Distances to the query, in the unit of the metric.
    exhausted : bool
        True if no further object is left, or none within the cutoff.
    n_certified : int
        Number of leading objects that are certified: all, unless the deadline passed or the index
        is approximate. After them, nearer objects may be missing, so that the i-th distance is at
        least that of the i-th object of an exact batch.
    frontier : float
        After a deadline: every object nearer than this was emitted. If unknown, a number that no
        distance is below: 0, or the metric's ``least``.
    """

    positions: Integers
    distances: Floats
    exhausted: bool
    n_certified: int
    frontier: float = 0.0


class Session(Protocol):
    """One open query."""

    exact: bool
    """True if emitted order and distances are exact; false for approximate indexes."""

    n_verified: int
    """Number of distances computed so far (bounds do not count)."""

    def bounds(self) -> Floats:
        """Return a lower bound of the distance of each object, shape (n_objects,)."""
        ...

    def next(
        self, k: int, *, cutoff: float = math.inf, deadline_s: float | None = None
    ) -> SessionBatch:
        """Emit the next ``k`` objects with distances up to ``cutoff``.

        Parameters
        ----------
        k : int
            Number of objects, 0 or more; fewer are returned if no more are left.
        cutoff : float
            Maximum distance of returned objects.
        deadline_s : float, optional
            Timeout in seconds; when it has passed, the best objects found so far are returned.
        """
        ...

    def count(self, radius: float) -> int:
        """Count the objects of the index within ``radius``."""
        ...


class Index(Protocol):
    """The search index of one party's objects."""

    n_objects: int

    def open(self, query: Any) -> Session:
        """Open a session for a query.

        Raises
        ------
        TypeError, ValueError
            If the query is not an object of this metric.
        """
        ...


@dataclass(frozen=True)
class SessionIndex:
    """An index made from a function that opens sessions.

    Parameters
    ----------
    n_objects : int
        Number of the party's objects.
    open : callable
        Function from a query to its session.
    """

    n_objects: int
    open: Callable[[Any], Session]


@runtime_checkable
class Metric(Protocol):
    """A distance on objects of one kind.

    A class may have an attribute ``step``: a number of which all distances are multiples, such as 1
    for the edit distance. Searches that vary the radius then try only multiples of ``step``. An
    attribute ``least`` is a finite number that no distance is below; 0 by default.

    A metric can be made from a distance function alone with
    :class:`~fedneighbors.methods.fedknn.metrics._function.FunctionMetric`.
    """

    name: str

    def distance(self, first: Any, second: Any) -> float:
        """Return the distance of two objects."""
        ...

    def index(self, objects: Sequence[Any], *, ranks: Integers) -> Index:
        """Return a search index of objects.

        Parameters
        ----------
        objects : sequence
            May be empty.
        ranks : int64 array of shape (n_objects,)
            Distinct ranks; of objects of equal distance, those of lower rank come first.

        Raises
        ------
        TypeError, ValueError
            If an object is invalid for this metric; the error names its position.
        """
        ...


_MIN_SORTED = 256  # number of objects sorted first
_SAMPLE_SIZE = 1024
_SAMPLE_MARGIN = 8  # positions beyond the quantile, so that it is rarely too low
_MAX_SURPLUS = 4  # maximum ratio of the objects within a limit to the objects to sort
_ANY_RANK = np.iinfo(np.int64).max


def check_ranks(ranks: Integers, n_objects: int) -> Integers:
    """Return the ranks as int64, one for each object.

    Raises
    ------
    ValueError
        If their number is not ``n_objects``, they are not integers, or two are equal.
    """
    array = np.asarray(ranks)
    if array.shape != (n_objects,) or (n_objects and array.dtype.kind not in "iu"):
        raise ValueError(
            f"expected {n_objects} integer ranks, one for each object, got {array.dtype} of shape "
            f"{array.shape}"
        )
    if len(np.unique(array)) != n_objects:
        raise ValueError("expected distinct ranks; assign a different rank to each object")
    return array.astype(np.int64)


def check_request(k: int, cutoff: float) -> None:
    """Raise for a negative number of objects or a NaN cutoff."""
    if k < 0 or math.isnan(cutoff):
        raise ValueError(f"expected k >= 0 and a cutoff other than NaN, got k={k}, cutoff={cutoff}")


def check_radius(radius: float) -> None:
    """Raise for a NaN radius."""
    if math.isnan(radius):
        raise ValueError("expected a radius, got NaN")


def end_at(deadline_s: float | None) -> float:
    """Return the monotonic time at which a timeout passes; infinity for none."""
    return math.inf if deadline_s is None else time.monotonic() + deadline_s


class Pool:
    """Verified objects that are not yet emitted.

    The *front* contains the first objects, in ascending order of (distance, rank). The others are
    greater than a limit (distance, rank) and unsorted. Objects that are moved to the front are not
    deleted from the unsorted arrays, but they are within the limit. When the front is used up,
    twice as many objects as before are sorted. Thus emitting a few of many objects takes linear
    time, and emitting all of them in small batches takes O(n log n) time.

    Parameters
    ----------
    ranks : int64 array of shape (n_objects,)
        Rank of each object: at equal distance, lower ranks come first.
    """

    def __init__(self, ranks: Integers) -> None:
        self._ranks = ranks
        self._set_unsorted(np.empty(0, np.int64), np.empty(0))
        self._n_to_sort = _MIN_SORTED

    def _set_unsorted(self, positions: Integers, distances: Floats) -> None:
        """Set the objects of the pool, all unsorted."""
        self._positions, self._distances = positions, distances
        self._limit, self._rank_limit = -math.inf, _ANY_RANK
        self._n_unsorted = len(positions)
        self._front = np.empty(0, np.int64), np.empty(0)
        self._first = 0  # objects before this index of the front were taken

    def __len__(self) -> int:
        return len(self._front[0]) - self._first + self._n_unsorted

    def add(self, positions: Integers, distances: Floats, *, follow: bool = False) -> None:
        """Add objects that were never in the pool.

        ``follow``: they are in the order of emission, and come after all objects of the pool.
        """
        front, front_distances = self._front[0][self._first :], self._front[1][self._first :]
        if follow and self._n_unsorted == 0:
            self._front = (
                np.concatenate([front, positions]),
                np.concatenate([front_distances, distances]),
            )
            self._first = 0
            return
        if len(self) == 0:
            self._set_unsorted(positions, distances)
            return
        unsorted = self._select_unsorted()
        self._set_unsorted(
            np.concatenate([front, self._positions[unsorted], positions]),
            np.concatenate([front_distances, self._distances[unsorted], distances]),
        )

    def front(self, k: int) -> Floats:
        """Return the ``k`` smallest distances, ascending; fewer if there are fewer."""
        self._extend_front(k)
        return self._front[1][self._first : self._first + k]

    def peek(self, k: int) -> tuple[Integers, Floats]:
        """Return positions and distances of the nearest ``k`` without removing them."""
        distances = self.front(k)
        return self._front[0][self._first : self._first + k], distances

    def take(self, k: int) -> tuple[Integers, Floats]:
        """Remove the nearest ``k``; return their positions and distances."""
        positions, distances = self.peek(k)
        self._first += len(positions)
        return positions, distances

    def n_within(self, radius: float) -> int:
        """Return the number of objects in the pool within a distance."""
        n_front = int(self._front[1][self._first :].searchsorted(radius, side="right"))
        return n_front + int(np.count_nonzero(self._distances[self._select_unsorted()] <= radius))

    def _select_unsorted(self) -> npt.NDArray[np.bool_] | slice:
        """Select the objects that were not moved to the front."""
        if self._limit == -math.inf:
            return slice(None)
        beyond = self._distances > self._limit
        if self._rank_limit != _ANY_RANK:
            tied = self._distances == self._limit
            beyond |= tied & (self._ranks[self._positions] > self._rank_limit)
        return beyond

    def _extend_front(self, k: int) -> None:
        """Extend the front to at least ``k`` objects, if available."""
        wanted = min(k, len(self)) - (len(self._front[0]) - self._first)
        if wanted <= 0:
            return
        self._n_to_sort = max(wanted, self._n_to_sort)
        unsorted, limit, rank_limit = self._select_unsorted(), math.inf, _ANY_RANK
        positions, distances = self._positions[unsorted], self._distances[unsorted]
        if self._n_to_sort < len(distances):
            limit = _choose_limit(distances, self._n_to_sort)
            near = np.flatnonzero(distances <= limit)
            positions, distances = positions[near], distances[near]
            if len(near) > _MAX_SURPLUS * self._n_to_sort:  # most are tied: select by rank
                selected, rank_limit = self._select_tied(positions, distances < limit)
                positions, distances = positions[selected], distances[selected]
        order = np.lexsort((self._ranks[positions], distances))
        front, front_distances = self._front[0][self._first :], self._front[1][self._first :]
        self._front = (
            np.concatenate([front, positions[order]]),
            np.concatenate([front_distances, distances[order]]),
        )
        self._first = 0
        self._limit, self._rank_limit = limit, rank_limit
        self._n_unsorted -= len(positions)
        self._n_to_sort *= 2

    def _select_tied(
        self, positions: Integers, nearer: npt.NDArray[np.bool_]
    ) -> tuple[npt.NDArray[np.bool_], int]:
        """Select the nearer objects and the tied ones of lowest rank.

        They are ``_n_to_sort`` objects. Returns their mask and the largest rank of a tied one.
        """
        ranks = self._ranks[positions]
        n_tied = self._n_to_sort - int(np.count_nonzero(nearer))
        limit = int(np.partition(ranks[~nearer], n_tied - 1)[n_tied - 1])
        return nearer | (ranks <= limit), limit


def _choose_limit(values: Floats, n: int) -> float:
    """Choose a limit that contains at least the ``n`` lowest values.

    Except for ties, it contains at most ``_MAX_SURPLUS * n`` values. It is estimated from
    a sample; if there are few values or the estimate is outside these bounds, it is computed
    exactly. For 20,000 values the estimate takes 0.03 ms, the exact computation 0.19 ms.
    """
    step = len(values) // _SAMPLE_SIZE
    position = n // max(step, 1) * 5 // 4 + _SAMPLE_MARGIN
    if step > 1 and position < _SAMPLE_SIZE:
        estimate = float(np.partition(values[::step], position)[position])
        n_within = np.count_nonzero(values <= estimate)
        # the last condition: the estimate is tied, and the n-th value itself
        if n <= n_within <= _MAX_SURPLUS * n or np.count_nonzero(values < estimate) < n <= n_within:
            return estimate
    return float(np.partition(values, n - 1)[n - 1])


class BrowsingSession(ABC):
    """A query session that verifies objects until the next ones to emit are certified.

    Parameters
    ----------
    ranks : int64 array of shape (n_objects,)
        Rank of each object: at equal distance, lower ranks come first.
    least : float
        No distance is below this number.
    """

    exact = True

    def __init__(self, ranks: Integers, *, least: float = 0.0) -> None:
        self.least = least
        self.n_verified = 0
        self._n_objects = len(ranks)
        self._pool = Pool(ranks)
        self._emitted: list[Floats] = []
        self._n_emitted = 0
        # All unverified objects are at this distance or farther.
        self._frontier = least if len(ranks) else math.inf

    @abstractmethod
    def bounds(self) -> Floats:
        """Return a lower bound of the distance of each object."""

    @abstractmethod
    def count(self, radius: float) -> int:
        """Return the number of objects within a distance of ``radius``."""

    @abstractmethod
    def _widen(self, k: int, cutoff: float) -> None:
        """Verify more objects and raise the frontier, to emit ``k`` more."""

    def next(
        self, k: int, *, cutoff: float = math.inf, deadline_s: float | None = None
    ) -> SessionBatch:
        """Emit the next ``k`` objects.

        The deadline is checked between two calls of ``_widen``; at least one is made if it is
        needed. Objects that are not certified at the deadline may be emitted again.

        Raises
        ------
        ValueError
            If ``k`` is negative or ``cutoff`` is not a number.
        """
        check_request(k, cutoff)
        end = end_at(deadline_s)
        n, timed_out = self._n_certified(k, cutoff), False
        while not timed_out and n < k and self._may_have_more(cutoff):
            self._widen(k, cutoff)
            n, timed_out = self._n_certified(k, cutoff), time.monotonic() > end
        timed_out = timed_out and n < k and self._may_have_more(cutoff)
        positions, distances = self._pool.take(n)
        self._emitted.append(distances)
        self._n_emitted += len(positions)
        if timed_out:
            return self._make_late_batch(positions, distances, k, cutoff)
        return SessionBatch(
            positions=positions,
            distances=distances,
            exhausted=len(positions) < k or self._is_exhausted(cutoff),
            n_certified=len(positions),
            frontier=self.least,
        )

    def _n_certified(self, k: int, cutoff: float) -> int:
        """Count the certified objects among the next ``k``.

        They are before the frontier and within the cutoff.
        """
        front = self._pool.front(k)
        within = int(front.searchsorted(cutoff, side="right"))
        if self.n_verified == self._n_objects:
            return within
        # An object that is not verified may be at the frontier itself and have a lower rank.
        return min(within, int(front.searchsorted(self._frontier, side="left")))

    def _may_have_more(self, cutoff: float) -> bool:
        """Return whether an unverified object could be within the cutoff."""
        return self.n_verified < self._n_objects and self._frontier <= cutoff

    def _is_exhausted(self, cutoff: float) -> bool:
        front = self._pool.front(1)
        pool_is_exhausted = len(front) == 0 or bool(front[0] > cutoff)
        return pool_is_exhausted and not self._may_have_more(cutoff)

    def _make_late_batch(
        self, positions: Integers, distances: Floats, k: int, cutoff: float
    ) -> SessionBatch:
        """Return certified objects, then the nearest others, which stay in the pool."""
        more, more_distances = self._pool.peek(k - len(positions))
        more = more[more_distances <= cutoff]
        return SessionBatch(
            positions=np.concatenate([positions, more]),
            distances=np.concatenate([distances, more_distances[: len(more)]]),
            exhausted=False,
            n_certified=len(positions),
            frontier=self._frontier,
        )

    def _add_verified(
        self, positions: Integers, distances: Floats, frontier: float, *, follow: bool = False
    ) -> None:
        """Add objects with computed distances, and update the frontier.

        ``follow``: as for :meth:`Pool.add`.
        """
        self.n_verified += len(positions)
        self._pool.add(positions, distances, follow=follow)
        self._frontier = math.inf if self.n_verified == self._n_objects else frontier

    def _count_verified_within(self, radius: float) -> int:
        n_emitted = sum(int(part.searchsorted(radius, side="right")) for part in self._emitted)
        return n_emitted + self._pool.n_within(radius)
