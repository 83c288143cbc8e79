"""Exact integer noise by lazy inversion of uniform random bits.

Let U be uniform on [0, 1), an endless string of random bits, and k(U) the smallest k with U < F(k),
where F is the cumulative distribution function. Then k(U) has exactly the distribution F. The first
n bits of U, read as an integer ``prefix``, place U in [prefix, prefix + 1) * 2**-n. If the whole
interval lies between two neighboring thresholds, k(U) is the same for every continuation and is
returned. Otherwise more bits are drawn *after the same prefix*, and the thresholds are computed
with higher precision; a threshold is one point, so this ends with probability 1. The result is
therefore always k(U): thresholds are only compared through integers known to enclose them, and the
precision of the enclosure affects the number of drawn bits, never the result.

A cell takes one word of 64 bits: a sign bit and 63 bits of U. Of the 2**63 prefixes, two per
threshold do not decide the value: about one in 2**51 at scale 32, one in 2**42 at the widest.

A distribution is given by the weights of 0, 1, 2, ..., enclosed by integers to any precision. A
symmetric distribution is given by its magnitudes: k > 0 represents +k and -k, each with the weight
of k.
"""

import os
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from fedneighbors._lazy import compute_once
from fedneighbors._typing import Integers
from fedneighbors.kernels._inversion import UNDECIDED, invert_words


class Enclosure(NamedTuple):
    """A number in [low, high], in units of 2**-precision."""

    low: int
    high: int


def times(a: Enclosure, b: Enclosure, precision: int) -> Enclosure:
    """Enclose the product of two numbers that are not negative."""
    return Enclosure(a.low * b.low >> precision, -(-a.high * b.high >> precision))


