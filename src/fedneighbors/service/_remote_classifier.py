"""A classifier whose neighbours are those of a broker's providers."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from fedneighbors._typing import Array, Floats
from fedneighbors.errors import DataError
from fedneighbors.methods.fedknn._votes import (
    NEGATIVE,
    check_weights,
    count_votes,
    group_by_number,
    weigh,
)
from fedneighbors.service._client import RemoteNeighbors


class RemoteNeighborsClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Classification by a vote of the nearest objects of a broker's providers.

    The user has the labels of the objects; they are not sent to the broker. Predictions equal those
    of :class:`~fedneighbors.FederatedNeighborsClassifier` on the same objects.

    Parameters
    ----------
    search : RemoteNeighbors
        The collection.
    n_neighbors : int
        Number of neighbors that vote; all objects if there are fewer.
    weights : {"uniform", "distance"}
        Equal weights, or the inverse of the distance. With the latter, if some neighbors are at
        distance 0, only these count; not for ``"inner_product"``, and only if the providers show
        distances to the user.

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
        Labels, ascending.

    Examples
    --------
    >>> search = RemoteNeighbors("https://broker.example", collection="titles", token="fn_...")
    >>> labels = {("north", "t-1"): "search", ("south", "t-9"): "learning"}
    >>> RemoteNeighborsClassifier(search, 3).fit(labels).classes_.tolist()
    ['learning', 'search']
    """

    def __init__(
        self, search: RemoteNeighbors, n_neighbors: int = 5, *, weights: str = "uniform"
    ) -> None:
        self.search = search
        self.n_neighbors = n_neighbors
        self.weights = weights

    def fit(self, X: Mapping[Any, Any] | Sequence[Any], y: Any = None) -> Self:
        """Store the labels of the objects; nothing is sent.

        Parameters
        ----------
        X : mapping of (provider, id) to label, or sequence of (provider, id)
            The objects of the collection, such as :class:`RemoteObject`.
        y : array-like of shape (n_objects,), optional
            Labels, if ``X`` is a sequence.

        Raises
        ------
        ValueError
            If a setting is invalid, there is no label, or an object is named twice.
        """
        check_weights(self.weights)
        if isinstance(X, Mapping) != (y is None):
            raise ValueError("expected a mapping of objects to labels, or objects and y")
        objects, labels = (list(X), list(X.values())) if isinstance(X, Mapping) else (list(X), y)
        if len(objects) != len(labels) or not objects:
            raise ValueError(f"expected labels, one for each of {len(objects)} objects")
        targets = np.asarray(labels)
        check_classification_targets(targets)
        self._positions = {
            (str(provider), str(name)): position
            for position, (provider, name) in enumerate(objects)
        }
        if len(self._positions) < len(objects):
            raise ValueError("expected one label for each object; an object is named twice")
        self.classes_, self._codes = np.unique(targets, return_inverse=True)
        return self

    def predict_proba(self, X: Any) -> Floats:
        """Return each class's fraction of the neighbors' total weight.

        Parameters
        ----------
        X : sequence of objects
            Queries, as for :meth:`RemoteNeighbors.kneighbors`.

        Returns
        -------
        float64 array of shape (n_queries, n_classes)
            In the order of ``classes_``; rows sum to 1.

        Raises
        ------
        DataError
            If a found object has no label, or no object is found.
        ValueError
            If a provider shows no distances, or one is negative, and ``weights`` is ``"distance"``.
        ServiceError, FederationError
            As for :meth:`RemoteNeighbors.kneighbors`.
        """
        check_is_fitted(self, "classes_")
        distances, objects = self.search.kneighbors(X, self.n_neighbors)
        positions = [np.array([self._find(one) for one in found], np.int64) for found in objects]
        groups = []
        for group, near, found in group_by_number(distances, positions):
            if not found.shape[1]:
                raise DataError("expected neighbors, got none: no provider has an object")
            if self.weights == "distance" and np.isnan(near).any():
                raise ValueError("a provider shows no distances; use weights='uniform'")
            if self.weights == "distance" and (near < 0).any():
                raise ValueError(NEGATIVE.format("this collection"))
            groups.append((group, found, weigh(near, np.ones(found.shape), self.weights)))
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

    def _find(self, found: tuple[str, str]) -> int:
        if found not in self._positions:
            raise DataError(
                f"object {found[1]!r} of provider {found[0]!r} is a neighbor without a label; fit "
                "with labels of all objects, or filter the collection"
            )
        return self._positions[found]
