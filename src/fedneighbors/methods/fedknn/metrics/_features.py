"""Few features of long vectors, whose distances never exceed those of the vectors.

Euclidean: coordinates along the directions in which a sample varies most, and the length of what
they leave out. With ``a`` and ``b`` the coordinates of two vectors along orthonormal directions and
``r`` and ``s`` the lengths of the rest, ``|a - b|**2 + (r - s)**2`` is at most the squared
distance. Manhattan: sums over stretches of neighbouring columns.
"""

import numpy as np

from fedneighbors._typing import Floats
from fedneighbors.kernels.vectors._distances import absolute_sums, square_sums

_N_FEATURES = 32
_N_SAMPLED = 4096
_N_ITERATIONS = 4
_ROWS_PER_BLOCK = 8192

# Features are kept as float32: half the memory to read, and the bound barely lower. What is below
# 2**-149 vanishes there.
_STORAGE = 2.0**-23
_UNDERFLOW = 2.0**-140


class DirectionFeatures:
    """Features of rows under the Euclidean distance.

    Parameters
    ----------
    rows : float64 array of shape (n_rows, n_columns)
        Of more columns than features, 32; of magnitudes below 2**60.
    """

    def __init__(self, rows: Floats) -> None:
        sample = rows[:: max(1, len(rows) // _N_SAMPLED)]
        self._center = sample.mean(axis=0)
        self._directions = _main_directions(sample - self._center, _N_FEATURES - 1)
        self._features = np.empty((len(rows), _N_FEATURES), np.float32)
        self._longest = 0.0
        for start in range(0, len(rows), _ROWS_PER_BLOCK):
            block = rows[start : start + _ROWS_PER_BLOCK]
            features, longest = self._project(block)
            self._features[start : start + len(block)] = features
            self._longest = max(self._longest, longest)

    def bounds(self, query: Floats) -> Floats:
        """Return a lower bound of each row's Euclidean distance to the query, not negative."""
        features, length = self._project(query[np.newaxis])
        found = np.sqrt(square_sums(self._features, features[0]))
        return np.maximum(found - self._margin(length), 0.0)

    def _project(self, rows: Floats) -> tuple[Floats, float]:
        """Return features of rows and the greatest distance from the center."""
        centered = rows - self._center
        along = centered @ self._directions
        squares = (centered * centered).sum(axis=1)
        rest = np.sqrt(np.maximum(squares - (along * along).sum(axis=1), 0.0))
        return np.column_stack([along, rest]), float(np.sqrt(squares.max()))

    def _margin(self, length: float) -> float:
        # Products and squares of n columns err by less than n 2**-50 of the squared lengths, the
        # directions' orthogonality included (checked when they are made); the root of that is
        # what can be missing from the length of the rest.
        n_columns = len(self._center)
        rounding = np.sqrt((n_columns + 64) * 2.0**-48) + _STORAGE
        return float(rounding * (self._longest + length)) + _UNDERFLOW


class StretchFeatures:
    """Features of rows under the Manhattan distance.

    Parameters
    ----------
    rows : float64 array of shape (n_rows, n_columns)
        Of more columns than features, 32; of magnitudes below 2**60.
    """

    def __init__(self, rows: Floats) -> None:
        n_columns = rows.shape[1]
        self._starts = np.arange(_N_FEATURES) * n_columns // _N_FEATURES
        self._rounding = (n_columns + 64) * 2.0**-50 + _STORAGE
        self._features = np.add.reduceat(rows, self._starts, axis=1).astype(np.float32)
        self._longest = float(absolute_sums(rows, np.zeros(n_columns)).max())

    def bounds(self, query: Floats) -> Floats:
        """Return a lower bound of each row's Manhattan distance to the query, not negative."""
        found = absolute_sums(self._features, np.add.reduceat(query, self._starts))
        length = float(np.abs(query).sum())
        margin = self._rounding * (self._longest + length) + _UNDERFLOW
        return np.asarray(np.maximum(found - margin, 0.0))


def _main_directions(centered: Floats, n_directions: int) -> Floats:
    """Return orthonormal columns that span most of what varies, by subspace iteration.

    Any orthonormal columns give valid bounds, so the start may be any: it is always the same.
    """
    start = np.random.default_rng(0).standard_normal((centered.shape[1], n_directions))
    directions = np.linalg.qr(start)[0]
    for _ in range(_N_ITERATIONS):
        directions = np.linalg.qr(centered.T @ (centered @ directions))[0]
    excess = np.abs(directions.T @ directions - np.eye(n_directions)).sum(axis=0).max()
    if not excess < centered.shape[1] * 2.0**-50:
        raise ArithmeticError(f"directions are not orthonormal: off by {excess:.3g}")
    return np.asarray(directions)
