"""Guarantees and sensitivities.

A guarantee is the privacy cost of a release, or the limit of a budget. Its numbers are fractions,
so that costs add up without rounding. Mechanisms return guarantees, the ledger stores them, and
:mod:`~fedneighbors.privacy._accounting` sums them.
"""

import math
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Literal

Neighbors = Literal["add_remove", "replace_one"]
"""Relation of neighboring tables: one row added or removed, or one row replaced."""

NEIGHBORS: tuple[Neighbors, ...] = ("add_remove", "replace_one")

Number = int | float | str | Decimal | Fraction

_MAX_POWER = 400  # power of ten, more than those of floats; larger ones could take minutes


def exact(value: Number, name: str) -> Fraction:
    """Convert a number to an exact fraction.

    Parameters
    ----------
    value : int, float, str, Decimal or Fraction
        A float counts as its shortest decimal representation, so 0.1 is one tenth.
    name : str
        Name for the error message.

    Raises
    ------
    TypeError
        If it is not a number.
    ValueError
        If it is not finite.

    Examples
    --------
    >>> exact(0.1, "epsilon")
    Fraction(1, 10)
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal | Fraction):
        raise TypeError(f"expected {name} as a number, got {value!r}")
    if isinstance(value, float | Decimal) and not math.isfinite(value):
        raise ValueError(f"expected a finite {name}, got {value!r}")
    try:
        if isinstance(value, str | Decimal):
            _, _, power = str(value).lower().partition("e")
            if abs(int(power or 0)) > _MAX_POWER:
                raise ValueError
        return Fraction(repr(value) if isinstance(value, float) else value)
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"expected {name} as a number such as 0.5 or 1/3, got {value!r}") from None


@dataclass(frozen=True)
class PureDP:
    """Pure differential privacy: probabilities differ at most by the factor exp(epsilon).

    Raises
    ------
    ValueError
        If epsilon is negative.
    """

    epsilon: Fraction

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", exact(self.epsilon, "epsilon"))
        if self.epsilon < 0:
            raise ValueError(f"expected epsilon of 0 or more, got {self.epsilon}")

    def __str__(self) -> str:
        return f"epsilon={_short(self.epsilon)}"


@dataclass(frozen=True)
class ApproxDP:
    """Approximate differential privacy: probabilities differ at most by exp(epsilon) and delta.

    The probability p of any event satisfies ``p <= exp(epsilon) q + delta``, where q is its
    probability for a neighboring table.

    Raises
    ------
    ValueError
        If epsilon is negative or delta outside [0, 1).
    """

    epsilon: Fraction
    delta: Fraction

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", exact(self.epsilon, "epsilon"))
        object.__setattr__(self, "delta", exact(self.delta, "delta"))
        if self.epsilon < 0:
            raise ValueError(f"expected epsilon of 0 or more, got {self.epsilon}")
        if not 0 <= self.delta < 1:
            raise ValueError(f"expected delta in [0, 1), got {self.delta}")

    def __str__(self) -> str:
        return f"epsilon={_short(self.epsilon)}, delta={_short(self.delta)}"


@dataclass(frozen=True)
class ZCDP:
    """Zero-concentrated differential privacy (Bun and Steinke 2016).

    The Renyi divergence of every order alpha is at most ``rho * alpha``.

    Raises
    ------
    ValueError
        If rho is negative.
    """

    rho: Fraction

    def __post_init__(self) -> None:
        object.__setattr__(self, "rho", exact(self.rho, "rho"))
        if self.rho < 0:
            raise ValueError(f"expected rho of 0 or more, got {self.rho}")

    def __str__(self) -> str:
        return f"rho={_short(self.rho)}"


Guarantee = PureDP | ApproxDP | ZCDP
"""Cost of a release, or limit of a budget."""


def _short(number: Fraction) -> str:
    # a denominator of four or more digits is hard to read
    return str(number) if number.denominator < 1000 else f"{float(number):.6g}"


@dataclass(frozen=True)
class Sensitivity:
    """Largest change of a vector of integers between neighboring tables.

    Parameters
    ----------
    unit : str
        Privacy unit, such as ``"row"``.
    neighbors : {"add_remove", "replace_one"}
        Relation of neighboring tables: one row added or removed, or one row replaced.
    l1 : int
        Largest sum of absolute differences.
    l2_squared : int
        Largest sum of squared differences; an integer, unlike its root.
    linf : int
        Largest difference of a single cell.

    Raises
    ------
    ValueError
        If a norm is negative, the relation is unknown, or no vector has these three norms.
    """

    unit: str
    neighbors: Neighbors
    l1: int
    l2_squared: int
    linf: int

    def __post_init__(self) -> None:
        if self.neighbors not in NEIGHBORS:
            raise ValueError(f"expected neighbors as one of {NEIGHBORS}, got {self.neighbors!r}")
        if min(self.l1, self.l2_squared, self.linf) < 0:
            raise ValueError(f"expected bounds of 0 or more, got {self}")
        # true of every vector: max |a|**2 <= sum of a**2 <= (sum of |a|) * max |a|
        if not self.linf**2 <= self.l2_squared <= self.l1 * self.linf:
            raise ValueError(f"expected linf**2 <= l2_squared <= l1 * linf, got {self}")
