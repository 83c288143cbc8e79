"""Classification and regression by the nearest objects of a federation."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import (
    _check_sample_weight,
    check_array,
    check_is_fitted,
)

from fedneighbors._typing import Array, Floats, Integers
from fedneighbors.federation._links import Link
from fedneighbors.methods.fedknn._neighbors_file import NeighborsFile
from fedneighbors.methods.fedknn._queries import check_sequence, query_list
from fedneighbors.methods.fedknn._settings import SearchParameters, check_n_neighbors
from fedneighbors.methods.fedknn._votes import (
    NEGATIVE,
    check_weights,
    count_votes,
    group_by_number,
    weigh,
)
from fedneighbors.methods.fedknn.estimator import FederatedNeighbors
from fedneighbors.methods.fedknn.metrics import metric_of
from fedneighbors.privacy._policy import Privacy
from fedneighbors.privacy.ledger._ledger import Ledger
from fedneighbors.tabular._federated_estimator import FederatedEstimator
from fedneighbors.tabular._ownership import check_labels, plain_targets, validate_rows
from fedneighbors.tabular._schema import MomentsReply, column_moments, mean_and_deviation

_NUMERIC = ("euclidean", "manhattan", "cosine", "inner_product", "haversine")
_FARTHEST = 1e100  # deviations, so that the squares of a query stay finite


class _ColumnUnits(FederatedEstimator):
    """Mean and standard deviation of each column, from exact sums over parties."""

    def summarize(self, rows: Any, labels: Any) -> Mapping[str, Any]:  # noqa: ARG002 - unused labels
        return vars(column_moments(rows))

    def finish(self, totals: Mapping[str, Any]) -> None:
        n_rows = int(totals["n_rows"])
        moments = MomentsReply(n_rows, totals["sums"], totals["squares"])
        self.center_, deviation = mean_and_deviation(moments)
        self.scale_ = np.where(deviation > 0, deviation, 1.0)


class _NeighborsEstimator(SearchParameters, BaseEstimator):  # type: ignore[misc]
    """Common base of classifier and regressor: settings, search and neighbor weights."""

    _predicts_numbers: bool

    def __init__(
        self,
        n_neighbors: int = 5,
        *,
        weights: str = "uniform",
        standardize: bool = False,
        metric: Any = "euclidean",
        algorithm: str = "auto",
        privacy: Privacy | None = None,
        guarantee: Literal["exact", "certified"] = "exact",
        variant: Literal["mended", "two_exchanges", "paper"] = "mended",
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
        self.standardize = standardize

    def fit(
        self,
        X: Any,
        y: Any,
        *,
        parties: Sequence[Any] | Array | None = None,
        ids: Sequence[Any] | None = None,
        sample_weight: Any = None,
        ledger: Ledger | None = None,
    ) -> Self:
        """Assign objects and targets to their parties.

        Parameters
        ----------
        X : sequence of objects
            A table for a numeric metric; otherwise strings, sets, graphs, or other objects that
            the metric accepts. An array may not be copied: do not change it later.
        y : array-like of shape (n_objects,) or (n_objects, n_outputs)
            Labels for a classifier, one per object; finite numbers for a regressor.
        parties, ids : sequence of shape (n_objects,), optional
            As for :meth:`FederatedNeighbors.fit`.
        sample_weight : array-like of shape (n_objects,), optional
            Weight of each object, 0 or more; a weight of 2 equals a second copy of the object. The
            nearest objects up to a total weight of ``n_neighbors`` vote. Not under ``privacy``.
        ledger : Ledger, optional
            Budgets for private queries.

        Raises
        ------
        ValueError, TypeError
            If a setting, an object or a target is invalid, or the numbers of objects and targets
            differ.
        """
        self._check_settings()
        check_sequence(X)
        y = plain_targets(y, parties)
        if self._is_numeric:
            numbers = self._predicts_numbers
            objects, targets = validate_rows(
                self, X, y, dtype=np.float64, multi_output=numbers, y_numeric=numbers
            )
        else:
            objects = self._check_objects(X, fitting=True)
            targets = self._check_targets(y, len(objects))
        self._fit_weights(sample_weight, objects)
        self._fit_units(objects, parties)
        objects = self._convert_units(objects)
        self._store_targets(targets)
        self._fit_search(objects, parties, ids, ledger)
        return self

    def _check_settings(self) -> None:
        check_n_neighbors(self.n_neighbors)
        check_weights(self.weights)
        if self.weights == "distance" and getattr(metric_of(self.metric), "least", 0.0) < 0:
            raise ValueError(NEGATIVE.format(repr(self.metric)))
        if self.standardize and (not self._is_numeric or self.metric == "haversine"):
            raise ValueError(
                f"standardize is for columns of numbers, not for metric {self.metric!r}; omit it"
            )
        if self.standardize and self.privacy is not None:
            raise ValueError(
                "standardize sums columns exactly, which a privacy budget does not cover; omit one"
            )

    def _fit_units(self, objects: Any, parties: Any) -> None:
        """Set center and scale of the columns, empty without ``standardize``."""
        self._units = np.empty(0), np.empty(0)
        self.run_record_ = None
        if self.standardize:
            units = _ColumnUnits().fit(objects, parties=parties)
            self._units, self.run_record_ = (units.center_, units.scale_), units.run_record_

    def _convert_units(self, objects: Any) -> Any:
        center, scale = self._units
        if not len(center):
            return objects
        with np.errstate(over="ignore"):
            return np.clip((objects - center) / scale, -_FARTHEST, _FARTHEST)

    def _fit_search(self, objects: Any, parties: Any, ids: Any, ledger: Ledger | None) -> None:
        settings = {name: getattr(self, name) for name in FederatedNeighbors._get_param_names()}
        self.search_ = FederatedNeighbors(**settings).fit(
            objects, parties=parties, ids=ids, ledger=ledger
        )

    def _fit_weights(self, sample_weight: Any, objects: Any) -> None:
        """Set the weights and the number of objects per query."""
        self._weights, self._n_needed = None, int(self.n_neighbors)
        if sample_weight is None:
            return
        if self.privacy is not None:
            raise ValueError(
                "sample_weight is not allowed under privacy: the number of objects that a query "
                "requests would depend on the weights of single objects; omit one of them"
            )
        weights = _check_sample_weight(
            sample_weight, objects, dtype=np.float64, ensure_non_negative=True
        )
        if not weights.any():  # older versions of scikit-learn do not check it
            raise ValueError("expected at least one non-zero sample_weight, got zero for all rows")
        self._weights = weights
        # rows of weight 0 may be nearer than all others
        lightest = weights[weights > 0].min()
        n_needed = np.ceil(self.n_neighbors / lightest) + np.count_nonzero(weights == 0)
        self._n_needed = int(min(n_needed, len(weights)))

    @abstractmethod
    def _store_targets(self, targets: Array) -> None:
        """Store the targets in the form that predictions use."""

    @property
    def _is_numeric(self) -> bool:
        """Return whether objects are rows of a numeric table."""
        return isinstance(self.metric, str) and self.metric in _NUMERIC

    def _check_objects(self, X: Any, *, fitting: bool) -> Any:
        check_sequence(X)
        if self._is_numeric:
            return validate_rows(self, X, dtype=np.float64, reset=fitting)
        # A list also for a pandas Series: indexing that would use its index, not positions.
        objects = X if isinstance(X, np.ndarray) or hasattr(X, "columns") else query_list(X)
        if fitting and len(objects) == 0:
            raise ValueError("expected at least one object, got none")
        return objects

    def _check_targets(self, y: Any, n_objects: int) -> Array:
        """Check and return the targets, for a metric that is not numeric."""
        dtype = "numeric" if self._predicts_numbers else None
        targets = check_array(y, ensure_2d=False, dtype=dtype, input_name="y")
        if targets.ndim != 1 and not self._predicts_numbers:
            raise ValueError(f"expected one label for each object, got y of shape {targets.shape}")
        if len(targets) != n_objects:
            raise ValueError(f"expected y for each of {n_objects} objects, got {len(targets)}")
        return np.asarray(targets)

    def _find_neighbors(self, X: Any) -> Iterator[tuple[Any, Integers, Floats]]:
        """Yield queries, and positions and weights of their neighbors, nearest first.

        All queries of a group have the same number of neighbors.
        """
        check_is_fitted(self, "search_")
        queries = self._convert_units(self._check_objects(X, fitting=False))
        batch = self.search_._nearest_batch(queries, self._n_needed) if self._is_numeric else None
        if batch is not None:
            yield slice(None), batch[1], self._weigh(*batch)
            return
        distances, positions = self.search_.kneighbors(queries, self._n_needed)
        for group, near, found in group_by_number(distances, positions):
            yield group, found, self._weigh(near, found)

    def _weigh(self, distances: Floats, positions: Integers) -> Floats:
        """Return the weights of each query's neighbors, shape (n_queries, n_neighbors)."""
        copies = self._count_copies(positions)
        if not copies.any(axis=1).all():
            raise ValueError("expected neighbors, got none: no party that replied has an object")
        return weigh(distances, copies, self.weights)

    def _count_copies(self, positions: Integers) -> Floats:
        """Return the part of each object's weight that is within ``n_neighbors``."""
        if self._weights is None:
            return np.ones(positions.shape)
        weights = self._weights[positions]
        before = np.cumsum(weights, axis=1) - weights
        return np.asarray(np.clip(self.n_neighbors - before, 0.0, weights))

    def save(self, path: str | Path) -> None:
        """Write the model to one file, with all parties' objects and targets.

        Raises
        ------
        ValueError
            If the metric is an object or function, or there is a privacy budget: its ledger must
            not be copied.
        TypeError
            If an object or a name has a type that files cannot hold.
        """
        check_is_fitted(self, "search_")
        NeighborsFile.of(self).save(path)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a model written by :meth:`save`; it predicts the same.

        ``workers``, ``link`` and ``deadline_s`` are not stored.

        Raises
        ------
        ModelFileError
            If the file is missing, truncated or altered, or of another type or version.
        """
        model: Self = NeighborsFile.load(path).restore(cls, source=str(path))
        return model

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

    Under ``"auto"`` or ``"baseline"``, all queries of a call on vectors share one exchange.

    Parameters
    ----------
    n_neighbors : int
        Number of neighbors that vote; all objects if there are fewer.
    weights : {"uniform", "distance"}
        Equal weights, or the inverse of the distance. With the latter, if some neighbors are at
        distance 0, only these count; not for ``"inner_product"``.
    standardize : bool
        Give each column mean 0 and standard deviation 1 over the objects of all parties, by exact
        sums; for columns of numbers, not under ``privacy``.
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
    run_record_ : RunRecord or None
        Exchanges and bytes of ``standardize``.
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

    def _store_targets(self, targets: Array) -> None:
        check_labels(targets)
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
        groups = list(self._find_neighbors(X))  # before the fitted attributes: checks the fit
        return count_votes(groups, self._codes, len(self.classes_))

    def predict(self, X: Any) -> Array:
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
        distance 0, only these count; not for ``"inner_product"``.
    standardize : bool
        Give each column mean 0 and standard deviation 1 over the objects of all parties, by exact
        sums; for columns of numbers, not under ``privacy``.
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
    run_record_ : RunRecord or None
        Exchanges and bytes of ``standardize``.
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

    def _store_targets(self, targets: Array) -> None:
        if targets.dtype.kind not in "biuf":
            raise ValueError(
                f"expected numbers to predict, got values of type {targets.dtype}; for classes use "
                "FederatedNeighborsClassifier"
            )
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
        groups = list(self._find_neighbors(X))
        n_queries = sum(len(found) for _, found, _ in groups)
        means = np.empty((n_queries, *self._targets.shape[1:]))
        for queries, positions, weights in groups:
            means[queries] = self._mean(self._targets[positions], weights)
        return means

    def _mean(self, targets: Array, weights: Floats) -> Any:
        """Return weighted means of each query's targets."""
        if self.weights == "uniform" and self._weights is None:
            return np.mean(targets, axis=1)
        totals = weights.sum(axis=1)
        if targets.ndim == 2:
            return np.sum(targets * weights, axis=1) / totals
        return np.sum(targets * weights[:, :, None], axis=1) / totals[:, None]


def load_neighbors(path: str | Path) -> FederatedNeighborsClassifier | FederatedNeighborsRegressor:
    """Read a classifier or regressor, whichever the file has.

    Raises
    ------
    ModelFileError
        As the ``load`` of the classes.
    """
    file = NeighborsFile.load(path)
    is_regressor = file.method == FederatedNeighborsRegressor.__name__
    kind = FederatedNeighborsRegressor if is_regressor else FederatedNeighborsClassifier
    model: FederatedNeighborsClassifier | FederatedNeighborsRegressor
    model = file.restore(kind, source=str(path))
    return model
