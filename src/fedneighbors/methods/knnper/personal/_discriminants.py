"""Directions that separate classes at every client, for any meaning of labels.

Rows are mapped to random features, the same for all clients. Their scatter within and between the
classes of a client does not depend on the names of its classes. Summed over the clients, it gives
Fisher's discriminants, which use the rows of all clients.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np
from scipy.linalg import eigh
from scipy.special import ndtri

from fedneighbors._typing import Floats, Integers
from fedneighbors.neural._schedule import derive_seed

MAX_FEATURES = 1024
"""Maximum number of random features; a client sends 8 MiB of scatter for them."""

ROWS_PER_FEATURE = 2
"""Minimum number of rows, of all clients together, per random feature."""


RIDGE = 0.3
"""Ridge on the scatter within classes, in units of its mean eigenvalue."""

MIN_SCATTER = 1e-3
"""Mean eigenvalue, in squared cosines, below which scatter may be rounding only."""

_BLOCK_ROWS = 2048
"""Number of rows whose features are computed at once: 16 MiB."""

_PANEL_ROWS = 64


def n_features_for(n_rows: int) -> int:
    """Return the number of random features for a total row count."""
    return max(1, min(MAX_FEATURES, n_rows // ROWS_PER_FEATURE))


@lru_cache(maxsize=1)
def triangle(n_features: int) -> tuple[Integers, Integers]:
    """Return rows and columns of a matrix's upper triangle, row-wise."""
    return np.triu_indices(n_features)


@dataclass(frozen=True)
class RandomFeatures:
    """Random features of the kernel ``exp(-rate * d^2)`` (Rahimi and Recht, 2007).

    Parameters
    ----------
    seed : int
        Public seed, the same for all clients.
    rate : float
        Rate of the kernel, 0 or more.
    n_features : int
        Number of columns.
    """

    seed: int
    rate: float
    n_features: int

    def __post_init__(self) -> None:
        if not (self.seed >= 0 and 0 <= self.rate < np.inf):
            raise ValueError("seed or rate of random features is out of range")
        if self.n_features < 1:
            raise ValueError(f"expected 1 feature or more, got {self.n_features}")

    def of(self, rows: Floats) -> Floats:
        """Return ``cos(w x + b)`` for each row and feature.

        Shape (n_rows, n_features).

        Parameters
        ----------
        rows : float64 array of shape (n_rows, n_columns)
            Finite rows.
        """
        directions, phases = _draw(self.seed, rows.shape[1], self.n_features)
        return np.cos(_times(rows, np.sqrt(2 * self.rate) * directions) + phases)


def _times(rows: Floats, matrix: Floats) -> Floats:
    """Return ``rows @ matrix`` with bits independent of other rows.

    BLAS rounds the last rows of a factor differently from rows in whole panels.
    """
    found = np.empty((len(rows), matrix.shape[1]))
    panel = np.zeros((_PANEL_ROWS, rows.shape[1]))
    for first in range(0, len(rows), _PANEL_ROWS):
        some = rows[first : first + _PANEL_ROWS]
        panel[: len(some)] = some
        found[first : first + _PANEL_ROWS] = (panel @ matrix)[: len(some)]
    return found


@lru_cache(maxsize=1)
def _draw(seed: int, n_columns: int, n_features: int) -> tuple[Floats, Floats]:
    """Draw normal directions and uniform phases from version-independent bits.

    The bits do not depend on NumPy's version.
    """
    bits = np.random.Philox(key=derive_seed(seed, "random features"))
    uniform = (bits.random_raw((n_columns + 1) * n_features) >> 11).astype(np.float64) + 0.5
    table = (uniform * 2.0**-53).reshape(n_columns + 1, n_features)
    return ndtri(table[1:]), 2 * np.pi * table[0]


@dataclass(frozen=True, eq=False)
class Scatter:
    """Scatter of features within and between classes; additive over clients.

    Parameters
    ----------
    within : float64 array of shape (n_features, n_features)
        Sum over rows of the outer products of (row - mean of its class).
    between : float64 array of shape (n_features, n_features)
        Sum over rows of the outer products of (mean of its class - mean of the client).
    """

    within: Floats
    between: Floats

    @classmethod
    def of(cls, features: RandomFeatures, rows: Floats, labels: Integers) -> Self:
        """Return the scatter of one client's rows.

        Parameters
        ----------
        features : RandomFeatures
            Random features of the rows.
        rows : float64 array of shape (n_rows, n_columns)
            Finite rows.
        labels : int64 array of shape (n_rows,)
            Class of each row, from 0.
        """
        n_classes = int(labels.max(initial=0)) + 1
        products = np.zeros((features.n_features,) * 2)
        sums = np.zeros((n_classes, features.n_features))
        for first in range(0, len(rows), _BLOCK_ROWS):
            block = slice(first, first + _BLOCK_ROWS)
            columns = features.of(rows[block])
            products += columns.T @ columns
            sums += np.eye(n_classes)[labels[block]].T @ columns
        counts = np.bincount(labels, minlength=n_classes)
        present = counts > 0
        middles = sums[present] / np.sqrt(counts[present])[:, None]
        of_means = middles.T @ middles
        whole = sums.sum(axis=0) / np.sqrt(max(len(rows), 1))
        return cls(products - of_means, of_means - np.outer(whole, whole))


@dataclass(frozen=True, eq=False)
class Discriminants:
    """Projection of rows on the discriminants of the clients' scatter.

    Parameters
    ----------
    features : RandomFeatures
        Random features of rows.
    directions : float64 array of shape (n_features, n_discriminants)
        Directions with the largest ratio of scatter between classes to scatter within classes
        (Fisher, 1936). The scatter within, with the ridge, is 1 along each direction; between two
        directions both scatters are 0.
    """

    features: RandomFeatures
    directions: Floats

    def __post_init__(self) -> None:
        found, n_features = self.directions, self.features.n_features
        if found.ndim != 2 or not 0 < found.shape[1] <= len(found):
            raise ValueError("directions are not a table of discriminants")
        if len(found) != n_features or not np.isfinite(found).all():
            raise ValueError("directions are not finite, or do not cover all random features")

    @classmethod
    def best(cls, features: RandomFeatures, scatter: Scatter, n_classes: int) -> Self:
        """Return one direction less than classes, but at least one.

        This many separate the class means; more directions would show noise only.

        Parameters
        ----------
        features : RandomFeatures
            Features of the scatter.
        scatter : Scatter
            Sum over the clients.
        n_classes : int
            Number of classes with rows.
        """
        n = features.n_features
        mean = max(float(np.trace(scatter.within)) / n, MIN_SCATTER)
        within = scatter.within + RIDGE * mean * np.eye(n)
        kept = [n - min(max(n_classes - 1, 1), n), n - 1]
        found = eigh(scatter.between, within, subset_by_index=kept)[1]
        return cls(features, np.ascontiguousarray(found[:, ::-1]))

    def of(self, rows: Floats) -> Floats:
        """Return the discriminants of rows, shape (n_rows, n_discriminants).

        They are rounded to float32, the precision of files.
        """
        starts = range(0, max(len(rows), 1), _BLOCK_ROWS)
        columns = (self.features.of(rows[i : i + _BLOCK_ROWS]) for i in starts)
        whole = np.concatenate([_times(block, self.directions) for block in columns])
        return whole.astype(np.float32).astype(np.float64)
