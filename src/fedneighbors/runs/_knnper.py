"""Run of kNN-Per on a user's table, with held-out scores for each client."""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fedneighbors import baselines
from fedneighbors._typing import Floats, Progress
from fedneighbors.methods.knnper.algorithm import local_prior, mix
from fedneighbors.methods.knnper.estimator import KNNPerClassifier
from fedneighbors.metrics import average_accuracy, bottom_decile
from fedneighbors.partition import RowRoles, row_roles
from fedneighbors.records import Figure, ResultTable, RunRecord, environment
from fedneighbors.runs._figures import holdings, reliability_curves, traffic

Labels = npt.NDArray[Any]

OURS = "kNN-Per"
_NOTE = (
    "Every client holds out a part of its rows, on which all methods are scored. "
    "Nothing here is differentially private."
)

_ACCURACY = Figure(
    name="accuracy",
    kind="bar",
    title="Accuracy on each client's held-out rows",
    table="summary",
    x="method",
    y="accuracy",
    caption="All clients share one network; their mixtures differ.",
)


def run(
    x: Floats,
    y: Labels,
    parties: Labels,
    *,
    feature_names: Sequence[str],
    test_size: float,
    seed: int,
    parameters: Mapping[str, Any],
    with_baselines: bool,
    progress: Progress,
) -> tuple[KNNPerClassifier, RunRecord, RowRoles]:
    """Train over a table's clients and score each one's held-out rows.

    Parameters
    ----------
    x : float64 array of shape (n_rows, n_features)
        Finite numbers.
    y, parties : arrays of shape (n_rows,)
        Labels and owners.
    feature_names : sequence of str
        Column names, kept in the model.
    test_size : float
        Share of each client's rows that is held out, in (0, 1).
    seed : int
        Seed of the held-out rows and of training.
    parameters : mapping
        Arguments of :class:`KNNPerClassifier`.
    with_baselines : bool
        Train the methods of :mod:`~.baselines`, too, each with the best of at most four settings.
    progress : callable
        Function called with the current step.

    Returns
    -------
    KNNPerClassifier
        Fitted.
    RunRecord
        Tables ``summary``, ``clients``, ``holdings``, ``traffic`` and ``reliability``.
    RowRoles
        Training and held-out rows.
    """
    started, clock = datetime.now(UTC), time.perf_counter()
    roles = row_roles(parties, test=test_size, seed=seed)
    test = roles.test
    n_steps = 3 + len(baselines.TITLES) * with_baselines
    progress(0, n_steps, "training over all clients")
    model = KNNPerClassifier(random_state=seed, classes=np.unique(y).tolist(), **parameters)
    model.fit(x[~test], y[~test], parties=parties[~test])
    progress(1, n_steps, "predicting for every client")
    shares = {OURS: model.predict_proba(x[test], parties[test]), **_parts(model, x, parties, test)}
    progress(2, n_steps, "training every client alone")
    shares["each client alone, logistic regression"] = _alone(x, y, parties, test, model.classes_)
    if with_baselines:
        shares |= _baseline_shares(
            model, x, y, parties, test, lambda n, what: progress(n, n_steps, what)
        )
    chapters = [
        holdings(y[~test], parties[~test]),
        traffic(_first_rounds(model)),
        reliability_curves({OURS: shares[OURS]}, y[test], model.classes_),
    ]
    right = {
        name: _right(found, y, parties, test, model.classes_) for name, found in shares.items()
    }
    model.name_features(feature_names)
    progress(n_steps, n_steps, "done")
    record = RunRecord(
        name="knnper.run",
        parameters={**model.run_record_.parameters, "test_size": test_size},
        rounds=model.run_record_.rounds,
        tables=(_summary(right), _clients(model, right), *(table for table, _ in chapters)),
        figures=(
            _ACCURACY,
            *(figure for _, figure in chapters),
        ),
        notes=(_NOTE,),
        started=started.isoformat(timespec="seconds"),
        seconds=time.perf_counter() - clock,
        environment=environment(),
    )
    return model, record, roles


