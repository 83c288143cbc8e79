"""Classification and regression by the nearest objects of a federation."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from fedneighbors._typing import Floats
from fedneighbors.federation._inprocess import Link
from fedneighbors.methods.fedknn._queries import query_list
from fedneighbors.methods.fedknn._settings import SearchParameters, check_n_neighbors
from fedneighbors.methods.fedknn.estimator import FederatedNeighbors
from fedneighbors.privacy._policy import Privacy
from fedneighbors.privacy.ledger._ledger import Ledger

_NUMERIC = ("euclidean", "manhattan", "cosine", "haversine")
_WEIGHTS = ("uniform", "distance")


class _NeighborsEstimator(SearchParameters, BaseEstimator):  # type: ignore[misc]
    """Common base of classifier and regressor: settings, search and neighbor weights."""

    _predicts_numbers: bool

    def __init__(
        self,
        n_neighbors: int = 5,
        *,
        weights: str = "uniform",
        metric: Any = "euclidean",
        algorithm: str = "auto",
        privacy: Privacy | None = None,
        guarantee: Literal["exact", "certified"] = "exact",
        variant: Literal["mended", "paper"] = "mended",
        random_state: int = 0,
        failure: float = 0.05,
        max_queries: int = 100,
        grid_s: float = 0.05,
        allow_partial: bool = False,
        check_distances: bool = False,
        workers: Literal["threads", "processes"] = "threads",
        link: Link | Mapping[str, Link] | None = None,
        deadline_s: float | None = None,
    ) -> None:
        super().__init__(
            metric,
            algorithm,
            privacy,
            guarantee,
            variant,
            random_state,
            failure=failure,
            max_queries=max_queries,
            grid_s=grid_s,
            allow_partial=allow_partial,
            check_distances=check_distances,
            workers=workers,
            link=link,
            deadline_s=deadline_s,
        )
        self.n_neighbors = n_neighbors
        self.weights = weights

    def fit(
        self,
        X: Any,
        y: Any,
        *,
        parties: Sequence[Any] | npt.NDArray[Any] | None = None,
        ids: Sequence[Any] | None = None,
        ledger: Ledger | None = None,
    ) -> Self:
        """Assign objects and targets to their parties.

        Parameters
        ----------
        X : sequence of objects
            A table for a numeric metric; otherwise strings, sets, graphs, or other objects that
            the metric accepts.
        y : array-like of shape (n_objects,) or (n_objects, n_outputs)
            Labels for a classifier, one per object; finite numbers for a regressor.
        parties, ids : sequence of shape (n_objects,), optional
            As for :meth:`FederatedNeighbors.fit`.
        ledger : Ledger, optional
            Budgets for private queries.

        Raises
        ------
        ValueError, TypeError
            If a setting, an object or a target is invalid, or the numbers of objects and targets
            differ.
        """
        check_n_neighbors(self.n_neighbors)
        if self.weights not in _WEIGHTS:
            raise ValueError(f"expected weights as one of {_WEIGHTS}, got {self.weights!r}")
        if self._is_numeric:
            numbers = self._predicts_numbers
            objects, targets = validate_data(
                self, X, y, dtype=np.float64, multi_output=numbers, y_numeric=numbers
            )
        else:
            objects = self._check_objects(X, fitting=True)
            targets = self._check_targets(y, len(objects))
        self._store_targets(targets)
        settings = {name: getattr(self, name) for name in FederatedNeighbors._get_param_names()}
        self.search_ = FederatedNeighbors(**settings).fit(
            objects, parties=parties, ids=ids, ledger=ledger
        )
        return self

    @abstractmethod
    def _store_targets(self, targets: npt.NDArray[Any]) -> None:
        """Store the targets in the form that predictions use."""

    @property
    def _is_numeric(self) -> bool:
        """Return whether objects are rows of a numeric table."""
        return isinstance(self.metric, str) and self.metric in _NUMERIC

    def _check_objects(self, X: Any, *, fitting: bool) -> Any:
        if self._is_numeric:
            return validate_data(self, X, dtype=np.float64, reset=fitting)
        # A list also for a pandas Series: indexing that would use its index, not positions.
        objects = X if isinstance(X, np.ndarray) else query_list(X)
        if fitting and len(objects) == 0:
            raise ValueError("expected at least one object, got none")
        return objects

    def _check_targets(self, y: Any, n_objects: int) -> npt.NDArray[Any]:
        """Check and return the targets, for a metric that is not numeric."""
        dtype = "numeric" if self._predicts_numbers else None
        targets = check_array(y, ensure_2d=False, dtype=dtype, input_name="y")
        if targets.ndim != 1 and not self._predicts_numbers:
            raise ValueError(f"expected one label for each object, got y of shape {targets.shape}")
        if len(targets) != n_objects:
            raise ValueError(f"expected y for each of {n_objects} objects, got {len(targets)}")
        return np.asarray(targets)

    def _find_neighbors(self, X: Any) -> list[tuple[npt.NDArray[np.int64], Floats]]:
        """Return positions and weights of each query's neighbors, nearest first."""
        check_is_fitted(self, "search_")
        queries = self._check_objects(X, fitting=False)
        distances, positions = self.search_.kneighbors(queries, self.n_neighbors)
        if not all(map(len, positions)):
            raise ValueError("expected neighbors, got none: no party that replied has an object")
        return list(zip(positions, map(self._weigh, distances), strict=True))

    def _weigh(self, distances: Floats) -> Floats:
        if self.weights == "uniform":
            return np.ones(len(distances))
        with np.errstate(divide="ignore", over="ignore"):
            weights = 1.0 / distances
        infinite = np.isinf(weights)
        return infinite.astype(np.float64) if infinite.any() else weights

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = self._is_numeric
        tags.target_tags.required = True
        return tags


