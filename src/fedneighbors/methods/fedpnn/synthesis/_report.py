"""Run record of the quality of a synthetic table, for a one-page report."""

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np

from fedneighbors.datasets._table import Table as Rows
from fedneighbors.datasets._table import missing_cells
from fedneighbors.methods.fedpnn.synthesis._quality import (
    Correlations,
    NearestRecords,
    Utility,
    category_coverage,
    correlation_similarity,
    ks_complement,
    nearest_records,
    read_tables,
    utility,
)
from fedneighbors.records import Figure, ResultTable, RunRecord, Scalar, environment

_MAX_PLOTTED = 6  # maximum number of columns in the plot of distributions
_MAX_PAIRED = 14  # maximum number of columns in the heatmap of correlations
_FRACTIONS = np.linspace(0.0, 1.0, 41)


def quality_record(
    real: tuple[Any, Any],
    synthetic: tuple[Any, Any],
    *,
    test: tuple[Any, Any] | None = None,
    parameters: Mapping[str, Scalar] | None = None,
    name: str = "fedpnn.synthesis",
    random_state: int = 0,
) -> RunRecord:
    """Compare synthetic rows with the real rows of the fit.

    ``fedneighbors.reports.write_report([record], path)`` renders the page. The record contains no
    values of real rows, since distributions are plotted as fractions against fractions. It contains
    correlations, distances and column names, and is not differentially private.

    Parameters
    ----------
    real, synthetic : (X, y)
        Rows and labels; None for no labels.
    test : (X, y), optional
        Real rows that the synthesizer was not fitted on; with them, and with labels, classifiers
        are scored.
    parameters : mapping, optional
        Settings to show in the report.
    name : str
        Name of the record.
    random_state : int
        Seed of the classifiers.

    Returns
    -------
    RunRecord

    Raises
    ------
    DataError
        If columns differ, or there are too few rows.
    """
    started, clock = datetime.now(UTC), time.perf_counter()
    known, made = read_tables(real[0], synthetic[0])
    scores = ks_complement(known, made)
    coverage = category_coverage(known, made)
    pairs = correlation_similarity(known, made)
    near = nearest_records(known, made)
    worth = None
    if test is not None and real[1] is not None and synthetic[1] is not None:
        worth = utility(real, synthetic, test, random_state=random_state)
    found = [
        _summary_table(scores, coverage, pairs, near, worth),
        *_class_tables(known, made, real[1], synthetic[1]),
        *([] if worth is None else [_utility_table(worth)]),
        _distribution_table(known, made, scores),
        _correlation_table(pairs),
        _distance_table(near),
        _column_table(known, made, scores, coverage),
    ]
    kept = tuple(table for table in found if table.rows)
    return RunRecord(
        name=name,
        parameters={"real_rows": known.n_rows, "synthetic_rows": made.n_rows, **(parameters or {})},
        tables=kept,
        figures=tuple(figure for figure in _FIGURES if figure.table in {t.name for t in kept}),
        notes=_notes(near, worth),
        started=started.isoformat(timespec="seconds"),
        seconds=time.perf_counter() - clock,
        environment=environment(),
    )


_FIGURES = (
    Figure(
        "worst-columns", "line", "Columns that are least alike", "shares",
        x="share_of_real", y="share_of_synthetic", hue="column", diagonal=True,
        caption="Fraction of synthetic rows up to each quantile of the real ones. On the diagonal "
        "the distributions agree; the largest distance from it is 1 - KS complement.",
    ),
    Figure(
        "correlations", "heatmap", "Correlations of columns", "pairs",
        x="column", y="other_column", hue="correlation",
        caption="Real rows above the diagonal, synthetic rows below it: they agree if the picture "
        "is symmetric.",
    ),
    Figure(
        "nearest-records", "line", "Distance to the nearest real row", "distances",
        x="distance", y="share_of_rows", hue="rows",
        caption="Cumulative. If the synthetic curve is left of the real one, synthetic rows are "
        "closer to real rows than real rows are to one another: they may be copies.",
    ),
    Figure(
        "worth", "bar", "What a classifier learns from the rows", "worth",
        x="trained_and_tested_on", y="ROC-AUC",
        caption="Gradient boosting. The separability gap is the difference between synthetic on "
        "synthetic and synthetic on real; if it is large, the generators mark the classes.",
    ),
)  # fmt: skip


def _summary_table(
    scores: Mapping[str, float],
    coverage: Mapping[str, float],
    pairs: Correlations,
    near: NearestRecords,
    worth: Utility | None,
) -> ResultTable:
    rows: list[tuple[Scalar, ...]] = [
        ("KS complement, mean", _mean(scores), "1 is best: equal distributions (Eq 6)"),
        ("correlation similarity, mean", pairs.mean, "1 is best: equal correlations (Eq 7)"),
        ("category coverage, mean", _mean(coverage), "1 is best: every category occurs"),
        ("copies of real rows", near.copies, "share of synthetic rows; 0 is best"),
        ("repeated real rows", near.duplicates, "share of real rows that equal another one"),
        ("closer than usual", near.closer, "share of synthetic rows; 0.05 is usual"),
    ]
    if worth is not None:
        rows += [
            ("train synthetic, test real", worth.synthetic_on_real.roc_auc, "ROC-AUC"),
            ("train real, test real", worth.real_on_real.roc_auc, "ROC-AUC, reference"),
            ("separability gap", worth.separability_gap.roc_auc, "ROC-AUC; 0 is best"),
        ]
    defined = tuple(row for row in rows if row[1] == row[1])
    return ResultTable("summary", "Summary", ("measure", "value", "meaning"), defined)


