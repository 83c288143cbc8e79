"""Calibration of noise to a fraction of the budget, central or distributed.

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
_INFLATIONS = 64  # steps of 9/8: the variance grows at most 1,900 times
_MIN_SHARE = Fraction(1, 4)  # minimum variance: below it the bound on a sum does not hold


def portion(privacy: Privacy, share: Fraction) -> PureDP | ZCDP:
    """Return a share of one training's budget.

    Shares that add up to 1 compose to the whole budget.

    Parameters
    ----------
    privacy : Privacy
        Settings; a budget with delta is spent as zCDP, after conversion.
    share : Fraction
        Fraction of the budget, in [0, 1].
    """
    if isinstance(privacy.total, ApproxDP):
        return ZCDP(share * largest_zcdp(privacy.total.epsilon, privacy.total.delta))
    return PureDP(share * exact(privacy.epsilon, "epsilon"))


def mechanism(allowed: PureDP | ZCDP, sensitivity: Sensitivity) -> Mechanism:
    """Return the noise of one party's release within part of the budget."""
    if isinstance(allowed, PureDP):
        return DiscreteLaplace(sensitivity.l1 / allowed.epsilon)
    return DiscreteGaussian(_rounded_up(sensitivity.l2_squared / (2 * allowed.rho)))


def shares(
    allowed: PureDP | ZCDP, sensitivity: Sensitivity, *, n_shares: int, n_cells: int
) -> Shares:
    """Return noise shares that keep a sum within part of the budget.

    ``n_shares`` of them suffice.

    If the budget is so large that the shares would be too small to add up to Gaussian noise, larger
    shares are used.

    Raises
    ------
    PrivacyError
        If no share size adds up to Gaussian noise.
    """
    if isinstance(allowed, PureDP):
        return LaplaceShares(sensitivity.l1 / allowed.epsilon, n_shares)
    least = n_shares * _MIN_SHARE
    wanted = max(least, _rounded_up(sensitivity.l2_squared / (2 * allowed.rho)))
    for _ in range(_INFLATIONS):
        made = GaussianShares(wanted, n_shares)
        if made.guarantee(sensitivity, n_cells).rho <= allowed.rho:
            return made
        wanted = _rounded_up(wanted * Fraction(9, 8))
    raise PrivacyError(
        f"{n_shares} noise shares do not add up to Gaussian noise; sum over fewer parties"
    )


def _rounded_up(number: Fraction) -> Fraction:
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
    each = 1 if isinstance(noise, DiscreteLaplace) else noise.n_shares
    decay = math.exp(-1 / noise.scale)
    return 2 * decay / (1 - decay) ** 2 * n_summed / each


def guaranteed_shares(*, n_asked: int, threshold: int, colluders: int) -> int:
    """Return the number of noise shares guaranteed to be in a sum.

    Shares known to colluders are not counted.

    Parameters
    ----------
    n_asked, threshold : int
        Number of invited parties, and minimum number that must stay to the end.
    colluders : int
        Number of parties that may collude with the coordinator.

    Raises
    ------
    PrivacyError
        If the colluders could remove the masks of one party, whose share alone does not protect it,
        or if no other share remains.
    """
    if 2 * threshold <= n_asked + colluders:
        raise PrivacyError(
            f"masks with a threshold of {threshold} of {n_asked} parties do not protect against "
            f"colluders={colluders} and the coordinator; raise the threshold or lower colluders"
        )
    if threshold - colluders < 1:
        raise PrivacyError(
            f"only {threshold} of {n_asked} parties are guaranteed to stay, and "
            f"colluders={colluders} leaves none to add noise; lower colluders"
        )
    return threshold - colluders


def noise_function(
    allowed: PureDP | ZCDP,
    moved: Sensitivity,
    *,
    n_shares: int | None,
    n_cells: int,
    bits: BitSource = os.urandom,
) -> tuple[Guarantee, Callable[[Integers], Integers]]:
    """Return the cost of noise within part of the budget.

    Also return the function that adds the noise.

    Parameters
    ----------
    allowed : PureDP or ZCDP
        Part of the budget.
    moved : Sensitivity
        Sensitivity of the vector, or of the sum that includes it.
    n_shares : int or None
        Minimum number of noise shares in the masked sum; None adds full noise to the vector.
    n_cells : int
        Length of the vector.
    bits : callable
        Source of random bytes.
    """
    if n_shares is None:
        whole = mechanism(allowed, moved)
        return whole.guarantee(moved), lambda values: whole.release(values, moved, bits=bits)
    some = shares(allowed, moved, n_shares=n_shares, n_cells=n_cells)
    cost = (
        some.guarantee(moved) if isinstance(some, LaplaceShares) else some.guarantee(moved, n_cells)
    )
    return cost, lambda values: values + some.share(n_cells, bits=bits)
