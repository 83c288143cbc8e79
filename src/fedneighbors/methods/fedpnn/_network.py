"""The probabilistic neural network as a scikit-learn classifier."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, Self

import numpy as np
from joblib import effective_n_jobs
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from fedneighbors._typing import Array, Floats
from fedneighbors.kernels.clustering._kerneldensity import ACTIVATIONS
from fedneighbors.methods.fedpnn._model import best_sigma, leave_one_out_losses
from fedneighbors.methods.fedpnn.algorithm import (
    SIGMAS,
    class_log_densities,
    log_posteriors,
)
from fedneighbors.tabular._ownership import check_labels, plain_targets, validate_rows

MAX_SIGMA_ROWS = 2_000
"""Maximum number of rows for choosing a smoothing; larger tables use evenly spaced rows."""


class DensityClassifier(ClassifierMixin, ABC):  # type: ignore[misc]
    """Base class of classifiers that compute log class probabilities."""

    classes_: Array

    @abstractmethod
    def predict_log_proba(self, X: Any) -> Floats:
        """Return log class probabilities, shape (n_rows, n_classes)."""

    def predict_proba(self, X: Any) -> Floats:
        """Return class probabilities; rows sum to 1.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_features)
            As for :meth:`predict_log_proba`.
        """
        return np.asarray(np.exp(self.predict_log_proba(X)))

    def predict(self, X: Any) -> Array:
        """Return the most probable class of each row, ties to the lower.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_features)
            As for :meth:`predict_log_proba`.
        """
        # before classes_ is read: raises NotFittedError instead of AttributeError
        log_probabilities = self.predict_log_proba(X)
        return np.asarray(self.classes_[log_probabilities.argmax(axis=1)])


@dataclass(eq=False, repr=False)
class ProbabilisticNeuralNetwork(DensityClassifier, BaseEstimator):  # type: ignore[misc]
    """Kernel density classifier with one pattern neuron per training row.

    The density of a class at a row is the mean of a kernel over the patterns of the class [1]_,
    computed in logarithms. For a small network, fit it on cluster centers and their classes. Ties
    go to the lower class.

    Parameters
    ----------
    sigma : "loo" or float
        Smoothing, in units of the root mean squared difference over the columns. ``"loo"`` tries 20
        smoothings, which are proportional to the spread of the rows, and uses the one with the
        lowest leave-one-out log loss; ties go to the largest.
    activation : {"gaussian", "logistic", "cauchy"}
        With u = distance / sigma the kernel exp(-u^2 / 2), 1 / (exp(u) + 2 + exp(-u)) or
        1 / (1 + u^2).
    priors : {"equal", "empirical"} or array-like of shape (n_classes,)
        ``"equal"`` as in the paper; ``"empirical"`` for the class frequencies of the patterns; or
        probabilities in the order of ``classes_``.
    n_jobs : int, optional
        Number of threads. The result does not depend on it.

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
        Labels, ascending.
    patterns_ : float64 array of shape (n_rows, n_features)
        Training rows.
    pattern_classes_ : int64 array of shape (n_rows,)
        Class of each pattern, as a position in ``classes_``.
    sigma_ : float
        Smoothing in use.
    sigmas_, losses_ : float64 array of shape (20,)
        Candidate smoothings and their losses; only with ``sigma="loo"``.
    priors_ : float64 array of shape (n_classes,)
        Priors in use.

    References
    ----------
    .. [1] Prasad, Vivek and Ravi, "FedPNN: One-shot Federated Classification via Evolving
       Clustering Method and Probabilistic Neural Network hybrid", equation 1 and Algorithm 3.

    Examples
    --------
    >>> model = ProbabilisticNeuralNetwork().fit([[0.0], [0.1], [1.0], [1.1]], ["a", "a", "b", "b"])
    >>> model.predict([[0.2], [0.9]]).tolist()
    ['a', 'b']
    """

    sigma: float | Literal["loo"] = "loo"
    activation: Literal["gaussian", "logistic", "cauchy"] = "gaussian"
    priors: Any = "equal"
    n_jobs: int | None = None

    def fit(self, X: Any, y: Any) -> Self:
        """Store rows as patterns, and choose the smoothing if ``sigma="loo"``.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_features)
            Finite numbers.
        y : array-like of shape (n_rows,)
            Labels.

        Raises
        ------
        ValueError, TypeError
            If a parameter is invalid or a value is not finite.
        """
        self._check_settings()
        x, labels = validate_rows(self, X, plain_targets(y), dtype=np.float64, order="C")
        check_labels(labels)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        self.patterns_, self.pattern_classes_ = x.copy(), codes.astype(np.int64)
        self.priors_ = self._compute_priors()
        if self.sigma == "loo":
            self._choose_sigma()
        else:
            self.sigma_ = float(self.sigma)
        return self

    def log_densities(self, X: Any) -> Floats:
        """Return log densities of the classes, up to an additive constant.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_features)
            Finite numbers.

        Returns
        -------
        float64 array of shape (n_rows, n_classes)
        """
        check_is_fitted(self, "patterns_")
        x = validate_rows(self, X, dtype=np.float64, order="C", reset=False)
        return class_log_densities(
            x,
            self.patterns_,
            self.pattern_classes_,
            n_classes=len(self.classes_),
            sigma=self.sigma_,
            activation=self.activation,
            n_threads=effective_n_jobs(self.n_jobs),
        )

    def predict_log_proba(self, X: Any) -> Floats:
        """Return log class probabilities.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_features)
            Finite numbers. If a row is too far from all patterns, so that all its log densities are
            -inf, the result is the priors.

        Returns
        -------
        float64 array of shape (n_rows, n_classes)
        """
        densities = self.log_densities(X)
        with np.errstate(divide="ignore"):  # a prior may be 0
            return log_posteriors(densities, np.log(self.priors_))

    def _check_settings(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise ValueError(
                f"expected activation as one of {ACTIVATIONS}, got {self.activation!r}"
            )
        sigma = self.sigma
        if isinstance(sigma, str) and sigma == "loo":
            return
        if isinstance(sigma, bool) or not isinstance(sigma, Real):
            raise TypeError(f"expected sigma as a number or 'loo', got {sigma!r}")
        if not 0 < sigma < np.inf:
            raise ValueError(f"expected a finite sigma above 0, got {sigma!r}")

    def _compute_priors(self) -> Floats:
        n_classes = len(self.classes_)
        if isinstance(self.priors, str) and self.priors == "equal":
            return np.full(n_classes, 1.0 / n_classes)
        if isinstance(self.priors, str) and self.priors == "empirical":
            return np.bincount(self.pattern_classes_) / len(self.pattern_classes_)
        if isinstance(self.priors, str) or self.priors is None:
            raise ValueError(
                f"expected priors as 'equal', 'empirical' or an array, got {self.priors!r}"
            )
        priors = np.asarray(self.priors, np.float64)
        if priors.shape != (n_classes,) or not (priors >= 0).all():
            raise ValueError(f"expected {n_classes} priors of at least 0, got {self.priors!r}")
        if not np.isclose(priors.sum(), 1.0):
            raise ValueError(f"expected priors that sum to 1, got a sum of {priors.sum()!r}")
        return priors

    def _choose_sigma(self) -> None:
        """Choose the smoothing with the lowest leave-one-out loss."""
        spread = float(np.sqrt(self.patterns_.var(axis=0).mean()))
        n = len(self.patterns_)
        rows = np.unique(np.linspace(0, n - 1, min(n, MAX_SIGMA_ROWS)).round().astype(np.int64))
        self.sigmas_ = SIGMAS * (spread if spread > 0 else 1.0)
        with np.errstate(divide="ignore"):
            log_priors = np.log(self.priors_)
        self.losses_ = leave_one_out_losses(
            self.patterns_[rows],
            self.pattern_classes_[rows],
            self.patterns_,
            np.eye(len(self.classes_), dtype=np.int64)[self.pattern_classes_],
            assigned=rows,
            sigmas=self.sigmas_,
            activation=self.activation,
            log_priors=log_priors,
            n_threads=effective_n_jobs(self.n_jobs),
        )
        self.sigma_ = best_sigma(self.losses_, self.sigmas_)
