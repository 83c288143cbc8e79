"""Column selection by Welch's t of each class against the rest, from exact sums."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedneighbors._typing import Floats, Integers
from fedneighbors.errors import ProtocolError
from fedneighbors.federation._messages import message
from fedneighbors.kernels._exactsum import N_SQUARE_LIMBS, N_SUM_LIMBS
from fedneighbors.methods.fedpnn._scaling import MAX_ROWS, Booleans, check_columns
from fedneighbors.tabular._schema import column_moments


@message
class SelectionReply:
    """Exact sums of each column by class, to be added up over parties.

    A class and column take 320 bytes: 7 MB for two classes and 10,936 columns.

    Parameters
    ----------
    counts : int64 array of shape (n_classes, n_features)
        Number of cells in each sum.
    sums : int64 array of shape (n_classes, n_features, 13)
        Sums of values in fixed point, see :mod:`fedneighbors.kernels._exactsum`.
    squares : int64 array of shape (n_classes, n_features, 26)
        Sums of squares in fixed point.
    """

    counts: Integers
    sums: Integers
    squares: Integers


@message
class SelectionRequest:
    """Request for the sums that columns are selected by."""

    reply: ClassVar[type] = SelectionReply
    classes: tuple[str | int | float | bool, ...]
    n_features: int
    min_count: int

    def check(self, party: str, reply: SelectionReply) -> None:  # noqa: ARG002 - runtimes name it
        """Check the shapes of the sums and their numbers of cells."""
        cells = len(self.classes), self.n_features
        if (reply.counts.shape, reply.sums.shape, reply.squares.shape) != (
            cells,
            (*cells, N_SUM_LIMBS),
            (*cells, N_SQUARE_LIMBS),
        ):
            raise ValueError(f"expected sums of {cells[0]} classes and {cells[1]} columns")
        if ((reply.counts != 0) & (reply.counts < self.min_count)).any():
            raise ValueError(f"a sum covers fewer than {self.min_count} cells")
        if (reply.counts >= MAX_ROWS).any():
            raise ValueError("a sum covers 2**40 or more cells")


@dataclass(frozen=True)
class Selection:
    """Columns of a table that were selected.

    Parameters
    ----------
    n_features : int
        Number of columns of the table.
    columns : int64 array of shape (n_kept,)
        Positions of the selected columns, ascending.
    statistics : float64 array of shape (n_kept,)
        Largest absolute t of each; infinite where class means differ without any spread, NaN where
        t is undefined.
    """

    n_features: int
    columns: Integers
    statistics: Floats

    def __post_init__(self) -> None:
        check_columns(self.columns, self.n_features)
        if self.statistics.shape != self.columns.shape:
            raise ValueError("columns and statistics differ in number")


def mask_omitted_cells(gone: Booleans, *, min_count: int) -> Booleans:
    """Return a mask of one class's cells to omit from sums.

    The number of omitted cells must not disclose few missing ones. Where fewer than ``min_count``
    are missing in a column, the first present cells are omitted with them until there are
    ``min_count``; a column with fewer than ``min_count`` remaining cells is omitted completely.

    Parameters
    ----------
    gone : bool array of shape (n_rows, n_features)
        Missing cells.
    min_count : int
        Minimum number of cells that may be disclosed.

    Examples
    --------
    >>> gone = np.array([[0, 0], [0, 0], [1, 0], [0, 0], [0, 0]], bool)
    >>> mask_omitted_cells(gone, min_count=2).T.astype(int).tolist()
    [[1, 0, 1, 0, 0], [0, 0, 0, 0, 0]]
    """
    out = gone.copy()
    n_gone = gone.sum(axis=0)
    wanting = np.flatnonzero((n_gone > 0) & (n_gone < min_count))
    others = ~gone[:, wanting]
    out[:, wanting] |= others & (others.cumsum(axis=0) <= min_count - n_gone[wanting])
    out[:, len(gone) - out.sum(axis=0) < min_count] = True
    return out


def class_sums(x: Floats, labels: Integers, n_classes: int, *, min_count: int) -> SelectionReply:
    """Return the sums of a party's table by class and column.

    Missing cells are omitted, and further cells where fewer than ``min_count`` of a class are
    missing in a column, see :func:`mask_omitted_cells`.

    Parameters
    ----------
    x : float64 array of shape (n_rows, n_features)
        Values below 2**200 in magnitude; missing cells are NaN.
    labels : int64 array of shape (n_rows,)
        Class of each row as a position; each class has at least ``min_count`` rows.
    n_classes : int
        Number of classes of the federation.
    min_count : int
        Minimum number of cells in a sum.
    """
    n_features = x.shape[1]
    counts = np.zeros((n_classes, n_features), np.int64)
    nothing = column_moments(x[:0])
    sums = np.zeros((n_classes, *nothing.sums.shape), np.int64)
    squares = np.zeros((n_classes, *nothing.squares.shape), np.int64)
    for label in np.unique(labels):
        own = x[labels == label]
        out = mask_omitted_cells(np.isnan(own), min_count=min_count)
        own[out] = 0.0  # adds nothing to the sums
        moments = column_moments(own)
        counts[label] = len(own) - out.sum(axis=0)
        sums[label], squares[label] = moments.sums, moments.squares
    return SelectionReply(counts, sums, squares)


def welch_statistics(sums: SelectionReply) -> Floats:
    """Return each column's largest absolute Welch t.

    Each class is compared with all others. The statistic is computed in exact integers and rounded
    once.

    Parameters
    ----------
    sums : SelectionReply
        Sums over all parties.

    Returns
    -------
    float64 array of shape (n_features,)
        Infinite where means differ and both variances are 0; NaN where the column is constant, or
        no class has two cells with two cells in the rest.

    Raises
    ------
    ProtocolError
        If the sums contradict each other.

    References
    ----------
    .. [1] Welch, "The generalization of 'Student's' problem when several different population
       variances are involved", Biometrika 34, 1947.

    Examples
    --------
    >>> x, y = np.array([[1.0, 5.0], [3.0, 5.0], [6.0, 5.0], [8.0, 5.0]]), np.array([0, 0, 1, 1])
    >>> welch_statistics(class_sums(x, y, 2, min_count=1)).round(4).tolist()
    [3.5355, nan]
    """
    return np.array([_largest_t(sums, column) for column in range(sums.counts.shape[1])])


def _largest_t(sums: SelectionReply, column: int) -> float:
    """Return the largest absolute t of a column, NaN if undefined."""
    each = [
        (int(n), _join_limbs(low), _join_limbs(high))
        for n, low, high in zip(
            sums.counts[:, column], sums.sums[:, column], sums.squares[:, column], strict=True
        )
        if n > 0
    ]
    if len(each) < 2:
        return math.nan
    whole = [sum(part) for part in zip(*each, strict=True)]
    alike = each[:1] if len(each) == 2 else each  # two classes have the same t
    found = [_welch_t(own, tuple(a - b for a, b in zip(whole, own, strict=True))) for own in alike]
    return max((t for t in found if not math.isnan(t)), default=math.nan)


def _welch_t(first: tuple[int, ...], second: tuple[int, ...]) -> float:
    """Return the absolute Welch t of two samples.

    This is the difference of their means divided by its standard error. With
    V = n * squares - sum**2, which is n (n - 1) times the variance, t**2 is the ratio below.
    """
    (n, a, aa), (m, b, bb) = first, second
    v, w = n * aa - a * a, m * bb - b * b
    if v < 0 or w < 0:
        raise ProtocolError("sums of classes contradict each other; a party sent wrong sums")
    if n < 2 or m < 2:
        return math.nan
    gap = (m * a - n * b) ** 2 * (n - 1) * (m - 1)
    noise = v * m * m * (m - 1) + w * n * n * (n - 1)
    if noise == 0:
        return math.inf if gap else math.nan
    try:
        return math.sqrt(gap / noise)
    except OverflowError:
        return math.inf


def _join_limbs(limbs: Integers) -> int:
    return sum(limb << 32 * k for k, limb in enumerate(limbs.tolist()))


def select_columns(statistics: Floats, n: int) -> Selection:
    """Select the n columns with the largest statistics.

    Ties go to the lower column; columns without a statistic come last.

    Examples
    --------
    >>> select_columns(np.array([0.0, np.nan, 2.0, 2.0]), 2).columns.tolist()
    [2, 3]
    """
    order = np.argsort(np.where(np.isnan(statistics), 1.0, -statistics), kind="stable")
    columns = np.sort(order[:n]).astype(np.int64)
    return Selection(len(statistics), columns, statistics[columns])
