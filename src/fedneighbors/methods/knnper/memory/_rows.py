"""Rows of a memory: features, storage with labels and names, and checks of new rows."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Array, Floats
from fedneighbors.errors import DataError
from fedneighbors.methods.knnper.algorithm import check_classes

if TYPE_CHECKING:  # the settings import memories
    from fedneighbors.methods.knnper._settings import Metric


@dataclass(frozen=True, eq=False)
class RowFeatures:
    """Embeddings of rows for a memory, and additional features for the heads of a pool.

    Parameters
    ----------
    embedding : float64 array of shape (n_rows, n_dimensions)
        Output of the network's embedding layer: the keys of a memory. Distances use only these.
    rows : float64 array of shape (n_rows, n_features) or None
        Network inputs; None if no head uses them.
    discriminants : float64 array of shape (n_rows, n_discriminants) or None
        Discriminants of the rows; None if no head uses them.
    """

    embedding: Floats
    rows: Floats | None = None
    discriminants: Floats | None = None

    def __len__(self) -> int:
        return len(self.embedding)

    def __getitem__(self, index: Any) -> "RowFeatures":
        return RowFeatures(self.embedding[index], *(extra[index] for extra in self.extras))

    @property
    def extras(self) -> tuple[Floats, ...]:
        """Return the additional features: rows and discriminants, if any."""
        return tuple(extra for extra in (self.rows, self.discriminants) if extra is not None)

    def table(self) -> Floats:
        """Return all features as columns of one table."""
        return np.hstack([self.embedding, *self.extras]) if self.extras else self.embedding

    def in_metric(self, metric: "Metric") -> "RowFeatures":
        """Return the same features with embeddings transformed for a metric."""
        return replace(self, embedding=in_metric(self.embedding, metric))


def in_metric(keys: Floats, metric: "Metric") -> Floats:
    """Return keys whose Euclidean distances rank like those of the metric.

    Parameters
    ----------
    keys : float64 array of shape (n_rows, n_dimensions)
        Embeddings.
    metric : {"euclidean", "cosine"}
        For ``"cosine"``, keys are scaled to length 1: the squared distance of two keys is twice one
        minus the cosine of their angle. A zero key stays zero.

    Returns
    -------
    float64 array of shape (n_rows, n_dimensions)
    """
    if metric == "euclidean":
        return keys
    largest = np.abs(keys).max(axis=1, keepdims=True, initial=0.0)
    scaled = keys / np.where(largest > 0, largest, 1.0)  # squares neither overflow nor underflow
    lengths = np.sqrt((scaled**2).sum(axis=1, keepdims=True))
    return np.asarray(scaled / np.where(lengths > 0, lengths, 1.0))


def check_rows(
    keys: npt.ArrayLike, labels: npt.ArrayLike, n_dimensions: int, n_classes: int | None
) -> tuple[Floats, Array]:
    """Return keys and labels as arrays, after checks.

    Raises
    ------
    ValueError
        If shapes disagree, or ``n_classes`` is given and a label is not below it.
    DataError
        If a key is not finite.
    """
    rows, values = np.ascontiguousarray(keys, np.float64), np.asarray(labels)
    labels_fit = values.shape[:1] == rows.shape[:1] and (n_classes is None or values.ndim == 1)
    if rows.ndim != 2 or rows.shape[1] != n_dimensions or not labels_fit:
        raise ValueError(
            f"expected keys of width {n_dimensions} and a label for each, got shapes "
            f"{rows.shape} and {values.shape}"
        )
    if n_classes is not None:
        check_classes(values, n_classes)
    if not np.isfinite(rows).all():
        raise DataError("a key is not finite; embed only rows with finite cells")
    return rows, values


class RowWindow:
    """Queue of rows (keys, labels, names, additional features) in arrays with free space.

    The rows are contiguous, so that properties return views without copying. When the free space
    at the end is used up, all rows move to arrays that are larger by a half, so that appending
    takes constant time per row on average. Deleted rows are overwritten with zeros or other rows.
    """

    def __init__(
        self, keys: Array, labels: Array, ids: Sequence[str] = (), extras: Sequence[Array] = ()
    ) -> None:
        self._tables = [table.copy() for table in (keys, labels, *extras)]
        self._start, self._stop = 0, len(keys)
        self._ids, self._id_set = deque(ids), set(ids)

    def __len__(self) -> int:
        return self._stop - self._start

    def __contains__(self, name: object) -> bool:
        return name in self._id_set

    @property
    def keys(self) -> Array:
        """Return a view of the keys, oldest first."""
        return self._tables[0][self._start : self._stop]

    @property
    def labels(self) -> Array:
        """Return a view of the labels, oldest first."""
        return self._tables[1][self._start : self._stop]

    @property
    def extras(self) -> tuple[Array, ...]:
        """Return views of the additional features, oldest first."""
        return tuple(table[self._start : self._stop] for table in self._tables[2:])

    @property
    def ids(self) -> list[str]:
        """Return the names, oldest first."""
        return list(self._ids)

    def append(
        self, keys: Array, labels: Array, ids: Sequence[str], extras: Sequence[Array] = ()
    ) -> None:
        """Append rows; the dtype of labels is widened if necessary."""
        dtype = np.result_type(self._tables[1], labels) if len(self) else labels.dtype
        if dtype != self._tables[1].dtype:
            self._tables[1] = self._tables[1].astype(dtype)
        if self._stop + len(keys) > len(self._tables[0]):
            self._move(len(self) + len(keys))
        stop = self._stop + len(keys)
        for table, new in zip(self._tables, (keys, labels, *extras), strict=True):
            table[self._stop : stop] = new
        self._stop = stop
        self._ids.extend(ids)
        self._id_set.update(ids)

    def drop_first(self, n: int) -> None:
        """Delete the n oldest rows."""
        start = self._start + min(n, len(self))
        for table in self._tables:
            table[self._start : start] = 0
        for _ in range(start - self._start):
            self._id_set.discard(self._ids.popleft())
        self._start = start

    def delete(self, positions: Sequence[int]) -> None:
        """Delete the rows at some positions.

        The last rows move there, so the order changes.
        """
        for position in sorted(positions, reverse=True):
            self._stop -= 1
            for table in self._tables:
                table[self._start + position] = table[self._stop]
                table[self._stop] = 0
            self._id_set.discard(self._ids[position])
            self._ids[position] = self._ids[-1]
            self._ids.pop()

    def keep(self, positions: Sequence[int]) -> None:
        """Delete all rows except those at ``positions``, which must be ascending."""
        indices = np.asarray(positions, np.int64)
        names = self.ids
        ids = [names[position] for position in indices]
        self._tables = [table[self._start + indices] for table in self._tables]
        self._start, self._stop = 0, len(indices)
        self._ids, self._id_set = deque(ids), set(ids)

    def _move(self, n_rows: int) -> None:
        """Move rows to new arrays for ``n_rows`` rows and half as many."""
        size, n = n_rows + n_rows // 2, len(self)
        for i, table in enumerate(self._tables):
            target = np.zeros((size, *table.shape[1:]), table.dtype)
            target[:n] = table[self._start : self._stop]
            self._tables[i] = target
        self._start, self._stop = 0, n


def check_extras(extras: Sequence[Floats], n_rows: int, before: Sequence[Floats]) -> None:
    """Raise unless each extra has ``n_rows`` finite rows.

    Their number and widths must be those of ``before``.
    """
    widths = [extra.shape[1:] for extra in before]
    if [extra.shape for extra in extras] != [(n_rows, *width) for width in widths]:
        raise ValueError(f"expected extras of {n_rows} rows and of widths {widths}")
    if not all(np.isfinite(extra).all() for extra in extras):
        raise DataError("additional features are not finite; embed only rows with finite cells")
