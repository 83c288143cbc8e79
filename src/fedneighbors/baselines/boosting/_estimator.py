"""Federated boosting as scikit-learn estimators."""

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from scipy.special import expit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from fedneighbors._typing import Array, Floats
from fedneighbors.baselines.boosting._model import BoostingModel
from fedneighbors.baselines.boosting._party import BoostingParty
from fedneighbors.baselines.boosting._protocol import BoostingSettings, coordinate
from fedneighbors.errors import DataError, ModelFileError, PartyRefused
from fedneighbors.federation._inprocess import run
from fedneighbors.federation._loop import Delivery, Reduce, Replies, run_rounds
from fedneighbors.federation._messages import Message
from fedneighbors.federation._roles import Party, Refused
from fedneighbors.records import RunRecord, environment
from fedneighbors.tabular._model_file import ModelFileMixin
from fedneighbors.tabular._ownership import (
    Holdings,
    check_labels,
    column_names,
    plain_targets,
    public_seed,
    repeat_rows,
    rows_by_party,
    set_columns,
    validate_rows,
)
from fedneighbors.tabular._schema import label_array


class _SingleParty:
    """Transport to a single party in this thread, without frames."""

    def __init__(self, party: Party) -> None:
        self.names = (party.name,)
        self._party = party

    def deliver(self, requests: Mapping[str, Message], *, reduce: Reduce) -> Delivery:
        """Return the party's reply, which is also the sum."""
        ((name, request),) = requests.items()
        try:
            reply = self._party.answer(request)
        except Refused as refused:
            raise PartyRefused(name, refused.code, refused.detail) from None
        each = {name: reply} if reduce == "gather" else {}
        return Delivery(Replies(each, reply if reduce == "sum" else None, {}), {}, {})


