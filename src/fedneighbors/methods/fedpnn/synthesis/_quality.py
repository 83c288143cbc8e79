"""Quality of synthetic rows: similarity by column, pair and row, and utility for a classifier."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import ks_2samp
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.neighbors import NearestNeighbors
from sklearn.utils import column_or_1d
from sklearn.utils.validation import check_consistent_length
from threadpoolctl import threadpool_limits

from fedneighbors._typing import Array, Floats, Integers
from fedneighbors.datasets._table import Column, Table
from fedneighbors.errors import DataError
from fedneighbors.methods.fedpnn.synthesis._tabular import as_table
from fedneighbors.metrics._scores import balanced_accuracy


def read_tables(real: Any, synthetic: Any) -> tuple[Table, Table]:
    """Convert real and synthetic rows to tables with the same columns.

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
            raise DataError(f"column {name!r} is numeric in one table and nominal in the other")
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
        Score of each column in [0, 1]; 1 for equal distributions. A column without values has 0 if
        the other table has values, else 1.

    References
    ----------
    .. [1] FedPNN, section 6.1.1.

    Examples
    --------
    >>> import numpy as np
    >>> ks_complement(np.array([[1.0], [2.0], [3.0], [4.0]]), np.array([[1.0], [2.0]]))
    {'x0': 0.5}
    """
    x_real, x_synth = read_tables(real, synthetic)
    scores = {}
    for name, column in x_real.columns.items():
        if column.dtype != np.object_:
            a, b = _sort_present(column), _sort_present(x_synth.columns[name])
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
        Correlations. If a column is constant, or fewer than two rows have both cells, the real
        correlation is NaN and the synthetic one is 0.
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
        """Return the mean similarity over all defined pairs; NaN without any."""
        pairs = self.similarity[np.triu_indices(len(self.names), 1)]
        return float(np.nanmean(pairs)) if (~np.isnan(pairs)).any() else float("nan")


def correlation_similarity(real: Any, synthetic: Any) -> Correlations:
    """Return the correlations of both tables and their similarity.

    The similarity is Eq 7 of [1]_.

    Parameters
    ----------
    real, synthetic : Table, data frame or array of shape (n_rows, n_columns)
        Rows; the correlation of two columns uses the rows in which neither cell is missing.

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
    x_real, x_synth = read_tables(real, synthetic)
    names = tuple(name for name, cells in x_real.columns.items() if cells.dtype != np.object_)
    return Correlations(
        names,
        _correlations([x_real.columns[name].astype(np.float64) for name in names]),
        np.nan_to_num(_correlations([x_synth.columns[name].astype(np.float64) for name in names])),
    )


