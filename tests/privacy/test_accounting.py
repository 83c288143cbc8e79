"""Costs add up exactly; inexact conversions are rounded towards a larger cost."""

import math
import sys
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.errors import MissingExtraError
from fedneighbors.privacy._accounting import (
    difference,
    fits,
    largest_zcdp,
    spent_after,
    spent_by_counts,
    within,
    zcdp_to_approx,
)
from fedneighbors.privacy._guarantees import ZCDP, ApproxDP, PureDP

fractions = st.fractions(min_value=0, max_value=10, max_denominator=1000)
deltas = st.sampled_from(["1e-12", "1e-9", "1e-6", "1e-3", "0.1"]).map(Fraction)
pure = st.builds(PureDP, fractions)
zcdp = st.builds(ZCDP, fractions)
approx = st.builds(ApproxDP, fractions, deltas)


def delta_of(rho, epsilon):
    """Return an upper bound on delta, near the best one, by a scan over orders in floats."""
    best = math.inf
    for step in range(-4000, 4000):
        order = 1 + math.exp(step / 200)
        exponent = (order - 1) * (order * rho - epsilon) + order * math.log1p(-1 / order)
        best = min(best, exponent - math.log(order - 1))
    return math.exp(min(best, 0))


@given(st.lists(pure))
def test_pure_epsilons_add_up_exactly(costs):
    spent = spent_after(costs, PureDP(1))

    assert spent == PureDP(sum((cost.epsilon for cost in costs), Fraction(0)))


@given(st.lists(zcdp | pure))
def test_a_budget_of_rho_counts_pure_epsilon_as_half_its_square(costs):
    rhos = [c.rho if isinstance(c, ZCDP) else c.epsilon**2 / 2 for c in costs]

    assert spent_after(costs, ZCDP(1)) == ZCDP(sum(rhos, Fraction(0)))


@given(st.lists(pure), st.lists(approx, max_size=5))
def test_epsilons_and_deltas_add_up_under_an_approximate_budget(pure_costs, approximate):
    spent = spent_after([*pure_costs, *approximate], ApproxDP(1, "1e-6"))

    assert spent == ApproxDP(
        sum((cost.epsilon for cost in [*pure_costs, *approximate]), Fraction(0)),
        sum((cost.delta for cost in approximate), Fraction(0)),
    )


def test_rhos_are_summed_and_converted_at_the_rest_of_delta():
    costs = [PureDP("0.1"), ApproxDP("0.2", "4e-7"), ZCDP("0.001"), ZCDP("0.002")]

    spent = spent_after(costs, ApproxDP(1, "1e-6"))

    converted = zcdp_to_approx(Fraction("0.003"), Fraction("6e-7"))
    assert spent == ApproxDP(Fraction("0.3") + converted, "1e-6")


def test_an_approximate_cost_of_delta_zero_is_a_pure_one():
    costs = [ApproxDP("0.5", 0)]

    assert spent_after(costs, PureDP(1)) == PureDP("0.5")
    assert spent_after(costs, ZCDP(1)) == ZCDP("0.125")


@pytest.mark.parametrize(
    ("cost", "budget", "match"),
    [
        (ApproxDP(1, "1e-6"), PureDP(9), "without a delta for the budget epsilon=9"),
        (ApproxDP(1, "1e-6"), ZCDP(9), "without a delta for the budget rho=9"),
        (ZCDP("0.1"), PureDP(9), "releases of pure epsilon for the budget epsilon=9"),
        (ZCDP("0.1"), ApproxDP(9, 0), "no part of delta=0 is left"),
    ],
)
def test_costs_of_another_type_are_refused(cost, budget, match):
    with pytest.raises(ValueError, match=match):
        spent_after([cost], budget)

    assert not fits([cost], budget)


def test_zcdp_is_refused_once_delta_is_spent():
    budget = ApproxDP(10, "1e-6")

    assert fits([ApproxDP(1, "1e-6")], budget)
    assert not fits([ApproxDP(1, "1e-6"), ZCDP("1e-9")], budget)


def test_deltas_that_add_up_to_one_are_refused():
    with pytest.raises(ValueError, match="deltas add up to 6/5; expected less than 1"):
        spent_after([ApproxDP(0, "0.6")] * 2, ApproxDP(1, "0.9"))


@given(st.lists(pure | zcdp | approx, max_size=8), st.randoms(use_true_random=False))
@settings(max_examples=30)
def test_neither_order_nor_counting_changes_the_cost(costs, random):
    budget = ApproxDP(1, "0.9")
    shuffled = random.sample(costs, len(costs))
    counts = {cost: costs.count(cost) for cost in costs}

    assert spent_after(costs, budget) == spent_after(shuffled, budget)
    assert spent_after(costs, budget) == spent_by_counts(counts, budget)


@given(st.lists(pure), st.builds(PureDP, fractions))
def test_the_remaining_budget_fits_exactly(costs, budget):
    left = difference(budget, spent_after(costs, budget))

    if fits(costs, budget):
        assert fits([*costs, left], budget)
    assert not fits([*costs, PureDP(left.epsilon + Fraction(1, 10**30))], budget)


