"""Requests for bounds and counts carry a time budget, after which a provider refuses."""

import contextlib
import itertools
import math
import threading
import time
from unittest import mock

import numpy as np
import pytest

from fedneighbors import FederatedNeighbors, Privacy
from fedneighbors.errors import PartyMissing, PartyRefused
from fedneighbors.federation._messages import encode
from fedneighbors.federation._roles import Refused
from fedneighbors.methods.fedknn._provider import Provider
from fedneighbors.methods.fedknn._queries import decode_query, encode_query
from fedneighbors.methods.fedknn._radius import hufu, hufu_plus, range_search
from fedneighbors.methods.fedknn.metrics import _sessions, _vectors, metric_of
from fedneighbors.methods.fedknn.private._padding import (
    PaddedBoundRequest,
    PaddedNearestRequest,
)
from fedneighbors.methods.fedknn.protocol import BoundRequest, RangeCountRequest, dann

ROWS = np.random.default_rng(0).normal(size=(3000, 6))
QUERY = encode_query(ROWS[0])
COUNT = np.array([5], np.int64)
PRIVATE = {
    "bounds": PaddedBoundRequest("q", QUERY, 5, 0.5),
    "nearest": PaddedNearestRequest("q", QUERY, COUNT, 5, 0.5),
}
REQUESTS = {
    "bounds": lambda budget_s: BoundRequest("q", QUERY, 5, budget_s),
    "count": lambda budget_s: RangeCountRequest("q", QUERY, 2.0, budget_s),
}


@pytest.fixture(autouse=True)
def large_table(monkeypatch):
    """Search the table in steps, as a large one."""
    monkeypatch.setattr(_vectors, "_MAX_SMALL_CELLS", 0)


def make_provider():
    return Provider.of("p", ROWS, metric_of("euclidean"), decode=decode_query)


@pytest.mark.parametrize("kind", REQUESTS)
def test_a_request_is_refused_after_its_budget(kind):
    provider = make_provider()
    expected = make_provider().answer(REQUESTS[kind](None))

    with mock.patch.object(_sessions, "STEP_CELLS", 64 * 6):
        with (
            mock.patch.object(time, "monotonic", itertools.count().__next__),
            pytest.raises(Refused, match="the deadline has passed"),
        ):
            provider.answer(REQUESTS[kind](10.0))
        again = provider.answer(REQUESTS[kind](None))

    assert vars(again).keys() == vars(expected).keys()
    for name, value in vars(expected).items():
        assert np.array_equal(getattr(again, name), value)


class Clock:
    """A clock that advances with each reading, and by sleeping."""

    def __init__(self, tick_s):
        self.now, self.tick_s = 0.0, tick_s

    def read(self):
        self.now += self.tick_s
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.mark.parametrize("kind", PRIVATE)
@pytest.mark.parametrize("tick_s", [0.0001, 0.001, 0.01, 0.1])
def test_a_private_request_ends_on_the_grid_or_at_the_deadline(kind, tick_s):
    expected, provider, clock = (
        make_provider().answer(PRIVATE[kind]),
        make_provider(),
        Clock(tick_s),
    )
    provider.source._epoch, provider.end, reply = getattr(expected, "epoch", b""), 3.0, None

    with (
        mock.patch.object(_sessions, "STEP_CELLS", 64 * 6),
        mock.patch.object(time, "monotonic", clock.read),
        mock.patch.object(time, "sleep", clock.sleep),
        contextlib.suppress(Refused),
    ):
        reply = provider.answer(PRIVATE[kind])

    left_at = clock.now - tick_s  # the clock started at its first reading
    if reply is None:
        assert left_at == pytest.approx(3.0 - tick_s)
        assert tick_s > 0.01
    else:
        assert encode(reply) == encode(expected)
        assert min(abs(left_at - step) for step in (0.5, 1.0, 2.0)) < 1e-9
        assert tick_s < 0.1


def test_a_provider_in_a_thread_stops_at_the_deadline():
    computed, may_go_on = [], threading.Event()

    def distance(first, second):
        if first == "0":  # the query of the first search
            may_go_on.wait()
        computed.append(second)
        return abs(int(first) - int(second))

    names = [str(number) for number in range(2000)]
    search = FederatedNeighbors(metric=distance, algorithm="baseline", deadline_s=2.0)
    search.fit(names, parties=["p"] * len(names))

    with pytest.raises(PartyMissing, match="no answer within"):
        search.kneighbors(["0"], n_neighbors=3)
    may_go_on.set()
    _, positions = search.kneighbors(["7"], n_neighbors=1)

    assert positions[0].tolist() == [7]
    assert computed.count("1") == 1  # the first search went no further than the first object


def test_a_private_search_after_the_deadline_is_charged_once():
    search = FederatedNeighbors(algorithm="dann*", privacy=Privacy(1, delta="1e-6"), grid_s=0.0)
    search.fit(ROWS, parties=["p", "q"] * 1500)
    provider = search.providers_[0]

    def answer(request, original=provider.answer):
        if isinstance(request, PaddedNearestRequest):
            provider.end = 0.0
        return original(request)

    with (
        mock.patch.object(provider, "answer", answer),
        pytest.raises(PartyRefused, match="the deadline has passed"),
    ):
        search.kneighbors(ROWS[:1], n_neighbors=3)
    spent = search.ledger_.spent("q")
    provider.end = math.inf
    search.kneighbors(ROWS[:1], n_neighbors=3)

    assert spent.epsilon == 1
    assert search.ledger_.spent("q") == spent


@pytest.mark.parametrize("kind", REQUESTS)
def test_a_request_within_its_budget_is_answered(kind):
    expected = make_provider().answer(REQUESTS[kind](None))
    with mock.patch.object(time, "monotonic", return_value=0.0):
        reply = make_provider().answer(REQUESTS[kind](0.0))

    assert reply == expected


@pytest.mark.parametrize("algorithm", [dann, hufu, hufu_plus, range_search])
def test_coordinators_send_the_budget(algorithm):
    ask = next(algorithm(QUERY, 5, name="q", budget_s=2.5))

    assert ask.requests.budget_s == 2.5


@pytest.mark.parametrize("algorithm", ["dann", "hufu", "hufu+"])
def test_the_deadline_of_the_estimator_is_the_budget(algorithm):
    search = FederatedNeighbors(algorithm=algorithm, deadline_s=60.0).fit(
        ROWS, parties=["p"] * 3000
    )
    provider, budgets = search.providers_[0], []

    def answer(request, original=provider.answer):
        budgets.append(getattr(request, "budget_s", None))
        return original(request)

    with mock.patch.object(provider, "answer", answer):
        search.kneighbors(ROWS[:1], n_neighbors=3)
        search.radius_neighbors(ROWS[:1], radius=1.0)

    assert budgets.count(60.0) >= 2
