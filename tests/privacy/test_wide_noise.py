"""Noise wider than a table has the right distribution beyond 32 bits; useless noise is refused."""

import numpy as np
import pytest

from fedneighbors.privacy.noise._mechanisms import MAX_SCALE, DiscreteGaussian, DiscreteLaplace
from fedneighbors.privacy.noise._top_picks import TopPicks

N = 2_000


@pytest.mark.parametrize("scale", [2**20, 2**33, MAX_SCALE])
def test_wide_laplace_noise_is_laplace_to_its_ends(scale):
    noise = DiscreteLaplace(scale).noise(N) / scale

    # Shares of a Laplace variable: OpenDP draws from the system's entropy, so that no seed is
    # fixed; seven deviations of a share, false alarms below 1e-10.
    for bound in (0.5, 1.0, 3.0):
        expected = np.exp(-bound)
        spread = np.sqrt(expected * (1 - expected) / N)
        assert abs((np.abs(noise) > bound).mean() - expected) < 7 * spread
    assert len(np.unique(noise)) > 0.95 * N or scale < 2**24


@pytest.mark.parametrize("sigma", [2**17, 2**33, MAX_SCALE])
def test_wide_gaussian_noise_is_gaussian_to_its_ends(sigma):
    noise = DiscreteGaussian(sigma**2).noise(N) / sigma

    for bound, expected in ((0.6744898, 0.5), (1.959964, 0.05)):
        spread = np.sqrt(expected * (1 - expected) / N)
        assert abs((np.abs(noise) > bound).mean() - expected) < 7 * spread


@pytest.mark.parametrize(
    "make",
    [
        lambda: DiscreteLaplace(MAX_SCALE + 1),
        lambda: DiscreteGaussian(MAX_SCALE**2 + 1),
        lambda: DiscreteLaplace(10**400),
        lambda: TopPicks(epsilon="1e-15", n_picks=1),
        lambda: TopPicks(epsilon=1, n_picks=10**15),
    ],
)
def test_noise_that_a_sampler_would_clip_is_refused(make):
    with pytest.raises(ValueError, match=r"of at most 2\*\*"):
        make()
