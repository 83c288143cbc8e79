"""Run of FedPNN on a user's table, with held-out scores."""

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import clone
from sklearn.metrics import roc_auc_score

from fedneighbors._typing import Floats, Progress
from fedneighbors.baselines._tabular import BASELINES
from fedneighbors.methods.fedpnn._model import Exposure
from fedneighbors.methods.fedpnn.estimator import FedPNNClassifier
from fedneighbors.metrics import accuracy, balanced_accuracy
from fedneighbors.records import Figure, ResultTable, RunRecord, environment
from fedneighbors.runs._figures import (
    held_out_rows,
    holdings,
    most_frequent,
    reliability_curves,
    traffic,
)

Labels = npt.NDArray[Any]

_COMPARED = ("averaged logistic regression", "central kNN", "central boosting")
OURS = "FedPNN, federated"
_NOT_PRIVATE = (
    "The model is within its budget. This report is not private: scores, numbers of rows and "
    "the other methods are exact."
)

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
    x: Floats,
    y: Labels,
    parties: Labels,
    *,
    feature_names: tuple[str, ...],
    test_size: float = 0.25,
    seed: int = 0,
    parameters: Mapping[str, Any] | None = None,
    progress: Progress,
) -> tuple[FedPNNClassifier, RunRecord]:
    """Train over a table's parties, score held-out rows, save the model.

    Parameters
    ----------
    x : float64 array of shape (n_rows, n_features)
        Missing cells are NaN.
    y, parties : arrays of shape (n_rows,)
        Labels and owners.
    feature_names : tuple of str
        Column names, kept in the model.
    test_size : float
        Share of rows held out, in (0, 1).
    seed : int
        Seed of the held-out rows.
    parameters : mapping, optional
        Arguments of :class:`FedPNNClassifier`.
    progress : callable
        Function called with the current step.

    Returns
    -------
    FedPNNClassifier, RunRecord
        Trained on the training rows; tables ``summary``, ``exposure``, ``holdings``, ``traffic``
        and ``reliability``, and ``columns`` if columns were selected. Under privacy there is no
        ``exposure``: the budget bounds it.
    """
    started, clock = datetime.now(UTC), time.perf_counter()
    rows, held_out = held_out_rows(y, test_size, seed)
    progress(0, 1 + len(_COMPARED), "training over all parties")
    given = dict(parameters or {})
    if given.get("privacy") is None:
        given.setdefault("classes", np.unique(y[rows]).tolist())  # as for the baselines
    model = FedPNNClassifier(**given)
    model.fit(x[rows], y[rows], parties=parties[rows])
    shares = {OURS: model.predict_proba(x[held_out])}
    shares |= _baseline_shares(model, (x, y, parties), rows, held_out, progress)
    chapters = [
        holdings(y[rows], parties[rows]),
        traffic(model.run_record_.rounds),
        reliability_curves(shares, y[held_out], model.classes_),
    ]
    model.name_features(feature_names)
    progress(1 + len(_COMPARED), 1 + len(_COMPARED), "done")
    private = model.privacy is not None
    return model, RunRecord(
        name="fedpnn.run",
        parameters={**model.run_record_.parameters, "test_size": test_size},
        rounds=model.run_record_.rounds,
        tables=(
            _summary(shares, y[held_out], model.classes_, y),
            *([] if private else [_exposures(model.exposures_)]),
            *_columns(model),
            *(table for table, _ in chapters),
        ),
        figures=(_ACCURACY, *(figure for _, figure in chapters)),
        notes=(_NOT_PRIVATE,) if private else (),
        started=started.isoformat(timespec="seconds"),
        seconds=time.perf_counter() - clock,
        environment=environment(),
        privacy=model.run_record_.privacy,
    )


