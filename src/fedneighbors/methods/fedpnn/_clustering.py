"""Evolving clusters as a scikit-learn clusterer."""

import warnings
from numbers import Integral, Real
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
from joblib import effective_n_jobs
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from fedneighbors._typing import Floats, Integers
from fedneighbors.methods.fedpnn.algorithm import Clusters, evolve_rows, nearest_centers

# the kernel checks for finite values, as it reads every number anyway
_NUMBERS: dict[str, Any] = {"dtype": np.float64, "order": "C", "ensure_all_finite": False}


class EvolvingClustering(ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """Clusterer that reads every row once and grows balls up to a radius; how many, it finds out.

    A row joins its nearest center if that center's ball holds it. Otherwise the ball of the least
    distance plus radius is stretched to the row, as long as it stays small enough; otherwise the
    row founds a center. Counts of labels are kept for every center [1]_. The order of the rows
    matters.

    Parameters
    ----------
    threshold : float
        Dthr, the largest radius of a ball, as the root of the mean squared difference over the
        columns. The default suits rows between 0 and 1.
    factor : float
        A ball is stretched to a row whose distance plus radius is at most this times the threshold.
    rule : {"modified", "original"}
        Whether a row joins its nearest center alone, or the nearest of all whose balls hold it, as
        in the original method [2]_.
    max_centres : int, optional
        When so many are there, a row that would found another is counted for its nearest center,
        which neither moves nor grows.
    n_jobs : int, optional
        Threads. The result does not depend on it.

    Attributes
    ----------
    centers_ : float64 array of shape (n_centers, n_features)
        In the order in which they were founded.
    radii_ : float64 array of shape (n_centers,)
        At most ``factor * threshold / 2``.
    counts_ : int64 array of shape (n_centers, n_classes)
        Rows of each class, or in one column the rows, if no labels were given.
    classes_ : array of shape (n_classes,) or None
        Labels, ascending; None if none were given.
    labels_ : int64 array of shape (n_rows,)
        Center for which each row of the last call was counted.
    n_seen_ : int
        Rows of all calls: the sum of the counts.
    n_outside_ : int
        Rows that would have founded a center beyond ``max_centres``.

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

    centers_: Floats
    radii_: Floats
    counts_: Integers
    classes_: npt.NDArray[Any] | None

    def __init__(
        self,
        threshold: float = 0.1,
        factor: float = 2.0,
        rule: Literal["modified", "original"] = "modified",
        max_centres: int | None = None,
        n_jobs: int | None = None,
    ) -> None:
        self.threshold = threshold
        self.factor = factor
        self.rule = rule
        self.max_centres = max_centres
        self.n_jobs = n_jobs

    def fit(self, X: Any, y: Any = None) -> Self:
        """Cluster rows in their order, from nothing.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_features)
            Finite numbers.
        y : array-like of shape (n_rows,), optional
            Labels to count; they do not touch the centers.

        Warns
        -----
        UserWarning
            If there is one center, or one for every row.

        Raises
        ------
        ValueError, TypeError
            If a parameter is senseless or a value is not finite.
        """
        self._warn(self._cluster(X, y, afresh=True))
        return self

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Cluster further rows.

        A table in pieces gives the centers of the whole.

        Parameters
        ----------
        X, y
            As for :meth:`fit`; labels in every call, or in none. New ones may come at any time.
        """
        self._cluster(X, y, afresh=not hasattr(self, "centers_"))
        return self

    def predict(self, X: Any) -> Integers:
        """Return the nearest center of each row, ties to the lower.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_features)
            Finite numbers.

        Returns
        -------
        int64 array of shape (n_rows,)
        """
        check_is_fitted(self, "centers_")
        x = validate_data(self, X, reset=False, **_NUMBERS)
        return nearest_centers(x, self.centers_, n_threads=effective_n_jobs(self.n_jobs))[0]

    def _cluster(self, X: Any, y: Any, *, afresh: bool) -> Floats:
        """Cluster rows, continuing from earlier clusters, and return them."""
        self._check_settings()
        x: Floats = validate_data(self, X, reset=afresh, **_NUMBERS)
        labels, start = _labels(y, len(x)), None
        if afresh:
            self.classes_ = None if labels is None else np.unique(labels)
            self.n_outside_ = 0
        elif (labels is None) != (self.classes_ is None):
            raise ValueError("expected labels in every call of partial_fit, or in none")
        else:
            start = Clusters(self.centers_, self.radii_, self._widened(labels))
        codes, n_classes = np.zeros(len(x), np.int64), 1
        if labels is not None and self.classes_ is not None:
            codes = np.searchsorted(self.classes_, labels).astype(np.int64)
            n_classes = len(self.classes_)
        grown = evolve_rows(
            x,
            codes,
            n_classes,
            threshold=self.threshold,
            factor=self.factor,
            rule=self.rule,
            max_centers=self.max_centres,
            start=start,
            n_threads=effective_n_jobs(self.n_jobs),
        )
        self.centers_, self.radii_, self.counts_ = grown.centers, grown.radii, grown.counts
        self.labels_ = grown.rows
        self.n_seen_ = int(grown.counts.sum())
        self.n_outside_ += grown.n_outside
        return x

    def _widened(self, labels: npt.NDArray[Any] | None) -> Integers:
        """Add columns for new labels to the counts; store the labels."""
        if labels is None or self.classes_ is None:
            return self.counts_
        known, self.classes_ = self.classes_, np.union1d(self.classes_, labels)
        counts = np.zeros((len(self.counts_), len(self.classes_)), np.int64)
        counts[:, np.searchsorted(self.classes_, known)] = self.counts_
        return counts

    def _check_settings(self) -> None:
        for name in ("threshold", "factor"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Real):
                raise TypeError(f"expected {name} as a number, got {value!r}")
        most = self.max_centres
        if most is not None and (isinstance(most, bool) or not isinstance(most, Integral)):
            raise TypeError(f"expected max_centres as an integer or None, got {most!r}")
        if most is not None and most < 1:
            raise ValueError(f"expected max_centres of at least 1, got {most!r}")

    def _warn(self, x: Floats) -> None:
        """Warn if the threshold leaves one cluster or every row."""
        n, n_rows = len(self.centers_), len(x)
        single = n == 1 and self.max_centres != 1
        if n_rows == 1 or not (single or n == n_rows):
            return
        with np.errstate(over="ignore", invalid="ignore"):
            spread = float(np.sqrt(np.mean((x - x.mean(axis=0)) ** 2)))
        if single and spread > 0:
            warnings.warn(
                f"threshold={self.threshold!r} leaves one center for all {n_rows} rows; they lie "
                f"about {spread:.3g} from their mean: lower the threshold below that, or scale the "
                "columns up",
                stacklevel=3,
            )
        if n == n_rows:
            warnings.warn(
                f"threshold={self.threshold!r} makes each of {n_rows} rows a center of its own, "
                f"which sums up nothing and hides no row; they lie about {spread:.3g} from their "
                "mean: raise the threshold towards that, or scale the columns down",
                stacklevel=3,
            )


def _labels(y: Any, n_rows: int) -> npt.NDArray[Any] | None:
    """Return labels as one column.

    Raises
    ------
    ValueError
        If there is not one for each row, or they are no classes.
    """
    if y is None:
        return None
    labels = column_or_1d(y)
    if len(labels) != n_rows:
        raise ValueError(f"expected one label for each of {n_rows} rows, got {len(labels)}")
    check_classification_targets(labels)
    return np.asarray(labels)
