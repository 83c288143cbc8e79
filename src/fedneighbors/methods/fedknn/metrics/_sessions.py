"""Common logic of query sessions: resumable, exact emission, and clock checks.

:class:`BrowsingSession` serves searches that verify objects (that is, compute their distances) in
the order of a lower bound. Verified objects are in a pool until they are emitted; all objects that
are not verified are at least as far as the *frontier*.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Booleans, Floats, Integers
from fedneighbors.methods.fedknn.metrics._interfaces import SessionBatch

if TYPE_CHECKING:
    from fedneighbors.kernels.vectors._duplicates import DistinctRows
    from fedneighbors.methods.fedknn.metrics._points import ScanSession

_MIN_SORTED = 64  # number of objects sorted first
_MAX_SORTED = 1 << 17  # sorted at once, unless more are wanted: less than 20 ms
_SAMPLE_SIZE = 1024
_SAMPLE_MARGIN = 8  # positions beyond the quantile, so that it is rarely too low
_MAX_SURPLUS = 4  # maximum ratio of the objects within a limit to the objects to sort
_NONE = np.empty(0, np.int64), np.empty(0)
_ANY_RANK = np.iinfo(np.int64).max

ListNearest = Callable[[Floats, Integers, Integers, int], tuple[Floats, Integers]]
"""Function from distances, positions, ranks and k to the k nearest, in order."""


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


LATE = "the deadline has passed"
"""Text of the TimeoutError of a session, and code of the refusal that follows."""


def check_time(end: float) -> None:
    """Raise if a monotonic time has passed."""
    if time.monotonic() > end:
        raise TimeoutError(LATE)


STEP_CELLS = 1 << 21
"""Maximum work between two clock checks, in cells of about a nanosecond."""


def objects_per_step(width: int) -> int:
    """Return the number of objects of ``width`` cells for one step."""
    return max(1, STEP_CELLS // max(width, 1))


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
    list_nearest : callable, optional
        Function that sorts the nearest of some objects, faster than NumPy for ``_MIN_SORTED``.
    """

    def __init__(self, ranks: Integers, list_nearest: ListNearest | None = None) -> None:
        self._ranks = ranks
        self._list_nearest = list_nearest
        self.clear()

    def clear(self) -> None:
        """Remove all objects."""
        self._set_unsorted(*_NONE)

    def _set_unsorted(self, positions: Integers, distances: Floats) -> None:
        """Set the objects of the pool, all unsorted."""
        self._positions, self._distances = positions, distances
        self._limit, self._rank_limit = -math.inf, _ANY_RANK
        self._n_unsorted, self._n_to_sort = len(positions), _MIN_SORTED
        self._front = _NONE
        self._first = 0  # objects before this index of the front were taken

    def __len__(self) -> int:
        return len(self._front[0]) - self._first + self._n_unsorted

    def add(self, positions: Integers, distances: Floats, *, follow: bool = False) -> None:
        """Add objects that were never in the pool.

        ``follow``: they are in the order of emission, and come after all objects of the pool.
        """
        if not len(positions):
            return
        front, front_distances = self._front[0][self._first :], self._front[1][self._first :]
        if follow and self._n_unsorted == 0:
            if len(front):
                positions = np.concatenate([front, positions])
                distances = np.concatenate([front_distances, distances])
            self._front, self._first = (positions, distances), 0
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
        if self._n_unsorted:
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

    def _select_unsorted(self) -> Booleans | slice:
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
        unsorted = self._select_unsorted()
        part = self._positions[unsorted], self._distances[unsorted]
        positions, distances = self._sort_first(*part)
        front, front_distances = self._front[0][self._first :], self._front[1][self._first :]
        if len(front):
            positions = np.concatenate([front, positions])
            distances = np.concatenate([front_distances, distances])
        self._n_unsorted -= len(positions) - len(front)
        self._front, self._first = (positions, distances), 0
        self._n_to_sort = min(2 * self._n_to_sort, _MAX_SORTED)

    def _sort_first(self, positions: Integers, distances: Floats) -> tuple[Integers, Floats]:
        """Sort the first of unsorted objects; set the limit of the others."""
        n, limit, rank_limit = min(self._n_to_sort, len(distances)), math.inf, _ANY_RANK
        if self._list_nearest and n <= _MIN_SORTED:
            distances, positions = self._list_nearest(distances, positions, self._ranks, n)
            self._limit, self._rank_limit = float(distances[-1]), int(self._ranks[positions[-1]])
            return positions, distances
        if 2 * n < len(distances):  # a limit takes as long as to sort twice as many
            limit = choose_limit(distances, n)
            near = np.flatnonzero(distances <= limit)
            positions, distances = positions[near], distances[near]
            if len(near) > _MAX_SURPLUS * n:  # most are tied: select by rank
                selected, rank_limit = self._select_tied(positions, distances < limit)
                positions, distances = positions[selected], distances[selected]
        self._limit, self._rank_limit = limit, rank_limit
        order = _sort(positions, distances, self._ranks)
        return positions[order], distances[order]

    def _select_tied(self, positions: Integers, nearer: Booleans) -> tuple[Booleans, int]:
        """Select the nearer objects and the tied ones of lowest rank.

        They are ``_n_to_sort`` objects. Returns their mask and the largest rank of a tied one.
        """
        ranks = self._ranks[positions]
        n_tied = self._n_to_sort - int(np.count_nonzero(nearer))
        limit = int(np.partition(ranks[~nearer], n_tied - 1)[n_tied - 1])
        return nearer | (ranks <= limit), limit