def _baseline_shares(
    model: FedPNNClassifier,
    table: tuple[Floats, Labels, Labels],
    rows: Labels,
    held_out: Labels,
    progress: Progress,
) -> dict[str, Floats]:
    """Return the baselines' shares for held-out rows, with the model without privacy."""
    x, y, parties = table
    shares = {}
    if model.privacy is not None:
        known = np.unique(y[rows]).tolist()  # as declared for the private model
        exact = clone(model).set_params(privacy=None, bounds=None, classes=known)
        exact.fit(x[rows], y[rows], parties=parties[rows])
        shares["FedPNN, without privacy"] = exact.predict_proba(x[held_out])
    for number, name in enumerate(_COMPARED, start=1):
        progress(number, 1 + len(_COMPARED), f"comparing with {name}")
        baseline = BASELINES[name]().fit(x[rows], y[rows], parties=parties[rows])
        shares[name] = baseline.predict_proba(x[held_out])
    return shares


def _summary(
    shares: Mapping[str, Floats], truth: Labels, classes: Labels, y: Labels
) -> ResultTable:
    rows: list[tuple[Any, ...]] = []
    for method, table in shares.items():
        guess = classes[table.argmax(axis=1)]
        rows.append(
            (
                method,
                accuracy(truth, guess),
                balanced_accuracy(truth, guess),
                _roc_auc(truth, table, classes),
            )
        )
    usual = np.full(len(truth), most_frequent(y))
    rows.append(("most frequent class", accuracy(truth, usual), 1 / len(np.unique(y)), 0.5))
    return ResultTable(
        name="summary",
        title="On held-out rows",
        columns=("method", "accuracy", "balanced accuracy", "ROC-AUC"),
        rows=tuple(rows),
        caption=_reading(truth),
    )


def _reading(truth: Labels) -> str:
    """Describe the significance of a summary's score differences."""
    counts = np.unique(truth, return_counts=True)[1]
    rarest = int(counts.min())
    several = " ROC-AUC: mean over the classes, each against the rest." if len(counts) > 2 else ""
    return (
        f"{len(truth):,} rows are held out, {rarest:,} of them of the rarest class: one of these "
        f"changes balanced accuracy by {1 / (len(counts) * rarest):.2g}.{several}"
    )


def _roc_auc(truth: Labels, table: Floats, classes: Labels) -> float | None:
    """Return the ROC-AUC, or None if held-out rows lack a class."""
    if len(np.unique(truth)) < len(classes):
        return None
    if len(classes) == 2:
        return float(roc_auc_score(truth == classes[1], table[:, 1]))
    return float(roc_auc_score(truth, table, multi_class="ovr", labels=classes))


def _columns(model: FedPNNClassifier) -> tuple[ResultTable, ...]:
    """Return the selected columns, best first; empty if all."""
    if model.support_.all():
        return ()
    names, found = model.feature_names_in_[model.support_], model.t_statistics_
    order = np.argsort(np.where(np.isnan(found), 1.0, -found), kind="stable")
    return (
        ResultTable(
            name="columns",
            title="Selected columns",
            columns=("column", "t"),
            rows=tuple(
                (str(names[j]), float(found[j]) if np.isfinite(found[j]) else None) for j in order
            ),
            caption=f"{len(found):,} of {len(model.support_):,} columns, by the largest |t| of a "
            "class against the rest (Welch). Columns without a number: at the top, classes differ "
            "without variance within them; at the end, the column is constant.",
        ),
    )


def _exposures(exposures: Mapping[str, Exposure]) -> ResultTable:
    return ResultTable(
        name="exposure",
        title="Exposure of single records by centers",
        columns=(
            "party", "records", "withheld", "clusters", "of one record", "of too few",
            "centers sent", "fewest", "risk",
        ),
        rows=tuple(
            (
                name, e.n_records, e.n_withheld, e.n_clusters, e.n_single, e.n_small, e.n_centers,
                e.fewest, e.largest_risk,
            )
            for name, e in exposures.items()
        ),
        caption="Withheld: records of classes that are too rare at a party. Clusters of one record "
        "and others of too few are merged into the nearest of their class before centers are sent. "
        "Fewest: records of the smallest sent center; risk: 1 / fewest.",
    )  # fmt: skip
