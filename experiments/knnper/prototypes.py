"""ProtoNN: a client memory of prototypes in a learned projection (Figure 11 of the paper).

Gupta et al., "ProtoNN: Compressed and Accurate kNN for Resource-scarce Devices", ICML 2017.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import fmin_l_bfgs_b

from fedneighbors._typing import Floats, Integers
from fedneighbors.errors import RebuildNeeded
from fedneighbors.methods.knnper.algorithm import check_finite
from fedneighbors.methods.knnper.memory._clusters import cluster
from fedneighbors.methods.knnper.memory._codes import check_float32
from fedneighbors.methods.knnper.memory._compressed import allocate_centers
from fedneighbors.methods.knnper.memory._rows import check_rows

Narrow = npt.NDArray[np.float32]

MIN_LENGTH = 1e-30
"""Shorter rows count as zero: the factor that scales them to length 1 overflows float32."""

GAMMA_RATIO = 2.5
"""Initial gamma times the median distance of rows to prototypes, as in the authors' code."""


@dataclass(frozen=True, eq=False)
class Prototypes:
    """Trained parameters of ProtoNN.

    Parameters
    ----------
    projection : float32 array of shape (n_dimensions, n_columns)
        W: projects keys to fewer dimensions.
    places : float32 array of shape (n_prototypes, n_dimensions)
        B: positions of the prototypes.
    scores : float32 array of shape (n_prototypes, n_labels)
        Z: score of each prototype for each label.
    gamma : float
        A prototype at distance d has the weight ``exp(-gamma^2 d^2)``.
    """

    projection: Narrow
    places: Narrow
    scores: Narrow
    gamma: float

    @property
    def nbytes(self) -> int:
        """Return the bytes of the tables and of ``gamma``."""
        return self.projection.nbytes + self.places.nbytes + self.scores.nbytes + 4

    def score_shares(self, queries: Floats) -> Floats:
        """Return each label's fraction of the scores; equal if none is positive.

        Weights are relative to the nearest prototype's. Normalized, they are the same, and distant
        queries do not underflow.

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
        squares = _squared_distances(projected, self.places.astype(np.float64))
        weights = np.exp(-(self.gamma**2) * (squares - squares.min(axis=1, keepdims=True)))
        sums_of_scores = np.maximum(weights @ self.scores.astype(np.float64), 0.0)
        sums = sums_of_scores.sum(axis=1, keepdims=True)
        equal = np.full_like(sums_of_scores, 1 / sums_of_scores.shape[1])
        return np.asarray(np.divide(sums_of_scores, sums, out=equal, where=sums > 0))


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
        Dimensions of the projection.
    gamma : float
        As in :class:`Prototypes`.

    Returns
    -------
    loss : float
    gradient : float64 array of shape (n_parameters,)
    """
    shape = (n_dimensions, rows.shape[1], targets.shape[1])
    projection, places, scores = _unpack(parameters, *shape)
    projected = rows @ projection.T
    weights = np.exp(-(gamma**2) * _squared_distances(projected, places))
    residuals = weights @ scores - targets
    score_gradient = 2 / len(rows) * residuals
    distance_gradient = (
        -(gamma**2) * weights * (score_gradient @ scores.T)
    )  # gradient by each squared distance
    to_projected = 2 * (
        distance_gradient.sum(axis=1)[:, None] * projected - distance_gradient @ places
    )
    to_places = 2 * (
        distance_gradient.sum(axis=0)[:, None] * places - distance_gradient.T @ projected
    )
    parts = (to_projected.T @ rows, to_places, weights.T @ score_gradient)
    loss = float((residuals**2).sum() / len(rows))
    return loss, np.concatenate([part.ravel() for part in parts])


