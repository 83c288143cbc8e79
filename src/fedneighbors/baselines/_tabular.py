"""Baselines on tables: averaged models, models from summed moments, models of pooled rows.

All of them use rows scaled as for FedPNN: by quantiles over all parties, with missing-cell
indicators. All treat classes as equally frequent, as FedPNN does, so that rare ones are not lost:
logistic regression, boosting and nearest neighbours weight each row by the inverse frequency of its
class, the others have equal class priors.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self

import numpy as np
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.utils.validation import check_is_fitted

from fedneighbors._typing import Array, Booleans, Floats, Integers
from fedneighbors.baselines._discriminant import FederatedDiscriminantClassifier
from fedneighbors.methods.fedpnn._network import ProbabilisticNeuralNetwork
from fedneighbors.methods.fedpnn._scaling import column_constants, make_scaling
from fedneighbors.tabular._ownership import (
    check_labels,
    check_numbers,
    plain_targets,
    rows_by_party,
)
from fedneighbors.tabular._schema import PointMomentsReply, class_moments, covariance_within

_KNOTS, _MIN_COUNT = 100, 5  # the defaults of FedPNN


class _ScaledClassifier(ClassifierMixin, BaseEstimator, ABC):  # type: ignore[misc]
    """Base class of classifiers on rows that are scaled over all parties."""

    def fit(self, X: Any, y: Any, parties: Sequence[Any] | Array | None = None) -> Self:
        """Train on the rows of all parties.

        Parameters
        ----------
        X : float64 array of shape (n_rows, n_features)
            Missing cells are NaN.
        y : array of shape (n_rows,)
            Labels.
        parties : sequence of shape (n_rows,), optional
            Party of each row. None means one party.
        """
        check_numbers(X)
        x = np.asarray(X, np.float64)
        owned = rows_by_party(parties, len(x))
        y = plain_targets(y, parties)
        check_labels(np.asarray(y))
        self.classes_, inverse = np.unique(y, return_inverse=True)
        labels = np.asarray(inverse, np.int64)
        constants = [
            column_constants(x[rows], n_knots=_KNOTS, min_count=_MIN_COUNT, labels=labels[rows])
            for rows in owned.values()
        ]
        self.scaling_ = make_scaling("quantile", constants, min_count=_MIN_COUNT)
        self._train(self.scaling_.apply(x), labels, owned)
        return self

    @abstractmethod
    def _train(self, points: Floats, labels: Integers, owned: Mapping[str, Any]) -> None:
        """Train on scaled rows; ``owned`` has each party's row indices."""

    @abstractmethod
    def _probabilities(self, points: Floats) -> Floats:
        """Return a probability for each class."""

    def predict_proba(self, X: Any) -> Floats:
        """Return the class probabilities, shape (n_rows, n_classes)."""
        check_is_fitted(self, "scaling_")
        return self._probabilities(self.scaling_.apply(np.asarray(X, np.float64)))

    def predict(self, X: Any) -> Array:
        """Predict the most probable class; ties go to the lower class."""
        return np.asarray(self.classes_[self.predict_proba(X).argmax(axis=1)])


