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
from fedneighbors.privacy.noise._mechanisms import (
    MAX_TABLE_SCALE,
    MAX_TABLE_VARIANCE,
    DiscreteGaussian,
    DiscreteLaplace,
)
from fedneighbors.privacy.noise._samplers import BitSource

Mechanism = DiscreteLaplace | DiscreteGaussian
Shares = LaplaceShares | GaussianShares

# Variances are rounded up to a multiple of 1/1024, so that variances and costs are short fractions.
# The rounding adds less than 1/1024 to a variance, negligible for noise of useful width.
_STEP = Fraction(1, 1 << 10)
# Each step raises the variance by 1/8, the standard deviation by 6 %. The excess of a sum of shares
# falls exponentially with their variance, so that a few steps suffice; 64 steps are a factor of
# almost 1,900.
_MAX_INCREASES = 64
_LEVELS = tuple(1 << bits for bits in range(10, 3, -1))  # steps per unit, the finest first
_MIN_SHARE_VARIANCE = Fraction(1, 4)  # the bound on a sum of shares needs at least this


def budget_fraction(privacy: Privacy, fraction: Fraction) -> PureDP | ZCDP:
    """Return a fraction of one training's budget.

    Releases that cost fractions with the sum 1 cost the whole budget together.

    Parameters
    ----------
    privacy : Privacy
        Settings; a budget with delta is converted to zCDP.
    fraction : Fraction
        In [0, 1].
    """
    if isinstance(privacy.total, ApproxDP):
        return ZCDP(fraction * largest_zcdp(privacy.total.epsilon, privacy.total.delta))
    return PureDP(fraction * exact(privacy.epsilon, "epsilon"))


def choose_levels(
    budget: PureDP | ZCDP, sensitivity: Callable[[int], Sensitivity], *, error_end: str
) -> int:
    """Return the number of integer steps per unit of a sum.

    The result depends on the agreed terms only. The number of steps does not change the noise in
    units of the table, so that the largest number that the noise samplers support is used.

    Parameters
    ----------
    budget : PureDP or ZCDP
        Part of the budget.
    sensitivity : callable
        Function from the number of steps to the sensitivity.
    error_end : str
        End of the error message: the columns, and advice.

    Raises
    ------
    PrivacyError
        If the noise is too large for the samplers even with the fewest steps; the sums would then
        be useless anyway.
    """
    for levels in _LEVELS:
        scaled = sensitivity(levels)
        if isinstance(budget, PureDP):
            fits = scaled.l1 / budget.epsilon <= MAX_TABLE_SCALE
        else:
            fits = scaled.l2_squared / (2 * budget.rho) <= MAX_TABLE_VARIANCE
        if fits:
            return levels
    raise PrivacyError(f"the noise that {budget} requires is too large for sums over {error_end}")


def mechanism(allowed: PureDP | ZCDP, sensitivity: Sensitivity) -> Mechanism:
    """Return the mechanism whose release costs at most ``allowed``."""
    if isinstance(allowed, PureDP):
        return DiscreteLaplace(sensitivity.l1 / allowed.epsilon)
    return DiscreteGaussian(_round_up(sensitivity.l2_squared / (2 * allowed.rho)))


def shares(
    allowed: PureDP | ZCDP, sensitivity: Sensitivity, *, n_shares: int, n_cells: int
) -> Shares:
    """Return noise shares whose masked sum costs at most ``allowed``.

    The sum must contain at least ``n_shares`` honest shares. The variance of Gaussian shares is
    increased until the cost includes the error of their sum, which is not exactly Gaussian.

    Raises
    ------
    ValueError
        If the noise is wider than noise shares can be, see :class:`LaplaceShares` and
        :class:`GaussianShares`.
    PrivacyError
        If the variance was increased by the largest factor and the cost still exceeds ``allowed``.
    """
    if isinstance(allowed, PureDP):
        return LaplaceShares(sensitivity.l1 / allowed.epsilon, n_shares)
    min_variance = n_shares * _MIN_SHARE_VARIANCE
    variance = max(min_variance, _round_up(sensitivity.l2_squared / (2 * allowed.rho)))
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
    # 2 a / (1 - a)**2 is the variance of P(k) proportional to a**abs(k)
    decay = math.exp(-1 / noise.scale)
    return 2 * decay / (1 - decay) ** 2 * n_summed / n_parts


def guaranteed_shares(*, n_invited: int, threshold: int, colluders: int) -> int:
    """Count the honest noise shares that a masked sum contains at least.

    Shares known to colluders are not counted.

    Parameters
    ----------
    n_invited, threshold : int
        Number of parties asked for the masked sum, and minimum number that must answer before it
        is unmasked.
    colluders : int
        Number of parties that may collude with the coordinator.

    Raises
    ------
    PrivacyError
        If the colluders could remove the masks of one party, whose share alone does not protect it.
    """
    # To remove all masks of one party, its two secrets must be reconstructed: each takes the
    # answers of threshold - colluders honest parties, and an honest party answers for one of them
    # only. There are n_invited - colluders honest parties. As threshold <= n_invited, this check
    # also implies threshold > colluders.
    if 2 * threshold <= n_invited + colluders:
        raise PrivacyError(
            f"masks with a threshold of {threshold} of {n_invited} parties do not protect against "
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