class FederatedNeighborsClassifier(ClassifierMixin, _NeighborsEstimator):  # type: ignore[misc]
    """Classification by a vote of the nearest objects of several parties.

    Predictions equal those on the pooled objects, except where distances are tied, and unless
    ``guarantee``, ``variant`` or ``allow_partial`` permits inexact answers. This class stores all
    labels itself; in a deployment, the party of a returned object would also return its label. The
    user then sees the labels of all ``n_neighbors`` neighbors of each query, not only the predicted
    one. Parties see the query, but no labels of other parties.

    Parameters
    ----------
    n_neighbors : int
        Number of neighbors that vote; all objects if there are fewer.
    weights : {"uniform", "distance"}
        Equal weights, or the inverse of the distance. With the latter, if some neighbors are at
        distance 0, only these count.
    metric : str, Metric or callable
        As in :class:`FederatedNeighbors`: strings, sets and graphs can be classified too.
    algorithm, privacy, guarantee, variant, random_state, failure, max_queries, grid_s
        As in :class:`FederatedNeighbors`.
    allow_partial, check_distances, workers, link, deadline_s
        As in :class:`FederatedNeighbors`.

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
        Labels, ascending.
    search_ : FederatedNeighbors
        The search, with ``query_records_`` of the last prediction.
    n_features_in_, feature_names_in_
        Number and names of the columns, for a numeric metric.

    Examples
    --------
    >>> words, language = ["bank", "tank", "Zweig", "Zwerg"], ["en", "en", "de", "de"]
    >>> model = FederatedNeighborsClassifier(1, metric="edit")
    >>> model.fit(words, language, parties=["a", "b", "a", "b"]).predict(["rank", "Zwang"]).tolist()
    ['en', 'de']
    """

    _predicts_numbers = False

    def _store_targets(self, targets: npt.NDArray[Any]) -> None:
        check_classification_targets(targets)
        self.classes_, self._codes = np.unique(targets, return_inverse=True)

    def predict_proba(self, X: Any) -> Floats:
        """Return each class's fraction of the neighbors' total weight.

        Parameters
        ----------
        X : sequence of objects
            Queries.

        Returns
        -------
        float64 array of shape (n_queries, n_classes)
            In the order of ``classes_``; rows sum to 1.
        """
        neighbors = self._find_neighbors(X)
        totals = np.zeros((len(neighbors), len(self.classes_)))
        for row, (positions, weights) in enumerate(neighbors):
            np.add.at(totals[row], self._codes[positions], weights)
        return np.asarray(totals / totals.sum(axis=1, keepdims=True))

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Return the class of largest weight; ties go to the first class.

        Parameters
        ----------
        X : sequence of objects
            Queries.
        """
        probabilities = self.predict_proba(X)  # before classes_: checks that the model is fitted
        return np.asarray(self.classes_[probabilities.argmax(axis=1)])


class FederatedNeighborsRegressor(MultiOutputMixin, RegressorMixin, _NeighborsEstimator):  # type: ignore[misc]
    """Regression by the mean target of the nearest objects of several parties.

    Predictions equal those on the pooled objects, except where distances are tied, and unless
    ``guarantee``, ``variant`` or ``allow_partial`` permits inexact answers. This class stores all
    targets itself; in a deployment, the party of a returned object would also return its target,
    and the user would see it.

    Parameters
    ----------
    n_neighbors : int
        Number of neighbors to average; all objects if there are fewer.
    weights : {"uniform", "distance"}
        Equal weights, or the inverse of the distance. With the latter, if some neighbors are at
        distance 0, only these count.
    metric : str, Metric or callable
        As in :class:`FederatedNeighbors`.
    algorithm, privacy, guarantee, variant, random_state, failure, max_queries, grid_s
        As in :class:`FederatedNeighbors`.
    allow_partial, check_distances, workers, link, deadline_s
        As in :class:`FederatedNeighbors`.

    Attributes
    ----------
    search_ : FederatedNeighbors
        The search, with ``query_records_`` of the last prediction.
    n_features_in_, feature_names_in_
        Number and names of the columns, for a numeric metric.

    Examples
    --------
    >>> model = FederatedNeighborsRegressor(2)
    >>> model = model.fit([[0], [1], [2]], [0, 1, 2], parties=["a", "b", "a"])
    >>> model.predict([[1.8]]).tolist()
    [1.5]
    """

    _predicts_numbers = True

    def _store_targets(self, targets: npt.NDArray[Any]) -> None:
        self._targets = targets

    def predict(self, X: Any) -> Floats:
        """Return the weighted mean of the neighbors' targets.

        Parameters
        ----------
        X : sequence of objects
            Queries.

        Returns
        -------
        float64 array of shape (n_queries,) or (n_queries, n_outputs)
        """
        neighbors = self._find_neighbors(X)
        means = [self._mean(self._targets[rows], weights) for rows, weights in neighbors]
        return np.array(means, np.float64).reshape(len(neighbors), *self._targets.shape[1:])

    def _mean(self, targets: npt.NDArray[Any], weights: Floats) -> Any:
        if self.weights == "uniform":
            return np.mean(targets, axis=0)
        if targets.ndim == 1:
            return np.sum(targets * weights) / weights.sum()
        return np.sum(targets * weights[:, None], axis=0) / weights.sum()
