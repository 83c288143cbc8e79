"""Recordings of slow searches, which are replayed for later searches of the same query.

A session emits its objects in the same order for all requests. The time of each object is therefore
measured once and used for all algorithms.
"""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from experiments.fedknn.measurement.replay import Late
from fedneighbors._typing import Floats, Integers
from fedneighbors.methods.fedknn.metrics._interfaces import Index, Metric, Session, SessionBatch

_MAX_STEP_S = 1.0


class Recorder:
    """A search at one provider, extended when a request needs more objects.

    Parameters
    ----------
    index : Index
        Index of a metric whose sessions emit single objects, such as ``graph_edit``.
    query : object
        The query object.
    limit_s : float
        CPU seconds after which the search stops.

    Attributes
    ----------
    bounds : float64 array of shape (n_objects,)
        Bounds before any verification, ascending.
    opening_s : float
        CPU seconds until the bounds were computed.
    late : bool
        True if the limit was reached.
    """

    def __init__(self, index: Index, query: Any, *, limit_s: float = math.inf) -> None:
        start = time.thread_time()
        self._session: Session = index.open(query)
        self._first_bounds = self._session.bounds().copy()
        self.bounds = np.sort(self._first_bounds)
        self.opening_s = time.thread_time() - start
        self.n_objects = index.n_objects
        self._limit_s = limit_s
        self._positions: list[int] = []
        self._distances: list[float] = []
        self._seconds = [self.opening_s]
        self._verified = [0]
        self._exhausted: dict[float, tuple[float, int]] = {}
        self._spent_s = self.opening_s
        self.late = self._ended = False

    def reach(self, n: int, cutoff: float = math.inf) -> int:
        """Search until ``n`` objects are known or ``cutoff`` is reached.

        Returns
        -------
        int
            Number of objects within the cutoff, at most ``n``.

        Raises
        ------
        Late
            If the limit is reached first.
        """
        while len(self._positions) < n and not self._ended and not self._is_exhausted(cutoff):
            self._step(cutoff)
        within = int(np.searchsorted(self._distances, cutoff, side="right"))
        return min(n, within)

    def spent(self, n: int, *, cutoff: float = math.inf, complete: bool) -> tuple[float, int]:
        """Return the seconds and verified objects of a search.

        Parameters
        ----------
        n : int
            Number of emitted objects; they must be recorded.
        cutoff : float
            Largest requested distance.
        complete : bool
            True if the search stopped after the last requested object. Otherwise it also had to
            prove that no further object is within the cutoff.
        """
        if complete:
            return self._seconds[n], self._verified[n]
        known = [spent for radius, spent in self._exhausted.items() if radius >= cutoff]
        beyond = int(np.searchsorted(self._distances, cutoff, side="right"))
        if beyond < len(self._distances):  # a farther object was emitted
            known.append((self._seconds[beyond + 1], self._verified[beyond + 1]))
        if len(self._distances) == self.n_objects:  # the recording is complete
            known.append((self._seconds[-1], self._verified[-1]))
        return min(known)

    def get_emitted(self, start: int, end: int) -> tuple[Integers, Floats]:
        """Return positions and distances of emitted objects."""
        return np.array(self._positions[start:end], np.int64), np.array(self._distances[start:end])

    def _is_exhausted(self, cutoff: float) -> bool:
        beyond = bool(self._distances) and self._distances[-1] > cutoff
        return beyond or any(radius >= cutoff for radius in self._exhausted)

    def _step(self, cutoff: float) -> None:
        """Emit one more object, or prove that none is within the cutoff."""
        if self.late or self._spent_s >= self._limit_s:
            self.late = True
            raise Late
        deadline_s = min(1.2 * (self._limit_s - self._spent_s) + 0.01, _MAX_STEP_S)
        start = time.thread_time()
        batch = self._session.next(1, cutoff=cutoff, deadline_s=deadline_s)
        self._spent_s += time.thread_time() - start
        if batch.n_certified:
            self._positions.append(int(batch.positions[0]))
            self._distances.append(float(batch.distances[0]))
            self._seconds.append(self._spent_s)
            self._verified.append(self._n_verified())
        elif batch.exhausted:
            self._exhausted[cutoff] = self._spent_s, self._n_verified()
            self._ended = cutoff == math.inf

    def _n_verified(self) -> int:
        """Return the number of emitted objects and objects with improved bounds."""
        is_verified = self._session.bounds() != self._first_bounds
        is_verified[self._positions] = True
        return int(is_verified.sum())


class RecordedMetric:
    """A metric whose sessions replay recordings and report their times.

    Parameters
    ----------
    metric : Metric
        The recorded metric.
    recorder_of : callable
        Returns the recording of a query at this provider.

    Attributes
    ----------
    spent_s : float
        Recorded seconds, minus the seconds spent on looking them up.
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

    def index(self, objects: Sequence[Any], *, ranks: Integers) -> "RecordedMetric":  # noqa: ARG002 - the interface of a metric
        """Return itself; the recordings have the objects and their ranks."""
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

    def __init__(self, metric: RecordedMetric, recorder: Recorder) -> None:
        self.n_verified = 0
        self._metric = metric
        self._recorder = recorder
        self._n_emitted = 0
        self._clock_s = recorder.opening_s

    def bounds(self, *, deadline_s: float | None = None) -> Floats:  # noqa: ARG002 - as for `next`
        return self._recorder.bounds.copy()

    def separate_bounds(self, *, deadline_s: float | None = None) -> Floats:  # noqa: ARG002
        return self.bounds()  # only graphs are recorded, whose bounds are separate

    def next(
        self,
        k: int,
        *,
        cutoff: float = math.inf,
        deadline_s: float | None = None,  # noqa: ARG002 - never interrupted
    ) -> SessionBatch:
        start = time.thread_time()
        first, last = self._n_emitted, self._n_emitted + k
        self._n_emitted = max(self._recorder.reach(last, cutoff), first)
        complete = self._n_emitted == last
        self._advance(start, cutoff=cutoff, complete=complete)
        positions, distances = self._recorder.get_emitted(first, self._n_emitted)
        ended = self._n_emitted == self._recorder.n_objects
        return SessionBatch(positions, distances, ended or not complete, len(positions))

    def count(
        self,
        radius: float,
        *,
        deadline_s: float | None = None,  # noqa: ARG002 - never interrupted
    ) -> int:
        """Count objects within a radius by emitting all of them."""
        start = time.thread_time()
        n = self._recorder.reach(self._recorder.n_objects, radius)
        self._advance(start, cutoff=radius, complete=False)
        return n

    def _advance(self, start: float, *, cutoff: float, complete: bool) -> None:
        """Add the recorded time of the search since the last call.

        The time spent on the lookup is subtracted.
        """
        spent, self.n_verified = self._recorder.spent(
            self._n_emitted, cutoff=cutoff, complete=complete
        )
        before, self._clock_s = self._clock_s, max(self._clock_s, spent)
        self._metric.spent_s += self._clock_s - before - (time.thread_time() - start)