def _correlations(columns: list[Floats]) -> Floats:
    """Return Pearson correlations, over the rows without missing cells in a pair."""
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
        Rows; a missing cell counts as a category. Categories that occur in the synthetic rows only
        are ignored.

    Returns
    -------
    dict of str to float
        Fraction for each nominal column, in [0, 1].
    """
    x_real, x_synth = read_tables(real, synthetic)
    coverage = {}
    for name, column in x_real.columns.items():
        if column.dtype == np.object_:
            categories = set(column.tolist())
            coverage[name] = len(categories & set(x_synth.columns[name].tolist())) / len(categories)
    return coverage


@dataclass(frozen=True, eq=False)
class NearestRecords:
    """Distances from rows to their nearest real row, between 0 and 1.

    Parameters
    ----------
    synthetic : float64 array of shape (n_synthetic,)
        Distance from each synthetic row.
    real : float64 array of shape (n_real,) or (n_held_out,)
        For comparison, the distance from each held-out row or, if there are none, from each real
        row to the nearest other one.
    copies : float
        Fraction of synthetic rows that equal a real row in every cell.
    duplicates : float
        Fraction of held-out rows or, if there are none, real rows that equal another real row.
    """

    synthetic: Floats
    real: Floats
    copies: float
    duplicates: float

    @property
    def closer(self) -> float:
        """Return the fraction of synthetic rows unusually close to real ones.

        These are closer to their nearest real row than 95 % of the rows for comparison.
        """
        return float(np.mean(self.synthetic < np.quantile(self.real, 0.05)))


def nearest_records(real: Any, synthetic: Any, held_out: Any = None) -> NearestRecords:
    """Measure the distances of synthetic rows to the nearest real rows.

    The difference of two numbers is that of their relative ranks among the real numbers. The
    difference of two categories is 0 or 1. The distance of two rows is the root mean square of the
    differences over the columns.

    Parameters
    ----------
    real, synthetic : Table, data frame or array of shape (n_rows, n_columns)
        Rows; at least two real ones.
    held_out : Table, data frame or array of shape (n_held_out, n_columns), optional
        Real rows that the synthesizer was not fitted on, for comparison.

    Raises
    ------
    DataError
        If there are fewer than two real rows.
    """
    x_real, x_synth = read_tables(real, synthetic)
    if x_real.n_rows < 2:
        raise DataError("expected two real rows or more, got 1, which has no nearest other row")
    points, others = _embed_rows(x_real, x_real), _embed_rows(x_synth, x_real)
    counts, other_counts = (Counter(row.tobytes() for row in rows) for rows in (points, others))
    search = NearestNeighbors(algorithm="brute").fit(points)
    if held_out is None:
        unseen, duplicates = None, sum(n for n in counts.values() if n > 1) / x_real.n_rows
    else:
        unseen = _embed_rows(read_tables(real, held_out)[1], x_real)
        duplicates = float(np.mean([row.tobytes() in counts for row in unseen]))
    return NearestRecords(
        synthetic=search.kneighbors(others, n_neighbors=1)[0][:, 0],
        real=search.kneighbors(unseen, n_neighbors=1)[0][:, 0],
        copies=sum(n for row, n in other_counts.items() if row in counts) / x_synth.n_rows,
        duplicates=duplicates,
    )


def rare_values(real: Any, synthetic: Any, *, min_count: int = 5) -> dict[str, float]:
    """Return the fraction of synthetic cells that equal a rare real value.

    Numbers are compared by their first six digits. Some cells agree by chance: as many as in real
    rows that the synthesizer was not fitted on, given instead of the synthetic ones.

    Parameters
    ----------
    real, synthetic : Table, data frame or array of shape (n_rows, n_columns)
        Rows; missing cells are not values.
    min_count : int
        A value in fewer real rows is rare.

    Returns
    -------
    dict of str to float
        Fraction of the cells of each column, in [0, 1].

    Examples
    --------
    >>> import numpy as np
    >>> rare_values(np.array([[1.0]] * 5 + [[777.25]]), np.array([[1.0], [777.25]]))
    {'x0': 0.5}
    """
    x_real, x_synth = read_tables(real, synthetic)
    shares = {}
    for name, column in x_real.columns.items():
        counts = Counter(_round_cells(column))
        rare = {value for value, n in counts.items() if n < min_count} - {None}
        cells = _round_cells(x_synth.columns[name])
        shares[name] = sum(cell in rare for cell in cells) / x_synth.n_rows
    return shares


def _round_cells(column: Column) -> list[Any]:
    """Return texts, and numbers with six digits; None where missing."""
    cells: list[Any] = column.tolist()
    if column.dtype == np.object_:
        return cells
    return [None if cell != cell else f"{cell + 0.0:.6g}" for cell in cells]


def _embed_rows(table: Table, real: Table) -> Floats:
    """Return points with the distance of :func:`nearest_records` as Euclidean distance."""
    parts: list[Floats] = []
    for name, column in table.columns.items():
        if column.dtype == np.object_:
            categories = dict.fromkeys(real.columns[name].tolist())
            unseen = np.array([word not in categories for word in column.tolist()])
            # different categories have distance 1; those without a real row share one coordinate
            one_hot = [*(np.equal(column, word) for word in categories), unseen]
            parts += [entry * np.sqrt(0.5) for entry in one_hot]
        else:
            parts += _rank_values(column.astype(np.float64), _sort_present(real.columns[name]))
    points: Floats = np.stack(parts, axis=1) / np.sqrt(len(table.names))
    return points


def _rank_values(values: Floats, real: Floats) -> list[Floats]:
    """Return relative mid-ranks, 0.5 where missing, and missing-cell indicators."""
    missing = np.isnan(values)
    twice_rank = np.searchsorted(real, values, "left") + np.searchsorted(real, values, "right")
    ranks = twice_rank / (2.0 * max(len(real), 1))
    return [np.where(missing, 0.5, ranks), missing.astype(np.float64)]


Codes = Integers

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
        over one class against the rest. NaN if the test rows have a single class, or a class that
        the training rows do not have.
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
        0 if the classes differ by artifacts of their generators: a classifier recognizes these
        artifacts in other synthetic rows, but real rows do not have them.
        """
        synth, real = self.synthetic_on_synthetic, self.synthetic_on_real
        return Score(synth.balanced_accuracy - real.balanced_accuracy, synth.roc_auc - real.roc_auc)


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
        Synthetic rows; 30 % of them, stratified by class, are held out for the test on synthetic
        rows.
    test : (X, y)
        Real rows that neither the synthesizer nor the classifiers were fitted on.
    random_state : int
        Seed of the split and of the boosting.

    Raises
    ------
    DataError
        If columns differ, training rows are of one class, or a class has a single synthetic row.
    """
    classes, encoded = _encode_pairs([train, synthetic, test])
    (x_train, y_train), (x_synth, y_synth), (x_test, y_test) = encoded
    for y, kind in ((y_train, "real"), (y_synth, "synthetic")):
        if len(np.unique(y)) < 2:
            raise DataError(
                f"the {kind} rows to train on are all of class {classes.tolist()[y[0]]!r}; add "
                "rows of another class"
            )
    rare = classes[np.bincount(y_synth, minlength=len(classes)) == 1]
    if len(rare):
        raise DataError(f"the classes {rare.tolist()} have one synthetic row; sample more")
    x_fit, x_held, y_fit, y_held = train_test_split(
        x_synth, y_synth, test_size=_HELD_OUT, stratify=y_synth, random_state=random_state
    )
    with threadpool_limits(limits=1):  # more threads are slower: they wait for one another
        real = _fit_boosting(x_train, y_train, random_state)
        synth = _fit_boosting(x_fit, y_fit, random_state)
        return Utility(
            real_on_real=_score_classifier(real, x_test, y_test),
            synthetic_on_real=_score_classifier(synth, x_test, y_test),
            synthetic_on_synthetic=_score_classifier(synth, x_held, y_held),
        )


def _fit_boosting(x: Floats, y: Codes, random_state: int) -> Any:
    """Fit gradient boosting; it needs zeros in empty columns."""
    filled = np.where(np.isnan(x).all(axis=0), 0.0, x)
    return HistGradientBoostingClassifier(random_state=random_state).fit(filled, y)


def _encode_pairs(pairs: list[tuple[Any, Any]]) -> tuple[Array, list[tuple[Floats, Codes]]]:
    """Encode rows and labels of all pairs as numbers; return classes first.

    Categories are encoded by their alphabetical position.
    """
    tables = [read_tables(pairs[0][0], x)[1] for x, _ in pairs]
    labels = [column_or_1d(y) for _, y in pairs]
    for table, y in zip(tables, labels, strict=True):
        check_consistent_length(next(iter(table.columns.values())), y)
    classes, codes = np.unique(np.concatenate(labels), return_inverse=True)
    matrices = np.split(_encode_tables(tables), np.cumsum([table.n_rows for table in tables])[:-1])
    split = np.split(codes, np.cumsum([len(y) for y in labels])[:-1])
    return classes, list(zip(matrices, split, strict=True))


def _encode_tables(tables: list[Table]) -> Floats:
    columns = []
    for name in tables[0].names:
        column = np.concatenate([table.columns[name] for table in tables])
        if column.dtype == np.object_:
            texts = sorted({text for text in column.tolist() if text is not None})
            code: dict[str | None, float] = {text: float(k) for k, text in enumerate(texts)}
            column = np.array([code.get(text, np.nan) for text in column.tolist()])
        columns.append(column)
    return np.stack(columns, axis=1).astype(np.float64)


def _score_classifier(classifier: Any, x: Floats, y: Codes) -> Score:
    labels = classifier.classes_
    probabilities = classifier.predict_proba(x)
    predicted = labels[probabilities.argmax(axis=1)]
    present = np.unique(y)
    if len(present) < 2 or not set(present) <= set(labels):
        area = float("nan")
    elif len(labels) == 2:
        area = float(roc_auc_score(y == labels[1], probabilities[:, 1]))
    else:
        columns = np.searchsorted(labels, present)
        area = float(np.mean([roc_auc_score(y == labels[c], probabilities[:, c]) for c in columns]))
    return Score(balanced_accuracy(y, predicted), area)
