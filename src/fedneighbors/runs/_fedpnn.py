"""Run of FedPNN on a user's table, with held-out scores."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.metrics import roc_auc_score

from fedneighbors._typing import Array, Floats, Progress
from fedneighbors.baselines._tabular import BASELINES
from fedneighbors.comparison._candidates import reweight
from fedneighbors.methods.fedpnn._model import Exposure
from fedneighbors.methods.fedpnn.estimator import FedPNNClassifier
from fedneighbors.metrics import accuracy, balanced_accuracy
from fedneighbors.records import Figure, ResultTable, RunRecord
from fedneighbors.runs._figures import (
    NOT_PRIVATE,
    RunTable,
    find_most_frequent,
    tabulate_joining,
    tabulate_reliability,
    tabulate_rows,
    tabulate_traffic,
)

Labels = Array

_BASELINES = ("averaged logistic regression", "central kNN", "central boosting")
_N_STEPS = 2 + len(_BASELINES)
OURS = "FedPNN, federated"

_ACCURACY = Figure(
    name="accuracy",
    kind="bar",
    title="Balanced accuracy on held-out rows",
    table="summary",
    x="method",
    y="balanced accuracy",
    caption="Central methods use the pooled rows, the others do not.",
)


def run(
    table: RunTable, *, parameters: Mapping[str, Any], progress: Progress
) -> tuple[FedPNNClassifier, RunRecord]:
    """Train over a table's parties and score held-out rows.

    Parameters
    ----------
    table : RunTable
        Rows of all parties.
    parameters : mapping
        Arguments of :class:`FedPNNClassifier`.
    progress : callable
        Called with the number of finished steps, their total number, and the current step.

    Returns
    -------
    FedPNNClassifier, RunRecord
        The classifier, fitted on the training rows, and a record with the tables ``summary``,
        ``joining``, ``exposure``, ``holdings``, ``traffic`` and ``reliability``, and ``columns`` if
        columns were selected. Under privacy there is no ``exposure``, because the budget bounds it.
    """
    x, y, parties, (rows, held_out) = table.x, table.y, table.parties, table.split
    progress(0, _N_STEPS, "training over all parties")
    settings = dict(parameters)
    if settings.get("privacy") is None:
        settings.setdefault("classes", np.unique(y[rows]).tolist())  # as for the baselines
    model = FedPNNClassifier(**settings)
    model.fit(x[rows], y[rows], parties=parties[rows])
    probabilities = {OURS: model.predict_proba(x[held_out])}
    probabilities |= _predict_with_baselines(model, table, progress)
    progress(_N_STEPS - 1, _N_STEPS, "training every party alone")
    counts = np.array([np.sum(y[rows] == label) for label in model.classes_])
    predicted = model.classes_[reweight(probabilities[OURS], counts).argmax(axis=1)]
    joining = tabulate_joining(table, method="FedPNN", predict=lambda _: predicted)
    joining = replace(
        joining,
        caption=joining.caption + " FedPNN treats classes as equally frequent: here its "
        "probabilities are multiplied by the frequencies of the classes.",
    )
    tables_and_figures = [
        tabulate_rows(y[rows], parties[rows]),
        tabulate_traffic(model.run_record_.rounds),
        tabulate_reliability(probabilities, y[held_out], model.classes_),
    ]
    model.name_features(table.feature_names)
    progress(_N_STEPS, _N_STEPS, "done")
    private = model.privacy is not None
    return model, table.make_record(
        "fedpnn.run",
        model.run_record_.parameters,
        rounds=model.run_record_.rounds,
        tables=(
            _tabulate_scores(probabilities, y[held_out], model.classes_, y),
            joining,
            *([] if private else [_tabulate_exposures(model.exposures_)]),
            *_tabulate_columns(model),
            *(table for table, _ in tables_and_figures),
        ),
        figures=(_ACCURACY, *(figure for _, figure in tables_and_figures)),
        notes=(NOT_PRIVATE,) if private else (),
        privacy=model.run_record_.privacy,
    )


def _predict_with_baselines(
    model: FedPNNClassifier, table: RunTable, progress: Progress
) -> dict[str, Floats]:
    """Return probabilities of baselines, including the model without privacy."""
    x, y, parties, (rows, held_out) = table.x, table.y, table.parties, table.split
    probabilities = {}
    if model.privacy is not None:
        classes = np.unique(y[rows]).tolist()  # as declared for the private model
        exact = clone(model).set_params(privacy=None, bounds=None, classes=classes)
        exact.fit(x[rows], y[rows], parties=parties[rows])
        probabilities["FedPNN, without privacy"] = exact.predict_proba(x[held_out])
    for number, name in enumerate(_BASELINES, start=1):
        progress(number, _N_STEPS, f"comparing with {name}")
        baseline = BASELINES[name]().fit(x[rows], y[rows], parties=parties[rows])
        probabilities[name] = baseline.predict_proba(x[held_out])
    return probabilities


def _tabulate_scores(
    probabilities: Mapping[str, Floats], truth: Labels, classes: Labels, y: Labels
) -> ResultTable:
    rows: list[tuple[Any, ...]] = []
    for method, p in probabilities.items():
        predicted = classes[p.argmax(axis=1)]
        rows.append(
            (
                method,
                accuracy(truth, predicted),
                balanced_accuracy(truth, predicted),
                _compute_roc_auc(truth, p, classes),
            )
        )
    constant = np.full(len(truth), find_most_frequent(y))
    rows.append(("most frequent class", accuracy(truth, constant), 1 / len(np.unique(y)), 0.5))
    return ResultTable(
        name="summary",
        title="On held-out rows",
        columns=("method", "accuracy", "balanced accuracy", "ROC-AUC"),
        rows=tuple(rows),
        caption=_write_caption(truth),
    )


def _write_caption(truth: Labels) -> str:
    """Return the caption of the summary, with the effect of one row."""
    counts = np.unique(truth, return_counts=True)[1]
    rarest = int(counts.min())
    note = " ROC-AUC: mean over the classes, each against the rest." if len(counts) > 2 else ""
    return (
        f"{len(truth):,} rows are held out, {rarest:,} of them of the rarest class: one of these "
        f"changes balanced accuracy by {1 / (len(counts) * rarest):.2g}.{note}"
    )


def _compute_roc_auc(truth: Labels, probabilities: Floats, classes: Labels) -> float | None:
    """Return the ROC-AUC, or None if a class has no held-out row."""
    if len(np.unique(truth)) < len(classes):
        return None
    if len(classes) == 2:
        return float(roc_auc_score(truth == classes[1], probabilities[:, 1]))
    return float(roc_auc_score(truth, probabilities, multi_class="ovr", labels=classes))


def _tabulate_columns(model: FedPNNClassifier) -> tuple[ResultTable, ...]:
    """Return a table of selected columns, best first; nothing if all are."""
    if model.support_.all():
        return ()
    names, t = model.feature_names_in_[model.support_], model.t_statistics_
    order = np.argsort(np.where(np.isnan(t), 1.0, -t), kind="stable")
    return (
        ResultTable(
            name="columns",
            title="Selected columns",
            columns=("column", "t"),
            rows=tuple((str(names[j]), float(t[j]) if np.isfinite(t[j]) else None) for j in order),
            caption=f"{len(t):,} of {len(model.support_):,} columns, by the largest |t| of a "
            "class against the rest (Welch). Columns without a number: at the top, classes differ "
            "without variance within them; at the end, the column is constant.",
        ),
    )


def _tabulate_exposures(exposures: Mapping[str, Exposure]) -> ResultTable:
    return ResultTable(
        name="exposure",
        title="Exposure of single rows by centers",
        columns=(
            "party", "rows", "withheld", "clusters", "of one row", "of too few",
            "centers sent", "fewest", "risk",
        ),
        rows=tuple(
            (
                name, e.n_rows, e.n_withheld, e.n_clusters, e.n_single, e.n_small, e.n_centers,
                e.min_center_size, e.largest_risk,
            )
            for name, e in exposures.items()
        ),
        caption="Withheld: rows of classes that are too rare at a party. Clusters of one row and "
        "others of too few rows are merged into the nearest of their class before centers are "
        "sent. Fewest: number of rows of the smallest sent center; risk: 1 / fewest.",
    )  # fmt: skip
