"""Directions that separate classes at every client, whatever the labels mean.

Rows are described by random features, the same for all clients. How these scatter within and
between the classes of a client does not depend on what its classes are called; summed over the
clients it gives Fisher's discriminants, which know from all rows what matters in one.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np
from scipy.linalg import eigh
from scipy.special import ndtri

from fedneighbors._typing import Floats, Integers
from fedneighbors.neural._schedule import words_seed

MOST_FEATURES = 1024
"""Whose scatter is 8 MiB for a client to send."""

ROWS_PER_FEATURE = 2
"""Of all clients together, at least."""


RIDGE = 0.3
"""What is added to the scatter within classes, in its mean eigenvalue."""

LEAST_SCATTER = 1e-3
"""Mean eigenvalue, in squares of cosines, below which scatter may be rounding alone."""

_BLOCK_ROWS = 2048
"""Whose features are held at once: 16 MiB."""

_PANEL_ROWS = 64


def n_features_for(n_rows: int) -> int:
    """Return the number of random features for a total row count."""
    return max(1, min(MOST_FEATURES, n_rows // ROWS_PER_FEATURE))


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
        From which they follow, alike for all clients. Public.
    rate : float
        0 or more.
    n_features : int
        Columns.
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
            Finite.
        """
        directions, phases = _drawn(self.seed, rows.shape[1], self.n_features)
        return np.cos(_times(rows, np.sqrt(2 * self.rate) * directions) + phases)


def _times(rows: Floats, matrix: Floats) -> Floats:
    """Return ``rows @ matrix`` with bits independent of other rows.

    A product goes another way through the last rows of its first factor than through whole panels.
    """
    found = np.empty((len(rows), matrix.shape[1]))
    panel = np.zeros((_PANEL_ROWS, rows.shape[1]))
    for first in range(0, len(rows), _PANEL_ROWS):
        some = rows[first : first + _PANEL_ROWS]
        panel[: len(some)] = some
        found[first : first + _PANEL_ROWS] = (panel @ matrix)[: len(some)]
    return found


@lru_cache(maxsize=1)
def _drawn(seed: int, n_columns: int, n_features: int) -> tuple[Floats, Floats]:
    """Draw normal directions and uniform phases from version-independent bits.

    No release of NumPy changes them.
    """
    bits = np.random.Philox(key=words_seed(seed, "random features"))
    uniform = (bits.random_raw((n_columns + 1) * n_features) >> 11).astype(np.float64) + 0.5
    table = (uniform * 2.0**-53).reshape(n_columns + 1, n_features)
    return ndtri(table[1:]), 2 * np.pi * table[0]


@dataclass(frozen=True, eq=False)
class Scatter:
    """Scatter of features within classes and between them; sums over clients.

    Parameters
    ----------
    within : float64 array of shape (n_features, n_features)
        Sum over the rows of the products of their distances from the mean of their class.
    between : float64 array of shape (n_features, n_features)
        Sum over the rows of those of their class's mean from the mean of their client.
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
            Finite.
        labels : int64 array of shape (n_rows,)
            Their classes, from 0.
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
        Of most scatter between the classes of a client for that within them (Fisher, 1936). Along
        each the scatter within, with the ridge, is 1; across two of them both are 0.
    """

    features: RandomFeatures
    directions: Floats

    def __post_init__(self) -> None:
        found, n_features = self.directions, self.features.n_features
        if found.ndim != 2 or not 0 < found.shape[1] <= len(found):
            raise ValueError("directions are no table of discriminants")
        if len(found) != n_features or not np.isfinite(found).all():
            raise ValueError("directions are not finite, or not of all random features")

    @classmethod
    def best(cls, features: RandomFeatures, scatter: Scatter, n_classes: int) -> Self:
        """Return one direction less than there are classes, but one at least.

        As many tell the means of classes apart; more would show noise alone.

        Parameters
        ----------
        features : RandomFeatures
            Features of the scatter.
        scatter : Scatter
            Summed over the clients.
        n_classes : int
            Classes that have rows.
        """
        n = features.n_features
        mean = max(float(np.trace(scatter.within)) / n, LEAST_SCATTER)
        within = scatter.within + RIDGE * mean * np.eye(n)
        kept = [n - min(max(n_classes - 1, 1), n), n - 1]
        found = eigh(scatter.between, within, subset_by_index=kept)[1]
        return cls(features, np.ascontiguousarray(found[:, ::-1]))

    def of(self, rows: Floats) -> Floats:
        """Return the discriminants of rows, shape (n_rows, n_discriminants).

        They are rounded to 32 bits, in which files keep them.
        """
        starts = range(0, max(len(rows), 1), _BLOCK_ROWS)
        columns = (self.features.of(rows[i : i + _BLOCK_ROWS]) for i in starts)
        whole = np.concatenate([_times(block, self.directions) for block in columns])
        return whole.astype(np.float32).astype(np.float64)
