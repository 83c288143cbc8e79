"""Federation of a collection whose searches are measured."""

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.fedknn.measurement.algorithms import (
    PartyWithoutBounds,
    SearchRequest,
    find_algorithm,
)
from experiments.fedknn.measurement.collections import Collection
from experiments.fedknn.measurement.deadlines import replay_in_process
from experiments.fedknn.measurement.recording import RecordedMetric, Recorder
from experiments.fedknn.measurement.replay import SearchCosts, replay
from experiments.fedknn.measurement.trials import BYTES_PER_S, Trial
from fedneighbors.federation._links import Link
from fedneighbors.federation._roles import Party
from fedneighbors.methods.fedknn._provider import Provider
from fedneighbors.methods.fedknn._queries import decode_query, encode_query
from fedneighbors.methods.fedknn.metrics import metric_of
from fedneighbors.methods.fedknn.metrics._interfaces import Index, Metric
from fedneighbors.methods.fedknn.protocol import Answer, BoundRequest, FinishRequest
from fedneighbors.partition import quantity_skew

SPLITS = {"uniform": 0.0, "skewed": 0.6}
"""Exponent of Zipf's law for the sizes of the providers' tables, by name of the split."""

_NOT_RECORDED = ("hufu",)  # its radii do not ascend, so that recorded times do not apply
_REPEATS, _ENOUGH_S = 3, 0.2


@dataclass(frozen=True)
class Setting:
    """Split of a collection over providers.

    Parameters
    ----------
    split : str
        A key of ``SPLITS``.
    n_parties : int
        Number of providers.
    """

    split: str
    n_parties: int


def _work_s(costs: SearchCosts) -> float:
    return sum(costs.local_s.values())


def _digest(answer: Answer) -> str:
    """Return a digest of the distances, which ties do not change."""
    return hashlib.sha256(answer.merged.distances.tobytes()).hexdigest()[:16]


class _CachedMetric:
    """A metric that stores its index, so that recorders can use it."""

    def __init__(self, metric: Metric) -> None:
        self.name = metric.name
        self._metric = metric
        self.built_index: Index | None = None

    def distance(self, first: Any, second: Any) -> float:
        return self._metric.distance(first, second)

    def index(self, objects: Sequence[Any], *, ranks: npt.NDArray[np.int64]) -> Index:
        self.built_index = self._metric.index(objects, ranks=ranks)
        return self.built_index