def choose_limit(values: npt.NDArray[np.float64 | np.float32], n: int) -> float:
    """Choose a limit that contains at least the ``n`` lowest values.

    Except for ties, it contains at most ``_MAX_SURPLUS * n`` values. It is estimated from a sample;
    if there are few values or the estimate is outside these bounds, it is computed exactly. For
    20,000 values the estimate takes 0.03 ms, the exact computation 0.19 ms.
    """
    step = len(values) // _SAMPLE_SIZE
    position = n // max(step, 1) * 5 // 4 + _SAMPLE_MARGIN
    if step > 1 and position < _SAMPLE_SIZE:
        estimate = np.partition(values[::step], position)[position]
        n_within = np.count_nonzero(values <= estimate)
        # the last condition: the estimate is tied, and the n-th value itself
        if n <= n_within <= _MAX_SURPLUS * n or np.count_nonzero(values < estimate) < n <= n_within:
            return float(estimate)
    return float(np.partition(values, n - 1)[n - 1])


def _sort(positions: Integers, distances: Floats, ranks: Integers) -> Integers:
    """Return the order by distance, then by rank."""
    order = np.argsort(distances)
    if (distances[order[1:]] == distances[order[:-1]]).any():  # slower, only for ties
        order = np.lexsort((ranks[positions], distances))
    return order


class BrowsingSession(ABC):
    """A query session that verifies objects until the next ones to emit are certified.

    Parameters
    ----------
    ranks : int64 array of shape (n_objects,)
        Rank of each object: at equal distance, lower ranks come first.
    width : int
        Cells read to verify an object.
    least : float
        No distance is below this number.
    list_nearest : callable, optional
        As for :class:`Pool`.
    """

    exact = True

    def __init__(
        self,
        ranks: Integers,
        *,
        width: int = 1,
        least: float = 0.0,
        list_nearest: ListNearest | None = None,
    ) -> None:
        self.least = least
        self.n_verified = 0
        self._n_objects = len(ranks)
        self._n_per_step = objects_per_step(width)
        # objects to verify and their distances, of which the first are known
        self._queue: tuple[Integers, Floats] = _NONE
        self._n_known = 0
        self._next_frontier = 0.0  # after the queue; not one of its objects is certified before
        self.list_nearest = list_nearest
        self._pool = Pool(ranks, list_nearest)
        self._emitted: list[Floats] = []
        self._n_emitted = 0
        # All unverified objects are at this distance or farther.
        self._frontier = least if len(ranks) else math.inf

    @abstractmethod
    def bounds(self, *, deadline_s: float | None = None) -> Floats:
        """Return a lower bound of the distance of each object."""

    @abstractmethod
    def _widen(self, k: int, cutoff: float) -> None:
        """Verify more objects and raise the frontier, to emit ``k`` more.

        One call works on ``STEP_CELLS`` cells at most, apart from reading one number of each
        object. If ``k`` is 0, all objects within the cutoff are wanted.
        """

    @abstractmethod
    def _measure(self, positions: Integers) -> Floats:
        """Return the distances of objects."""

    def count(self, radius: float, *, deadline_s: float | None = None) -> int:
        """Return the number of objects within a distance of ``radius``.

        Raises
        ------
        ValueError
            If the radius is not a number.
        TimeoutError
            If the deadline has passed; another call continues.
        """
        check_radius(radius)
        end = end_at(deadline_s)
        while self._may_have_more(radius):
            check_time(end)
            self._step(0, radius)
        return self._count_verified_within(radius)

    def next(
        self, k: int, *, cutoff: float = math.inf, deadline_s: float | None = None
    ) -> SessionBatch:
        """Emit the next ``k`` objects.

        The deadline is checked between two steps; at least one is made if it is needed. Objects
        that are not certified at the deadline may be emitted again.

        Raises
        ------
        ValueError
            If ``k`` is negative or ``cutoff`` is not a number.
        """
        check_request(k, cutoff)
        end = end_at(deadline_s)
        n, timed_out = self._n_certified(k, cutoff), False
        while not timed_out and n < k and self._may_have_more(cutoff):
            self._step(k, cutoff)
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

    def _step(self, k: int, cutoff: float) -> None:
        """Verify the next objects of the queue, or widen the search."""
        if len(self._queue[0]):
            self._verify_queued()
        else:
            self._widen(k, cutoff)

    def _verify_in_steps(self, positions: Integers, frontier: float) -> None:
        """Verify objects: some now, the others in further steps.

        ``frontier`` is a lower bound of the distances of all objects that remain unverified.
        """
        self._queue = positions, np.empty(len(positions))
        self._next_frontier = frontier
        self._verify_queued()

    def _finish_queue(self, end: float) -> None:
        """Verify all objects of the queue before a monotonic time."""
        while len(self._queue[0]):
            check_time(end)
            self._verify_queued()

    def _verify_queued(self) -> None:
        positions, distances = self._queue
        part = slice(self._n_known, self._n_known + self._n_per_step)
        if part.start < len(positions):
            distances[part] = self._measure(positions[part])
        self._n_known = min(part.stop, len(positions))
        if self._n_known == len(positions):
            self._pool_known(self._next_frontier)

    def _pool_known(self, frontier: float) -> None:
        """Move the objects of known distance from the queue to the pool."""
        (positions, distances), n = self._queue, self._n_known
        self._queue, self._n_known = (positions[n:], distances[n:]), 0
        self._add_verified(positions[:n], distances[:n], frontier)

    def _pool_all(self, distances: Floats) -> None:
        """Move all objects to the pool, if none was emitted."""
        self.n_verified, self._n_known, self._queue = 0, 0, _NONE
        self._pool.clear()
        self._add_verified(np.arange(self._n_objects), distances, math.inf)

    def _n_certified(self, k: int, cutoff: float) -> int:
        """Count the certified objects among the next ``k``.

        They are before the frontier and within the cutoff.
        """
        front = self._pool.front(k)
        within = len(front)
        if within and front[-1] > cutoff:
            within = int(front.searchsorted(cutoff, side="right"))
        if self.n_verified == self._n_objects or not within or front[-1] < self._frontier:
            return within
        # An object that is not verified may be at the frontier itself and have a lower rank.
        return min(within, int(front.searchsorted(self._frontier, side="left")))

    def _may_have_more(self, cutoff: float) -> bool:
        """Return whether an unverified object could be within the cutoff."""
        return self.n_verified < self._n_objects and self._frontier <= cutoff

    def _is_exhausted(self, cutoff: float) -> bool:
        if self._may_have_more(cutoff) or (len(self._pool) and cutoff == math.inf):
            return False
        front = self._pool.front(1)
        return len(front) == 0 or bool(front[0] > cutoff)

    def _make_late_batch(
        self, positions: Integers, distances: Floats, k: int, cutoff: float
    ) -> SessionBatch:
        """Return certified objects, then the nearest others, which stay in the pool."""
        self._pool_known(self._frontier)
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
        """Add objects with computed distances, and update the frontier."""
        self.n_verified += len(positions)
        self._pool.add(positions, distances, follow=follow)
        self._frontier = math.inf if self.n_verified == self._n_objects else frontier

    def _count_verified_within(self, radius: float) -> int:
        n_emitted = sum(int(part.searchsorted(radius, side="right")) for part in self._emitted)
        return n_emitted + self._pool.n_within(radius)


