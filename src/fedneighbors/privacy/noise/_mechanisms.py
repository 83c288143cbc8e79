"""Mechanisms on integer vectors: discrete Laplace, discrete Gaussian, noisy top-k.

Each takes a vector together with its :class:`~fedneighbors.privacy.Sensitivity` (norms, privacy
unit, relation of neighboring tables), and states the cost of a release.

OpenDP draws noise that is too wide for a table, and selects cells for noisy top-k. It is called
with 64-bit integers, since its samplers clip noise at the limits of the type (32 bits for Python's
``int``), and clipped noise does not protect.
"""

import math
import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Integers
from fedneighbors.privacy._accounting import float_above, load_opendp
from fedneighbors.privacy._guarantees import ZCDP, Number, PureDP, Sensitivity, exact
from fedneighbors.privacy.noise._samplers import BitSource, GaussianLaw, LaplaceLaw, sample


def opendp_laplace(scale: Fraction, size: int) -> Integers:
    """Draw discrete Laplace noise with OpenDP, from its own entropy.

    Returns int64 of shape (size,).

    Parameters
    ----------
    scale : Fraction
        Rounded up to a float.
    size : int
        Number of values.
    """
    dp = load_opendp("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l1_distance(T="i64")
    return np.array(dp.m.make_laplace(*space, scale=float_above(scale))([0] * size), np.int64)


def opendp_gaussian(variance: Fraction, size: int) -> Integers:
    """Draw discrete Gaussian noise with OpenDP, from its own entropy.

    Returns int64 of shape (size,).

    Parameters
    ----------
    variance : Fraction
        Its square root is rounded up to a float.
    size : int
        Number of values.
    """
    dp = load_opendp("contrib")
    sigma = math.sqrt(variance)  # rounded to nearest, possibly downward
    while Fraction(sigma) ** 2 < variance:
        sigma = math.nextafter(sigma, math.inf)
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T=float)
    return np.array(dp.m.make_gaussian(*space, scale=sigma)([0] * size), np.int64)


