"""Heads of a pool: regressions that each client fits on embeddings, rows and discriminants."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy.linalg import solve, svd

from fedneighbors._typing import Floats
from fedneighbors.methods.knnper.memory._rows import RowFeatures

PENALTIES = (0.1, 0.5, 2.0, 10.0)
"""Penalties from which each client chooses by leave-one-out error."""

KEY_LENGTH = 3.0
"""Root mean square length of keys after scaling, so that penalties suit every network."""


def with_ones(keys: Floats) -> Floats:
    """Return keys with a column of ones appended."""
    return np.column_stack([keys, np.ones(len(keys))])


def ridge(keys: Floats, targets: Floats, *, penalty: float) -> Floats:
    """Return the coefficients of a ridge regression of targets on keys.

    Parameters
    ----------
    keys : float64 array of shape (n_rows, n_dimensions)
        Embeddings; a column of ones is added.
    targets : float64 array of shape (n_rows, n_outputs)
        Target outputs.
    penalty : float
        Penalty on all coefficients, including that of the ones; above 0.

    Returns
    -------
    float64 array of shape (n_dimensions + 1, n_outputs)
    """
    a = with_ones(keys)
    gram = a.T @ a + penalty * np.eye(a.shape[1])
    return np.asarray(solve(gram, a.T @ targets, assume_a="pos"))


def ridge_leave_one_out(keys: Floats, targets: Floats, *, penalties: Sequence[float]) -> Floats:
    """Return leave-one-out outputs of ridge regressions, by the hat matrix.

    Parameters
    ----------
    keys, targets
        As in :func:`ridge`.
    penalties : sequence of float
        Penalties above 0. The keys are decomposed once for all of them.

    Returns
    -------
    float64 array of shape (n_penalties, n_rows, n_outputs)
    """
    left, singular, _ = svd(with_ones(keys), full_matrices=False)
    projected = left.T @ targets
    outputs = []
    for penalty in penalties:
        shrinkage = singular**2 / (singular**2 + penalty)
        leverage = (left**2 @ shrinkage)[:, None]
        fitted = left @ (shrinkage[:, None] * projected)
        outputs.append((fitted - leverage * targets) / (1 - leverage))
    return np.array(outputs)


@dataclass(frozen=True, eq=False)
class Head:
    """Linear head: a ridge regression on scaled keys.

    Parameters
    ----------
    coefficients : float64 array of shape (n_dimensions + 1, n_outputs)
        Coefficients from :func:`ridge`.
    scale : float
        Factor by which keys are multiplied.
    """

    coefficients: Floats
    scale: float

    @classmethod
    def fit(cls, keys: Floats, targets: Floats) -> Self:
        """Fit the head, with the penalty of the lowest leave-one-out error."""
        scale = _scale(keys)
        outputs = ridge_leave_one_out(keys * scale, targets, penalties=PENALTIES)
        penalty = PENALTIES[_best_penalty(outputs, targets)]
        return cls(ridge(keys * scale, targets, penalty=penalty), scale)

    def outputs(self, keys: Floats) -> Floats:
        """Return the outputs, shape (n_rows, n_outputs)."""
        return with_ones(keys * self.scale) @ self.coefficients


def head_leave_one_out(keys: Floats, targets: Floats) -> Floats:
    """Return each row's output of a head fitted without this row.

    The penalty is the one with the lowest leave-one-out error. The output of a single row is 0.

    Parameters
    ----------
    keys, targets
        As in :func:`ridge`.
    """
    if len(keys) < 2:
        return np.zeros_like(targets)
    outputs = ridge_leave_one_out(keys * _scale(keys), targets, penalties=PENALTIES)
    return np.asarray(outputs[_best_penalty(outputs, targets)])


def _scale(keys: Floats) -> float:
    length = float(np.sqrt((keys**2).sum(axis=1).mean()))
    return KEY_LENGTH / length if length > 0 else 1.0


def _best_penalty(outputs: Floats, targets: Floats) -> int:
    """Return the index of the penalty with the lowest squared error."""
    return int(((outputs - targets) ** 2).sum(axis=(1, 2)).argmin())


EXPONENTS = (0.5, 2.0)
"""Candidates for ``rate * d^2`` at the median squared distance of two landmarks; clients choose."""

LANDMARKS = 256
"""Maximum number of landmarks; it bounds the cost per row of a kernel head."""

MIN_EIGENVALUE = 1e-9
"""Eigenvalues below this fraction of the largest one are considered rounding errors."""


@dataclass(frozen=True, eq=False)
class RadialMap:
    """Feature map of the kernel ``exp(-rate * d^2)``.

    The product of two rows' features equals the kernel if one of them is a landmark; otherwise it
    is Nystroem's approximation.

    Parameters
    ----------
    landmarks : float64 array of shape (n_landmarks, n_features)
        Rows of the client.
    directions : float64 array of shape (n_landmarks, n_columns)
        Matrix that maps a row's kernel values with all landmarks to its features.
    rate : float
        Rate of the kernel, above 0.
    """

    landmarks: Floats
    directions: Floats
    rate: float

    @classmethod
    def of(cls, rows: Floats, exponent: float) -> Self:
        """Return the map with landmarks at equal intervals among the rows.

        Parameters
        ----------
        rows : float64 array of shape (n_rows, n_features)
            At least one row.
        exponent : float
            Value of ``rate * d^2`` at the median squared distance of distinct landmarks, above 0.
        """
        n_landmarks = min(len(rows), LANDMARKS)
        landmarks = rows[np.arange(n_landmarks) * len(rows) // n_landmarks]
        squares = _squares(landmarks, landmarks)
        between = squares[~np.eye(len(squares), dtype=bool)]
        median = float(np.median(between[between > 0])) if (between > 0).any() else 1.0
        rate = exponent / median
        eigenvalues, vectors = np.linalg.eigh(np.exp(-rate * squares))
        used = eigenvalues > MIN_EIGENVALUE * eigenvalues[-1]
        return cls(landmarks, vectors[:, used] / np.sqrt(eigenvalues[used]), rate)

    def transform(self, rows: Floats) -> Floats:
        """Return the features of rows, shape (n_rows, n_columns)."""
        return np.asarray(np.exp(-self.rate * _squares(rows, self.landmarks)) @ self.directions)


@dataclass(frozen=True, eq=False)
class KernelHead:
    """Linear head on the features of a radial map.

    Parameters
    ----------
    radial_map : RadialMap
        Radial map whose exponent has the lowest leave-one-out error.
    head : Head
        Head on its features.
    """

    radial_map: RadialMap
    head: Head

    @classmethod
    def fit(cls, rows: Floats, targets: Floats) -> Self:
        """Fit the head, with exponent and penalty of the lowest leave-one-out error.

        Parameters
        ----------
        rows : float64 array of shape (n_rows, n_features)
            Finite rows, at least one.
        targets : float64 array of shape (n_rows, n_outputs)
            Target outputs.
        """
        best, _ = _best_map(rows, targets)
        return cls(best, Head.fit(best.transform(rows), targets))

    def outputs(self, rows: Floats) -> Floats:
        """Return the outputs, shape (n_rows, n_outputs)."""
        return self.head.outputs(self.radial_map.transform(rows))


def kernel_leave_one_out(rows: Floats, targets: Floats) -> Floats:
    """Return each row's output of a kernel head fitted without this row.

    Landmarks, exponent and penalty are those of all rows. The output of a single row is 0.

    Parameters
    ----------
    rows, targets
        As in :meth:`KernelHead.fit`.
    """
    return _best_map(rows, targets)[1] if len(rows) > 1 else np.zeros_like(targets)


def _best_map(rows: Floats, targets: Floats) -> tuple[RadialMap, Floats]:
    """Return the map with the lowest leave-one-out error, and its outputs."""
    maps = [RadialMap.of(rows, exponent) for exponent in EXPONENTS]
    outputs = [head_leave_one_out(candidate.transform(rows), targets) for candidate in maps]
    best = int(np.argmin([((output - targets) ** 2).sum() for output in outputs]))
    return maps[best], outputs[best]


def _squares(rows: Floats, others: Floats) -> Floats:
    """Return squared distances, computed from norms and products."""
    norms = np.einsum("ij,ij->i", rows, rows)[:, None] + np.einsum("ij,ij->i", others, others)
    return np.asarray(np.maximum(norms - 2 * rows @ others.T, 0.0))


HEADS = ("ridge head", "kernel head", "discriminant head")
"""Names of a pool's heads, in order."""


