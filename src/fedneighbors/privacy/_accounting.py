"""Total cost of releases: composition and conversions, rounded upward.

Sums are exact fractions. Only the conversion from zCDP to (epsilon, delta), by OpenDP, is not
exact: its result is rounded upward.
"""

import bisect
import math
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from fedneighbors._lazy import optional_module
from fedneighbors.privacy._guarantees import ZCDP, ApproxDP, Guarantee, Number, PureDP, exact


@dataclass(frozen=True)
class _Parts:
    """Sums by kind: epsilon of pure, epsilon and delta of approximate, rho of zCDP."""

    pure: Fraction
    pure_as_rho: Fraction
    epsilon: Fraction
    delta: Fraction
    rho: Fraction


def spent_after(guarantees: Iterable[Guarantee], budget: Guarantee) -> Guarantee:
    """Compute the cost of all releases together, in the budget's notion.

    - Pure budget: the epsilons are added up.
    - zCDP budget: rhos are added up; a pure epsilon counts as ``epsilon**2 / 2`` ([1]_,
      Proposition 1.4).
    - (epsilon, delta) budget: epsilons and deltas of pure and approximate releases are added up
      (basic composition). The rhos of zCDP releases are added up and converted once, with the
      part of the budget's delta that the approximate releases left. The result then contains
      the whole delta.

    The totals also hold for adaptive releases, whose costs depend on earlier answers.

    Parameters
    ----------
    guarantees : iterable of Guarantee
        One per release. An ``ApproxDP`` of delta 0 is the same as a ``PureDP``.
    budget : Guarantee
        Determines the notion, and the delta of the zCDP conversion.

    Returns
    -------
    Guarantee
        Cost in the budget's type; exact, or rounded upward after a conversion of zCDP.

    Raises
    ------
    ValueError
        If a release has no cost in the notion of the budget.
    MissingExtraError
        If zCDP must be converted and OpenDP is not installed.

    References
    ----------
    .. [1] Bun and Steinke, "Concentrated Differential Privacy: Simplifications, Extensions, and
       Lower Bounds", TCC 2016.

    Examples
    --------
    >>> from fedneighbors.privacy import ZCDP, PureDP
    >>> spent_after([PureDP("0.1"), PureDP("0.2")], PureDP(1))
    PureDP(epsilon=Fraction(3, 10))
    >>> spent_after([PureDP("0.1"), ZCDP("0.005")], ZCDP(1))
    ZCDP(rho=Fraction(1, 100))
    """
    return spent_by_counts(Counter(guarantees), budget)


def spent_by_counts(counts: Mapping[Guarantee, int], budget: Guarantee) -> Guarantee:
    """Compute the cost of releases given as counts of equal costs.

    Equals :func:`spent_after` on the listed releases.

    Parameters
    ----------
    counts : mapping of Guarantee to int
        Number of releases of each cost.
    budget : Guarantee
        Determines the notion.

    Raises
    ------
    ValueError
        If a release has no cost in the notion of the budget.
    """
    parts = _parts(counts)
    if isinstance(budget, ApproxDP):
        return _approximate(parts, budget)
    if parts.delta:
        raise ValueError(
            f"expected releases without a delta for the budget {budget}, got delta={parts.delta}; "
            "set a budget of epsilon and delta"
        )
    if isinstance(budget, ZCDP):
        return ZCDP(parts.rho + parts.pure_as_rho)
    if parts.rho:
        raise ValueError(
            f"expected releases of pure epsilon for the budget {budget}, got rho={parts.rho}; "
            "set a budget of rho, or of epsilon and delta"
        )
    return PureDP(parts.pure)


def _parts(counts: Mapping[Guarantee, int]) -> _Parts:
    pure = pure_as_rho = epsilon = delta = rho = Fraction(0)
    for cost, number in counts.items():
        if isinstance(cost, ZCDP):
            rho += number * cost.rho
        elif isinstance(cost, ApproxDP) and cost.delta:
            epsilon += number * cost.epsilon
            delta += number * cost.delta
        else:
            pure += number * cost.epsilon
            pure_as_rho += number * cost.epsilon**2 / 2
    return _Parts(pure, pure_as_rho, epsilon, delta, rho)


