"""From a table to what is hashed: standardizing with exact constants, then expanding."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats
from fedneighbors.methods.flynn._expansion import EXPANSIONS, expand, n_expanded
from fedneighbors.tabular._moments import Moments, mean_and_deviation

ALIKE_RATIO = 6.0
FARTHEST = 2.0**20
"""Standardized values are cut here: farther than a million standard deviations, sums would lose
their last bits, and rows could make the hash overflow."""


def standardizer(moments: Moments, scaling: bool | str = True) -> tuple[Floats, Floats]:
    """Return the mean of each column and what to divide it by.

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
    mean, deviation = mean_and_deviation(moments)
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


def hashable_numbers(x: Any) -> Any:
    """Return a table in a dtype that the kernels hash."""
    if x.dtype.kind == "b":
        return x.astype(np.uint8)
    if x.dtype == np.float16:
        return x.astype(np.float32)
    if x.dtype == np.longdouble:
        return x.astype(np.float64)
    if x.dtype in (np.uint32, np.uint64):
        return x.astype(np.int64 if x.dtype == np.uint32 else np.float64)
    return x
