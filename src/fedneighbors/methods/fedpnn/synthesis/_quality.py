"""Quality of synthetic rows: similarity by column, pair and row, and utility for a classifier."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import ks_2samp
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.neighbors import NearestNeighbors
from sklearn.utils import column_or_1d
from sklearn.utils.validation import check_consistent_length
from threadpoolctl import threadpool_limits

from fedneighbors._typing import Floats
from fedneighbors.datasets._table import Column, Table
from fedneighbors.errors import DataError
from fedneighbors.methods.fedpnn.synthesis._tabular import as_table
from fedneighbors.metrics._scores import balanced_accuracy


def read_tables(real: Any, synthetic: Any) -> tuple[Table, Table]:
    """Read real and synthetic rows as tables with the same columns.

    Parameters
    ----------
    real, synthetic : Table, data frame or array of shape (n_rows, n_columns)
        Rows; missing cells are NaN or None.

    Raises
    ------
    DataError
        If columns differ, or a column is numeric in one table and nominal in the other.
    """
    pair = as_table(real)[0], as_table(synthetic)[0]
    names = [table.names for table in pair]
    if names[0] != names[1]:
        raise DataError(f"expected the real columns {list(names[0])}, got {list(names[1])}")
    for name in names[0]:
        kinds = {table.columns[name].dtype == np.object_ for table in pair}
        if len(kinds) > 1:
            raise DataError(f"column {name!r} is numeric in one table and holds words in the other")
    return pair


def ks_complement(real: Any, synthetic: Any) -> dict[str, float]:
    """Return 1 minus the Kolmogorov-Smirnov statistic of each numeric column.

    This is Eq 6 of [1]_.

    Parameters
    ----------
    real, synthetic : Table, data frame or array of shape (n_rows, n_columns)
        Rows; missing cells are omitted.

    Returns
    -------
    dict of str to float
        Score of each column in [0, 1], 1 for equal distributions; 0 if only one of the two tables
        has no cells, 1 if neither has.

    References
    ----------
    .. [1] FedPNN, section 6.1.1.

    Examples
    --------
    >>> import numpy as np
    >>> ks_complement(np.array([[1.0], [2.0], [3.0], [4.0]]), np.array([[1.0], [2.0]]))
    {'x0': 0.5}
    """
    known, made = read_tables(real, synthetic)
    scores = {}
    for name, column in known.columns.items():
        if column.dtype != np.object_:
            a, b = _sort_present(column), _sort_present(made.columns[name])
            both = len(a) and len(b)
            gap = ks_2samp(a, b, method="asymp").statistic if both else len(a) != len(b)
            scores[name] = 1.0 - float(gap)
    return scores


def _sort_present(column: Column) -> Floats:
    values = column.astype(np.float64)
    return np.sort(values[~np.isnan(values)])


@dataclass(frozen=True, eq=False)
class Correlations:
    """Pearson correlations of all pairs of numeric columns in both tables.

    Parameters
    ----------
    names : tuple of str
        Names of the numeric columns.
    real, synthetic : float64 arrays of shape (n_columns, n_columns)
        Correlations. Where a column is constant, or a pair has fewer than two rows with both cells,
        real ones are NaN and synthetic ones are 0.
    """

    names: tuple[str, ...]
    real: Floats
    synthetic: Floats

    @property
    def similarity(self) -> Floats:
        """Return the similarity of each pair of columns.

        It is ``1 - |S - R| / 2``, and NaN where the real correlation is undefined.
        """
        return 1.0 - np.abs(self.synthetic - self.real) / 2.0

    @property
    def mean(self) -> float:
        """Return the mean similarity over defined pairs; NaN without any."""
        pairs = self.similarity[np.triu_indices(len(self.names), 1)]
        return float(np.nanmean(pairs)) if (~np.isnan(pairs)).any() else float("nan")


def correlation_similarity(real: Any, synthetic: Any) -> Correlations:
    """Return the correlations of both tables and their similarity.

    The similarity is Eq 7 of [1]_.

    Parameters
    ----------
    real, synthetic : Table, data frame or array of shape (n_rows, n_columns)
        Rows; the correlation of a pair of columns uses the rows that have both cells.

    References
    ----------
    .. [1] FedPNN, section 6.1.2.

    Examples
    --------
    >>> import numpy as np
    >>> up, down = np.array([[0.0, 0.0], [1.0, 1.0]]), np.array([[0.0, 1.0], [1.0, 0.0]])
    >>> round(correlation_similarity(up, down).mean, 6)
    0.0
    """
    known, made = read_tables(real, synthetic)
    names = tuple(name for name, cells in known.columns.items() if cells.dtype != np.object_)
    return Correlations(
        names,
        _correlations([known.columns[name].astype(np.float64) for name in names]),
        np.nan_to_num(_correlations([made.columns[name].astype(np.float64) for name in names])),
    )


def _correlations(columns: list[Floats]) -> Floats:
    """Return Pearson correlations over complete pairs of cells."""
    if not columns:
        return np.empty((0, 0))
    values = np.stack(columns, axis=1)
    present = ~np.isnan(values)
    if present.all():
        centered = values - values.mean(axis=0)
        square = centered.T @ centered
        scale = np.sqrt(np.diag(square))
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(np.clip(square / np.outer(scale, scale), -1.0, 1.0))
    return np.array([[_correlation(a, b) for b in columns] for a in columns])


def _correlation(a: Floats, b: Floats) -> float:
    both = ~(np.isnan(a) | np.isnan(b))
    if both.sum() < 2:
        return float("nan")
    return float(_correlations([a[both], b[both]])[0, 1])


def category_coverage(real: Any, synthetic: Any) -> dict[str, float]:
    """Return the fraction of real categories in the synthetic rows.

    Parameters
    ----------
    real, synthetic : Table, data frame or array of shape (n_rows, n_columns)
        Rows; a missing cell counts as a category. Categories only in the synthetic rows are
        ignored.

    Returns
    -------
    dict of str to float
        Fraction for each nominal column, in [0, 1].
    """
    known, made = read_tables(real, synthetic)
    coverage = {}
    for name, column in known.columns.items():
        if column.dtype == np.object_:
            wanted = set(column.tolist())
            coverage[name] = len(wanted & set(made.columns[name].tolist())) / len(wanted)
    return coverage


@dataclass(frozen=True, eq=False)
class NearestRecords:
    """Distances from rows to their nearest real row, between 0 and 1.

    Parameters
    ----------
    synthetic : float64 array of shape (n_synthetic,)
        Distance from each synthetic row.
    real : float64 array of shape (n_real,)
        Distance from each real row to the nearest other one, for comparison.
    copies : float
        Fraction of synthetic rows that equal a real row in every cell.
    duplicates : float
        Fraction of real rows that equal another real row.
    """

    synthetic: Floats
    real: Floats
    copies: float
    duplicates: float

    @property
    def closer(self) -> float:
        """Return the fraction of synthetic rows unusually close to real ones.

        These are closer to their nearest real row than 95 % of the real rows are.
        """
        return float(np.mean(self.synthetic < np.quantile(self.real, 0.05)))


def nearest_records(real: Any, synthetic: Any) -> NearestRecords:
    """Measure the distances of synthetic rows to the nearest real rows.

    Numbers are compared by their relative ranks among the real ones; words and missing cells differ
    by 0 or 1. The distance is the root mean square of the differences over the columns.

    Parameters
    ----------
    real, synthetic : Table, data frame or array of shape (n_rows, n_columns)
        Rows; at least two real ones.

    Raises
    ------
    DataError
        If there are fewer than two real rows.
    """
    known, made = read_tables(real, synthetic)
    if known.n_rows < 2:
        raise DataError("expected two real rows or more, got 1, which has no other nearest row")
    places, asked = _embed_rows(known, known), _embed_rows(made, known)
    own, their = (Counter(row.tobytes() for row in rows) for rows in (places, asked))
    search = NearestNeighbors(algorithm="brute").fit(places)
    return NearestRecords(
        synthetic=search.kneighbors(asked, n_neighbors=1)[0][:, 0],
        real=search.kneighbors(n_neighbors=1)[0][:, 0],
        copies=sum(n for row, n in their.items() if row in own) / made.n_rows,
        duplicates=sum(n for n in own.values() if n > 1) / known.n_rows,
    )


def _embed_rows(table: Table, real: Table) -> Floats:
    """Return points with the distance of :func:`nearest_records` as Euclidean distance."""
    parts: list[Floats] = []
    for name, column in table.columns.items():
        if column.dtype == np.object_:
            words = dict.fromkeys(real.columns[name].tolist())
            unseen = np.array([word not in words for word in column.tolist()])
            # different words are at distance 1; words without a real row share one coordinate
            marks = [*(np.equal(column, word) for word in words), unseen]
            parts += [mark * np.sqrt(0.5) for mark in marks]
        else:
            parts += _rank_values(column.astype(np.float64), _sort_present(real.columns[name]))
    points: Floats = np.stack(parts, axis=1) / np.sqrt(len(table.names))
    return points


def _rank_values(values: Floats, real: Floats) -> list[Floats]:
    """Return relative mid-ranks, 0.5 where missing, and missing-cell indicators."""
    gone = np.isnan(values)
    middle = np.searchsorted(real, values, "left") + np.searchsorted(real, values, "right")
    share = middle / (2.0 * max(len(real), 1))
    return [np.where(gone, 0.5, share), gone.astype(np.float64)]


Codes = npt.NDArray[np.int64]

_HELD_OUT = 0.3


@dataclass(frozen=True)
class Score:
    """Score of a classifier.

    Parameters
    ----------
    balanced_accuracy : float
        Mean recall over the classes of the test rows; the FedPNN paper calls it AUC (Eq 8).
    roc_auc : float
        Area under the receiver operating characteristic curve; with more than two classes, the mean
        of one class against the rest. NaN if the test rows are of one class, or of a class that was
        not trained on.
    """

    balanced_accuracy: float
    roc_auc: float


@dataclass(frozen=True)
class Utility:
    """Scores of gradient boosting by training and test rows.

    Parameters
    ----------
    real_on_real : Score
        Trained on real rows, tested on other real rows: the reference.
    synthetic_on_real : Score
        Trained on synthetic rows, tested on real ones: the utility of the synthetic rows.
    synthetic_on_synthetic : Score
        Trained and tested on synthetic rows: the result of an evaluation without real rows.
    """

    real_on_real: Score
    synthetic_on_real: Score
    synthetic_on_synthetic: Score

    @property
    def separability_gap(self) -> Score:
        """Return scores on synthetic rows minus scores on real ones.

        Both are scores of the classifier that was trained on synthetic rows. The gap is well above
        0 if the generators leave traces that separate the classes: a generator per class marks its
        rows, and a test on synthetic rows measures that mark.
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
    """Score gradient boosting trained on real and on synthetic rows.

    Parameters
    ----------
    train : (X, y)
        Real rows that the synthesizer was fitted on.
    synthetic : (X, y)
        Synthetic rows; a stratified 30 % of them are held out for the test on synthetic rows.
    test : (X, y)
        Real rows that neither the synthesizer nor the classifiers were fitted on.
    random_state : int
        Seed of the split and of the boosting.

    Raises
    ------
    DataError
        If columns differ, training rows are of one class, or a class has a single synthetic row.
    """
    classes, coded = _encode_pairs([train, synthetic, test])
    (x_train, y_train), (x_made, y_made), (x_test, y_test) = coded
    for y, side in ((y_train, "real"), (y_made, "synthetic")):
        if len(np.unique(y)) < 2:
            raise DataError(
                f"the {side} rows to train on are all of class {classes.tolist()[y[0]]!r}; add "
                "rows of another class"
            )
    rare = classes[np.bincount(y_made, minlength=len(classes)) == 1]
    if len(rare):
        raise DataError(f"the classes {rare.tolist()} have one synthetic row; sample more")
    x_fit, x_held, y_fit, y_held = train_test_split(
        x_made, y_made, test_size=_HELD_OUT, stratify=y_made, random_state=random_state
    )
    with threadpool_limits(limits=1):  # more threads are slower: they wait for one another
        real = HistGradientBoostingClassifier(random_state=random_state).fit(x_train, y_train)
        made = HistGradientBoostingClassifier(random_state=random_state).fit(x_fit, y_fit)
        return Utility(
            real_on_real=_score_classifier(real, x_test, y_test),
            synthetic_on_real=_score_classifier(made, x_test, y_test),
            synthetic_on_synthetic=_score_classifier(made, x_held, y_held),
        )