def _approximate(parts: _Parts, budget: ApproxDP) -> ApproxDP:
    epsilon = parts.pure + parts.epsilon
    if not parts.rho:
        if parts.delta >= 1:  # guarantees nothing
            raise ValueError(f"deltas add up to {parts.delta}; expected less than 1")
        return ApproxDP(epsilon, parts.delta)
    left = budget.delta - parts.delta
    if left <= 0:  # zCDP implies (epsilon, delta) for positive deltas only
        raise ValueError(
            f"no part of delta={budget.delta} is left to convert rho={parts.rho}; set a budget "
            "with a larger delta"
        )
    return ApproxDP(epsilon + zcdp_to_approx(parts.rho, left), budget.delta)


def fits(guarantees: Iterable[Guarantee], budget: Guarantee) -> bool:
    """Return whether the releases together cost no more than the budget.

    Parameters
    ----------
    guarantees : iterable of Guarantee
        One per release.
    budget : Guarantee
        Limit of the total cost.

    Returns
    -------
    bool
        Also False if a release has no cost in the budget's notion.

    Raises
    ------
    MissingExtraError
        If zCDP must be converted and OpenDP is not installed.

    Examples
    --------
    >>> from fedneighbors.privacy import PureDP
    >>> [fits([PureDP("0.1")] * n, PureDP("0.3")) for n in (3, 4)]
    [True, False]
    """
    try:
        spent = spent_after(guarantees, budget)
    except ValueError:
        return False
    return within(spent, budget)


def within(spent: Guarantee, budget: Guarantee) -> bool:
    """Return whether a cost is within a budget of the same notion."""
    return all(used <= allowed for used, allowed in _pairs(spent, budget))


def difference(budget: Guarantee, spent: Guarantee) -> Guarantee:
    """Subtract a cost from a budget, 0 if overspent.

    One more release of the result fits the budget.
    """
    left = [allowed - used for used, allowed in _pairs(spent, budget)]
    kind: Callable[..., Guarantee] = type(budget)
    return kind(*(left if within(spent, budget) else [Fraction(0)] * len(left)))


def _pairs(spent: Guarantee, budget: Guarantee) -> list[tuple[Fraction, Fraction]]:
    if type(spent) is not type(budget):
        raise TypeError(f"expected two guarantees of one notion, got {spent!r} and {budget!r}")
    return list(zip(vars(spent).values(), vars(budget).values(), strict=True))


# OpenDP takes milliseconds; a charge checks one sum several times. Typed: 0.3 and Fraction(0.3) are
# equal, but `exact` reads a float by its decimal digits.
@lru_cache(maxsize=4096, typed=True)
def zcdp_to_approx(rho: Number, delta: Number) -> Fraction:
    """Return the smallest known epsilon for which rho-zCDP implies (epsilon, delta).

    Rounded upward.

    The conversion is OpenDP's ``make_zCDP_to_approxDP``: the best order of the Renyi divergence
    in [1]_, Corollary 13.

    Parameters
    ----------
    rho : number
        0 or more; rounded up to a float64.
    delta : number
        In (0, 1); rounded down to a float64.

    Returns
    -------
    Fraction
        Epsilon, the exact value of a float64.

    Raises
    ------
    ValueError
        If an argument is out of range.
    MissingExtraError
        If OpenDP is not installed.

    References
    ----------
    .. [1] Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy",
       NeurIPS 2020.

    Examples
    --------
    >>> float(zcdp_to_approx("0.5", "1e-6")) < 5.3  # rho + 2 sqrt(rho log 1e6) would be 5.76
    True
    """
    exact_rho, exact_delta = exact(rho, "rho"), exact(delta, "delta")
    if not 0 <= exact_rho <= Fraction(sys.float_info.max):
        raise ValueError(f"expected rho of 0 or more that fits a float64, got {rho}")
    floor = _float_below(exact_delta)
    if not 0 < exact_delta < 1 or not floor:
        raise ValueError(f"expected delta in (0, 1) and not below 5e-324, got {delta}")
    epsilon = _opendp_epsilon(float_above(exact_rho), floor)
    if epsilon == math.inf:
        raise ValueError(f"rho={rho} is too large to be converted at delta={delta}")
    return Fraction(epsilon)