def _parts(
    model: KNNPerClassifier, x: Floats, parties: Labels, test: npt.NDArray[np.bool_]
) -> dict[str, Floats]:
    """Return the predictions of the mixture's parts alone."""
    view, scores = model._features_and_scores(x[test])
    shared, memory, corrected = np.exp(scores), np.exp(scores), np.exp(scores)
    overall = model.overall_
    for name, personal in model.clients_.items():
        rows = parties[test] == name
        if rows.any():
            memory[rows] = personal.votes(view[rows], shared[rows])
            prior = local_prior(personal.memory.labels, overall)
            corrected[rows] = shared[rows] * prior / overall
    corrected /= corrected.sum(axis=1, keepdims=True)
    return {
        "shared network (FedAvg)": shared,
        "shared network, each client's class shares": corrected,
        "memory alone": memory,
        "memory and network with equal weights": mix(memory, shared, 0.5),
    }


def _alone(
    x: Floats, y: Labels, parties: Labels, test: npt.NDArray[np.bool_], classes: Labels
) -> Floats:
    """Return each client's predictions from its own rows only."""
    shares = np.zeros((int(test.sum()), len(classes)))
    for name in np.unique(parties):
        train, asked = (parties == name) & ~test, parties[test] == name
        known = np.unique(y[train])
        places = np.searchsorted(classes, known)
        if len(known) == 1:
            shares[np.ix_(asked, places)] = 1.0
        elif asked.any():
            local = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
            found = local.fit(x[train], y[train]).predict_proba(x[test][asked])
            shares[np.ix_(asked, places)] = found
    return shares


def _baseline_shares(
    model: KNNPerClassifier,
    x: Floats,
    y: Labels,
    parties: Labels,
    test: npt.NDArray[np.bool_],
    progress: Callable[[int, str], None],
) -> dict[str, Floats]:
    """Return the predictions of baselines tuned on training rows."""
    asked = model.get_params(deep=False)
    table = x[~test], y[~test], parties[~test]
    found = {}
    for place, (title, name) in enumerate(baselines.TITLES.items()):
        progress(3 + place, f"training {title}")
        kind = getattr(baselines, name)
        baseline = kind(
            **{key: asked[key] for key in kind().get_params(deep=False) if key in asked}
        )
        if "start" in baseline.get_params(deep=False):
            baseline.set_params(start=model)
        grid: Any = ({},) if title == "FedAvg" else None
        estimator = baselines.tuned(baseline, *table, grid=grid).estimator
        found[title] = estimator.predict_proba(x[test], parties=parties[test])
    return found


def _right(
    shares: Floats, y: Labels, parties: Labels, test: npt.NDArray[np.bool_], classes: Labels
) -> dict[str, tuple[int, int]]:
    """Count each client's held-out rows, and the correct ones."""
    hit, owner = classes[shares.argmax(axis=1)] == y[test], parties[test]
    return {
        str(name): (int(hit[owner == name].sum()), int((owner == name).sum()))
        for name in np.unique(owner)
    }


def _summary(right: Mapping[str, Mapping[str, tuple[int, int]]]) -> ResultTable:
    names = list(next(iter(right.values())))
    return ResultTable(
        name="summary",
        title="On each client's held-out rows",
        columns=("method", "accuracy", "bottom decile"),
        rows=tuple(
            (method, average_accuracy(found, names), bottom_decile(found, names))
            for method, found in right.items()
        ),
        caption="Accuracy over all rows; bottom decile: of the client at the lowest tenth.",
    )


def _clients(
    model: KNNPerClassifier, right: Mapping[str, Mapping[str, tuple[int, int]]]
) -> ResultTable:
    return ResultTable(
        name="clients",
        title="Clients",
        columns=("client", "rows in memory", "lambda", "held-out rows", "accuracy", "FedAvg"),
        rows=tuple(
            (
                name,
                len(personal.memory),
                personal.weight if personal.pool is None else None,
                right[OURS].get(name, (0, 0))[1],
                _share(right[OURS].get(name)),
                _share(right["shared network (FedAvg)"].get(name)),
            )
            for name, personal in model.clients_.items()
        ),
        caption="lambda: weight of the memory against the network (Eq 7).",
    )


def _share(found: tuple[int, int] | None) -> float | None:
    return None if found is None or not found[1] else found[0] / found[1]


def _first_rounds(model: KNNPerClassifier) -> tuple[Any, ...]:
    """Return the first exchange of each kind: training rounds are alike."""
    first: dict[str, Any] = {}
    for entry in model.run_record_.rounds:
        first.setdefault(entry.request, entry)
    return tuple(first.values())
