"""A memory of centers: each class's rows are drawn together, and a center stands for so many."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats, Integers
from fedneighbors.errors import RebuildNeeded
from fedneighbors.kernels.vectors._distances import square_sums
from fedneighbors.methods.knnper.algorithm import Kernel, local_votes
from fedneighbors.methods.knnper.memory.compression._codes import (
    Bytes,
    EightBitCodec,
    checked_rows,
    refuse_counts,
    refuse_foreign,
)

MOST_STEPS = 25


def clustered(
    rows: Floats, n_centers: int, *, weights: Floats | None = None, random_state: int = 0
) -> tuple[Floats, Integers]:
    """Return centers of rows, and which center each row belongs to.

    Parameters
    ----------
    rows : float64 array of shape (n_rows, n_columns), C order
        Finite; their squared distances must be finite too.
    n_centers : int
        Most centers. Where rows are fewer, or alike, each is a center of its own.
    weights : float64 array of shape (n_rows,), optional
        How many rows each stands for, above 0.
    random_state : int
        Of the first centers.

    Returns
    -------
    centers : float64 array of shape (n, n_columns)
        Each is the nearest of at least one row.
    owners : int64 array of shape (n_rows,)
        The nearest center of each row, the earlier of equally near ones.

    Raises
    ------
    ValueError
        If ``n_centers`` is below 1 or a weight is not above 0.
    """
    weights = np.ones(len(rows)) if weights is None else weights
    if n_centers < 1 or not (weights > 0).all():
        raise ValueError(f"expected a center or more and weights above 0, got {n_centers}")
    centers = first_centers(rows, n_centers, weights, np.random.default_rng(random_state))
    owners = _owners(rows, centers)
    for _ in range(MOST_STEPS):
        centers = moved(rows, weights, centers, owners)
        before, owners = owners, _owners(rows, centers)
        if np.array_equal(before, owners):
            break
    kept = np.unique(owners)
    return centers[kept], np.searchsorted(kept, owners)


def first_centers(
    rows: Floats, n_centers: int, weights: Floats, random: np.random.Generator
) -> Floats:
    """Return rows that lie apart, drawn by their squared distance to those before (k-means++).

    Parameters
    ----------
    rows, n_centers, weights
        As :func:`clustered` takes them.
    random : Generator
        One number is drawn for each center.

    Returns
    -------
    float64 array of shape (n, n_columns)
        Fewer than ``n_centers`` where no other row lies apart from them.
    """
    chosen: list[int] = []
    squares = np.ones(len(rows))
    while len(chosen) < n_centers and len(rows):
        heights = np.cumsum(weights * squares)
        if not heights[-1] > 0:
            break
        place = int(np.searchsorted(heights, random.random() * heights[-1], side="right"))
        # A product that was rounded up to the last height lies behind all rows.
        chosen.append(min(place, int(np.flatnonzero(squares)[-1])))
        apart = square_sums(rows, rows[chosen[-1]])
        squares = apart if len(chosen) == 1 else np.minimum(squares, apart)
    return rows[chosen]


def moved(rows: Floats, weights: Floats, centers: Floats, owners: Integers) -> Floats:
    """Return the centers at the means of their rows; those without rows stay where they are.

    Parameters
    ----------
    rows, weights
        As :func:`clustered` takes them.
    centers : float64 array of shape (n, n_columns)
        Where they are.
    owners : int64 array of shape (n_rows,)
        The center of each row.
    """
    sums = np.zeros_like(centers)
    np.add.at(sums, owners, weights[:, None] * rows)  # one row after another: one order
    totals = np.bincount(owners, weights, minlength=len(centers))
    full = totals > 0
    sums[full] /= totals[full, None]
    sums[~full] = centers[~full]
    return sums


def _owners(rows: Floats, centers: Floats) -> Integers:
    if not len(rows):
        return np.empty(0, np.int64)
    squares = np.stack([square_sums(rows, center) for center in centers])
    return np.asarray(squares.argmin(axis=0), np.int64)


class ClassCenters:
    """Centers of each class's keys, which vote by how many rows they stand for.

    Rows are not kept: a center is a mean of rows, and of one row where a class has few. So no
    row can be deleted, and centers reveal rows as a memory does.

    Parameters
    ----------
    n_dimensions : int
        Width of a key.
    n_classes : int
        Classes.
    share : float
        Centers over rows, in (0, 1]; each class has one at least.
    random_state : int
        Of the first centers.

    Attributes
    ----------
    counts : unsigned integer array of shape (n_centers,)
        Rows that each center stands for.
    """

    def __init__(
        self, n_dimensions: int, n_classes: int, *, share: float = 1 / 9, random_state: int = 0
    ) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"expected a share above 0 up to 1, got {share!r}")
        self.n_dimensions, self.n_classes, self.share = n_dimensions, n_classes, share
        self.random_state = random_state
        self._codec = EightBitCodec(n_dimensions)
        self._codes = np.empty((0, self._codec.n_bytes), np.uint8)
        self._classes = np.empty(0, np.min_scalar_type(max(n_classes - 1, 0)))
        self.counts: npt.NDArray[np.unsignedinteger[Any]] = np.empty(0, np.uint8)

    def __len__(self) -> int:
        return int(self.counts.sum())

    @property
    def centers(self) -> Floats:
        """Where the centers are, shape (n_centers, n_dimensions)."""
        return self._codec.decode(self._codes)

    @property
    def codes(self) -> Bytes:
        """Centers in eight bits a cell, shape (n_centers, n_bytes)."""
        return self._codes

    @property
    def classes(self) -> npt.NDArray[np.unsignedinteger[Any]]:
        """Class of each center, shape (n_centers,)."""
        return self._classes

    @property
    def keys(self) -> Floats:
        """For each row the center that stands for it."""
        return np.repeat(self.centers, self.counts, axis=0)

    @property
    def labels(self) -> Integers:
        """Class of each row, in the order of :attr:`keys`."""
        return np.repeat(self._classes.astype(np.int64), self.counts)

    @property
    def recent_labels(self) -> Integers:
        """Class of each row: when rows came is not kept."""
        return self.labels

    @property
    def nbytes(self) -> int:
        """Bytes of centers, in eight bits a cell, their classes and counts."""
        return int(self._codes.nbytes + self._classes.nbytes + self.counts.nbytes)

    def add(
        self,
        keys: npt.ArrayLike,
        labels: npt.ArrayLike,
        ids: Sequence[str] | None = None,  # noqa: ARG002 - centers have no names
    ) -> "ClassCenters":
        """Draw new rows and the centers so far together to new centers.

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
        """
        rows, classes = checked_rows(keys, labels, self.n_dimensions, self.n_classes)
        weights = np.concatenate([self.counts.astype(np.float64), np.ones(len(rows))])
        self._gather(
            np.concatenate([self.centers, rows]),
            np.concatenate([self._classes.astype(np.int64), classes]),
            weights,
        )
        return self

    def restore(
        self, codes: Bytes, classes: npt.NDArray[Any], counts: npt.NDArray[Any]
    ) -> "ClassCenters":
        """Become the memory whose :attr:`codes`, :attr:`classes` and :attr:`counts` these are.

        Raises
        ------
        ValueError
            If they are no parts of a memory.
        """
        self._codec.refuse_codes(codes)
        refuse_counts(counts, len(codes))
        refuse_foreign(classes, self.n_classes)
        if classes.shape != counts.shape:
            raise ValueError(f"expected a class for each center, got shape {classes.shape}")
        self._codes, self.counts = codes, counts
        self._classes = classes.astype(self._classes.dtype)
        return self

    def forget(self, ids: Sequence[str]) -> "ClassCenters":  # noqa: ARG002 - none can go
        """Refuse: a row is part of a mean.

        Raises
        ------
        RebuildNeeded
            Always.
        """
        raise RebuildNeeded(
            "centers are means of rows, of which none can be deleted alone; build the memory anew "
            "from the rows that stay"
        )

    def votes(
        self,
        queries: Floats,
        n_classes: int,
        *,
        n_neighbors: int,
        kernel: Kernel = "paper",
        sigma: float = 1.0,
    ) -> Floats | None:
        """Return the shares of the votes of the nearest centers; None if there are none.

        Parameters
        ----------
        queries : float64 array of shape (n_queries, n_dimensions), C order
            Finite.
        n_classes : int
            Classes.
        n_neighbors : int
            Centers that vote.
        kernel, sigma
            As :func:`~.algorithm.local_votes` takes them.

        Raises
        ------
        ValueError
            If a query is not finite.
        """
        if not len(self):
            return None
        found = self._codec.nearest(self._codes, queries, n_neighbors)
        counts = self.counts.astype(np.float64)
        return local_votes(
            found, self._classes, n_classes, kernel=kernel, sigma=sigma, counts=counts
        )

    def _gather(self, rows: Floats, classes: Integers, weights: Floats) -> None:
        present, owner = np.unique(classes, return_inverse=True)
        n_rows = np.bincount(owner, weights).astype(np.int64)
        codes, counts, kept = [self._codes[:0]], [np.empty(0, np.int64)], []
        for place, n_centers in enumerate(dealt(n_rows, self.share)):
            own = owner == place
            centers, nearest = clustered(
                rows[own], n_centers, weights=weights[own], random_state=self.random_state
            )
            codes.append(self._codec.encode(centers))
            counts.append(np.bincount(nearest, weights[own]).astype(np.int64))
            kept += [int(present[place])] * len(centers)
        each = np.concatenate(counts)
        self._codes = np.concatenate(codes)
        self._classes = np.array(kept, self._classes.dtype)
        self.counts = each.astype(np.min_scalar_type(int(each.max(initial=0))))


def dealt(n_rows: Integers, share: float) -> list[int]:
    """Return how many centers each class gets: one, and the rest to where most rows share one.

    Parameters
    ----------
    n_rows : int64 array of shape (n_classes,)
        Rows of each class, 1 or more.
    share : float
        Centers over rows.

    Returns
    -------
    list of int
        Their sum is ``share`` of the rows, rounded, or the number of classes if that is more. Of
        equally crowded classes the first comes first.

    Examples
    --------
    >>> dealt(np.array([1, 20, 9]), 0.2)
    [1, 3, 2]
    """
    each = [1] * len(n_rows)
    for _ in range(int(np.floor(share * n_rows.sum() + 0.5)) - len(n_rows)):
        each[int(np.argmax(n_rows / each))] += 1
    return each
