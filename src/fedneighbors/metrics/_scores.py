"""Metrics of predicted labels and predicted probabilities."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Array, Floats, Integers


def accuracy(y_true: npt.ArrayLike, y_pred: npt.ArrayLike) -> float:
    """Return the fraction of rows with the correct predicted label.

    Parameters
    ----------
    y_true, y_pred : array-like of shape (n_rows,)
        Labels; both text or both numbers.

    Returns
    -------
    float
        In [0, 1].

    Raises
    ------
    ValueError
        If the arrays are empty or differ in length or kind.

    Examples
    --------
    >>> accuracy([0, 1, 1, 2], [0, 1, 2, 2])
    0.75
    """
    true, predicted = _check_label_pair(y_true, y_pred, names=("y_true", "y_pred"))
    return float(np.mean(true == predicted))


def agreement(pred_a: npt.ArrayLike, pred_b: npt.ArrayLike) -> float:
    """Return the fraction of rows on which two classifiers agree.

    Parameters
    ----------
    pred_a, pred_b : array-like of shape (n_rows,)
        Predictions for the same rows; both text or both numbers.

    Returns
    -------
    float
        In [0, 1]; 1 if all predictions are equal.

    Raises
    ------
    ValueError
        If the arrays are empty or differ in length or kind.

    Examples
    --------
    >>> agreement(["a", "b", "b", "a"], ["a", "b", "a", "a"])
    0.75
    """
    first, second = _check_label_pair(pred_a, pred_b, names=("pred_a", "pred_b"))
    return float(np.mean(first == second))


def balanced_accuracy(y_true: npt.ArrayLike, y_pred: npt.ArrayLike) -> float:
    """Return the mean recall over the true classes.

    Parameters
    ----------
    y_true, y_pred : array-like of shape (n_rows,)
        Labels; both text or both numbers.

    Returns
    -------
    float
        In [0, 1]; ``1 / n_true_classes`` if the prediction is always the same true class.

    Raises
    ------
    ValueError
        If the arrays are empty or differ in length or kind.

    Examples
    --------
    >>> balanced_accuracy([0, 0, 0, 1], [0, 0, 0, 0])
    0.5
    """
    from sklearn.metrics import recall_score

    true, predicted = _check_label_pair(y_true, y_pred, names=("y_true", "y_pred"))
    return float(recall_score(true, predicted, labels=np.unique(true), average="macro"))


def confusion(y_true: npt.ArrayLike, y_pred: npt.ArrayLike, *, classes: npt.ArrayLike) -> Integers:
    """Count the rows of each true class by predicted class.

    Parameters
    ----------
    y_true, y_pred : array-like of shape (n_rows,)
        Labels; each must be in ``classes``.
    classes : array-like of shape (n_classes,)
        Classes in the order of rows and columns.

    Returns
    -------
    int64 array of shape (n_classes, n_classes)
        Rows are true classes, columns are predicted classes.

    Raises
    ------
    ValueError
        If the arrays are empty, differ in length or kind, or contain a label that is not in
        ``classes``.

    Examples
    --------
    >>> confusion([0, 1, 1], [0, 1, 0], classes=[0, 1])
    array([[1, 0],
           [1, 1]])
    """
    from sklearn.metrics import confusion_matrix

    true, predicted = _check_label_pair(y_true, y_pred, names=("y_true", "y_pred"))
    order = np.asarray(classes)
    unknown = np.setdiff1d(np.union1d(true, predicted), order)
    if len(unknown):
        raise ValueError(f"{len(unknown)} labels are not among the classes; list every class")
    counts: Integers = confusion_matrix(true, predicted, labels=order)
    return counts


def normalized_accuracy(a: float, a_knn: float) -> float:
    """Return the relative loss of accuracy compared with k-nearest-neighbour classification.

    Parameters
    ----------
    a : float
        Accuracy of the method, in [0, 1].
    a_knn : float
        Accuracy of the k-nearest-neighbour classifier on the same rows, in (0, 1].

    Returns
    -------
    float
        ``1 - a / a_knn``: 0 for the k-nearest-neighbour classifier itself, negative if the method
        is better.

    Raises
    ------
    ValueError
        If an accuracy is out of range.

    References
    ----------
    .. [1] Ram and Sinha, "Federated Nearest Neighbor Classification with a Colony of
       Fruit-Flies", AAAI 2022, section 4.

    Examples
    --------
    >>> normalized_accuracy(0.75, 0.5)
    -0.5
    """
    if not 0 <= a <= 1:
        raise ValueError(f"a must be an accuracy in [0, 1], got {a!r}")
    if not 0 < a_knn <= 1:
        raise ValueError(f"a_knn must be an accuracy in (0, 1], got {a_knn!r}")
    return 1 - a / a_knn


def _check_label_pair(
    first: npt.ArrayLike, second: npt.ArrayLike, *, names: tuple[str, str]
) -> tuple[Array, Array]:
    first_labels, second_labels = (
        np.array(labels.tolist()) if labels.dtype == np.object_ else labels
        for labels in (np.asarray(first), np.asarray(second))
    )
    for labels, name in zip((first_labels, second_labels), names, strict=True):
        if labels.ndim != 1 or len(labels) == 0:
            raise ValueError(f"{name} must be a non-empty list, got shape {labels.shape}")
    if len(first_labels) != len(second_labels):
        raise ValueError(
            f"{names[0]} has {len(first_labels)} labels and {names[1]} {len(second_labels)}; "
            "they must belong to the same rows"
        )
    if (first_labels.dtype.kind in "US") != (second_labels.dtype.kind in "US"):
        raise ValueError(
            f"{names[0]} is of type {first_labels.dtype} and {names[1]} of {second_labels.dtype}; "
            "both must be text or both numbers"
        )
    return first_labels, second_labels


_SUM_TOLERANCE = 1e-6  # because float32 probabilities are rounded


@dataclass(frozen=True, eq=False)
class Reliability:
    """Reliability diagram: confidence and accuracy per bin.

    Parameters
    ----------
    edges : float64 array of shape (n_bins + 1,)
        Bin ``i`` contains confidences above ``edges[i]``, up to and including ``edges[i + 1]``.
    counts : int64 array of shape (n_bins,)
        Number of rows in each bin.
    confidence : float64 array of shape (n_bins,)
        Mean of the highest probability; NaN for an empty bin.
    accuracy : float64 array of shape (n_bins,)
        Fraction of correctly predicted rows; NaN for an empty bin.
    """

    edges: Floats
    counts: Integers
    confidence: Floats
    accuracy: Floats

    @property
    def expected_calibration_error(self) -> float:
        """Return the mean gap between accuracy and confidence, weighted by rows."""
        filled = self.counts > 0
        gaps = np.abs(self.accuracy[filled] - self.confidence[filled])
        return float(np.average(gaps, weights=self.counts[filled]))


def brier_score(proba: npt.ArrayLike, y: npt.ArrayLike, classes: npt.ArrayLike) -> float:
    """Return the mean squared distance between probabilities and true class.

    The squared differences are summed over all classes, as by Brier [1]_. For two classes the
    score is twice the one that uses the probability of the positive class only.

    Parameters
    ----------
    proba : array-like of shape (n_rows, n_classes)
        Probabilities; each row sums to 1.
    y : array-like of shape (n_rows,)
        True labels.
    classes : array-like of shape (n_classes,)
        Label of each column; distinct.

    Returns
    -------
    float
        In [0, 2]; lower is better.

    Raises
    ------
    ValueError
        If shapes do not match, a row is not a probability distribution, or a label is not in
        ``classes``.

    References
    ----------
    .. [1] Brier, "Verification of Forecasts Expressed in Terms of Probability", Monthly Weather
       Review 78, 1950.

    Examples
    --------
    >>> from fedneighbors.metrics import brier_score
    >>> brier_score([[1.0, 0.0], [0.5, 0.5]], ["a", "b"], ["a", "b"])
    0.25
    """
    predicted, true = _check_probabilities(proba, y, classes)
    is_true_class = np.equal(true[:, None], np.arange(predicted.shape[1]))
    return float(np.square(predicted - is_true_class).sum(axis=1).mean())


def reliability(
    proba: npt.ArrayLike, y: npt.ArrayLike, classes: npt.ArrayLike, *, n_bins: int = 10
) -> Reliability:
    """Compare confidence with accuracy in bins of equal width.

    The confidence of a row is its highest probability; the predicted class is the one of that
    column, the first one on ties.

    Parameters
    ----------
    proba : array-like of shape (n_rows, n_classes)
        Probabilities; each row sums to 1.
    y : array-like of shape (n_rows,)
        True labels.
    classes : array-like of shape (n_classes,)
        Label of each column; distinct.
    n_bins : int, default=10
        Number of bins over (0, 1].

    Returns
    -------
    Reliability

    Raises
    ------
    ValueError
        If shapes do not match, a row is not a probability distribution, a label is not in
        ``classes``, or ``n_bins`` is below 1.

    References
    ----------
    .. [1] Guo et al., "On Calibration of Modern Neural Networks", ICML 2017, equation 3.

    Examples
    --------
    >>> from fedneighbors.metrics import reliability
    >>> curve = reliability([[1.0, 0.0], [0.25, 0.75]], [0, 0], [0, 1], n_bins=2)
    >>> curve.counts.tolist(), curve.expected_calibration_error
    ([0, 2], 0.375)
    """
    if n_bins < 1:
        raise ValueError(f"n_bins must be at least 1, got {n_bins}")
    predicted, true = _check_probabilities(proba, y, classes)
    confidence = predicted.max(axis=1)
    edges = np.linspace(0.0, 1.0, n_bins + 1)
    bins = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, n_bins - 1)
    counts = np.bincount(bins, minlength=n_bins).astype(np.int64)
    correct = (predicted.argmax(axis=1) == true).astype(np.float64)
    return Reliability(
        edges=edges,
        counts=counts,
        confidence=_bin_means(confidence, bins, counts),
        accuracy=_bin_means(correct, bins, counts),
    )


def _bin_means(values: Floats, bins: npt.NDArray[np.intp], counts: Integers) -> Floats:
    sums = np.bincount(bins, weights=values, minlength=len(counts))
    means = np.full(len(counts), np.nan)
    np.divide(sums, counts, out=means, where=counts > 0)
    return means


def _check_probabilities(
    proba: npt.ArrayLike, y: npt.ArrayLike, classes: npt.ArrayLike
) -> tuple[Floats, Integers]:
    """Check predictions; return the probabilities and each row's true-class column."""
    predicted = np.asarray(proba, dtype=np.float64)
    labels, order = np.asarray(y), np.asarray(classes)
    if predicted.shape != (len(labels), len(order)) or predicted.size == 0:
        raise ValueError(
            f"proba has shape {predicted.shape}; expected one row for each of the "
            f"{len(labels)} labels and one column for each of the {len(order)} classes"
        )
    if not (predicted >= 0).all() or not np.allclose(
        predicted.sum(axis=1), 1.0, rtol=0, atol=_SUM_TOLERANCE
    ):
        raise ValueError("each row of proba must contain non-negative numbers that sum to 1")
    column_of = {label: column for column, label in enumerate(order.tolist())}
    if len(column_of) != len(order):
        raise ValueError("classes must be distinct")
    columns = np.array([column_of.get(label, -1) for label in labels.tolist()], dtype=np.int64)
    if (columns < 0).any():
        raise ValueError(f"{(columns < 0).sum()} labels of y are not among the classes")
    return predicted, columns
