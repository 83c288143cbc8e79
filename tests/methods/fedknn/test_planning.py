"""``algorithm="auto"`` uses finished queries, or under privacy public numbers only."""

import numpy as np
import pytest

from fedneighbors import FederatedNeighbors, Privacy
from fedneighbors.federation import Link
from fedneighbors.federation._loop import Outcome
from fedneighbors.methods.fedknn._eager import count_enough
from fedneighbors.methods.fedknn._planning import Plan, Planner, choose_by_public_numbers
from fedneighbors.methods.fedknn.algorithm import Merged
from fedneighbors.methods.fedknn.protocol import Answer
from fedneighbors.records import Round

RNG = np.random.default_rng(3)
POINTS, OWNERS = RNG.normal(size=(400, 3)), np.arange(400) % 4


def fit_search(**settings):
    return FederatedNeighbors(grid_s=0.0, **settings).fit(POINTS, parties=OWNERS)


def test_auto_adapts_to_the_round_trip_of_earlier_queries():
    search = fit_search(link=Link(0.02))

    records = []
    for point in POINTS[:3]:
        distances, neighbors = search.kneighbors(point[np.newaxis], 7)
        records += search.query_records_
        expected = fit_search(algorithm="baseline").kneighbors(point[np.newaxis], 7)
        assert neighbors[0].tolist() == expected[1][0].tolist()
        assert distances[0].tolist() == expected[0][0].tolist()

    first, *others = records
    assert first.algorithm == "eager"
    assert "at most two exchanges" in first.why
    assert first.n_rounds <= 2
    reasons = {"eager": "a round trip takes", "dann": "share processor cores"}
    assert all(reasons[record.algorithm] in record.why for record in others)
    assert search._planner.pace(7).grows  # a round trip was measured


def observe(planner, *, owners, k, busy_s=0.001):
    """Pass a finished query with these owners of its neighbors to a planner."""
    parties = sorted(set(owners))
    merged = Merged(np.zeros(len(owners)), tuple(owners), tuple(map(str, range(len(owners)))), {})
    numbers = dict.fromkeys(parties, 1)
    answer = Answer(merged, True, numbers, numbers, "eager")
    record = Round(0, "EagerRequest", "gather", {}, {}, 0.05 + busy_s, {}, {"a": busy_s})
    planner.run(lambda _: Outcome(answer, (record,)), SETTINGS, b"", k, ledger=None)


SETTINGS = FederatedNeighbors()._settings(0.0)


def test_enough_objects_are_omitted_where_shares_are_clustered():
    planner = Planner({"a": 500, "b": 500}, shares_cores=False)
    assert not planner.pace(64).grows

    observe(planner, owners=["a", "b"] * 32, k=64)
    pace = planner.pace(64)
    assert pace.grows
    assert pace.budget_s == pytest.approx(0.1)
    assert pace.grace_s == pytest.approx(0.05 * 0.05)
    assert pace.enough == count_enough({"a": 500, "b": 500}, 64)

    observe(planner, owners=["a"] * 64, k=64)
    assert planner.pace(64).enough is None


def test_slow_searches_of_parties_that_share_cores_use_dann():
    planner = Planner({"a": 500, "b": 500}, shares_cores=True)

    observe(planner, owners=["a", "b"], k=2)
    assert planner.choose(SETTINGS, 2)[0] == "eager"
    observe(planner, owners=["a", "b"], k=2, busy_s=0.2)
    assert planner.choose(SETTINGS, 2)[0] == "dann"
    assert Planner({"a": 500, "b": 500}, shares_cores=False).choose(SETTINGS, 2)[0] == "eager"


def test_one_party_is_asked_once():
    search = FederatedNeighbors("edit").fit(["a", "b"])

    search.kneighbors("a", 1)

    assert search.query_records_[0].algorithm == "baseline"
    assert "one party" in search.query_records_[0].why
    assert search.query_records_[0].n_rounds == 1


@pytest.mark.parametrize(
    ("epsilon", "k", "expected"), [(1, 8, "baseline"), (1, 128, "dann*"), ("0.01", 128, "baseline")]
)
def test_under_privacy_auto_uses_public_numbers_only(epsilon, k, expected):
    privacy = Privacy(epsilon=epsilon, delta="1e-6")
    search = fit_search(privacy=privacy)

    search.kneighbors(POINTS[:1], k)

    assert search.query_records_[0].algorithm == expected
    other = FederatedNeighbors(privacy=privacy).fit(
        np.zeros((9, 1)), parties=[0, 1, 2, 3, 3] + [2] * 4
    )
    settings = other._settings(0.0)
    assert choose_by_public_numbers(settings, 4, k)[0] == expected


def test_auto_under_privacy_charges_only_for_counts():
    search = fit_search(privacy=Privacy(epsilon=1, delta="1e-6"))

    search.kneighbors(POINTS[:1], 8)
    assert search.ledger_.spent("0").epsilon == 0
    search.kneighbors(POINTS[:1], 128)
    assert search.ledger_.spent("0").epsilon == 1


@pytest.mark.parametrize(
    ("settings", "algorithms"),
    [
        ({}, {"baseline", "dann", "eager"}),
        ({"privacy": Privacy(epsilon=1, delta="1e-6")}, {"baseline", "dann*"}),
        ({"algorithm": "hufu"}, {"baseline", "dann", "eager"}),
    ],
)
def test_explain_prints_each_algorithms_cost(settings, algorithms):
    search = fit_search(**settings)

    plan = search.explain(POINTS[:1], 40)

    assert isinstance(plan, Plan)
    assert {cost.algorithm for cost in plan.costs} == algorithms
    assert all(name in str(plan) for name in algorithms)
    assert plan.algorithm == settings.get("algorithm", plan.algorithm)
    if search.ledger_ is not None:
        assert search.ledger_.spent("0").epsilon == 0


def test_explain_takes_one_query():
    with pytest.raises(ValueError, match="expected one query, got 2"):
        fit_search().explain(POINTS[:2])
