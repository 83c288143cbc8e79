"""Base class of the baselines that train networks: parameters, checks, training, prediction."""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from fedneighbors._typing import Array, Floats
from fedneighbors.baselines._dynamic_clients import (
    NO_OWN_PART,
    ClientParts,
    ClientState,
    DynamicClients,
    NamedRows,
    Vector,
)
from fedneighbors.methods.knnper._base import (
    ClientClassifier,
    ClientEstimator,
    Owners,
    check_torch,
)
from fedneighbors.methods.knnper._settings import MemorySettings, RoundSettings, is_number
from fedneighbors.tabular._model_file import read_model_file
from fedneighbors.tabular._ownership import (
    Holdings,
    column_names,
    one_thread,
    public_seed,
    rows_by_party,
    set_columns,
)
from fedneighbors.tabular._schema import label_array, reserved_labels

if TYPE_CHECKING:  # these import torch
    from fedneighbors.baselines._files import BaselineFile
    from fedneighbors.baselines._trainer import Agreement, FederatedTrainer


_WITHOUT_TORCH = {
    b"FNBOOST": ("fedneighbors.baselines.boosting._estimator", "load_boosting"),
    b"FNDISCR": ("fedneighbors.baselines._discriminant", "FederatedDiscriminantClassifier"),
}
"""Module and class or function that read a file, by its first bytes; others have networks."""


def load(path: str | Path, model: Any = None) -> Any:
    """Read a baseline of any class from a file written by ``save``.

    Boosting and discriminants need no torch.

    Parameters
    ----------
    path : path
        The file.
    model : torch.nn.Module or callable, optional
        The network, if the file belongs to a custom one.

    Returns
    -------
    estimator
        Fitted, of the class that wrote the file.

    Raises
    ------
    MissingExtraError, ModelFileError, ValueError
        As :meth:`Baseline.load`.
    """
    raw = read_model_file(path)
    for magic, (module, name) in _WITHOUT_TORCH.items():
        if raw.startswith(magic):
            reader = getattr(import_module(module), name)
            return getattr(reader, "load", reader)(path)
    check_torch()
    from fedneighbors.baselines._files import read_baseline

    return read_baseline(path, model)


