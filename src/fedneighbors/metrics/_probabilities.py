"""Owns measures of predicted probabilities: the Brier score and calibration."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_SUM_TOLERANCE = 1e-6  # room for float32 probabilities


@dataclass(frozen=True, eq=False)
class Reliability:
    """Confidence against accuracy, bin by bin.

    Parameters
    ----------
    edges : float64 array of shape (n_bins + 1,)
        Bin ``i`` holds confidences above ``edges[i]``, up to and with ``edges[i + 1]``.
    counts : int64 array of shape (n_bins,)
        Rows in each bin.
    confidence : float64 array of shape (n_bins,)
        Mean of the highest probability; NaN where a bin is empty.
    accuracy : float64 array of shape (n_bins,)
        Share of rows predicted right; NaN where a bin is empty.
    """

    edges: npt.NDArray[np.float64]
    counts: npt.NDArray[np.int64]
    confidence: npt.NDArray[np.float64]
    accuracy: npt.NDArray[np.float64]

    @property
    def expected_calibration_error(self) -> float:
        """Mean over the rows of the gap between accuracy and confidence of their bin."""
        filled = self.counts > 0
        gaps = np.abs(self.accuracy[filled] - self.confidence[filled])
        return float(np.average(gaps, weights=self.counts[filled]))


def brier_score(proba: npt.ArrayLike, y: npt.ArrayLike, classes: npt.ArrayLike) -> float:
    """Mean squared distance between the predicted probabilities and the true class.

    The sum over all classes as Brier defined it [1]_, so that two classes count twice the
    one-column score that is also in use.

    Parameters
    ----------
    proba : array-like of shape (n_rows, n_classes)
        Probabilities; each row sums to 1.
    y : array-like of shape (n_rows,)
        True labels.
    classes : array-like of shape (n_classes,)
        Label of each column, each once.

    Returns
    -------
    float
        In [0, 2]; 0 is perfect.

    Raises
    ------
    ValueError
        If shapes do not fit, a row is no probability, or a label is no class.

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
    predicted, true = _checked(proba, y, classes)
    hit = np.equal(true[:, None], np.arange(predicted.shape[1]))
    return float(np.square(predicted - hit).sum(axis=1).mean())


def reliability(
    proba: npt.ArrayLike, y: npt.ArrayLike, classes: npt.ArrayLike, *, n_bins: int = 10
) -> Reliability:
    """Compare confidence with accuracy in bins of equal width.

    Confidence is the highest probability of a row; its class is the prediction, ties to the
    first column.

    Parameters
    ----------
    proba : array-like of shape (n_rows, n_classes)
        Probabilities; each row sums to 1.
    y : array-like of shape (n_rows,)
        True labels.
    classes : array-like of shape (n_classes,)
        Label of each column, each once.
    n_bins : int, default=10
        Bins over (0, 1].

    Returns
    -------
    Reliability

    Raises
    ------
    ValueError
        If shapes do not fit, a row is no probability, a label is no class, or ``n_bins`` is
        below 1.

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
    predicted, true = _checked(proba, y, classes)
    confidence = predicted.max(axis=1)
    edges = np.linspace(0.0, 1.0, n_bins + 1)
    bins = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, n_bins - 1)
    counts = np.bincount(bins, minlength=n_bins).astype(np.int64)
    right = (predicted.argmax(axis=1) == true).astype(np.float64)
    return Reliability(
        edges=edges,
        counts=counts,
        confidence=_bin_means(confidence, bins, counts),
        accuracy=_bin_means(right, bins, counts),
    )


def _bin_means(
    values: npt.NDArray[np.float64], bins: npt.NDArray[np.intp], counts: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    sums = np.bincount(bins, weights=values, minlength=len(counts))
    means = np.full(len(counts), np.nan)
    np.divide(sums, counts, out=means, where=counts > 0)
    return means


def _checked(
    proba: npt.ArrayLike, y: npt.ArrayLike, classes: npt.ArrayLike
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Probabilities, and the column of each row's true class."""
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
        raise ValueError("each row of proba must hold numbers of at least 0 that sum to 1")
    place = {label: column for column, label in enumerate(order.tolist())}
    if len(place) != len(order):
        raise ValueError("classes must name each class once")
    columns = np.array([place.get(label, -1) for label in labels.tolist()], dtype=np.int64)
    if (columns < 0).any():
        raise ValueError(f"{(columns < 0).sum()} labels of y are not among the classes")
    return predicted, columns