def train_prototypes(
    rows: Floats,
    labels: Integers,
    n_labels: int,
    *,
    n_dimensions: int,
    prototypes_per_row: float,
    n_steps: int,
    random_state: int = 0,
) -> Prototypes:
    """Train projection, prototypes and scores together by L-BFGS.

    Initial values: the principal directions of the rows, cluster centers of each class in that
    projection, and score 1 for the class of each center.

    Parameters
    ----------
    rows : float64 array of shape (n_rows, n_columns)
        Keys; at least one.
    labels : int64 array of shape (n_rows,)
        From 0 to ``n_labels - 1``; each has a row.
    n_labels : int
        Number of labels.
    n_dimensions : int
        Maximum number of dimensions of the projection.
    prototypes_per_row : float
        Number of prototypes over number of rows.
    n_steps : int
        Maximum number of steps.
    random_state : int
        Seed of the initial centers.
    """
    length = float(np.sqrt((rows**2).sum(axis=1).mean()))
    scale = length if length > MIN_LENGTH else 1.0
    x = rows / scale if length > MIN_LENGTH else np.zeros_like(rows)
    directions = np.linalg.svd(x - x.mean(axis=0), full_matrices=False)[2][:n_dimensions]
    places, classes = _initialize_prototypes(
        x @ directions.T, labels, n_labels, prototypes_per_row, random_state
    )
    gamma = _initial_gamma(x @ directions.T, places)
    start = np.concatenate([directions.ravel(), places.ravel(), np.eye(n_labels)[classes].ravel()])
    found, _, _ = fmin_l_bfgs_b(
        loss_and_gradient,
        start,
        args=(x, np.eye(n_labels)[labels], len(directions), gamma),
        maxiter=n_steps,
    )
    projection, places, scores = _unpack(found, len(directions), x.shape[1], n_labels)
    return Prototypes(
        (projection / scale).astype(np.float32),
        places.astype(np.float32),
        scores.astype(np.float32),
        gamma,
    )


def _initialize_prototypes(
    projected: Floats, labels: Integers, n_labels: int, prototypes_per_row: float, random_state: int
) -> tuple[Floats, Integers]:
    centers = [
        cluster(np.ascontiguousarray(projected[labels == label]), n, random_state=random_state)[0]
        for label, n in enumerate(
            allocate_centers(np.bincount(labels, minlength=n_labels), prototypes_per_row)
        )
    ]
    return np.concatenate(centers), np.repeat(
        np.arange(n_labels), [len(of_class) for of_class in centers]
    )


def _initial_gamma(projected: Floats, places: Floats) -> float:
    median = float(np.median(np.sqrt(_squared_distances(projected, places))))
    return GAMMA_RATIO / median if median > 0 else 1.0


def _squared_distances(projected: Floats, places: Floats) -> Floats:
    """Compute squared distances by a matrix product."""
    lengths = np.einsum("ij,ij->i", projected, projected)[:, None]
    place_lengths = np.einsum("ij,ij->i", places, places)
    return np.asarray(np.maximum(lengths + place_lengths - 2 * (projected @ places.T), 0.0))