def test_the_remaining_approximate_budget_fits():
    budget = ApproxDP(2, "1e-6")
    for costs in ([ApproxDP("0.5", "4e-7")], [ZCDP("0.01"), PureDP("0.1")]):
        left = difference(budget, spent_after(costs, budget))

        assert left.epsilon > 0
        assert fits([*costs, left], budget)


@pytest.mark.parametrize(
    "budget", [PureDP(1), ZCDP(1), ApproxDP(1, "1e-6"), ApproxDP(1, 0)], ids=str
)
def test_an_unused_budget_is_left_unchanged(budget):
    assert difference(budget, spent_after([], budget)) == budget


def test_nothing_is_left_of_an_overspent_budget():
    assert difference(PureDP(1), PureDP(2)) == PureDP(0)
    assert difference(ZCDP(1), ZCDP(2)) == ZCDP(0)
    assert difference(ApproxDP(1, "1e-6"), ApproxDP(0, "1e-5")) == ApproxDP(0, 0)


def test_guarantees_of_two_types_are_not_compared():
    with pytest.raises(TypeError, match="expected two guarantees of one type"):
        within(PureDP(1), ZCDP(1))
    with pytest.raises(TypeError, match="expected two guarantees of one type"):
        difference(PureDP(1), ZCDP(1))


@given(
    st.floats(1e-6, 50, allow_nan=False),
    st.sampled_from([1e-12, 1e-9, 1e-6, 1e-3, 0.1]),
)
@settings(max_examples=40)
def test_the_conversion_agrees_with_a_scan_over_orders(rho, delta):
    epsilon = float(zcdp_to_approx(rho, delta))

    # the scan's orders differ by half a percent, which costs less than 1e-4 of delta
    assert delta_of(rho, epsilon) <= delta * (1 + 1e-3)
    if epsilon:
        assert delta_of(rho, epsilon * (1 - 1e-3)) > delta * (1 - 1e-12)


@given(fractions.filter(bool), deltas)
@settings(max_examples=40)
def test_the_conversion_is_at_most_the_textbooks_rounded_up(rho, delta):
    epsilon = zcdp_to_approx(rho, delta)
    textbook = float(rho) + 2 * math.sqrt(-float(rho) * math.log(float(delta)))

    assert 0 < epsilon <= Fraction(textbook)  # Bun and Steinke 2016, Proposition 1.3
    assert zcdp_to_approx(rho + Fraction(1, 10**40), delta) >= epsilon
    assert zcdp_to_approx(rho, delta - Fraction(1, 10**40)) >= epsilon


def test_arguments_between_floats_round_to_the_costlier_side():
    rho, delta = Fraction(1, 3), Fraction(1, 10**6)
    above = math.nextafter(1 / 3, 1) if Fraction(1 / 3) < rho else 1 / 3
    below = math.nextafter(1e-6, 0) if Fraction(1e-6) > delta else 1e-6

    assert zcdp_to_approx(rho, delta) == zcdp_to_approx(Fraction(above), Fraction(below))


def test_rho_for_epsilon_1_and_delta_1e_6_is_the_known_one():
    rho = largest_zcdp(1, "1e-6")

    # golden: a root of Corollary 13 by scipy's brentq over bounded minima is 0.024355970359538
    assert float(rho) == pytest.approx(0.024355970359538, rel=1e-12)


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(1, "1e-6"), ("0.1", "1e-9"), (8, "1e-5"), (0, "0.1")]
)
def test_the_largest_rho_fits_and_the_next_float_does_not(epsilon, delta):
    rho = largest_zcdp(epsilon, delta)

    assert zcdp_to_approx(rho, delta) <= Fraction(str(epsilon))
    following = Fraction(math.nextafter(float(rho), math.inf))
    assert zcdp_to_approx(following, delta) > Fraction(str(epsilon))
    assert fits([ZCDP(rho)], ApproxDP(epsilon, delta))
    assert not fits([ZCDP(following)], ApproxDP(epsilon, delta))


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: zcdp_to_approx(-1, "0.1"), "expected rho of 0 or more"),
        (lambda: zcdp_to_approx("1e309", "0.1"), "rho of 0 or more that fits a float64"),
        (lambda: zcdp_to_approx("1e308", "0.1"), "too large to be converted at delta=0.1"),
        (lambda: zcdp_to_approx(1, 0), r"delta in \(0, 1\)"),
        (lambda: zcdp_to_approx(1, 1), r"delta in \(0, 1\)"),
        (lambda: zcdp_to_approx(1, "1e-400"), "not below 5e-324"),
        (lambda: largest_zcdp(-1, "0.1"), "expected epsilon of 0 or more, got -1"),
        (lambda: largest_zcdp(1, 0), r"delta in \(0, 1\)"),
    ],
)
def test_arguments_out_of_range_are_named(call, match):
    with pytest.raises(ValueError, match=match):
        call()


def test_a_missing_opendp_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "opendp.prelude", None)

    with pytest.raises(MissingExtraError, match="opendp"):
        zcdp_to_approx("0.123456789", "1e-5")


def test_an_equal_number_of_another_type_has_no_cached_epsilon():
    binary = zcdp_to_approx(Fraction(0.3), 1e-6)  # 0.3 as a float, slightly below 3/10

    assert zcdp_to_approx(0.3, 1e-6) == zcdp_to_approx("0.3", "1e-6") > binary
