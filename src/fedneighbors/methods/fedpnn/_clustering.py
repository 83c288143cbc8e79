"""Evolving clusters as a scikit-learn clusterer."""

import warnings
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Literal, Self

import numpy as np
from joblib import effective_n_jobs
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from fedneighbors._typing import Array, Floats, Integers
from fedneighbors.methods.fedpnn.algorithm import Clusters, evolve_rows, nearest_centers
from fedneighbors.tabular._ownership import plain_targets, validate_rows

# the kernel checks that values are finite, because it reads every number anyway
_VALIDATION: dict[str, Any] = {"dtype": np.float64, "order": "C", "ensure_all_finite": False}


@dataclass(eq=False, repr=False)
class EvolvingClustering(ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """One-pass clustering with balls of limited radius.

    The number of clusters need not be known. A cluster is a ball around a center. A row joins its
    nearest center if the ball of that center contains it. Otherwise the ball with the smallest sum
    of distance and radius grows to contain the row, if its radius stays within the threshold;
    otherwise the row becomes a new center. Each center counts the labels of its rows [1]_. The
    result depends on the order of the rows.

    Parameters
    ----------
    threshold : float
        Dthr, the maximum radius of a ball. Distances are root mean squared differences over the
        columns. The default suits rows scaled to [0, 1].
    factor : float
        A ball may grow to contain a row if distance plus radius is at most ``factor * threshold``.
    rule : {"modified", "original"}
        With ``"modified"``, a row can join its nearest center only; with ``"original"``, it joins
        the nearest of all centers whose balls contain it, as in the original method [2]_.
    max_centers : int, optional
        Maximum number of centers. Once it is reached, a row that would become a new center is
        counted at its nearest center, whose ball neither moves nor grows.
    n_jobs : int, optional
        Number of threads. The result does not depend on it.

    Attributes
    ----------
    centers_ : float64 array of shape (n_centers, n_features)
        Centers in the order of their creation.
    radii_ : float64 array of shape (n_centers,)
        Radii, at most ``factor * threshold / 2``.
    counts_ : int64 array of shape (n_centers, n_classes)
        Rows of each class; without labels, a single column with the number of rows.
    classes_ : array of shape (n_classes,) or None
        Labels, ascending; None if none were given.
    labels_ : int64 array of shape (n_rows,)
        Index of the center that counts each row, for the rows of the last call.
    n_seen_ : int
        Number of rows in all calls: the sum of the counts.
    n_outside_ : int
        Number of rows that did not become centers because of ``max_centers``.

    References
    ----------
    .. [1] Prasad, Vivek and Ravi, "FedPNN: One-shot Federated Classification via Evolving
       Clustering Method and Probabilistic Neural Network hybrid", Algorithm 2.
    .. [2] Song and Kasabov, "ECM - A Novel On-line, Evolving Clustering Method and Its
       Applications", 2001.

    Examples
    --------
    >>> X = [[0, 0], [0.2, 0], [0.9, 0.9], [0.9, 0.7], [0.5, 0.5]]
    >>> model = EvolvingClustering(threshold=0.1).fit(X, ["a", "a", "b", "b", "a"])
    >>> model.centers_.round(3).tolist()
    [[0.1, 0.0], [0.9, 0.8], [0.5, 0.5]]
    >>> model.counts_.tolist(), model.predict([[0.8, 0.8]]).tolist()
    ([[2, 0], [0, 2], [1, 0]], [1])
    """

    threshold: float = 0.1
    factor: float = 2.0
    rule: Literal["modified", "original"] = "modified"
    max_centers: int | None = None
    n_jobs: int | None = None
    centers_: Floats = field(init=False)
    radii_: Floats = field(init=False)
    counts_: Integers = field(init=False)
    classes_: Array | None = field(init=False)

    def fit(self, X: Any, y: Any = None) -> Self:
        """Cluster rows in the order given, discarding earlier centers.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_features)
            Finite numbers.
        y : array-like of shape (n_rows,), optional
            Labels to count; the centers do not depend on them.

        Warns
        -----
        UserWarning
            If there is a single center, or as many centers as rows.

        Raises
        ------
        ValueError, TypeError
            If a parameter is invalid or a value is not finite.
        """
        self._warn_about_threshold(self._cluster(X, y, reset=True))
        return self

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Cluster further rows, continuing from the current centers.

        Splitting a table over several calls does not change the result.

        Parameters
        ----------
        X, y
            As for :meth:`fit`. Pass labels in every call or in none; new labels may appear in any
            call.
        """
        self._cluster(X, y, reset=not hasattr(self, "centers_"))
        return self

    def predict(self, X: Any) -> Integers:
        """Return the index of each row's nearest center, ties to the lower.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_features)
            Finite numbers.

        Returns
        -------
        int64 array of shape (n_rows,)
        """
        check_is_fitted(self, "centers_")
        x = validate_rows(self, X, reset=False, **_VALIDATION)
        return nearest_centers(x, self.centers_, n_threads=effective_n_jobs(self.n_jobs))[0]

    def _cluster(self, X: Any, y: Any, *, reset: bool) -> Floats:
        """Cluster rows, starting over or continuing, and return the validated rows."""
        self._check_settings()
        x: Floats = validate_rows(self, X, reset=reset, **_VALIDATION)
        labels, start = _check_labels(y, len(x)), None
        if reset:
            self.classes_ = None if labels is None else np.unique(labels)
            self.n_outside_ = 0
        elif (labels is None) != (self.classes_ is None):
            raise ValueError("expected labels in every call of partial_fit, or in none")
        else:
            start = Clusters(self.centers_, self.radii_, self._add_classes(labels))
        codes, n_classes = np.zeros(len(x), np.int64), 1
        if labels is not None and self.classes_ is not None:
            codes = np.searchsorted(self.classes_, labels).astype(np.int64)
            n_classes = len(self.classes_)
        clusters = evolve_rows(
            x,
            codes,
            n_classes,
            threshold=self.threshold,
            factor=self.factor,
            rule=self.rule,
            max_centers=self.max_centers,
            start=start,
            n_threads=effective_n_jobs(self.n_jobs),
        )
        self.centers_, self.radii_, self.counts_ = clusters.centers, clusters.radii, clusters.counts
        self.labels_ = clusters.rows
        self.n_seen_ = int(clusters.counts.sum())
        self.n_outside_ += clusters.n_outside
        return x

    def _add_classes(self, labels: Array | None) -> Integers:
        """Add new labels to ``classes_`` and return counts with columns for them."""
        if labels is None or self.classes_ is None:
            return self.counts_
        previous, self.classes_ = self.classes_, np.union1d(self.classes_, labels)
        counts = np.zeros((len(self.counts_), len(self.classes_)), np.int64)
        counts[:, np.searchsorted(self.classes_, previous)] = self.counts_
        return counts

    def _check_settings(self) -> None:
        for name in ("threshold", "factor"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Real):
                raise TypeError(f"expected {name} as a number, got {value!r}")
        limit = self.max_centers
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, Integral)):
            raise TypeError(f"expected max_centers as an integer or None, got {limit!r}")
        if limit is not None and limit < 1:
            raise ValueError(f"expected max_centers of at least 1, got {limit!r}")

    def _warn_about_threshold(self, x: Floats) -> None:
        """Warn about a single center, or as many centers as rows."""
        n_centers, n_rows = len(self.centers_), len(x)
        single = n_centers == 1 and self.max_centers != 1
        if n_rows == 1 or not (single or n_centers == n_rows):
            return
        with np.errstate(over="ignore", invalid="ignore"):
            spread = float(np.sqrt(np.mean((x - x.mean(axis=0)) ** 2)))
        if single and spread > 0:
            warnings.warn(
                f"threshold={self.threshold!r} leaves one center for all {n_rows} rows; their "
                f"typical distance from their mean is {spread:.3g}: lower the threshold below "
                "that, or scale the columns up",
                stacklevel=3,
            )
        if n_centers == n_rows:
            warnings.warn(
                f"threshold={self.threshold!r} makes each of {n_rows} rows a center, so that "
                "the centers are the rows themselves; their typical distance from "
                f"their mean is {spread:.3g}: raise the threshold towards that, or scale the "
                "columns down",
                stacklevel=3,
            )


def _check_labels(y: Any, n_rows: int) -> Array | None:
    """Return labels as a one-dimensional array.

    Raises
    ------
    ValueError
        If there is not one label for each row, or the labels are not classes.
    """
    if y is None:
        return None
    labels = column_or_1d(plain_targets(y))
    if len(labels) != n_rows:
        raise ValueError(f"expected one label for each of {n_rows} rows, got {len(labels)}")
    check_classification_targets(labels)
    return np.asarray(labels)
