"""Private searches with ``FederatedNeighbors``: costs and refusals."""

from fractions import Fraction

import numpy as np
import pytest

from fedneighbors import FederatedNeighbors, Privacy
from fedneighbors.errors import BudgetExceeded
from fedneighbors.privacy._guarantees import ApproxDP, PureDP
from fedneighbors.privacy.ledger._ledger import Ledger

RNG = np.random.default_rng(8)
POINTS = RNG.normal(size=(300, 4))
OWNERS = np.arange(300) % 3
PRIVACY = Privacy(epsilon=1, delta="1e-6")


def fit_private(**settings):
    options = {"algorithm": "dann*", "privacy": PRIVACY, "grid_s": 0.0} | settings
    return FederatedNeighbors(**options).fit(POINTS, parties=OWNERS)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"guarantee": "certified", "privacy": Privacy(epsilon=3)},
        {"algorithm": "baseline"},
        {"variant": "two_exchanges"},
    ],
)
def test_private_searches_equal_those_without_privacy(settings):
    not_private = FederatedNeighbors().fit(POINTS, parties=OWNERS)

    search = fit_private(**settings)

    expected = not_private.kneighbors(POINTS[:4], 20)
    neighbors = search.kneighbors(POINTS[:4], 20)
    for record, positions, expected_positions in zip(
        search.query_records_, neighbors[1], expected[1], strict=True
    ):
        assert not record.exact or positions.tolist() == expected_positions.tolist()
        assert record.trust == "trusted"
        assert record.answered == ("0", "1", "2")


def test_each_party_is_charged_once_per_distinct_query():
    search = fit_private()

    search.kneighbors(POINTS[:2], 5)
    search.kneighbors(POINTS[:2], 5)

    assert search.ledger_.spent("0") == ApproxDP(Fraction(2), Fraction(2, 10**6))
    assert search.ledger_.spent("2") == search.ledger_.spent("0")


def test_two_exchanges_cost_a_query_once_for_the_same_first_objects():
    search = fit_private(variant="two_exchanges")
    n_returned = []
    for _ in range(3):
        search.kneighbors(POINTS[:1], 60)
        n_returned.append(search.query_records_[0].n_returned)
    assert all(counts == n_returned[0] for counts in n_returned)
    assert search.query_records_[0].n_rounds == 2
    assert search.ledger_.spent("0").epsilon == 1

    distances = np.linalg.norm(POINTS - POINTS[0], axis=1)
    for moved, epsilon in ((distances.argmax(), 1), (distances.argmin(), 2)):
        points, ledger = POINTS.copy(), search.ledger_
        points[moved] += 9
        search.fit(points, parties=OWNERS, ledger=ledger).kneighbors(POINTS[:1], 60)
        assert ledger.spent("0").epsilon == epsilon


@pytest.mark.parametrize("variant", ["mended", "two_exchanges"])
def test_a_repeated_query_requests_the_same_counts(variant):
    search = fit_private(privacy=Privacy(epsilon="0.1", delta="1e-6"), variant=variant)

    n_returned = []
    for _ in range(5):
        search.kneighbors(POINTS[:1], 60)
        n_returned.append(search.query_records_[0].n_returned)

    assert all(counts == n_returned[0] for counts in n_returned)


def test_another_k_or_other_objects_are_charged_again():
    search = fit_private()
    ledger = search.ledger_
    search.kneighbors(POINTS[:1], 5)
    search.kneighbors(POINTS[:1], 6)

    search.fit(POINTS[::-1], parties=OWNERS, ledger=ledger).kneighbors(POINTS[:1], 5)

    assert ledger.spent("1").epsilon == 3


def test_a_spent_budget_refuses_only_new_queries():
    search = fit_private(max_queries=2)
    first = search.kneighbors(POINTS[:2], 5)

    with pytest.raises(BudgetExceeded):
        search.kneighbors(POINTS[2:3], 5)

    assert search.ledger_.spent("0").epsilon == 2
    again = search.kneighbors(POINTS[:2], 5)
    assert [positions.tolist() for positions in again[1]] == [
        positions.tolist() for positions in first[1]
    ]


def test_if_one_budget_is_too_small_none_is_charged():
    with Ledger(":memory:", party="broker") as ledger:
        for party, epsilon in (("0", 9), ("1", 9), ("2", Fraction(1, 2))):
            ledger.set_budget(party, PureDP(epsilon))
        search = FederatedNeighbors(
            algorithm="dann*", privacy=Privacy(epsilon=1), guarantee="certified", grid_s=0
        ).fit(POINTS, parties=OWNERS, ledger=ledger)

        with pytest.raises(BudgetExceeded):
            search.kneighbors(POINTS[:1], 5)

        assert [ledger.spent(party).epsilon for party in "012"] == [0, 0, 0]


def test_the_printed_variant_is_never_exact_and_costs_double():
    search = fit_private(variant="paper", privacy=Privacy(epsilon=1))

    search.kneighbors(POINTS[:3], 10)

    assert not any(record.exact for record in search.query_records_)
    assert search.ledger_.spent("0") == PureDP(6)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"privacy": None}, "needs a privacy cost"),
        ({"algorithm": "dann"}, "reveals information about other parties"),
        ({"algorithm": "eager"}, "reveals information about other parties"),
        ({"algorithm": "hufu+"}, "reveals information about other parties"),
        ({"privacy": Privacy(epsilon=1)}, "always exact need a delta"),
        ({"guarantee": "certified"}, "do not use a delta"),
        ({"guarantee": "sure"}, "expected guarantee as one of"),
        ({"variant": "new"}, "expected variant as one of"),
        ({"max_queries": 0}, "expected max_queries of 1 or more"),
        ({"grid_s": -1}, "expected grid_s from 0"),
        ({"privacy": Privacy(epsilon=1, delta="0.1")}, "delta times max_queries below 1"),
        ({"allow_partial": True}, "does not support"),
        ({"failure": 1.0, "guarantee": "certified"}, "expected failure|do not use a delta"),
    ],
)
def test_conflicting_settings_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        fit_private(**settings)


def test_privacy_of_another_type_is_refused():
    with pytest.raises(
        TypeError, match=r"expected privacy=fedneighbors.Privacy\(epsilon=.*got 1.0"
    ):
        fit_private(privacy=1.0)


def test_names_too_long_for_a_reply_are_refused():
    search = FederatedNeighbors(algorithm="dann*", privacy=PRIVACY)

    with pytest.raises(ValueError, match="room for names of 64 bytes"):
        search.fit(POINTS[:1], ids=["x" * 65])
