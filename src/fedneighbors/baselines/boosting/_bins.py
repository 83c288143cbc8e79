"""Bins of columns, agreed on by counts that are summed over parties.

Numbers are mapped to integer keys in the same order, and parties count their keys below given cuts.
The coordinator divides intervals of many rows until each is a small part of a bin or a single
number. The bins depend only on the sums, so that they equal those of the pooled rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedneighbors._limits import MAX_CELLS
from fedneighbors._typing import Booleans, Floats, Integers
from fedneighbors.errors import ProtocolError
from fedneighbors.federation._loop import Coordinator, total
from fedneighbors.federation._messages import message

_LOW_BITS = np.int64(2**63 - 1)
_END = 0x7FF0 << 48  # key of infinity; finite numbers have keys between -_END and _END
MISSING_KEY = 2**63 - 1
"""Key of a missing cell."""

MAX_EDGES = 254
"""Maximum number of thresholds of a column: with the bin of missing cells, bins fit into 8 bits."""

_POSITIONS = 2048  # cuts of a column in an exchange, at least; each is one number and the next
_PARTS_OF_BIN = 4  # an interval is divided while it has more than this part of a bin's rows


def keys_of(x: Floats) -> Integers:
    """Return integers in the order of numbers; zeros are equal.

    Examples
    --------
    >>> keys_of(np.array([-1.5, -0.0, 0.0, 5e-324])).tolist()
    [-4609434218613702656, 0, 0, 1]
    """
    bits = np.ascontiguousarray(x).view(np.int64)  # sign and magnitude
    keys = np.where(bits < 0, -(bits & _LOW_BITS), bits)
    return np.where(np.isnan(x), MISSING_KEY, keys)


def numbers_of(keys: Integers) -> Floats:
    """Return the numbers of keys, the inverse of :func:`keys_of`."""
    return np.where(keys < 0, -np.abs(keys).view(np.float64), keys.view(np.float64))


@dataclass(frozen=True)
class Holdout:
    """Rows that a party holds out of training, a public function of the row.

    Parameters
    ----------
    fraction : float
        Expected fraction of rows, in [0, 1).
    seed : int
        Public seed.
    """

    fraction: float
    seed: int

    def __post_init__(self) -> None:
        if not 0 <= self.fraction < 1:
            raise ValueError(f"expected a held-out fraction in [0, 1), got {self.fraction}")

    def select(self, x: Floats) -> Booleans:
        """Return a mask of held-out rows; equal rows are treated alike."""
        # a multiplicative hash: each column is mixed in by an odd constant and a shift
        state = np.full(len(x), self.seed, np.int64).view(np.uint64)
        for column in x.T:
            state = (state ^ keys_of(column).view(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
            state ^= state >> np.uint64(29)
        uniform = (state * np.uint64(0xBF58476D1CE4E5B9) >> np.uint64(11)) * 2.0**-53
        return np.asarray(uniform < self.fraction)


@message
class RankReply:
    """Numbers of keys below each cut, int64; to be added up over parties."""

    counts: Integers


@message
class RankRequest:
    """Request for the number of values below cuts, over the rows of training.

    ``cuts`` are keys. Those of column ``columns[k]`` begin at ``starts[k]``, and ascend.
    """

    reply: ClassVar[type] = RankReply
    holdout: Holdout
    columns: Integers
    starts: Integers
    cuts: Integers

    def __post_init__(self) -> None:
        bounds = np.append(self.starts, len(self.cuts))
        if self.columns.ndim != 1 or self.starts.shape != self.columns.shape:
            raise ValueError("expected one start for each column")
        if (self.starts[:1] != 0).any() or (np.diff(bounds) < 0).any() or (self.columns < 0).any():
            raise ValueError("starts must ascend from 0, and columns must exist")
        if self.cuts.ndim != 1 or len(self.cuts) > MAX_CELLS:
            raise ValueError(f"expected at most {MAX_CELLS} cuts")

    def check(self, party: str, reply: RankReply) -> None:  # noqa: ARG002 - runtimes name it
        """Check the number of counts."""
        if reply.counts.shape != self.cuts.shape:
            raise ValueError(f"expected counts of {len(self.cuts)} cuts")


def sum_replies(request: Any, during: str) -> Coordinator[Any]:
    """Request a sum over all parties, and check it like a reply."""
    replies = yield total(request)
    summed = replies.summed(during)
    try:
        request.check("all", summed)  # nothing else validates a masked sum
    except ValueError as error:
        raise ProtocolError(f"{during}: {error}") from None
    return summed


class _Intervals:
    """Intervals of one column: their bounds, and the number of keys below each bound."""

    def __init__(self, max_bins: int) -> None:
        self._max_bins = max_bins
        whole = np.array([-_END, _END])
        self.cuts = np.append(_divide(whole[:1], whole[1:]), _END)
        self._bounds, self._below = whole[:1], np.zeros(1, np.int64)

    def refine(self, counts: Integers) -> None:
        """Divide the intervals at the cuts, and choose the next cuts."""
        bounds = np.concatenate([self._bounds, self.cuts])
        order = np.argsort(bounds, kind="stable")
        self._bounds = bounds[order]
        self._below = np.concatenate([self._below, counts])[order]
        sizes = np.diff(self._below)
        if (sizes < 0).any():
            raise ProtocolError("counts of values below ascending cuts do not ascend")
        # bounds between two empty intervals are dropped: most cuts hit no value
        is_empty = np.concatenate([[False], sizes == 0, [False]])
        kept = ~(is_empty[:-1] & is_empty[1:])
        self._bounds, self._below = self._bounds[kept], self._below[kept]
        sizes = np.diff(self._below)
        limit = max(1, int(self._below[-1]) // (_PARTS_OF_BIN * self._max_bins))
        chosen = np.flatnonzero(
            (sizes > limit) & (_widths(self._bounds[:-1], self._bounds[1:]) > 1)
        )
        self.cuts = _divide(self._bounds[chosen], self._bounds[chosen + 1])

    def edges(self) -> Floats:
        """Return thresholds between bins of about equal numbers of rows."""
        filled = np.flatnonzero(np.diff(self._below))
        if not len(filled):
            return np.zeros(0)
        lower = self._bounds[filled[:-1] + 1] - 1  # the last key of an interval
        upper = self._bounds[filled[1:]]
        below = self._below[filled[1:]]
        if len(filled) > self._max_bins:
            targets = self._below[-1] * np.arange(1, self._max_bins) / self._max_bins
            right = np.clip(np.searchsorted(below, targets), 1, len(below) - 1)
            is_left = targets - below[right - 1] <= below[right] - targets
            chosen = np.unique(right - is_left)
            lower, upper = lower[chosen], upper[chosen]
        low, high = numbers_of(lower), numbers_of(upper)
        middle = low / 2 + high / 2
        return np.where((low <= middle) & (middle < high), middle, low)


def _widths(low: Integers, high: Integers) -> npt.NDArray[np.uint64]:
    """Return the number of keys in each interval; it may exceed 2**63."""
    return high.view(np.uint64) - low.view(np.uint64)


def _divide(low: Integers, high: Integers) -> Integers:
    """Return ascending cuts of intervals, which ascend and do not overlap."""
    n_parts = max(2, _POSITIONS // max(1, len(low)))
    # multiples of a power of two: short fractions and integers are among them, and are cut out at
    # once by the next key
    lengths = np.frexp(_widths(low, high).astype(np.float64))[1]
    shifts = np.maximum(0, lengths - n_parts.bit_length()).astype(np.int64)
    first = -(-low >> shifts)
    sizes = -(-high >> shifts) - first
    offsets = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    numbers = (np.repeat(first, sizes) + offsets) << np.repeat(shifts, sizes)
    cuts = np.column_stack([numbers, numbers + 1]).ravel()
    is_inside = (cuts > np.repeat(low, 2 * sizes)) & (cuts < np.repeat(high, 2 * sizes))
    cuts = cuts[is_inside]
    return cuts[np.diff(cuts, prepend=-_END) > 0]


def agree_bins(n_features: int, *, max_bins: int, holdout: Holdout) -> Coordinator[list[Floats]]:
    """Return the thresholds between the bins of each column.

    Each column has at most ``max_bins`` bins for its values.
    """
    columns = [_Intervals(max_bins) for _ in range(n_features)]
    open_columns: Sequence[int] = range(n_features)
    while open_columns:
        lengths = [len(columns[j].cuts) for j in open_columns]
        starts = np.cumsum([0, *lengths])
        request = RankRequest(
            holdout,
            np.array(open_columns, np.int64),
            starts[:-1],
            np.concatenate([columns[j].cuts for j in open_columns]),
        )
        summed = yield from sum_replies(request, "the counts of values")
        for j, counts in zip(open_columns, np.split(summed.counts, starts[1:-1]), strict=True):
            columns[j].refine(counts)
        open_columns = [j for j in open_columns if len(columns[j].cuts)]
    return [column.edges() for column in columns]


def bin_rows(x: Floats, edges: Sequence[Floats]) -> npt.NDArray[np.uint8]:
    """Return the bin of each cell, shape (n_features, n_rows).

    The last bin of a column, after those of its values, has the missing cells.
    """
    bins = np.empty((x.shape[1], len(x)), np.uint8)
    for j, column_edges in enumerate(edges):
        column = x[:, j]
        bins[j] = np.searchsorted(column_edges, column)
        bins[j, np.isnan(column)] = len(column_edges) + 1
    return bins
