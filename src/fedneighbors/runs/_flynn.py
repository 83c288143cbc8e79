"""Runs of FlyNN: the demo and a run on a user's table."""

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fedneighbors._typing import Array, Floats, Progress
from fedneighbors.datasets._catalog import load
from fedneighbors.methods.flynn._selection import FlyNNSearchCV
from fedneighbors.methods.flynn.estimator import FlyNNClassifier
from fedneighbors.metrics import accuracy, agreement, balanced_accuracy, brier_score
from fedneighbors.partition import dirichlet
from fedneighbors.records import Figure, ResultTable, RunRecord, encode_pixels, environment
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


def run_demo(*, n_parties: int, alpha: float, seed: int, progress: Progress) -> RunRecord:
    """Train on scikit-learn's digits, split over parties with label skew, and compare.

    Parameters
    ----------
    n_parties : int
        Number of parties.
    alpha : float
        Concentration of the Dirichlet label skew; lower is more skewed.
    seed : int
        Seed of split, skew and hash.
    progress : callable
        Called with the number of finished steps, their total number, and the current step.

    Returns
    -------
    RunRecord
        With the tables ``summary``, ``holdings``, ``alone``, ``traffic``, ``reliability`` and
        ``images``.
    """
    started, clock = datetime.now(UTC), time.perf_counter()
    digits = load("digits")
    progress(0, 5, "compiling the kernels, the first time only")
    FlyNNClassifier().fit(digits.x, digits.y).predict(digits.x[:1])
    x, x_test, y, y_test = train_test_split(
        digits.x, digits.y, test_size=0.25, stratify=digits.y, random_state=seed
    )
    parties = dirichlet(y, n_parties, alpha=alpha, min_rows=10, seed=seed)
    progress(1, 5, "training over all parties")
    federated = FlyNNClassifier(random_state=seed, n_jobs=-1).fit(x, y, parties=parties)
    progress(2, 5, "training on the pooled table")
    pooled = clone(federated).fit(x, y)
    progress(3, 5, "training each party alone")
    alone = _score_parties_alone(federated, x, y, parties, x_test, y_test)
    progress(4, 5, "comparing with nearest neighbours on pooled data")
    baselines = {
        "kNN, pooled (k = 5)": _make_knn(5).fit(x, y),
        "1NN, pooled": _make_knn(1).fit(x, y),
    }
    summary = _tabulate_demo(federated, pooled, alone, baselines, x_test, y_test)
    probabilities = {
        "FlyNN, federated": federated.predict_proba(x_test),
        "kNN, pooled": baselines["kNN, pooled (k = 5)"].predict_proba(x_test),
    }
    tables_and_figures = [
        tabulate_rows(y, parties),
        _tabulate_alone(alone),
        tabulate_traffic(federated.run_record_.rounds),
        tabulate_reliability(probabilities, y_test, federated.classes_),
        _tabulate_images(federated, x_test, y_test),
    ]
    progress(5, 5, "done")
    return RunRecord(
        name="flynn.demo",
        parameters={"data": "digits", "parties": n_parties, "alpha": alpha, "seed": seed},
        rounds=federated.run_record_.rounds,
        tables=(summary, *(table for table, _ in tables_and_figures)),
        figures=(
            _make_accuracy_figure(
                "The gain from joining the federation is the first bar minus the last."
            ),
            *(figure for _, figure in tables_and_figures),
        ),
        notes=_write_demo_notes(federated, pooled, probabilities, y_test),
        started=started.isoformat(timespec="seconds"),
        seconds=time.perf_counter() - clock,
        environment=environment(),
    )


def _make_knn(k: int) -> Any:
    return make_pipeline(StandardScaler(), KNeighborsClassifier(k))


