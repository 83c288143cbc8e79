"""``algorithm="auto"`` uses measurements, or under privacy public numbers only."""

import numpy as np
import pytest

from fedneighbors import FederatedNeighbors, Privacy
from fedneighbors.methods.fedknn.planner._plan import Plan, choose_by_public_numbers

RNG = np.random.default_rng(3)
POINTS, OWNERS = RNG.normal(size=(400, 3)), np.arange(400) % 4


def fit_search(**settings):
    return FederatedNeighbors(grid_s=0.0, **settings).fit(POINTS, parties=OWNERS)


def test_auto_chooses_an_algorithm_with_a_reason():
    search = fit_search()

    distances, neighbors = search.kneighbors(POINTS[:3], 7)

    expected = fit_search(algorithm="baseline").kneighbors(POINTS[:3], 7)
    assert [near.tolist() for near in neighbors] == [near.tolist() for near in expected[1]]
    for record in search.query_records_:
        assert record.algorithm in ("baseline", "dann")
        assert "expected time for k = 7" in record.why
    assert len(distances) == 3


def test_auto_measures_again_only_for_a_larger_k():
    search = fit_search()
    search.kneighbors(POINTS[:1], 9)
    costs = search._chooser._costs

    search.kneighbors(POINTS[1:2], 4)
    assert search._chooser._costs is costs
    search.kneighbors(POINTS[1:2], 10)
    assert search._chooser._costs.k == 10


def test_for_one_party_nothing_is_measured():
    search = FederatedNeighbors("edit").fit(["a", "b"])

    search.kneighbors("a", 1)

    assert search.query_records_[0].algorithm == "baseline"
    assert "one party" in search.query_records_[0].why
    assert search._chooser._costs is None


@pytest.mark.parametrize(
    ("epsilon", "k", "expected"), [(1, 8, "baseline"), (1, 128, "dann*"), ("0.01", 128, "baseline")]
)
def test_under_privacy_auto_uses_public_numbers_only(epsilon, k, expected):
    privacy = Privacy(epsilon=epsilon, delta="1e-6")
    search = fit_search(privacy=privacy)

    search.kneighbors(POINTS[:1], k)

    assert search.query_records_[0].algorithm == expected
    assert search._chooser._costs is None  # no sample was run
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
        ({}, {"baseline", "dann"}),
        ({"privacy": Privacy(epsilon=1, delta="1e-6")}, {"baseline", "dann*"}),
        ({"algorithm": "hufu"}, {"baseline", "dann"}),
    ],
)
def test_explain_prints_each_algorithms_cost(settings, algorithms):
    search = fit_search(**settings)

    plan = search.explain(POINTS[:1], 40)

    assert isinstance(plan, Plan)
    assert {prediction.algorithm for prediction in plan.predictions} == algorithms
    assert all(name in str(plan) for name in algorithms)
    assert plan.algorithm == settings.get("algorithm", plan.algorithm)
    if search.ledger_ is not None:
        assert search.ledger_.spent("0").epsilon == 0


def test_explain_takes_one_query():
    with pytest.raises(ValueError, match="expected one query, got 2"):
        fit_search().explain(POINTS[:2])
