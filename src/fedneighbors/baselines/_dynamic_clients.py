"""Later clients, and updates and deletions of rows."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import check_is_fitted

from fedneighbors._typing import Array, Floats
from fedneighbors.methods.knnper._base import Owners, refuse_lengths
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
    from fedneighbors.baselines._trainer import Agreement, Bench

Vector = npt.NDArray[np.floating[Any]]
Owns = dict[str, Vector]
"""What each client has for itself, as one vector."""

NOTHING: Vector = np.empty(0, np.float32)
"""What a client has where a method leaves nothing to it, or where it has no rows any more."""


@dataclass(frozen=True, eq=False)
class OwnRows:
    """The rows of a client, oldest first.

    Parameters
    ----------
    x : array of shape (n_rows, ...)
        Rows.
    labels : int64 array of shape (n_rows,)
        Positions of their labels among the classes.
    ids : tuple of str
        Their names, each once.
    n_named : int
        The first number that has not been a name yet.
    """

    x: Array
    labels: npt.NDArray[np.int64]
    ids: tuple[str, ...]
    n_named: int

    @classmethod
    def first(
        cls, x: Array, labels: npt.NDArray[np.int64], ids: Iterable[object] | None = None
    ) -> "OwnRows":
        """Return the rows with which a client comes.

        Parameters
        ----------
        x : array of shape (n_rows, ...)
            Rows.
        labels : int64 array of shape (n_rows,)
            Positions of their labels.
        ids : iterable of str or int, optional
            Their names; by default ``"0"``, ``"1"`` and so on.

        Raises
        ------
        ValueError, TypeError
            If ``ids`` are no list of one new name for each row.
        """
        return cls(x[:0], labels[:0], (), 0).with_more(x, labels, ids)

    def __len__(self) -> int:
        return len(self.ids)

    def with_more(
        self, x: Array, labels: npt.NDArray[np.int64], ids: Iterable[object] | None = None
    ) -> "OwnRows":
        """Return these rows and some that come after them.

        Parameters
        ----------
        x, labels, ids
            As :meth:`first` takes them. By default rows are numbered on, without names that are
            taken.

        Raises
        ------
        ValueError, TypeError
            If ``ids`` are no list of one new name for each row.
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
            Names of those that go.

        Raises
        ------
        KeyError
            If a name is not here.
        TypeError
            If it is a single name and no list.
        """
        gone = set(row_names(ids))
        unknown = sorted(gone - set(self.ids))
        if unknown:
            raise KeyError(f"the client has no rows named {unknown[:5]}; it holds {len(self)} rows")
        kept = [place for place, name in enumerate(self.ids) if name not in gone]
        names = tuple(self.ids[place] for place in kept)
        return OwnRows(self.x[kept], self.labels[kept], names, self.n_named)


class DynamicClients:
    """Clients of a fitted baseline, each with rows and an own part.

    What a client has follows from the model for all and from its rows: with each change of these it
    makes its own part again, as one does that comes later. So it does not matter in how many steps
    rows came, and nothing of a row that is taken back stays in a client's own part.
    """

    trainer: Literal["auto", "stacked", "reuse"]
    device: Literal["auto", "cpu", "cuda"]
    weights_: Vector
    overall_: Floats
    clients_: Owns
    rows_: dict[str, OwnRows]
    classes_: npt.NDArray[Any]
    _agreement: "Agreement"
    _network: Any
    _rounds: RoundSettings
    _known: Callable[[object], str]
    _refuse_known: Callable[[Iterable[str]], None]
    _rows: Any
    _positions: Any

    def add_client(self, name: object, X: Any, y: Any, ids: Iterable[object] | None = None) -> Self:
        """Take in a client that did not take part in training.

        Nothing changes for the others.

        Parameters
        ----------
        name : str or number
            Its name, which must be new. Names become text here as in :meth:`fit`: 5 and ``"5"`` are
            one client.
        X, y : arrays of shape (n_rows, ...) and (n_rows,)
            Its rows and labels.
        ids : iterable of str or int, optional
            Names of the rows, kept as text, by which :meth:`forget` finds them; by default ``"0"``,
            ``"1"`` and so on.

        Raises
        ------
        ValueError
            If the name is missing (None, NaN, an empty text) or taken, a label is none of the
            classes, or shapes disagree.
        TypeError
            If ``ids`` is a single name and no list.
        PartyRefused
            If its training has diverged.
        """
        check_is_fitted(self)
        x, labels = self._rows_and_labels(X, y)
        self._take_in({party_name(name): OwnRows.first(x, labels, ids)})
        return self

    def add_clients(self, X: Any, y: Any, parties: Owners) -> Self:
        """Take in several clients, which train side by side.

        Each comes to what :meth:`add_client` would bring it to, up to rounding.

        Parameters
        ----------
        X, y : arrays of shape (n_rows, ...) and (n_rows,)
            Their rows and labels.
        parties : sequence of shape (n_rows,)
            Client of each row; the names must be new.

        Raises
        ------
        ValueError
            If a name is taken, a label is none of the classes, a row has no owner, or shapes
            disagree.
        PartyRefused
            If the training of one of them has diverged; none is taken in then.
        """
        check_is_fitted(self)
        x, labels = self._rows_and_labels(X, y)
        owned = rows_by_party(parties, len(labels))
        self._take_in({name: OwnRows.first(x[own], labels[own]) for name, own in owned.items()})
        return self

    def update(self, name: object, X: Any, y: Any, ids: Iterable[object] | None = None) -> Self:
        """Add rows to a client and rebuild its own part.

        The model for all is not changed.

        Parameters
        ----------
        name, X, y, ids
            As :meth:`add_client` takes them, of a client that is known. By default rows are
            numbered on, without names that are taken.

        Raises
        ------
        ValueError
            If the client is not known, a label is none of the classes, shapes disagree, or a row's
            name is taken.
        TypeError
            If ``ids`` is a single name and no list.
        PartyRefused
            If its training has diverged; it stays as it was then.
        """
        check_is_fitted(self)
        x, labels = self._rows_and_labels(X, y)
        with self._network.alone():
            known = self._known(name)
            self._adapt({known: self.rows_[known].with_more(x, labels, ids)})
        return self

    def forget(self, name: object, ids: Iterable[object]) -> Self:
        """Delete rows of a client and rebuild its own part.

        Without any row it gets what the model for all says. That model, which may have been trained
        on them, is not changed.

        Parameters
        ----------
        name : str or number
            The client.
        ids : iterable of str or int
            Names of the rows, as they were given, or as ``rows_[name].ids`` has them.

        Raises
        ------
        ValueError
            If the client is not known.
        KeyError
            If it has no such row; nothing is taken back then.
        TypeError
            If ``ids`` is a single name and no list.
        PartyRefused
            If its training has diverged; it stays as it was then.
        """
        check_is_fitted(self)
        with self._network.alone():
            known = self._known(name)
            self._adapt({known: self.rows_[known].without(ids)})
        return self

    def _rows_and_labels(self, X: Any, y: Any) -> tuple[Any, Any]:
        """Return rows, and positions of their labels, which all are known."""
        labels, x = self._positions(y), self._rows(X)
        refuse_lengths(x, labels)
        return x, labels

    def _take_in(self, coming: Mapping[str, OwnRows]) -> None:
        with self._network.alone():
            self._refuse_known(coming)
            self._adapt(coming)

    def _adapt(self, clients: Mapping[str, OwnRows]) -> None:
        """Build clients' own parts from rows; change nothing if one fails."""
        owns: Owns = dict.fromkeys(clients, NOTHING)
        training = {name: rows for name, rows in clients.items() if len(rows)}
        if training:
            with one_thread():
                owns |= self._join(self._bench(training))
        self.clients_ |= owns
        self.rows_ |= clients

    def _bench(self, clients: Mapping[str, OwnRows]) -> "Bench":
        """Return where clients train on their rows."""
        from fedneighbors.baselines._trainer import Bench

        ends = np.cumsum([len(rows) for rows in clients.values()])
        owned = {
            name: np.arange(end - len(rows), end)
            for (name, rows), end in zip(clients.items(), ends, strict=True)
        }
        x = np.concatenate([rows.x for rows in clients.values()])
        labels = self.classes_[np.concatenate([rows.labels for rows in clients.values()])]
        holdings = Holdings(x, labels, owned, None)
        return Bench(
            self._agreement, holdings, self._rounds, method=self.trainer, device=self.device
        )

    @abstractmethod
    def _join(self, bench: "Bench") -> Owns:
        """Return the own parts of clients that come after training."""
