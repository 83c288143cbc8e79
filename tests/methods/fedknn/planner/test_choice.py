"""``algorithm="auto"`` chooses by measurements; under privacy by public numbers only."""

import numpy as np
import pytest

from fedneighbors import FederatedNeighbors, Privacy
from fedneighbors.methods.fedknn.planner._plan import Plan, choose_by_public_numbers

RNG = np.random.default_rng(3)
POINTS, OWNERS = RNG.normal(size=(400, 3)), np.arange(400) % 4


def search(**settings):
    return FederatedNeighbors(grid_s=0.0, **settings).fit(POINTS, parties=OWNERS)


def test_auto_chooses_an_algorithm_with_a_reason():
    chosen = search()

    distances, found = chosen.kneighbors(POINTS[:3], 7)

    expected = search(algorithm="baseline").kneighbors(POINTS[:3], 7)
    assert [near.tolist() for near in found] == [near.tolist() for near in expected[1]]
    for record in chosen.query_records_:
        assert record.algorithm in ("baseline", "dann")
        assert "expected time for k = 7" in record.why
    assert len(distances) == 3


def test_auto_measures_again_only_for_a_larger_k():
    chosen = search()
    chosen.kneighbors(POINTS[:1], 9)
    costs = chosen._chooser._costs

    chosen.kneighbors(POINTS[1:2], 4)
    assert chosen._chooser._costs is costs
    chosen.kneighbors(POINTS[1:2], 10)
    assert chosen._chooser._costs.k == 10


def test_one_party_needs_no_measurement():
    alone = FederatedNeighbors("edit").fit(["a", "b"])

    alone.kneighbors("a", 1)

    assert alone.query_records_[0].algorithm == "baseline"
    assert "one party" in alone.query_records_[0].why
    assert alone._chooser._costs is None


@pytest.mark.parametrize(
    ("epsilon", "k", "expected"), [(1, 8, "baseline"), (1, 128, "dann*"), ("0.01", 128, "baseline")]
)
def test_under_privacy_auto_uses_public_numbers_only(epsilon, k, expected):
    privacy = Privacy(epsilon=epsilon, delta="1e-6")
    chosen = search(privacy=privacy)

    chosen.kneighbors(POINTS[:1], k)

    assert chosen.query_records_[0].algorithm == expected
    assert chosen._chooser._costs is None  # no sample was run
    other = FederatedNeighbors(privacy=privacy).fit(
        np.zeros((9, 1)), parties=[0, 1, 2, 3, 3] + [2] * 4
    )
    settings = other._settings(0.0)
    assert choose_by_public_numbers(settings, 4, k)[0] == expected


def test_auto_under_privacy_charges_only_for_counts():
    chosen = search(privacy=Privacy(epsilon=1, delta="1e-6"))

    chosen.kneighbors(POINTS[:1], 8)
    assert chosen.ledger_.spent("0").epsilon == 0
    chosen.kneighbors(POINTS[:1], 128)
    assert chosen.ledger_.spent("0").epsilon == 1


@pytest.mark.parametrize(
    ("settings", "algorithms"),
    [
        ({}, {"baseline", "dann"}),
        ({"privacy": Privacy(epsilon=1, delta="1e-6")}, {"baseline", "dann*"}),
        ({"algorithm": "hufu"}, {"baseline", "dann"}),
    ],
)
def test_explain_prints_each_algorithms_cost(settings, algorithms):
    chosen = search(**settings)

    plan = chosen.explain(POINTS[:1], 40)

    assert isinstance(plan, Plan)
    assert {prediction.algorithm for prediction in plan.predictions} == algorithms
    assert all(name in str(plan) for name in algorithms)
    assert plan.algorithm == settings.get("algorithm", plan.algorithm)
    if chosen.ledger_ is not None:
        assert chosen.ledger_.spent("0").epsilon == 0


def test_explain_takes_one_query():
    with pytest.raises(ValueError, match="expected one query, got 2"):
        search().explain(POINTS[:2])
