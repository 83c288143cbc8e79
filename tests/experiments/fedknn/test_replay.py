"""Replayed searches equal real runs, and their latencies add up."""

import itertools

import numpy as np
import pytest

from experiments.datasets.graphs import synthetic_graphs
from experiments.fedknn.measurement.recording import RecordedMetric, Recorder
from experiments.fedknn.measurement.replay import ExchangeCosts, Late, replay
from fedneighbors.federation._inprocess import run
from fedneighbors.federation._links import Link
from fedneighbors.methods.fedknn._provider import Provider
from fedneighbors.methods.fedknn._queries import decode_query, encode_query
from fedneighbors.methods.fedknn._radius import hufu_plus
from fedneighbors.methods.fedknn.metrics import metric_of
from fedneighbors.methods.fedknn.protocol import BoundRequest, NearestRequest, baseline, dann

GRAPHS = synthetic_graphs(
    60, mean_edges=6, n_node_labels=3, n_edge_labels=2, n_patterns=8, seed=1
).graphs
OBJECTS = {"p0": GRAPHS[:10], "p1": GRAPHS[10:40], "p2": GRAPHS[40:], "p3": []}


def real_providers():
    return [
        Provider.of(name, objects, metric_of("graph_edit"), decode=decode_query)
        for name, objects in OBJECTS.items()
    ]


class MetricWithIndex:
    """A metric that keeps the index that it builds."""

    def __init__(self):
        self.inner, self.name = metric_of("graph_edit"), "graph_edit"

    def index(self, objects, *, ranks):
        self.built_index = self.inner.index(objects, ranks=ranks)
        return self.built_index


def recorded_providers(**limits):
    clocks, providers = {}, []
    for name, objects in OBJECTS.items():
        metric = MetricWithIndex()
        Provider.of(name, objects, metric, decode=decode_query)
        recorders = {}

        def recorder_of(query, metric=metric, recorders=recorders):
            if query not in recorders:
                recorders[query] = Recorder(metric.built_index, query, **limits)
            return recorders[query]

        clocks[name] = RecordedMetric(metric, recorder_of)
        providers.append(Provider.of(name, objects, clocks[name], decode=decode_query))
    return providers, clocks


def merged_objects(answer):
    merged = answer.merged
    return list(zip(merged.distances.tolist(), merged.owners, merged.ids, strict=True))


@pytest.mark.parametrize("algorithm", [baseline, dann, hufu_plus])
@pytest.mark.parametrize("k", [1, 7, 25, 100])
def test_replays_equal_real_runs(algorithm, k):
    options = {"step": 1.0} if algorithm is hufu_plus else {}
    providers, clocks = recorded_providers()
    names = map("query {}".format, itertools.count())
    for query in map(encode_query, GRAPHS[::20]):
        expected = run(algorithm(query, k, name="q", **options), real_providers()).result

        replays = [
            replay(algorithm(query, k, name=next(names), **options), providers, clocks=clocks)
            for _ in range(2)
        ]

        assert [merged_objects(costs.answer) for costs in replays] == [merged_objects(expected)] * 2
        assert [costs.answer.n_returned for costs in replays] == [expected.n_returned] * 2


def make_recorder(**limits):
    index = metric_of("graph_edit").index(GRAPHS, ranks=np.arange(len(GRAPHS)))
    return Recorder(index, GRAPHS[5], **limits)


def test_seconds_and_verifications_increase_with_objects():
    recorder = make_recorder()
    recorder.reach(30)

    spent = [recorder.spent(n, complete=True) for n in range(31)]

    assert spent == sorted(spent)
    assert spent[0] == (recorder.opening_s, 0)
    assert all(n_verified >= n for n, (_, n_verified) in enumerate(spent))


