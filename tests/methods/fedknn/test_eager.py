"""``eager`` is exact whatever the clock shows, and as fast as PAPER.md claims."""

import itertools
import math
import time
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors import FederatedNeighbors
from fedneighbors.datasets import Graph
from fedneighbors.federation._inprocess import run
from fedneighbors.federation._loop import FrameTransport, run_rounds
from fedneighbors.federation._roles import serve
from fedneighbors.methods.fedknn import _sources
from fedneighbors.methods.fedknn._eager import EagerRequest, Pace, count_enough, eager
from fedneighbors.methods.fedknn._provider import Provider
from fedneighbors.methods.fedknn._queries import decode_query, encode_query
from fedneighbors.methods.fedknn.algorithm import LAST_TIE, tie_keys
from fedneighbors.methods.fedknn.metrics import metric_of
from fedneighbors.methods.fedknn.metrics._function import FunctionMetric
from fedneighbors.methods.fedknn.metrics._interfaces import SessionBatch, SessionIndex
from tests.methods.fedknn.federations import KEY, federations, random_federation
from tests.naive.fedknn import nearest

BUDGETS_S = (0.0, 1e-6, 1e-3, 1.0, math.inf)


@st.composite
def paces(draw):
    counts = st.dictionaries(st.sampled_from([f"p{i}" for i in range(6)]), st.integers(1, 12))
    return Pace(
        draw(st.sampled_from(BUDGETS_S)),
        draw(st.booleans()),
        draw(st.none() | counts),
        draw(st.sampled_from(BUDGETS_S[:-1])),
    )


@settings(max_examples=400, deadline=None)
@given(federations(), paces())
def test_eager_equals_the_naive_search_at_every_pace(federation, pace):
    if pace.enough is not None:
        enough = {name: pace.enough.get(name, 1) for name in federation.tables}
        pace = Pace(pace.budget_s, pace.grows, enough, pace.grace_s)

    outcome = federation.run(eager, pace=pace)

    merged = outcome.result.merged
    neighbors = list(zip(merged.distances.tolist(), merged.owners, merged.ids, strict=True))
    assert neighbors == nearest(federation.tables, federation.query, federation.k, key=KEY)
    assert outcome.result.exact
    if pace.enough is None and (pace.budget_s == math.inf or not pace.grows):
        assert len(outcome.rounds) <= 2


class Pool:
    """Objects and queries of a metric, with all distances between them."""

    def __init__(self, metric, objects, queries):
        self.metric, self.objects, self.queries = metric, objects, queries
        self.distances = np.array([[metric.distance(q, item) for item in objects] for q in queries])


def make_pools():
    rng = np.random.default_rng(4)
    points = rng.integers(0, 3, (40, 2)).astype(float) + 1  # few values, so that distances tie
    words = ["".join(rng.choice(list("ab"), rng.integers(0, 5))) for _ in range(39)] + ["ab" * 200]
    sets = [set(rng.integers(0, 4, rng.integers(0, 4)).tolist()) for _ in range(40)]
    graphs = []
    for _ in range(40):
        n = int(rng.integers(0, 5))
        pairs = [pair for pair in itertools.combinations(range(n), 2) if rng.random() < 0.5]
        graphs.append(Graph(rng.choice(list("CO"), n).tolist(), pairs))
    vectors = dict.fromkeys(("euclidean", "manhattan", "cosine", "haversine"), points)
    vectors["inner_product"] = points - 1.5
    kinds = vectors | {"edit": words, "jaccard": sets, "graph_edit": graphs}
    pools = [Pool(metric_of(name), items[8:], items[:12]) for name, items in kinds.items()]
    function = FunctionMetric(lambda a, b: float(np.abs(a - b).max()))
    return [*pools, Pool(function, points[8:], points[:12])]


class HostileClock:
    """A clock with jumps, by which deadlines pass at random times."""

    def __init__(self, rng):
        self._rng, self._now, self._step = rng, 0.0, float(rng.choice([0.0, 1e-4, 1e-2, 10.0]))

    def __call__(self):
        self._now += self._step * self._rng.random()
        return self._now


