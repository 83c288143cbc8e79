"""Heads on the rows themselves, by radial kernels: what a client can tell without the network."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from fedneighbors._typing import Floats
from fedneighbors.methods.knnper.personal._ridge import Head, head_held_out

WIDTHS = (0.5, 2.0)
"""Among which each client chooses: exponents at the median squared distance of two rows."""

LANDMARKS = 256
"""Most rows by which a row is described; more rows than these cost no more each."""

SMALLEST = 1e-9
"""Share of the largest direction of the landmarks below which one is rounding alone."""


@dataclass(frozen=True, eq=False)
class RadialMap:
    """Columns whose products are those of the kernel ``exp(-width * d^2 / unit)``.

    Products are exact where one of the two rows is a landmark, and the best that the landmarks
    allow elsewhere (Nystroem's approximation).

    Parameters
    ----------
    landmarks : float64 array of shape (n_landmarks, n_features)
        Some of the client's rows.
    directions : float64 array of shape (n_landmarks, n_columns)
        From kernels with the landmarks to columns.
    rate : float
        Width over unit.
    """

    landmarks: Floats
    directions: Floats
    rate: float

    @classmethod
    def of(cls, rows: Floats, width: float) -> Self:
        """Return the map by landmarks that are spread evenly over some rows.

        Parameters
        ----------
        rows : float64 array of shape (n_rows, n_features)
            One at least.
        width : float
            Exponent at the median squared distance of two landmarks, above 0.
        """
        places = np.arange(min(len(rows), LANDMARKS)) * len(rows) // min(len(rows), LANDMARKS)
        landmarks = rows[places]
        squares = _squares(landmarks, landmarks)
        apart = squares[~np.eye(len(squares), dtype=bool)]
        unit = float(np.median(apart[apart > 0])) if (apart > 0).any() else 1.0
        rate = width / unit
        lengths, turned = np.linalg.eigh(np.exp(-rate * squares))
        kept = lengths > SMALLEST * lengths[-1]
        return cls(landmarks, turned[:, kept] / np.sqrt(lengths[kept]), rate)

    def columns(self, rows: Floats) -> Floats:
        """Return the columns of rows, shape (n_rows, n_columns)."""
        return np.asarray(np.exp(-self.rate * _squares(rows, self.landmarks)) @ self.directions)


@dataclass(frozen=True, eq=False)
class KernelHead:
    """A ridge head on the columns of a radial map.

    Parameters
    ----------
    columns : RadialMap
        Of the width whose heads do best on rows that are left out in turn.
    head : Head
        On its columns.
    """

    columns: RadialMap
    head: Head

    @classmethod
    def fitted(cls, rows: Floats, targets: Floats) -> Self:
        """Return the head of these rows, of which there is one at least.

        Parameters
        ----------
        rows : float64 array of shape (n_rows, n_features)
            Finite.
        targets : float64 array of shape (n_rows, n_outputs)
            What it is to give.
        """
        best, _ = _best(rows, targets)
        return cls(best, Head.fitted(best.columns(rows), targets))

    def said(self, rows: Floats) -> Floats:
        """Return what the head gives, shape (n_rows, n_outputs)."""
        return self.head.said(self.columns.columns(rows))


def kernel_held_out(rows: Floats, targets: Floats) -> Floats:
    """Return what heads give for rows that they have not seen, under best width and penalty.

    Parameters
    ----------
    rows, targets
        As :meth:`KernelHead.fitted` takes them. A single row has no others: its head gives 0.
    """
    return _best(rows, targets)[1] if len(rows) > 1 else np.zeros_like(targets)


def _best(rows: Floats, targets: Floats) -> tuple[RadialMap, Floats]:
    """Return the map of least squared error on rows left out, and what is said of these."""
    maps = [RadialMap.of(rows, width) for width in WIDTHS]
    said = [head_held_out(each.columns(rows), targets) for each in maps]
    best = int(np.argmin([((one - targets) ** 2).sum() for one in said]))
    return maps[best], said[best]


def _squares(rows: Floats, others: Floats) -> Floats:
    """Return squared distances, by products."""
    lengths = np.einsum("ij,ij->i", rows, rows)[:, None] + np.einsum("ij,ij->i", others, others)
    return np.asarray(np.maximum(lengths - 2 * rows @ others.T, 0.0))
