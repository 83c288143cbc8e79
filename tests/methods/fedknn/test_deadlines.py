"""Requests for bounds and counts carry a time budget, after which a provider refuses."""

import itertools
import time
from unittest import mock

import numpy as np
import pytest

from fedneighbors import FederatedNeighbors
from fedneighbors.federation._roles import Refused
from fedneighbors.methods.fedknn._provider import Provider
from fedneighbors.methods.fedknn._queries import decode_query, encode_query
from fedneighbors.methods.fedknn._radius import hufu, hufu_plus, range_search
from fedneighbors.methods.fedknn.metrics import _sessions, metric_of
from fedneighbors.methods.fedknn.protocol import BoundRequest, RangeCountRequest, dann

ROWS = np.random.default_rng(0).normal(size=(3000, 6))
QUERY = encode_query(ROWS[0])
REQUESTS = {
    "bounds": lambda budget_s: BoundRequest("q", QUERY, 5, budget_s),
    "count": lambda budget_s: RangeCountRequest("q", QUERY, 2.0, budget_s),
}


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
