"""A memory of learned prototypes, as the paper's Figure 11 has it; keys are gone."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats, Integers
from fedneighbors.errors import RebuildNeeded
from fedneighbors.methods.knnper.algorithm import Kernel
from fedneighbors.methods.knnper.memory._search import refuse_infinite
from fedneighbors.methods.knnper.memory.compression._codes import (
    checked_rows,
    refuse_counts,
    refuse_foreign,
)
from fedneighbors.methods.knnper.memory.compression._prototypes import Prototypes, trained


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
        What was trained; None before the first rows.
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
        """Classes that have rows, ascending; shape (n_labels,)."""
        return self._classes

    @property
    def keys(self) -> Floats:
        """Refused: prototypes keep no keys.

        Raises
        ------
        RebuildNeeded
            Always.
        """
        raise RebuildNeeded("prototypes keep no keys; use another kind of memory where keys count")

    @property
    def labels(self) -> Integers:
        """Class of each row, ascending."""
        return np.repeat(self._classes.astype(np.int64), self.counts)

    @property
    def recent_labels(self) -> Integers:
        """Class of each row: when rows came is not kept."""
        return self.labels

    @property
    def nbytes(self) -> int:
        """Bytes of projection, prototypes and scores, of the classes and their counts."""
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
            Not kept.

        Raises
        ------
        ValueError
            If shapes disagree or a label is none of the classes.
        DataError
            If a key is not finite, or beyond what 32 bits hold.
        RebuildNeeded
            If it was trained before: the rows of then are not kept.
        """
        rows, classes = checked_rows(keys, labels, self.n_dimensions, self.n_classes)
        if not len(rows):
            return self
        if self.prototypes is not None:
            raise RebuildNeeded(
                "prototypes are trained once, and the rows are not kept; build the memory anew "
                "from all rows"
            )
        present, own = np.unique(classes, return_inverse=True)
        self.prototypes = trained(
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

    def restore(
        self,
        prototypes: Prototypes | None,
        classes: npt.NDArray[Any],
        counts: npt.NDArray[Any],
    ) -> "PrototypeMemory":
        """Become the memory whose attributes and :attr:`classes` these are.

        Raises
        ------
        ValueError
            If they are no parts of a memory.
        """
        n_labels = 0
        if prototypes is not None:
            prototypes.refuse_impossible()
            n_labels = prototypes.scores.shape[1]
            if prototypes.projection.shape[1] != self.n_dimensions:
                raise ValueError(f"expected a projection of keys of width {self.n_dimensions}")
        refuse_counts(counts, n_labels)
        refuse_foreign(classes, self.n_classes)
        if classes.shape != counts.shape or (np.diff(classes.astype(np.int64)) <= 0).any():
            raise ValueError("expected ascending classes, one for each score")
        self.prototypes, self.counts = prototypes, counts
        self._classes = classes.astype(self._classes.dtype)
        return self

    def forget(self, ids: Sequence[str]) -> "PrototypeMemory":  # noqa: ARG002 - none can go
        """Refuse: all rows have shaped all prototypes.

        Raises
        ------
        RebuildNeeded
            Always.
        """
        raise RebuildNeeded(
            "prototypes are shaped by all rows; build the memory anew from the rows that stay"
        )

    def votes(
        self,
        queries: Floats,
        n_classes: int,
        *,
        n_neighbors: int = 0,  # noqa: ARG002 - all prototypes have a say
        kernel: Kernel = "paper",  # noqa: ARG002 - and their own weights
        sigma: float = 1.0,  # noqa: ARG002
    ) -> Floats | None:
        """Return the classes' shares of the prototypes' scores; None before the first rows.

        Parameters
        ----------
        queries : float64 array of shape (n_queries, n_dimensions)
            Finite.
        n_classes : int
            Classes.
        n_neighbors, kernel, sigma
            Not used: all prototypes have a say, with weights that were learned.

        Raises
        ------
        ValueError
            If a query is not finite.
        """
        refuse_infinite(queries)
        if self.prototypes is None:
            return None
        shares = np.zeros((len(queries), n_classes))
        shares[:, self._classes] = self.prototypes.shares(queries)
        return shares