class AveragedModels(_ScaledClassifier):
    """Mean probabilities of models that each party trains alone and sends to the others.

    Parties with rows of a single class train no model. A class that a party lacks has probability 0
    in its model.

    Parameters
    ----------
    make : callable
        Returns an untrained scikit-learn classifier.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    def _train(self, points: Floats, labels: Integers, owned: Mapping[str, Any]) -> None:
        self.models_ = [
            self.make().fit(points[rows], labels[rows])
            for rows in owned.values()
            if len(np.unique(labels[rows])) > 1
        ]
        if not self.models_:
            raise ValueError("expected a party with rows of at least two classes, found none")

    def _probabilities(self, points: Floats) -> Floats:
        total = np.zeros((len(points), len(self.classes_)))
        for model in self.models_:
            total[:, model.classes_] += model.predict_proba(points)
        mean: Floats = total / len(self.models_)
        return mean


class FederatedNaiveBayes(_ScaledClassifier):
    """Gaussian naive Bayes with equal class priors, from sums over parties.

    On the same scaled rows, the model does not depend on their split over parties.

    Parameters
    ----------
    floor : float
        Added to every variance, as a multiple of the largest variance.
    """

    def __init__(self, floor: float = 1e-3) -> None:
        self.floor = floor

    def _train(self, points: Floats, labels: Integers, owned: Mapping[str, Any]) -> None:
        moments = []
        for c in range(len(self.classes_)):
            rows = labels == c
            # a table of one class, numbered 0
            sums = _sum_moments(points[rows], labels[rows] - c, _select_indices(owned, rows))
            moments.append(covariance_within(sums))
        self.means_ = np.concatenate([means for means, _ in moments])
        variances = np.stack([np.diag(within) for _, within in moments])
        self.variances_ = variances + self.floor * max(float(variances.max()), 1e-12)

    def _probabilities(self, points: Floats) -> Floats:
        squares = (points[:, None] - self.means_) ** 2 / self.variances_
        log_densities = -(squares + np.log(self.variances_)).sum(axis=2) / 2
        return np.asarray(softmax(log_densities, axis=1))


def _select_indices(owned: Mapping[str, Any], selected: Booleans) -> dict[str, Any]:
    """Return each party's row indices in the array of selected rows."""
    new_index = np.cumsum(selected) - 1
    indices = {name: np.arange(len(selected))[rows] for name, rows in owned.items()}
    return {name: new_index[rows[selected[rows]]] for name, rows in indices.items()}


def _sum_moments(points: Floats, labels: Integers, owned: Mapping[str, Any]) -> PointMomentsReply:
    parts = [class_moments(points[rows], labels[rows], 1) for rows in owned.values()]
    return PointMomentsReply(
        np.sum([part.counts for part in parts], axis=0),
        np.sum([part.sums for part in parts], axis=0),
        np.sum([part.products for part in parts], axis=0),
    )


class CentralModel(_ScaledClassifier):
    """A model trained on the pooled rows, for comparison.

    Parameters
    ----------
    make : callable
        Returns an untrained scikit-learn classifier.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    def _train(self, points: Floats, labels: Integers, owned: Mapping[str, Any]) -> None:  # noqa: ARG002 - rows are pooled
        self.model_ = self.make().fit(points, labels)

    def _probabilities(self, points: Floats) -> Floats:
        return np.asarray(self.model_.predict_proba(points), np.float64)


class _BalancedNeighbors(KNeighborsClassifier):  # type: ignore[misc]
    """Nearest neighbours whose votes have the inverse frequency of their class as a weight."""

    def predict_proba(self, X: Any) -> Floats:
        """Return the shares of the weighted votes, shape (n_rows, n_classes)."""
        votes = super().predict_proba(X) / np.bincount(self._y)
        return np.asarray(votes / votes.sum(axis=1, keepdims=True))


make_linear = partial(LogisticRegression, class_weight="balanced", max_iter=5000)
make_boosting = partial(HistGradientBoostingClassifier, class_weight="balanced", random_state=0)
# a ridge of .03, as a multiple of the mean variance, is added to the covariance
_make_discriminants = partial(
    FederatedDiscriminantClassifier, shrinkage=0.03 / 1.03, standardize=False, priors="equal"
)

BASELINES: Mapping[str, Callable[[], Any]] = {
    "averaged logistic regression": lambda: AveragedModels(make_linear),
    "averaged boosting": lambda: AveragedModels(make_boosting),
    # its sums over parties give the bits of the pooled rows
    "federated LDA": lambda: CentralModel(_make_discriminants),
    "federated naive Bayes": FederatedNaiveBayes,
    "central kNN": lambda: CentralModel(lambda: _BalancedNeighbors(10, weights="distance")),
    "central PNN": lambda: CentralModel(ProbabilisticNeuralNetwork),
    "central boosting": lambda: CentralModel(make_boosting),
}
"""Functions that return a baseline, by name; those named central train on pooled rows."""
