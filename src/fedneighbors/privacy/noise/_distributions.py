"""The laws of the noise: weights of 0, 1, 2, ... enclosed by integers to any precision.

A symmetric law is one of magnitudes: value k > 0 stands for +k and -k, each with the weight of k.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from typing import ClassVar, NamedTuple, Protocol


class Enclosure(NamedTuple):
    """A number that lies in [low, high], both in units of 2**-precision."""

    low: int
    high: int


def times(a: Enclosure, b: Enclosure, precision: int) -> Enclosure:
    """Enclose the product of two numbers that are not negative."""
    return Enclosure(a.low * b.low >> precision, -(-a.high * b.high >> precision))


def exp_minus(x: Fraction, precision: int) -> Enclosure:
    """Enclose exp(-x) for x of 0 or more.

    The argument is halved until it is at most 1/2, where the alternating series has falling terms:
    what is left out is at most the first term left out. Squaring undoes the halving; it can double
    a relative error, so each halving takes two more bits.

    Parameters
    ----------
    x : Fraction
        0 or more.
    precision : int
        Bits after the point.
    """
    halvings = (x.numerator // x.denominator).bit_length() + 1
    work = precision + 2 * halvings + 16
    p, q = x.numerator, x.denominator << halvings
    low = high = least = most = 1 << work
    order = 0
    while most > 1:
        order += 1
        least, most = least * p // (q * order), -(-most * p // (q * order))
        if order % 2:
            low, high = low - most, high - least
        else:
            low, high = low + least, high + most
    value = Enclosure(low - most, high + most)
    for _ in range(halvings):
        value = times(value, value, work)
    extra = work - precision
    return Enclosure(value.low >> extra, -(-value.high >> extra))


def powers_of_exp(x: Fraction, n_powers: int, precision: int) -> list[Enclosure]:
    """Enclose exp(-x), exp(-2 x), exp(-4 x), ..., ``n_powers`` of them."""
    powers = [exp_minus(x, precision)]
    while len(powers) < n_powers:
        powers.append(times(powers[-1], powers[-1], precision))
    return powers


class Weight(NamedTuple):
    """The weight of k, between two integers, with a bound on all later ratios w[j + 1] / w[j]."""

    low: int
    high: int
    ratio: int


class Law(Protocol):
    """A law over the integers, up to the factor that makes its weights sum to 1."""

    def __hash__(self) -> int:
        """Laws are values: equal parameters, equal hash."""

    @property
    def symmetric(self) -> bool:
        """Whether -k is as likely as k."""

    def weights(self, precision: int) -> Iterator[Weight]:
        """Yield the weights of 0, 1, 2, ... without end, in units of 2**-precision."""


@dataclass(frozen=True)
class LaplaceLaw:
    """Discrete Laplace: P(k) proportional to exp(-|k| / scale).

    Parameters
    ----------
    scale : Fraction
        Positive.
    """

    scale: Fraction
    symmetric: ClassVar[bool] = True

    def weights(self, precision: int) -> Iterator[Weight]:
        """Yield a**k, with a = exp(-1 / scale)."""
        a = exp_minus(1 / self.scale, precision)
        weight = Enclosure(1 << precision, 1 << precision)
        while True:
            yield Weight(*weight, a.high)
            weight = times(weight, a, precision)


@dataclass(frozen=True)
class GaussianLaw:
    """Discrete Gaussian: P(k) proportional to exp(-k**2 / (2 variance)).

    Parameters
    ----------
    variance : Fraction
        Positive; the parameter, of which the variance itself falls short by a hair.
    """

    variance: Fraction
    symmetric: ClassVar[bool] = True

    def weights(self, precision: int) -> Iterator[Weight]:
        """Yield exp(-k**2 / (2 v)): the ratio of neighbours starts at exp(-1 / (2 v)) and falls."""
        fall = exp_minus(1 / self.variance, precision)
        ratio = exp_minus(1 / (2 * self.variance), precision)
        weight = Enclosure(1 << precision, 1 << precision)
        while True:
            yield Weight(*weight, ratio.high)
            weight = times(weight, ratio, precision)
            ratio = times(ratio, fall, precision)


@dataclass(frozen=True)
class NegativeBinomialLaw:
    """Negative binomial over 0, 1, ...: n_shares independent ones sum to a geometric variable.

    The geometric variable has P(k) proportional to a**k, with a = exp(-1 / scale). The difference
    of two of them is discrete Laplace of that scale; the difference of two shares is a Polya share.

    Parameters
    ----------
    scale : Fraction
        Positive.
    n_shares : int
        How many sum to a geometric variable, 1 or more.
    """

    scale: Fraction
    n_shares: int
    symmetric: ClassVar[bool] = False

    def weights(self, precision: int) -> Iterator[Weight]:
        """Yield C(k + r - 1, k) a**k with r = 1 / n: w[k + 1] / w[k] = a (k + r) / (k + 1) <= a."""
        a = exp_minus(1 / self.scale, precision)
        low = high = 1 << precision
        k = 0
        while True:
            yield Weight(low, high, a.high)
            top, bottom = self.n_shares * k + 1, self.n_shares * (k + 1)
            low = low * a.low * top // (bottom << precision)
            high = -(-high * a.high * top // (bottom << precision))
            k += 1


class Cumulative(NamedTuple):
    """Sums of the weights up to k, and over all k, in units of 2**-precision.

    ``lows[k] <= sum <= highs[k]`` and ``total.low <= sum over all <= total.high``.
    """

    lows: list[int]
    highs: list[int]
    total: Enclosure


def cumulative(law: Law, n_bits: int, guard: int = 64) -> Cumulative:
    """Sum the weights of a law until what is left is below 2**-(n_bits + 8).

    The weights after w[k] fall at least as fast as powers of ``ratio``, so that they sum to
    w[k] * ratio / (1 - ratio) at most.

    Parameters
    ----------
    law : Law
        Whose weights.
    n_bits : int
        How fine the thresholds are to be.
    guard : int
        Bits of precision beyond ``n_bits``, for the rounding of each step.
    """
    precision = n_bits + guard
    one, rest = 1 << precision, 1 << (guard - 8)
    factor = 2 if law.symmetric else 1
    low = high = 0
    lows: list[int] = []
    highs: list[int] = []
    for k, weight in enumerate(law.weights(precision)):
        times_counted = factor if k else 1
        low += times_counted * weight.low
        high += times_counted * weight.high
        lows.append(low)
        highs.append(high)
        if factor * weight.high * weight.ratio < rest * (one - weight.ratio):
            return Cumulative(lows, highs, Enclosure(low, high + rest))
    raise AssertionError("weights never end")  # pragma: no cover


def probability(law: Law, value: int, *, n_bits: int = 128) -> tuple[Fraction, Fraction]:
    """Enclose the probability of one value between two fractions.

    Parameters
    ----------
    law : Law
        Whose probability.
    value : int
        Any integer.
    n_bits : int
        The fractions differ by about 2**-n_bits.
    """
    sums = cumulative(law, n_bits)
    k = abs(value) if law.symmetric else value
    if k < 0:
        return Fraction(0), Fraction(0)
    if k >= len(sums.lows):
        return Fraction(0), Fraction(1, 1 << n_bits)
    weight = next(islice(law.weights(n_bits + 64), k, None))
    return Fraction(weight.low, sums.total.high), Fraction(weight.high, sums.total.low)