@dataclass(kw_only=True, eq=False, repr=False)
class Baseline(
    DynamicClients,
    ClientClassifier,
    ClientEstimator,
    ClassifierMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """Base class of the baselines for comparison with kNN-Per.

    A subclass trains shared weights and an own part for each client (:meth:`_train`). It computes
    the own parts of clients that are added, or whose rows change, after training
    (:meth:`_fit_own_parts`). ``_own_part`` names the part of the shared network that an own part
    replaces in predictions: nothing, the head or the whole network.

    Parameters
    ----------
    model, embedding, head, hidden
        As in :class:`~fedneighbors.methods.knnper.KNNPerClassifier`, like all parameters below.
    n_rounds, participation, local_epochs, batch_size
        Training schedule.
    learning_rate, momentum, weight_decay
        Parameters of SGD. The rate is multiplied by 0.3 after 60 % and 85 % of the rounds.
    validation : float
        Fraction of each client's rows that :func:`~._tuning.tune` holds out; :meth:`fit` uses all.
    standardize, trainer, device, classes, random_state
        Scaling of columns, batching of clients, device, possible labels, and random seed.

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
        Labels, ascending.
    clients_ : dict of str to float array
        Own part of each client; of length 0 if the client uses the shared model.
    rows_ : dict of str to NamedRows
        Rows of each client, from which its own part is computed again after changes.
    weights_ : float array of shape (n_weights,)
        Weights of the shared model.
    overall_ : float64 array of shape (n_classes,)
        Class shares over all clients, each count increased by 1.
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
        x, labels = self._validate(X, y, parties)
        self._rounds = RoundSettings.of(self, public_seed(self.random_state))
        self._check_parameters()
        holdings = Holdings(x, labels, rows_by_party(parties, len(labels)), column_names(self))
        check_torch()
        from fedneighbors.baselines._trainer import FederatedTrainer

        agreement = self._make_agreement(holdings)
        with one_thread():
            trainer = FederatedTrainer(
                agreement, holdings, self._rounds, method=self.trainer, device=self.device
            )
            weights, self.clients_ = self._train(trainer)
        shared = replace(agreement.shared, weights=weights)
        self._set_model(replace(agreement, shared=shared), label_array(shared.classes, like=labels))
        classes = self._class_indices(labels)
        self.rows_ = {
            name: NamedRows.new(x[rows], classes[rows]) for name, rows in holdings.owned.items()
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
            scores = self._shared_scores(x)
            for name, rows in self._client_rows(parties, len(x)).items():
                own = self.clients_[name]
                if len(own):
                    scores[rows] = self._client_scores(own, x[rows], scores[rows])
        return np.asarray(np.exp(scores))

    def save(self, path: str | Path, client: object = None) -> None:
        """Write the model to one file, atomically.

        The file contains numbers and text only, including the rows of clients, from which
        :meth:`update` and :meth:`forget` compute own parts: give each client only its own file.

        Parameters
        ----------
        path : path
            The file.
        client : str or number, optional
            Write only this client's own part and rows, for handing the file to the client. None
            writes all clients.

        Raises
        ------
        ValueError
            If the client is unknown.
        """
        from fedneighbors.baselines._files import BaselineFile

        check_is_fitted(self)
        with self._network.exclusive():
            names = sorted(self.clients_) if client is None else [self._client_name(client)]
            self._check_parameters()
            BaselineFile.of(self, names).save(path)

    @classmethod
    def load(cls, path: str | Path, model: Any = None) -> Self:
        """Read an estimator of this class from :meth:`save`.

        It predicts and changes like the saved one. ``device`` has its default; ``start`` is None,
        as the file contains its network.

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
            If the file is missing, truncated, altered, not a baseline, or of another version,
            method or network.
        ValueError
            If the file refers to a user's module and ``model`` is missing.
        """
        check_torch()
        from fedneighbors.baselines._files import read_baseline

        baseline: Self = read_baseline(path, model, cls)
        return baseline

    @abstractmethod
    def _train(self, trainer: "FederatedTrainer") -> tuple[Vector, ClientParts]:
        """Train, and return the shared weights and each client's own part."""

    def _fit_own_parts(self, trainer: "FederatedTrainer") -> ClientParts:
        """Compute own parts of clients that are new or whose rows changed."""
        return dict.fromkeys(trainer.names, NO_OWN_PART)

    def _shared_scores(self, x: Any) -> Floats:
        """Return log-probabilities of the shared model, as for unknown clients."""
        return self._agreement.log_probabilities(self.weights_, x, self.device)

    def _client_scores(self, own: Vector, x: Any, _scores: Floats) -> Floats:
        """Return a client's log-probabilities from those of the shared model."""
        return self._agreement.log_probabilities(self._network_weights(own), x, self.device)

    def _network_weights(self, own: Vector) -> Vector:
        """Return the network's weights for a client's own part."""
        return self._agreement.with_head(self.weights_, own) if self._own_part == "head" else own

    def _is_own_part(self, own: Vector) -> bool:
        """Return whether a vector has the length of an own part."""
        sizes = {
            "nothing": 0,
            "head": int(self._agreement.head.sum()),
            "network": len(self.weights_),
        }
        return len(own) in (0, sizes[self._own_part])

    def _client_state(self, names: list[str]) -> ClientState:
        """Return these clients' own parts, clusters, and shared arrays of the method."""
        return {name: self.clients_[name] for name in names}, [], []

    def _set_clusters(self, clusters: list[tuple[str, ...]], networks: list[Vector]) -> None:
        """Set the clusters and shared arrays from :meth:`_client_state`."""
        if clusters or networks:
            raise ValueError(f"{type(self).__name__} has no clusters or shared arrays")

    def _check_parameters(self) -> None:
        """Raise :class:`ValueError` if a parameter is out of range."""
        RoundSettings.of(self, 0)
        MemorySettings(validation=self.validation)
        if self.trainer not in ("auto", "stacked", "reuse"):
            raise ValueError(f"expected trainer 'auto', 'stacked' or 'reuse', got {self.trainer!r}")
        self._check_own_parameters()

    def _check_own_parameters(self) -> None:
        """Raise :class:`ValueError` if a parameter of the subclass is out of range."""

    def _make_agreement(self, holdings: Holdings) -> "Agreement":
        """Return a new agreement, or that of ``start``."""
        from fedneighbors.baselines._trainer import Agreement

        start = getattr(self, "start", None)
        if start is not None:
            return Agreement.from_start(start, holdings)
        reserved = () if self.classes is None else reserved_labels(self.classes, holdings.y)
        return Agreement.new(self, holdings, self._rounds.seed, reserved)

    def _set_model(self, agreement: "Agreement", classes: Array) -> None:
        """Set the attributes that describe the shared model."""
        self._agreement, self._blueprint = agreement, agreement.blueprint
        self._network, self._shared = agreement.network, agreement.shared
        self._row_shape, self.classes_ = agreement.blueprint.shape, classes
        self.weights_, self.overall_ = agreement.shared.weights, agreement.shared.overall

    def _restore(self, agreement: "Agreement", file: "BaselineFile") -> Self:
        """Set all fitted attributes from a file."""
        shared = agreement.shared
        self._rounds = RoundSettings.of(self, file.model.settings.seed)
        self._check_parameters()
        self._set_model(agreement, np.array(shared.classes))
        set_columns(self, self._row_shape[0], shared.agreed.feature_names)
        self._set_clusters(list(file.clusters), list(file.networks))
        self.clients_ = {name: each.own for name, each in file.clients.items()}
        self.rows_ = {name: each.rows() for name, each in file.clients.items()}
        for name, own in self.clients_.items():
            if own.ndim != 1 or not np.isfinite(own).all() or not self._is_own_part(own):
                raise ValueError(f"the own part of client {name!r:.40} does not fit the model")
        return self


def check_not_negative(name: str, value: Any) -> None:
    """Raise ValueError unless a parameter is finite and non-negative."""
    if not (is_number(value) and 0 <= value < math.inf):
        raise ValueError(f"expected {name} of 0 or more, got {value!r}")


def check_fraction(name: str, value: Any) -> None:
    """Raise ValueError unless a parameter is a number from 0 to 1."""
    if not (is_number(value) and 0 <= value <= 1):
        raise ValueError(f"expected {name} from 0 to 1, got {value!r}")


def check_rate(name: str, value: Any, *, optional: bool = False) -> None:
    """Raise ValueError unless a parameter is finite and positive.

    None is valid if the parameter is optional.
    """
    if optional and value is None:
        return
    if not (is_number(value) and 0 < value < math.inf):
        raise ValueError(f"expected {name} above 0, got {value!r}")
