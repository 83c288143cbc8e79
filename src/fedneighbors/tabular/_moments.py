"""Exact sums of the columns of tables, which parties add up without losing a bit."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats
from fedneighbors.errors import ProtocolError
from fedneighbors.kernels._exactsum import QUANTUM_BITS, exact_moments

BLOCK_ROWS = 512


@dataclass(frozen=True)
class Moments:
    """Exact sums over rows, which parties add up.

    Parameters
    ----------
    n_rows : int
        Rows summed over.
    sums : int64 array of shape (n_features, 13)
        Sum of each column in fixed point, see :mod:`fedneighbors.kernels._exactsum`.
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
    >>> mean, deviation = mean_and_deviation(column_moments(np.array([[1.0], [3.0]])))
    >>> float(mean[0]), float(deviation[0])
    (2.0, 1.0)
    """
    n_rows, n_features = x.shape
    sums, squares = exact_moments(np.zeros((0, n_features)))
    for block in blocks(x):
        more = exact_moments(np.asarray(block, np.float64))
        sums += more[0]
        squares += more[1]
    return Moments(n_rows, sums, squares)


def mean_and_deviation(moments: Moments) -> tuple[Floats, Floats]:
    """Return mean and standard deviation of each column, correctly rounded.

    They are formed in exact integers, where nothing cancels.

    Parameters
    ----------
    moments : Moments
        Of at least one row.

    Returns
    -------
    mean, deviation : float64 arrays of shape (n_features,)
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
    return mean, deviation


def _integer(limbs: npt.NDArray[np.int64]) -> int:
    return sum(int(limb) << 32 * k for k, limb in enumerate(limbs))


def blocks(x: Any) -> Iterator[npt.NDArray[Any]]:
    """Yield consecutive dense blocks of rows of a dense or sparse table."""
    for start in range(0, x.shape[0], BLOCK_ROWS):
        part = x[start : start + BLOCK_ROWS]
        yield part.toarray() if hasattr(part, "toarray") else part
