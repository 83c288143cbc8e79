"""Base class of the baselines that train networks: parameters, checks, training, prediction."""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from fedneighbors._typing import Floats
from fedneighbors.baselines._dynamic_clients import (
    NOTHING,
    ClientParts,
    DynamicClients,
    OwnRows,
    Vector,
)
from fedneighbors.methods.knnper._base import (
    ClientClassifier,
    ClientEstimator,
    Owners,
    check_torch,
)
from fedneighbors.methods.knnper._settings import MemorySettings, RoundSettings
from fedneighbors.tabular._ownership import Holdings, one_thread, public_seed, rows_by_party
from fedneighbors.tabular._schema import label_array, reserved_labels

if TYPE_CHECKING:  # these import torch
    from fedneighbors.baselines._files import BaselineFile
    from fedneighbors.baselines._trainer import Agreement, FederatedTrainer


def load(path: str | Path, model: Any = None) -> "Baseline":
    """Read a baseline written by ``save`` of any class.

    Parameters
    ----------
    path : path
        The file.
    model : torch.nn.Module or callable, optional
        The network, if the file belongs to a custom one.

    Returns
    -------
    Baseline
        Fitted, of the class that wrote the file.

    Raises
    ------
    MissingExtraError, ModelFileError, ValueError
        As the ``load`` of the class.
    """
    check_torch()
    from fedneighbors.baselines._files import read_baseline

    found: Baseline = read_baseline(path, model)
    return found


