import math
from functools import cache, reduce

import numpy as np
import pytest
from scipy.stats import binom, norm

from experiments.attacks.evidence import (
    exact_evidence,
    gaussian_evidence,
    laplace_evidence,
)
from experiments.attacks.limits import (
    gaussian_auc,
    laplace_auc,
    largest_auc,
    largest_hit_rate,
)
from experiments.attacks.scores import auc, auc_margin, hit_rate_limit
from fedneighbors.privacy._guarantees import ZCDP, ApproxDP, PureDP


def discrete_laplace(scale, values):
    weights = np.exp(-np.abs(values) / scale)
    return weights / weights.sum()


def discrete_gaussian(variance, values):
    weights = np.exp(-(values**2) / (2 * variance))
    return weights / weights.sum()


@pytest.mark.parametrize("epsilon", [0, 0.1, 1, 3])
@pytest.mark.parametrize("delta", [0, 1e-6, 0.2])
def test_largest_auc_is_one_minus_the_area_of_the_trade_off(epsilon, delta):
    rates = (np.arange(200_000) + 0.5) / 200_000
    steep, flat = 1 - delta - np.exp(epsilon) * rates, np.exp(-epsilon) * (1 - delta - rates)

    area = np.maximum(0, np.maximum(steep, flat)).mean()

    assert largest_auc(ApproxDP(epsilon, delta)) == pytest.approx(1 - area, abs=1e-9)


def test_randomized_response_attains_the_largest_auc():
    p_true = math.e / (1 + math.e)  # a bit is reported correctly, epsilon = 1

    attained = p_true * p_true + p_true * (1 - p_true)  # a tie counts half

    assert largest_auc(PureDP(1)) == pytest.approx(attained, rel=1e-12)


def test_k_ary_randomized_response_attains_the_hit_limit():
    attained = math.e / (math.e + 99)

    assert largest_hit_rate(PureDP(1), 100) == pytest.approx(attained, rel=1e-12)


def test_a_delta_can_reveal_whole_records():
    hit_rate = largest_hit_rate(ApproxDP(0, 0.1), 100)

    assert hit_rate == pytest.approx(0.1 + 0.9 / 100)  # revealed with probability delta


@pytest.mark.parametrize("distance", [0.01, 0.1, 0.25, 1.0, 3.0])
def test_gaussian_noise_is_within_its_zcdp_bound(distance):
    allowed = largest_auc(ZCDP(distance**2 / 2))

    assert 0.5 < gaussian_auc(distance) <= allowed <= 1


@pytest.mark.parametrize("deviation", [0.5, 2.0, 8.0])
def test_identifying_a_gaussian_mean_is_within_its_zcdp_limit(deviation):
    # candidates are unit vectors; the attack chooses the largest cell
    steps = np.linspace(-9, 12, 20_001)
    density = norm.pdf(steps - 1 / deviation) * norm.cdf(steps) ** 99

    best = density.sum() * (steps[1] - steps[0])

    assert 1 / 100 < best <= largest_hit_rate(ZCDP(1 / deviation**2), 100)


@pytest.mark.parametrize("guarantee", [PureDP(0), ApproxDP(0, 0), ZCDP(0)])
def test_a_budget_of_zero_allows_only_guessing(guarantee):
    assert largest_auc(guarantee) == pytest.approx(0.5, abs=1e-7)
    assert largest_hit_rate(guarantee, 40) == pytest.approx(1 / 40, abs=1e-7)


@pytest.mark.parametrize("guarantee", [PureDP(2000), ZCDP(1e6)])
def test_a_huge_budget_allows_everything(guarantee):
    assert largest_auc(guarantee) == pytest.approx(1.0)
    assert largest_hit_rate(guarantee, 40) == pytest.approx(1.0)


def test_one_candidate_is_refused():
    with pytest.raises(ValueError, match="expected 2 candidates or more, got 1"):
        largest_hit_rate(PureDP(1), 1)


@pytest.mark.parametrize(("variance", "n_cells"), [(4.0, 1), (20.0, 8), (571.0, 32)])
def test_gaussian_auc_bounds_that_of_discrete_gaussian_noise(variance, n_cells):
    # the best test is a threshold on the sum of the cells
    reach = math.ceil(12 * math.sqrt(variance))
    cell = discrete_gaussian(variance, np.arange(-reach, reach + 1))
    total = reduce(np.convolve, [cell] * n_cells)
    member, outsider = np.pad(total, (n_cells, 0)), np.pad(total, (0, n_cells))

    exact = member @ (np.cumsum(outsider) - outsider / 2)

    assert 0 <= gaussian_auc(math.sqrt(n_cells / variance)) - exact < 6e-3 / variance


