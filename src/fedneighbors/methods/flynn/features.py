"""From a table to what is hashed: standardizing with exact constants, then expanding."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors.kernels.exactsum import QUANTUM_BITS, exact_moments

__all__ = [
    "EXPANSIONS",
    "FeatureMap",
    "Moments",
    "choose_expansion",
    "column_moments",
    "standardizer",
]

EXPANSIONS = ("none", "mirror", "thermometer")
LOW_DIMENSION = 5
N_THRESHOLDS = 31
BLOCK_ROWS = 2048

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


def standardizer(moments: Moments) -> tuple[Floats, Floats]:
    """Return mean and standard deviation of each column, correctly rounded.

    The variance is formed in exact integers, so nothing cancels; a constant column has scale 1.

    Parameters
    ----------
    moments : Moments
        Of at least one row.

    Returns
    -------
    mean, scale : float64 arrays of shape (n_features,)
        In the unit of the columns.
    """
    n = moments.n_rows
    mean = np.empty(len(moments.sums))
    scale = np.empty(len(moments.sums))
    for j, (low, high) in enumerate(zip(moments.sums, moments.squares, strict=True)):
        first, second = _integer(low), _integer(high)
        spread = n * second - first * first  # n**2 * variance, in units of 2**-400
        mean[j] = first / (n << QUANTUM_BITS)
        scale[j] = math.sqrt(spread / (n * n << 2 * QUANTUM_BITS)) or 1.0
    return mean, scale


def _integer(limbs: npt.NDArray[np.int64]) -> int:
    return sum(int(limb) << 32 * k for k, limb in enumerate(limbs))


def choose_expansion(expand: str | None, n_features: int) -> str:
    """Return the expansion that ``expand`` means for a table of ``n_features`` columns.

    Raises
    ------
    ValueError
        If ``expand`` is none of ``"auto"``, ``None`` and the names in ``EXPANSIONS``.
    """
    if expand is None:
        return "none"
    if expand == "auto":
        return "thermometer" if n_features <= LOW_DIMENSION else "mirror"
    if expand not in EXPANSIONS:
        raise ValueError(f"expected expand 'auto', None or one of {EXPANSIONS}, got {expand!r}")
    return expand


@dataclass(frozen=True)
class FeatureMap:
    """What a row becomes before it is hashed; the same at every party.

    Parameters
    ----------
    n_features : int
        Columns of the table.
    expansion : str
        ``"none"``; ``"mirror"``: [z, -z]; ``"thermometer"``: for each column and each of 31 fixed
        thresholds t, the indicators z > t and z <= t.
    mean, scale : float64 arrays of shape (n_features,) or None
        z = (x - mean) / scale; None leaves z = x.
    """

    n_features: int
    expansion: str
    mean: Floats | None = None
    scale: Floats | None = None

    @property
    def n_outputs(self) -> int:
        """Number of columns after the expansion."""
        factor = {"none": 1, "mirror": 2, "thermometer": 2 * N_THRESHOLDS}[self.expansion]
        return factor * self.n_features

    def same_as(self, other: "FeatureMap") -> bool:
        """Return whether both maps turn every row into the same."""
        return (self.n_features, self.expansion) == (
            other.n_features,
            other.expansion,
        ) and np.array_equal(self._constants(), other._constants())

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
            z = (np.asarray(x, np.float64) - self.mean) / self.scale
        if self.expansion == "mirror":
            wide = z.astype(np.int64) if z.dtype.kind in "ui" else z
            return np.hstack([wide, -wide])
        if self.expansion == "thermometer":
            above = np.asarray(z, np.float64)[:, :, None] > _thresholds()
            above = above.reshape(len(z), z.shape[1] * N_THRESHOLDS)
            return np.hstack([above, ~above]).view(np.uint8)
        return z


def _thresholds() -> Floats:
    """Return quantiles of the standard normal, in equal steps of probability."""
    from scipy.special import ndtri

    levels = np.arange(1, N_THRESHOLDS + 1) / (N_THRESHOLDS + 1)
    return np.asarray(ndtri(levels), np.float64)


def blocks(x: Any) -> Any:
    """Yield consecutive dense blocks of rows of a dense or sparse table."""
    for start in range(0, x.shape[0], BLOCK_ROWS):
        part = x[start : start + BLOCK_ROWS]
        yield part.toarray() if hasattr(part, "toarray") else part