def _unpack(
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


class PrototypeMemory:
    """Memory of ProtoNN prototypes, trained once on the first rows that are added.

    Parameters
    ----------
    n_dimensions : int
        Width of a key.
    n_classes : int
        Number of classes.
    n_projected : int
        Dimensions of the projection.
    prototypes_per_row : float
        Number of prototypes over number of rows, in (0, 1]; each class has at least one.
    n_steps : int
        Maximum number of training steps; more steps overfit a client's few rows.
    random_state : int
        Seed of the initial prototypes.

    Attributes
    ----------
    prototypes : Prototypes or None
        Trained parameters; None before the first rows.
    counts : unsigned integer array of shape (n_labels,)
        Number of rows of each class in ``classes``.
    """

    def __init__(
        self,
        n_dimensions: int,
        n_classes: int,
        *,
        n_projected: int = 10,
        prototypes_per_row: float = 1 / 9,
        n_steps: int = 20,
        random_state: int = 0,
    ) -> None:
        if n_projected < 1 or n_steps < 0 or not 0 < prototypes_per_row <= 1:
            raise ValueError(
                "expected n_projected >= 1, n_steps >= 0 and prototypes_per_row in (0, 1], got "
                f"{n_projected}, {n_steps} and {prototypes_per_row!r}"
            )
        self.n_dimensions, self.n_classes, self.n_projected = n_dimensions, n_classes, n_projected
        self.prototypes_per_row, self.n_steps, self.random_state = (
            prototypes_per_row,
            n_steps,
            random_state,
        )
        self.prototypes: Prototypes | None = None
        self.counts: npt.NDArray[np.unsignedinteger[Any]] = np.empty(0, np.uint8)
        self._classes = np.empty(0, np.min_scalar_type(max(n_classes - 1, 0)))

    def __len__(self) -> int:
        return int(self.counts.sum())

    @property
    def classes(self) -> npt.NDArray[np.unsignedinteger[Any]]:
        """Return the classes with rows, ascending, shape (n_labels,)."""
        return self._classes

    @property
    def keys(self) -> Floats:
        """Raise: prototypes have no keys.

        Raises
        ------
        RebuildNeeded
            Always.
        """
        raise RebuildNeeded(
            "prototypes do not store keys; use another kind of memory where keys are needed"
        )

    @property
    def labels(self) -> Integers:
        """Return the class of each row, ascending."""
        return np.repeat(self._classes.astype(np.int64), self.counts)

    @property
    def recent_labels(self) -> Integers:
        """Return all labels: it is not stored which rows are recent."""
        return self.labels

    @property
    def nbytes(self) -> int:
        """Return the bytes of all tables, classes and counts."""
        tables = 0 if self.prototypes is None else self.prototypes.nbytes
        return int(tables + self._classes.nbytes + self.counts.nbytes)

    def add(
        self,
        keys: npt.ArrayLike,
        labels: npt.ArrayLike,
        ids: Sequence[str] | None = None,  # noqa: ARG002 - prototypes have no names
    ) -> "PrototypeMemory":
        """Train on the first rows that are added.

        Parameters
        ----------
        keys : array of shape (n, n_dimensions)
            Embeddings.
        labels : array of shape (n,)
            Their classes, from 0.
        ids : sequence of str, optional
            Ignored.

        Raises
        ------
        ValueError
            If shapes disagree or a label is not among the classes.
        DataError
            If a key is not finite, or overflows float32.
        RebuildNeeded
            If it was trained before: earlier rows are not stored.
        """
        rows, classes = check_rows(keys, labels, self.n_dimensions, self.n_classes)
        check_float32(rows)
        if not len(rows):
            return self
        if self.prototypes is not None:
            raise RebuildNeeded(
                "prototypes are trained once, and rows are not stored; build a new memory from "
                "all rows"
            )
        present, positions = np.unique(classes, return_inverse=True)
        self.prototypes = train_prototypes(
            rows,
            positions,
            len(present),
            n_dimensions=self.n_projected,
            prototypes_per_row=self.prototypes_per_row,
            n_steps=self.n_steps,
            random_state=self.random_state,
        )
        counts = np.bincount(positions)
        self.counts = counts.astype(np.min_scalar_type(int(counts.max())))
        self._classes = present.astype(self._classes.dtype)
        return self

    def forget(self, ids: Sequence[str]) -> "PrototypeMemory":  # noqa: ARG002 - no row can be removed
        """Raise RebuildNeeded: every prototype depends on all rows.

        Raises
        ------
        RebuildNeeded
            Always.
        """
        raise RebuildNeeded(
            "prototypes depend on all rows; build a new memory from the remaining rows"
        )

    def votes(
        self,
        queries: Floats,
        n_classes: int,
        *,
        n_neighbors: int = 0,  # noqa: ARG002 - all prototypes vote
    ) -> Floats | None:
        """Return the prototypes' score shares; None before the first rows.

        Parameters
        ----------
        queries : float64 array of shape (n_queries, n_dimensions)
            Finite.
        n_classes : int
            Number of classes.
        n_neighbors : int
            Ignored: all prototypes vote, with learned weights.

        Raises
        ------
        ValueError
            If a query is not finite.
        """
        check_finite(queries)
        if self.prototypes is None:
            return None
        shares = np.zeros((len(queries), n_classes))
        shares[:, self._classes] = self.prototypes.score_shares(queries)
        return shares
