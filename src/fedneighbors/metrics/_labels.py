"""Owns measures of predicted labels against true ones, or against each other."""

from typing import Any

import numpy as np
import numpy.typing as npt


def accuracy(y_true: npt.ArrayLike, y_pred: npt.ArrayLike) -> float:
    """Share of rows whose predicted label is the true one.

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
        If the lists are empty or differ in length or kind.

    Examples
    --------
    >>> accuracy([0, 1, 1, 2], [0, 1, 2, 2])
    0.75
    """
    true, predicted = _label_pair(y_true, y_pred, names=("y_true", "y_pred"))
    return float(np.mean(true == predicted))


def agreement(pred_a: npt.ArrayLike, pred_b: npt.ArrayLike) -> float:
    """Share of rows on which two classifiers predict the same label.

    Parameters
    ----------
    pred_a, pred_b : array-like of shape (n_rows,)
        Predictions for the same rows; both text or both numbers.

    Returns
    -------
    float
        In [0, 1]; 1 where no row tells the classifiers apart.

    Raises
    ------
    ValueError
        If the lists are empty or differ in length or kind.

    Examples
    --------
    >>> agreement(["a", "b", "b", "a"], ["a", "b", "a", "a"])
    0.75
    """
    first, second = _label_pair(pred_a, pred_b, names=("pred_a", "pred_b"))
    return float(np.mean(first == second))


def balanced_accuracy(y_true: npt.ArrayLike, y_pred: npt.ArrayLike) -> float:
    """Return the mean over the true classes of the share of their rows predicted right.

    Parameters
    ----------
    y_true, y_pred : array-like of shape (n_rows,)
        Labels; both text or both numbers.

    Returns
    -------
    float
        In [0, 1]; one over the number of classes for a constant prediction.

    Raises
    ------
    ValueError
        If the lists are empty or differ in length or kind.

    Examples
    --------
    >>> balanced_accuracy([0, 0, 0, 1], [0, 0, 0, 0])
    0.5
    """
    from sklearn.metrics import recall_score

    true, predicted = _label_pair(y_true, y_pred, names=("y_true", "y_pred"))
    return float(recall_score(true, predicted, labels=np.unique(true), average="macro"))


def confusion(
    y_true: npt.ArrayLike, y_pred: npt.ArrayLike, *, classes: npt.ArrayLike
) -> npt.NDArray[np.int64]:
    """Count the rows of each true class by predicted class.

    Parameters
    ----------
    y_true, y_pred : array-like of shape (n_rows,)
        Labels; each occurs in ``classes``.
    classes : array-like of shape (n_classes,)
        The order of rows and columns.

    Returns
    -------
    int64 array of shape (n_classes, n_classes)
        Rows are true classes, columns predicted ones.

    Raises
    ------
    ValueError
        If the lists are empty, differ in length or kind, or hold a label that is no class.

    Examples
    --------
    >>> confusion([0, 1, 1], [0, 1, 0], classes=[0, 1])
    array([[1, 0],
           [1, 1]])
    """
    from sklearn.metrics import confusion_matrix

    true, predicted = _label_pair(y_true, y_pred, names=("y_true", "y_pred"))
    order = np.asarray(classes)
    strangers = np.setdiff1d(np.union1d(true, predicted), order)
    if len(strangers):
        raise ValueError(f"{len(strangers)} labels are not among the classes; list every class")
    counts: npt.NDArray[np.int64] = confusion_matrix(true, predicted, labels=order)
    return counts


def normalized_accuracy(a: float, a_knn: float) -> float:
    """Loss of accuracy relative to the k-nearest-neighbour classifier.

    Parameters
    ----------
    a : float
        Accuracy of the method, in [0, 1].
    a_knn : float
        Accuracy of the k-nearest-neighbour classifier on the same rows, in (0, 1].

    Returns
    -------
    float
        ``1 - a / a_knn``: 0 for the k-nearest-neighbour classifier itself, negative where the
        method is better.

    Raises
    ------
    ValueError
        If an accuracy is out of its range.

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


def _label_pair(
    first: npt.ArrayLike, second: npt.ArrayLike, *, names: tuple[str, str]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    one, other = (
        np.array(labels.tolist()) if labels.dtype == np.object_ else labels
        for labels in (np.asarray(first), np.asarray(second))
    )
    for labels, name in zip((one, other), names, strict=True):
        if labels.ndim != 1 or len(labels) == 0:
            raise ValueError(f"{name} must hold at least one label, got shape {labels.shape}")
    if len(one) != len(other):
        raise ValueError(
            f"{names[0]} has {len(one)} labels and {names[1]} {len(other)}; "
            "they must belong to the same rows"
        )
    if (one.dtype.kind in "US") != (other.dtype.kind in "US"):
        raise ValueError(
            f"{names[0]} is of type {one.dtype} and {names[1]} of {other.dtype}; "
            "both must be text or both numbers"
        )
    return one, other
