"""A federation of a collection for measurements: owners of objects, and providers."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.fedknn.measurement.collections import Collection
from experiments.fedknn.measurement.contenders import PartyWithoutBounds, Question, contender
from experiments.fedknn.measurement.deadlines import replay_in_process
from experiments.fedknn.measurement.recording import RecordedMetric, Recorder
from experiments.fedknn.measurement.replay import Course, replay
from experiments.fedknn.measurement.trials import BYTES_PER_S, Trial
from fedneighbors.federation._inprocess import Link
from fedneighbors.federation._roles import Party
from fedneighbors.methods.fedknn._provider import Provider
from fedneighbors.methods.fedknn._queries import decode_query, encode_query
from fedneighbors.methods.fedknn.metrics import metric_of
from fedneighbors.methods.fedknn.metrics._sessions import Index, Metric
from fedneighbors.methods.fedknn.protocol import BoundRequest, FinishRequest
from fedneighbors.partition import quantity_skew

SPLITS = {"uniform": 0.0, "skewed": 0.6}
"""Exponents of Zipf's law for the sizes of the providers' tables."""

_LEAPS = ("hufu",)  # its radii do not ascend, so a recording lacks their times
_REPEATS, _ENOUGH_S = 3, 0.2


@dataclass(frozen=True)
class Place:
    """Setting of a search.

    Parameters
    ----------
    split : str
        A name in ``SPLITS``.
    n_parties : int
        Providers.
    """

    split: str
    n_parties: int


def _work_s(course: Course) -> float:
    return sum(course.local_s.values())


class _CachedMetric:
    """A metric that caches its index, so that two providers can share it."""

    def __init__(self, metric: Metric) -> None:
        self.name = metric.name
        self._metric = metric
        self.made: Index | None = None

    def distance(self, first: Any, second: Any) -> float:
        return self._metric.distance(first, second)

    def index(self, objects: Sequence[Any], *, ranks: npt.NDArray[np.int64]) -> Index:
        self.made = self._metric.index(objects, ranks=ranks)
        return self.made


class Cell:
    """Providers of a collection, and the state of the current query.

    Parameters
    ----------
    collection : Collection
        Collection to search.
    place : Place
        Split of the collection.
    seed : int
        Of the split.
    limit_s : float
        CPU seconds that a provider may spend on a query.
    """

    def __init__(self, collection: Collection, place: Place, *, seed: int, limit_s: float) -> None:
        self.collection, self.place, self.limit_s = collection, place, limit_s
        owners = quantity_skew(
            len(collection.objects), place.n_parties, factor=SPLITS[place.split], seed=seed
        )
        self.providers: list[Provider] = []
        self._recorded: list[Provider] = []
        self._clocks: dict[str, RecordedMetric] = {}
        self._recorders: dict[tuple[str, Any], Recorder] = {}
        self._bounds_of: dict[int, npt.NDArray[np.float64]] = {}
        self._numbers = itertools.count()
        self._n_objects: dict[str, int] = {}
        for name in sorted(set(owners.tolist())):
            self._add(name, np.flatnonzero(owners == name))

    def _add(self, name: str, rows: npt.NDArray[np.int64]) -> None:
        whole = self.collection.objects
        own = whole[rows] if isinstance(whole, np.ndarray) else [whole[i] for i in rows.tolist()]
        ids = [str(row) for row in rows.tolist()]
        kept = _CachedMetric(metric_of(self.collection.metric))
        self.providers.append(Provider(name, own, kept, decode=decode_query, ids=ids))
        self._n_objects[name] = len(rows)
        if not self.collection.is_costly:
            return

        def recorder_of(query: Any) -> Recorder:
            if (name, query) not in self._recorders:
                assert kept.made is not None
                self._recorders[name, query] = Recorder(kept.made, query, limit_s=self.limit_s)
            return self._recorders[name, query]

        self._clocks[name] = RecordedMetric(kept, recorder_of)
        self._recorded.append(Provider(name, own, self._clocks[name], decode=decode_query, ids=ids))

    def forget(self) -> None:
        """Delete the records of earlier queries."""
        self._recorders.clear()

    def trial(self, row: int, k: int, algorithm: str) -> Trial:
        """Search for the k nearest objects and return the measurements."""
        course = self.schedule(row, k, algorithm)
        return self._trial(course, row, k, algorithm)

    def trial_in_process(self, row: int, k: int, algorithm: str) -> Trial:
        """Measure in a separate process, which ends when a provider is late."""
        question = self.question(row, k)
        done = replay_in_process(
            lambda parties: self._trial(
                replay(contender(algorithm)(question), parties, limit_s=self.limit_s),
                row,
                k,
                algorithm,
            ),
            self.providers,
            limit_s=self.limit_s,
        )
        return done or self.late_trial(row, k, algorithm)

    def late_trial(self, row: int, k: int, algorithm: str) -> Trial:
        """Return the trial of a search that is late."""
        return self._trial(None, row, k, algorithm)

    def schedule(self, row: int, k: int, algorithm: str) -> Course:
        """Return the events of a search, replayed if searches are costly."""
        if self.collection.is_costly:
            # providers known to be late come first, which saves measurements
            parties: list[Party] = sorted(self._recorded, key=lambda each: not self._is_late(each))
            return self._run(row, k, algorithm, parties)
        courses: list[Course] = []
        while len(courses) < _REPEATS and sum(map(_work_s, courses)) < _ENOUGH_S:
            courses.append(self._run(row, k, algorithm, list(self.providers)))
        return sorted(courses, key=_work_s)[len(courses) // 2]

    def _is_late(self, party: Party) -> bool:
        return any(
            recorder.late for (name, _), recorder in self._recorders.items() if name == party.name
        )

    def needs_process(self, algorithm: str) -> bool:
        """Return whether an algorithm must run in a separate process."""
        return self.collection.is_costly and algorithm in _LEAPS

    def _run(self, row: int, k: int, algorithm: str, parties: list[Party]) -> Course:
        if algorithm.endswith("no bounds"):
            parties = [PartyWithoutBounds(party, self._n_objects[party.name]) for party in parties]
        asked = self.question(row, k)
        found = replay(
            contender(algorithm)(asked), parties, clocks=self._clocks, limit_s=self.limit_s
        )
        for party in parties:
            party.answer(FinishRequest((asked.name,)))
        return found

    def question(self, row: int, k: int) -> Question:
        """Return the query under a new name."""
        return Question(
            encode_query(self.collection.objects[row]),
            k,
            self.place.n_parties,
            f"query {next(self._numbers)}",
            self.collection.step,
        )

    def _trial(self, course: Course | None, row: int, k: int, algorithm: str) -> Trial:
        n_objects, n_parties = len(self.collection.objects), self.place.n_parties
        about = (self.collection.name, self.place.split, n_objects, n_parties, k, algorithm, row)
        if course is None or course.answer is None:
            return Trial(*about, late=True, limit_s=self.limit_s)
        local, bounds = course.local_s, [leg for leg in course.legs if "Bound" in leg.request]
        wanted = [leg.wanted for leg in course.legs if "Nearest" in leg.request]
        distances, verified = course.answer.merged.distances, course.answer.verified
        return Trial(
            *about,
            late=False,
            limit_s=self.limit_s,
            n_exchanges=len(course.legs),
            way_s=sum(leg.seconds(Link(0.0, BYTES_PER_S)) for leg in course.legs),
            search_s=sum(max(leg.local_s.values()) for leg in course.legs),
            bounds_s=sum(max(leg.local_s.values()) for leg in bounds),
            broker_s=course.broker_s,
            carrying_s=course.carrying_s,
            local_sum_s=sum(local.values()),
            local_most_s=max(local.values()),
            asked=sum(course.answer.n_returned.values()),
            verified=0 if self.needs_process(algorithm) else sum(verified.values()),
            wanted_first=wanted[0],
            wanted_second=sum(wanted[1:]),
            possible=self._n_within_bounds(row, float(distances[-1])),
            farthest=float(distances[-1]),
        )

    def _n_within_bounds(self, row: int, radius: float) -> int:
        """Return the number of objects that a search by bounds must verify."""
        return int(np.searchsorted(self._bounds(row), radius, side="right"))

    def _bounds(self, row: int) -> npt.NDArray[np.float64]:
        """Return the bounds of all objects, ascending."""
        if row not in self._bounds_of:
            frame = encode_query(self.collection.objects[row])
            parts = [self._bounds_at(provider, frame) for provider in self.providers]
            self._bounds_of = {row: np.sort(np.concatenate(parts))}
        return self._bounds_of[row]

    def _bounds_at(self, provider: Provider, frame: bytes) -> npt.NDArray[np.float64]:
        n_objects = self._n_objects[provider.name]
        reply: Any = provider.answer(BoundRequest("bounds", frame, n_objects))
        provider.answer(FinishRequest(("bounds",)))
        lowest: npt.NDArray[np.float64] = reply.bounds
        return lowest