def draw_search(rng, pool):
    """Return providers, a query as bytes, k, a pace, and the expected neighbors."""
    m, n, k = int(rng.integers(1, 6)), int(rng.integers(0, 25)), int(rng.integers(1, 14))
    rows, query = rng.integers(0, len(pool.objects), n), int(rng.integers(0, len(pool.queries)))
    owners = np.minimum(rng.geometric(0.5, n) - 1, m - 1) if rng.random() < 0.5 else rows % m
    providers, every = [], []
    for number in range(m):
        name, own = f"p{number}", rows[owners == number].tolist()
        objects = [pool.objects[row] for row in own]
        providers.append(Provider.of(name, objects, pool.metric, decode=decode_query, key=KEY))
        ids = [str(position) for position in range(len(own))]
        ties = tie_keys(ids, owner=name, key=KEY).tolist()
        distances = pool.distances[query, own].tolist()
        every += [(d, t, name, i) for d, t, i in zip(distances, ties, ids, strict=True)]
    has_enough = rng.random() < 0.5
    pace = Pace(
        float(rng.choice(BUDGETS_S)),
        bool(rng.integers(2)),
        {p.name: int(rng.integers(1, k + 2)) for p in providers} if has_enough else None,
        float(rng.choice(BUDGETS_S[:-1])),
    )
    expected = [(d, p, i) for d, _, p, i in sorted(every)[:k]]
    return providers, encode_query(pool.queries[query]), k, pace, expected


def find_errors(n_federations, *, seed, metrics=None):
    """Return the metric and pace of each answer that differs from the naive search."""
    rng, errors = np.random.default_rng(seed), []
    pools = [pool for pool in make_pools() if metrics is None or pool.metric.name in metrics]
    for number in range(n_federations):
        pool = pools[number % len(pools)]
        providers, query, k, pace, expected = draw_search(rng, pool)
        by_name = {provider.name: provider for provider in providers}

        def exchange(frames, by_name=by_name):
            return {name: serve(by_name[name], frame) for name, frame in frames.items()}, {}

        with mock.patch.object(time, "monotonic", HostileClock(rng)):
            transport = FrameTransport(exchange, tuple(by_name))
            merged = run_rounds(eager(query, k, name="q", pace=pace), transport).result.merged
        found = list(zip(merged.distances.tolist(), merged.owners, merged.ids, strict=True))
        if found != expected:
            errors.append((pool.metric.name, k, pace))
    return errors


def test_400_federations_of_all_metrics_are_searched_exactly():
    assert find_errors(400, seed=1) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2026, 2027, 2028, 2029])  # 100,000 in all
def test_25_000_federations_of_all_metrics_are_searched_exactly(seed):
    assert find_errors(25_000, seed=seed) == []


def test_an_unknown_frontier_of_zero_is_no_bound_of_negative_distances(monkeypatch):
    take_nearest = _sources.take_nearest

    def take_with_frontier_of_zero(*args, **settings):
        reply = take_nearest(*args, **settings)
        return replace(reply, frontier=max(reply.frontier, 0.0))

    assert find_errors(100, seed=1, metrics={"inner_product"}) == []

    monkeypatch.setattr(_sources, "take_nearest", take_with_frontier_of_zero)

    assert find_errors(100, seed=1, metrics={"inner_product"}) != []


class InterruptedLine:
    """Numbers whose sessions stop after a random number of objects if there is a deadline."""

    name = "interrupted line"

    def __init__(self, rng):
        self.rng = rng

    def index(self, objects, *, ranks):
        return SessionIndex(len(objects), partial(InterruptedSession, self.rng, objects, ranks))


class InterruptedSession:
    exact, n_verified = True, 0

    def __init__(self, rng, objects, ranks, query):
        distances = np.abs(np.array(objects, float) - query)
        self._order = np.lexsort((ranks, distances))
        self._distances, self._first, self._rng = distances[self._order], 0, rng

    def next(self, k, *, cutoff=math.inf, deadline_s=None):
        remaining = self._distances[self._first :]
        n_within = int(remaining.searchsorted(cutoff, side="right"))
        n = n_wanted = min(k, n_within)
        if deadline_s is not None:
            n = int(self._rng.integers(0, n + 1))
        chosen = slice(self._first, self._first + n)
        self._first += n
        return SessionBatch(
            positions=self._order[chosen],
            distances=self._distances[chosen],
            exhausted=n == n_within,
            n_certified=n,
            frontier=float(remaining[n]) if n < n_wanted else 0.0,
        )