def _encode_pairs(
    pairs: list[tuple[Any, Any]],
) -> tuple[npt.NDArray[Any], list[tuple[Floats, Codes]]]:
    """Encode rows and labels of all pairs as numbers; return classes first.

    Words are encoded by their alphabetical position.
    """
    read = [read_tables(pairs[0][0], x)[1] for x, _ in pairs]
    labels = [column_or_1d(y) for _, y in pairs]
    for table, own in zip(read, labels, strict=True):
        check_consistent_length(next(iter(table.columns.values())), own)
    classes, codes = np.unique(np.concatenate(labels), return_inverse=True)
    matrices = np.split(_encode_tables(read), np.cumsum([table.n_rows for table in read])[:-1])
    split = np.split(codes, np.cumsum([len(own) for own in labels])[:-1])
    return classes, list(zip(matrices, split, strict=True))


def _encode_tables(read: list[Table]) -> Floats:
    columns = []
    for name in read[0].names:
        column = np.concatenate([table.columns[name] for table in read])
        if column.dtype == np.object_:
            words = sorted({word for word in column.tolist() if word is not None})
            place: dict[str | None, float] = {word: float(at) for at, word in enumerate(words)}
            column = np.array([place.get(word, np.nan) for word in column.tolist()])
        columns.append(column)
    return np.stack(columns, axis=1).astype(np.float64)


def _score_classifier(classifier: Any, x: Floats, y: Codes) -> Score:
    known = classifier.classes_
    probabilities = classifier.predict_proba(x)
    predicted = known[probabilities.argmax(axis=1)]
    present = np.unique(y)
    if len(present) < 2 or not set(present) <= set(known):
        area = float("nan")
    elif len(known) == 2:
        area = float(roc_auc_score(y == known[1], probabilities[:, 1]))
    else:
        columns = np.searchsorted(known, present)
        area = float(np.mean([roc_auc_score(y == known[c], probabilities[:, c]) for c in columns]))
    return Score(balanced_accuracy(y, predicted), area)
