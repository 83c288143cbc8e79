"""The conditional vector: which category of which nominal column a generated row should have."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats, Singles

Codes = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Picks:
    """Which column and which of its categories was picked for each row of a batch.

    Parameters
    ----------
    columns : int64 array of shape (n_rows,)
        Place among the nominal columns.
    categories : int64 array of shape (n_rows,)
        Category of that column.
    """

    columns: Codes
    categories: Codes


@dataclass(frozen=True, eq=False)
class Conditions:
    """Draws conditions and writes them as conditional vectors.

    Parameters
    ----------
    counts : tuple of int64 arrays
        For each nominal column, how many rows of the fit have each of its categories.

    References
    ----------
    .. [1] Xu et al., "Modeling Tabular Data using Conditional GAN", NeurIPS 2019, section 4.3.
    """

    counts: tuple[Codes, ...]

    @cached_property
    def starts(self) -> Codes:
        """First entry of each column in the conditional vector."""
        return np.cumsum([0, *(len(count) for count in self.counts)])

    @property
    def width(self) -> int:
        """Entries of a conditional vector; 0 without nominal columns."""
        return int(self.starts[-1])

    @cached_property
    def _ladders(self) -> tuple[Floats, Floats]:
        """Upper ends of the categories on the unit interval: by frequency and by its logarithm.

        The ladder of column c occupies (c, c + 1], so that one search serves all columns.
        """
        plain = [place + _ladder(count) for place, count in enumerate(self.counts)]
        damped = [place + _ladder(np.log1p(count)) for place, count in enumerate(self.counts)]
        return np.concatenate(plain), np.concatenate(damped)

    def draw(self, n_rows: int, rng: np.random.Generator, *, damped: bool) -> Picks:
        """Pick a column, all equally likely, then one of its categories.

        Parameters
        ----------
        n_rows : int
            Size of the batch.
        rng : numpy.random.Generator
            Source of the picks.
        damped : bool
            Categories by the logarithm of their frequency, as in training, so that rare ones are
            learned too; else by their frequency, as in sampling.
        """
        columns = rng.integers(len(self.counts), size=n_rows)
        ladder = self._ladders[damped]
        entries = np.searchsorted(ladder, columns + rng.random(n_rows), side="right")
        return Picks(columns, entries - self.starts[columns])

    def vectors(self, picks: Picks) -> Singles:
        """Conditional vectors, float32 of shape (n_rows, width): a single 1 in each row."""
        made = np.zeros((len(picks.columns), self.width), np.float32)
        made[np.arange(len(made)), self.starts[picks.columns] + picks.categories] = 1.0
        return made


@dataclass(frozen=True, eq=False)
class RowsByCategory:
    """Training by sampling: a real row that meets a condition.

    Parameters
    ----------
    rows : tuple of int64 arrays of shape (n_rows,)
        For each nominal column, all rows in order of their category.
    starts : tuple of int64 arrays of shape (n_categories + 1,)
        Where each category begins there.
    """

    rows: tuple[Codes, ...]
    starts: tuple[Codes, ...]

    @classmethod
    def of(cls, codes: Codes, widths: Sequence[int]) -> "RowsByCategory":
        """Sort the rows of the fit.

        Parameters
        ----------
        codes : int64 array of shape (n_rows, n_nominal)
            Category of each row in each nominal column.
        widths : sequence of int
            Categories of each nominal column.
        """
        rows = tuple(np.argsort(column, kind="stable") for column in codes.T)
        starts = tuple(
            np.concatenate([[0], np.cumsum(np.bincount(column, minlength=width))])
            for column, width in zip(codes.T, widths, strict=True)
        )
        return cls(rows, starts)

    def conditions(self) -> Conditions:
        """Conditions with the frequencies of these rows."""
        return Conditions(tuple(np.diff(start) for start in self.starts))

    def draw(self, picks: Picks, rng: np.random.Generator) -> Codes:
        """Rows that meet the conditions, each drawn from all that do, int64."""
        chosen = np.empty(len(picks.columns), np.int64)
        share = rng.random(len(chosen))
        for column, (rows, starts) in enumerate(zip(self.rows, self.starts, strict=True)):
            mine = np.flatnonzero(picks.columns == column)
            first = starts[picks.categories[mine]]
            count = starts[picks.categories[mine] + 1] - first
            chosen[mine] = rows[first + (share[mine] * count).astype(np.int64)]
        return chosen


def _ladder(weights: npt.NDArray[np.floating] | Codes) -> Floats:
    """Cumulated shares; the last is exactly 1."""
    ladder: Floats = np.cumsum(weights, dtype=np.float64)
    ladder /= ladder[-1]
    return ladder