@dataclass(frozen=True, eq=False)
class Heads:
    """The heads of a pool, in the order of :data:`HEADS`.

    Parameters
    ----------
    heads : tuple of Head, KernelHead and KernelHead or None
        A head on embeddings; one on rows, or on embeddings if there are no rows; and one on
        discriminants, if any.
    """

    heads: tuple[Head | KernelHead | None, ...]

    @classmethod
    def fit(cls, features: RowFeatures, targets: Floats) -> Self:
        """Fit the heads.

        Parameters
        ----------
        features : RowFeatures
            Features of the rows, at least one.
        targets : float64 array of shape (n_rows, n_outputs)
            Target outputs.
        """
        types: tuple[type[Head | KernelHead], ...] = (Head, KernelHead, KernelHead)
        pairs = zip(types, _head_inputs(features), strict=True)
        return cls(tuple(None if x is None else type_.fit(x, targets) for type_, x in pairs))

    def outputs(self, features: RowFeatures) -> list[Floats]:
        """Return each head's outputs, shape (n_rows, n_outputs); 0 without a head."""
        pairs = zip(self.heads, _head_inputs(features), strict=True)
        outputs = [None if x is None or head is None else head.outputs(x) for head, x in pairs]
        return [np.zeros_like(outputs[0]) if output is None else output for output in outputs]


def heads_leave_one_out(features: RowFeatures, targets: Floats) -> list[Floats]:
    """Return the outputs of heads that are fitted without the row.

    Parameters
    ----------
    features, targets
        As in :meth:`Heads.fit`.
    """
    leave_one_out = (head_leave_one_out, kernel_leave_one_out, kernel_leave_one_out)
    pairs = zip(leave_one_out, _head_inputs(features), strict=True)
    return [np.zeros_like(targets) if x is None else outputs(x, targets) for outputs, x in pairs]


def _head_inputs(features: RowFeatures) -> tuple[Floats, Floats, Floats | None]:
    """Return the input of each head; None if there is none."""
    rows = features.embedding if features.rows is None else features.rows
    return features.embedding, rows, features.discriminants
