"""Scores of a saved model's predictions on labelled rows."""

from typing import TYPE_CHECKING, Any

import numpy as np

from fedneighbors.datasets._schema_columns import read_labels
from fedneighbors.datasets._text_format import parse_number
from fedneighbors.errors import DataError
from fedneighbors.metrics import accuracy, balanced_accuracy
from fedneighbors.records import ResultTable

if TYPE_CHECKING:
    import numpy.typing as npt


def score_predictions(
    estimator: Any,
    rows: "npt.NDArray[Any]",
    labels: list[str | None],
    columns: dict[str, list[Any]],
    **owners: Any,
) -> tuple[ResultTable]:
    """Return the table of scores of predictions.

    Parameters
    ----------
    estimator : fitted classifier or regressor
        Model of the predictions.
    rows : array of shape (n_rows, n_features)
        Rows of the predictions.
    labels : list of length n_rows
        True labels as text; None if missing.
    columns : dict of str to list
        Predictions, under ``prediction``.
    **owners
        Other arguments of ``predict``.

    Raises
    ------
    DataError
        If no row has a label that the model knows, or the model predicts several numbers.
    """
    if "prediction" not in columns:
        raise DataError("the model predicts several numbers, but --label names one column; omit it")
    is_classifier = hasattr(estimator, "classes_")
    if is_classifier:
        true, known = read_labels(labels, tuple(estimator.classes_.tolist()))
    else:
        numbers = [None if cell is None else parse_number(cell) for cell in labels]
        known = np.array([number is not None for number in numbers], bool)
        true = np.array([np.nan if number is None else number for number in numbers])
    if not known.any():
        raise DataError("no row has a label that the model knows; check --label")
    predicted = np.array(columns["prediction"])[known]
    score = _score_classes if is_classifier else _score_numbers
    scores = score(true[known], predicted)
    if is_classifier and hasattr(estimator, "predict_proba"):
        probabilities = estimator.predict_proba(rows, **owners)[known]
        scores |= _score_probabilities(true[known], probabilities, estimator.classes_)
    counts = {"rows": len(rows), "rows with a known label": int(known.sum())}
    values: tuple[tuple[str, float], ...] = tuple({**counts, **scores}.items())
    return (ResultTable("scores", "Scores", ("score", "value"), values),)


def _score_classes(true: Any, predicted: Any) -> dict[str, float]:
    return {
        "accuracy": accuracy(true, predicted),
        "balanced accuracy": balanced_accuracy(true, predicted),
    }


def _score_numbers(true: Any, predicted: Any) -> dict[str, float]:
    from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

    scores = {
        "mean absolute error": float(mean_absolute_error(true, predicted)),
        "root mean squared error": float(root_mean_squared_error(true, predicted)),
    }
    return scores if len(true) < 2 else {**scores, "R2": float(r2_score(true, predicted))}


def _score_probabilities(true: Any, probabilities: Any, classes: Any) -> dict[str, float]:
    from sklearn.metrics import log_loss, roc_auc_score

    scores = {"log loss": float(log_loss(true, probabilities, labels=classes))}
    if len(classes) == 2 and len(np.unique(true)) == 2:
        is_second = true == classes[1]
        scores["ROC-AUC"] = float(roc_auc_score(is_second, probabilities[:, 1]))
    return scores
