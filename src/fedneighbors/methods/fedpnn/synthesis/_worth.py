"""What a classifier learns from synthetic rows: train-synthetic/test-real, and what misleads."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.utils import column_or_1d
from sklearn.utils.validation import check_consistent_length
from threadpoolctl import threadpool_limits

from fedneighbors._typing import Floats
from fedneighbors.datasets._table import Table
from fedneighbors.errors import DataError
from fedneighbors.methods.fedpnn.synthesis._quality import tables
from fedneighbors.metrics._scores import balanced_accuracy

Codes = npt.NDArray[np.int64]

_HELD_OUT = 0.3


@dataclass(frozen=True)
class Score:
    """How well a classifier does.

    Parameters
    ----------
    balanced_accuracy : float
        Mean recall of the classes that the test rows have; FedPNN calls it AUC (its Eq 8).
    roc_auc : float
        Area under the receiver operating curve, with more than two classes the mean of one
        against the rest; NaN where the test rows are of one class.
    """

    balanced_accuracy: float
    roc_auc: float


@dataclass(frozen=True)
class Utility:
    """Scores of gradient boosting by what it is trained and tested on.

    Parameters
    ----------
    real_on_real : Score
        Trained on real rows, tested on other real rows: what there is to reach.
    synthetic_on_real : Score
        Trained on synthetic rows, tested on real ones: what synthetic rows are worth.
    synthetic_on_synthetic : Score
        Trained and tested on synthetic rows: what an evaluation sees that has no real rows.
    """

    real_on_real: Score
    synthetic_on_real: Score
    synthetic_on_synthetic: Score

    @property
    def separability_gap(self) -> Score:
        """Scores on synthetic rows less those on real ones, of the same classifier.

        Well above 0 where the generators leave traces that tell the classes apart: one generator
        per class marks its rows as its own, and a test on synthetic rows measures that mark.
        """
        made, real = self.synthetic_on_synthetic, self.synthetic_on_real
        return Score(made.balanced_accuracy - real.balanced_accuracy, made.roc_auc - real.roc_auc)


def utility(
    train: tuple[Any, Any],
    synthetic: tuple[Any, Any],
    test: tuple[Any, Any],
    *,
    random_state: int = 0,
) -> Utility:
    """Train gradient boosting on real and on synthetic rows, and test it on both.

    Parameters
    ----------
    train : (X, y)
        Real rows, those that the synthesizer was fitted on.
    synthetic : (X, y)
        Synthetic rows; 30 % of them, drawn by class, are kept for the test on synthetic rows.
    test : (X, y)
        Real rows that neither has seen.
    random_state : int
        Seed of the split and of the boosting.

    Raises
    ------
    DataError
        If columns differ, rows to train on are of one class, or a class has a single synthetic
        row.
    """
    classes, coded = _coded([train, synthetic, test])
    (x_train, y_train), (x_made, y_made), (x_test, y_test) = coded
    for y, what in ((y_train, "real"), (y_made, "synthetic")):
        if len(np.unique(y)) < 2:
            raise DataError(
                f"the {what} rows to train on are all of class {classes.tolist()[y[0]]!r}"
            )
    rare = classes[np.bincount(y_made, minlength=len(classes)) == 1]
    if len(rare):
        raise DataError(f"the classes {rare.tolist()} have one synthetic row; sample more")
    x_fit, x_held, y_fit, y_held = train_test_split(
        x_made, y_made, test_size=_HELD_OUT, stratify=y_made, random_state=random_state
    )
    with threadpool_limits(limits=1):  # threads that wait for one another cost more than they give
        real = HistGradientBoostingClassifier(random_state=random_state).fit(x_train, y_train)
        made = HistGradientBoostingClassifier(random_state=random_state).fit(x_fit, y_fit)
        return Utility(
            real_on_real=_score(real, x_test, y_test),
            synthetic_on_real=_score(made, x_test, y_test),
            synthetic_on_synthetic=_score(made, x_held, y_held),
        )


def _coded(
    pairs: list[tuple[Any, Any]],
) -> tuple[npt.NDArray[Any], list[tuple[Floats, Codes]]]:
    """Classes, and rows and labels of all pairs as numbers; words by their alphabetical place."""
    read = [tables(pairs[0][0], x)[1] for x, _ in pairs]
    labels = [column_or_1d(y) for _, y in pairs]
    for table, own in zip(read, labels, strict=True):
        check_consistent_length(next(iter(table.columns.values())), own)
    classes, codes = np.unique(np.concatenate(labels), return_inverse=True)
    matrices = np.split(_matrix(read), np.cumsum([table.n_rows for table in read])[:-1])
    split = np.split(codes, np.cumsum([len(own) for own in labels])[:-1])
    return classes, list(zip(matrices, split, strict=True))


def _matrix(read: list[Table]) -> Floats:
    columns = []
    for name in read[0].names:
        column = np.concatenate([table.columns[name] for table in read])
        if column.dtype == np.object_:
            words = sorted({word for word in column.tolist() if word is not None})
            place: dict[str | None, float] = {word: float(at) for at, word in enumerate(words)}
            column = np.array([place.get(word, np.nan) for word in column.tolist()])
        columns.append(column)
    return np.stack(columns, axis=1).astype(np.float64)


def _score(classifier: Any, x: Floats, y: Codes) -> Score:
    known = classifier.classes_
    said = classifier.predict_proba(x)
    predicted = known[said.argmax(axis=1)]
    present = np.unique(y)
    if len(present) < 2 or not set(present) <= set(known):
        area = float("nan")
    elif len(known) == 2:
        area = float(roc_auc_score(y == known[1], said[:, 1]))
    else:
        columns = np.searchsorted(known, present)
        area = float(np.mean([roc_auc_score(y == known[c], said[:, c]) for c in columns]))
    return Score(balanced_accuracy(y, predicted), area)
