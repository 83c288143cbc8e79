"""Sensitivity of releases to one row, and noise within a fraction of the budget."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.errors import PrivacyError
from fedneighbors.methods.flynn._features import FeatureMap
from fedneighbors.methods.flynn.algorithm import HashPlan, count_activations, hash_with_plan
from fedneighbors.methods.flynn.private._release import (
    constants_levels,
    constants_sensitivity,
    count_sensitivity,
    picks_mechanism,
    quantized_moments,
    release_budget,
)
from fedneighbors.privacy._accounting import fits, largest_zcdp
from fedneighbors.privacy._guarantees import ApproxDP, PureDP
from fedneighbors.privacy._policy import Privacy
from fedneighbors.privacy.noise._calibration import mechanism, shares, variance

EPSILONS = st.fractions(Fraction(1, 50), 8, max_denominator=100)


def neighbors_of(rng, relation, x, y):
    """Return the same rows without the first, or with another row in its place."""
    if relation == "add_remove":
        return x[1:], y[1:]
    other_x, other_y = x.copy(), y.copy()
    other_x[0] = rng.integers(-3, 9, x.shape[1])
    other_y[0] = rng.integers(0, 3)
    return other_x, other_y


@settings(max_examples=300)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["add_remove", "replace_one"]))
def test_no_row_moves_the_counts_further_than_stated(seed, relation):
    rng = np.random.default_rng(seed)
    n_units = int(rng.integers(2, 12))
    plan = HashPlan(FeatureMap(4, "none"), n_units, 2, int(rng.integers(1, n_units + 1)), 5)
    x, y = rng.integers(0, 3, (6, 4)), rng.integers(0, 3, 6)

    def counts(rows, labels):
        return count_activations(hash_with_plan(rows, plan), labels, n_units=n_units, n_classes=3)

    difference = np.abs(counts(x, y) - counts(*neighbors_of(rng, relation, x, y)))

    sensitivity = count_sensitivity(plan.n_active, relation)
    assert difference.sum() <= sensitivity.l1
    assert (difference**2).sum() <= sensitivity.l2_squared
    assert difference.max(initial=0) <= sensitivity.linf
    if relation == "add_remove":
        assert (
            difference.sum() == sensitivity.l1
        )  # each row reaches it: no lower sensitivity is correct


def test_a_row_that_changes_its_class_moves_twice_as_many_cells():
    plan = HashPlan(FeatureMap(4, "none"), 9, 2, 3, 5)
    x = np.arange(8).reshape(2, 4)
    before = count_activations(hash_with_plan(x, plan), np.array([0, 0]), n_units=9, n_classes=2)
    after = count_activations(hash_with_plan(x, plan), np.array([1, 0]), n_units=9, n_classes=2)

    assert np.abs(before - after).sum() == count_sensitivity(3, "replace_one").l1 == 6


@settings(max_examples=300)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["add_remove", "replace_one"]))
def test_no_row_moves_the_moments_further_than_stated(seed, relation):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(5, 3)) * 10.0 ** rng.integers(-3, 4)  # many values beyond the bounds
    bounds = (np.array([-1.0, 0.0, -5.0]), np.array([1.0, 0.0, 50.0]))  # one range is empty
    other, _ = neighbors_of(rng, relation, x, np.zeros(5, int))
    levels = int(rng.choice([16, 128, 1024]))

    difference = np.abs(
        quantized_moments(x, bounds, levels) - quantized_moments(other, bounds, levels)
    )

    sensitivity = constants_sensitivity(3, levels, relation)
    assert difference.sum() <= sensitivity.l1
    assert (difference**2).sum() <= sensitivity.l2_squared
    assert difference.max() <= sensitivity.linf


def test_bounded_moments_give_mean_and_deviation():
    x = np.random.default_rng(0).uniform(2, 6, (5000, 1))

    rows, first, second = quantized_moments(x, (np.array([2.0]), np.array([6.0])), 1024)

    n = rows / 1024
    assert n == 5000
    assert 2 + 4 * first / 1024 / n == pytest.approx(x.mean(), abs=4e-3)
    spread = 4 * math.sqrt(second / 1024 / n - (first / 1024 / n) ** 2)
    assert spread == pytest.approx(x.std(), abs=8e-3)


@given(EPSILONS, st.fractions(Fraction(1, 100), Fraction(99, 100), max_denominator=100))
def test_parts_of_a_pure_budget_add_up_to_it(epsilon, share):
    privacy = Privacy(epsilon=epsilon, constants_share=share)

    constants = release_budget(privacy, of="constants", constants_paid=True)
    counts = release_budget(privacy, of="counts", constants_paid=True)

    assert constants.epsilon + counts.epsilon == epsilon
    assert release_budget(privacy, of="counts", constants_paid=False) == PureDP(epsilon)


@pytest.mark.parametrize("epsilon", [Fraction(1, 20), 1, 8])
@pytest.mark.parametrize("delta", ["1e-9", "1e-3"])
def test_parts_of_an_approximate_budget_fit_into_it_together(epsilon, delta):
    privacy = Privacy(epsilon=epsilon, delta=delta, mechanism="central")
    parts = [release_budget(privacy, of=of, constants_paid=True) for of in ("constants", "counts")]

    whole = release_budget(privacy, of="counts", constants_paid=False)

    assert parts[0].rho + parts[1].rho == whole.rho
    assert fits(parts, ApproxDP(epsilon, delta))
    assert whole.rho == largest_zcdp(epsilon, Fraction(delta))


@settings(max_examples=60)
@given(
    st.sampled_from([Fraction(1, 20), 1, 8]),  # each conversion of (epsilon, delta) takes a while
    st.sampled_from([0, "1e-6"]),
    st.sampled_from(["add_remove", "replace_one"]),
    st.integers(1, 12),
    st.sampled_from([1, 64, 1_700_000]),
)
def test_noise_and_noise_shares_stay_within_the_budget(epsilon, delta, relation, n_shares, n_cells):
    privacy = Privacy(epsilon=epsilon, delta=delta, mechanism="central")
    budget = release_budget(privacy, of="counts", constants_paid=False)
    sensitivity = count_sensitivity(64, relation)

    whole = mechanism(budget, sensitivity).guarantee(sensitivity)
    shared = shares(budget, sensitivity, n_shares=n_shares, n_cells=n_cells)

    if delta:
        assert whole.rho <= budget.rho
        assert shared.guarantee(sensitivity, n_cells).rho <= budget.rho
    else:
        assert whole == shared.guarantee(sensitivity) == budget


def test_too_small_gaussian_shares_are_enlarged():
    policy = Privacy(epsilon=1000, delta="1e-6", mechanism="central")
    budget = release_budget(policy, of="counts", constants_paid=False)
    sensitivity = count_sensitivity(1, "add_remove")

    noise = shares(budget, sensitivity, n_shares=100, n_cells=1000)

    assert noise.share_variance >= Fraction(1, 4)
    assert noise.guarantee(sensitivity, 1000).rho <= budget.rho


def test_stated_variance_is_that_of_the_distribution():
    laplace = mechanism(PureDP(Fraction(1, 2)), count_sensitivity(3, "add_remove"))
    k = np.arange(-400, 401)
    chances = np.exp(-np.abs(k) / float(laplace.scale))
    expected = (k**2 * chances).sum() / chances.sum()

    assert variance(laplace) == pytest.approx(expected, rel=1e-12)
    assert variance(laplace, n_summed=4) == pytest.approx(4 * expected, rel=1e-12)
    shared = shares(
        PureDP(Fraction(1, 2)), count_sensitivity(3, "add_remove"), n_shares=6, n_cells=1
    )
    assert variance(shared, n_summed=6) == pytest.approx(expected, rel=1e-12)


def test_only_the_papers_accounting_divides_epsilon():
    sensitivity = count_sensitivity(15, "add_remove")
    guarantees = {
        accounting: picks_mechanism(
            Privacy(epsilon=1, mechanism="paper", accounting=accounting, n_parties=4),
            constants_paid=False,
            n_picks=10,
        ).guarantee(sensitivity)
        for accounting in ("paper", "parallel")
    }

    assert guarantees == {"paper": PureDP(Fraction(1, 4)), "parallel": PureDP(1)}


@pytest.mark.parametrize(
    ("n_columns", "policy", "levels"),
    [
        (1, Privacy(epsilon=10), 1024),
        (1, Privacy(epsilon=1), 512),
        (20, Privacy(epsilon=1), 32),
        (64, Privacy(epsilon=1, delta="1e-6", mechanism="central"), 256),
    ],
)
def test_moments_get_the_finest_levels_of_the_samplers(n_columns, policy, levels):
    assert constants_levels(policy, n_columns) == levels


def test_moments_with_too_much_noise_are_refused():
    with pytest.raises(PrivacyError, match=r"too large for .* 64 columns; declare tighter bounds"):
        constants_levels(Privacy(epsilon=1), 64)
