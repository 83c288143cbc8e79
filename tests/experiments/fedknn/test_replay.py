"""A replay equals a real run, and adds up seconds as a network would."""

import itertools

import numpy as np
import pytest

from experiments.datasets.graphs import synthetic_graphs
from experiments.fedknn.measurement.recording import RecordedMetric, Recorder
from experiments.fedknn.measurement.replay import Late, Leg, replay
from fedneighbors.federation._inprocess import Link, run
from fedneighbors.methods.fedknn._provider import Provider
from fedneighbors.methods.fedknn._queries import decode_query, encode_query
from fedneighbors.methods.fedknn._radius import hufu_plus
from fedneighbors.methods.fedknn.metrics import metric_of
from fedneighbors.methods.fedknn.protocol import NearestRequest, baseline, dann

GRAPHS = synthetic_graphs(
    60, mean_edges=6, n_node_labels=3, n_edge_labels=2, n_patterns=8, seed=1
).graphs
SHARES = {"p0": GRAPHS[:10], "p1": GRAPHS[10:40], "p2": GRAPHS[40:], "p3": []}


def real_providers():
    return [
        Provider(name, own, metric_of("graph_edit"), decode=decode_query)
        for name, own in SHARES.items()
    ]


class Kept:
    """A metric that remembers the index it made."""

    def __init__(self):
        self.inner, self.name = metric_of("graph_edit"), "graph_edit"

    def index(self, objects, *, ranks):
        self.made = self.inner.index(objects, ranks=ranks)
        return self.made


def recorded_providers(**limits):
    clocks, providers = {}, []
    for name, own in SHARES.items():
        kept = Kept()
        Provider(name, own, kept, decode=decode_query)
        recorders = {}

        def recorder_of(query, kept=kept, recorders=recorders):
            if query not in recorders:
                recorders[query] = Recorder(kept.made, query, **limits)
            return recorders[query]

        clocks[name] = RecordedMetric(kept, recorder_of)
        providers.append(Provider(name, own, clocks[name], decode=decode_query))
    return providers, clocks


def found(answer):
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

        assert [found(course.answer) for course in replays] == [found(expected)] * 2
        assert [course.answer.n_returned for course in replays] == [expected.n_returned] * 2


def recorder(**limits):
    index = metric_of("graph_edit").index(GRAPHS, ranks=np.arange(len(GRAPHS)))
    return Recorder(index, GRAPHS[5], **limits)


def test_seconds_and_verifications_rise_with_the_objects():
    tape = recorder()
    tape.reach(30)

    spent = [tape.spent(n, complete=True) for n in range(31)]

    assert spent == sorted(spent)
    assert spent[0] == (tape.opening_s, 0)
    assert all(n_verified >= n for n, (_, n_verified) in enumerate(spent))


def test_all_objects_within_a_cutoff_are_found_with_the_end():
    tape = recorder()
    everything = recorder()
    everything.reach(len(GRAPHS))
    _, distances = everything.found(0, len(GRAPHS))
    level = float(distances[20])

    n_within = tape.reach(len(GRAPHS), level)

    assert n_within == (distances <= level).sum()
    seconds, n_verified = tape.spent(n_within, cutoff=level, complete=False)
    assert seconds >= tape.spent(n_within, complete=True)[0]
    assert n_verified >= (tape.bounds <= level).sum()


def test_a_recording_may_be_longer_than_its_replay():
    short, long = recorder(), recorder()
    long.reach(50)

    assert [short.reach(9), long.reach(9)] == [9, 9]
    for mine, theirs in zip(short.found(0, 9), long.found(0, 9), strict=True):
        assert (mine == theirs).all()


def test_a_provider_without_time_is_late_for_every_algorithm():
    providers, clocks = recorded_providers(limit_s=0.0)

    courses = [
        replay(algorithm(encode_query(GRAPHS[0]), 5, name="q"), providers, clocks=clocks)
        for algorithm in (baseline, dann)
    ]

    assert [course.answer for course in courses] == [None, None]
    with pytest.raises(Late):
        recorder(limit_s=0.0).reach(1)


class Worker:
    """A party whose recorded work takes given seconds."""

    def __init__(self, provider, each_s):
        self.name, self.accepts = provider.name, provider.accepts
        self._provider, self._each_s = provider, each_s
        self.spent_s = 0.0

    def answer(self, request):
        if isinstance(request, NearestRequest):
            self.spent_s += self._each_s
        return self._provider.answer(request)


def test_the_slowest_provider_of_every_exchange_counts():
    workers = [
        Worker(provider, each_s)
        for provider, each_s in zip(real_providers(), [100.0, 300.0, 200.0, 0.0], strict=True)
    ]
    clocks = {worker.name: worker for worker in workers}

    course = replay(baseline(encode_query(GRAPHS[0]), 5, name="q"), workers, clocks=clocks)

    assert [leg.request for leg in course.legs] == [NearestRequest.__name__]
    assert [leg.wanted for leg in course.legs] == [20]
    assert {name: round(spent) for name, spent in course.local_s.items()} == {
        "p0": 100, "p1": 300, "p2": 200, "p3": 0,
    }  # fmt: skip
    assert course.seconds(Link(10.0)) == pytest.approx(
        310.0, abs=5.0
    )  # the work itself takes milliseconds
    late = replay(
        baseline(encode_query(GRAPHS[0]), 5, name="r"), workers, clocks=clocks, limit_s=250.0
    )
    assert late.answer is None


def test_an_exchange_lasts_as_long_as_its_slowest_provider():
    leg = Leg("", 0, {"a": 2.0, "b": 1.0}, {"a": 100, "b": 100}, {"a": 100, "b": 1000})

    assert leg.seconds(Link(0.5)) == 2.5
    assert leg.seconds(Link(0.5, bytes_per_s=100)) == 0.5 + 1.0 + 1.0 + 10.0