def find_errors_of_interrupted_sessions(n_federations, *, seed):
    """Return each federation whose answer differs from the naive search."""
    rng, errors = np.random.default_rng(seed), []
    for _ in range(n_federations):
        federation = random_federation(rng)
        providers = [
            Provider.of(name, table, InterruptedLine(rng), decode=float, key=KEY)
            for name, table in federation.tables.items()
        ]
        pace = Pace(float(rng.choice(BUDGETS_S[:-1])), bool(rng.integers(2)))
        query = repr(federation.query).encode()
        merged = run(eager(query, federation.k, name="q", pace=pace), providers).result.merged
        found = list(zip(merged.distances.tolist(), merged.owners, merged.ids, strict=True))
        if found != nearest(federation.tables, federation.query, federation.k, key=KEY):
            errors.append(federation)
    return errors


def test_sessions_that_stop_at_any_object_are_searched_exactly():
    assert find_errors_of_interrupted_sessions(400, seed=2) == []


def close_at_the_frontier(request, reply):
    """Return a closed place that wrongly includes objects at the frontier."""
    place = original_close(request, reply)
    return max(place, (reply.frontier, LAST_TIE))


def close_tied_objects(request, reply):
    """Return a closed place that wrongly includes all objects at the cutoff distance."""
    distance, _ = original_close(request, reply)
    return distance, LAST_TIE


original_close = EagerRequest.close


@pytest.mark.parametrize("planted", [close_at_the_frontier, close_tied_objects])
def test_planted_errors_of_the_closed_place_are_found(planted, monkeypatch):
    monkeypatch.setattr(EagerRequest, "close", planted)

    assert find_errors_of_interrupted_sessions(400, seed=2) != []


@pytest.mark.parametrize("metric", ["euclidean", "haversine", "cosine", "inner_product"])
def test_large_tables_are_searched_exactly(metric):
    rng = np.random.default_rng(0)
    objects = rng.integers(-80, 80, (5000, 70 if metric == "cosine" else 2)) + 0.5
    parties, answers = rng.integers(0, 3, len(objects)), []
    for algorithm in ("baseline", "eager"):
        search = FederatedNeighbors(metric, algorithm).fit(objects, parties=parties)
        with mock.patch.object(_sources.time, "monotonic", HostileClock(rng)):
            distances, positions = search.kneighbors(objects[:4], 40)
        answers.append([[near.tolist() for near in group] for group in (distances, positions)])

    assert answers[0] == answers[1]


class TimedSession:
    """A session that takes a given time to reach each object, by a virtual clock."""

    exact, n_verified = True, 0

    def __init__(self, distances, reached_s, clock):
        self._distances, self._reached_s, self._clock = distances, reached_s, clock
        self._n_emitted, self._worked_s = 0, 0.0

    def bounds(self, *, deadline_s=None):
        return np.zeros(len(self._distances))

    def count(self, radius, *, deadline_s=None):
        return int((self._distances <= radius).sum())

    def next(self, k, *, cutoff=math.inf, deadline_s=None):
        first, left_s = self._n_emitted, math.inf if deadline_s is None else deadline_s
        in_time = True
        while in_time and self._n_emitted < first + k:
            wait_s = max(self._reached_s[self._n_emitted] - self._worked_s, 0.0)
            in_time = wait_s <= left_s
            self._clock.now += min(wait_s, left_s)
            self._worked_s += min(wait_s, left_s)
            left_s -= min(wait_s, left_s)
            following = self._distances[self._n_emitted : self._n_emitted + 1]
            if not len(following) or following[0] > cutoff:
                break
            self._n_emitted += in_time
        positions = np.arange(first, self._n_emitted)
        n_within = int(self._distances.searchsorted(cutoff, side="right"))
        exhausted = in_time and (self._n_emitted >= n_within and len(positions) < k)
        return SessionBatch(positions, self._distances[positions], exhausted, len(positions))


class VirtualClock:
    """A clock that advances only when sessions work."""

    now = 0.0

    def read(self):
        return self.now