@dataclass(kw_only=True, eq=False, repr=False)
class Baseline(
    DynamicClients,
    ClientClassifier,
    ClientEstimator,
    ClassifierMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """Personalised baseline for comparison with kNN-Per.

    A method trains shared weights and an own part for each client (:meth:`_train`), and makes the
    own parts of later clients (:meth:`_join_clients`). ``_own_part`` states what an own part
    replaces in predictions: nothing, the head or the whole network.

    Parameters
    ----------
    model, embedding, head, hidden
        As in :class:`~fedneighbors.methods.knnper.KNNPerClassifier`, like all parameters below.
    n_rounds, participation, local_epochs, batch_size
        Training schedule.
    learning_rate, momentum, weight_decay
        Parameters of its steps; the rate falls to a third after 60 and 85 % of the rounds.
    validation : float
        Share of each client's rows that :func:`~._tuning.tuned` holds out; :meth:`fit` uses all.
    standardize, trainer, device, classes, random_state
        Scaling of columns, batching of clients, device, possible labels, and random seed.

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
        Labels, ascending.
    clients_ : dict of str to float array
        Own part of each client; of length 0 if it uses the shared model.
    rows_ : dict of str to OwnRows
        Rows of each client, from which its own part is rebuilt after changes.
    weights_ : float array of shape (n_weights,)
        Weights of the shared model.
    overall_ : float64 array of shape (n_classes,)
        Class shares over all clients.
    """

    grid: ClassVar[tuple[Mapping[str, Any], ...]] = ({},)
    _own_part: ClassVar[Literal["nothing", "head", "network"]] = "network"

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
            Rows of numbers, or of integer tokens.
        y : array of shape (n_rows,)
            Labels.
        parties : sequence of shape (n_rows,), optional
            Client of each row. None means a single client.

        Raises
        ------
        MissingExtraError
            If torch is not installed.
        ValueError
            If a parameter is out of range, or the numbers of parties and rows differ.
        DataError
            If there are fewer than two classes.
        PartyRefused
            If a client's training has diverged.
        """
        x, labels = self._validate(X, y)
        self._rounds = RoundSettings.of(self, public_seed(self.random_state))
        self._check_all()
        holdings = Holdings(x, labels, rows_by_party(parties, len(labels)), self._names())
        check_torch()
        from fedneighbors.baselines._trainer import FederatedTrainer

        agreement = self._agree(holdings)
        with one_thread():
            trainer = FederatedTrainer(
                agreement, holdings, self._rounds, method=self.trainer, device=self.device
            )
            weights, self.clients_ = self._train(trainer)
        shared = replace(agreement.shared, weights=weights)
        self._know(replace(agreement, shared=shared), label_array(shared.classes, like=labels))
        places = self._class_indices(labels)
        self.rows_ = {
            name: OwnRows.first(x[own], places[own]) for name, own in holdings.owned.items()
        }
        return self

    def predict_proba(self, X: Any, parties: Owners = None) -> Floats:
        """Return the class probabilities, shape (n_rows, n_classes).

        Parameters
        ----------
        X : array of shape (n_rows, ...)
            Rows.
        parties : sequence of shape (n_rows,), optional
            Client of each row. Unknown clients, and None with several clients, get the
            predictions of the shared model, with a warning.
        """
        check_is_fitted(self)
        x = self._agreement.tensor(self._validated_rows(X))
        with self._network.exclusive():
            scores = self._for_all(x)
            for name, rows in self._client_rows(parties, len(x)).items():
                own = self.clients_[name]
                if len(own):
                    scores[rows] = self._for_one(own, x[rows], scores[rows])
        return np.asarray(np.exp(scores))

    def save(self, path: str | Path, client: object = None) -> None:
        """Write the model to one file, atomically.

        The file contains numbers and text only, including the rows of clients, from which
        :meth:`update` and :meth:`forget` rebuild own parts: give each client only its own file.

        Parameters
        ----------
        path : path
            The file.
        client : str or number, optional
            Write this client's own part and rows only, for handing over to it. None: all clients.

        Raises
        ------
        ValueError
            If the client is unknown.
        """
        from fedneighbors.baselines._files import BaselineFile

        check_is_fitted(self)
        with self._network.exclusive():
            names = sorted(self.clients_) if client is None else [self._client_name(client)]
            self._check_all()
            BaselineFile.of(self, names).save(path)

    @classmethod
    def load(cls, path: str | Path, model: Any = None) -> Self:
        """Read an estimator of this class from :meth:`save`.

        Predictions and later changes are the same as for the saved one. ``device`` is the default;
        a given network (``start``) is part of the file.

        Parameters
        ----------
        path : path
            The file.
        model : torch.nn.Module or callable, optional
            The network, if the file refers to a user's module: files do not contain code.

        Raises
        ------
        MissingExtraError
            If torch is not installed.
        ModelFileError
            If the file is missing, truncated, altered, foreign, of another version, another method
            or another network.
        ValueError
            If the file refers to a user's module and ``model`` is missing.
        """
        check_torch()
        from fedneighbors.baselines._files import read_baseline

        found: Self = read_baseline(path, model, cls)
        return found

    @abstractmethod
    def _train(self, trainer: "FederatedTrainer") -> tuple[Vector, ClientParts]:
        """Return the shared weights, and each client's own part."""

    def _join_clients(self, trainer: "FederatedTrainer") -> ClientParts:
        """Return the own parts of later clients."""
        return dict.fromkeys(trainer.names, NOTHING)

    def _for_all(self, x: Any) -> Floats:
        """Return log-probabilities for unknown clients."""
        return self._agreement.log_shares(self.weights_, x, self.device)

    def _for_one(self, own: Vector, x: Any, _scores: Floats) -> Floats:
        """Return a client's log-probabilities from those of the shared model."""
        return self._agreement.log_shares(self._network_weights(own), x, self.device)

    def _network_weights(self, own: Vector) -> Vector:
        """Return the network's weights for a client's own part."""
        return self._agreement.with_head(self.weights_, own) if self._own_part == "head" else own

    def _fits(self, own: Vector) -> bool:
        """Return whether a vector is valid as a client's own part."""
        sizes = {
            "nothing": 0,
            "head": int(self._agreement.head.sum()),
            "network": len(self.weights_),
        }
        return len(own) in (0, sizes[self._own_part])

    def _client_state(
        self, names: list[str]
    ) -> tuple[ClientParts, list[tuple[str, ...]], list[Vector]]:
        """Return some clients' own parts, clusters and networks, if any."""
        return {name: self.clients_[name] for name in names}, [], []

    def _take_clusters(self, clusters: list[tuple[str, ...]], networks: list[Vector]) -> None:
        """Set the clusters and networks from :meth:`_client_state`."""
        if clusters or networks:
            raise ValueError(f"{type(self).__name__} has no clusters")

    def _check_all(self) -> None:
        """Raise :class:`ValueError` if a parameter is out of range."""
        RoundSettings.of(self, 0)
        MemorySettings(validation=self.validation)
        if self.trainer not in ("auto", "stacked", "reuse"):
            raise ValueError(f"expected trainer 'auto', 'stacked' or 'reuse', got {self.trainer!r}")
        self._check()

    def _check(self) -> None:
        """Raise :class:`ValueError` if a method's own parameter is out of range."""

    def _agree(self, holdings: Holdings) -> "Agreement":
        """Return the start of training: a new agreement, or that of ``start``."""
        from fedneighbors.baselines._trainer import Agreement

        start = getattr(self, "start", None)
        if start is not None:
            return Agreement.of_start(start, holdings)
        reserved = () if self.classes is None else reserved_labels(self.classes, holdings.y)
        return Agreement.new(self, holdings, self._rounds.seed, reserved)

    def _know(self, agreement: "Agreement", classes: npt.NDArray[Any]) -> None:
        """Set the attributes of the shared model."""
        self._agreement, self._blueprint = agreement, agreement.blueprint
        self._network, self._shared = agreement.network, agreement.shared
        self._row_shape, self.classes_ = agreement.blueprint.shape, classes
        self.weights_, self.overall_ = agreement.shared.weights, agreement.shared.overall

    def _restore(self, agreement: "Agreement", kept: "BaselineFile") -> Self:
        """Set all fitted attributes from a file."""
        shared = agreement.shared
        self._rounds = RoundSettings.of(self, kept.model.settings.seed)
        self._check_all()
        self._know(agreement, np.array(shared.classes))
        self.n_features_in_ = self._row_shape[0]
        if shared.agreed.feature_names is not None:
            self.feature_names_in_ = np.array(shared.agreed.feature_names, dtype=object)
        self._take_clusters(list(kept.clusters), list(kept.networks))
        self.clients_ = {name: each.own for name, each in kept.clients.items()}
        self.rows_ = {name: each.rows() for name, each in kept.clients.items()}
        for name, own in self.clients_.items():
            if own.ndim != 1 or not np.isfinite(own).all() or not self._fits(own):
                raise ValueError(f"the own part of client {name!r:.40} does not fit the model")
        return self


def check_not_negative(name: str, value: Any) -> None:
    """Raise ValueError unless a parameter is finite and non-negative."""
    if not (_is_number(value) and 0 <= value < math.inf):
        raise ValueError(f"expected {name} of 0 or more, got {value!r}")


def check_share(name: str, value: Any) -> None:
    """Raise ValueError unless a parameter is a number from 0 to 1."""
    if not (_is_number(value) and 0 <= value <= 1):
        raise ValueError(f"expected {name} from 0 to 1, got {value!r}")


def check_count(name: str, value: Any, *, least: int = 1) -> None:
    """Raise ValueError unless a parameter is a large enough integer."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise ValueError(f"expected {name} as an integer of {least} or more, got {value!r}")


def check_rate(name: str, value: Any, *, optional: bool = False) -> None:
    """Raise ValueError unless a parameter is finite and positive.

    None is valid if the parameter is optional.
    """
    if optional and value is None:
        return
    if not (_is_number(value) and 0 < value < math.inf):
        raise ValueError(f"expected {name} above 0, got {value!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