def test_all_objects_within_a_cutoff_are_found_at_a_cost():
    recorder = make_recorder()
    complete = make_recorder()
    complete.reach(len(GRAPHS))
    _, distances = complete.get_emitted(0, len(GRAPHS))
    cutoff = float(distances[20])

    n_within = recorder.reach(len(GRAPHS), cutoff)

    assert n_within == (distances <= cutoff).sum()
    seconds, n_verified = recorder.spent(n_within, cutoff=cutoff, complete=False)
    assert seconds >= recorder.spent(n_within, complete=True)[0]
    assert n_verified >= (recorder.bounds <= cutoff).sum()


def test_a_recording_may_be_longer_than_its_replay():
    short, long = make_recorder(), make_recorder()
    long.reach(50)

    assert [short.reach(9), long.reach(9)] == [9, 9]
    for expected, actual in zip(short.get_emitted(0, 9), long.get_emitted(0, 9), strict=True):
        assert (actual == expected).all()


def test_a_provider_without_time_is_late_for_all_algorithms():
    providers, clocks = recorded_providers(limit_s=0.0)

    runs = [
        replay(algorithm(encode_query(GRAPHS[0]), 5, name="q"), providers, clocks=clocks)
        for algorithm in (baseline, dann)
    ]

    assert [costs.answer for costs in runs] == [None, None]
    with pytest.raises(Late):
        make_recorder(limit_s=0.0).reach(1)


class TimedParty:
    """A party whose recorded work takes a fixed time."""

    def __init__(self, provider, seconds_per_request):
        self.name, self.accepts = provider.name, provider.accepts
        self._provider, self._each_s = provider, seconds_per_request
        self.spent_s = 0.0

    def answer(self, request):
        if isinstance(request, NearestRequest):
            self.spent_s += self._each_s
        return self._provider.answer(request)


def test_the_slowest_provider_of_every_exchange_counts():
    parties = [
        TimedParty(provider, seconds_per_request)
        for provider, seconds_per_request in zip(
            real_providers(), [100.0, 300.0, 200.0, 0.0], strict=True
        )
    ]
    clocks = {party.name: party for party in parties}

    costs = replay(baseline(encode_query(GRAPHS[0]), 5, name="q"), parties, clocks=clocks)

    assert [exchange.request for exchange in costs.exchanges] == [NearestRequest.__name__]
    assert [exchange.n_requested for exchange in costs.exchanges] == [20]
    assert {name: round(spent) for name, spent in costs.local_s.items()} == {
        "p0": 100, "p1": 300, "p2": 200, "p3": 0,
    }  # fmt: skip
    assert costs.seconds(Link(10.0)) == pytest.approx(310.0, abs=5.0)  # the rest takes milliseconds
    late = replay(
        baseline(encode_query(GRAPHS[0]), 5, name="r"), parties, clocks=clocks, limit_s=250.0
    )
    assert late.answer is None


def test_the_limit_is_on_the_slowest_providers_of_all_exchanges_together():
    class Slow(TimedParty):
        """A party that is slow in one exchange only."""

        def answer(self, request):
            self.spent_s += self._each_s if type(request) is self.slow_at else 0
            return self._provider.answer(request)

    parties = [Slow(provider, 100.0) for provider in real_providers()]
    for party in parties:
        party.slow_at = NearestRequest if party.name == "p1" else BoundRequest
    clocks = {party.name: party for party in parties}

    def search(name, limit_s):
        coordinator = dann(encode_query(GRAPHS[0]), 5, name=name)
        return replay(coordinator, parties, clocks=clocks, limit_s=limit_s)

    costs = search("q", 1000.0)
    slowest = sum(max(exchange.local_s.values()) for exchange in costs.exchanges)

    assert max(costs.local_s.values()) < 0.75 * slowest
    assert search("r", 0.9 * slowest).answer is None
    assert search("s", 1.1 * slowest).answer is not None


def test_an_exchange_lasts_as_long_as_its_slowest_provider():
    exchange = ExchangeCosts(
        "", 0, {"a": 2.0, "b": 1.0}, {"a": 100, "b": 100}, {"a": 100, "b": 1000}
    )

    assert exchange.seconds(Link(0.5)) == 2.5
    assert exchange.seconds(Link(0.5, bytes_per_s=100)) == 0.5 + 1.0 + 1.0 + 10.0