class _FederatedBoosting(ModelFileMixin, BaseEstimator, ABC):  # type: ignore[misc]
    """Training, reading of files and input checks of both estimators."""

    model_: BoostingModel
    run_record_: RunRecord
    _task: Literal["classification", "regression"]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def fit(
        self,
        X: Any,
        y: Any,
        parties: Sequence[Any] | Array | None = None,
        sample_weight: Any = None,
    ) -> Self:
        """Train on one table, whose rows may belong to several parties.

        Parameters
        ----------
        X : array or DataFrame of shape (n_rows, n_features)
            Numbers; missing cells are NaN. :class:`~fedneighbors.datasets.Schema` encodes
            categories.
        y : array of shape (n_rows,)
            Labels of a classifier, numbers of a regressor.
        parties : sequence of shape (n_rows,), optional
            Owner of each row. None means one party.
        sample_weight : array-like of shape (n_rows,), optional
            Whole numbers of 0 or more: a weight of 2 equals a second copy of the row.

        Raises
        ------
        ValueError
            If a parameter is out of range, or there is not one owner for each row.
        DataError
            If a classifier gets fewer than two classes.
        """
        numeric = self._task == "regression"
        y = plain_targets(y, parties)
        x, target = validate_rows(
            self, X, y, dtype=np.float64, ensure_all_finite="allow-nan", y_numeric=numeric
        )
        owned = repeat_rows(rows_by_party(parties, len(target)), sample_weight, x)
        self._check_target(np.concatenate([target[rows] for rows in owned.values()]))
        settings = self._make_settings()
        holdings = Holdings(x, target, owned, column_names(self))
        members = holdings.parties(BoostingParty, n_threads=1)
        started, clock = datetime.now(UTC), time.perf_counter()
        if len(members) == 1:
            outcome = run_rounds(coordinate(settings), _SingleParty(members[0]))
        else:
            outcome = run(coordinate(settings), members)
        self._set_model(outcome.result, like=target)
        self.run_record_ = RunRecord(
            name="boosting.fit",
            parameters={"task": self._task, "n_iter_": self.n_iter_, "seed": settings.seed},
            rounds=outcome.rounds,
            started=started.isoformat(timespec="seconds"),
            seconds=time.perf_counter() - clock,
            environment=environment(),
        )
        return self

    @abstractmethod
    def _check_target(self, target: Array) -> None:
        """Raise if the target does not fit the task."""

    def _make_settings(self) -> BoostingSettings:
        parameters = self.get_params(deep=False)
        names = parameters.keys() & {field.name for field in fields(BoostingSettings)}
        values = {name: parameters[name] for name in names}
        weight = values.get("class_weight")
        if isinstance(weight, Mapping):
            values["class_weight"] = {str(label): w for label, w in weight.items()}
        return BoostingSettings(task=self._task, seed=public_seed(self.random_state), **values)

    def _set_model(self, model: BoostingModel, *, like: Array) -> None:
        self.model_ = model
        self.n_iter_ = len(model.trees.roots) // len(model.intercept)
        if model.classes:
            self.classes_ = label_array(model.classes, like=like)

    def _scores(self, X: Any) -> Floats:
        check_is_fitted(self)
        x = validate_rows(self, X, dtype=np.float64, ensure_all_finite="allow-nan", reset=False)
        return self.model_.scores(x)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Load an estimator written by :meth:`save` or by a party.

        Raises
        ------
        ModelFileError
            If the file is missing, truncated or altered, or of another type or version.
        """
        model, estimator = BoostingModel.load(path), cls()
        if bool(model.classes) != (cls._task == "classification"):
            raise ModelFileError(f"{path} is not a model for {cls._task}; load it as the other one")
        set_columns(estimator, model.n_features, model.feature_names)
        estimator._set_model(model, like=np.array(model.classes))
        return estimator


class FederatedBoostingClassifier(ClassifierMixin, _FederatedBoosting):  # type: ignore[misc]
    """Gradient boosting of trees on histograms that are summed over parties.

    The federated form of scikit-learn's ``HistGradientBoostingClassifier``, with its defaults. The
    model equals that of the pooled rows bit for bit, since parties send only sums of integers. An
    iteration changes a score by at most 100 learning rates, so that rare classes do not diverge.

    Each party sends its column names and labels, and then numbers that are summed over parties:

    - of each class, the number of training rows and of held-out rows;
    - of each column, the numbers of values below cuts, which close in on quantiles and on frequent
      values;
    - of each bin of each column, in each node of each tree, the number of rows and the sums of
      their gradients and Hessians;
    - the held-out loss after each iteration.

    Under masked sums the coordinator sees only their totals, otherwise each party's numbers. Either
    way, it sees nodes of few rows, and these reveal single rows. There is no privacy budget.

    Parameters
    ----------
    learning_rate : float
        Factor of the values of leaves.
    max_iter : int
        Maximum number of iterations; each has one tree, or one for each of three or more classes.
    max_leaf_nodes : int
        Maximum number of leaves of a tree. The leaf with the largest gain is split next.
    max_depth : int, optional
        Maximum number of edges from the root to a leaf.
    min_samples_leaf : int
        Minimum number of rows of a leaf, over all parties.
    l2_regularization : float
        Added to each sum of Hessians.
    max_bins : int
        Maximum number of bins of a column, at most 255; missing cells have one more, and each split
        sends them to the side that lowers the loss.
    class_weight : {"balanced"} or dict, optional
        Weights of the rows of each class. ``"balanced"`` gives all classes the same total weight; a
        class that the dict lacks has weight 1.
    early_stopping : bool or "auto"
        Stop when the loss on held-out rows does not fall; ``"auto"`` does with more than 10,000
        rows. A row is held out by a public hash of its cells, at whichever party it is.
    validation_fraction : float
        Fraction of rows held out for early stopping.
    n_iter_no_change : int
        Number of iterations without a lower loss after which training stops.
    tol : float
        Minimum decrease of the loss.
    random_state : int, RandomState or None
        Public seed of the hash that holds rows out.

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
        Labels, ascending.
    n_iter_ : int
        Number of iterations.
    model_ : BoostingModel
        The complete model, as every party of a federation holds it.
    run_record_ : RunRecord
        Rounds, bytes up and down, seconds; one party needs no messages, and has no bytes.

    References
    ----------
    .. [1] Ke et al., "LightGBM: A Highly Efficient Gradient Boosting Decision Tree", NeurIPS 2017.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> X, y = load_wine(return_X_y=True)
    >>> owners = ["north" if row % 3 else "south" for row in range(len(y))]
    >>> federated = FederatedBoostingClassifier(max_iter=5).fit(X, y, parties=owners)
    >>> pooled = FederatedBoostingClassifier(max_iter=5).fit(X, y)
    >>> bool((federated.predict_proba(X) == pooled.predict_proba(X)).all())
    True
    """

    _task = "classification"
    classes_: Array

    def __init__(
        self,
        learning_rate: float = 0.1,
        max_iter: int = 100,
        *,
        max_leaf_nodes: int = 31,
        max_depth: int | None = None,
        min_samples_leaf: int = 20,
        l2_regularization: float = 0.0,
        max_bins: int = 255,
        class_weight: Literal["balanced"] | Mapping[Any, float] | None = None,
        early_stopping: bool | Literal["auto"] = "auto",
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        tol: float = 1e-7,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.learning_rate = learning_rate
        self.max_iter = max_iter
        self.max_leaf_nodes = max_leaf_nodes
        self.max_depth = max_depth
        self.min_samples_leaf = min_samples_leaf
        self.l2_regularization = l2_regularization
        self.max_bins = max_bins
        self.class_weight = class_weight
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.random_state = random_state

    def _check_target(self, target: Array) -> None:
        check_labels(target)
        if len(np.unique(target)) < 2:
            raise DataError("expected at least two classes, got one class; add rows of another")

    def decision_function(self, X: Any) -> Floats:
        """Return log-odds of the second class, or a score for each class.

        Parameters
        ----------
        X : array or DataFrame of shape (n_rows, n_features)
            As for :meth:`fit`.

        Returns
        -------
        float64 array of shape (n_rows,) or (n_rows, n_classes)
        """
        scores = self._scores(X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict_proba(self, X: Any) -> Floats:
        """Return class probabilities, shape (n_rows, n_classes)."""
        scores = self._scores(X)
        if scores.shape[1] > 1:
            return np.asarray(softmax(scores, axis=1))
        return np.hstack([expit(-scores), expit(scores)])

    def predict(self, X: Any) -> Array:
        """Predict the most probable class; ties go to the lower class."""
        best = self.predict_proba(X).argmax(axis=1)
        return np.asarray(self.classes_[best])


class FederatedBoostingRegressor(RegressorMixin, _FederatedBoosting):  # type: ignore[misc]
    """Gradient boosting of trees for numbers, on histograms summed over parties.

    The federated form of scikit-learn's ``HistGradientBoostingRegressor`` with squared error. The
    model equals that of the pooled rows bit for bit. Parties send what those of
    :class:`FederatedBoostingClassifier` send, with the sums of the numbers and of their squares
    in place of labels and numbers of rows of each class.

    Parameters
    ----------
    learning_rate, max_iter, max_leaf_nodes, max_depth, min_samples_leaf : float or int
        As for :class:`FederatedBoostingClassifier`.
    l2_regularization, max_bins : float, int
        Likewise.
    early_stopping, validation_fraction, n_iter_no_change, tol : bool or "auto", float, int, float
        Likewise.
    random_state : int, RandomState or None
        Likewise.

    Attributes
    ----------
    n_iter_ : int
        Number of iterations.
    model_ : BoostingModel
        The complete model, as every party of a federation holds it.
    run_record_ : RunRecord
        Rounds, bytes up and down, seconds.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> owners = ["north" if row % 3 else "south" for row in range(len(y))]
    >>> FederatedBoostingRegressor(max_iter=20).fit(X, y, parties=owners).score(X, y) > 0.6
    True
    """

    _task = "regression"

    def __init__(
        self,
        learning_rate: float = 0.1,
        max_iter: int = 100,
        *,
        max_leaf_nodes: int = 31,
        max_depth: int | None = None,
        min_samples_leaf: int = 20,
        l2_regularization: float = 0.0,
        max_bins: int = 255,
        early_stopping: bool | Literal["auto"] = "auto",
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        tol: float = 1e-7,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.learning_rate = learning_rate
        self.max_iter = max_iter
        self.max_leaf_nodes = max_leaf_nodes
        self.max_depth = max_depth
        self.min_samples_leaf = min_samples_leaf
        self.l2_regularization = l2_regularization
        self.max_bins = max_bins
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.random_state = random_state

    def _check_target(self, target: Array) -> None:
        """Accept all numbers; the party checks them."""

    def predict(self, X: Any) -> Floats:
        """Predict a number for each row."""
        return self._scores(X)[:, 0]


def load_boosting(path: str | Path) -> FederatedBoostingClassifier | FederatedBoostingRegressor:
    """Load a classifier or regressor, whichever the file has.

    Raises
    ------
    ModelFileError
        As the ``load`` of the classes.
    """
    is_classifier = bool(BoostingModel.load(path).classes)
    return (FederatedBoostingClassifier if is_classifier else FederatedBoostingRegressor).load(path)
