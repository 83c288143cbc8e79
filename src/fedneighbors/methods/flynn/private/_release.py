"""Sensitivity, budget fraction and mechanism of each release of a private FlyNN party.

The parties' rows are disjoint, so the releases of all parties together cost as much as the release
of one party (parallel composition). One row belongs to one class and activates ``n_active`` units.
"""

import math
from fractions import Fraction

import numpy as np

from fedneighbors._typing import Floats, Integers
from fedneighbors.errors import PrivacyError
from fedneighbors.privacy._guarantees import ZCDP, Neighbors, PureDP, Sensitivity, exact
from fedneighbors.privacy._policy import Privacy
from fedneighbors.privacy.noise._calibration import budget_fraction, choose_levels
from fedneighbors.privacy.noise._top_picks import TopPicks

_SHARE_STEPS = 1 << 10  # shares of epsilon are multiples of its inverse, which is cheap to sample
_MIN_UNITS, _MAX_UNITS = 300, 200_000  # limits of the derived number; the user may exceed them


def count_sensitivity(n_active: int, neighbors: Neighbors) -> Sensitivity:
    """Return the sensitivity of the counts of all classes to one row.

    Adding or removing a row changes ``n_active`` cells of one class by one. Replacing a row may
    decrement that many cells and increment as many others; a cell that does both is unchanged.

    Examples
    --------
    >>> count_sensitivity(32, "replace_one").l2_squared
    64
    """
    cells = n_active * (1 if neighbors == "add_remove" else 2)
    return Sensitivity("row", neighbors, l1=cells, l2_squared=cells, linf=1)


def constants_sensitivity(n_columns: int, levels: int, neighbors: Neighbors) -> Sensitivity:
    """Return the sensitivity of :func:`quantized_moments` to one row.

    One row changes every cell by at most ``levels``. Under ``"replace_one"`` the number of rows is
    constant, which this bound does not exploit.
    """
    cells = 2 * n_columns + 1
    return Sensitivity(
        "row", neighbors, l1=cells * levels, l2_squared=cells * levels**2, linf=levels
    )


def constants_levels(privacy: Privacy, n_columns: int) -> int:
    """Return the number of quantization steps for noised column moments.

    It depends only on the agreed terms and the number of columns.

    Raises
    ------
    PrivacyError
        If the noise exceeds the samplers' range even at the coarsest resolution. It would be
        larger than the mean and the standard deviation in any case.
    """
    return choose_levels(
        release_budget(privacy, of="constants", constants_paid=True),
        lambda levels: constants_sensitivity(n_columns, levels, privacy.neighbors),
        error_end=f"{n_columns} columns; declare tighter bounds, set standardize=False, raise "
        "constants_share, or allow a delta under mechanism='central'",
    )


def release_budget(privacy: Privacy, *, of: str, constants_paid: bool) -> PureDP | ZCDP:
    """Return the fraction of the budget that one release may use.

    Parameters
    ----------
    privacy : Privacy
        The budget of one training. A budget with delta is converted to zCDP.
    of : {"constants", "counts"}
        The release. The fractions of both add up to 1.
    constants_paid : bool
        True if the number of rows or the scaling is charged. Otherwise the counts get the whole
        budget.
    """
    share = exact(privacy.constants_share, "constants_share") if constants_paid else Fraction(0)
    share = share if of == "constants" else 1 - share
    return budget_fraction(privacy, share)


def picks_mechanism(
    privacy: Privacy, *, constants_paid: bool, n_picks: int, share: float = 1.0
) -> TopPicks:
    """Return the mechanism DP() of Algorithm 2 for one party.

    Parameters
    ----------
    privacy : Privacy
        With ``accounting="paper"`` each party spends epsilon / tau (line 7); with ``"parallel"``
        each spends all of epsilon, because the parties' rows are disjoint.
    constants_paid : bool
        As for :func:`release_budget`.
    n_picks : int
        T; tau is ``privacy.n_parties``.
    share : float
        Part of a party's epsilon that is spent, at most 1.

    Raises
    ------
    PrivacyError
        If delta is not 0, or the number of parties is required but not set.
    """
    budget = release_budget(privacy, of="counts", constants_paid=constants_paid)
    if not isinstance(budget, PureDP):
        raise PrivacyError("the paper's mechanism has pure epsilon; leave delta at 0")
    divisor = privacy.n_parties if privacy.accounting == "paper" else 1
    if divisor is None:
        raise PrivacyError("accounting='paper' divides epsilon by the parties: give n_parties")
    return TopPicks(budget.epsilon / divisor * Fraction(share), n_picks)


