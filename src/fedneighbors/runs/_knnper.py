"""Run of kNN-Per on a user's table, with held-out scores for each client."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedneighbors import baselines
from fedneighbors._typing import Array, Booleans, Floats, Progress
from fedneighbors.comparison._candidates import FAMILY, Trial, fit_rows
from fedneighbors.comparison._table import PartyRows
from fedneighbors.methods.knnper.algorithm import local_prior, mix
from fedneighbors.methods.knnper.estimator import KNNPerClassifier
from fedneighbors.metrics import average_accuracy, bottom_decile
from fedneighbors.partition import RowRoles
from fedneighbors.records import Figure, ResultTable, RunRecord
from fedneighbors.runs._figures import (
    RunTable,
    tabulate_joining,
    tabulate_reliability,
    tabulate_rows,
    tabulate_traffic,
)

Labels = Array

OURS = "kNN-Per"
SHARED = "shared model"
_NOTE = (
    "Every client holds out a part of its rows, on which all methods are scored. The table of "
    "bytes has only the first of the training rounds."
)
_NOT_PRIVATE = "Nothing here is differentially private."
_PRIVATE_TRAINING = (
    "The training of the network stayed within the privacy budget. This report is not private, nor "
    "are the memories in the model: scores and numbers of rows are exact."
)

_ACCURACY = Figure(
    name="accuracy",
    kind="bar",
    title="Accuracy on held-out rows, by method",
    table="summary",
    x="method",
    y="accuracy",
    caption="Over the held-out rows of all clients. In kNN-Per, all clients share one model, and "
    "each has its own memory.",
)


def run(
    table: RunTable,
    *,
    parameters: Mapping[str, Any],
    with_baselines: bool,
    progress: Progress,
    row_shape: tuple[int, ...] = (),
) -> tuple[KNNPerClassifier, RunRecord, RowRoles]:
    """Train over a table's clients and score each one's held-out rows.

    Parameters
    ----------
    table : RunTable
        Rows of all clients. Its seed is also that of training.
    parameters : mapping
        Arguments of :class:`KNNPerClassifier`.
    with_baselines : bool
        Also train each method of ``baselines.TITLES``, with the best of at most four settings.
    progress : callable
        Called with the number of finished steps, their total number, and the current step.
    row_shape : tuple of int
        Shape of a row for a network of images; empty for tables.

    Returns
    -------
    KNNPerClassifier
        The classifier, fitted on the training rows.
    RunRecord
        Tables ``summary``, ``joining``, ``clients``, ``holdings``, ``traffic``, ``reliability``
        and, for a pool, ``pool``.
    RowRoles
        Training and held-out rows.
    """
    x, y, parties, (_, held_out) = table.filled, table.y, table.parties, table.split
    test = np.zeros(len(y), bool)
    test[held_out] = True
    roles = RowRoles(~test, np.zeros(len(y), bool), test)
    n_steps = 3 + len(baselines.TITLES) * with_baselines
    progress(0, n_steps, "training over all clients")
    private = parameters.get("privacy") is not None
    classes = None if private else np.unique(y).tolist()  # a budget declares them
    model = KNNPerClassifier(random_state=table.seed, classes=classes, **parameters)
    x = x.reshape(-1, *row_shape) if row_shape else x
    model.fit(x[~test], y[~test], parties=parties[~test])
    progress(1, n_steps, "predicting for every client")
    proba = {
        OURS: model.predict_proba(x[test], parties[test]),
        **_predict_with_parts(model, x, parties, test),
    }
    progress(2, n_steps, "training every client alone")
    proba["local logistic regression"] = _predict_alone(table.x, y, parties, test, model.classes_)
    if with_baselines:
        proba |= _predict_with_baselines(
            model, x, y, parties, test, lambda n, step: progress(n, n_steps, step)
        )
    joining = tabulate_joining(
        table,
        method=OURS,
        predict=lambda party: model.predict(x[test], np.full(len(held_out), party)),
    )
    tables, figures = _tabulate_results(model, y, parties, test, proba, joining)
    if not row_shape:
        model.name_features(table.feature_names)
    progress(n_steps, n_steps, "done")
    record = table.make_record(
        "knnper.run",
        model.run_record_.parameters,
        rounds=model.run_record_.rounds,
        tables=tables,
        figures=figures,
        notes=(_NOTE, _PRIVATE_TRAINING if private else _NOT_PRIVATE),
        privacy=model.run_record_.privacy,
    )
    return model, record, roles


def _predict_with_parts(
    model: KNNPerClassifier, x: Floats, parties: Labels, test: Booleans
) -> dict[str, Floats]:
    """Return probabilities by variants of the mixture.

    These are the shared model alone, the same corrected by each client's class shares, the memory
    alone, and both with equal weights.
    """
    inputs, scores = model._features_and_scores(x[test])
    shared, memory, corrected = np.exp(scores), np.exp(scores), np.exp(scores)
    overall = model.overall_
    for name, state in model.clients_.items():
        rows = parties[test] == name
        if rows.any():
            memory[rows] = state.predict_from_memory(inputs[rows], shared[rows])
            prior = local_prior(state.memory.labels, overall)
            corrected[rows] = shared[rows] * prior / overall
    corrected /= corrected.sum(axis=1, keepdims=True)
    return {
        SHARED: shared,
        "shared model, corrected by local class shares": corrected,
        "memory alone": memory,
        "memory and shared model with equal weights": mix(memory, shared, 0.5),
    }


def _predict_alone(
    x: Floats, y: Labels, parties: Labels, test: Booleans, classes: Labels
) -> Floats:
    """Return probabilities by a model of each client's own rows."""
    proba, codes = np.zeros((int(test.sum()), len(classes))), np.searchsorted(classes, y)
    table = PartyRows(x, codes, np.zeros(len(y), np.int64))
    for name in np.unique(parties):
        is_own = parties == name
        train, own = table.select(is_own & ~test), table.select(is_own & test)
        if len(own):
            trial = Trial(train, own, "classification", len(classes), 0)
            proba[is_own[test]] = fit_rows(FAMILY["classification"][1], trial).values
    return proba


