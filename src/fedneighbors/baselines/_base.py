"""Base of the personalised baselines: parameters, training, clients, prediction and files."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from fedneighbors._typing import Floats
from fedneighbors.baselines._own_rows import OwnRows
from fedneighbors.methods.knnper._base import (
    ClientClassifier,
    ClientEstimator,
    Owners,
    needs_torch,
    refuse_lengths,
)
from fedneighbors.methods.knnper._settings import MemorySettings, RoundSettings
from fedneighbors.tabular._ownership import (
    Holdings,
    one_thread,
    party_name,
    public_seed,
    rows_by_party,
)
from fedneighbors.tabular._schema import label_array, reserved_labels

if TYPE_CHECKING:  # it needs torch
    from fedneighbors.baselines._agreement import Ground
    from fedneighbors.baselines._trainer import Bench
    from fedneighbors.neural._blueprint import Blueprint

Vector = npt.NDArray[np.floating[Any]]
Owns = dict[str, Vector]
"""What each client has for itself, as one vector."""

NOTHING: Vector = np.empty(0, np.float32)
"""What a client has where a method leaves nothing to it, or where it has no rows any more."""


def load(path: str | Path, model: Any = None) -> "Baseline":
    """Read a baseline that any of the classes has written by its ``save``.

    Parameters
    ----------
    path : path
        The file.
    model : torch.nn.Module or callable, optional
        The network, where the file is of one of the user's own.

    Returns
    -------
    Baseline
        Fitted; of the class that has written the file.

    Raises
    ------
    MissingExtraError, ModelFileError, ValueError
        As the ``load`` of the class does.
    """
    needs_torch()
    from fedneighbors import baselines
    from fedneighbors.baselines._files import method_of

    found: Baseline = getattr(baselines, method_of(path)).load(path, model)
    return found


@dataclass(kw_only=True, eq=False, repr=False)
class Baseline(ClientClassifier, ClientEstimator, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Base of the methods that kNN-Per is compared with.

    A method says what is trained, what of it is for all and what for each client
    (:meth:`_learned`), and what a client makes of it that comes later (:meth:`_joined`).

    Parameters
    ----------
    model, embedding, head, hidden
        As :class:`~fedneighbors.methods.knnper.KNNPerClassifier` takes them, like all others.
    n_rounds, participation, local_epochs, batch_size
        Of the training.
    learning_rate, momentum, weight_decay
        Of its steps; the rate falls to a third after 60 and 85 % of the rounds.
    validation : float
        Share of each client's rows that :func:`~.tuning.tuned` holds out; :meth:`fit` takes all.
    standardize, trainer, device, classes, random_state
        Of the columns of tables, of how and where clients train side by side, of labels that may
        come, and of all that is drawn.

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
        Labels, ascending.
    clients_ : dict of str to float array
        What each client has for itself; nothing, of length 0, where it gets the model for all.
    rows_ : dict of str to OwnRows
        Each client's rows, from which it makes its own part anew where they change.
    weights_ : float array of shape (n_weights,)
        Of the model for all.
    overall_ : float64 array of shape (n_classes,)
        Shares of the classes over all clients.
    """

    grid: ClassVar[tuple[Mapping[str, Any], ...]] = ({},)

    model: Any = field(default=None, kw_only=False)
    embedding: str = "body"
    head: str | tuple[str, ...] = "head"
    hidden: tuple[int, ...] = (256, 128)
    n_rounds: int = 50
    participation: float = 1.0
    local_epochs: int = 1
    batch_size: int = 32
    learning_rate: float = 0.02
    momentum: float = 0.9
    weight_decay: float = 5e-4
    validation: float = 0.2
    standardize: bool = True
    trainer: Literal["auto", "stacked", "reuse"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "cpu"
    classes: Sequence[Any] | None = None
    random_state: int | np.random.RandomState | None = 0

    def fit(self, X: Any, y: Any, parties: Owners = None) -> Self:
        """Train over all clients, on all of their rows.

        Parameters
        ----------
        X : array or DataFrame of shape (n_rows, ...)
            Rows: numbers, or whole numbers that stand for tokens.
        y : array of shape (n_rows,)
            Labels.
        parties : sequence of shape (n_rows,), optional
            Which client owns each row. None means a single one.

        Raises
        ------
        MissingExtraError
            If torch is not installed.
        ValueError
            If a parameter is out of range, or there is not one owner for each row.
        DataError
            If there are fewer than two classes.
        PartyRefused
            If a client's training has diverged.
        """
        x, labels = self._validated(X, y)
        rounds = RoundSettings.asked_by(self, public_seed(self.random_state))
        self._check_all()
        holdings = Holdings(x, labels, rows_by_party(parties, len(labels)), self._names())
        needs_torch()
        ground, blueprint = self._agreed(holdings, rounds.seed)
        with one_thread():
            bench = ground.bench(holdings, rounds, self.trainer, self.device)
            weights, self.clients_ = self._learned(bench)
        trained = replace(ground, shared=replace(ground.shared, weights=weights))
        self._become(trained, blueprint, rounds, like=labels)
        places = self._positions(labels)
        self.rows_ = {
            name: OwnRows.first(x[own], places[own]) for name, own in holdings.owned.items()
        }
        return self

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
            Which client owns each row; their names must be new.

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
        """Give rows to a client, which makes its own part anew from all of its rows.

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
            name = self._known(name)
            self._adapt({name: self.rows_[name].with_more(x, labels, ids)})
        return self

    def forget(self, name: object, ids: Iterable[object]) -> Self:
        """Take rows back from a client, which makes its own part anew from those that stay.

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
            name = self._known(name)
            self._adapt({name: self.rows_[name].without(ids)})
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
        """Make what clients have anew, from these rows; if one cannot, all stay as they were."""
        owns: Owns = dict.fromkeys(clients, NOTHING)
        training = {name: rows for name, rows in clients.items() if len(rows)}
        if training:
            with one_thread():
                owns |= self._joined(self._bench(training))
        self.clients_ |= owns
        self.rows_ |= clients

    def _bench(self, clients: Mapping[str, OwnRows]) -> "Bench":
        """Return where clients train on their rows."""
        ends = np.cumsum([len(rows) for rows in clients.values()])
        owned = {
            name: np.arange(end - len(rows), end)
            for (name, rows), end in zip(clients.items(), ends, strict=True)
        }
        x = np.concatenate([rows.x for rows in clients.values()])
        labels = self.classes_[np.concatenate([rows.labels for rows in clients.values()])]
        holdings = Holdings(x, labels, owned, None)
        found: Bench = self._ground.bench(holdings, self._rounds, self.trainer, self.device)
        return found

    def predict_proba(self, X: Any, parties: Owners = None) -> Floats:
        """Return the shares of the classes, shape (n_rows, n_classes).

        Parameters
        ----------
        X : array of shape (n_rows, ...)
            Rows.
        parties : sequence of shape (n_rows,), optional
            Which client asks for each row. A client that is not known, and None where there are
            several, get what the model for all says, with a warning.
        """
        check_is_fitted(self)
        x = self._ground.tensor(self._rows(X))
        with self._network.alone():
            scores = self._for_all(x)
            for name, rows in self._askers(parties, len(x)).items():
                own = self.clients_[name]
                if len(own):
                    scores[rows] = self._for_one(own, x[rows], scores[rows])
        return np.asarray(np.exp(scores))

    def _for_all(self, x: Any) -> Floats:
        """Return logarithms of the shares that a client gets of which nothing is known."""
        found: Floats = self._ground.log_shares(self.weights_, x, self.device)
        return found

    def _for_one(self, own: Vector, x: Any, _scores: Floats) -> Floats:
        """Return logarithms of the shares that a client gets with what it has for itself.

        Parameters
        ----------
        own : float array
            What it has.
        x : Tensor of shape (n_rows, ...)
            Its rows.
        _scores : float64 array of shape (n_rows, n_classes)
            What the model for all says of them.
        """
        found: Floats = self._ground.log_shares(self._network_weights(own), x, self.device)
        return found

    def _network_weights(self, own: Vector) -> Vector:
        """Return the network's weights for a client; by default what it has."""
        return own

    def save(self, path: str | Path, client: object = None) -> None:
        """Write the model to one file; an interrupted write leaves nothing behind.

        The file holds numbers and words alone, the rows of clients among them, from which
        :meth:`update` and :meth:`forget` make own parts anew: give a client its own, not those of
        others.

        Parameters
        ----------
        path : path
            The file.
        client : str or number, optional
            Write this client's own part and rows only, to hand it the file. None: those of all.

        Raises
        ------
        ValueError
            If the client is not known.
        """
        from fedneighbors.baselines._files import write_baseline

        check_is_fitted(self)
        with self._network.alone():
            names = sorted(self.clients_) if client is None else [self._known(client)]
            write_baseline(self, path, names)

    @classmethod
    def load(cls, path: str | Path, model: Any = None) -> Self:
        """Read an estimator of this class that :meth:`save` has written.

        It says the same, and goes on in the same way. ``device`` is the default; a network that was
        taken over (``start``) is in the file itself.

        Parameters
        ----------
        path : path
            The file.
        model : torch.nn.Module or callable, optional
            The network, where the file is of one of the user's own: its code is in no file.

        Raises
        ------
        MissingExtraError
            If torch is not installed.
        ModelFileError
            If the file is missing, truncated, altered, foreign, of another version, another method
            or another network.
        ValueError
            If the file is of a network of the user's own and ``model`` is not given.
        """
        needs_torch()
        from fedneighbors.baselines._files import read_baseline

        return read_baseline(cls, path, model)

    def _learned(self, bench: "Bench") -> tuple[Vector, Owns]:
        """Return the weights for all, and what each client has for itself.

        By default the weights are those of federated averaging, or of the network taken over.

        Parameters
        ----------
        bench : Bench
            The clients that train.
        """
        weights = bench.initial if self._start() is not None else bench.federated_average()
        return weights, self._made(bench, weights)

    def _joined(self, bench: "Bench") -> Owns:
        """Return the own parts of clients that come after training."""
        return self._made(bench, self.weights_)

    def _made(self, bench: "Bench", _weights: Vector) -> Owns:
        """Return what each client makes of the network for itself; by default nothing."""
        return dict.fromkeys(bench.names, NOTHING)

    def _fits(self, own: Vector) -> bool:
        """Return whether a vector may be what a client of this model has for itself."""
        return len(own) in (0, len(self.weights_))

    def _told_of(self, names: list[str]) -> tuple[Owns, list[tuple[str, ...]], list[Vector]]:
        """Return what some clients have, and their clusters and networks, where there are such."""
        return {name: self.clients_[name] for name in names}, [], []

    def _take_clusters(self, clusters: list[tuple[str, ...]], networks: list[Vector]) -> None:
        """Take over the clusters and networks that :meth:`_told_of` gave."""
        if clusters or networks:
            raise ValueError(f"{type(self).__name__} has no clusters")

    def _check_all(self) -> None:
        """Raise :class:`ValueError` if a parameter is out of range."""
        RoundSettings.asked_by(self, 0)
        MemorySettings(validation=self.validation)
        if self.trainer not in ("auto", "stacked", "reuse"):
            raise ValueError(f"expected trainer 'auto', 'stacked' or 'reuse', got {self.trainer!r}")
        self._check()

    def _check(self) -> None:
        """Raise :class:`ValueError` if a method's own parameter is out of range."""

    def _start(self) -> Any:
        """Return the fitted estimator whose network is taken over, if there is one."""
        return getattr(self, "start", None)

    def __sklearn_clone__(self) -> Self:
        """Return an estimator that is not fitted and takes over the same network."""
        fresh: Self = super().__sklearn_clone__()
        if self._start() is not None:
            fresh.start = self._start()
        return fresh

    def _agreed(self, holdings: Holdings, seed: int) -> tuple["Ground", "Blueprint"]:
        """Return the network and what it was made from, before clients train."""
        from fedneighbors.baselines._agreement import Ground
        from fedneighbors.neural._blueprint import Blueprint

        start = self._start()
        if start is not None:
            return Ground.of(start, holdings), start._blueprint
        reserved = () if self.classes is None else reserved_labels(self.classes, holdings.y)
        ground = Ground.new(self, holdings, seed, reserved)
        return ground, Blueprint.of(self, holdings.x.shape[1:], len(ground.shared.classes))

    def _become(
        self, ground: "Ground", blueprint: "Blueprint", rounds: RoundSettings, *, like: Any
    ) -> None:
        """Take over a trained network; the classes get the type of the labels ``like``."""
        self._ground, self._network, self._shared = ground, ground.network, ground.shared
        self._blueprint, self._row_shape, self._rounds = blueprint, blueprint.shape, rounds
        self.classes_ = label_array(ground.shared.classes, like=like)
        self.weights_, self.overall_ = ground.shared.weights, ground.shared.overall
