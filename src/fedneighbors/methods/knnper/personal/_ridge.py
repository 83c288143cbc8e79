"""Linear heads on embeddings in closed form, and what they say of rows that they have not seen."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy.linalg import solve, svd

from fedneighbors._typing import Floats

PENALTIES = (0.1, 0.5, 2.0, 10.0)
"""Among which each client chooses, by rows that are left out in turn."""

REACH = 3.0
"""Root mean square length to which keys are brought before a head sees them."""


def with_ones(keys: Floats) -> Floats:
    """Return keys with a column of ones after them."""
    return np.column_stack([keys, np.ones(len(keys))])


def ridge(keys: Floats, targets: Floats, *, penalty: float) -> Floats:
    """Return the linear head of least squared error and length.

    Parameters
    ----------
    keys : float64 array of shape (n_rows, n_dimensions)
        Embeddings; a column of ones is added.
    targets : float64 array of shape (n_rows, n_outputs)
        What it is to give.
    penalty : float
        On all coefficients, above 0.

    Returns
    -------
    float64 array of shape (n_dimensions + 1, n_outputs)
    """
    a = with_ones(keys)
    gram = a.T @ a + penalty * np.eye(a.shape[1])
    return np.asarray(solve(gram, a.T @ targets, assume_a="pos"))


def ridge_left_out(keys: Floats, targets: Floats, *, penalties: Sequence[float]) -> Floats:
    """Return for each row what the head of all other rows gives, by the hat matrix.

    Parameters
    ----------
    keys, targets
        As :func:`ridge` takes them.
    penalties : sequence of float
        Above 0; all of them share one decomposition.

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
    """A linear head of the best penalty.

    Parameters
    ----------
    coefficients : float64 array of shape (n_dimensions + 1, n_outputs)
        As :func:`ridge` gives them.
    scale : float
        What keys are multiplied by before it.
    """

    coefficients: Floats
    scale: float

    @classmethod
    def fitted(cls, keys: Floats, targets: Floats) -> Self:
        """Return the head of these rows, of which there is one at least."""
        scale = _scale(keys)
        each = ridge_left_out(keys * scale, targets, penalties=PENALTIES)
        return cls(ridge(keys * scale, targets, penalty=PENALTIES[_best(each, targets)]), scale)

    def said(self, keys: Floats) -> Floats:
        """Return what the head gives, shape (n_rows, n_outputs)."""
        return with_ones(keys * self.scale) @ self.coefficients


def head_held_out(keys: Floats, targets: Floats) -> Floats:
    """Return what heads give for rows that they have not seen, under the best penalty.

    Parameters
    ----------
    keys, targets
        As :func:`ridge` takes them. A single row has no others: its head gives 0.
    """
    if len(keys) < 2:
        return np.zeros_like(targets)
    each = ridge_left_out(keys * _scale(keys), targets, penalties=PENALTIES)
    return np.asarray(each[_best(each, targets)])


def _scale(keys: Floats) -> float:
    length = float(np.sqrt((keys**2).sum(axis=1).mean()))
    return REACH / length if length > 0 else 1.0


def _best(each: Floats, targets: Floats) -> int:
    """Return which penalty has the least squared error."""
    return int(((each - targets) ** 2).sum(axis=(1, 2)).argmin())
