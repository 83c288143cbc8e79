"""Recordings of slow searches, from which many searches are replayed.

A session emits its objects in one order for all requests, so the objects verified by one search
need not be verified again to know the time of another search.
"""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from experiments.fedknn.measurement.replay import Late
from fedneighbors._typing import Floats, Integers
from fedneighbors.methods.fedknn.metrics._sessions import Batch, Index, Metric, Session

_MAX_BETWEEN_LOOKS_S = 1.0


class Recorder:
    """A query at a provider, searched as far as any request so far.

    Parameters
    ----------
    index : Index
        Index of a metric whose sessions emit single objects, such as ``graph_edit``.
    query : object
        Query.
    limit_s : float
        CPU seconds after which the search is given up.

    Attributes
    ----------
    bounds : float64 array of shape (n_objects,)
        Bounds before any verification, ascending.
    opening_s : float
        CPU seconds until they were there.
    late : bool
        Whether the limit was reached.
    """

    def __init__(self, index: Index, query: Any, *, limit_s: float = math.inf) -> None:
        start = time.thread_time()
        self._session: Session = index.open(query)
        self._first = self._session.bounds().copy()
        self.bounds = np.sort(self._first)
        self.opening_s = time.thread_time() - start
        self.n_objects = index.n_objects
        self._limit_s = limit_s
        self._positions: list[int] = []
        self._distances: list[float] = []
        self._seconds = [self.opening_s]
        self._verified = [0]
        self._closed: dict[float, tuple[float, int]] = {}
        self._spent_s = self.opening_s
        self.late = self._ended = False

    def reach(self, n: int, cutoff: float = math.inf) -> int:
        """Search until ``n`` objects are known or ``cutoff`` is reached.

        Returns
        -------
        int
            Number of the first ``n`` objects within the cutoff.

        Raises
        ------
        Late
            If the limit was reached before.
        """
        while len(self._positions) < n and not self._ended and not self._is_closed(cutoff):
            self._step(cutoff)
        within = int(np.searchsorted(self._distances, cutoff, side="right"))
        return min(n, within)

    def spent(self, n: int, *, cutoff: float = math.inf, complete: bool) -> tuple[float, int]:
        """Return the seconds since the query began, and the verified objects.

        Parameters
        ----------
        n : int
            Objects that were emitted, known already.
        cutoff : float
            Largest requested distance.
        complete : bool
            Whether these were all that was asked for. Otherwise the search also had to find out
            that no further object is within the cutoff.
        """
        if complete:
            return self._seconds[n], self._verified[n]
        known = [spent for level, spent in self._closed.items() if level >= cutoff]
        beyond = int(np.searchsorted(self._distances, cutoff, side="right"))
        if beyond < len(self._distances):  # a farther object was emitted
            known.append((self._seconds[beyond + 1], self._verified[beyond + 1]))
        if len(self._distances) == self.n_objects:  # the recording is complete
            known.append((self._seconds[-1], self._verified[-1]))
        return min(known)

    def found(self, start: int, end: int) -> tuple[Integers, Floats]:
        """Return positions and distances of emitted objects."""
        return np.array(self._positions[start:end], np.int64), np.array(self._distances[start:end])

    def _is_closed(self, cutoff: float) -> bool:
        beyond = bool(self._distances) and self._distances[-1] > cutoff
        return beyond or any(level >= cutoff for level in self._closed)

    def _step(self, cutoff: float) -> None:
        """Emit one object more, or close the distances up to the cutoff."""
        if self.late or self._spent_s >= self._limit_s:
            self.late = True
            raise Late
        rest = min(1.2 * (self._limit_s - self._spent_s) + 0.01, _MAX_BETWEEN_LOOKS_S)
        start = time.thread_time()
        found = self._session.next(1, cutoff=cutoff, deadline_s=rest)
        self._spent_s += time.thread_time() - start
        if found.n_certified:
            self._positions.append(int(found.positions[0]))
            self._distances.append(float(found.distances[0]))
            self._seconds.append(self._spent_s)
            self._verified.append(self._n_verified())
        elif found.exhausted:
            self._closed[cutoff] = self._spent_s, self._n_verified()
            self._ended = cutoff == math.inf

    def _n_verified(self) -> int:
        """Return for how many objects more than the first bound is known."""
        tried = self._session.bounds() != self._first
        tried[self._positions] = True
        return int(tried.sum())


class RecordedMetric:
    """A metric whose sessions replay recordings and report their times.

    Parameters
    ----------
    metric : Metric
        The real one.
    recorder_of : callable
        Returns the recording of a query at this provider, made on first use.

    Attributes
    ----------
    spent_s : float
        Seconds that the recorded work took, less those that looking them up took.
    """

    def __init__(self, metric: Metric, recorder_of: Callable[[Any], Recorder]) -> None:
        self.name = metric.name
        self.spent_s = 0.0
        self.n_objects = 0
        self._metric = metric
        self._recorder_of = recorder_of

    def distance(self, first: Any, second: Any) -> float:
        """Return the distance of two objects."""
        return self._metric.distance(first, second)

    def index(self, objects: Sequence[Any], *, ranks: Integers) -> "RecordedMetric":  # noqa: ARG002 - as any metric's
        """Return an index; recordings know the objects and their ranks."""
        self.n_objects = len(objects)
        return self

    def open(self, query: Any) -> "_RecordedSession":
        """Begin a search."""
        start = time.thread_time()
        recorder = self._recorder_of(query)
        self.spent_s += recorder.opening_s - (time.thread_time() - start)
        return _RecordedSession(self, recorder)


class _RecordedSession:
    exact = True

    def __init__(self, home: RecordedMetric, recorder: Recorder) -> None:
        self.n_verified = 0
        self._home = home
        self._recorder = recorder
        self._n_given = 0
        self._clock_s = recorder.opening_s

    def bounds(self) -> Floats:
        return self._recorder.bounds.copy()

    def separate_bounds(self) -> Floats:
        return self.bounds()  # recordings are of graphs, whose bounds are separate

    def next(self, k: int, *, cutoff: float = math.inf, deadline_s: float | None = None) -> Batch:  # noqa: ARG002 - a recording has a limit of its own
        start = time.thread_time()
        first, wanted = self._n_given, self._n_given + k
        self._n_given = max(self._recorder.reach(wanted, cutoff), first)
        complete = self._n_given == wanted
        self._advance(start, cutoff=cutoff, complete=complete)
        positions, distances = self._recorder.found(first, self._n_given)
        ended = self._n_given == self._recorder.n_objects
        return Batch(positions, distances, ended or not complete, len(positions))

    def count(self, radius: float) -> int:
        """Count objects within a radius by emitting all of them."""
        start = time.thread_time()
        n = self._recorder.reach(self._recorder.n_objects, radius)
        self._advance(start, cutoff=radius, complete=False)
        return n

    def _advance(self, start: float, *, cutoff: float, complete: bool) -> None:
        """Set the clock to the time that the search has taken.

        Reading it costs nothing.
        """
        spent, self.n_verified = self._recorder.spent(
            self._n_given, cutoff=cutoff, complete=complete
        )
        before, self._clock_s = self._clock_s, max(self._clock_s, spent)
        self._home.spent_s += self._clock_s - before - (time.thread_time() - start)
