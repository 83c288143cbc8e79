"""What all rivals have in common: parameters, checks, who is served, who joins."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from fedneighbors.methods.knnper.membership import Classifying, Owners, needs_torch
from fedneighbors.methods.knnper.settings import RoundSettings
from fedneighbors.tables.labels import label_array, reserved_labels
from fedneighbors.tables.owners import Holdings, party_name, rows_by_party
from fedneighbors.tables.seeds import public_seed

if TYPE_CHECKING:  # it needs torch
    from fedneighbors.methods.knnper.rivals.bench import Bench

__all__ = ["Owns", "Rival", "Vector"]

Floats = npt.NDArray[np.float64]
Vector = npt.NDArray[np.floating[Any]]
Owns = dict[str, Vector]
"""What each client has for itself, as one vector."""

NOTHING: Vector = np.empty(0, np.float32)
"""What a client has where a method leaves nothing to it."""


class Fitted(Classifying):
    """Serves the clients of a rival that is fitted."""

    clients_: Owns
    weights_: Vector
    overall_: Floats
    _ground: Any
    _rounds: RoundSettings

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


@dataclass(kw_only=True, eq=False, repr=False)
class Rival(Fitted, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
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
        self._rounds = RoundSettings.asked_by(self, public_seed(self.random_state))
        self._check()
        holdings = Holdings(x, labels, rows_by_party(parties, len(labels)), self._names())
        needs_torch()
        from fedneighbors.tables.threads import one_thread

        ground = self._found_ground(holdings)
        with one_thread():
            bench = ground.bench(holdings, self._rounds, self.trainer, self.device)
            weights, self.clients_ = self._learned(bench)
        self._know(replace(ground, shared=replace(ground.shared, weights=weights)), labels)
        return self

    def add_client(self, name: object, X: Any, y: Any) -> Self:
        """Take in a client that did not take part in training.

        Nothing changes for the others.

        Parameters
        ----------
        name : str or number
            Its name, which must be new. Names become text here as in :meth:`fit`: 5 and ``"5"`` are
            one client.
        X, y : arrays of shape (n_rows, ...) and (n_rows,)
            Its rows and labels.

        Raises
        ------
        ValueError
            If the name is missing (None, NaN, an empty text) or taken, a label is none of the
            classes, or shapes disagree.
        PartyRefused
            If its training has diverged.
        """
        check_is_fitted(self)
        self._take_in(X, self._labels(y), {party_name(name): slice(None)})
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
        labels = self._labels(y)
        self._take_in(X, labels, dict(rows_by_party(parties, len(labels))))
        return self

    def _labels(self, y: Any) -> npt.NDArray[Any]:
        """Return labels as an array, all of them known."""
        labels = np.asarray(y)
        self._positions(labels)
        return labels

    def _take_in(self, X: Any, labels: npt.NDArray[Any], owned: dict[str, Any]) -> None:
        taken = sorted(set(owned) & set(self.clients_))
        if taken:
            raise ValueError(
                f"client {taken[0]!r} is here already; give the new one a name of its own"
            )
        x = self._rows(X)
        if len(x) != len(labels):
            raise ValueError(f"expected one label for each of {len(x)} rows, got {len(labels)}")
        from fedneighbors.tables.threads import one_thread

        with one_thread():
            holdings = Holdings(x, labels, owned, None)
            bench = self._ground.bench(holdings, self._rounds, self.trainer, self.device)
            self.clients_ |= self._joined(bench)

    @abstractmethod
    def _learned(self, bench: "Bench") -> tuple[Vector, Owns]:
        """Return the weights for all, and what each client has for itself.

        Parameters
        ----------
        bench : Bench
            The clients that train.
        """

    @abstractmethod
    def _joined(self, bench: "Bench") -> Owns:
        """Return what clients make for themselves that come after training.

        Parameters
        ----------
        bench : Bench
            Those who come.
        """

    def _check(self) -> None:
        """Raise :class:`ValueError` if a method's own parameter is out of range."""

    def _found_ground(self, holdings: Holdings) -> Any:
        from fedneighbors.methods.knnper.rivals.ground import Ground

        reserved = () if self.classes is None else reserved_labels(self.classes, holdings.y)
        return Ground.new(self, holdings, self._rounds.seed, reserved)

    def _know(self, ground: Any, labels: npt.NDArray[Any]) -> None:
        self._ground = ground
        self._network, self._layout, self._shared = ground.network, ground.layout, ground.shared
        self.classes_ = label_array(ground.shared.classes, like=labels)
        self.weights_, self.overall_ = ground.shared.weights, ground.shared.overall
