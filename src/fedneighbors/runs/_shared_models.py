"""Runs of boosting, discriminant analysis and nearest neighbours: one model for all parties."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.dummy import DummyClassifier, DummyRegressor

from fedneighbors._typing import Floats, Integers, Progress
from fedneighbors.comparison._candidates import (
    FAMILY,
    Trial,
    choose_estimator,
    fit_rows,
    list_estimators,
)
from fedneighbors.comparison._scores import primary_metric, score_predictions
from fedneighbors.comparison._table import PartyRows, Task, convert_targets
from fedneighbors.records import Figure, ResultTable, Round, RunRecord, environment
from fedneighbors.runs._figures import (
    fill_cells,
    split_rows_by_party,
    tabulate_joining,
    tabulate_reliability,
    tabulate_rows,
    tabulate_traffic,
)
from fedneighbors.tabular._model_file import ModelFileMixin
from fedneighbors.tabular._ownership import set_columns

Labels = npt.NDArray[Any]

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
    x: Floats,
    y: Labels,
    parties: Labels,
    *,
    method: str,
    feature_names: tuple[str, ...],
    test_size: float,
    seed: int,
    parameters: Mapping[str, Any],
    fills: Floats | None = None,
    task: Task = "classification",
    progress: Progress,
) -> tuple[Any, RunRecord]:
    """Train over a table's parties and score held-out rows.

    With ``test_size=0.25`` the scores are those of the first split of ``compare``.

    Parameters
    ----------
    x : float64 array of shape (n_rows, n_features)
        Missing cells are NaN.
    y, parties : arrays of shape (n_rows,)
        Labels, or numbers as text or float64; and owners.
    method : str
        Key of ``METHODS``.
    feature_names : tuple of str
        Column names to store in the model.
    test_size : float
        Fraction of the rows to hold out, in (0, 1).
    seed : int
        Seed of the held-out rows.
    parameters : mapping
        Settings of the estimator; if empty, held-out training rows choose them as in ``compare``.
    fills : float64 array of shape (n_features,), optional
        Values for missing cells, if the method needs complete rows. Baselines see the cells.
    task : {"classification", "regression"}
        Kind of the targets.
    progress : callable
        Called with the number of finished steps, their total number, and the current step.

    Returns
    -------
    estimator, RunRecord
        The estimator, fitted on the training rows, and a record with the tables ``summary``,
        ``joining`` and ``traffic``; for classes, also ``holdings`` and ``reliability``.
    """
    started, clock = datetime.now(UTC), time.perf_counter()
    chosen = METHODS[method]
    y = convert_targets(y) if task == "regression" else y
    rows, held_out = split_rows_by_party(y, parties, test_size, seed, task)
    cells, filled = (
        _make_trial(values, y, parties, rows, held_out, task=task, seed=seed)
        for values in (x, fill_cells(x, fills))
    )
    progress(0, 4, "choosing the settings")
    estimators = list_estimators(chosen.title, task, len(rows))
    if parameters:
        estimators = [estimators[0].set_params(**parameters)]
    model = choose_estimator(estimators, filled)
    progress(1, 4, "training over all parties")
    model.fit(filled.train.x, y[rows], parties=parties[rows])
    values, predicted = _predict(model, filled.test.x, np.unique(y), task)
    rounds = _list_rounds(model)
    progress(2, 4, "comparing with pooled rows")
    predictions = {chosen.title: values} | _predict_with_baselines(cells)
    progress(3, 4, "training every party alone")
    joining = tabulate_joining(
        (x, y, parties), rows, held_out,
        method="joined", predict=lambda _: predicted, task=task,
    )  # fmt: skip
    tables = [tabulate_traffic(rounds)]
    if task == "classification":
        classes, shown = np.unique(y), (chosen.title, _POOLED[0])
        probabilities = {title: predictions[title] for title in shown}
        reliability = tabulate_reliability(probabilities, y[held_out], classes)
        tables = [tabulate_rows(y[rows], parties[rows]), *tables, reliability]
    if isinstance(model, ModelFileMixin):
        model.name_features(feature_names)
    else:
        set_columns(model, x.shape[1], feature_names)
    summary, accuracy = _tabulate_scores(predictions, cells)
    progress(4, 4, "done")
    settings = {name: getattr(model, name) for name in chosen.settings}
    return model, RunRecord(
        name=f"{method}.run",
        parameters={**_as_scalars(settings), "seed": seed, "test_size": test_size},
        rounds=rounds,
        tables=(summary, joining, *(table for table, _ in tables)),
        figures=(accuracy, *(figure for _, figure in tables)),
        notes=(*_note_choice(estimators, settings), chosen.note),
        started=started.isoformat(timespec="seconds"),
        seconds=time.perf_counter() - clock,
        environment=environment(),
    )


def _make_trial(
    x: Floats,
    y: Labels,
    parties: Labels,
    rows: Integers,
    held_out: Integers,
    *,
    task: Task,
    seed: int,
) -> Trial:
    """Return training and held-out rows, with codes as in ``compare``."""
    classes, codes = np.unique(y, return_inverse=True)
    owners = np.unique(parties, return_inverse=True)[1]
    table = PartyRows(x, y if task == "regression" else codes, owners)
    n_classes = 0 if task == "regression" else len(classes)
    return Trial(table.select(rows), table.select(held_out), task, n_classes, seed)


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
