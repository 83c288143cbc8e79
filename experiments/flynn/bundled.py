"""Accuracy on small well-known sets by nested cross-validation, and on rare classes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.datasets import make_classification
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler

from experiments.flynn.spaces import SCREEN_UNITS, SPACES, search_space
from experiments.flynn.tuning import tune_neighbors
from experiments.harness import Findings, Study, run_each
from fedneighbors._typing import Array, Progress
from fedneighbors.datasets import load
from fedneighbors.methods.flynn.estimator import FlyNNClassifier
from fedneighbors.metrics import accuracy, balanced_accuracy
from fedneighbors.records import Figure, ResultTable

SETS = ("digits", "wine", "breast_cancer", "iris")
N_OUTER = 10
N_REPEATS = 3
N_INNER = 5
BUNDLED_SPACE = SPACES["120 units a row, densities .15 and .3, 4 finalists"]  # by flynn.spaces
RATIOS = (0.1, 1 / 31)
N_TEST = 3000

Folds = list[tuple[Array, Array]]


def _inner_folds(y: Array, seed: int) -> Folds:
    return list(StratifiedKFold(N_INNER, shuffle=True, random_state=seed).split(y, y))


def score_fold(
    x: Array, y: Array, train: Array, test: Array, seed: int, n_units: int
) -> dict[str, float]:
    """Return each method's accuracy on an outer fold, tuned on ``train``."""
    folds = _inner_folds(y[train], seed)
    scaler = StandardScaler().fit(x[train])
    z_train, z_test = scaler.transform(x[train]), scaler.transform(x[test])
    neighbors = tune_neighbors(z_train, y[train], folds).model.fit(z_train, y[train])
    one = tune_neighbors(z_train, y[train], folds, max_neighbors=1).model.fit(z_train, y[train])
    default = FlyNNClassifier(random_state=seed).fit(x[train], y[train])
    search = search_space(BUNDLED_SPACE, x.shape[1], folds, seed, n_units=n_units)
    tuned = search.fit(x[train], y[train])
    return {
        "FlyNN, tuned": accuracy(y[test], tuned.predict(x[test])),
        "FlyNN, defaults": accuracy(y[test], default.predict(x[test])),
        "kNN": accuracy(y[test], neighbors.predict(z_test)),
        "1NN": accuracy(y[test], one.predict(z_test)),
    }


def _bundled(*, quick: bool, seed: int, n_jobs: int, progress: Progress) -> Findings:
    names = SETS[1:] if quick else SETS
    n_outer, n_repeats = (3, 1) if quick else (N_OUTER, N_REPEATS)
    n_units = 4_000 if quick else SCREEN_UNITS
    jobs: list[tuple[Any, ...]] = []
    owners = []
    for name in names:
        data = load(name)
        for repeat_seed in range(seed, seed + n_repeats):
            outer = StratifiedKFold(n_outer, shuffle=True, random_state=repeat_seed)
            for train, test in outer.split(data.x, data.y):
                jobs.append((data.x.astype(np.float64), data.y, train, test, repeat_seed, n_units))
                owners.append(name)
    scores = run_each(
        score_fold, jobs, n_jobs=n_jobs, progress=progress, label=lambda *job: f"{len(job[1])} rows"
    )
    rows = tuple(
        (
            name,
            method,
            *_mean_and_error([s[method] for s, o in zip(scores, owners, strict=True) if o == name]),
        )
        for name in names
        for method in scores[0]
    )
    table = ResultTable(
        name="accuracy",
        title=f"Accuracy over {n_repeats} x {n_outer} outer folds",
        columns=("set", "method", "accuracy", "standard error"),
        rows=rows,
        caption="All settings are chosen by cross-validation within the training folds.",
    )
    figure = Figure(
        name="accuracy",
        kind="bar",
        title="Small well-known sets",
        table="accuracy",
        x="set",
        y="accuracy",
        hue="method",
        error="standard error",
        caption="FlyNN tuned and with defaults; nearest neighbours on pooled rows.",
    )
    return Findings(
        {"n_outer": n_outer, "n_repeats": n_repeats, "n_inner": N_INNER}, (table,), (figure,)
    )


