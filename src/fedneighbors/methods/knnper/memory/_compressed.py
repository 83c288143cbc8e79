"""Compressed memories: codes of rows, or centers of each class."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Array, Floats, Integers
from fedneighbors.errors import RebuildNeeded
from fedneighbors.methods.knnper.algorithm import (
    Kernel,
    Neighbors,
    check_classes,
    check_finite,
    local_votes,
)
from fedneighbors.methods.knnper.memory._clusters import cluster
from fedneighbors.methods.knnper.memory._codes import (
    Bytes,
    Codec,
    EightBitCodec,
    ProductCodec,
    check_float32,
)
from fedneighbors.methods.knnper.memory._datastore import Datastore
from fedneighbors.methods.knnper.memory._rows import RowWindow, check_rows

MAX_ROWS = 1 << 22
"""Maximum number of rows represented by the centers of a memory.

It limits the memory that a file with huge counts can allocate, because a pool's heads are fitted on
one key per represented row.
"""


@dataclass
class CodedDatastore(Datastore):
    """Memory of coded keys, with the capacity and strategies of :class:`~._datastore.Datastore`.

    Labels take as few bytes as ``n_classes`` allows.

    Parameters
    ----------
    n_dimensions, capacity, strategy, random_state, n_classes
        As in :class:`~._datastore.Datastore`.
    codec : Codec
        Codec of keys. A product codec without a codebook is fitted on the first rows.

    Examples
    --------
    >>> from fedneighbors.methods.knnper.memory._codes import EightBitCodec
    >>> memory = CodedDatastore(2, n_classes=3, codec=EightBitCodec(2))
    >>> memory.add([[0.0, 1.0], [5.0, 5.0]], [2, 0]).nearest(np.array([[4.0, 4.0]]), 1).positions
    array([[1]])
    >>> memory.nbytes  # a scale of 8 bytes, two coordinates and a label per row
    22
    """

    codec: Codec = field(kw_only=True)

    def __post_init__(self) -> None:
        book = self.codec.book if isinstance(self.codec, ProductCodec) else None
        if book is not None and book.n_dimensions != self.n_dimensions:
            raise ValueError(
                f"expected a codebook of keys of width {self.n_dimensions}, got {book.n_dimensions}"
            )
        super().__post_init__()

    @property
    def keys(self) -> Floats:
        """Return the decoded keys, which are computed on each access.

        Shape (n_keys, n_dimensions).
        """
        return self.codec.decode(self.codes) if len(self) else np.empty((0, self.n_dimensions))

    @property
    def codes(self) -> Bytes:
        """Return a view of the codes of keys.

        Shape (n_keys, n_bytes).
        """
        return np.asarray(self._rows.keys)

    @property
    def nbytes(self) -> int:
        """Return the bytes of codes, labels and the memory's own codebook."""
        return super().nbytes + (self.codec.nbytes if self.codec.learned_here else 0)

    def forget(self, ids: Iterable[object]) -> "CodedDatastore":
        """Delete keys by name.

        Raises
        ------
        TypeError, KeyError
            As in :meth:`Datastore.forget`.
        RebuildNeeded
            If the codebook was fitted on rows of this memory: it contains information about them.
        """
        if self.codec.learned_here:
            raise RebuildNeeded(
                "the codebook was fitted on these rows and would still contain information about "
                "deleted rows; build the memory again from the remaining rows, or use an external "
                "codebook"
            )
        super().forget(ids)
        return self

    def restore_codes(
        self, codes: Bytes, labels: Array, ids: Sequence[str], state: dict[str, Any]
    ) -> "CodedDatastore":
        """Restore a memory from codes, as :meth:`restore` does from keys.

        Parameters
        ----------
        codes : uint8 array of shape (n_keys, n_bytes)
            Value of :attr:`codes`.
        labels, ids, state
            As in :meth:`restore`.

        Raises
        ------
        ValueError
            If they are not parts of a valid memory.
        """
        self.codec.check_codes(codes)
        values = self._narrow(np.asarray(labels))
        if len(values) != len(codes):
            raise ValueError(f"expected a label for each of {len(codes)} codes, got {len(values)}")
        self._rows = RowWindow(codes, values, self._names(len(codes), ids))
        self._restore_state(state)
        return self

    def nearest(self, queries: Floats, k: int, *, skip: Integers | None = None) -> Neighbors:
        """Return the k nearest decoded keys of each query.

        Ties go to the earlier key; ``skip`` is as in :func:`~.algorithm.nearest`.

        Raises
        ------
        ValueError
            If a query is not finite, or k is below 1.
        """
        check_finite(queries)
        if not len(self):
            return Neighbors(np.empty((len(queries), 0), np.int64), np.empty((len(queries), 0)))
        return self.codec.nearest(self.codes, queries, k, skip=skip)

    def _new_window(self, labels: Array, extras: Sequence[Floats] = ()) -> RowWindow:
        keys, empty = np.empty((0, self.codec.n_bytes), np.uint8), [extra[:0] for extra in extras]
        return RowWindow(keys, self._narrow(labels[:0]), extras=empty)

    def _encode(self, rows: Floats) -> Bytes:
        if not len(rows):
            return self.codes[:0]
        codec = self.codec.fit(rows)
        if codec is not self.codec:  # fitted on these rows, which are the first
            self.codec = codec
            self._rows = self._new_window(self._rows.labels, self.extras)
        return codec.encode(rows)

    def _check_new_rows(
        self, keys: npt.ArrayLike, labels: npt.ArrayLike, ids: Iterable[object] | None
    ) -> tuple[Floats, Array, list[str]]:
        rows, values, names = super()._check_new_rows(keys, labels, ids)
        check_float32(rows)
        return rows, self._narrow(values), names

    def _narrow(self, values: Array) -> Array:
        """Convert classes to the narrowest dtype; return other values unchanged."""
        if self.n_classes is None or values.dtype.kind not in "iu":
            return values
        check_classes(values, self.n_classes)
        return values.astype(np.min_scalar_type(self.n_classes - 1))


