"""Run record with the quality of a synthetic table, for a one-page report."""

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from fedneighbors.datasets._table import Table as Rows
from fedneighbors.datasets._table import join_names, missing_cells
from fedneighbors.methods.fedpnn.synthesis._quality import (
    Correlations,
    NearestRecords,
    Utility,
    category_coverage,
    correlation_similarity,
    ks_complement,
    nearest_records,
    rare_values,
    read_tables,
    utility,
)
from fedneighbors.records import Figure, ResultTable, RunRecord, Scalar, environment

_MAX_PLOTTED = 6  # maximum number of columns in the plot of distributions
_MAX_PAIRED = 14  # maximum number of columns in the heatmap of correlations
_MAX_ERRORS = 4.0  # standard errors by which shares may differ by chance; 3 fails in many columns
_FRACTIONS = np.linspace(0.0, 1.0, 41)  # fractions of rows at which distributions are plotted


def quality_record(
    real: tuple[Any, Any],
    synthetic: tuple[Any, Any],
    *,
    test: tuple[Any, Any] | None = None,
    parameters: Mapping[str, Scalar] | None = None,
    name: str = "fedpnn.synthesis",
    random_state: int = 0,
) -> RunRecord:
    """Compare synthetic rows with the real training rows.

    ``fedneighbors.reports.write_report([record], path)`` renders the page. The record contains no
    values of real rows: distributions are plotted as fractions of synthetic rows against fractions
    of real rows. It contains correlations, distances and column names, and is not differentially
    private.

    Parameters
    ----------
    real, synthetic : (X, y)
        Rows and labels; None for no labels.
    test : (X, y), optional
        Real rows that the synthesizer was not fitted on. Distances, copies and rare values are
        compared with theirs; if there are labels, classifiers are scored on them.
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
    x_real, x_synth = read_tables(real[0], synthetic[0])
    scores = ks_complement(x_real, x_synth)
    coverage = category_coverage(x_real, x_synth)
    pairs = correlation_similarity(x_real, x_synth)
    held_out = None if test is None else read_tables(real[0], test[0])[1]
    nearest = nearest_records(x_real, x_synth, held_out)
    compared = [x_synth] if held_out is None else [x_synth, held_out]
    rare = [rare_values(x_real, rows) for rows in compared]
    utilities = None
    if test is not None and real[1] is not None and synthetic[1] is not None:
        utilities = utility(real, synthetic, test, random_state=random_state)
    tables = [
        _summary_table(scores, coverage, pairs, nearest, rare, utilities),
        *_class_tables(x_real, x_synth, real[1], synthetic[1]),
        *([] if utilities is None else [_utility_table(utilities)]),
        _distribution_table(x_real, x_synth, scores),
        _correlation_table(pairs),
        _distance_table(nearest),
        _column_table(x_real, x_synth, scores, coverage, rare),
    ]
    n_rows = {"real_rows": x_real.n_rows, "synthetic_rows": x_synth.n_rows}
    filled = tuple(table for table in tables if table.rows)
    return RunRecord(
        name=name,
        parameters={**n_rows, **(parameters or {})},
        tables=filled,
        figures=tuple(figure for figure in _FIGURES if figure.table in {t.name for t in filled}),
        notes=_notes(nearest, _find_copied(rare, [rows.n_rows for rows in compared]), utilities),
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
        "closer to real rows than other real rows are: they may be copies.",
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
    nearest: NearestRecords,
    rare: Sequence[Mapping[str, float]],
    utilities: Utility | None,
) -> ResultTable:
    rows: list[tuple[Scalar, ...]] = [
        ("KS complement, mean", _mean(scores), "1 is best: equal distributions (Eq 6)"),
        ("correlation similarity, mean", pairs.mean, "1 is best: equal correlations (Eq 7)"),
        ("category coverage, mean", _mean(coverage), "1 is best: every category occurs"),
        ("copies of real rows", nearest.copies, "share of synthetic rows; 0 is best"),
        ("repeated real rows", nearest.duplicates, "same of held-out or else real rows: chance"),
        ("closer than usual", nearest.closer, "share of synthetic rows; 0.05 is expected"),
    ]
    for name, shares in zip(("synthetic", "held-out"), rare, strict=False):
        meaning = "share of cells that equal a value of fewer than 5 real rows"
        rows.append((f"rare values, {name} rows", _mean(shares), meaning))
    if utilities is not None:
        rows += [
            ("train synthetic, test real", utilities.synthetic_on_real.roc_auc, "ROC-AUC"),
            ("train real, test real", utilities.real_on_real.roc_auc, "ROC-AUC, reference"),
            ("separability gap", utilities.separability_gap.roc_auc, "ROC-AUC; 0 is best"),
        ]
    defined = tuple(row for row in rows if row[1] == row[1])
    return ResultTable("summary", "Summary", ("measure", "value", "meaning"), defined)


def _mean(scores: Mapping[str, float]) -> float:
    return float(np.mean(list(scores.values()))) if scores else float("nan")


def _class_tables(real: Rows, synth: Rows, y: Any, y_synth: Any) -> list[ResultTable]:
    """Return a table of both similarities by class, if there are labels."""
    if y is None or y_synth is None:
        return []
    labels, other = np.asarray(y), np.asarray(y_synth)
    rows: list[tuple[Scalar, ...]] = []
    for label in np.unique(labels):
        if not (other == label).any():
            rows.append((str(label), int((labels == label).sum()), 0, None, None))
            continue
        a, b = real.take(labels == label), synth.take(other == label)
        similar = correlation_similarity(a, b).mean
        rows.append((str(label), a.n_rows, b.n_rows, _mean(ks_complement(a, b)), similar))
    columns = ("class", "real_rows", "synthetic_rows", "ks_complement", "correlation_similarity")
    return [ResultTable("classes", "Class by class", columns, tuple(rows))]


def _column_table(
    real: Rows,
    synth: Rows,
    scores: Mapping[str, float],
    coverage: Mapping[str, float],
    rare: Sequence[Mapping[str, float]],
) -> ResultTable:
    score = {name: scores.get(name, coverage.get(name, 0.0)) for name in real.names}
    rows = []
    for name in sorted(real.names, key=score.__getitem__):
        missing = (
            round(float(missing_cells(table.columns[name]).mean()), 4) for table in (real, synth)
        )
        rares = (round(shares[name], 4) for shares in rare)
        rows.append((name, "KS" if name in scores else "coverage", score[name], *missing, *rares))
    header = ("column", "measure", "score", "missing_real", "missing_synthetic", "rare_synthetic")
    return ResultTable(
        "columns",
        "Column by column, the least alike first",
        (*header, "rare_held_out")[: 5 + len(rare)],
        tuple(rows),
        caption="KS: KS complement of numbers (Eq 6). Coverage: fraction of a column's categories "
        "that occur. Missing: fraction of cells. Rare: fraction of cells that equal a value of "
        "fewer than 5 real rows.",
    )


def _distribution_table(x_real: Rows, x_synth: Rows, scores: Mapping[str, float]) -> ResultTable:
    """Return a table of the distributions of the least similar columns.

    Its rows are the fractions of real and of synthetic rows up to quantiles of the real ones.
    """
    rows = []
    for name in sorted(scores, key=scores.__getitem__)[:_MAX_PLOTTED]:
        real, synth = (t.columns[name].astype(np.float64) for t in (x_real, x_synth))
        real, synth = real[~np.isnan(real)], np.sort(synth[~np.isnan(synth)])
        if not len(real) or not len(synth):
            continue
        points = np.quantile(real, _FRACTIONS, method="inverted_cdf")
        ordered = np.sort(real)
        for point in np.unique(points):
            share = np.searchsorted(ordered, point, "right") / len(real)
            rows.append(
                (name, float(share), float(np.searchsorted(synth, point, "right") / len(synth)))
            )
    return ResultTable(
        "shares",
        "Distributions of the columns that are least alike",
        ("column", "share_of_real", "share_of_synthetic"),
        tuple(rows),
    )


def _correlation_table(pairs: Correlations) -> ResultTable:
    """Return a table of the correlations of the least similar columns.

    Correlations are those of the real rows if ``other_column`` precedes ``column`` in the table,
    else those of the synthetic rows.
    """
    gaps = np.nan_to_num(1.0 - pairs.similarity)
    shown = np.sort(np.argsort(-gaps.sum(axis=0), kind="stable")[:_MAX_PAIRED]).tolist()
    rows = tuple(
        (
            pairs.names[a],
            pairs.names[b],
            "real" if b < a else "synthetic",
            _round_correlation(pairs, a, b),
        )
        for b in shown
        for a in shown
    )
    title = f"Correlations of the {len(shown)} columns where they are least alike"
    return ResultTable("pairs", title, ("column", "other_column", "rows", "correlation"), rows)


def _round_correlation(pairs: Correlations, a: int, b: int) -> float | None:
    values = pairs.real if b < a else pairs.synthetic
    return None if a == b or np.isnan(values[a, b]) else round(float(values[a, b]), 2) + 0.0


def _distance_table(nearest: NearestRecords) -> ResultTable:
    rows = [
        (label, float(distance), float(share))
        for label, distances in (("real", nearest.real), ("synthetic", nearest.synthetic))
        for share, distance in zip(_FRACTIONS, np.quantile(distances, _FRACTIONS), strict=True)
    ]
    header = ("rows", "distance", "share_of_rows")
    return ResultTable("distances", "Distances to real rows", header, tuple(rows))


def _utility_table(utilities: Utility) -> ResultTable:
    rows = tuple(
        (label, score.balanced_accuracy, score.roc_auc)
        for label, score in (
            ("real on real", utilities.real_on_real),
            ("synthetic on real", utilities.synthetic_on_real),
            ("synthetic on synthetic", utilities.synthetic_on_synthetic),
        )
    )
    header = ("trained_and_tested_on", "balanced_accuracy", "ROC-AUC")
    return ResultTable("worth", "Train on synthetic rows, test on real ones", header, rows)


def _find_copied(rare: Sequence[Mapping[str, float]], n_rows: Sequence[int]) -> list[str]:
    """Return the columns with more rare values than held-out rows."""
    copied = []
    for name in rare[0] if len(rare) > 1 else ():
        shares = np.array([part[name] for part in rare])
        mean = np.average(shares, weights=n_rows)
        error = np.sqrt(mean * (1.0 - mean) * np.sum(1.0 / np.array(n_rows)))
        if shares[0] - shares[1] > _MAX_ERRORS * error:
            copied.append(name)
    return copied


def _notes(
    nearest: NearestRecords, copied: list[str], utilities: Utility | None
) -> tuple[str, ...]:
    notes = ["This report is not differentially private; keep it where the real rows are."]
    if nearest.copies > nearest.duplicates:
        notes.append(
            f"{nearest.copies:.1%} of the synthetic rows are copies of real ones, more than the "
            f"{nearest.duplicates:.1%} of the real rows that are duplicates: do not share them."
        )
    if copied:
        notes.append(
            f"The columns {join_names(copied)} repeat rare real values more often than held-out "
            "rows do: leave them out, or raise min_count."
        )
    if utilities is not None and utilities.separability_gap.roc_auc > 0.1:
        notes.append(
            "Classes are easier to separate among synthetic rows than among real ones: scores on "
            "synthetic test rows do not carry over to real ones."
        )
    return tuple(notes)