@pytest.mark.parametrize("scale", [0.7, 2.0, 5.0])
def test_laplace_auc_equals_an_enumeration_of_all_outcomes(scale):
    cells = np.arange(-60, 62)
    outsider, member = discrete_laplace(scale, cells), discrete_laplace(scale, cells - 1)
    joint_outsider = np.outer(outsider, outsider).ravel()
    joint_member = np.outer(member, member).ravel()
    ratio = np.round(np.log(joint_member / joint_outsider), 9)
    levels = np.unique(ratio)
    p, q = (
        np.array([law[ratio == level].sum() for level in levels])
        for law in (joint_outsider, joint_member)
    )

    exact = q @ (np.cumsum(p) - p / 2)

    assert laplace_auc(scale, 2) == pytest.approx(exact, abs=1e-9)


@pytest.mark.parametrize("n_cells", [1, 8, 32, 128])
def test_laplace_noise_is_within_its_epsilon_bound(n_cells):
    assert laplace_auc(float(n_cells), n_cells) <= largest_auc(PureDP(1)) + 1e-12


@pytest.mark.parametrize("step", [1, 3, -2])
def test_evidence_is_the_log_ratio_of_the_noise_densities(step):
    cells = np.arange(-20, 21)
    positions = cells + 200
    laplace = [discrete_laplace(3.0, np.arange(-200, 201) - shift) for shift in (0, step)]
    gaussian = [discrete_gaussian(7.0, np.arange(-200, 201) - shift) for shift in (0, step)]

    expected_laplace = np.log(laplace[1][positions] / laplace[0][positions])
    expected_gaussian = np.log(gaussian[1][positions] / gaussian[0][positions])

    np.testing.assert_allclose(
        laplace_evidence(cells, 3.0, step), expected_laplace, rtol=0, atol=1e-9
    )
    np.testing.assert_allclose(
        gaussian_evidence(cells, 7.0, step), expected_gaussian, rtol=0, atol=1e-9
    )


def test_a_cell_without_noise_excludes_or_is_neutral():
    assert exact_evidence(np.array([0, 1, 4])).tolist() == [-np.inf, 0.0, 0.0]


def test_auc_is_the_fraction_of_ordered_pairs():
    rng = np.random.default_rng(0)
    for _ in range(50):
        members = rng.integers(0, 6, rng.integers(1, 9)).astype(float)
        outsiders = np.where(rng.random(rng.integers(1, 9)) < 0.3, -np.inf, 2.0)

        pairs = [(a > b) + (a == b) / 2 for a in members for b in outsiders]

        assert auc(members, outsiders) == pytest.approx(np.mean(pairs), rel=1e-12)


@pytest.mark.parametrize("members", [[], [np.nan]])
def test_invalid_scores_are_refused(members):
    with pytest.raises(ValueError, match="at least one member and one outsider, and no NaN"):
        auc(np.array(members, np.float64), np.array([1.0]))


@cache
def pairs_in_order(n_members, n_outsiders):
    """Return the probability of each number of ordered pairs, for equally likely orders."""
    if n_members == 0 or n_outsiders == 0:
        return np.ones(1)
    member_last = np.pad(pairs_in_order(n_members - 1, n_outsiders), (n_outsiders, 0))
    outsider_last = np.pad(pairs_in_order(n_members, n_outsiders - 1), (0, n_members))
    share = n_members / (n_members + n_outsiders)
    return share * member_last + (1 - share) * outsider_last


@pytest.mark.parametrize("confidence", [0.9, 0.99])
def test_equal_distributions_rarely_exceed_the_margin(confidence):
    chances = pairs_in_order(8, 9)
    limit = 0.5 + auc_margin(8, 9, confidence=confidence)

    exceeding = chances[np.arange(len(chances)) > limit * 8 * 9].sum()

    assert chances.sum() == pytest.approx(1)
    assert exceeding <= 1 - confidence


@pytest.mark.parametrize("n_trials", [10, 1000])
@pytest.mark.parametrize("rate", [0.01, 0.03, 0.4])
def test_the_limit_holds_with_its_confidence(n_trials, rate):
    hits = np.arange(n_trials + 1)
    limits = np.array([hit_rate_limit(k, n_trials, confidence=0.99) for k in hits])

    miss_probability = binom.pmf(hits[limits < rate], n_trials, rate).sum()

    assert miss_probability <= 0.01
