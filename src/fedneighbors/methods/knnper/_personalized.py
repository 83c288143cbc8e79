"""Base class of kNN-Per's estimators: training, updates of clients and rows, model files."""

import time
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from fedneighbors._typing import Array
from fedneighbors.errors import ModelFileError
from fedneighbors.methods.knnper._base import ClientEstimator, Owners, check_lengths, check_torch
from fedneighbors.methods.knnper._settings import (
    MemorySettings,
    Metric,
    RoundSettings,
    choose_defaults,
)
from fedneighbors.methods.knnper.memory._codes import Codebook, shared_codec
from fedneighbors.methods.knnper.memory._rows import in_metric
from fedneighbors.methods.knnper.personal._client_state import join_client
from fedneighbors.records import RunRecord, environment
from fedneighbors.tabular._ownership import (
    Holdings,
    column_names,
    party_name,
    public_seed,
    rows_by_party,
    set_columns,
)


@dataclass(kw_only=True, eq=False, repr=False)
class PersonalizedEstimator(ClientEstimator):
    """Base class of estimators with a shared network and a memory per client.

    Parameters and attributes are documented in the classifier and the regressor.
    """

    model: Any = field(default=None, kw_only=False)
    representation: Any = "auto"
    embedding: str = "body"
    head: str | tuple[str, ...] = "head"
    hidden: tuple[int, ...] = (256, 128)
    n_neighbors: int | Sequence[int] = 10
    metric: Metric | Sequence[Metric] = "euclidean"
    sigma: float | Literal["auto"] = 1.0
    kernel: Literal["paper", "gaussian", "uniform"] = "paper"
    combine: Literal["auto", "paper", "pool"] = "auto"
    capacity: int | None = None
    strategy: Literal["concatenate", "fixed", "fifo", "reservoir", "drift"] = "concatenate"
    memory: Literal["exact", "8-bit", "product", "centers"] = "exact"
    n_rounds: int | Literal["plateau"] = 50
    patience: int = 20
    max_rounds: int = 500
    participation: float = 1.0
    local_epochs: int = 1
    batch_size: int = 32
    learning_rate: float = 0.02
    momentum: float = 0.9
    weight_decay: float = 5e-4
    learning_rate_schedule: Literal["steps", "constant", "cosine"] = "steps"
    learning_rate_factor: float = 0.3
    validation: float = 0.2
    standardize: bool = True
    trainer: Literal["auto", "stacked", "reuse"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "cpu"
    sums: Literal["plain", "masked"] = "plain"
    checkpoint: str | Path | None = None
    random_state: int | np.random.RandomState | None = 0

    def _fit(
        self,
        x: Array,
        y: Array,
        parties: Owners,
        reserved: tuple[Any, ...] = (),
    ) -> Sequence[Any]:
        """Run federated training, set the fitted attributes and return the clients.

        ``reserved`` are labels that may occur after training.
        """
        seed = public_seed(self.random_state)
        chosen = copy(self)
        chosen.representation, chosen.combine = choose_defaults(self)
        rounds, settings = RoundSettings.of(chosen, seed), MemorySettings.of(chosen, seed)
        owned = rows_by_party(parties, len(y))
        if isinstance(chosen.representation, str) and chosen.representation == "network":
            check_torch()
        from fedneighbors.methods.knnper._training import train_federated
        from fedneighbors.neural._blueprint import Blueprint

        started, clock = datetime.now(UTC), time.perf_counter()
        holdings = Holdings(x, y, owned, column_names(self))
        outcome, network, members = train_federated(chosen, holdings, rounds, settings, reserved)
        shared = outcome.result
        n_outputs = shared.overall.shape[-1]
        kind = getattr(network, "kind", "network")
        if kind == "network":
            blueprint = Blueprint.of(self, x.shape[1:], n_outputs)
        else:
            blueprint = Blueprint(kind, tuple(map(int, x.shape[1:])), n_outputs)
        self._set_fit(network, shared, settings, blueprint)
        self.clients_ = {member.name: member.client_state for member in members}
        privacy = getattr(self, "privacy", None)
        self.guarantee_ = (
            ""
            if privacy is None
            else f"{privacy.total}; {privacy.neighbors} of one row; {privacy.mechanism}"
        )
        self.run_record_ = RunRecord(
            name="knnper.fit",
            parameters={
                "combine": settings.combine,
                "representation": kind,
                "n_rounds": rounds.n_rounds if kind == "network" else 0,
                "participation": rounds.participation,
                "n_neighbors": settings.ks[0] if len(settings.ks) == 1 else str(settings.ks),
                "clients": len(owned),
            },
            rounds=outcome.rounds,
            tables=() if shared.pool is None else (shared.pool.tabulate(),),
            started=started.isoformat(timespec="seconds"),
            seconds=time.perf_counter() - clock,
            environment=environment(),
        )
        return members

    def _set_fit(self, network: Any, shared: Any, settings: MemorySettings, blueprint: Any) -> None:
        """Set the attributes that depend on the shared model and the settings."""
        self._network, self._shared, self._blueprint = network, shared, blueprint
        self._memory_settings, self._row_shape = settings, blueprint.shape
        self.weights_, self.overall_ = shared.weights, shared.overall
        self.pool_ = shared.pool

    def _values(self, y: Any) -> Array:
        """Return labels or targets in the form that memories store."""
        return self._class_indices(y)

    def add_client(self, name: object, X: Any, y: Any, ids: Iterable[object] | None = None) -> Self:
        """Add a client after training, with one pass over its rows.

        Its memory weight, k and metric are chosen on a part of its rows, unless a pool determines
        them. The network is not changed.

        Parameters
        ----------
        name : str or number
            Name, which must be new. Names are converted to str, as in :meth:`fit`: 5 and ``"5"``
            are one client.
        X, y : arrays of shape (n_rows, ...) and (n_rows,) or (n_rows, n_outputs)
            Rows and labels, or targets.
        ids : iterable of str or int, optional
            Names of the rows for :meth:`forget`, converted to str; by default ``"0"``, ``"1"`` and
            so on.

        Raises
        ------
        ValueError
            If the name is missing (None, NaN, an empty text) or taken, a label is not among the
            classes, a target is not finite, or shapes disagree.
        TypeError
            If ``ids`` is a single name instead of a list.
        """
        check_is_fitted(self)
        name = party_name(name)
        self._check_new([name])
        (features, scores), values = self._features_and_scores(X), self._values(y)
        check_lengths(features, values)
        with self._network.exclusive():
            self._check_new([name])  # another thread may have added it
            self.clients_[name] = join_client(
                name,
                features,
                scores,
                values,
                overall=self._shared.overall,
                pool=None if self.pool_ is None else self.pool_.weights,
                settings=self._memory_settings,
                ids=ids,
            )
        return self

    def update(self, name: object, X: Any, y: Any, ids: Iterable[object] | None = None) -> Self:
        """Add rows to a client's memory, within its capacity and strategy.

        Parameters
        ----------
        name, X, y, ids
            As in :meth:`add_client`, for a known client. By default, rows get the next free numbers
            as names.

        Raises
        ------
        ValueError
            If the client is unknown, a label is not among the classes, a target is not finite,
            shapes disagree, or a row name is taken.
        TypeError
            If ``ids`` is a single name instead of a list.
        """
        (features, _), values = self._features_and_scores(X), self._values(y)
        check_lengths(features, values)
        with self._network.exclusive():
            self.clients_[self._client_name(name)].add(features, values, ids)
        return self

    def forget(self, name: object, ids: Iterable[object]) -> Self:
        """Delete rows from the memory of a client.

        The shared network and its discriminants are not changed, although they may depend on the
        rows.

        Parameters
        ----------
        name : str or number
            The client.
        ids : iterable of str or int
            Names of the rows, as given, or from ``clients_[name].memory.ids``.

        Raises
        ------
        ValueError
            If the client is unknown.
        KeyError
            If a row is not in its memory; nothing is deleted in this case.
        TypeError
            If ``ids`` is a single name instead of a list.
        """
        check_is_fitted(self)
        with self._network.exclusive():
            self.clients_[self._client_name(name)].forget(ids)
        return self

    @property
    def codebook_(self) -> Codebook | None:
        """Return the codebook shared by all clients; None before :meth:`share_codebook`."""
        codec = self._memory_settings.codec
        return None if codec is None else codec.book

    def share_codebook(self, X: Any, *, n_stretches: int = 8, bits: Literal[4, 8] = 8) -> Self:
        """Fit a codebook on public rows and compress all memories with it.

        Each key is stored as ``n_stretches`` indices of ``bits`` bits: with the defaults 8 bytes
        instead of 512, for an embedding of 128 numbers. Later clients get the same codebook, and
        rows can be added and deleted as before. The codebook depends on ``X`` only, so
        :meth:`forget` removes all information about a row. Exact keys are discarded: only a new
        :meth:`fit` restores them. The weights of the memories, chosen with exact keys, are not
        changed.

        Parameters
        ----------
        X : array of shape (n_rows, ...)
            Public rows, such as those of a public data set, similar to those of the clients; at
            least a few hundred. Each segment of a key has ``2 ** bits`` codebook entries, or one
            per row if there are fewer rows.
        n_stretches : int
            Number of segments per key; more segments are more accurate.
        bits : {4, 8}
            Bits per codebook index.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If memories are not exact, or belong to a pool, whose heads need exact keys; if clients
            chose among metrics, each of which would need its own codebook; or if a parameter is out
            of range.
        DataError
            If an embedding is not finite or overflows 32 bits. No memory is changed in this case.

        Examples
        --------
        >>> from sklearn.datasets import load_digits
        >>> from fedneighbors import KNNPerClassifier
        >>> X, y = load_digits(return_X_y=True)
        >>> public, X, y = X[:500] / 16, X[500:] / 16, y[500:]
        >>> writer = ["ann" if label < 5 else "bob" for label in y]
        >>> model = KNNPerClassifier(n_rounds=5).fit(X, y, parties=writer)
        >>> before = model.clients_["ann"].memory.keys.astype("float32").nbytes
        >>> before // model.share_codebook(public).clients_["ann"].memory.codes.nbytes
        64
        >>> model.score(X, y, parties=writer) > 0.95
        True
        """
        check_is_fitted(self)
        settings: MemorySettings = self._memory_settings
        _check_encodable(settings)
        keys = in_metric(self.embed(X)[0], settings.metrics[0])
        codec = shared_codec(keys, n_stretches=n_stretches, bits=bits, random_state=settings.seed)
        self.clients_ = {name: state.with_codec(codec) for name, state in self.clients_.items()}
        self._memory_settings = replace(settings, memory="product", codec=codec)
        return self

    def save(self, path: str | Path, client: object = None) -> None:
        """Write network and memories to one file, atomically.

        The file contains numbers and text only, no code. Memories in it contain embeddings and
        labels, or targets, of the clients' rows: give each client only its own memory.

        Parameters
        ----------
        path : path
            The file.
        client : str or number, optional
            Write only this client's memory; None: those of all clients.

        Raises
        ------
        ValueError
            If the client is unknown.
        """
        from fedneighbors.methods.knnper._model import KNNPerModel
        from fedneighbors.methods.knnper._records import ClientRecord

        check_is_fitted(self)
        with self._network.exclusive():
            names = sorted(self.clients_) if client is None else [self._client_name(client)]
            agreed = replace(self._shared.agreed, feature_names=column_names(self))
            KNNPerModel(
                blueprint=self._blueprint,
                layout=self._network.digest,
                shared=replace(self._shared, agreed=agreed),
                settings=self._memory_settings,
                clients={name: ClientRecord.of(self.clients_[name]) for name in names},
                guarantee=self.guarantee_,
                flat=getattr(self, "_is_flat", False),
            ).save(path)

    @classmethod
    def load(cls, path: str | Path, model: Any = None) -> Self:
        """Return the estimator in a file of :meth:`save` or a federated run.

        Parameters
        ----------
        path : path
            The file.
        model : torch.nn.Module, callable or transformer, optional
            The network or the frozen embedding, if the file refers to a user's: files do not
            contain code.

        Raises
        ------
        MissingExtraError
            If torch is not installed and the file has a network.
        ModelFileError
            If the file is missing, truncated, altered, not a model, of another version, for another
            network than ``model``, or for a regressor instead of a classifier, or vice versa.
        ValueError
            If the file refers to a user's module or embedding, and ``model`` is missing.
        """
        from fedneighbors.methods.knnper._model import KNNPerModel, restore_network
        from fedneighbors.neural._blueprint import FROZEN
        from fedneighbors.tabular._model_file import convert_file_errors

        stored = KNNPerModel.load(path)
        if stored.blueprint.model not in FROZEN:
            check_torch()
        if stored.task is not cls._task:
            action, reader = stored.task.reader
            raise ModelFileError(f"{path} has a model that {action}; read it with {reader}.load")
        network = restore_network(stored, model, source=str(path))
        estimator = cls(**cls._parameters_of(stored, model))
        with convert_file_errors(str(path)):
            estimator._set_fit(network, stored.shared, stored.settings, stored.blueprint)
            estimator.guarantee_, estimator.clients_ = stored.guarantee, stored.client_states()
            estimator._set_task_attributes(stored)
            names = stored.shared.agreed.feature_names
            set_columns(estimator, stored.blueprint.shape[0], names)
        return estimator

    def _set_task_attributes(self, stored: Any) -> None:
        """Set the attributes specific to a classifier or a regressor."""
        self.classes_ = np.array(stored.shared.classes)

    @classmethod
    def _parameters_of(cls, stored: Any, model: Any) -> dict[str, Any]:
        """Return the parameters in a model file; the others keep their defaults."""
        from fedneighbors.methods.knnper._model import representation_parameters

        settings: MemorySettings = stored.settings
        values: Mapping[str, Any] = {
            **vars(settings),
            "memory": "exact" if settings.codec is not None else settings.memory,
            **representation_parameters(stored.blueprint, model),
            "standardize": len(stored.shared.center) > 0,
            "random_state": settings.seed,
        }
        return {each.name: values[each.name] for each in fields(cls) if each.name in values}


def _check_encodable(settings: MemorySettings) -> None:
    """Raise ValueError unless a shared codebook can encode the memories."""
    if settings.memory != "exact":
        raise ValueError(
            f"expected exact memories, memory='exact', got {settings.memory!r}; fit "
            "again with memory='exact', then share a codebook"
        )
    if settings.combine != "paper":
        raise ValueError(
            f"expected combine='paper', got {settings.combine!r}: the heads of a pool need exact "
            "keys and rows; fit with combine='paper', or with memory='8-bit', whose pool weights "
            "are chosen for its codes"
        )
    if len(settings.metrics) > 1:
        raise ValueError(
            f"expected one metric, got {settings.metrics}: each metric would need its own "
            "codebook; fit with one metric"
        )
