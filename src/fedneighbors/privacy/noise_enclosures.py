"""Real numbers held between two integers, in units of 2**-precision; no floating point anywhere."""

from fractions import Fraction
from typing import NamedTuple

__all__ = ["Enclosure", "exp_minus", "powers_of_exp", "times"]


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
