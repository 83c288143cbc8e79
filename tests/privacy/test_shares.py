import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import chisquare

from fedneighbors.privacy._guarantees import ZCDP, PureDP, Sensitivity
from fedneighbors.privacy.noise._distributed import GaussianShares, LaplaceShares, sum_excess
from fedneighbors.privacy.noise._mechanisms import (
    MAX_TABLE_SCALE,
    DiscreteGaussian,
    DiscreteLaplace,
)
from fedneighbors.privacy.noise._samplers import (
    LaplaceLaw,
    NegativeBinomialLaw,
    cumulative,
    probability,
)

ROW = Sensitivity(unit="row", neighbors="add_remove", l1=4, l2_squared=4, linf=1)
FALSE_ALARM = 1e-4  # the seeds are fixed


def pmf(law, n_values):
    """Return exact probabilities of 0, ..., n_values - 1, as the lower ends of tight enclosures."""
    sums = cumulative(law, 128)
    return np.diff([0, *sums.lows[:n_values]]) / sums.total.high


@pytest.mark.parametrize("n_shares", [1, 2, 7])
def test_negative_binomial_shares_sum_to_a_geometric_variable(n_shares):
    scale = Fraction(2)
    share = np.array([float(p) for p in pmf(NegativeBinomialLaw(scale, n_shares), 60)])

    total = np.ones(1)
    for _ in range(n_shares):
        total = np.convolve(total, share)[:60]

    a = math.exp(-0.5)
    np.testing.assert_allclose(total, (1 - a) * a ** np.arange(60), rtol=1e-11)


def test_sampled_shares_sum_to_laplace_noise():
    n_shares, n = 5, 200_000
    shares = LaplaceShares(3, n_shares)
    bits = np.random.default_rng(8).bytes

    total = sum(shares.share(n, bits=bits) for _ in range(n_shares))

    law = LaplaceLaw(Fraction(3))
    values = range(-20, 21)
    counts = Counter(total.tolist())
    observed = [counts[k] for k in values]
    expected = [n * float(probability(law, k)[0]) for k in values]
    observed, expected = [*observed, n - sum(observed)], [*expected, n - sum(expected)]
    assert chisquare(observed, expected).pvalue > FALSE_ALARM


def test_gaussian_shares_have_the_total_variance_together():
    n_shares, n, variance = 8, 100_000, 72
    shares = GaussianShares(variance, n_shares)
    bits = np.random.default_rng(9).bytes

    total = sum(shares.share(n, bits=bits) for _ in range(n_shares))

    # the estimate of the variance has the relative deviation sqrt(2 / n) = .0045
    assert abs(total.var() / variance - 1) < 5 * math.sqrt(2 / n)
    assert abs(total.mean()) < 5 * math.sqrt(variance / n)


def test_laplace_shares_cost_as_much_as_central_noise():
    assert LaplaceShares(8, 5).guarantee(ROW) == PureDP(Fraction(1, 2))
    assert LaplaceShares(8, 5).guarantee(ROW) == DiscreteLaplace(8).guarantee(ROW)


def test_one_gaussian_share_costs_as_much_as_central_noise():
    assert GaussianShares(8, 1).guarantee(ROW, n_cells=10) == DiscreteGaussian(8).guarantee(ROW)


def test_the_excess_of_a_sum_follows_the_papers_formula():
    for variance, n_shares in [(0.25, 2), (0.5, 3), (1, 50), (2.5, 9)]:
        formula = 10 * math.fsum(
            math.exp(-2 * math.pi**2 * variance * k / (k + 1)) for k in range(1, n_shares)
        )

        excess = sum_excess(Fraction(variance), n_shares)

        assert formula <= excess <= formula * (1 + 2e-4)


def test_the_excess_matters_for_shares_of_small_variance_only():
    central = DiscreteGaussian(100).guarantee(ROW).rho

    narrow = GaussianShares(100, 100).guarantee(ROW, n_cells=10_000).rho
    wide = GaussianShares(100, 4).guarantee(ROW, n_cells=10_000).rho

    assert central < wide < central + Fraction(1, 10**30)
    assert central + Fraction(1, 1000) < narrow


def renyi(p, q, alpha):
    return math.log(math.fsum(p**alpha * q ** (1 - alpha))) / (alpha - 1)


@pytest.mark.parametrize(("variance", "n_shares"), [(1, 2), (1, 4), (2, 8), (1.5, 4)])
def test_the_true_divergence_of_a_sum_is_within_the_guarantee(variance, n_shares):
    share_variance = variance / n_shares
    k = np.arange(-40, 41)
    share = np.exp(-(k**2) / (2 * share_variance))
    share /= share.sum()
    total = np.ones(1)
    for _ in range(n_shares):
        total = np.convolve(total, share)
    middle = len(total) // 2
    inside = slice(middle - 8, middle + 9)

    for shift in (1, 2):
        sensitivity = Sensitivity("row", "add_remove", l1=shift, l2_squared=shift**2, linf=shift)
        rho = GaussianShares(variance, n_shares).guarantee(sensitivity, n_cells=1).rho
        for alpha in (1.01, 1.5, 2, 4):
            p, q = np.roll(total, shift)[inside], total[inside]
            assert renyi(p, q, alpha) <= alpha * rho


@pytest.mark.parametrize(
    "make",
    [
        lambda: LaplaceShares(0, 3),
        lambda: LaplaceShares(3, 0),
        lambda: LaplaceShares(MAX_TABLE_SCALE + 1, 3),
        lambda: GaussianShares(3, 0),
        lambda: GaussianShares(3, 13),
    ],
)
def test_shares_out_of_range_are_refused(make):
    with pytest.raises(ValueError, match="expected"):
        make()


def test_gaussian_shares_cost_more_than_central_noise():
    for n_shares in (2, 3, 30):
        guarantee = GaussianShares(20, n_shares).guarantee(ROW, n_cells=1)

        assert isinstance(guarantee, ZCDP)
        assert guarantee.rho > DiscreteGaussian(20).guarantee(ROW).rho