class GroupedSession(BrowsingSession):
    """A query session that searches distinct objects and emits all equal ones.

    Parameters
    ----------
    distinct : DistinctRows
        Groups of equal objects.
    session : ScanSession
        Session of the distinct objects, of which each has the lowest rank of its group.
    """

    def __init__(self, distinct: "DistinctRows", session: "ScanSession") -> None:
        super().__init__(distinct.ranks, least=session.least, list_nearest=session.list_nearest)
        self._distinct = distinct
        self._session = session
        self._n_requested = 1

    def bounds(self, *, deadline_s: float | None = None) -> Floats:
        """Return the bounds of the distinct objects."""
        return np.asarray(self._session.bounds(deadline_s=deadline_s)[self._distinct.groups])

    def separate_bounds(self, *, deadline_s: float | None = None) -> Floats:
        """Return bounds that do not depend on other objects."""
        bounds = self._session.separate_bounds(deadline_s=deadline_s)
        return np.asarray(bounds[self._distinct.groups])

    def _measure(self, positions: Integers) -> Floats:
        return self._session._measure(self._distinct.groups[positions])

    def _widen(self, k: int, cutoff: float) -> None:
        wanted = max(self._n_requested, k - len(self._pool.front(k)) + 1)
        batch = self._session.next(wanted, cutoff=cutoff, deadline_s=-1.0)  # one step
        n, frontier = batch.n_certified, max(batch.frontier, self._frontier)
        if batch.exhausted:
            frontier = math.nextafter(cutoff, math.inf)
        elif n == wanted:
            self._n_requested = min(2 * wanted, self._n_per_step)
            frontier = float(batch.distances[-1])
        positions, counts = self._distinct.members(batch.positions[:n])
        distances = batch.distances[:n]
        # members of a group are in the order of ranks, so that only ties of groups need a sort
        follow = len(self._pool) == 0 and bool((distances[1:] > distances[:-1]).all())
        self._add_verified(positions, np.repeat(distances, counts), frontier, follow=follow)
