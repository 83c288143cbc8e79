"""Fisher's discriminants over all clients, whose labels may have different meanings.

Rows are mapped to random features, the same for all clients. The features' scatter within and
between the classes of a client does not depend on the names of its classes, so it can be summed
over clients. The sums give directions that separate the classes of each client.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Self

import numpy as np
from scipy.linalg import eigh
from scipy.special import ndtri

from fedneighbors._typing import Floats, Integers
from fedneighbors.federation._messages import message
from fedneighbors.neural._schedule import derive_seed

MAX_FEATURES = 1024
"""Maximum number of random features; a client then sends 8 MiB of scatter."""

ROWS_PER_FEATURE = 2
"""Minimum number of rows, of all clients together, per random feature."""

RIDGE = 0.3
"""Ridge that is added to the scatter within classes, as a fraction of its mean eigenvalue."""

MIN_SCATTER = 1e-3
"""Minimum mean eigenvalue of the scatter within classes; less may be rounding errors only."""

MAX_SIZE = 2.0**64
"""Maximum rate of a kernel and magnitude of a direction, with which no projection overflows."""

_BLOCK_ROWS = 2048
"""Number of rows whose features are computed at once: 16 MiB."""

_PANEL_ROWS = 64
"""Number of rows per matrix product; see :func:`multiply`."""


def choose_n_features(n_rows: int) -> int:
    """Return the number of random features for all clients' rows."""
    return max(1, min(MAX_FEATURES, n_rows // ROWS_PER_FEATURE))


@lru_cache(maxsize=1)
def upper_triangle(n_features: int) -> tuple[Integers, Integers]:
    """Return indices of a matrix's upper triangle, row by row."""
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
        if not (self.seed >= 0 and 0 <= self.rate <= MAX_SIZE):
            raise ValueError("seed or rate of random features is out of range")
        if self.n_features < 1:
            raise ValueError(f"expected 1 feature or more, got {self.n_features}")

    def transform(self, rows: Floats) -> Floats:
        """Return ``cos(w x + b)``, shape (n_rows, n_features).

        Parameters
        ----------
        rows : float64 array of shape (n_rows, n_columns)
            Finite rows.
        """
        directions, phases = _draw(self.seed, rows.shape[1], self.n_features)
        return np.cos(multiply(rows, np.sqrt(2 * self.rate) * directions) + phases)


def multiply(rows: Floats, matrix: Floats) -> Floats:
    """Return ``rows @ matrix``, each row rounded independently of the others.

    BLAS rounds the last rows of a matrix differently if the number of rows is not a multiple of its
    block size. So all products have the same number of rows.
    """
    product = np.empty((len(rows), matrix.shape[1]))
    panel = np.zeros((_PANEL_ROWS, rows.shape[1]))
    for first in range(0, len(rows), _PANEL_ROWS):
        block = rows[first : first + _PANEL_ROWS]
        panel[: len(block)] = block
        product[first : first + _PANEL_ROWS] = (panel @ matrix)[: len(block)]
    return product


@lru_cache(maxsize=1)
def _draw(seed: int, n_columns: int, n_features: int) -> tuple[Floats, Floats]:
    """Draw normal directions and uniform phases, independently of the NumPy version."""
    bits = np.random.Philox(key=derive_seed(seed, "random features"))
    uniform = (bits.random_raw((n_columns + 1) * n_features) >> 11).astype(np.float64) + 0.5
    table = (uniform * 2.0**-53).reshape(n_columns + 1, n_features)
    return ndtri(table[1:]), 2 * np.pi * table[0]


@dataclass(frozen=True, eq=False)
class Scatter:
    """Scatter of features within and between classes; scatter of several clients can be added.

    Parameters
    ----------
    within : float64 array of shape (n_features, n_features)
        Sum over rows of the outer product of (row - mean of its class) with itself.
    between : float64 array of shape (n_features, n_features)
        Sum over rows of the outer product of (mean of its class - mean of all rows) with itself.
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
            columns = features.transform(rows[block])
            products += columns.T @ columns
            sums += np.eye(n_classes)[labels[block]].T @ columns
        counts = np.bincount(labels, minlength=n_classes)
        present = counts > 0
        scaled_means = sums[present] / np.sqrt(counts[present])[:, None]  # times sqrt(count)
        mean_products = scaled_means.T @ scaled_means
        mean = sums.sum(axis=0) / np.sqrt(max(len(rows), 1))  # times sqrt(number of rows)
        return cls(products - mean_products, mean_products - np.outer(mean, mean))


@dataclass(frozen=True, eq=False)
class Discriminants:
    """Projection of rows on Fisher's discriminants.

    Parameters
    ----------
    features : RandomFeatures
        Random features of rows.
    directions : float64 array of shape (n_features, n_discriminants)
        Directions with the largest ratio of scatter between classes to scatter within classes
        (Fisher, 1936), largest first. Scatter within, with the ridge, is 1 along each direction;
        both scatters are 0 for two different directions.
    """

    features: RandomFeatures
    directions: Floats

    def __post_init__(self) -> None:
        directions, n_features = self.directions, self.features.n_features
        if directions.ndim != 2 or not 0 < directions.shape[1] <= len(directions):
            raise ValueError("directions are not a table of discriminants")
        if len(directions) != n_features or not (np.abs(directions) <= MAX_SIZE).all():
            raise ValueError(
                "directions are not finite and small, or do not cover all random features"
            )

    @classmethod
    def fit(cls, features: RandomFeatures, scatter: Scatter, n_classes: int) -> Self:
        """Return the discriminants for summed scatter.

        Their number is one less than that of classes, but at least one. This many contain the
        differences of class means; more would contain noise only.

        Parameters
        ----------
        features : RandomFeatures
            Random features whose scatter is given.
        scatter : Scatter
            Sum over the clients.
        n_classes : int
            Number of classes with rows.
        """
        n = features.n_features
        mean = max(float(np.trace(scatter.within)) / n, MIN_SCATTER)
        within = scatter.within + RIDGE * mean * np.eye(n)
        largest = [n - min(max(n_classes - 1, 1), n), n - 1]  # first and last index, ascending
        directions = eigh(scatter.between, within, subset_by_index=largest)[1]
        return cls(features, np.ascontiguousarray(directions[:, ::-1]))

    def transform(self, rows: Floats) -> Floats:
        """Return the discriminants of rows, shape (n_rows, n_discriminants).

        They are rounded to float32, so that files can store them without loss.
        """
        starts = range(0, max(len(rows), 1), _BLOCK_ROWS)
        columns = (self.features.transform(rows[i : i + _BLOCK_ROWS]) for i in starts)
        projected = np.concatenate([multiply(block, self.directions) for block in columns])
        return projected.astype(np.float32).astype(np.float64)


@message
class ScatterReply:
    """Scatter of random features within classes and between them.

    Upper triangles of the matrices, row by row, in units of 2 to the power of -32.
    """

    within: Integers
    between: Integers


@message
class ScatterRequest:
    """Request for the scatter of random features; ``held_out`` as in :class:`CountsRequest`."""

    held_out: bool
    features: RandomFeatures

    reply: ClassVar[type] = ScatterReply

    def __post_init__(self) -> None:
        if self.features.n_features > MAX_FEATURES:
            raise ValueError(f"expected at most {MAX_FEATURES} random features")