def _mean(scores: Mapping[str, float]) -> float:
    return float(np.mean(list(scores.values()))) if scores else float("nan")


def _class_tables(known: Rows, made: Rows, y: Any, y_made: Any) -> list[ResultTable]:
    """Return both similarities by class, if there are labels."""
    if y is None or y_made is None:
        return []
    labels, own = np.asarray(y), np.asarray(y_made)
    rows: list[tuple[Scalar, ...]] = []
    for label in np.unique(labels):
        if not (own == label).any():
            rows.append((str(label), int((labels == label).sum()), 0, None, None))
            continue
        a, b = known.take(labels == label), made.take(own == label)
        similar = correlation_similarity(a, b).mean
        rows.append((str(label), a.n_rows, b.n_rows, _mean(ks_complement(a, b)), similar))
    columns = ("class", "real_rows", "synthetic_rows", "ks_complement", "correlation_similarity")
    return [ResultTable("classes", "Class by class", columns, tuple(rows))]


def _column_table(
    known: Rows, made: Rows, scores: Mapping[str, float], coverage: Mapping[str, float]
) -> ResultTable:
    alike = {name: scores.get(name, coverage.get(name, 0.0)) for name in known.names}
    rows = []
    for name in sorted(known.names, key=alike.__getitem__):
        sides = (
            round(float(missing_cells(table.columns[name]).mean()), 4) for table in (known, made)
        )
        rows.append((name, "KS" if name in scores else "coverage", alike[name], *sides))
    heads = ("column", "measure", "score", "missing_real", "missing_synthetic")
    return ResultTable(
        "columns",
        "Column by column, the least alike first",
        heads,
        tuple(rows),
        caption="KS: KS complement of numbers (Eq 6). Coverage: fraction of a column's words that "
        "occur. Missing: fraction of cells.",
    )


def _distribution_table(known: Rows, made: Rows, scores: Mapping[str, float]) -> ResultTable:
    """Return distributions of the least similar columns.

    They are fractions of synthetic rows up to quantiles of real ones.
    """
    rows = []
    for name in sorted(scores, key=scores.__getitem__)[:_MAX_PLOTTED]:
        real, own = (t.columns[name].astype(np.float64) for t in (known, made))
        real, own = real[~np.isnan(real)], np.sort(own[~np.isnan(own)])
        if not len(real) or not len(own):
            continue
        points = np.quantile(real, _FRACTIONS, method="inverted_cdf")
        ordered = np.sort(real)
        for point in np.unique(points):
            share = np.searchsorted(ordered, point, "right") / len(real)
            rows.append(
                (name, float(share), float(np.searchsorted(own, point, "right") / len(own)))
            )
    return ResultTable(
        "shares",
        "Distributions of the columns that are least alike",
        ("column", "share_of_real", "share_of_synthetic"),
        tuple(rows),
    )


def _correlation_table(pairs: Correlations) -> ResultTable:
    """Return correlations of the least similar columns.

    Entries are of the real rows where ``other_column`` comes first, else of the synthetic rows.
    """
    gap = np.nan_to_num(1.0 - pairs.similarity)
    worst = np.sort(np.argsort(-gap.sum(axis=0), kind="stable")[:_MAX_PAIRED]).tolist()
    rows = tuple(
        (
            pairs.names[a],
            pairs.names[b],
            "real" if b < a else "synthetic",
            _round_correlation(pairs, a, b),
        )
        for b in worst
        for a in worst
    )
    title = f"Correlations of the {len(worst)} columns where they are least alike"
    return ResultTable("pairs", title, ("column", "other_column", "rows", "correlation"), rows)


def _round_correlation(pairs: Correlations, a: int, b: int) -> float | None:
    side = pairs.real if b < a else pairs.synthetic
    return None if a == b or np.isnan(side[a, b]) else round(float(side[a, b]), 2) + 0.0


def _distance_table(near: NearestRecords) -> ResultTable:
    rows = [
        (label, float(distance), float(share))
        for label, distances in (("real", near.real), ("synthetic", near.synthetic))
        for share, distance in zip(_FRACTIONS, np.quantile(distances, _FRACTIONS), strict=True)
    ]
    heads = ("rows", "distance", "share_of_rows")
    return ResultTable("distances", "Distances to real rows", heads, tuple(rows))


def _utility_table(worth: Utility) -> ResultTable:
    rows = tuple(
        (label, score.balanced_accuracy, score.roc_auc)
        for label, score in (
            ("real on real", worth.real_on_real),
            ("synthetic on real", worth.synthetic_on_real),
            ("synthetic on synthetic", worth.synthetic_on_synthetic),
        )
    )
    heads = ("trained_and_tested_on", "balanced_accuracy", "ROC-AUC")
    return ResultTable("worth", "Train on synthetic rows, test on real ones", heads, rows)


def _notes(near: NearestRecords, worth: Utility | None) -> tuple[str, ...]:
    notes = ["This report is not differentially private; keep it where the real rows are."]
    if near.copies > near.duplicates:
        notes.append(
            f"{near.copies:.1%} of the synthetic rows are copies of real ones, more than the "
            f"{near.duplicates:.1%} of the real rows that are duplicates: do not share them."
        )
    if worth is not None and worth.separability_gap.roc_auc > 0.1:
        notes.append(
            "Classes are easier to separate among synthetic rows than among real ones: scores on "
            "synthetic test rows do not carry over to real ones."
        )
    return tuple(notes)
