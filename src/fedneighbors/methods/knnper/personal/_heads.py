"""Local heads of a pool: on embeddings, on rows, and on discriminants."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy.linalg import solve, svd

from fedneighbors._typing import Floats
from fedneighbors.methods.knnper.memory._rows import View

PENALTIES = (0.1, 0.5, 2.0, 10.0)
"""Penalties from which each client chooses by leave-one-out."""

REACH = 3.0
"""Root mean square of the keys after scaling for a head."""


def with_ones(keys: Floats) -> Floats:
    """Return keys with a column of ones appended."""
    return np.column_stack([keys, np.ones(len(keys))])


def ridge(keys: Floats, targets: Floats, *, penalty: float) -> Floats:
    """Return the ridge regression of targets on keys.

    Parameters
    ----------
    keys : float64 array of shape (n_rows, n_dimensions)
        Embeddings; a column of ones is added.
    targets : float64 array of shape (n_rows, n_outputs)
        Target outputs.
    penalty : float
        Penalty on all coefficients, above 0.

    Returns
    -------
    float64 array of shape (n_dimensions + 1, n_outputs)
    """
    a = with_ones(keys)
    gram = a.T @ a + penalty * np.eye(a.shape[1])
    return np.asarray(solve(gram, a.T @ targets, assume_a="pos"))


def ridge_leave_one_out(keys: Floats, targets: Floats, *, penalties: Sequence[float]) -> Floats:
    """Return leave-one-out outputs of the head, by the hat matrix.

    Parameters
    ----------
    keys, targets
        As in :func:`ridge`.
    penalties : sequence of float
        Penalties above 0; all share one decomposition.

    Returns
    -------
    float64 array of shape (n_penalties, n_rows, n_outputs)
    """
    left, lengths, _ = svd(with_ones(keys), full_matrices=False)
    inner = left.T @ targets
    each = []
    for penalty in penalties:
        kept = lengths**2 / (lengths**2 + penalty)
        own = (left**2 @ kept)[:, None]
        each.append((left @ (kept[:, None] * inner) - own * targets) / (1 - own))
    return np.array(each)


@dataclass(frozen=True, eq=False)
class Head:
    """A linear head with the best penalty.

    Parameters
    ----------
    coefficients : float64 array of shape (n_dimensions + 1, n_outputs)
        Coefficients from :func:`ridge`.
    scale : float
        Factor of the keys.
    """

    coefficients: Floats
    scale: float

    @classmethod
    def fit(cls, keys: Floats, targets: Floats) -> Self:
        """Fit the head to one row or more."""
        scale = _scale(keys)
        each = ridge_leave_one_out(keys * scale, targets, penalties=PENALTIES)
        return cls(
            ridge(keys * scale, targets, penalty=PENALTIES[_best_penalty(each, targets)]), scale
        )

    def outputs(self, keys: Floats) -> Floats:
        """Return the outputs, shape (n_rows, n_outputs)."""
        return with_ones(keys * self.scale) @ self.coefficients


def head_held_out(keys: Floats, targets: Floats) -> Floats:
    """Return heads' outputs for unseen rows under the best penalty.

    Parameters
    ----------
    keys, targets
        As in :func:`ridge`. A head without training rows returns 0.
    """
    if len(keys) < 2:
        return np.zeros_like(targets)
    each = ridge_leave_one_out(keys * _scale(keys), targets, penalties=PENALTIES)
    return np.asarray(each[_best_penalty(each, targets)])


def _scale(keys: Floats) -> float:
    length = float(np.sqrt((keys**2).sum(axis=1).mean()))
    return REACH / length if length > 0 else 1.0


def _best_penalty(each: Floats, targets: Floats) -> int:
    """Return the index of the penalty with the lowest squared error."""
    return int(((each - targets) ** 2).sum(axis=(1, 2)).argmin())


WIDTHS = (0.5, 2.0)
"""Widths from which each client chooses: exponents at the median squared distance of two rows."""

LANDMARKS = 256
"""Maximum number of landmarks; it bounds the cost per row."""

SMALLEST = 1e-9
"""Eigenvalues below this fraction of the largest are considered rounding errors."""


@dataclass(frozen=True, eq=False)
class RadialMap:
    """Feature map of the kernel ``exp(-width * d^2 / unit)``.

    Products are exact if one of the two rows is a landmark, otherwise Nystroem's approximation.

    Parameters
    ----------
    landmarks : float64 array of shape (n_landmarks, n_features)
        Some of the client's rows.
    directions : float64 array of shape (n_landmarks, n_columns)
        Matrix from kernels with the landmarks to columns.
    rate : float
        Width divided by unit.
    """

    landmarks: Floats
    directions: Floats
    rate: float

    @classmethod
    def of(cls, rows: Floats, width: float) -> Self:
        """Return the map with landmarks spread evenly over some rows.

        Parameters
        ----------
        rows : float64 array of shape (n_rows, n_features)
            At least one row.
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
        Radial map with the width of the lowest leave-one-out error.
    head : Head
        Head on its columns.
    """

    columns: RadialMap
    head: Head

    @classmethod
    def fit(cls, rows: Floats, targets: Floats) -> Self:
        """Fit the head to one row or more.

        Parameters
        ----------
        rows : float64 array of shape (n_rows, n_features)
            Finite rows.
        targets : float64 array of shape (n_rows, n_outputs)
            Target outputs.
        """
        best, _ = _best_map(rows, targets)
        return cls(best, Head.fit(best.columns(rows), targets))

    def outputs(self, rows: Floats) -> Floats:
        """Return the outputs, shape (n_rows, n_outputs)."""
        return self.head.outputs(self.columns.columns(rows))


def kernel_held_out(rows: Floats, targets: Floats) -> Floats:
    """Return heads' outputs for unseen rows.

    Width and penalty have the lowest leave-one-out error.

    Parameters
    ----------
    rows, targets
        As in :meth:`KernelHead.fit`. A head without training rows returns 0.
    """
    return _best_map(rows, targets)[1] if len(rows) > 1 else np.zeros_like(targets)


def _best_map(rows: Floats, targets: Floats) -> tuple[RadialMap, Floats]:
    """Find the map with the lowest leave-one-out error; return its outputs too."""
    maps = [RadialMap.of(rows, width) for width in WIDTHS]
    outs = [head_held_out(each.columns(rows), targets) for each in maps]
    best = int(np.argmin([((one - targets) ** 2).sum() for one in outs]))
    return maps[best], outs[best]


def _squares(rows: Floats, others: Floats) -> Floats:
    """Return squared distances, by products."""
    lengths = np.einsum("ij,ij->i", rows, rows)[:, None] + np.einsum("ij,ij->i", others, others)
    return np.asarray(np.maximum(lengths - 2 * rows @ others.T, 0.0))


HEADS = ("ridge head", "kernel head", "discriminant head")
"""Names of the heads, in order."""


@dataclass(frozen=True, eq=False)
class Heads:
    """One head for each kind of feature.

    Parameters
    ----------
    each : tuple of Head, KernelHead and KernelHead or None
        Heads on embeddings; on rows, or on embeddings if a view has no rows; on discriminants of
        rows, None if there are none.
    """

    each: tuple[Head | KernelHead | None, ...]

    @classmethod
    def fit(cls, view: View, targets: Floats) -> Self:
        """Fit the heads to one row or more.

        Parameters
        ----------
        view : View
            Features of the rows.
        targets : float64 array of shape (n_rows, n_outputs)
            Target outputs.
        """
        kinds: tuple[type[Head | KernelHead], ...] = (Head, KernelHead, KernelHead)
        parts = zip(kinds, _features(view), strict=True)
        return cls(tuple(None if x is None else kind.fit(x, targets) for kind, x in parts))

    def outputs(self, view: View) -> list[Floats]:
        """Return each head's output; 0 for a missing head.

        Shape (n_rows, n_outputs).
        """
        parts = zip(self.each, _features(view), strict=True)
        outs = [None if x is None or head is None else head.outputs(x) for head, x in parts]
        return [np.zeros_like(outs[0]) if one is None else one for one in outs]


def heads_held_out(view: View, targets: Floats) -> list[Floats]:
    """Return each head's output for unseen rows.

    Parameters
    ----------
    view, targets
        As in :meth:`Heads.fit`.
    """
    fits = (head_held_out, kernel_held_out, kernel_held_out)
    parts = zip(fits, _features(view), strict=True)
    return [np.zeros_like(targets) if x is None else fit(x, targets) for fit, x in parts]


def _features(view: View) -> tuple[Floats, Floats, Floats | None]:
    """Return the features for each head."""
    return view.embedding, view.embedding if view.rows is None else view.rows, view.discriminants