def exp_minus(x: Fraction, precision: int) -> Enclosure:
    """Enclose exp(-x) for x of 0 or more.

    The argument is halved until it is at most 1/2, where the terms of the alternating series
    decrease: the truncation error is at most the first omitted term. The value is then squared as
    often. A squaring can double the error, so each halving takes two more bits; 16 more bits cover
    the rounding of the terms.

    Parameters
    ----------
    x : Fraction
        Exponent, 0 or more.
    precision : int
        Bits after the point.
    """
    halvings = (x.numerator // x.denominator).bit_length() + 1  # x < 2**(halvings - 1)
    work = precision + 2 * halvings + 16
    p, q = x.numerator, x.denominator << halvings
    low = high = least = most = 1 << work
    order = 0
    while most > 1:  # the later terms are below one unit
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
    """Enclosed weight of k, with a bound on all later ratios w[j + 1] / w[j]."""

    low: int
    high: int
    ratio: int


class Law(Protocol):
    """A distribution over the integers, up to normalization.

    Distributions with equal parameters are equal and have the same hash.
    """

    def __hash__(self) -> int:
        """Return a hash of the parameters."""

    @property
    def symmetric(self) -> bool:
        """Return whether -k is as likely as k."""

    def weights(self, precision: int) -> Iterator[Weight]:
        """Yield the weights of 0, 1, 2, ... in units of 2**-precision."""


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
        Positive parameter; the true variance is slightly smaller.
    """

    variance: Fraction
    symmetric: ClassVar[bool] = True

    def weights(self, precision: int) -> Iterator[Weight]:
        """Yield exp(-k**2 / (2 v)) for k = 0, 1, 2, ...

        The ratio of successive weights starts at exp(-1 / (2 v)) and decreases.
        """
        decrease = exp_minus(1 / self.variance, precision)  # factor of the ratio per step
        ratio = exp_minus(1 / (2 * self.variance), precision)
        weight = Enclosure(1 << precision, 1 << precision)
        while True:
            yield Weight(*weight, ratio.high)
            weight = times(weight, ratio, precision)
            ratio = times(ratio, decrease, precision)


@dataclass(frozen=True)
class NegativeBinomialLaw:
    """Negative binomial over 0, 1, ...: n_shares independent variables sum to a geometric one.

    The geometric variable has P(k) proportional to a**k, with a = exp(-1 / scale). The difference
    of two of them is discrete Laplace of that scale; the difference of two shares is a Polya share.

    Parameters
    ----------
    scale : Fraction
        Positive.
    n_shares : int
        Number of variables that sum to a geometric one, 1 or more.
    """

    scale: Fraction
    n_shares: int
    symmetric: ClassVar[bool] = False

    def weights(self, precision: int) -> Iterator[Weight]:
        """Yield the weights C(k + r - 1, k) a**k.

        Here r = 1 / n_shares, and w[k + 1] / w[k] = a (k + r) / (k + 1) <= a.
        """
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
    """Sums of the weights up to k and over all k, in units of 2**-precision.

    ``lows[k] <= sum <= highs[k]`` and ``total.low <= sum over all <= total.high``.
    """

    lows: list[int]
    highs: list[int]
    total: Enclosure


def cumulative(law: Law, n_bits: int, guard: int = 64) -> Cumulative:
    """Sum a distribution's weights until the tail is below 2**-(n_bits + 8).

    The weights after w[k] decrease at least as fast as powers of ``ratio``, so their sum is at most
    w[k] * ratio / (1 - ratio). As w[0] = 1, the tail is below 1/256 of the last bit of a threshold.

    Parameters
    ----------
    law : Law
        Distribution with these weights.
    n_bits : int
        Bits of the thresholds.
    guard : int
        Bits of precision beyond ``n_bits``. In the widest table the rounding of all weights adds up
        to less than 2**50 units: with 64 bits, below 2**-14 of the last bit of a threshold.
    """
    precision = n_bits + guard
    one, tail = 1 << precision, 1 << (guard - 8)
    factor = 2 if law.symmetric else 1  # a weight counts for k and for -k
    low = high = 0
    lows: list[int] = []
    highs: list[int] = []
    for k, weight in enumerate(law.weights(precision)):
        multiplicity = factor if k else 1
        low += multiplicity * weight.low
        high += multiplicity * weight.high
        lows.append(low)
        highs.append(high)
        if factor * weight.high * weight.ratio < tail * (one - weight.ratio):
            return Cumulative(lows, highs, Enclosure(low, high + tail))
    raise AssertionError("weights do not decrease")  # pragma: no cover


def probability(law: Law, value: int, *, n_bits: int = 128) -> tuple[Fraction, Fraction]:
    """Enclose the probability of one value between two fractions.

    Parameters
    ----------
    law : Law
        Distribution of the value.
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
    weight = next(islice(law.weights(n_bits + 64), k, None))  # the precision of the sums
    return Fraction(weight.low, sums.total.high), Fraction(weight.high, sums.total.low)


BitSource = Callable[[int], bytes]
"""Function from a number to as many random bytes; other than ``os.urandom`` in tests only."""

WORD_BITS = 63  # one bit of a 64-bit word is the sign
CHUNK = 1 << 16
"""Maximum number of words drawn at once: half a megabyte, which fits the processor's cache."""

# The guide has two to four entries per threshold, so that most searches of the kernel take a
# few steps: at least 2**8 entries (1 KiB), at most 2**16 (256 KiB, which fit the cache).
_GUIDE_BITS = (8, 16)


class ThresholdTable(NamedTuple):
    """Thresholds of a distribution, as integers of ``n_bits`` bits; see ``kernels.inversion``."""

    limits: npt.NDArray[np.uint64]
    guide: npt.NDArray[np.int32]
    n_bits: int
    symmetric: bool


@compute_once(maxsize=16)  # tables of at most 6 MB each
def table(law: Law, n_bits: int = WORD_BITS) -> ThresholdTable:
    """Return the cached table of a distribution.

    Parameters
    ----------
    law : Law
        Distribution to tabulate.
    n_bits : int
        Bits of U in one word; fewer than 63 only in exhaustive tests.
    """
    limits = np.array(_limits(law, n_bits), np.uint64)
    guide_bits = min(max(_GUIDE_BITS[0], len(limits).bit_length() + 1), _GUIDE_BITS[1], n_bits)
    starts = np.arange(1 << guide_bits, dtype=np.uint64) << np.uint64(n_bits - guide_bits)
    guide = np.searchsorted(limits, starts).astype(np.int32)
    return ThresholdTable(limits, guide, n_bits, law.symmetric)


def _limits(law: Law, n_bits: int) -> list[int]:
    """Enclose each cumulative probability between integers.

    limit - 1 <= F(k) * 2**n_bits <= limit + 1 for each k.
    """
    guard = 64  # enough for every table; doubled if two bounds are ever too far apart
    while True:
        sums = cumulative(law, n_bits, guard)
        lows = [(low << n_bits) // sums.total.high for low in sums.lows]
        highs = [-(-(high << n_bits) // sums.total.low) for high in sums.highs]
        if all(high <= low + 2 for low, high in zip(lows, highs, strict=True)):
            last = bisect_left(lows, (1 << n_bits) - 1)  # no prefix reaches a later threshold
            return [low + 1 for low in lows[: last + 1]]
        guard *= 2


def locate(law: Law, prefix: int, n_bits: int) -> int | None:
    """Find k(U) for all U with a prefix; None if they differ.

    Parameters
    ----------
    law : Law
        Distribution whose cumulative probabilities are the thresholds.
    prefix : int
        First bits of U.
    n_bits : int
        Number of these bits.
    """
    sums = cumulative(law, n_bits)
    # k is the first value that U may have; it is certain if U < F(k) for all continuations
    k = bisect_left(sums.highs, True, key=lambda high: high << n_bits > prefix * sums.total.low)
    if k < len(sums.lows) and (prefix + 1) * sums.total.high <= sums.lows[k] << n_bits:
        return k
    return None


def draw_words(n_words: int, bits: BitSource) -> npt.NDArray[np.uint64]:
    """Draw words of 64 random bits.

    Raises
    ------
    ValueError
        If the source returns another number of bytes.
    """
    drawn = bits(8 * n_words)
    if len(drawn) != 8 * n_words:
        raise ValueError(
            f"expected {8 * n_words} random bytes, got {len(drawn)}; "
            "a source of bits must return as many bytes as requested"
        )
    return np.frombuffer(drawn, "<u8").astype(np.uint64, copy=False)


def sample(law: Law, size: int, bits: BitSource = os.urandom) -> Integers:
    """Draw independent values of a distribution, exactly.

    Parameters
    ----------
    law : Law
        Distribution to draw from.
    size : int
        Number of values.
    bits : callable
        Source of random bytes.

    Returns
    -------
    int64 array of shape (size,)
    """
    thresholds = table(law)
    values = np.empty(size, np.int64)
    for start in range(0, size, CHUNK):
        part = values[start : start + CHUNK]
        words = draw_words(len(part), bits)
        if _invert(thresholds, words, part):
            for i in np.flatnonzero(part == UNDECIDED):
                part[i] = _refine(law, int(words[i]), bits)
    return values


def warmup() -> None:
    """Compile the kernel that inverts words; numba caches it on disk."""
    sample(LaplaceLaw(Fraction(1)), 1)


def _invert(thresholds: ThresholdTable, words: npt.NDArray[np.uint64], values: Integers) -> int:
    return invert_words(
        words,
        thresholds.limits,
        thresholds.guide,
        n_bits=thresholds.n_bits,
        symmetric=thresholds.symmetric,
        values=values,
    )


def _refine(law: Law, word: int, bits: BitSource) -> int:
    """Decide an undecided word by drawing more bits after it."""
    prefix, n_bits = word >> 1, WORD_BITS  # bit 0 is the sign
    magnitude = None
    while magnitude is None:
        prefix, n_bits = prefix << 64 | int(draw_words(1, bits)[0]), n_bits + 64
        magnitude = locate(law, prefix, n_bits)
    return -magnitude if law.symmetric and word & 1 else magnitude
