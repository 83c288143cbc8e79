"""Releases of a party: sensitivity, share of the budget, noise.

Rows of different parties are disjoint, so that the releases of all parties together cost what one
of them costs (parallel composition). One row is in one class and turns on ``n_active`` units.
"""

from fractions import Fraction

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats
from fedneighbors.errors import PrivacyError
from fedneighbors.privacy._guarantees import (
    ZCDP,
    Neighbors,
    PureDP,
    Sensitivity,
    exact,
)
from fedneighbors.privacy._policy import Privacy
from fedneighbors.privacy.noise._calibration import portion
from fedneighbors.privacy.noise._mechanisms import (
    LARGEST_SCALE,
    LARGEST_VARIANCE,
)
from fedneighbors.privacy.noise._top_picks import TopPicks

_FINEST, _COARSEST = 1 << 10, 1 << 4  # steps of a column's range, where its moments are paid for
_MOST_UNITS = 200_000
_FEWEST_UNITS = 300


def count_sensitivity(n_active: int, neighbors: Neighbors) -> Sensitivity:
    """Return how far one row moves the counts of all classes.

    A row more or less moves ``n_active`` cells of one class by one. A row exchanged may leave so
    many cells and enter as many others; a cell that it leaves and enters does not move.

    Examples
    --------
    >>> count_sensitivity(32, "replace_one").l2_squared
    64
    """
    cells = n_active * (1 if neighbors == "add_remove" else 2)
    return Sensitivity("row", neighbors, l1=cells, l2_squared=cells, linf=1)


def constants_sensitivity(n_columns: int, levels: int, neighbors: Neighbors) -> Sensitivity:
    """Return the sensitivity of :func:`quantized_moments` to one row.

    Every cell changes by ``levels`` at most.

    Under ``"replace_one"`` the number of rows does not move, which is not made use of.
    """
    cells = 2 * n_columns + 1
    return Sensitivity(
        "row", neighbors, l1=cells * levels, l2_squared=cells * levels**2, linf=levels
    )


def constants_levels(privacy: Privacy, n_columns: int) -> int:
    """Return the number of steps in a column's range for private moments.

    The noise is the same part of the range for any number, so that the finest is taken that the
    samplers bear; a function of what was agreed alone.

    Raises
    ------
    PrivacyError
        If not even coarse steps will do; mean and spread would drown in the noise anyway.
    """
    allowed = part(privacy, of="constants", constants_paid=True)
    levels = _FINEST
    while levels >= _COARSEST:
        moved = constants_sensitivity(n_columns, levels, privacy.neighbors)
        if isinstance(allowed, PureDP):
            fits = moved.l1 / allowed.epsilon <= LARGEST_SCALE
        else:
            fits = moved.l2_squared / (2 * allowed.rho) <= LARGEST_VARIANCE
        if fits:
            return levels
        levels //= 2
    raise PrivacyError(
        f"mean and spread of {n_columns} columns would drown in the noise that {allowed} calls "
        "for; declare public=('scaling', 'n_rows'), set standardize=False, raise "
        "constants_share, or allow a delta under mechanism='central'"
    )


def part(privacy: Privacy, *, of: str, constants_paid: bool) -> PureDP | ZCDP:
    """Return the part of the budget that one release may use.

    Parameters
    ----------
    privacy : Privacy
        The budget of one training. One with delta is spent as zCDP, whose conversion it is.
    of : {"constants", "counts"}
        The release. Both add up to the whole.
    constants_paid : bool
        Whether rows or scaling are paid for at all; if not, the counts get everything.
    """
    share = exact(privacy.constants_share, "constants_share") if constants_paid else Fraction(0)
    share = share if of == "constants" else 1 - share
    return portion(privacy, share)


def picks(privacy: Privacy, *, constants_paid: bool, n_picks: int) -> TopPicks:
    """Return Algorithm 2's DP() as one party runs it.

    Parameters
    ----------
    privacy : Privacy
        With ``accounting="paper"`` each party spends its n-th part of epsilon (line 7); with
        ``"parallel"`` all of it, because rows of parties are disjoint.
    constants_paid : bool
        As for :func:`part`.
    n_picks : int
        T; tau is ``privacy.n_parties``.

    Raises
    ------
    PrivacyError
        If the number of parties is needed and not known.
    """
    allowed = part(privacy, of="counts", constants_paid=constants_paid)
    if not isinstance(allowed, PureDP):
        raise PrivacyError("the paper's mechanism is pure; leave delta at 0")
    divided = privacy.n_parties if privacy.accounting == "paper" else 1
    if divided is None:
        raise PrivacyError("accounting='paper' divides epsilon by the parties: give n_parties")
    return TopPicks(allowed.epsilon / divided, n_picks)


def quantized_moments(
    x: Floats, bounds: tuple[Floats, Floats], levels: int
) -> npt.NDArray[np.int64]:
    """Compute row count, sums and sums of squares within known bounds.

    Values are clipped to the bounds.

    Parameters
    ----------
    x : float64 array of shape (n_rows, n_columns)
    bounds : pair of float64 arrays of shape (n_columns,)
        Lowest and highest value of each column; what lies beyond is cut.
    levels : int
        Steps of the range.

    Returns
    -------
    int64 array of shape (2 * n_columns + 1,)
        In steps of the range (of its square): rows, sums, squares.
    """
    low, high = bounds  # their difference is finite, and so is the table
    width = np.where(high > low, high - low, 1.0)
    unit = np.rint((np.clip(x, low, high) - low) / width * levels).astype(np.int64)
    squares = unit * unit // levels
    return np.concatenate([[levels * len(x)], unit.sum(axis=0), squares.sum(axis=0)])


def active_units(privacy: Privacy) -> int:
    """Return how many units are on by default (rho).

    Laplace noise grows with rho, Gaussian noise with its root only, so that it bears more of them.
    """
    return 64 if isinstance(part(privacy, of="counts", constants_paid=False), ZCDP) else 32


def private_sizes(
    n_rows: int, n_features: int, n_outputs: int, n_classes: int, *, n_active: int, spread: float
) -> tuple[int, int]:
    """Return n_units and n_inputs for counts that will be noised.

    Units are as many as keep the mean count of a unit in a class, n rho / (L m), at the standard
    deviation of its noise; more would drown, fewer tell less. The rule and its numbers did best on
    tables of the generator of appendix D.2 (other seeds than those reported) and on parts of real
    tables that are not reported.

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
    spread : float
        Standard deviation of the noise on one cell of the sum.
    """
    n_units = int(n_rows * n_active / (n_classes * max(spread, 1.0)))
    n_inputs = max(1, min(24, round(0.4 * n_features), n_outputs // 2))
    return min(max(n_units, _FEWEST_UNITS), _MOST_UNITS), n_inputs


def sizes_of_the_paper(n_features: int, n_outputs: int) -> tuple[int, int, int]:
    """Return n_units, n_inputs and n_active as in appendix D.8.

    These are the sizes for the paper's mechanism.

    Ten units a column, of which a twentieth is on. Its noise grows with the number of picks, not
    with the counts, so that more units do not help.
    """
    n_units = 10 * n_features
    return n_units, max(1, min(3, n_outputs // 2)), max(1, n_units // 20)


def default_picks(n_units: int) -> int:
    """Return the number of picked cells (T).

    One per 30 units, 600 at most as in appendix D.8.
    """
    return max(1, min(600, n_units // 30))
