"""ProtoNN as mathematics: a projection, prototypes and their scores, trained together.

Gupta et al., "ProtoNN: Compressed and Accurate kNN for Resource-scarce Devices", ICML 2017.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import fmin_l_bfgs_b

from fedneighbors._typing import Floats, Integers
from fedneighbors.methods.knnper.memory.compression._centers import clustered, dealt
from fedneighbors.methods.knnper.memory.compression._codes import WIDEST

Narrow = npt.NDArray[np.float32]

SHORTEST = 1e-30
"""Rows of a length below this are all alike: what would stretch them is beyond 32 bits."""

REACH = 2.5
"""gamma times the median distance of rows to prototypes, as the authors begin with."""


@dataclass(frozen=True, eq=False)
class Prototypes:
    """What is kept: three small tables and a number.

    Parameters
    ----------
    projection : float32 array of shape (n_dimensions, n_columns)
        W: brings keys to few dimensions.
    places : float32 array of shape (n_prototypes, n_dimensions)
        B: where the prototypes are.
    scores : float32 array of shape (n_prototypes, n_labels)
        Z: what each says of each label.
    gamma : float
        Reach of a prototype: it weighs ``exp(-gamma^2 d^2)``.
    """

    projection: Narrow
    places: Narrow
    scores: Narrow
    gamma: float

    @property
    def nbytes(self) -> int:
        """Bytes of the tables and of ``gamma``."""
        return self.projection.nbytes + self.places.nbytes + self.scores.nbytes + 4

    def shares(self, queries: Floats) -> Floats:
        """Return the labels' shares of the scores; where none is above 0 they are equal.

        Prototypes weigh relative to the nearest, which is the same after normalizing and leaves no
        query without an answer.

        Parameters
        ----------
        queries : float64 array of shape (n_queries, n_columns)
            Finite.

        Returns
        -------
        float64 array of shape (n_queries, n_labels)
            Rows sum to 1.
        """
        projected = queries @ self.projection.T.astype(np.float64)
        squares = _squares(projected, self.places.astype(np.float64))
        near = np.exp(-(self.gamma**2) * (squares - squares.min(axis=1, keepdims=True)))
        found = np.maximum(near @ self.scores.astype(np.float64), 0.0)
        sums = found.sum(axis=1, keepdims=True)
        even = np.full_like(found, 1 / found.shape[1])
        return np.asarray(np.divide(found, sums, out=even, where=sums > 0))

    def refuse_impossible(self) -> None:
        """Refuse what came from elsewhere and is nothing that a training makes.

        Raises
        ------
        ValueError
            If tables do not fit one another, or a number is not finite.
        """
        tables = (self.projection, self.places, self.scores)
        if any(table.ndim != 2 or not table.size for table in tables):
            raise ValueError("expected three tables, of a projection, places and scores")
        if self.places.shape != (len(self.scores), len(self.projection)):
            raise ValueError(
                f"expected places of {len(self.scores)} prototypes in {len(self.projection)} "
                f"dimensions, got shape {self.places.shape}"
            )
        if not all(np.isfinite(table).all() for table in tables):
            raise ValueError("a cell of the prototypes is not finite")
        if not 0 < self.gamma < WIDEST:
            raise ValueError(f"expected gamma above 0, of 32 bits, got {self.gamma!r}")


def loss_and_gradient(
    parameters: Floats, rows: Floats, targets: Floats, n_dimensions: int, gamma: float
) -> tuple[float, Floats]:
    """Return the mean squared error of the scores, and its gradient.

    Parameters
    ----------
    parameters : float64 array of shape (n_parameters,)
        Projection, places and scores, one after another, row by row.
    rows : float64 array of shape (n_rows, n_columns)
        Keys.
    targets : float64 array of shape (n_rows, n_labels)
        1 at the label of each row, 0 elsewhere.
    n_dimensions : int
        Of the projection.
    gamma : float
        As :class:`Prototypes` takes it.

    Returns
    -------
    loss : float
    gradient : float64 array of shape (n_parameters,)
    """
    shape = (n_dimensions, rows.shape[1], targets.shape[1])
    projection, places, scores = _taken_apart(parameters, *shape)
    projected = rows @ projection.T
    near = np.exp(-(gamma**2) * _squares(projected, places))
    residuals = near @ scores - targets
    wanted = 2 / len(rows) * residuals
    pull = -(gamma**2) * near * (wanted @ scores.T)  # the loss by each squared distance
    to_projected = 2 * (pull.sum(axis=1)[:, None] * projected - pull @ places)
    to_places = 2 * (pull.sum(axis=0)[:, None] * places - pull.T @ projected)
    parts = (to_projected.T @ rows, to_places, near.T @ wanted)
    loss = float((residuals**2).sum() / len(rows))
    return loss, np.concatenate([part.ravel() for part in parts])


def trained(
    rows: Floats,
    labels: Integers,
    n_labels: int,
    *,
    n_dimensions: int,
    share: float,
    n_steps: int,
    random_state: int = 0,
) -> Prototypes:
    """Return prototypes that tell the labels of rows, by L-BFGS steps on all three tables.

    They begin as the principal directions of the rows, the centers of each class there, and
    certainty about the class of each.

    Parameters
    ----------
    rows : float64 array of shape (n_rows, n_columns)
        Keys, one at least.
    labels : int64 array of shape (n_rows,)
        From 0 to ``n_labels - 1``; each has a row.
    n_labels : int
        Labels.
    n_dimensions : int
        Of the projection, at most.
    share : float
        Prototypes over rows.
    n_steps : int
        Most steps.
    random_state : int
        Of the first centers.
    """
    length = float(np.sqrt((rows**2).sum(axis=1).mean()))
    scale = length if length > SHORTEST else 1.0
    x = rows / scale if length > SHORTEST else np.zeros_like(rows)
    directions = np.linalg.svd(x - x.mean(axis=0), full_matrices=False)[2][:n_dimensions]
    places, classes = _first_places(x @ directions.T, labels, n_labels, share, random_state)
    gamma = _gamma(x @ directions.T, places)
    start = np.concatenate([directions.ravel(), places.ravel(), np.eye(n_labels)[classes].ravel()])
    found, _, _ = fmin_l_bfgs_b(
        loss_and_gradient,
        start,
        args=(x, np.eye(n_labels)[labels], len(directions), gamma),
        maxiter=n_steps,
    )
    projection, places, scores = _taken_apart(found, len(directions), x.shape[1], n_labels)
    return Prototypes(
        (projection / scale).astype(np.float32),
        places.astype(np.float32),
        scores.astype(np.float32),
        gamma,
    )


def _first_places(
    projected: Floats, labels: Integers, n_labels: int, share: float, random_state: int
) -> tuple[Floats, Integers]:
    each = [
        clustered(np.ascontiguousarray(projected[labels == label]), n, random_state=random_state)[0]
        for label, n in enumerate(dealt(np.bincount(labels, minlength=n_labels), share))
    ]
    return np.concatenate(each), np.repeat(np.arange(n_labels), [len(own) for own in each])


def _gamma(projected: Floats, places: Floats) -> float:
    middle = float(np.median(np.sqrt(_squares(projected, places))))
    return REACH / middle if middle > 0 else 1.0


def _squares(projected: Floats, places: Floats) -> Floats:
    """Return squared distances by a product, which takes no room for all differences."""
    lengths = np.einsum("ij,ij->i", projected, projected)[:, None]
    reach = np.einsum("ij,ij->i", places, places)
    return np.asarray(np.maximum(lengths + reach - 2 * (projected @ places.T), 0.0))


def _taken_apart(
    parameters: Floats, n_dimensions: int, n_columns: int, n_labels: int
) -> tuple[Floats, Floats, Floats]:
    first = n_dimensions * n_columns
    rest = parameters[first:].reshape(-1)
    n_prototypes = len(rest) // (n_dimensions + n_labels)
    second = n_prototypes * n_dimensions
    return (
        parameters[:first].reshape(n_dimensions, n_columns),
        rest[:second].reshape(n_prototypes, n_dimensions),
        rest[second:].reshape(n_prototypes, n_labels),
    )