def _mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    error = float(np.std(values, ddof=1) / np.sqrt(len(values)))
    return float(np.mean(values)), error


def score_imbalance(rare: float, n_rows: int, seed: int) -> Mapping[str, float]:
    """Return each method's balanced accuracy when one class has share ``rare``."""
    x, y = make_classification(
        n_samples=n_rows + N_TEST,
        n_features=30,
        n_informative=30,
        n_redundant=0,
        n_classes=2,
        n_clusters_per_class=3,
        class_sep=1.2,
        weights=[1 - rare, rare],
        flip_y=0.01,
        random_state=seed,
    )
    train, test = np.arange(n_rows), np.arange(n_rows, len(y))
    scaler = StandardScaler().fit(x[train])
    z_train, z_test = scaler.transform(x[train]), scaler.transform(x[test])
    neighbors = tune_neighbors(z_train, y[train], _inner_folds(y[train], seed)).model
    five = type(neighbors)(5)
    models = {
        "FlyNN, class-normalised": FlyNNClassifier(
            class_normalized=True, decay=None, expand="mirror", random_state=seed
        ),
        "FlyNN, the paper's exponent": FlyNNClassifier(
            class_normalized=False, decay=None, expand="mirror", random_state=seed
        ),
        "FlyNN, defaults": FlyNNClassifier(random_state=seed),
    }
    return {
        **{
            name: balanced_accuracy(y[test], model.fit(x[train], y[train]).predict(x[test]))
            for name, model in models.items()
        },
        "kNN, k tuned": balanced_accuracy(
            y[test], neighbors.fit(z_train, y[train]).predict(z_test)
        ),
        "kNN, k = 5": balanced_accuracy(y[test], five.fit(z_train, y[train]).predict(z_test)),
        "1NN": balanced_accuracy(
            y[test], type(neighbors)(1).fit(z_train, y[train]).predict(z_test)
        ),
    }


def _imbalance(*, quick: bool, seed: int, n_jobs: int, progress: Progress) -> Findings:
    n_sets = 2 if quick else 10
    jobs = [
        (rare, 2000 if rare == RATIOS[0] else 4000, seed + k)
        for rare in RATIOS
        for k in range(n_sets)
    ]
    scores = run_each(
        score_imbalance,
        jobs,
        n_jobs=n_jobs,
        progress=progress,
        label=lambda rare, n_rows, _seed: f"{_ratio(rare)}, {n_rows} rows",
    )
    rows = tuple(
        (
            _ratio(rare),
            method,
            *_mean_and_error(
                [s[method] for s, job in zip(scores, jobs, strict=True) if job[0] == rare]
            ),
        )
        for rare in RATIOS
        for method in scores[0]
    )
    table = ResultTable(
        name="balanced",
        title=f"Balanced accuracy over {n_sets} synthetic sets",
        columns=("imbalance", "method", "balanced accuracy", "standard error"),
        rows=rows,
        caption="FlyNN with defaults; kNN with k = 1, k = 5, and k chosen by cross-validation.",
    )
    figure = Figure(
        name="balanced",
        kind="bar",
        title="Balanced accuracy with a rare class",
        table="balanced",
        x="imbalance",
        y="balanced accuracy",
        hue="method",
        error="standard error",
        caption="With the paper's exponent only the frequent class is predicted, which scores 1/2.",
    )
    return Findings({"n_sets": n_sets, "n_features": 30}, (table,), (figure,))


def _ratio(rare: float) -> str:
    return f"{round((1 - rare) / rare)} : 1"


BUNDLED = Study(
    name="flynn.bundled",
    title="Small well-known sets",
    description="Accuracy on digits, wine, breast cancer and iris by nested cross-validation.",
    work=_bundled,
)
IMBALANCE = Study(
    name="flynn.imbalance",
    title="Rare classes",
    description="Balanced accuracy at 9:1 and 30:1, with and without class normalisation.",
    work=_imbalance,
)