def _predict_with_baselines(
    model: KNNPerClassifier,
    x: Floats,
    y: Labels,
    parties: Labels,
    test: Booleans,
    progress: Callable[[int, str], None],
) -> dict[str, Floats]:
    """Return probabilities by baselines that are tuned on training rows."""
    settings = model.get_params(deep=False)
    table = x[~test], y[~test], parties[~test]
    proba = {}
    for index, (title, name) in enumerate(baselines.TITLES.items()):
        progress(3 + index, f"training {title}")
        kind = getattr(baselines, name)
        baseline = kind(
            **{key: settings[key] for key in kind().get_params(deep=False) if key in settings}
        )
        if "start" in baseline.get_params(deep=False):
            baseline.set_params(start=model)
        grid: Any = ({},) if title == "FedAvg" else None
        estimator = baselines.tune(baseline, *table, grid=grid).estimator
        proba[title] = estimator.predict_proba(x[test], parties=parties[test])
    return proba


def _tabulate_results(
    model: KNNPerClassifier,
    y: Labels,
    parties: Labels,
    test: Booleans,
    proba: Mapping[str, Floats],
    joining: ResultTable,
) -> tuple[tuple[ResultTable, ...], tuple[Figure, ...]]:
    """Return the tables and figures of the record."""
    correct = {
        name: _count_correct(p, y, parties, test, model.classes_) for name, p in proba.items()
    }
    others = [
        tabulate_rows(y[~test], parties[~test]),
        tabulate_traffic(_select_first_rounds(model)),
        tabulate_reliability({OURS: proba[OURS]}, y[test], model.classes_),
    ]
    tables = (
        _tabulate_scores(correct),
        joining,
        _tabulate_clients(model, correct),
        *model.run_record_.tables,
        *(table for table, _ in others),
    )
    return tables, (_ACCURACY, *(figure for _, figure in others))


def _count_correct(
    proba: Floats, y: Labels, parties: Labels, test: Booleans, classes: Labels
) -> dict[str, tuple[int, int]]:
    """Return each client's numbers of correct and of held-out rows."""
    correct, owner = classes[proba.argmax(axis=1)] == y[test], parties[test]
    return {
        str(name): (int(correct[owner == name].sum()), int((owner == name).sum()))
        for name in np.unique(owner)
    }


def _tabulate_scores(correct: Mapping[str, Mapping[str, tuple[int, int]]]) -> ResultTable:
    names = list(next(iter(correct.values())))
    return ResultTable(
        name="summary",
        title="Accuracy on the clients' held-out rows",
        columns=("method", "accuracy", "bottom decile"),
        rows=tuple(
            (method, average_accuracy(counts, names), bottom_decile(counts, names))
            for method, counts in correct.items()
        ),
        caption="Accuracy: over the held-out rows of all clients. Bottom decile: highest accuracy "
        "among the lowest tenth of the clients (at least one client).",
    )


def _tabulate_clients(
    model: KNNPerClassifier, correct: Mapping[str, Mapping[str, tuple[int, int]]]
) -> ResultTable:
    return ResultTable(
        name="clients",
        title="Clients",
        columns=("client", "rows in memory", "lambda", "held-out rows", "accuracy", SHARED),
        rows=tuple(
            (
                name,
                len(state.memory),
                state.weight if state.pool is None else None,
                correct[OURS].get(name, (0, 0))[1],
                _compute_accuracy(correct[OURS].get(name)),
                _compute_accuracy(correct[SHARED].get(name)),
            )
            for name, state in model.clients_.items()
        ),
        caption="lambda: weight of the memory; the shared model has weight 1 - lambda (Eq 7). "
        "Empty for a pool. accuracy: of kNN-Per; shared model: accuracy of this model alone.",
    )


def _compute_accuracy(counts: tuple[int, int] | None) -> float | None:
    return None if counts is None or not counts[1] else counts[0] / counts[1]


def _select_first_rounds(model: KNNPerClassifier) -> tuple[Any, ...]:
    """Return the first round of each type of request."""
    first: dict[str, Any] = {}
    for entry in model.run_record_.rounds:
        first.setdefault(entry.request, entry)
    return tuple(first.values())