class TimedFederation:
    """Providers whose exchanges take virtual seconds."""

    def __init__(self, rng, *, k, round_trip_s):
        self.k, self.round_trip_s, self.clock = k, round_trip_s, VirtualClock()
        self.seconds, self.providers, self.every = 0.0, [], []
        self.tables = []
        for name in map("p{}".format, range(int(rng.integers(1, 5)))):
            n = int(rng.integers(0, 2 * k))
            distances = np.sort(rng.random(n))
            waits_s = rng.exponential(size=n + 1) * 10.0 ** rng.uniform(-3, 1)
            reached_s = np.cumsum(waits_s * rng.choice([0.0, 1.0, 30.0], n + 1))
            open_session = partial(self._open, distances, reached_s)
            metric = SimpleNamespace(
                name="timed", index=lambda items, ranks, o=open_session: SessionIndex(len(items), o)
            )
            self.providers.append(Provider.of(name, distances, metric, decode=float))
            self.tables.append((distances, reached_s))

    def _open(self, distances, reached_s, _):
        return TimedSession(distances, reached_s, self.clock)

    def run(self, pace):
        """Return the virtual seconds and the number of exchanges of a search."""
        by_name = {provider.name: provider for provider in self.providers}

        def exchange(frames):
            replies, spent_s = {}, [0.0]
            for name, frame in frames.items():
                start_s = self.clock.now
                replies[name] = serve(by_name[name], frame)
                spent_s.append(self.clock.now - start_s)
            self.seconds += self.round_trip_s + max(spent_s)
            return replies, {}

        with mock.patch.object(_sources.time, "monotonic", self.clock.read):
            coordinator = eager(b"0.0", self.k, name="q", pace=pace)
            outcome = run_rounds(coordinator, FrameTransport(exchange, tuple(by_name)))
        return self.seconds, len(outcome.rounds)

    def bounds(self):
        """Return the seconds that any exact search needs, and those of the baseline."""
        k, distances = self.k, np.sort(np.concatenate([d for d, _ in self.tables]))
        kth = distances[k - 1] if len(distances) >= k else math.inf
        needed_s, full_s = [0.0], [0.0]
        for own, reached_s in self.tables:
            last = min(len(own), k - 1)
            full_s.append(reached_s[last])
            n_within = int(own.searchsorted(kth, side="right"))
            is_last = n_within and own[n_within - 1] == kth  # nothing can follow the k-th
            needed_s.append(min(reached_s[n_within - 1 if is_last else n_within], reached_s[last]))
        return self.round_trip_s + max(needed_s), self.round_trip_s + max(full_s)


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_latency_is_within_the_bounds_of_the_paper(factor):
    rng, highest = np.random.default_rng(5), np.zeros(2)
    of_optimum, of_baseline = {1.0: (2.14, 1.75), 2.0: (2.0, 1.43)}[factor]
    for _ in range(400):
        federation = TimedFederation(rng, k=int(rng.integers(1, 12)), round_trip_s=0.1)
        optimum, baseline = federation.bounds()

        seconds, n_exchanges = federation.run(Pace(factor * federation.round_trip_s))

        assert seconds >= optimum - 1e-9
        assert seconds <= max(of_optimum * optimum, optimum + factor * 0.1) + 1e-9
        assert seconds <= of_baseline * baseline + 1e-9
        if n_exchanges == 1:
            assert seconds <= baseline + 1e-9
        highest = np.maximum(highest, [seconds / optimum, seconds / baseline])
    assert (highest > [1.5, 1.2]).all()  # the bounds are not trivial


def test_the_first_query_takes_at_most_one_round_trip_more():
    rng, n_slower = np.random.default_rng(6), 0
    for _ in range(300):
        federation = TimedFederation(rng, k=int(rng.integers(1, 12)), round_trip_s=0.1)
        _, baseline = federation.bounds()

        seconds, n_exchanges = federation.run(Pace(grows=False))

        assert n_exchanges <= 2
        assert seconds <= baseline + 0.1 + 1e-9
        n_slower += seconds > baseline
    assert n_slower > 0


def test_enough_objects_suffice_for_most_random_distributions():
    rng, sizes = np.random.default_rng(7), {"a": 500, "b": 300, "c": 200}
    enough = count_enough(sizes, 64)

    shares = rng.multinomial(64, [0.5, 0.3, 0.2], 20_000)

    assert max(enough.values()) < 64
    n_open = (shares >= list(enough.values())).any(axis=1).sum()
    assert 0 < n_open < 0.06 * 20_000
    assert count_enough({"a": 0, "b": 0}, 4) == {"a": 1, "b": 1}
