"""Runs of boosting, discriminant analysis and nearest neighbours: one model for all parties."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from sklearn.dummy import DummyClassifier, DummyRegressor

from fedneighbors._typing import Array, Floats, Progress
from fedneighbors.comparison._candidates import (
    FAMILY,
    Trial,
    choose_estimator,
    fit_rows,
    list_estimators,
)
from fedneighbors.comparison._scores import primary_metric, score_predictions
from fedneighbors.comparison._table import PartyRows, Task
from fedneighbors.records import Figure, ResultTable, Round, RunRecord
from fedneighbors.runs._figures import (
    RunTable,
    TableAndFigure,
    tabulate_joining,
    tabulate_reliability,
    tabulate_rows,
    tabulate_traffic,
)
from fedneighbors.tabular._model_file import ModelFileMixin
from fedneighbors.tabular._ownership import set_columns

Labels = Array

_POOLED = ("boosting, pooled", "linear model, pooled", "kNN, pooled")  # the order of FAMILY


@dataclass(frozen=True)
class SharedMethod:
    """A method with one model for all parties.

    Parameters
    ----------
    name : str
        Name of the run.
    title : str
        Name in tables, as in ``compare``.
    settings : tuple of str
        Parameters to record, which held-out training rows may choose.
    note : str
        Sentence on the data that leave a party.
    """

    name: str
    title: str
    settings: tuple[str, ...]
    note: str


METHODS: Mapping[str, SharedMethod] = MappingProxyType(
    {
        method.name: method
        for method in (
            SharedMethod(
                "boosting",
                "federated boosting",
                ("learning_rate", "max_iter"),
                "Parties send counts of values, and sums of gradients for each bin of each tree "
                "node: sums over few rows reveal single rows. There is no privacy budget.",
            ),
            SharedMethod(
                "discriminants",
                "discriminant analysis",
                ("quadratic", "n_features"),
                "Parties send sums and products of columns for each class: those of a class of few "
                "rows reveal single rows. There is no privacy budget.",
            ),
            SharedMethod(
                "neighbors",
                "kNN search",
                ("n_neighbors", "weights"),
                "A row to predict goes to every party, and its user sees the distances and labels "
                "of the nearest rows. The model file has all rows and labels of all parties: do "
                "not pass it on.",
            ),
        )
    }
)
"""Methods of this module, by name."""


def run(
    table: RunTable, *, method: str, parameters: Mapping[str, Any], progress: Progress
) -> tuple[Any, RunRecord]:
    """Train over a table's parties and score held-out rows.

    With ``test_size=0.25`` the scores are those of the first split of ``compare``.

    Parameters
    ----------
    table : RunTable
        Rows of all parties, with labels or numbers.
    method : str
        Key of ``METHODS``.
    parameters : mapping
        Settings of the estimator; if empty, held-out training rows choose them as in ``compare``.
    progress : callable
        Called with the number of finished steps, their total number, and the current step.

    Returns
    -------
    estimator, RunRecord
        The estimator, fitted on the training rows, and a record with the tables ``summary``,
        ``joining`` and ``traffic``; for classes, also ``holdings`` and ``reliability``.
    """
    chosen, (rows, _) = METHODS[method], table.split
    cells, filled = (_make_trial(table, values) for values in (table.x, table.filled))
    progress(0, 4, "choosing the settings")
    estimators = list_estimators(chosen.title, filled)
    if parameters:
        estimators = [estimators[0].set_params(**parameters)]
    model = choose_estimator(estimators, filled)
    progress(1, 4, "training over all parties")
    model.fit(filled.train.x, table.y[rows], parties=table.parties[rows])
    values, predicted = _predict(model, filled.test.x, np.unique(table.y), table.task)
    rounds = _list_rounds(model)
    progress(2, 4, "comparing with pooled rows")
    predictions = {chosen.title: values} | _predict_with_baselines(cells)
    progress(3, 4, "training every party alone")
    joining = tabulate_joining(table, method="joined", predict=lambda _: predicted)
    others = _tabulate_others(table, rounds, predictions)
    if isinstance(model, ModelFileMixin):
        model.name_features(table.feature_names)
    else:
        set_columns(model, table.x.shape[1], table.feature_names)
    summary, accuracy = _tabulate_scores(predictions, cells)
    progress(4, 4, "done")
    settings = {name: getattr(model, name) for name in chosen.settings}
    return model, table.make_record(
        f"{method}.run",
        {**_as_scalars(settings), "seed": table.seed},
        rounds=rounds,
        tables=(summary, joining, *(one for one, _ in others)),
        figures=(accuracy, *(figure for _, figure in others)),
        notes=(*_note_choice(estimators, settings), chosen.note),
    )


def _make_trial(table: RunTable, x: Floats) -> Trial:
    """Return training and held-out rows, with codes as in ``compare``."""
    classes, codes = np.unique(table.y, return_inverse=True)
    is_regression = table.task == "regression"
    owners = np.unique(table.parties, return_inverse=True)[1]
    every = PartyRows(x, table.y if is_regression else codes, owners)
    train, test = map(every.select, table.split)
    return Trial(train, test, table.task, 0 if is_regression else len(classes), table.seed)


def _tabulate_others(
    table: RunTable, rounds: tuple[Round, ...], predictions: Mapping[str, Floats]
) -> list[TableAndFigure]:
    """Return traffic and, for classes, rows and reliability."""
    (rows, held_out), shown = table.split, list(predictions)[:2]
    traffic = tabulate_traffic(rounds)
    if table.task == "regression":
        return [traffic]
    probabilities = {title: predictions[title] for title in shown}
    reliability = tabulate_reliability(probabilities, table.y[held_out], np.unique(table.y))
    return [tabulate_rows(table.y[rows], table.parties[rows]), traffic, reliability]


def _predict(model: Any, x: Floats, classes: Labels, task: Task) -> tuple[Floats, Labels]:
    """Return probabilities of all classes, or numbers, and the predicted targets."""
    if task == "regression":
        numbers = model.predict(x)
        return numbers, numbers
    probabilities = model.predict_proba(x)
    padded = np.zeros((len(x), len(classes)))
    padded[:, np.searchsorted(classes, model.classes_)] = probabilities
    return padded, model.classes_[probabilities.argmax(axis=1)]


def _list_rounds(model: Any) -> tuple[Round, ...]:
    """Return the exchanges of the training, and of the last search."""
    rounds = list(model.run_record_.rounds)
    search = getattr(model, "search_", None)
    for cost in () if search is None else search._costs:
        rounds += cost.rounds
    return tuple(replace(entry, index=index) for index, entry in enumerate(rounds))


def _predict_with_baselines(trial: Trial) -> dict[str, Floats]:
    """Return predictions by models of the pooled rows, and by a constant."""
    predictions = {
        title: fit_rows(make, trial).values
        for title, make in zip(_POOLED, FAMILY[trial.task], strict=True)
    }
    if trial.task == "regression":
        return predictions | {"mean": fit_rows(lambda _: DummyRegressor(), trial).values}
    prior = fit_rows(lambda _: DummyClassifier(strategy="prior"), trial)
    return predictions | {"most frequent class": prior.values}


def _tabulate_scores(predictions: Mapping[str, Floats], trial: Trial) -> tuple[ResultTable, Figure]:
    truth = trial.test.y
    scores = {
        title: score_predictions(truth, values, trial.task) for title, values in predictions.items()
    }
    names = tuple(next(iter(scores.values())))
    metric = primary_metric(trial.task, trial.n_classes)
    table = ResultTable(
        name="summary",
        title="On held-out rows",
        columns=("method", *names),
        rows=tuple((title, *values.values()) for title, values in scores.items()),
        caption=f"{len(truth):,} rows are held out. Pooled: models of scikit-learn, trained on "
        "the rows of all parties.",
    )
    figure = Figure(
        name="accuracy",
        kind="bar",
        title=f"{metric[:1].upper()}{metric[1:]} on held-out rows",
        table="summary",
        x="method",
        y=metric,
        caption="Pooled methods need the rows of all parties in one place, the first one does not.",
    )
    return table, figure


def _note_choice(estimators: list[Any], settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a sentence about the settings that held-out rows chose."""
    if len(estimators) == 1:
        return ()
    text = ", ".join(f"{name}={value}" for name, value in settings.items() if value is not None)
    return (
        f"The settings ({text}) are the best of {len(estimators)} on held-out training rows. The "
        "bytes of the other trainings are not counted.",
    )


def _as_scalars(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings for a record, which has no None."""
    return {name: "none" if value is None else value for name, value in settings.items()}