def _score_parties_alone(
    model: FlyNNClassifier,
    x: Array,
    y: Labels,
    parties: Labels,
    x_test: Array,
    y_test: Labels,
) -> dict[str, float]:
    """Return each party's accuracy with its own rows only."""
    result = {}
    for party in np.unique(parties):
        mask = parties == party
        if len(np.unique(y[mask])) < 2:
            predicted = np.full(len(y_test), y[mask][0])
        else:
            predicted = clone(model).fit(x[mask], y[mask]).predict(x_test)
        result[str(party)] = accuracy(y_test, predicted)
    return result


def _tabulate_demo(
    federated: FlyNNClassifier,
    pooled: FlyNNClassifier,
    alone: Mapping[str, float],
    baselines: Mapping[str, Any],
    x_test: Array,
    y_test: Labels,
) -> ResultTable:
    record = federated.run_record_
    per_party = record.upload_bytes / len(alone)
    rows: list[tuple[Any, ...]] = []
    for method, model, needs in (
        ("FlyNN, federated", federated, "rows stay at the parties"),
        ("FlyNN, pooled", pooled, "pooled rows"),
    ):
        run = model.run_record_
        score = accuracy(y_test, model.predict(x_test))
        sent = per_party if model is federated else None
        rounds = len(run.rounds) if model is federated else None
        rows.append((method, score, needs, sent, rounds, run.seconds))
    for method, model in baselines.items():
        score = accuracy(y_test, model.predict(x_test))
        rows.append((method, score, "pooled rows", None, None, None))
    mean = float(np.mean(list(alone.values())))
    rows.append(("one party alone (mean)", mean, "own rows", 0, 0, None))
    return ResultTable(
        name="summary",
        title="Accuracy on held-out rows",
        columns=("method", "accuracy", "needs", "sent_bytes", "rounds", "train_s"),
        rows=tuple(rows),
        caption="Bytes sent per party, over all rounds; seconds to train.",
    )


def _make_accuracy_figure(caption: str) -> Figure:
    return Figure(
        name="accuracy",
        kind="bar",
        title="Accuracy on held-out rows",
        table="summary",
        x="method",
        y="accuracy",
        caption=caption,
    )


def _tabulate_alone(alone: Mapping[str, float]) -> tuple[ResultTable, Figure]:
    table = ResultTable(
        name="alone",
        title="Accuracy of each party alone",
        columns=("party", "accuracy"),
        rows=tuple(alone.items()),
    )
    figure = Figure(
        name="alone",
        kind="bar",
        title="Accuracy of each party with its own rows only",
        table="alone",
        x="party",
        y="accuracy",
        caption="A party cannot predict a class of which it has no rows.",
    )
    return table, figure


def _tabulate_images(model: FlyNNClassifier, x: Array, y: Labels) -> tuple[ResultTable, Figure]:
    """Return a table and a figure of the least certain test digits."""
    proba = model.predict_proba(x)
    uncertain = np.argsort(proba.max(axis=1), kind="stable")[:24]
    predicted = model.classes_[proba.argmax(axis=1)]
    rows = tuple(
        (
            f"{predicted[i]} ({proba[i].max():.0%}), is {y[i]}",
            encode_pixels(255 - np.rint(x[i].reshape(8, 8) * (255 / 16)).astype(int)),
        )
        for i in uncertain
    )
    table = ResultTable("images", "The least certain test rows", ("prediction", "pixels"), rows)
    figure = Figure(
        name="images",
        kind="images",
        title="The least certain predictions of the federated model",
        table="images",
        x="prediction",
        y="pixels",
        caption="Prediction, its probability, and the truth.",
    )
    return table, figure


def _write_demo_notes(
    federated: FlyNNClassifier,
    pooled: FlyNNClassifier,
    probabilities: Mapping[str, Floats],
    y_test: Labels,
) -> tuple[str, ...]:
    is_equal = federated.model_.to_bytes() == pooled.model_.to_bytes()
    brier = {
        method: brier_score(proba, y_test, federated.classes_)
        for method, proba in probabilities.items()
    }
    scores = ", ".join(f"{method}: {score:.4f}" for method, score in brier.items())
    return (
        "The federated and the pooled model are "
        + ("equal bit for bit." if is_equal else "NOT equal, which is a defect."),
        f"Brier score of the probabilities, lower is better: {scores}.",
        "Counts are sent without protection and can reveal single rows; use them among parties "
        "that trust the coordinator, or with secure aggregation or noise.",
    )


