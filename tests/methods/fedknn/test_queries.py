"""Providers are asked to close each query after its answer."""

import itertools
import threading

import numpy as np
import pytest

from fedneighbors.errors import PartyMissing, PartyRefused
from fedneighbors.federation._inprocess import connected
from fedneighbors.methods.fedknn._provider import Provider
from fedneighbors.methods.fedknn._queries import CLOSE_AFTER, OpenQueries
from fedneighbors.methods.fedknn._sources import MemorySource
from fedneighbors.methods.fedknn.estimator import FederatedNeighbors
from fedneighbors.methods.fedknn.metrics._function import FunctionMetric
from fedneighbors.methods.fedknn.protocol import FinishRequest, baseline


class Recorder(Provider):
    """A provider that records its requests."""

    def __init__(self, name, objects, *, hangs_at="", fails_to_close=False):
        metric = FunctionMetric(lambda a, b: abs(a - b))
        source = MemorySource(objects, metric, owner=name, epoch=b"")
        super().__init__(name, source, decode=float)
        self.requests = []
        self._hangs_at = hangs_at
        self.wake = threading.Event()
        self._fails = fails_to_close

    def answer(self, request):
        self.requests.append(request)
        if isinstance(request, FinishRequest) and self._fails:
            raise ZeroDivisionError
        if getattr(request, "query", None) == self._hangs_at.encode():
            self.wake.wait()
        return super().answer(request)

    @property
    def closed(self):
        return [request.names for request in self.requests if isinstance(request, FinishRequest)]


def run_all(federation, queries, **options):
    with OpenQueries(federation, map("q{}".format, itertools.count())) as open_queries:
        for query in queries:
            yield open_queries.run(lambda name: baseline(query, 1, name=name, **options))  # noqa: B023


def test_queries_are_closed_together_after_the_last_answer():
    providers = [Recorder("p0", [1.0]), Recorder("p1", [2.0])]

    with connected(providers) as federation:
        outcomes = list(run_all(federation, [b"0.0", b"3.0"]))

    assert [len(outcome.rounds) for outcome in outcomes] == [1, 1]
    assert [provider.closed for provider in providers] == [[("q0", "q1")]] * 2
    assert isinstance(providers[0].requests[-1], FinishRequest)


def test_many_queries_are_closed_in_groups():
    provider = Recorder("p0", [1.0])

    with connected([provider]) as federation:
        list(run_all(federation, [b"0.0"] * (2 * CLOSE_AFTER + 1)))

    assert [len(names) for names in provider.closed] == [CLOSE_AFTER, CLOSE_AFTER, 1]
    assert len(set(itertools.chain(*provider.closed))) == 2 * CLOSE_AFTER + 1


def test_a_failure_to_close_does_not_affect_answers():
    providers = [Recorder("p0", [1.0], fails_to_close=True), Recorder("p1", [2.0])]

    with connected(providers) as federation:
        (outcome,) = run_all(federation, [b"0.0"])

    assert outcome.result.merged.distances.tolist() == [1.0]


@pytest.mark.parametrize("allow_partial", [False, True])
def test_a_missing_party_is_not_asked_to_close(allow_partial):
    providers = [Recorder("p0", [1.0]), Recorder("p1", [2.0], hangs_at="0.0")]

    with connected(providers, deadline_s=1) as federation:
        answers = run_all(federation, [b"0.0"], allow_partial=allow_partial)
        if allow_partial:
            assert next(answers).result.missing == {"p1": "no answer within 1 s"}
            assert next(answers, None) is None
        else:
            with pytest.raises(PartyMissing):
                next(answers)

    providers[1].wake.set()
    assert providers[0].closed == [("q0",)]
    assert providers[1].closed == []


def test_a_party_missing_once_closes_only_later_queries():
    providers = [Recorder("p0", [1.0]), Recorder("p1", [2.0], hangs_at="0.0")]

    with connected(providers, deadline_s=1) as federation:
        answers = run_all(federation, [b"0.0", b"5.0", b"6.0"], allow_partial=True)
        missing = []
        for answer in answers:
            missing.append(list(answer.result.missing))
            providers[1].wake.set()

    assert missing == [["p1"], [], []]
    assert [provider.closed for provider in providers] == [[("q0", "q1", "q2")], [("q1", "q2")]]


def test_after_an_interrupt_no_close_request_is_sent():
    provider = Recorder("p0", [1.0])

    with connected([provider]) as federation:
        answers = run_all(federation, [b"0.0", b"1.0"])
        next(answers)
        with pytest.raises(KeyboardInterrupt):
            answers.throw(KeyboardInterrupt)

    assert provider.closed == []


def test_no_query_stays_open_after_a_call_of_the_estimator():
    search = FederatedNeighbors(algorithm="dann").fit([[0.0], [1.0], [2.0]], parties=[0, 0, 1])

    search.kneighbors([[0.5], [1.5]], n_neighbors=2)
    search.radius_neighbors([[0.5]], radius=1.0)
    search.n_objects_ = 0  # so that the estimator does not check the queries
    with pytest.raises(PartyRefused):
        search.kneighbors([np.array([0.5]), "a word"], n_neighbors=2)

    assert [provider._open for provider in search.providers_] == [{}, {}]