def top_k_measurement(k: int, scale: Fraction) -> Any:
    """Return OpenDP's measurement of noisy top-k under pure differential privacy.

    One row may raise some scores and lower others, so that OpenDP's cheaper ``monotonic`` case does
    not apply.

    Parameters
    ----------
    k : int
        Number of selected cells.
    scale : Fraction
        Scale of the noise, rounded up to a float.
    """
    dp = load_opendp("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.linf_distance(T="i64")
    return dp.m.make_noisy_top_k(*space, dp.max_divergence(), k=k, scale=float_above(scale))


def opendp_top_k(values: Integers, k: int, scale: Fraction) -> Integers:
    """Select k cells of a vector with OpenDP.

    Returns int64 indices by descending noisy score.

    Parameters
    ----------
    values : int64 array of shape (n,)
        Scores.
    k : int
        Number of cells.
    scale : Fraction
        Scale of the noise.
    """
    return np.array(top_k_measurement(k, scale)(values.tolist()), np.int64)


MAX_TABLE_SCALE = 1 << 14
"""Maximum scale of Laplace noise from a table of thresholds; OpenDP draws wider noise.

The widest table has 44 thresholds per unit of scale, 2**-63 being exp(-43.7): 6 MB, and a few
seconds to compute.
"""

MAX_TABLE_VARIANCE = 1 << 32
"""Maximum variance of Gaussian noise from a table of thresholds; OpenDP draws wider noise.

The widest table (sigma 2**16) has 9 thresholds per unit of sigma, where the tail is 2**-63: 5 MB.
"""

MAX_SCALE = 1 << 40
"""Maximum scale or sigma.

OpenDP clips noise at 2**63, at least 2**23 scales away: its probability is below exp(-2**23).
"""

MAX_VALUE = 1 << 61
"""Maximum absolute value of a cell and of its noise; their sum is at most 2**62 and fits int64."""


def positive(value: Number, name: str) -> Fraction:
    """Return a number as a fraction above 0.

    Raises
    ------
    TypeError
        If it is not a number.
    ValueError
        If it is not finite or not above 0.
    """
    number = exact(value, name)
    if number <= 0:
        raise ValueError(f"expected {name} above 0, got {number}")
    return number


def integers(values: npt.ArrayLike, sensitivity: Sensitivity) -> Integers:
    """Return a vector as int64, checked together with its sensitivity.

    Raises
    ------
    TypeError
        If the values are not integers or the sensitivity is not a :class:`Sensitivity`.
    ValueError
        If a value is so large that noise could overflow it.
    """
    if not isinstance(sensitivity, Sensitivity):
        raise TypeError(
            f"expected the Sensitivity of the vector, got {sensitivity!r}; a release needs both"
        )
    array = np.asarray(values)
    if array.dtype.kind not in "iu":
        raise TypeError(
            f"expected an array of integers, got {array.dtype}; count before adding noise"
        )
    if array.size and (int(array.max()) > MAX_VALUE or int(array.min()) < -MAX_VALUE):
        raise ValueError(
            f"expected values between -{MAX_VALUE} and {MAX_VALUE}, got larger ones; "
            "noise could make them overflow"
        )
    return array.astype(np.int64)


def _check_width(width: Fraction, name: str, *, power: int = 1) -> None:
    if width > MAX_SCALE**power:
        raise ValueError(
            f"expected a {name} of at most 2**{40 * power}, got about "
            f"2**{int(width).bit_length()}; such noise hides everything: raise epsilon"
        )


def _check_no_bits(bits: BitSource, noise: str) -> None:
    if bits is not os.urandom:
        raise ValueError(f"{noise} is drawn by OpenDP, which does not accept bits; omit bits")


def _add(values: Integers, noise: Integers) -> Integers:
    """Add noise to checked values; raise if the sum could overflow.

    The widest Laplace noise of a cell exceeds 2**61, 2**21 scales, with probability exp(-2**21).
    """
    if noise.size and max(int(noise.max()), -int(noise.min())) > MAX_VALUE:
        raise ValueError("the noise is too wide for int64; request less noise")
    return values + noise.reshape(values.shape)


class _Additive(ABC):
    """A mechanism that adds independent noise to every cell."""

    @abstractmethod
    def noise(self, size: int, *, bits: BitSource = os.urandom) -> Integers:
        """Draw noise: int64 array of shape (size,)."""

    def release(
        self, values: npt.ArrayLike, sensitivity: Sensitivity, *, bits: BitSource = os.urandom
    ) -> Integers:
        """Return the values with independent noise on every cell.

        Parameters
        ----------
        values : integer array of any shape
            The vector.
        sensitivity : Sensitivity
            Sensitivity of that vector.
        bits : callable
            Source of random bytes.

        Returns
        -------
        int64 array of the same shape

        Raises
        ------
        TypeError
            If the values are not integers.
        ValueError
            If a value is beyond :data:`MAX_VALUE`.
        """
        vector = integers(values, sensitivity)
        return _add(vector, self.noise(vector.size, bits=bits))


@dataclass(frozen=True)
class DiscreteLaplace(_Additive):
    """Integer noise with P(k) proportional to exp(-abs(k) / scale) on every cell; pure privacy.

    Parameters
    ----------
    scale : Fraction
        ``l1 / epsilon`` for a given epsilon; any number above 0.

    Raises
    ------
    ValueError
        If the scale is not above 0, or above :data:`MAX_SCALE`.

    References
    ----------
    .. [1] Ghosh, Roughgarden and Sundararajan, "Universally utility-maximizing privacy
       mechanisms", STOC 2009.

    Examples
    --------
    >>> one_row = Sensitivity(unit="row", neighbors="add_remove", l1=3, l2_squared=3, linf=1)
    >>> DiscreteLaplace(scale=6).guarantee(one_row)
    PureDP(epsilon=Fraction(1, 2))
    """

    scale: Fraction

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", positive(self.scale, "scale"))
        _check_width(self.scale, "scale")

    def guarantee(self, sensitivity: Sensitivity) -> PureDP:
        """Return the cost of one release: epsilon = l1 / scale.

        The cost holds for the relation of neighboring tables of the sensitivity.

        Parameters
        ----------
        sensitivity : Sensitivity
            Sensitivity of the vector.
        """
        return PureDP(sensitivity.l1 / self.scale)

    def noise(self, size: int, *, bits: BitSource = os.urandom) -> Integers:
        """Draw noise: int64 array of shape (size,).

        Parameters
        ----------
        size : int
            Number of cells.
        bits : callable
            Source of random bytes.

        Raises
        ------
        ValueError
            If the scale is above :data:`MAX_TABLE_SCALE` and bits are given.
        """
        if self.scale > MAX_TABLE_SCALE:
            _check_no_bits(bits, f"noise of a scale above {MAX_TABLE_SCALE}")
            return opendp_laplace(self.scale, size)
        return sample(LaplaceLaw(self.scale), size, bits)


@dataclass(frozen=True)
class DiscreteGaussian(_Additive):
    """Integer noise with P(k) proportional to exp(-k**2 / (2 variance)) on every cell; zCDP.

    Parameters
    ----------
    variance : Fraction
        ``l2_squared / (2 rho)`` for a given rho; any number above 0. This is the square of sigma.

    Raises
    ------
    ValueError
        If the variance is not above 0, or above the square of :data:`MAX_SCALE`.

    References
    ----------
    .. [1] Canonne, Kamath and Steinke, "The discrete Gaussian for differential privacy",
       NeurIPS 2020, theorem 4.

    Examples
    --------
    >>> one_row = Sensitivity(unit="row", neighbors="add_remove", l1=3, l2_squared=3, linf=1)
    >>> DiscreteGaussian(variance=6).guarantee(one_row)
    ZCDP(rho=Fraction(1, 4))
    """

    variance: Fraction

    def __post_init__(self) -> None:
        object.__setattr__(self, "variance", positive(self.variance, "variance"))
        _check_width(self.variance, "variance", power=2)

    def guarantee(self, sensitivity: Sensitivity) -> ZCDP:
        """Return the cost of one release: rho = l2_squared / (2 variance).

        Parameters
        ----------
        sensitivity : Sensitivity
            Sensitivity of the vector.
        """
        return ZCDP(sensitivity.l2_squared / (2 * self.variance))

    def noise(self, size: int, *, bits: BitSource = os.urandom) -> Integers:
        """Draw noise: int64 array of shape (size,).

        Parameters
        ----------
        size : int
            Number of cells.
        bits : callable
            Source of random bytes.

        Raises
        ------
        ValueError
            If the variance is above :data:`MAX_TABLE_VARIANCE` and bits are given.
        """
        if self.variance > MAX_TABLE_VARIANCE:
            _check_no_bits(bits, f"noise of a variance above {MAX_TABLE_VARIANCE}")
            return opendp_gaussian(self.variance, size)
        return sample(GaussianLaw(self.variance), size, bits)


@dataclass(frozen=True)
class NoisyTopK:
    """Indices of k large cells, without their values; OpenDP's mechanism, entropy and proof.

    Parameters
    ----------
    k : int
        Number of cells.
    scale : Fraction
        Scale of the noise on the scores.

    Raises
    ------
    ValueError
        If k is below 1 or the scale not above 0.
    """

    k: int
    scale: Fraction

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"expected k of 1 or more, got {self.k}")
        object.__setattr__(self, "scale", positive(self.scale, "scale"))

    def guarantee(self, sensitivity: Sensitivity) -> PureDP:
        """Return OpenDP's cost of one release.

        It is valid if one row raises some scores and lowers others.

        Parameters
        ----------
        sensitivity : Sensitivity
            Sensitivity of the vector; only ``linf`` is used.

        Raises
        ------
        MissingExtraError
            If OpenDP is not installed.
        """
        return PureDP(Fraction(top_k_measurement(self.k, self.scale).map(sensitivity.linf)))

    def release(self, values: npt.ArrayLike, sensitivity: Sensitivity) -> Integers:
        """Select k different indices of the flattened vector.

        Returns int64 of shape (k,).

        Parameters
        ----------
        values : integer array of any shape
            The vector.
        sensitivity : Sensitivity
            Sensitivity of that vector.

        Raises
        ------
        TypeError
            If the values are not integers.
        ValueError
            If there are fewer than k cells.
        MissingExtraError
            If OpenDP is not installed.
        """
        vector = integers(values, sensitivity).ravel()
        if vector.size < self.k:
            raise ValueError(f"expected {self.k} cells or more, got {vector.size}; lower k")
        return opendp_top_k(vector, self.k, self.scale)
