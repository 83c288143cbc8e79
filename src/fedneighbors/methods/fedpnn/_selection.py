"""Column selection by Welch's t of each class against the rest, from exact sums."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedneighbors._limits import MAX_COLUMNS
from fedneighbors._typing import Floats, Integers
from fedneighbors.errors import ProtocolError
from fedneighbors.federation._messages import message
from fedneighbors.kernels._exactsum import N_SQUARE_LIMBS, N_SUM_LIMBS
from fedneighbors.methods.fedpnn._scaling import MAX_ROWS, check_columns
from fedneighbors.methods.fedpnn._suppression import suppress_few_cells
from fedneighbors.tabular._schema import check_cells, column_moments


@message
class SelectionReply:
    """Exact sums of each column by class, to be added up over parties.

    Each pair of class and column takes 320 bytes: 7 MB for two classes and 10,936 columns.

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
    """Request for the sums from which columns are selected."""

    reply: ClassVar[type] = SelectionReply
    single_use: ClassVar[str] = "always"
    classes: tuple[str | int | float | bool, ...]
    n_features: int
    min_count: int

    def __post_init__(self) -> None:
        if not 0 < self.n_features <= MAX_COLUMNS or self.min_count < 1:
            raise ValueError("n_features or min_count is out of range")
        n_limbs = 1 + N_SUM_LIMBS + N_SQUARE_LIMBS
        check_cells("sums", len(self.classes), self.n_features, n_limbs)

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
    """Selected columns of a table.

    Parameters
    ----------
    n_features : int
        Number of columns of the table.
    columns : int64 array of shape (n_selected,)
        Positions of the selected columns, ascending.
    statistics : float64 array of shape (n_selected,)
        Largest absolute t of each selected column. Infinite if class means differ and the variances
        within classes are 0; NaN if t is undefined.
    """

    n_features: int
    columns: Integers
    statistics: Floats

    def __post_init__(self) -> None:
        check_columns(self.columns, self.n_features)
        if self.statistics.shape != self.columns.shape:
            raise ValueError("columns and statistics differ in number")


def class_sums(x: Floats, labels: Integers, n_classes: int, *, min_count: int) -> SelectionReply:
    """Return the sums of a party's table by class and column.

    Missing cells are omitted. If fewer than ``min_count`` cells of a class are missing in a column,
    they count as the mean of its other cells, so that counts do not disclose few missing cells and
    the sum is a multiple of the sum of all cells. If fewer are present, none is counted.

    Examples
    --------
    >>> sums = class_sums(np.array([[1.0], [2.0], [np.nan]]), np.zeros(3, int), 1, min_count=2)
    >>> sums.counts.tolist()
    [[3]]

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
    empty = column_moments(x[:0])
    sums = np.zeros((n_classes, *empty.sums.shape), np.int64)
    squares = np.zeros((n_classes, *empty.squares.shape), np.int64)
    for label in np.unique(labels):
        rows = x[labels == label]
        class_rows = suppress_few_cells(rows, np.zeros(len(rows), np.int64), min_count=min_count)
        omitted = np.isnan(class_rows)
        n_missing = omitted.sum(axis=0)
        for j in np.flatnonzero((n_missing > 0) & (n_missing < min_count)):
            class_rows[omitted[:, j], j] = class_rows[~omitted[:, j], j].mean()
        omitted = np.isnan(class_rows)
        class_rows[omitted] = 0.0  # adds nothing to the sums
        moments = column_moments(class_rows)
        counts[label] = len(class_rows) - omitted.sum(axis=0)
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
        Infinite if means differ and both variances are 0. NaN if the column is constant, or if for
        every class, the class or the rest has fewer than two cells.

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
    samples = [
        (int(n), _join_limbs(low), _join_limbs(high))
        for n, low, high in zip(
            sums.counts[:, column], sums.sums[:, column], sums.squares[:, column], strict=True
        )
        if n > 0
    ]
    if len(samples) < 2:
        return math.nan
    total = [sum(part) for part in zip(*samples, strict=True)]
    compared = samples[:1] if len(samples) == 2 else samples  # two classes have the same |t|
    rests = [tuple(a - b for a, b in zip(total, own, strict=True)) for own in compared]
    return max((t for t in map(_welch_t, compared, rests) if not math.isnan(t)), default=math.nan)


def _welch_t(first: tuple[int, ...], second: tuple[int, ...]) -> float:
    """Return the absolute Welch t of two samples.

    This is the difference of their means divided by its standard error. A sample is its size, sum,
    and sum of squares. With v = n * squares - sum**2, which is n (n - 1) times the variance, t**2
    is ``numerator / denominator``.
    """
    (n, a, aa), (m, b, bb) = first, second
    v, w = n * aa - a * a, m * bb - b * b
    if v < 0 or w < 0:
        raise ProtocolError("sums of classes contradict each other; a party sent wrong sums")
    if n < 2 or m < 2:
        return math.nan
    numerator = (m * a - n * b) ** 2 * (n - 1) * (m - 1)
    denominator = v * m * m * (m - 1) + w * n * n * (n - 1)
    if denominator == 0:
        return math.inf if numerator else math.nan
    try:
        return math.sqrt(numerator / denominator)
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