def quantized_moments(x: Floats, bounds: tuple[Floats, Floats], levels: int) -> Integers:
    """Return quantized row count, sums and sums of squares within public bounds.

    Parameters
    ----------
    x : float64 array of shape (n_rows, n_columns)
    bounds : pair of float64 arrays of shape (n_columns,)
        Lowest and highest value of each column; values outside are clipped.
    levels : int
        Quantization steps of the range.

    Returns
    -------
    int64 array of shape (2 * n_columns + 1,)
        Rows times ``levels``, then sums and sums of squares in units of 1 / ``levels`` of the
        range and of its square.
    """
    low, high = bounds  # their difference and the values of x are finite
    width = np.where(high > low, high - low, 1.0)
    steps = np.rint((np.clip(x, low, high) - low) / width * levels).astype(np.int64)
    squares = steps * steps // levels
    return np.concatenate([[levels * len(x)], steps.sum(axis=0), squares.sum(axis=0)])


def default_active(privacy: Privacy) -> int:
    """Return the default number of active units (rho).

    Laplace noise grows with rho but Gaussian noise only with its square root, so Gaussian noise
    permits more active units.
    """
    budget = release_budget(privacy, of="counts", constants_paid=False)
    return 64 if isinstance(budget, ZCDP) else 32  # budgets in zCDP get Gaussian noise


def private_sizes(
    n_rows: int, n_features: int, n_outputs: int, n_classes: int, *, n_active: int, deviation: float
) -> tuple[int, int]:
    """Return n_units and n_inputs for noised counts.

    The number of units makes the mean count of a unit in a class, n rho / (L m), equal to the
    standard deviation of its noise: with more units noise dominates, with fewer units the counts
    carry less information. The rule and its constants did best on tables from the generator of
    appendix D.2 (with other seeds than those reported) and on parts of real tables that are not
    reported.

    Parameters
    ----------
    n_rows : int
        Rows of all parties, noised or declared public.
    n_features, n_outputs : int
        Columns before and after the expansion.
    n_classes : int
        Classes.
    n_active : int
        Active units of each row.
    deviation : float
        Standard deviation of the noise on one cell of the sum.
    """
    n_units = int(n_rows * n_active / (n_classes * max(deviation, 1.0)))
    n_inputs = max(1, min(24, round(0.4 * n_features), n_outputs // 2))
    return min(max(n_units, _MIN_UNITS), _MAX_UNITS), n_inputs


def paper_sizes(n_features: int, n_outputs: int) -> tuple[int, int, int]:
    """Return n_units, n_inputs and n_active according to appendix D.8.

    There are ten units per column, one twentieth of them active. The noise of the paper's mechanism
    grows with the number of picks, not with the counts, so more units do not help.
    """
    n_units = 10 * n_features
    return n_units, max(1, min(3, n_outputs // 2)), max(1, n_units // 20)


def default_picks(epsilon: Fraction, *, mean_count: float, n_cells: int) -> tuple[int, float]:
    """Return the default number of picked cells (T) and share of epsilon.

    With T proportional to epsilon, a pick prefers a cell of mean count to an empty one by exp(2),
    and its noise has a quarter of the mean count as scale, at every epsilon: a larger budget buys
    more cells. With a constant T it would buy the same cells again. As many picks as cells spend
    only the share of epsilon that keeps this proportion. The constant was chosen on tables from
    the generator of appendix D.8 with other seeds than those reported.

    Parameters
    ----------
    epsilon : Fraction
        Epsilon of one party's counts.
    mean_count : float
        Mean count of a cell at one party, from the charged number of rows.
    n_cells : int
        Number of cells, the largest T.

    Examples
    --------
    >>> [default_picks(Fraction(e), mean_count=125, n_cells=600) for e in (1, 2, 64)]
    [(16, 1.0), (31, 1.0), (600, 0.599609375)]
    """
    wanted = epsilon * Fraction(mean_count) / 8
    if wanted <= n_cells:
        return max(1, round(wanted)), 1.0
    steps = max(1, math.floor(_SHARE_STEPS * n_cells / wanted))
    return n_cells, steps / _SHARE_STEPS
