"""Later clients, and updates and deletions of rows."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import check_is_fitted

from fedneighbors._typing import Array, Floats
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
"""Own part of each client, as one vector."""

NOTHING: Vector = np.empty(0, np.float32)
"""Own part of a client without one, or without rows."""


@dataclass(frozen=True, eq=False)
class OwnRows:
    """The rows of a client, oldest first.

    Parameters
    ----------
    x : array of shape (n_rows, ...)
        Rows.
    labels : int64 array of shape (n_rows,)
        Class position of each row's label.
    ids : tuple of str
        Unique names of the rows.
    n_named : int
        Smallest number that has not been used as a name.
    """

    x: Array
    labels: npt.NDArray[np.int64]
    ids: tuple[str, ...]
    n_named: int

    @classmethod
    def first(
        cls, x: Array, labels: npt.NDArray[np.int64], ids: Iterable[object] | None = None
    ) -> "OwnRows":
        """Return the first rows of a client.

        Parameters
        ----------
        x : array of shape (n_rows, ...)
            Rows.
        labels : int64 array of shape (n_rows,)
            Class position of each row's label.
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
        self, x: Array, labels: npt.NDArray[np.int64], ids: Iterable[object] | None = None
    ) -> "OwnRows":
        """Return these rows with more rows appended.

        Parameters
        ----------
        x, labels, ids
            As in :meth:`first`. By default, rows get the next free numbers as names.

        Raises
        ------
        ValueError, TypeError
            If ``ids`` is not a list of one new name per row.
        """
        names = new_names(ids, len(x), set(self.ids), self.n_named)
        n_named = self.n_named + len(x)
        if ids is None and names:
            n_named = max(n_named, int(names[-1]) + 1)
        return OwnRows(
            np.concatenate([self.x, x]),
            np.concatenate([self.labels, labels]),
            self.ids + tuple(names),
            n_named,
        )

    def without(self, ids: Iterable[object]) -> "OwnRows":
        """Return these rows without some of them.

        Parameters
        ----------
        ids : iterable of str or int
            Names of the rows to remove.

        Raises
        ------
        KeyError
            If there is no row of a name.
        TypeError
            If ``ids`` is a single name instead of a list.
        """
        gone = set(row_names(ids))
        unknown = sorted(gone - set(self.ids))
        if unknown:
            raise KeyError(f"the client has no rows named {unknown[:5]}; it has {len(self)} rows")
        kept = [place for place, name in enumerate(self.ids) if name not in gone]
        names = tuple(self.ids[place] for place in kept)
        return OwnRows(self.x[kept], self.labels[kept], names, self.n_named)


class DynamicClients:
    """Clients of a fitted baseline, each with rows and an own part.

    A client's own part depends on the shared model and its rows. After each change of its rows it
    is rebuilt, as for a later client. So the number of steps in which rows arrived does not matter,
    and no trace of a deleted row remains in the own part.
    """

    trainer: Literal["auto", "stacked", "reuse"]
    device: Literal["auto", "cpu", "cuda"]
    weights_: Vector
    overall_: Floats
    clients_: ClientParts
    rows_: dict[str, OwnRows]
    classes_: npt.NDArray[Any]
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
            If its training has diverged.
        """
        check_is_fitted(self)
        x, labels = self._rows_and_labels(X, y)
        self._add_clients({party_name(name): OwnRows.first(x, labels, ids)})
        return self

    def add_clients(self, X: Any, y: Any, parties: Owners) -> Self:
        """Add several clients, which train together.

        The result equals that of :meth:`add_client` up to rounding.

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
        self._add_clients({name: OwnRows.first(x[own], labels[own]) for name, own in owned.items()})
        return self

    def update(self, name: object, X: Any, y: Any, ids: Iterable[object] | None = None) -> Self:
        """Add rows to a client and rebuild its own part.

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
            If its training has diverged; the client is not changed in this case.
        """
        check_is_fitted(self)
        x, labels = self._rows_and_labels(X, y)
        with self._network.exclusive():
            known = self._client_name(name)
            self._adapt({known: self.rows_[known].with_more(x, labels, ids)})
        return self

    def forget(self, name: object, ids: Iterable[object]) -> Self:
        """Delete rows of a client and rebuild its own part.

        A client without rows gets the predictions of the shared model. That model may have been
        trained on the rows, and is not changed.

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
            If it has no such row; nothing is deleted in this case.
        TypeError
            If ``ids`` is a single name instead of a list.
        PartyRefused
            If its training has diverged; the client is not changed in this case.
        """
        check_is_fitted(self)
        with self._network.exclusive():
            known = self._client_name(name)
            self._adapt({known: self.rows_[known].without(ids)})
        return self

    def _rows_and_labels(self, X: Any, y: Any) -> tuple[Any, Any]:
        """Return rows and the class positions of their labels."""
        labels, x = self._class_indices(y), self._validated_rows(X)
        check_lengths(x, labels)
        return x, labels

    def _add_clients(self, coming: Mapping[str, OwnRows]) -> None:
        with self._network.exclusive():
            self._check_new(coming)
            self._adapt(coming)

    def _adapt(self, clients: Mapping[str, OwnRows]) -> None:
        """Build clients' own parts from rows; change nothing if one fails."""
        client_parts: ClientParts = dict.fromkeys(clients, NOTHING)
        training = {name: rows for name, rows in clients.items() if len(rows)}
        if training:
            with one_thread():
                client_parts |= self._join_clients(self._make_trainer(training))
        self.clients_ |= client_parts
        self.rows_ |= clients

    def _make_trainer(self, clients: Mapping[str, OwnRows]) -> "FederatedTrainer":
        """Return a trainer of clients with their rows."""
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
    def _join_clients(self, trainer: "FederatedTrainer") -> ClientParts:
        """Return the own parts of later clients."""
