"""Noise shares of a masked sum: each party adds a part of the noise.

A sum with fewer than ``n_shares`` honest shares has no guarantee: set ``n_shares`` to the number of
parties minus those that may drop out *and* those that may collude.
"""

import math
import os
from dataclasses import dataclass
from fractions import Fraction

from fedneighbors._typing import Integers
from fedneighbors.privacy._guarantees import ZCDP, PureDP, Sensitivity
from fedneighbors.privacy.noise._mechanisms import MAX_TABLE_SCALE, MAX_TABLE_VARIANCE, positive
from fedneighbors.privacy.noise._samplers import (
    BitSource,
    GaussianLaw,
    NegativeBinomialLaw,
    exp_minus,
    sample,
)

_TWO_PI_SQUARED = Fraction(197392, 10000)
"""Lower bound of 2 pi**2 = 19.73920880..., so that derived bounds are rounded upward."""

_PRECISION = 256  # bits of the bound on a sum of shares: 2**-256 is far below any useful cost


@dataclass(frozen=True)
class LaplaceShares:
    """Polya shares: ``n_shares`` of them sum to exactly discrete Laplace noise.

    One share is the difference of two negative binomial variables of shape 1 / n_shares. More than
    ``n_shares`` honest shares are Laplace noise plus other noise independent of the data, so the
    guarantee holds.

    Parameters
    ----------
    scale : Fraction
        Scale of the sum, above 0 and at most :data:`~._mechanisms.MAX_TABLE_SCALE`.
    n_shares : int
        Minimum number of honest shares in the sum.

    Raises
    ------
    ValueError
        If the scale is out of range or there are no shares.

    References
    ----------
    .. [1] Goryczka and Xiong, "A comprehensive comparison of multiparty secure additions with
       differential privacy", IEEE TDSC 14(5), 2017.
    """

    scale: Fraction
    n_shares: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", positive(self.scale, "scale"))
        _check_n_shares(self.n_shares)
        if self.scale > MAX_TABLE_SCALE:  # OpenDP has no sampler of Polya shares
            raise ValueError(
                f"expected a scale of at most {MAX_TABLE_SCALE}, got {self.scale}; "
                "such noise hides all counts: release less or allow a larger epsilon"
            )

    def guarantee(self, sensitivity: Sensitivity) -> PureDP:
        """Return the cost of the sum: l1 / scale.

        The sum must contain at least ``n_shares`` honest shares.

        Parameters
        ----------
        sensitivity : Sensitivity
            Sensitivity of the summed vector.
        """
        return PureDP(sensitivity.l1 / self.scale)

    def share(self, size: int, *, bits: BitSource = os.urandom) -> Integers:
        """Draw the share of one party: int64 array of shape (size,).

        Parameters
        ----------
        size : int
            Number of cells.
        bits : callable
            Source of random bytes.
        """
        law = NegativeBinomialLaw(self.scale, self.n_shares)
        return sample(law, size, bits) - sample(law, size, bits)


@dataclass(frozen=True)
class GaussianShares:
    """Discrete Gaussian shares of variance ``variance / n_shares`` each.

    Their sum is not exactly discrete Gaussian; :func:`sum_excess` bounds the difference, which the
    guarantee includes.

    Parameters
    ----------
    variance : Fraction
        Variance of the sum; each share needs 1/4 or more for the bound to hold.
    n_shares : int
        Minimum number of honest shares in the sum.

    Raises
    ------
    ValueError
        If the variance of a share is out of range or there are no shares.

    References
    ----------
    .. [1] Kairouz, Liu and Steinke, "The distributed discrete Gaussian mechanism for federated
       learning with secure aggregation", ICML 2021, theorem 1 and proposition 14.
    """

    variance: Fraction
    n_shares: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "variance", positive(self.variance, "variance"))
        _check_n_shares(self.n_shares)
        # below 1/4 the bound of sum_excess does not hold
        if not Fraction(1, 4) <= self.share_variance <= MAX_TABLE_VARIANCE:
            raise ValueError(
                f"expected a variance per share between 1/4 and {MAX_TABLE_VARIANCE}, "
                f"got {self.share_variance}; change the variance or the number of shares"
            )

    @property
    def share_variance(self) -> Fraction:
        """Return the variance of one share."""
        return self.variance / self.n_shares

    def guarantee(self, sensitivity: Sensitivity, n_cells: int) -> ZCDP:
        """Return the cost of the sum with at least ``n_shares`` honest shares.

        With tau from :func:`sum_excess`, l1 and l2 in units of the standard deviation of the sum,
        proposition 14 bounds the Renyi divergence of order alpha by ``alpha l2**2 / 2 + tau d`` and
        by ``alpha (l2**2 + 2 l1 tau + tau**2 d) / 2``; as alpha > 1, the smaller of
        ``l2**2 / 2 + tau d`` and ``(l2**2 + 2 l1 tau + tau**2 d) / 2`` is a rho. Rounded upward.

        Parameters
        ----------
        sensitivity : Sensitivity
            Sensitivity of the summed vector.
        n_cells : int
            Length of that vector (d).
        """
        if self.n_shares == 1:  # exactly discrete Gaussian
            return ZCDP(sensitivity.l2_squared / (2 * self.variance))
        tau = sum_excess(self.share_variance, self.n_shares)
        l2_squared = sensitivity.l2_squared / self.variance
        l1 = _root_above(sensitivity.l1**2 / self.variance)
        by_cells = l2_squared / 2 + tau * n_cells
        by_norms = (l2_squared + 2 * l1 * tau + tau**2 * n_cells) / 2
        return ZCDP(min(by_cells, by_norms))

    def share(self, size: int, *, bits: BitSource = os.urandom) -> Integers:
        """Draw the share of one party: int64 array of shape (size,).

        Parameters
        ----------
        size : int
            Number of cells.
        bits : callable
            Source of random bytes.
        """
        return sample(GaussianLaw(self.share_variance), size, bits)


def sum_excess(share_variance: Fraction, n_shares: int) -> Fraction:
    """Bound the log-probability error of a sum of discrete Gaussians.

    The reference is the discrete Gaussian of the summed variance.

    This is tau of [1]_: ``10 * sum over k from 1 to n - 1 of exp(-2 pi**2 v k / (k + 1))``, rounded
    upward to a multiple of 2**-256.

    Parameters
    ----------
    share_variance : Fraction
        Variance of one share (v), 1/4 or more.
    n_shares : int
        Number of summed shares (n).

    References
    ----------
    .. [1] Kairouz, Liu and Steinke, ICML 2021, theorem 1.
    """
    rate = _TWO_PI_SQUARED * share_variance
    terms = [exp_minus(rate * Fraction(k, k + 1), _PRECISION).high for k in range(1, n_shares)]
    return Fraction(10 * sum(terms), 1 << _PRECISION)


def _root_above(x: Fraction) -> Fraction:
    """Return the square root of x, rounded up by at most 2**-128."""
    # the square root of x * 2**256 is that of x in units of 2**-128
    return Fraction(math.isqrt((x.numerator << 256) // x.denominator) + 1, 1 << 128)


def _check_n_shares(n_shares: int) -> None:
    if n_shares < 1:
        raise ValueError(f"expected n_shares of 1 or more, got {n_shares}")
