"""What the shared model sees in every client's rows, computed once and never changed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Integers
from fedneighbors.errors import DataError
from fedneighbors.tabular._ownership import party_name


@dataclass(frozen=True, eq=False)
class EmbeddingBank:
    """Embeddings and labels of all clients, each client's rows side by side (Eq 3 of the paper).

    After it, neighbors, mixtures, capacities, drift and compression need no neural network.

    Parameters
    ----------
    embeddings : float32 or float64 array of shape (n_rows, n_dimensions), C order
        phi(x) of each row, finite.
    labels : array of shape (n_rows,) or (n_rows, n_outputs)
        Class of each row, from 0; or targets.
    rows : int64 array of shape (n_rows,)
        Where each row stands in the table that it came from.
    names : tuple of str
        The clients, in the order of their rows.
    offsets : int64 array of shape (n_clients + 1,)
        Client ``i`` owns the rows from ``offsets[i]`` up to ``offsets[i + 1]``.

    Raises
    ------
    DataError
        If an embedding is not finite; the client is named.
    ValueError
        If shapes disagree or a client is named twice.
    """

    embeddings: npt.NDArray[np.floating[Any]]
    labels: npt.NDArray[Any]
    rows: Integers
    names: tuple[str, ...]
    offsets: Integers

    def __post_init__(self) -> None:
        n = len(self.embeddings)
        if self.embeddings.ndim != 2 or len(self.labels) != n or len(self.rows) != n:
            raise ValueError(
                f"expected a label and a place for each embedding, got {self.embeddings.shape}, "
                f"{self.labels.shape} and {self.rows.shape}"
            )
        if len(set(self.names)) != len(self.names):
            raise ValueError(f"expected each client once, got {self.names}")
        ends = self.offsets
        if (
            len(ends) != len(self.names) + 1
            or ends[0] != 0
            or ends[-1] != n
            or (np.diff(ends) < 0).any()
        ):
            raise ValueError(f"expected offsets from 0 to {n}, ascending, one more than clients")
        self._refuse_infinite()
        for array in (self.embeddings, self.labels, self.rows, self.offsets):
            array.flags.writeable = False

    def _refuse_infinite(self) -> None:
        bad = ~np.isfinite(self.embeddings).all(axis=1)
        if bad.any():
            place = int(np.flatnonzero(bad)[0])
            name = self.names[int(np.searchsorted(self.offsets, place, side="right")) - 1]
            raise DataError(
                f"client {name!r}: {int(bad.sum())} embeddings of the bank are not finite; the "
                "shared model has diverged, or its input was: lower its learning rate"
            )

    @classmethod
    def collect(
        cls,
        embeddings: npt.NDArray[np.floating[Any]],
        labels: npt.NDArray[Any],
        owners: Sequence[str] | npt.NDArray[Any],
    ) -> "EmbeddingBank":
        """Sort rows by their owner; the rows of one owner keep their order.

        Parameters
        ----------
        embeddings : array of shape (n_rows, n_dimensions)
            phi(x) of each row.
        labels : array of shape (n_rows,) or (n_rows, n_outputs)
            Classes or targets.
        owners : sequence of shape (n_rows,)
            Name of the client that owns each row.

        Raises
        ------
        ValueError
            If a row has no owner, or as the class raises it.
        """
        who = np.array([party_name(name) for name in np.asarray(owners, object)], np.str_)
        names, owner = np.unique(who, return_inverse=True)
        order = np.argsort(owner, kind="stable")
        sizes = np.bincount(owner, minlength=len(names))
        return cls(
            np.ascontiguousarray(embeddings[order]),
            np.ascontiguousarray(np.asarray(labels)[order]),
            order.astype(np.int64),
            tuple(names.tolist()),
            np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        )

    def __len__(self) -> int:
        return len(self.embeddings)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    @property
    def sizes(self) -> Mapping[str, int]:
        """Rows of each client."""
        return dict(zip(self.names, np.diff(self.offsets).tolist(), strict=True))

    @property
    def nbytes(self) -> int:
        """Bytes of embeddings and labels."""
        return int(self.embeddings.nbytes + self.labels.nbytes)

    def span(self, name: str) -> slice:
        """Return where a client's rows stand.

        Raises
        ------
        KeyError
            If there is no such client.
        """
        if name not in self.names:
            raise KeyError(f"the bank has no client {name!r}")
        place = self.names.index(name)
        return slice(int(self.offsets[place]), int(self.offsets[place + 1]))

    def of(self, name: str) -> tuple[npt.NDArray[np.floating[Any]], npt.NDArray[Any]]:
        """Return a client's embeddings and labels, without copying them."""
        span = self.span(name)
        return self.embeddings[span], self.labels[span]
