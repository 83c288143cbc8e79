"""Calibration of noise to a budget: full noise of one party, or noise shares of several.

Rows of different parties are disjoint, so the releases of all parties together cost as much as
those of one party (parallel composition).
"""

import math
import os
from collections.abc import Callable
from fractions import Fraction

from fedneighbors._typing import Integers
from fedneighbors.errors import PrivacyError
from fedneighbors.privacy._accounting import largest_zcdp
from fedneighbors.privacy._guarantees import ZCDP, ApproxDP, Guarantee, PureDP, Sensitivity, exact
from fedneighbors.privacy._policy import Privacy
from fedneighbors.privacy.noise._distributed import GaussianShares, LaplaceShares
from fedneighbors.privacy.noise._mechanisms import DiscreteGaussian, DiscreteLaplace
from fedneighbors.privacy.noise._samplers import BitSource

Mechanism = DiscreteLaplace | DiscreteGaussian
Shares = LaplaceShares | GaussianShares

# Variances are rounded up to a multiple of it, which keeps the sampler's table small.
_STEP = Fraction(1, 1 << 10)
_MAX_INCREASES = 64  # by a factor of 9/8 each, together by less than 1,900
_MIN_SHARE_VARIANCE = Fraction(1, 4)  # below it the bound on a sum does not hold


def budget_fraction(privacy: Privacy, fraction: Fraction) -> PureDP | ZCDP:
    """Return a fraction of one training's budget.

    Fractions that add up to 1 compose to the whole budget.

    Parameters
    ----------
    privacy : Privacy
        Settings; a budget with delta is spent as zCDP, after conversion.
    fraction : Fraction
        In [0, 1].
    """
    if isinstance(privacy.total, ApproxDP):
        return ZCDP(fraction * largest_zcdp(privacy.total.epsilon, privacy.total.delta))
    return PureDP(fraction * exact(privacy.epsilon, "epsilon"))


def mechanism(allowed: PureDP | ZCDP, sensitivity: Sensitivity) -> Mechanism:
    """Return the noise of one party's release within part of the budget."""
    if isinstance(allowed, PureDP):
        return DiscreteLaplace(sensitivity.l1 / allowed.epsilon)
    return DiscreteGaussian(_round_up(sensitivity.l2_squared / (2 * allowed.rho)))


def shares(
    allowed: PureDP | ZCDP, sensitivity: Sensitivity, *, n_shares: int, n_cells: int
) -> Shares:
    """Return the noise of each party in a masked sum.

    Sums with at least ``n_shares`` honest shares cost at most ``allowed``. If Gaussian shares were
    so small that their sum differs too much from Gaussian noise, their variance is increased.

    Raises
    ------
    PrivacyError
        If no variance in range keeps the cost within ``allowed``.
    """
    if isinstance(allowed, PureDP):
        return LaplaceShares(sensitivity.l1 / allowed.epsilon, n_shares)
    lowest = n_shares * _MIN_SHARE_VARIANCE
    variance = max(lowest, _round_up(sensitivity.l2_squared / (2 * allowed.rho)))
    for _ in range(_MAX_INCREASES):
        noise = GaussianShares(variance, n_shares)
        if noise.guarantee(sensitivity, n_cells).rho <= allowed.rho:
            return noise
        variance = _round_up(variance * Fraction(9, 8))
    raise PrivacyError(
        f"no variance of {n_shares} noise shares keeps the sum within the budget; sum over fewer "
        "parties"
    )


def _round_up(number: Fraction) -> Fraction:
    return math.ceil(number / _STEP) * _STEP


def variance(noise: Mechanism | Shares, *, n_summed: int = 1) -> float:
    """Return the noise variance of each cell of a sum.

    Parameters
    ----------
    noise : mechanism or shares
        Noise added by each party.
    n_summed : int
        Parties in the sum.
    """
    if isinstance(noise, DiscreteGaussian):
        return float(noise.variance) * n_summed
    if isinstance(noise, GaussianShares):
        return float(noise.share_variance) * n_summed
    n_parts = 1 if isinstance(noise, DiscreteLaplace) else noise.n_shares  # per full noise
    decay = math.exp(-1 / noise.scale)
    return 2 * decay / (1 - decay) ** 2 * n_summed / n_parts


def guaranteed_shares(*, n_asked: int, threshold: int, colluders: int) -> int:
    """Return the number of noise shares guaranteed to be in a sum.

    Shares known to colluders are not counted.

    Parameters
    ----------
    n_asked, threshold : int
        Number of parties with which the masked sum is opened, and minimum number that must answer
        until it is unmasked.
    colluders : int
        Number of parties that may collude with the coordinator.

    Raises
    ------
    PrivacyError
        If the colluders could remove the masks of one party, whose share alone does not protect it.
        Otherwise an honest share remains, for ``threshold`` is at most ``n_asked``.
    """
    if 2 * threshold <= n_asked + colluders:
        raise PrivacyError(
            f"masks with a threshold of {threshold} of {n_asked} parties do not protect against "
            f"colluders={colluders} and the coordinator; raise the threshold or lower colluders"
        )
    return threshold - colluders


def calibrate_noise(
    allowed: PureDP | ZCDP,
    sensitivity: Sensitivity,
    *,
    n_shares: int | None,
    n_cells: int,
    bits: BitSource = os.urandom,
) -> tuple[Guarantee, Callable[[Integers], Integers]]:
    """Return the cost of the noise, and the function that adds it.

    Parameters
    ----------
    allowed : PureDP or ZCDP
        Part of the budget.
    sensitivity : Sensitivity
        Sensitivity of the vector, or of the sum that includes it.
    n_shares : int or None
        Minimum number of honest noise shares in the masked sum; None adds full noise to the vector.
    n_cells : int
        Length of the vector.
    bits : callable
        Source of random bytes.
    """
    if n_shares is None:
        full = mechanism(allowed, sensitivity)
        cost = full.guarantee(sensitivity)
        return cost, lambda values: full.release(values, sensitivity, bits=bits)
    share = shares(allowed, sensitivity, n_shares=n_shares, n_cells=n_cells)
    if isinstance(share, LaplaceShares):
        cost = share.guarantee(sensitivity)
    else:
        cost = share.guarantee(sensitivity, n_cells)
    return cost, lambda values: values + share.share(n_cells, bits=bits)