@dataclass(eq=False)
class ClassCenters:
    """Centers of each class's keys, whose votes are weighted by the rows they represent.

    Rows are not stored, so they cannot be deleted. A center is a mean of keys, or a single key if a
    class has few rows. Centers therefore can reveal rows.

    Parameters
    ----------
    n_dimensions : int
        Width of a key.
    n_classes : int
        Number of classes.
    centers_per_row : float
        Number of centers per row, in (0, 1]; each class with rows has at least one center.
    random_state : int
        Seed of k-means.

    Attributes
    ----------
    codes : uint8 array of shape (n_centers, n_bytes)
        Centers with eight bits per coordinate.
    classes, counts : unsigned integer array of shape (n_centers,)
        Class of each center, and the number of rows that it represents.
    """

    extras: ClassVar[tuple[Floats, ...]] = ()

    n_dimensions: int
    n_classes: int
    centers_per_row: float = 1 / 9
    random_state: int = 0
    codes: Bytes = field(init=False, repr=False)
    classes: Array = field(init=False, repr=False)
    counts: Array = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 < self.centers_per_row <= 1:
            raise ValueError(f"expected centers_per_row in (0, 1], got {self.centers_per_row!r}")
        self._codec = EightBitCodec(self.n_dimensions)
        self.codes = np.empty((0, self._codec.n_bytes), np.uint8)
        self.classes = np.empty(0, np.min_scalar_type(max(self.n_classes - 1, 0)))
        self.counts = np.empty(0, np.uint8)

    def __len__(self) -> int:
        return int(self.counts.sum())

    @property
    def centers(self) -> Floats:
        """Return the centers, shape (n_centers, n_dimensions)."""
        return self._codec.decode(self.codes)

    @property
    def keys(self) -> Floats:
        """Return the center of each represented row."""
        return np.repeat(self.centers, self.counts, axis=0)

    @property
    def labels(self) -> Integers:
        """Return the class of each represented row, in the order of :attr:`keys`."""
        return np.repeat(self.classes.astype(np.int64), self.counts)

    @property
    def recent_labels(self) -> Integers:
        """Return all labels: it is not stored which rows are recent."""
        return self.labels

    @property
    def nbytes(self) -> int:
        """Return the bytes of codes, classes and counts."""
        return int(self.codes.nbytes + self.classes.nbytes + self.counts.nbytes)

    def add(
        self,
        keys: npt.ArrayLike,
        labels: npt.ArrayLike,
        ids: Iterable[object] | None = None,  # noqa: ARG002 - centers have no names
        *,
        extras: Sequence[Floats] = (),  # noqa: ARG002 - nor additional features
    ) -> "ClassCenters":
        """Compute new centers from the current centers and new rows.

        Parameters
        ----------
        keys : array of shape (n, n_dimensions)
            Embeddings.
        labels : array of shape (n,)
            Class of each row, from 0.
        ids, extras
            Ignored.

        Raises
        ------
        ValueError
            If shapes disagree or a label is not among the classes.
        DataError
            If a key is not finite, or overflows float32.
        """
        rows, classes = check_rows(keys, labels, self.n_dimensions, self.n_classes)
        check_float32(rows)
        weights = np.concatenate([self.counts.astype(np.float64), np.ones(len(rows))])
        self._recluster(
            np.concatenate([self.centers, rows]),
            np.concatenate([self.classes.astype(np.int64), classes.astype(np.int64)]),
            weights,
        )
        return self

    def restore(self, codes: Bytes, classes: Array, counts: Array) -> "ClassCenters":
        """Restore a memory from :attr:`codes`, :attr:`classes` and :attr:`counts`.

        Raises
        ------
        ValueError
            If they are not parts of a valid memory.
        """
        self._codec.check_codes(codes)
        if counts.shape != (len(codes),) or counts.dtype.kind != "u":
            raise ValueError(
                f"expected {len(codes)} counts of rows, got {counts.dtype} of {counts.shape}"
            )
        if not (counts > 0).all() or sum(counts.tolist()) >= MAX_ROWS:
            raise ValueError(f"counts of rows must be 1 or more and sum to less than {MAX_ROWS}")
        check_classes(classes, self.n_classes)
        if classes.shape != counts.shape:
            raise ValueError(f"expected a class for each center, got shape {classes.shape}")
        self.codes, self.counts = codes, counts
        self.classes = classes.astype(self.classes.dtype)
        return self

    def forget(self, ids: Sequence[str]) -> "ClassCenters":  # noqa: ARG002 - always an error
        """Raise RebuildNeeded: a row cannot be removed from a mean.

        Raises
        ------
        RebuildNeeded
            Always.
        """
        raise RebuildNeeded(
            "centers are means of rows, so single rows cannot be deleted; build the memory again "
            "from the remaining rows"
        )

    def nearest(self, queries: Floats, k: int) -> Neighbors:
        """Find the k nearest centers of each query, or all if fewer."""
        return self._codec.nearest(self.codes, queries, k)

    def votes(
        self,
        queries: Floats,
        n_classes: int,
        *,
        n_neighbors: int,
        kernel: Kernel = "paper",
        sigma: float = 1.0,
    ) -> Floats | None:
        """Return the vote shares of the nearest centers; None without centers.

        ``n_neighbors`` is the number of nearest centers; the other parameters are as in
        :func:`~.algorithm.local_votes`.

        Raises
        ------
        ValueError
            If a query is not finite.
        """
        if not len(self):
            return None
        neighbors = self.nearest(queries, n_neighbors)
        counts = self.counts.astype(np.float64)
        return local_votes(
            neighbors, self.classes, n_classes, kernel=kernel, sigma=sigma, counts=counts
        )

    def _recluster(self, rows: Floats, classes: Integers, weights: Floats) -> None:
        """Compute new centers of rows that each represent ``weights`` rows."""
        present, index = np.unique(classes, return_inverse=True)
        n_rows = np.bincount(index, weights).astype(np.int64)
        codes, counts, center_classes = [self.codes[:0]], [np.empty(0, np.int64)], []
        for i, n_centers in enumerate(allocate_centers(n_rows, self.centers_per_row)):
            mask = index == i
            centers, nearest = cluster(
                rows[mask], n_centers, weights=weights[mask], random_state=self.random_state
            )
            codes.append(self._codec.encode(centers))
            counts.append(np.bincount(nearest, weights[mask]).astype(np.int64))
            center_classes += [int(present[i])] * len(centers)
        all_counts = np.concatenate(counts)
        self.codes = np.concatenate(codes)
        self.classes = np.array(center_classes, self.classes.dtype)
        self.counts = all_counts.astype(np.min_scalar_type(int(all_counts.max(initial=0))))


def allocate_centers(n_rows: Integers, centers_per_row: float) -> list[int]:
    """Return the number of centers of each class.

    Each class gets one; each further center goes to the class with most rows per center.

    Parameters
    ----------
    n_rows : int64 array of shape (n_classes,)
        Number of rows of each class, 1 or more.
    centers_per_row : float
        Number of centers per row.

    Returns
    -------
    list of int
        The sum is ``centers_per_row`` times the number of rows, rounded, or the number of classes
        if that is more. Ties go
        to the first class.

    Examples
    --------
    >>> allocate_centers(np.array([1, 20, 9]), 0.2)
    [1, 3, 2]
    """
    n_centers = [1] * len(n_rows)
    for _ in range(int(np.floor(centers_per_row * n_rows.sum() + 0.5)) - len(n_rows)):
        n_centers[int(np.argmax(n_rows / n_centers))] += 1
    return n_centers


Memory = Datastore | ClassCenters
"""A client's memory: a key for each row, or centers."""
