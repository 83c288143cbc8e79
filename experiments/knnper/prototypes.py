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

SHORTEST = 1e-30
"""Rows of a length below this are all alike: what would stretch them is beyond 32 bits."""

REACH = 2.5
"""gamma times the median distance of rows to prototypes, as the authors begin with."""


@dataclass(frozen=True, eq=False)
class Prototypes:
    """Memory of three small tables and a number.

    Parameters
    ----------
    projection : float32 array of shape (n_dimensions, n_columns)
        W: brings keys to few dimensions.
    places : float32 array of shape (n_prototypes, n_dimensions)
        B: positions of the prototypes.
    scores : float32 array of shape (n_prototypes, n_labels)
        Z: score of each prototype for each label.
    gamma : float
        Reach of a prototype: it weighs ``exp(-gamma^2 d^2)``.
    """

    projection: Narrow
    places: Narrow
    scores: Narrow
    gamma: float

    @property
    def nbytes(self) -> int:
        """Return the bytes of the tables and of ``gamma``."""
        return self.projection.nbytes + self.places.nbytes + self.scores.nbytes + 4

    def shares(self, queries: Floats) -> Floats:
        """Return the labels' score shares; equal ones if none is positive.

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


def train_prototypes(
    rows: Floats,
    labels: Integers,
    n_labels: int,
    *,
    n_dimensions: int,
    share: float,
    n_steps: int,
    random_state: int = 0,
) -> Prototypes:
    """Train prototypes on rows by L-BFGS steps on all tables.

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
        cluster(np.ascontiguousarray(projected[labels == label]), n, random_state=random_state)[0]
        for label, n in enumerate(allocate_centers(np.bincount(labels, minlength=n_labels), share))
    ]
    return np.concatenate(each), np.repeat(np.arange(n_labels), [len(own) for own in each])


def _gamma(projected: Floats, places: Floats) -> float:
    middle = float(np.median(np.sqrt(_squares(projected, places))))
    return REACH / middle if middle > 0 else 1.0


def _squares(projected: Floats, places: Floats) -> Floats:
    """Compute squared distances by a product, without all differences."""
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


class PrototypeMemory:
    """Prototypes in a learned projection, trained on the first rows that come.

    Parameters
    ----------
    n_dimensions : int
        Width of a key.
    n_classes : int
        Classes.
    n_projected : int
        Dimensions of the projection.
    share : float
        Prototypes over rows, in (0, 1]; each class has one at least.
    n_steps : int
        Most steps of the training; more fit a client's few rows too well.
    random_state : int
        Of the first prototypes.

    Attributes
    ----------
    prototypes : Prototypes or None
        Trained parameters; None before the first rows.
    counts : unsigned integer array of shape (n_labels,)
        Rows of each class that has any.
    """

    def __init__(
        self,
        n_dimensions: int,
        n_classes: int,
        *,
        n_projected: int = 10,
        share: float = 1 / 9,
        n_steps: int = 20,
        random_state: int = 0,
    ) -> None:
        if n_projected < 1 or n_steps < 0 or not 0 < share <= 1:
            raise ValueError(
                "expected a dimension or more, steps of 0 or more and a share above 0 up to 1, got "
                f"{n_projected}, {n_steps} and {share!r}"
            )
        self.n_dimensions, self.n_classes, self.n_projected = n_dimensions, n_classes, n_projected
        self.share, self.n_steps, self.random_state = share, n_steps, random_state
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
        raise RebuildNeeded("prototypes keep no keys; use another kind of memory where keys count")

    @property
    def labels(self) -> Integers:
        """Return the class of each row, ascending."""
        return np.repeat(self._classes.astype(np.int64), self.counts)

    @property
    def recent_labels(self) -> Integers:
        """Return each row's class.

        The time of rows is not stored.
        """
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
        """Train on the first rows that come.

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
                "prototypes are trained once, and the rows are not kept; build the memory again "
                "from all rows"
            )
        present, own = np.unique(classes, return_inverse=True)
        self.prototypes = train_prototypes(
            rows,
            own,
            len(present),
            n_dimensions=self.n_projected,
            share=self.share,
            n_steps=self.n_steps,
            random_state=self.random_state,
        )
        counts = np.bincount(own)
        self.counts = counts.astype(np.min_scalar_type(int(counts.max())))
        self._classes = present.astype(self._classes.dtype)
        return self

    def forget(self, ids: Sequence[str]) -> "PrototypeMemory":  # noqa: ARG002 - none can go
        """Raise `RebuildNeeded`: every prototype depends on all rows.

        Raises
        ------
        RebuildNeeded
            Always.
        """
        raise RebuildNeeded(
            "prototypes are shaped by all rows; build the memory again from the rows that stay"
        )

    def votes(
        self,
        queries: Floats,
        n_classes: int,
        *,
        n_neighbors: int = 0,  # noqa: ARG002 - all prototypes have a say
    ) -> Floats | None:
        """Return the prototypes' score shares; None before the first rows.

        Parameters
        ----------
        queries : float64 array of shape (n_queries, n_dimensions)
            Finite.
        n_classes : int
            Classes.
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
        shares[:, self._classes] = self.prototypes.shares(queries)
        return shares
