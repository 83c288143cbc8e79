"""Clients that join a fitted baseline, and rows added to and deleted from clients."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import check_is_fitted

from fedneighbors._typing import Array, Floats, Integers
from fedneighbors.methods.knnper._base import Owners, check_lengths
from fedneighbors.methods.knnper._settings import RoundSettings
from fedneighbors.tabular._ownership import (
    Holdings,
    new_names,
    one_thread,
    party_name,
    row_names,
    rows_by_party,
)

if TYPE_CHECKING:
    from fedneighbors.baselines._trainer import Agreement, FederatedTrainer

Vector = npt.NDArray[np.floating[Any]]
ClientParts = dict[str, Vector]
"""Own part of each client as a vector; for most methods, the weights of a head or network."""

ClientState = tuple[ClientParts, list[tuple[str, ...]], list[Vector]]
"""Own parts of clients, the members of each cluster, and shared arrays of the method."""

NO_OWN_PART: Vector = np.empty(0, np.float32)
"""Empty vector, for a client that uses the shared model."""


@dataclass(frozen=True, eq=False)
class NamedRows:
    """Rows of a client with labels and unique names, oldest first.

    Parameters
    ----------
    x : array of shape (n_rows, ...)
        Rows.
    labels : int64 array of shape (n_rows,)
        Index of each row's label among the classes.
    ids : tuple of str
        Unique names of the rows.
    next_name : int
        First number to try as the name of the next row without a given name.
    """

    x: Array
    labels: Integers
    ids: tuple[str, ...]
    next_name: int

    @classmethod
    def new(cls, x: Array, labels: Integers, ids: Iterable[object] | None = None) -> "NamedRows":
        """Create the rows of a new client.

        Parameters
        ----------
        x : array of shape (n_rows, ...)
            Rows.
        labels : int64 array of shape (n_rows,)
            Index of each row's label among the classes.
        ids : iterable of str or int, optional
            Names of the rows; by default ``"0"``, ``"1"`` and so on.

        Raises
        ------
        ValueError, TypeError
            If ``ids`` is not a list of one new name per row.
        """
        return cls(x[:0], labels[:0], (), 0).with_more(x, labels, ids)

    def __len__(self) -> int:
        return len(self.ids)

    def with_more(
        self, x: Array, labels: Integers, ids: Iterable[object] | None = None
    ) -> "NamedRows":
        """Return these rows with more rows appended.

        Parameters
        ----------
        x, labels, ids
            As in :meth:`new`. By default, rows get the next free numbers as names.

        Raises
        ------
        ValueError, TypeError
            If ``ids`` is not a list of one new name per row.
        """
        names = new_names(ids, len(x), set(self.ids), self.next_name)
        next_name = self.next_name + len(x)
        if ids is None and names:
            next_name = max(next_name, int(names[-1]) + 1)
        return NamedRows(
            np.concatenate([self.x, x]),
            np.concatenate([self.labels, labels]),
            self.ids + tuple(names),
            next_name,
        )

    def without(self, ids: Iterable[object]) -> "NamedRows":
        """Return the rows that remain after removing some by name.

        Parameters
        ----------
        ids : iterable of str or int
            Names of the rows to remove.

        Raises
        ------
        KeyError
            If a name is not that of a row.
        TypeError
            If ``ids`` is a single name instead of a list.
        """
        removed = set(row_names(ids))
        unknown = sorted(removed - set(self.ids))
        if unknown:
            raise KeyError(f"the client has no rows named {unknown[:5]}; it has {len(self)} rows")
        remaining = [index for index, name in enumerate(self.ids) if name not in removed]
        names = tuple(self.ids[index] for index in remaining)
        return NamedRows(self.x[remaining], self.labels[remaining], names, self.next_name)


class DynamicClients:
    """Mixin of baselines: adds clients, and adds and deletes their rows, after training.

    A client's own part is computed from the shared model and the client's rows. After each change
    of the rows it is computed again, as for a client that is added after training. So it does not
    matter whether rows arrived together or one by one, and no trace of a deleted row remains in the
    own part.
    """

    trainer: Literal["auto", "stacked", "reuse"]
    device: Literal["auto", "cpu", "cuda"]
    weights_: Vector
    overall_: Floats
    clients_: ClientParts
    rows_: dict[str, NamedRows]
    classes_: Array
    _agreement: "Agreement"
    _network: Any
    _rounds: RoundSettings
    _client_name: Callable[[object], str]
    _check_new: Callable[[Iterable[str]], None]
    _validated_rows: Any
    _class_indices: Any

    def add_client(self, name: object, X: Any, y: Any, ids: Iterable[object] | None = None) -> Self:
        """Add a client after training.

        The other clients do not change.

        Parameters
        ----------
        name : str or number
            Name, which must be new. Names are converted to str, as in :meth:`fit`: 5 and ``"5"``
            are one client.
        X, y : arrays of shape (n_rows, ...) and (n_rows,)
            Rows and labels.
        ids : iterable of str or int, optional
            Names of the rows for :meth:`forget`, converted to str; by default ``"0"``, ``"1"`` and
            so on.

        Raises
        ------
        ValueError
            If the name is missing (None, NaN, an empty text) or taken, a label is not among the
            classes, or shapes disagree.
        TypeError
            If ``ids`` is a single name instead of a list.
        PartyRefused
            If the client's training has diverged.
        """
        check_is_fitted(self)
        x, labels = self._rows_and_labels(X, y)
        self._add_clients({party_name(name): NamedRows.new(x, labels, ids)})
        return self

    def add_clients(self, X: Any, y: Any, parties: Owners) -> Self:
        """Add several clients, which train together.

        The result equals that of one :meth:`add_client` per client, up to rounding.

        Parameters
        ----------
        X, y : arrays of shape (n_rows, ...) and (n_rows,)
            Rows and labels.
        parties : sequence of shape (n_rows,)
            Client of each row; the names must be new.

        Raises
        ------
        ValueError
            If a name is taken, a label is not among the classes, a row has no owner, or shapes
            disagree.
        PartyRefused
            If the training of a client has diverged; none is added in this case.
        """
        check_is_fitted(self)
        x, labels = self._rows_and_labels(X, y)
        owned = rows_by_party(parties, len(labels))
        self._add_clients({n: NamedRows.new(x[rows], labels[rows]) for n, rows in owned.items()})
        return self

    def update(self, name: object, X: Any, y: Any, ids: Iterable[object] | None = None) -> Self:
        """Add rows to a client and compute its own part again.

        The shared model is not changed.

        Parameters
        ----------
        name, X, y, ids
            As in :meth:`add_client`, for a known client. By default, rows get the next free numbers
            as names.

        Raises
        ------
        ValueError
            If the client is unknown, a label is not among the classes, shapes disagree, or a row
            name is taken.
        TypeError
            If ``ids`` is a single name instead of a list.
        PartyRefused
            If the client's training has diverged; the client is not changed in this case.
        """
        check_is_fitted(self)
        x, labels = self._rows_and_labels(X, y)
        with self._network.exclusive():
            client = self._client_name(name)
            self._set_rows({client: self.rows_[client].with_more(x, labels, ids)})
        return self

    def forget(self, name: object, ids: Iterable[object]) -> Self:
        """Delete rows of a client and compute its own part again.

        A client without rows gets the predictions of the shared model. The shared model is not
        changed, even if it was trained on the deleted rows.

        Parameters
        ----------
        name : str or number
            The client.
        ids : iterable of str or int
            Names of the rows, as given, or from ``rows_[name].ids``.

        Raises
        ------
        ValueError
            If the client is unknown.
        KeyError
            If the client has no such row; nothing is deleted in this case.
        TypeError
            If ``ids`` is a single name instead of a list.
        PartyRefused
            If the client's training has diverged; the client is not changed in this case.
        """
        check_is_fitted(self)
        with self._network.exclusive():
            client = self._client_name(name)
            self._set_rows({client: self.rows_[client].without(ids)})
        return self

    def _rows_and_labels(self, X: Any, y: Any) -> tuple[Any, Any]:
        """Return rows and the class indices of their labels."""
        labels, x = self._class_indices(y), self._validated_rows(X)
        check_lengths(x, labels)
        return x, labels

    def _add_clients(self, new_clients: Mapping[str, NamedRows]) -> None:
        with self._network.exclusive():
            self._check_new(new_clients)
            self._set_rows(new_clients)

    def _set_rows(self, clients: Mapping[str, NamedRows]) -> None:
        """Set clients' rows and compute their own parts, or change nothing."""
        client_parts: ClientParts = dict.fromkeys(clients, NO_OWN_PART)
        with_rows = {name: rows for name, rows in clients.items() if len(rows)}
        if with_rows:
            with one_thread():
                client_parts |= self._fit_own_parts(self._make_trainer(with_rows))
        self.clients_ |= client_parts
        self.rows_ |= clients

    def _make_trainer(self, clients: Mapping[str, NamedRows]) -> "FederatedTrainer":
        """Return a trainer of these clients."""
        from fedneighbors.baselines._trainer import FederatedTrainer

        ends = np.cumsum([len(rows) for rows in clients.values()])
        owned = {
            name: np.arange(end - len(rows), end)
            for (name, rows), end in zip(clients.items(), ends, strict=True)
        }
        x = np.concatenate([rows.x for rows in clients.values()])
        labels = self.classes_[np.concatenate([rows.labels for rows in clients.values()])]
        holdings = Holdings(x, labels, owned, None)
        return FederatedTrainer(
            self._agreement, holdings, self._rounds, method=self.trainer, device=self.device
        )

    @abstractmethod
    def _fit_own_parts(self, trainer: "FederatedTrainer") -> ClientParts:
        """Compute own parts of clients that are new or whose rows changed."""