class MeasuredFederation:
    """Providers of a collection, and recordings of the current query.

    Parameters
    ----------
    collection : Collection
        Collection to search.
    setting : Setting
        Split of the collection.
    seed : int
        Seed of the split.
    limit_s : float
        CPU seconds that a query may take: the slowest providers of all exchanges together.

    Attributes
    ----------
    first_radii : dict of int to float
        First radius of HuFu by number of neighbors, see :meth:`calibrate`.
    """

    def __init__(
        self, collection: Collection, setting: Setting, *, seed: int, limit_s: float
    ) -> None:
        self.collection, self.setting, self.limit_s = collection, setting, limit_s
        owners = quantity_skew(
            len(collection.objects), setting.n_parties, factor=SPLITS[setting.split], seed=seed
        )
        self.first_radii: dict[int, float] = {}
        self.providers: list[Provider] = []
        self._recorded: list[Provider] = []
        self._clocks: dict[str, RecordedMetric] = {}
        self._recorders: dict[tuple[str, Any], Recorder] = {}
        self._bounds_by_row: dict[int, npt.NDArray[np.float64]] = {}
        self._numbers = itertools.count()
        self._n_objects: dict[str, int] = {}
        for name in sorted(set(owners.tolist())):
            self._add(name, np.flatnonzero(owners == name))

    def _add(self, name: str, rows: npt.NDArray[np.int64]) -> None:
        source = self.collection.objects
        objects = (
            source[rows] if isinstance(source, np.ndarray) else [source[i] for i in rows.tolist()]
        )
        ids = [str(row) for row in rows.tolist()]
        metric = _CachedMetric(metric_of(self.collection.metric))
        self.providers.append(Provider.of(name, objects, metric, decode=decode_query, ids=ids))
        self._n_objects[name] = len(rows)
        if not self.collection.is_costly:
            return

        def recorder_of(query: Any) -> Recorder:
            if (name, query) not in self._recorders:
                assert metric.built_index is not None
                self._recorders[name, query] = Recorder(
                    metric.built_index, query, limit_s=self.limit_s
                )
            return self._recorders[name, query]

        self._clocks[name] = RecordedMetric(metric, recorder_of)
        self._recorded.append(
            Provider.of(name, objects, self._clocks[name], decode=decode_query, ids=ids)
        )

    def clear_recordings(self) -> None:
        """Delete the recordings of earlier queries."""
        self._recorders.clear()

    def calibrate(self, rows: Sequence[int], ks: Sequence[int]) -> None:
        """Set HuFu's first radii to the k-th distances of another query.

        Parameters
        ----------
        rows : sequence of int
            Queries that are not measured; the first one that is not late is used.
        ks : sequence of int
            Numbers of neighbors.

        Raises
        ------
        ValueError
            If all queries are late, or have distances of 0 only.
        """
        for row in rows:
            answer = self.search(row, max(ks), "dann").answer
            self.clear_recordings()
            distances = np.zeros(0) if answer is None else answer.merged.distances
            if distances.any():
                least = float(distances[distances > 0].min())  # a radius of 0 cannot be doubled
                farthest = {k: float(distances[min(k, len(distances)) - 1]) for k in ks}
                self.first_radii = {k: max(radius, least) for k, radius in farthest.items()}
                return
        raise ValueError(
            f"expected a query for HuFu's first radius, but each of {len(rows)} was late or found "
            "distances of 0 only; raise limit_s"
        )

    def trial(self, row: int, k: int, algorithm: str) -> Trial:
        """Measure a search for the k nearest objects."""
        return self._trial(self.search(row, k, algorithm), row, k, algorithm)

    def trial_in_process(self, row: int, k: int, algorithm: str) -> Trial:
        """Measure a search in a process that is killed if late."""
        request = self.make_request(row, k)
        trial = replay_in_process(
            lambda parties: self._trial(
                replay(find_algorithm(algorithm)(request), parties, limit_s=self.limit_s),
                row,
                k,
                algorithm,
            ),
            self._order(self.providers),
            limit_s=self.limit_s,
        )
        return trial or self._trial(None, row, k, algorithm)

    def search(self, row: int, k: int, algorithm: str) -> SearchCosts:
        """Run a search, from recordings if costly, and return its costs."""
        if self.collection.is_costly:
            return self._run(row, k, algorithm, self._order(self._recorded))
        runs: list[SearchCosts] = []
        while len(runs) < _REPEATS and sum(map(_work_s, runs)) < _ENOUGH_S:
            runs.append(self._run(row, k, algorithm, list(self.providers)))
        return sorted(runs, key=_work_s)[len(runs) // 2]

    def _order(self, parties: Sequence[Party]) -> list[Party]:
        """Return parties with late recordings first, because they may end the search."""
        late = {name for (name, _), recorder in self._recorders.items() if recorder.late}
        return sorted(parties, key=lambda party: party.name not in late)

    def needs_process(self, algorithm: str) -> bool:
        """Return whether an algorithm needs a process that can be killed."""
        return self.collection.is_costly and algorithm in _NOT_RECORDED

    def _run(self, row: int, k: int, algorithm: str, parties: list[Party]) -> SearchCosts:
        if algorithm.endswith("no bounds"):
            parties = [PartyWithoutBounds(party, self._n_objects[party.name]) for party in parties]
        request = self.make_request(row, k)
        costs = replay(
            find_algorithm(algorithm)(request), parties, clocks=self._clocks, limit_s=self.limit_s
        )
        for party in parties:
            party.answer(FinishRequest((request.name,)))
        return costs

    def make_request(self, row: int, k: int) -> SearchRequest:
        """Return a query under a new name."""
        return SearchRequest(
            encode_query(self.collection.objects[row]),
            k,
            self.setting.n_parties,
            f"query {next(self._numbers)}",
            self.collection.step,
            self.first_radii.get(k),
        )

    def _trial(self, costs: SearchCosts | None, row: int, k: int, algorithm: str) -> Trial:
        n_objects, n_parties = len(self.collection.objects), self.setting.n_parties
        labels = (self.collection.name, self.setting.split, n_objects, n_parties, k, algorithm, row)
        if costs is None or costs.answer is None:
            return Trial(*labels, late=True, limit_s=self.limit_s, answer="")
        local, bounds = costs.local_s, [e for e in costs.exchanges if "Bound" in e.request]
        n_requested = [e.n_requested for e in costs.exchanges if "Nearest" in e.request]
        distances, verified = costs.answer.merged.distances, costs.answer.verified
        return Trial(
            *labels,
            late=False,
            limit_s=self.limit_s,
            answer=_digest(costs.answer),
            n_exchanges=len(costs.exchanges),
            way_s=sum(e.seconds(Link(0.0, BYTES_PER_S)) for e in costs.exchanges),
            search_s=sum(max(e.local_s.values()) for e in costs.exchanges),
            bounds_s=sum(max(e.local_s.values()) for e in bounds),
            broker_s=costs.broker_s,
            carrying_s=costs.carrying_s,
            local_sum_s=sum(local.values()),
            local_most_s=max(local.values()),
            asked=sum(costs.answer.n_returned.values()),
            verified=0 if self.needs_process(algorithm) else sum(verified.values()),
            wanted_first=n_requested[0],
            wanted_second=sum(n_requested[1:]),
            possible=self._n_within_bounds(row, float(distances[-1])),
            farthest=float(distances[-1]),
        )

    def _n_within_bounds(self, row: int, radius: float) -> int:
        """Return the number of objects whose bound is at most a radius."""
        return int(np.searchsorted(self._bounds(row), radius, side="right"))

    def _bounds(self, row: int) -> npt.NDArray[np.float64]:
        """Return the lower bounds of all objects, ascending."""
        if row not in self._bounds_by_row:
            frame = encode_query(self.collection.objects[row])
            parts = [self._provider_bounds(provider, frame) for provider in self.providers]
            self._bounds_by_row = {row: np.sort(np.concatenate(parts))}
        return self._bounds_by_row[row]

    def _provider_bounds(self, provider: Provider, frame: bytes) -> npt.NDArray[np.float64]:
        n_objects = self._n_objects[provider.name]
        reply: Any = provider.answer(BoundRequest("bounds", frame, n_objects))
        provider.answer(FinishRequest(("bounds",)))
        bounds: npt.NDArray[np.float64] = reply.bounds
        return bounds