@lru_cache(maxsize=1024, typed=True)  # a search takes half a second; each release repeats it
def largest_zcdp(epsilon: Number, delta: Number) -> Fraction:
    """Return the largest rho for which rho-zCDP implies (epsilon, delta).

    Rounded downward.

    Parameters
    ----------
    epsilon : number
        0 or more.
    delta : number
        In (0, 1).

    Returns
    -------
    Fraction
        Rho, the exact value of the largest float64 for which :func:`zcdp_to_approx` stays at or
        below epsilon.

    Raises
    ------
    ValueError
        If an argument is out of range.
    MissingExtraError
        If OpenDP is not installed.

    Examples
    --------
    >>> f"{float(largest_zcdp(1, '1e-6')):.6f}"
    '0.024356'
    """
    allowed = exact(epsilon, "epsilon")
    if allowed < 0:
        raise ValueError(f"expected epsilon of 0 or more, got {epsilon}")

    def is_too_large(rank: int) -> bool:
        try:  # without the cache, which the search would fill with numbers never used again
            return zcdp_to_approx.__wrapped__(Fraction(_float_at(rank)), delta) > allowed
        except ValueError:
            if rank:
                return True  # rho is too large to be converted
            raise  # at rho 0 only delta can be out of range

    if is_too_large(0):  # no rank fits, and the search would return -1
        return Fraction(0)
    ranks = range(_FLOATS)
    return Fraction(_float_at(bisect.bisect_left(ranks, True, key=is_too_large) - 1))


# Number of finite float64 numbers from 0 upward: the rank of infinity.
_FLOATS = 0x7FF0_0000_0000_0000


def _float_at(rank: int) -> float:
    """Return the float64 of a rank, counted from 0.0 upward.

    Its bits, read as an integer, are the rank: floats from 0 upward are ordered as their bits.
    """
    return float(struct.unpack("<d", struct.pack("<q", rank))[0])


def float_above(number: Fraction) -> float:
    """Return the smallest float that is not below a fraction."""
    nearest = float(number)
    return nearest if Fraction(nearest) >= number else math.nextafter(nearest, math.inf)


def _float_below(number: Fraction) -> float:
    nearest = float(number)
    return nearest if Fraction(nearest) <= number else math.nextafter(nearest, -math.inf)


def _opendp_epsilon(rho: float, delta: float) -> float:
    """Return OpenDP's epsilon for a release of this rho.

    Infinite where OpenDP overflows.
    """
    # OpenDP converts whole measurements only: this one does nothing and claims rho
    dp = load_opendp("contrib", "honest-but-curious")
    release = dp.m.make_user_measurement(
        dp.atom_domain(T=bool),
        dp.discrete_distance(),
        dp.zero_concentrated_divergence(),
        lambda row: row,
        lambda _: rho,
        TO=bool,
    )
    profile = dp.c.make_zCDP_to_approxDP(release).map(1)
    try:
        epsilon = float(profile.epsilon(delta))
        # OpenDP searches for epsilon with its curve of delta; verify the result with the curve.
        while epsilon < math.inf and profile.delta(epsilon) > delta:
            epsilon = math.nextafter(epsilon, math.inf)
    except dp.OpenDPException:
        return math.inf
    return epsilon


def load_opendp(*features: str) -> Any:
    """Return OpenDP's prelude with its features enabled.

    Its functions are untyped.
    """
    prelude = optional_module("opendp.prelude", "privacy")
    prelude.enable_features(*features)
    return prelude
