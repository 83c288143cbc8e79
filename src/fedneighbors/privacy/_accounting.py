"""Total cost of releases: composition, and conversion of one type of guarantee to another.

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

from fedneighbors._lazy import compute_once, optional_module
from fedneighbors.privacy._guarantees import ZCDP, ApproxDP, Guarantee, Number, PureDP, exact


@dataclass(frozen=True)
class _CostTotals:
    """Sums of costs by type.

    ``epsilon`` and ``delta`` are those of approximate costs. ``pure_as_rho`` is the sum of the pure
    costs after conversion to zCDP.
    """

    pure: Fraction
    pure_as_rho: Fraction
    epsilon: Fraction
    delta: Fraction
    rho: Fraction


def spent_after(guarantees: Iterable[Guarantee], budget: Guarantee) -> Guarantee:
    """Return the cost of all releases together, in the budget's type.

    - Pure budget: the epsilons are added up.
    - zCDP budget: rhos are added up; a pure epsilon counts as ``epsilon**2 / 2`` ([1]_,
      Proposition 1.4).
    - (epsilon, delta) budget: epsilons and deltas of pure and approximate releases are added up
      (basic composition). The rhos of zCDP releases are added up and converted once, with the
      part of the budget's delta that the approximate releases leave. The result then has the
      whole delta of the budget.

    The totals also hold if releases and their costs are chosen after earlier answers were seen.

    Parameters
    ----------
    guarantees : iterable of Guarantee
        One per release. An ``ApproxDP`` of delta 0 is the same as a ``PureDP``.
    budget : Guarantee
        Determines the type of the result, and the delta of the conversion of zCDP.

    Returns
    -------
    Guarantee
        Exact, or rounded upward after a conversion of zCDP.

    Raises
    ------
    ValueError
        If the cost of a release cannot be expressed in the budget's type, or deltas add up to 1 or
        more.
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
    """Return the cost of releases, given their number by cost.

    The result is that of :func:`spent_after`.

    Parameters
    ----------
    counts : mapping of Guarantee to int
        Number of releases of each cost.
    budget : Guarantee
        As in :func:`spent_after`.

    Raises
    ------
    ValueError
        As in :func:`spent_after`.
    """
    totals = _sum_by_type(counts)
    if isinstance(budget, ApproxDP):
        return _convert_to_approx(totals, budget)
    if totals.delta:
        raise ValueError(
            f"expected releases without a delta for the budget {budget}, got delta={totals.delta}; "
            "set a budget of epsilon and delta"
        )
    if isinstance(budget, ZCDP):
        return ZCDP(totals.rho + totals.pure_as_rho)
    if totals.rho:
        raise ValueError(
            f"expected releases of pure epsilon for the budget {budget}, got rho={totals.rho}; "
            "set a budget of rho, or of epsilon and delta"
        )
    return PureDP(totals.pure)


def _sum_by_type(counts: Mapping[Guarantee, int]) -> _CostTotals:
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
    return _CostTotals(pure, pure_as_rho, epsilon, delta, rho)


def _convert_to_approx(totals: _CostTotals, budget: ApproxDP) -> ApproxDP:
    epsilon = totals.pure + totals.epsilon
    if not totals.rho:
        if totals.delta >= 1:  # no guarantee
            raise ValueError(f"deltas add up to {totals.delta}; expected less than 1")
        return ApproxDP(epsilon, totals.delta)
    left = budget.delta - totals.delta
    if left <= 0:  # zCDP implies (epsilon, delta) for positive deltas only
        raise ValueError(
            f"no part of delta={budget.delta} is left to convert rho={totals.rho}; set a budget "
            "with a larger delta"
        )
    return ApproxDP(epsilon + zcdp_to_approx(totals.rho, left), budget.delta)


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
        Also False if the cost of a release cannot be expressed in the budget's type.

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
    """Return whether a cost is within a budget of the same type."""
    return all(used <= allowed for used, allowed in _pairs(spent, budget))


def difference(budget: Guarantee, spent: Guarantee) -> Guarantee:
    """Subtract a cost from a budget; return 0 if it is overspent.

    One more release whose cost is the difference fits the budget.
    """
    left = [allowed - used for used, allowed in _pairs(spent, budget)]
    kind: Callable[..., Guarantee] = type(budget)
    return kind(*(left if within(spent, budget) else [Fraction(0)] * len(left)))


def _pairs(spent: Guarantee, budget: Guarantee) -> list[tuple[Fraction, Fraction]]:
    if type(spent) is not type(budget):
        raise TypeError(f"expected two guarantees of one type, got {spent!r} and {budget!r}")
    return list(zip(vars(spent).values(), vars(budget).values(), strict=True))


# OpenDP takes milliseconds, and a charge checks a sum several times; 4096 results take about 1 MB.
# Typed: 0.3 and Fraction(0.3) are equal, but `exact` reads a float by its decimal digits.
@lru_cache(maxsize=4096, typed=True)
def zcdp_to_approx(rho: Number, delta: Number) -> Fraction:
    """Return an epsilon for which rho-zCDP implies (epsilon, delta).

    The conversion is OpenDP's ``make_zCDP_to_approxDP``, the best order of the Renyi divergence in
    [1]_, Corollary 13, rounded upward.

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


@compute_once(maxsize=1024)  # a search takes 0.5 s; each release repeats it
def largest_zcdp(epsilon: Number, delta: Number) -> Fraction:
    """Return the largest rho for which rho-zCDP implies (epsilon, delta).

    It is rounded downward.

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
        try:  # without the cache, which the search would fill with rhos that are not used again
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

    The rank is the integer with the same bits: non-negative floats are ordered as these integers.
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
    """Return OpenDP's epsilon for a rho, infinite if OpenDP overflows."""
    # OpenDP converts measurements, not numbers: this one does nothing and claims rho
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
        # OpenDP finds epsilon by a search on its curve of delta; raise it until the curve agrees.
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
