"""FlyNN with default parameters against nearest neighbours with five neighbours."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from experiments.flynn.comparison import sample_rows
from experiments.flynn.development import DEVELOPMENT_SETS, load_development_set
from experiments.flynn.openml import BUNDLED, SETS
from experiments.harness import Findings, Journal, Study, run_each
from fedneighbors._typing import Array, Progress
from fedneighbors.datasets import load
from fedneighbors.methods.flynn.estimator import FlyNNClassifier
from fedneighbors.metrics import accuracy, compare_paired
from fedneighbors.records import ResultTable

NEIGHBORS = "kNN, k = 5"
DEFAULTS = "FlyNN, defaults"
PRINTED = "FlyNN, Algorithm 1"
METHODS = (NEIGHBORS, DEFAULTS, PRINTED)
DEVELOPMENT, REPORTED = "development", "reported"
LARGE_LOSS = 0.03

Scores = dict[str, float]


@dataclass(frozen=True)
class Plan:
    """Settings of one run.

    Parameters
    ----------
    development, reported : tuple of str
        Data sets.
    n_splits : int
        Stratified splits of each data set.
    max_rows : int
        Size of the sample of a larger reported table.
    """

    development: tuple[str, ...]
    reported: tuple[str, ...]
    n_splits: int
    max_rows: int


FULL = Plan(tuple(DEVELOPMENT_SETS), SETS, n_splits=3, max_rows=4000)
QUICK = Plan(("moons", "rules"), BUNDLED, n_splits=1, max_rows=500)


def score_split(kind: str, name: str, seed: int, max_rows: int, journal: Path | None) -> Scores:
    """Return each method's accuracy on the held-out 30 % of a split."""

    def measure() -> Scores:
        if kind == DEVELOPMENT:
            x, y = load_development_set(name)
        else:
            data = sample_rows(load(name), max_rows, 0)
            x, y = data.x.astype(np.float64), data.y
        return _score_methods(x, y, seed)

    return Journal(journal).get_or_measure(
        (kind, name, seed, max_rows), measure=measure, encode=dict, decode=dict
    )


def _score_methods(x: Array, y: Array, seed: int) -> Scores:
    x_train, x_test, y_train, y_test = train_test_split(
        x, y, test_size=0.3, stratify=y, random_state=seed
    )
    models = {
        NEIGHBORS: make_pipeline(StandardScaler(), KNeighborsClassifier(5)),
        DEFAULTS: FlyNNClassifier(),
        PRINTED: FlyNNClassifier(
            standardize="feature", expand=None, class_normalized=False, decay=None
        ),
    }
    return {
        method: accuracy(y_test, model.fit(x_train, y_train).predict(x_test))
        for method, model in models.items()
    }


def examine(
    plan: Plan, *, seed: int, n_jobs: int, progress: Progress, journal: Path | None = None
) -> Findings:
    """Run a plan and return its tables."""
    Journal(journal).repair()
    names = [(DEVELOPMENT, name) for name in plan.development]
    names += [(REPORTED, name) for name in plan.reported]
    jobs = [
        (*name, seed + number, plan.max_rows, journal)
        for number in range(plan.n_splits)
        for name in names
    ]
    scores = run_each(
        score_split, jobs, n_jobs=n_jobs, progress=progress, label=lambda _, name, *__: str(name)
    )
    means = {
        name: {
            method: float(
                np.mean([s[method] for s, job in zip(scores, jobs, strict=True) if job[:2] == name])
            )
            for method in METHODS
        }
        for name in names
    }
    return Findings(
        parameters={"splits": plan.n_splits, "test_size": 0.3, "most_rows": plan.max_rows},
        tables=(_summarize(means), _list_sets(means)),
        notes=(
            "Choices of the defaults were made on the development tables only, see "
            "experiments/flynn/development.py.",
            f"{PRINTED} sees standardized features; sizes and gamma are the library's defaults.",
            f"At most {plan.max_rows:,} rows of a reported table are used.",
        ),
    )


def _improvement(scores: Scores, method: str) -> float:
    """Return the relative accuracy above that of nearest neighbours."""
    return scores[method] / scores[NEIGHBORS] - 1


def _summarize(means: dict[tuple[str, str], Scores]) -> ResultTable:
    rows = []
    for kind in (DEVELOPMENT, REPORTED):
        sets = {name: scores for (k, name), scores in means.items() if k == kind}
        for method in METHODS[1:]:
            rows.append((kind, len(sets), method, *_summarize_method(sets, method)))
    return ResultTable(
        name="summary",
        title="Improvement over standardized nearest neighbours, k = 5",
        columns=(
            "sets",
            "number",
            "method",
            "W/T/L",
            "median improvement",
            "losses above 3 %",
            "sets with such losses",
        ),
        rows=tuple(rows),
        caption="Improvement: accuracy divided by that of nearest neighbours, minus 1.",
    )


def _summarize_method(sets: dict[str, Scores], method: str) -> tuple[str, float, int, str]:
    gains = {name: _improvement(scores, method) for name, scores in sets.items()}
    comparison = compare_paired(
        [round(scores[method], 12) for scores in sets.values()],
        [round(scores[NEIGHBORS], 12) for scores in sets.values()],
    )
    lost: Sequence[str] = sorted(name for name, gain in gains.items() if gain < -LARGE_LOSS)
    counts = f"{comparison.wins}/{comparison.ties}/{comparison.losses}"
    return counts, float(np.median(list(gains.values()))), len(lost), ", ".join(lost)


def _list_sets(means: dict[tuple[str, str], Scores]) -> ResultTable:
    return ResultTable(
        name="sets",
        title="Accuracy on held-out rows, mean over the splits",
        columns=("sets", "set", *METHODS, "improvement of the defaults"),
        rows=tuple(
            (kind, name, *(scores[method] for method in METHODS), _improvement(scores, DEFAULTS))
            for (kind, name), scores in means.items()
        ),
    )


def _work(
    *, quick: bool, seed: int, n_jobs: int, progress: Progress, journal: Path | None
) -> Findings:
    plan = QUICK if quick else FULL
    return examine(plan, seed=seed, n_jobs=n_jobs, progress=progress, journal=journal)


STUDY = Study(
    name="flynn.defaults",
    title="FlyNN with default parameters",
    description=(
        "FlyNNClassifier() and Algorithm 1 against standardized nearest neighbours with k = 5, on "
        "the development tables and on 36 others."
    ),
    work=_work,
    keeps_journal=True,
)
