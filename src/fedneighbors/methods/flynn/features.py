"""From a table to what is hashed: standardizing with exact constants, then expanding."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors.errors import ProtocolError
from fedneighbors.kernels.exactsum import QUANTUM_BITS, exact_moments
from fedneighbors.methods.flynn.expansion import EXPANSIONS, expand, n_expanded

__all__ = [
    "FeatureMap",
    "Moments",
    "blocks",
    "check_scaling",
    "column_moments",
    "scales",
    "standardizer",
]

ALIKE_RATIO = 6.0
FARTHEST = 2.0**20
"""Standardized values are cut here: farther than a million standard deviations, sums would lose
their last bits, and rows could make the hash overflow."""

BLOCK_ROWS = 512

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Moments:
    """Exact sums over rows, which parties add up.

    Parameters
    ----------
    n_rows : int
        Rows summed over.
    sums : int64 array of shape (n_features, 13)
        Sum of each column in fixed point, see :mod:`fedneighbors.kernels.exactsum`.
    squares : int64 array of shape (n_features, 26)
        Sum of each column's squares in fixed point.
    """

    n_rows: int
    sums: npt.NDArray[np.int64]
    squares: npt.NDArray[np.int64]


def column_moments(x: Any) -> Moments:
    """Return the exact moments of the columns of a table, dense or sparse.

    Examples
    --------
    >>> mean, scale = standardizer(column_moments(np.array([[1.0], [3.0]])))
    >>> float(mean[0]), float(scale[0])
    (2.0, 1.0)
    """
    n_rows, n_features = x.shape
    sums, squares = exact_moments(np.zeros((0, n_features)))
    for block in blocks(x):
        more = exact_moments(np.asarray(block, np.float64))
        sums += more[0]
        squares += more[1]
    return Moments(n_rows, sums, squares)


def standardizer(moments: Moments, scaling: bool | str = True) -> tuple[Floats, Floats]:
    """Return the mean of each column and what to divide it by.

    Means and variances are correctly rounded: they are formed in exact integers, where nothing
    cancels.

    Parameters
    ----------
    moments : Moments
        Of at least one row.
    scaling : {"feature", "global"} or True
        ``"feature"`` divides each column by its own standard deviation; ``"global"`` divides all
        by their root mean square, which keeps the relative size of columns that share a unit
        (pixels, spectra). True decides: global when the largest standard deviation is at most six
        times the median one. A constant column is divided by 1.

    Returns
    -------
    mean, scale : float64 arrays of shape (n_features,)
        In the unit of the columns.

    Raises
    ------
    ProtocolError
        If no table has such moments.
    """
    n = moments.n_rows
    mean = np.empty(len(moments.sums))
    deviation = np.empty(len(moments.sums))
    for j, (low, high) in enumerate(zip(moments.sums, moments.squares, strict=True)):
        first, second = _integer(low), _integer(high)
        spread = n * second - first * first  # n**2 * variance, in units of 2**-400
        if spread < 0:
            raise ProtocolError("column moments contradict each other; a party sent wrong sums")
        mean[j] = first / (n << QUANTUM_BITS)
        deviation[j] = math.sqrt(spread / (n * n << 2 * QUANTUM_BITS))
    return mean, scales(deviation, scaling)


def scales(deviation: Floats, scaling: bool | str = True) -> Floats:
    """Return what to divide each column by, see :func:`standardizer`.

    Parameters
    ----------
    deviation : float64 array of shape (n_features,)
        Standard deviation of each column.
    scaling : {"feature", "global"} or True
        As for :func:`standardizer`.
    """
    varying = deviation[deviation > 0]
    if len(varying) == 0:
        return np.ones(len(deviation))
    alike = varying.max() <= ALIKE_RATIO * np.median(varying)
    if scaling == "global" or (scaling is True and alike):
        common = math.sqrt(math.fsum(varying * varying) / len(varying))
        return np.full(len(deviation), common)
    return np.where(deviation > 0, deviation, 1.0)


def check_scaling(standardize: bool | str) -> None:
    """Refuse a ``standardize`` that is neither a boolean, ``"feature"`` nor ``"global"``."""
    if not isinstance(standardize, bool) and standardize not in ("feature", "global"):
        raise ValueError(
            f"expected standardize True, False, 'feature' or 'global', got {standardize!r}"
        )


def _integer(limbs: npt.NDArray[np.int64]) -> int:
    return sum(int(limb) << 32 * k for k, limb in enumerate(limbs))


@dataclass(frozen=True)
class FeatureMap:
    """What a row becomes before it is hashed; the same at every party.

    Parameters
    ----------
    n_features : int
        Columns of the table.
    expansion : str
        A name in :data:`~.expansion.EXPANSIONS`.
    mean, scale : float64 arrays of shape (n_features,) or None
        z = (x - mean) / scale; None leaves z = x.
    seed : int
        Public seed, for expansions that draw.

    Raises
    ------
    ValueError
        If the expansion is unknown or the constants do not fit.
    """

    n_features: int
    expansion: str
    mean: Floats | None = None
    scale: Floats | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.expansion not in EXPANSIONS:
            raise ValueError(f"expected an expansion among {EXPANSIONS}, got {self.expansion!r}")
        for constants in (self.mean, self.scale):
            if constants is not None and constants.shape != (self.n_features,):
                raise ValueError(
                    f"expected {self.n_features} standardizing constants, got {constants.shape}"
                )
            if constants is not None and not np.isfinite(constants).all():
                raise ValueError("expected finite standardizing constants")
        if (self.mean is None) != (self.scale is None):
            raise ValueError("expected mean and scale, or neither of them")
        if self.scale is not None and not (self.scale > 0).all():
            raise ValueError("expected positive scales")

    @property
    def n_outputs(self) -> int:
        """Number of columns after the expansion."""
        return n_expanded(self.expansion, self.n_features)

    @property
    def scaling(self) -> bool | str:
        """The ``standardize`` that leads to these constants on the same table."""
        if self.scale is None:
            return False
        return "global" if (self.scale == self.scale[:1]).all() else "feature"

    def same_as(self, other: "FeatureMap") -> bool:
        """Return whether both maps turn every row into the same."""
        mine = (self.n_features, self.expansion, self.seed)
        theirs = (other.n_features, other.expansion, other.seed)
        return mine == theirs and np.array_equal(self._constants(), other._constants())

    def _constants(self) -> Floats:
        if self.mean is None or self.scale is None:
            return np.zeros((0, 2))
        return np.stack([self.mean, self.scale], axis=1)

    def apply(self, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the rows as they are hashed, of shape (n_rows, n_outputs).

        Untouched rows (no constants, no expansion) keep their dtype.
        """
        z = x
        if self.mean is not None and self.scale is not None:
            with np.errstate(over="ignore"):  # what overflows is cut below
                z = (np.asarray(x, np.float64) - self.mean) / self.scale
            np.clip(z, -FARTHEST, FARTHEST, out=z)
        return expand(z, self.expansion, self.seed)


def blocks(x: Any) -> Iterator[npt.NDArray[Any]]:
    """Yield consecutive dense blocks of rows of a dense or sparse table."""
    for start in range(0, x.shape[0], BLOCK_ROWS):
        part = x[start : start + BLOCK_ROWS]
        yield part.toarray() if hasattr(part, "toarray") else part
