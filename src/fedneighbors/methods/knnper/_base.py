"""Base classes of estimators that predict per client; the baselines use them too."""

import warnings
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence, Sized
from importlib.util import find_spec
from typing import Any, ClassVar, Literal, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from fedneighbors._typing import Array, Floats, Integers
from fedneighbors.errors import DataError, MissingExtraError
from fedneighbors.methods.knnper._task import CLASSIFICATION, Task
from fedneighbors.methods.knnper.memory._rows import RowFeatures
from fedneighbors.metrics import accuracy
from fedneighbors.tabular._ownership import (
    check_labels,
    encode_features,
    party_name,
    plain_targets,
    rows_by_party,
    validate_rows,
)
from fedneighbors.tabular._schema import label_index

Owners = Sequence[Any] | Array | None


def check_torch() -> None:
    """Raise :class:`MissingExtraError` if torch is not installed."""
    if find_spec("torch") is None:
        raise MissingExtraError("torch", "torch")


class ClientEstimator:
    """Base class of classifiers and regressors that predict per client."""

    device: Literal["auto", "cpu", "cuda"] = "cpu"
    clients_: dict[str, Any]
    classes_: Array
    feature_names_in_: Array
    n_features_in_: int
    _row_shape: tuple[int, ...]
    _task: ClassVar[Task] = CLASSIFICATION
    _shared: Any
    _network: Any
    _blueprint: Any

    def embed(self, X: Any) -> tuple[Floats, Floats]:
        """Compute the embeddings and scores of rows.

        Returns
        -------
        keys : float64 array of shape (n_rows, n_dimensions)
            Embeddings. For a pool with exact memories, followed by the network's input rows and
            their discriminants, if any.
        scores : float64 array of shape (n_rows, n_outputs)
            Log-probabilities of the classes, or standardized predictions for regression.
        """
        features, scores = self._features_and_scores(X)
        return features.table(), scores

    def _features_and_scores(self, X: Any) -> tuple[RowFeatures, Floats]:
        """Return rows' features, and log-probabilities or predictions of the network."""
        from fedneighbors.methods.knnper._client import (
            model_inputs,
            row_features,
            shared_outputs,
        )

        check_is_fitted(self)
        x = self._validated_rows(X)
        shared = self._shared
        inputs = model_inputs(x, shared.center, shared.scale, self._network)
        keys, scores = shared_outputs(
            self._network,
            shared.weights,
            inputs,
            task=self._task,
            device=self.device,
            seen=shared.seen,
        )
        if not np.isfinite(keys).all():
            raise DataError(
                "the embeddings of these rows are not finite; look for cells far outside the "
                "range of the training rows"
            )
        settings = getattr(self, "_memory_settings", None)
        if settings is None:
            return RowFeatures(keys), scores
        return row_features(keys, inputs, settings, shared.seen), scores

    def name_features(self, names: Sequence[str]) -> Self:
        """Set column names; tables with names are then checked against them.

        Raises
        ------
        ValueError
            If the numbers of names and columns differ.
        """
        check_is_fitted(self)
        if isinstance(names, str) or (len(names),) != self._row_shape:
            raise ValueError(f"expected a list of {self._row_shape[0]} names, got {names!r}")
        self.feature_names_in_ = np.array(list(names), dtype=object)
        return self

    def _validated_rows(self, X: Any) -> Array:
        rows = encode_features(self, X)
        x = np.asarray(validate_rows(self, rows, dtype="numeric", allow_nd=True, reset=False))
        if x.shape[1:] != self._row_shape:
            raise ValueError(f"expected rows of shape {self._row_shape}, got {x.shape[1:]}")
        return x

    def _class_indices(self, y: Any) -> Integers:
        """Return the index of each label in ``classes_``."""
        index = label_index(tuple(self.classes_.tolist()))
        labels = np.asarray(y)
        if labels.ndim != 1:
            raise ValueError(
                f"expected a label for each row, of shape (n_rows,), got shape {labels.shape}; "
                "pass a flat list"
            )
        unknown = sorted({str(label) for label in labels.tolist() if label not in index})
        if unknown:
            raise ValueError(
                f"expected labels among {self.classes_[:10].tolist()}, got {unknown[:5]}; list all "
                "current and future labels in classes= before training"
            )
        return np.array([index[label] for label in labels.tolist()], np.int64)

    def _client_name(self, name: object) -> str:
        """Return the name of a known client; raise ValueError for others."""
        name = party_name(name)
        if name not in self.clients_:
            raise ValueError(
                f"client {name!r} is unknown; add it with add_client. Known clients: "
                f"{sorted(self.clients_)[:5]}"
            )
        return name

    def _check_new(self, names: Iterable[str]) -> None:
        """Raise ValueError if a client of these names exists."""
        taken = sorted(set(names) & set(self.clients_))
        if taken:
            raise ValueError(
                f"client {taken[0]!r} already exists; use update to add rows, or give the new "
                "client another name"
            )

    def _client_rows(self, parties: Owners, n_rows: int, *, level: int = 4) -> Mapping[str, Any]:
        """Return the rows of each known client; warn of unknown ones.

        ``level`` is the ``stacklevel`` of the warning.
        """
        if parties is None and len(self.clients_) == 1:
            return {next(iter(self.clients_)): slice(None)}
        if parties is None:
            warnings.warn(
                "parties= is missing: all rows get predictions of the shared network; name one "
                f"of the {len(self.clients_)} clients for each row in parties=",
                stacklevel=level,
            )
            return {}
        rows = rows_by_party(parties, n_rows)
        unknown = sorted(set(rows) - set(self.clients_))
        if unknown:
            warnings.warn(
                f"clients {unknown[:5]} are unknown and get predictions of the shared network; "
                "add them with add_client",
                stacklevel=level,
            )
        return {name: rows[name] for name in rows if name in self.clients_}


class ClientClassifier:
    """Prediction, score and validation of classifiers that predict per client."""

    classes_: Array

    @abstractmethod
    def predict_proba(self, X: Any, parties: Owners = None) -> Floats:
        """Return the class probabilities, shape (n_rows, n_classes)."""

    def predict(self, X: Any, parties: Owners = None) -> Array:
        """Return each row's most probable class for its client.

        Ties go to the lower class.
        """
        probabilities = self.predict_proba(X, parties)
        return np.asarray(self.classes_[probabilities.argmax(axis=1)])

    def score(self, X: Any, y: Any, sample_weight: Any = None, parties: Owners = None) -> float:
        """Return the accuracy of :meth:`predict`."""
        predicted = self.predict(X, parties)
        if sample_weight is None:
            return accuracy(np.asarray(y), predicted)
        return float(np.average(predicted == np.asarray(y), weights=sample_weight))

    def _validate(self, X: Any, y: Any, parties: Owners) -> tuple[Array, Array]:
        """Return validated rows of any shape, and class labels, as arrays."""
        y = plain_targets(y, parties)
        x, labels = validate_rows(self, X, y, dtype="numeric", allow_nd=True, reset=True)
        check_labels(labels)
        return x, labels


def check_lengths(rows: Sized, labels: Array) -> None:
    """Raise ValueError if the numbers of rows and labels differ."""
    if len(rows) != len(labels):
        raise ValueError(f"expected one label for each of {len(rows)} rows, got {len(labels)}")