def run(
    table: RunTable, *, search: bool, parameters: Mapping[str, Any], progress: Progress
) -> tuple[FlyNNClassifier, RunRecord]:
    """Train over a table's parties and score held-out rows.

    Parameters
    ----------
    table : RunTable
        Rows of all parties. Its seed is also that of the hash.
    search : bool
        Choose the sizes and the decay of the model by cross-validation on the training rows.
    parameters : mapping
        Arguments of :class:`FlyNNClassifier`.
    progress : callable
        Called with the number of finished steps, their total number, and the current step.

    Returns
    -------
    FlyNNClassifier, RunRecord
        The classifier, fitted on the training rows, and a record with the tables ``summary``,
        ``joining``, ``holdings``, ``traffic`` and ``reliability``.
    """
    x, y, parties, (rows, held_out) = table.filled, table.y, table.parties, table.split
    settings = {"random_state": table.seed, "n_jobs": -1, **parameters}
    progress(0, 3, "training over all parties")
    if search:
        grid = FlyNNSearchCV(random_state=settings["random_state"], n_jobs=settings["n_jobs"])
        settings |= grid.fit(x[rows], y[rows], parties=parties[rows]).best_params_
    model = FlyNNClassifier(**settings)
    model.fit(x[rows], y[rows], parties=parties[rows])
    progress(1, 3, "comparing with nearest neighbours on pooled data")
    baseline = _make_knn(min(5, len(rows))).fit(x[rows], y[rows])
    baselines = {"kNN, pooled (k = 5)": baseline}
    if model.privacy is not None:
        exact = clone(model).set_params(privacy=None)
        baselines["FlyNN, without privacy"] = exact.fit(x[rows], y[rows], parties=parties[rows])
    summary = _tabulate_scores(model, baselines, x, y, held_out)
    progress(2, 3, "training every party alone")
    predicted = model.predict(x[held_out])
    joining = tabulate_joining(table, method="FlyNN", predict=lambda _: predicted)
    probabilities = {
        "FlyNN, federated": model.predict_proba(x[held_out]),
        "kNN, pooled": baseline.predict_proba(x[held_out]),
    }
    tables_and_figures = [
        tabulate_rows(y[rows], parties[rows]),
        tabulate_traffic(model.run_record_.rounds),
        tabulate_reliability(probabilities, y[held_out], model.classes_),
    ]
    model.name_features(table.feature_names)
    progress(3, 3, "done")
    return model, table.make_record(
        "flynn.run",
        {**model.run_record_.parameters, "search": search},
        rounds=model.run_record_.rounds,
        tables=(summary, joining, *(table for table, _ in tables_and_figures)),
        figures=(
            _make_accuracy_figure("The federation does not pool the rows; kNN does."),
            *(figure for _, figure in tables_and_figures),
        ),
        notes=() if model.privacy is None else (NOT_PRIVATE,),
        privacy=model.run_record_.privacy,
    )


def _tabulate_scores(
    model: FlyNNClassifier,
    baselines: Mapping[str, Any],
    x: Array,
    y: Labels,
    held_out: Labels,
) -> ResultTable:
    truth = y[held_out]
    predictions = {"FlyNN, federated": model.predict(x[held_out])}
    predictions |= {name: baseline.predict(x[held_out]) for name, baseline in baselines.items()}
    predictions["most frequent class"] = np.full(len(truth), find_most_frequent(y))
    knn = predictions["kNN, pooled (k = 5)"]
    rows = tuple(
        (method, accuracy(truth, labels), balanced_accuracy(truth, labels), agreement(labels, knn))
        for method, labels in predictions.items()
    )
    return ResultTable(
        name="summary",
        title="On held-out rows",
        columns=("method", "accuracy", "balanced accuracy", "agreement with kNN"),
        rows=rows,
    )
