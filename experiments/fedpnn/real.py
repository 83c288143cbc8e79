"""FedPNN trained and tested on real rows, with every baseline on the same splits."""

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import t as student
from sklearn.base import clone
from sklearn.metrics import roc_auc_score, roc_curve
from sklearn.model_selection import StratifiedKFold
from threadpoolctl import threadpool_limits

from experiments.fedpnn.printed import PRINTED
from experiments.harness import Findings, Journal, Study, run_each
from fedneighbors._typing import Progress
from fedneighbors.baselines import (
    AveragedModels,
    CentralModel,
    FederatedBoostingClassifier,
    FederatedDiscriminantClassifier,
    FederatedNaiveBayes,
)
from fedneighbors.baselines._tabular import (
    BASELINES,
    _BalancedNeighbors,
    make_boosting,
    make_linear,
)
from fedneighbors.datasets import load_columns
from fedneighbors.methods.fedpnn._network import ProbabilisticNeuralNetwork
from fedneighbors.methods.fedpnn.estimator import FedPNNClassifier
from fedneighbors.metrics import balanced_accuracy
from fedneighbors.partition import dirichlet, iid
from fedneighbors.records import Figure, ResultTable, Scalar

SETS: Mapping[str, str] = {
    "Breast Cancer Wisconsin": "breast-cancer-wisconsin-original",
    "Polish bankruptcy, year 1": "polish-bankruptcy-1year",
    "Credit card, subset": "creditcard-subset-14240",
}
"""File of each set."""

OURS, PAPER = "FedPNNClassifier()", "FedPNNClassifier.paper()"
BOOSTING = "federated boosting"
SCORES = (
    "balanced accuracy",
    "ROC-AUC",
    "balanced accuracy, chosen threshold",
    "ROC-AUC, chosen settings",
    "balanced accuracy, chosen settings and threshold",
)
N_DRAWS, N_SETTINGS = 5, 3
MIN_RARE_ROWS = 50
"""With fewer training rows of the rare class there are five inner folds instead of three.

FedPNN needs five rows of a class at a party; two thirds of 11 rows over two parties are too few."""


def load_set(name: str) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Return rows (missing cells: NaN) and labels (rarer class: 1)."""
    table = load_columns(SETS[name])
    y = np.asarray(table.columns["target"])
    labels, sizes = np.unique(y.astype(str), return_counts=True)
    features = table.without(["target"]).columns.values()
    x = np.column_stack([np.asarray(column, np.float64) for column in features])
    return x, (y.astype(str) == labels[sizes.argmin()]).astype(np.int64)


@contextmanager
def ignore_threshold_warnings() -> Iterator[None]:
    """Suppress warnings about the paper's thresholds.

    Some of those thresholds make every row a center.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*(client|server)_threshold", UserWarning)
        yield


def _assign_owners(y: npt.NDArray[np.int64], n_parties: int, alpha: float | None, seed: int) -> Any:
    if alpha is None:
        return iid(len(y), n_parties, seed=seed)
    return dirichlet(y, n_parties, alpha=alpha, seed=seed)


def best_threshold(shares: npt.NDArray[np.float64], y: npt.NDArray[np.int64]) -> float:
    """Return the threshold with the highest balanced accuracy.

    Ties go to the highest. It is in the middle between two neighboring shares, so that rows at it
    do not matter.
    """
    false_rate, true_rate, cuts = roc_curve(y, shares, drop_intermediate=False)
    best = int(np.argmax(true_rate - false_rate))
    return float(np.mean(cuts[best : best + 2]))


def predict_held_out(
    model: Any, x: npt.NDArray[np.float64], y: npt.NDArray[np.int64], owners: Any, *, seed: int
) -> npt.NDArray[np.float64]:
    """Return shares of training rows from models that were trained without them."""
    shares = np.empty(len(y))
    n_folds = 3 if y.sum() >= MIN_RARE_ROWS else 5
    folds = StratifiedKFold(n_folds, shuffle=True, random_state=seed)
    for kept, held_out in folds.split(x, y):
        fitted = clone(model).fit(x[kept], y[kept], parties=owners[kept])
        shares[held_out] = fitted.predict_proba(x[held_out])[:, 1]
    return shares


def choose_threshold(
    model: Any, x: npt.NDArray[np.float64], y: npt.NDArray[np.int64], owners: Any, *, seed: int
) -> float:
    """Return the best threshold of the shares predicted for held-out training rows."""
    return best_threshold(predict_held_out(model, x, y, owners, seed=seed), y)


def make_settings(name: str) -> dict[str, tuple[Any, ...]]:
    """Return three settings of every method, the default first.

    The paper's method has one, with the thresholds of Table 4.

    Parameters
    ----------
    name : str
        A name in :data:`SETS`, for the paper's thresholds.
    """
    client, server = PRINTED[name].thresholds
    sizes: tuple[dict[str, Any], ...] = (
        {"max_leaf_nodes": 7},
        {"max_leaf_nodes": 7, "learning_rate": 0.03},
    )
    boosting = partial(FederatedBoostingClassifier, class_weight="balanced")
    neighbors = partial(_BalancedNeighbors, weights="distance")
    lda = partial(FederatedDiscriminantClassifier, standardize=False, priors="equal")
    ours = FedPNNClassifier(classes=(0, 1))
    others: dict[str, list[Any]] = {
        "averaged logistic regression": [
            AveragedModels(partial(make_linear, C=penalty)) for penalty in (0.1, 10.0)
        ],
        "averaged boosting": [AveragedModels(partial(make_boosting, **size)) for size in sizes],
        "federated LDA": [CentralModel(partial(lda, shrinkage=part)) for part in (0.1, 0.3)],
        "federated naive Bayes": [FederatedNaiveBayes(floor) for floor in (0.01, 0.1)],
        "central kNN": [CentralModel(partial(neighbors, k)) for k in (5, 30)],
        "central PNN": [
            CentralModel(partial(ProbabilisticNeuralNetwork, activation=kernel))
            for kernel in ("cauchy", "logistic")
        ],
        "central boosting": [CentralModel(partial(make_boosting, **size)) for size in sizes],
    }
    return {
        OURS: (
            ours,
            clone(ours).set_params(activation="logistic"),
            clone(ours).set_params(activation="gaussian"),
        ),
        PAPER: (FedPNNClassifier.paper(client, server, holdout=0.0, share=None, classes=(0, 1)),),
        BOOSTING: (boosting(), *(boosting(**size) for size in sizes)),
        **{method: (build(), *others[method]) for method, build in BASELINES.items()},
    }


def score_split(
    name: str,
    seed: int,
    fold: int,
    n_parties: int,
    alpha: float | None,
    n_settings: int = 1,
    journal: Path | None = None,
) -> dict[str, tuple[float, ...]]:
    """Score every method on half of a set.

    Scores have the order of :data:`SCORES`; the index of the chosen settings follows. Settings are
    chosen by ROC-AUC, thresholds by balanced accuracy, both on held-out training rows. With
    ``n_settings=1`` the chosen settings are the defaults.

    Parameters
    ----------
    name : str
        A name in :data:`SETS`.
    seed : int
        Seed of the halves and of the owners of rows.
    fold : int
        Index of the half for the test.
    n_parties : int
        Number of parties.
    alpha : float or None
        Concentration of the Dirichlet label skew; None splits rows evenly.
    n_settings : int
        Number of settings of each method to choose from.
    journal : Path, optional
        File of measurements.
    """
    x, y = load_set(name)
    halves = StratifiedKFold(2, shuffle=True, random_state=seed).split(x, y)
    train, test = list(halves)[fold]
    owners = _assign_owners(y[train], n_parties, alpha, seed)
    training, testing = (x[train], y[train], owners), (x[test], y[test])
    found: dict[str, tuple[float, ...]] = {}
    for method, models in make_settings(name).items():
        found[method] = Journal(journal).get_or_measure(
            (name, seed, fold, n_parties, alpha, n_settings, method),
            measure=partial(_score_method, models[:n_settings], training, testing, seed),
            encode=list,
            decode=tuple,
        )
    return found


def _score_method(
    models: Sequence[Any], training: tuple[Any, ...], testing: tuple[Any, ...], seed: int
) -> tuple[float, ...]:
    """Return the scores of default and chosen settings on test rows."""
    x, y, owners = training
    x_test, y_test = testing
    if isinstance(models[0], FederatedBoostingClassifier):
        owners = np.zeros(len(y))  # the model equals that of the pooled rows bit for bit
    with ignore_threshold_warnings(), threadpool_limits(1):  # splits are measured side by side
        held_out = [predict_held_out(model, x, y, owners, seed=seed) for model in models]
        best = int(np.argmax([roc_auc_score(y, shares) for shares in held_out]))
        shares = {
            k: clone(models[k]).fit(x, y, parties=owners).predict_proba(x_test)[:, 1]
            for k in {0, best}
        }
    accuracies = [
        balanced_accuracy(y_test, (shares[k] > cut).astype(int))
        for k, cut in (
            (0, 0.5),
            (0, best_threshold(held_out[0], y)),
            (best, best_threshold(held_out[best], y)),
        )
    ]
    ranks = [float(roc_auc_score(y_test, shares[k])) for k in (0, best)]
    return (accuracies[0], ranks[0], accuracies[1], ranks[1], accuracies[2], best)


def interval(gaps: Sequence[float], *, n_folds: int = 2) -> tuple[float, float]:
    """Return the 95 % interval of a mean gap over repeated cross-validation.

    Training sets overlap. The variance has the correction of Nadeau and Bengio (2003):
    1 / n + (test rows) / (training rows) in place of 1 / n.
    """
    n = len(gaps)
    mean, spread = float(np.mean(gaps)), float(np.std(gaps, ddof=1))
    half = float(student.ppf(0.975, n - 1)) * spread * math.sqrt(1 / n + 1 / (n_folds - 1))
    return mean - half, mean + half


def _method_rows(
    key: tuple[Scalar, ...], each: Sequence[Mapping[str, tuple[float, ...]]], n_scores: int
) -> list[tuple[Scalar, ...]]:
    rows: list[tuple[Scalar, ...]] = []
    for method in each[0]:
        cells: list[Scalar] = []
        for place in range(n_scores):
            scores = [found[method][place] for found in each]
            gaps = [found[method][place] - found[OURS][place] for found in each]
            low, high = interval(gaps) if method != OURS and len(gaps) > 1 else (None, None)
            cells += [float(np.mean(scores)), low, high]
        rows.append((*key, method, *cells))
    return rows


def _columns(n_scores: int) -> tuple[str, ...]:
    marks = ("", " (AUC)", " (chosen)", " (AUC, settings)", " (chosen, settings)")
    return (
        "method",
        *(
            column
            for score, mark in zip(SCORES[:n_scores], marks, strict=False)
            for column in (score, f"less ours, low{mark}", f"less ours, high{mark}")
        ),
    )


def _count_settings(each: Sequence[Mapping[str, tuple[float, ...]]]) -> str:
    """Return the number of splits that chose each setting, by method."""
    counts = {
        method: [sum(found[method][-1] == k for found in each) for k in range(N_SETTINGS)]
        for method in each[0]
        if method != PAPER
    }
    return "; ".join(f"{method} {'/'.join(map(str, c))}" for method, c in counts.items())


def _compare(
    *, quick: bool, seed: int, n_jobs: int, progress: Progress, journal: Path | None
) -> Findings:
    Journal(journal).repair()
    names = list(SETS)[:1] if quick else list(SETS)
    n_repeats = 1 if quick else N_DRAWS
    splits = [(draw, fold) for fold in (0, 1) for draw in range(seed, seed + n_repeats)]
    jobs = [
        (name, draw, fold, 2, None, N_SETTINGS, journal) for draw, fold in splits for name in names
    ]
    scores = run_each(score_split, jobs, n_jobs=n_jobs, progress=progress, label=_label)
    rows, notes = [], []
    for name in names:
        scores_of_set = [found for found, job in zip(scores, jobs, strict=True) if job[0] == name]
        rows += _method_rows((name,), scores_of_set, len(SCORES))
        notes.append(
            f"{name}: splits in which the first/second/third settings were chosen: "
            f"{_count_settings(scores_of_set)}."
        )
    return Findings(
        parameters={"repeats": n_repeats, "folds": 2, "parties": 2, "settings": N_SETTINGS},
        tables=(
            ResultTable(
                name="scores",
                title="Real rows, two parties",
                columns=("set", *_columns(len(SCORES))),
                rows=tuple(rows),
                caption="Means over repeated stratified halves; 95 % intervals of the difference "
                "to FedPNN, corrected for overlapping training sets. The first three scores are of "
                "default settings. Every method but the paper's chooses among three settings by "
                "ROC-AUC, and its threshold by balanced accuracy, on held-out training rows.",
            ),
        ),
        figures=(
            Figure(
                name="roc-auc",
                kind="bar",
                title="Real rows, two parties",
                table="scores",
                x="set",
                y="ROC-AUC",
                hue="method",
                caption="FedPNN and baselines on the same splits, default settings.",
            ),
        ),
        notes=tuple(notes),
    )


def _label(name: str, seed: int, fold: int, n_parties: int, *_others: Any) -> str:
    return f"{name}, {n_parties} parties, split {seed}.{fold + 1}"


def _compare_skewed(
    *, quick: bool, seed: int, n_jobs: int, progress: Progress, journal: Path | None
) -> Findings:
    Journal(journal).repair()
    names = list(SETS)[:1] if quick else list(SETS)[:2]
    parties = (5,) if quick else (2, 5, 10, 20)
    draws = range(seed, seed + (1 if quick else N_DRAWS))
    jobs = [
        (name, draw, 0, m, 0.3, 1, journal) for draw in draws for name in names for m in parties
    ]
    scores = run_each(score_split, jobs, n_jobs=n_jobs, progress=progress, label=_label)
    rows = []
    for name in names:
        for m in parties:
            pairs = zip(scores, jobs, strict=True)
            rows += _method_rows(
                (name, m), [found for found, job in pairs if (job[0], job[3]) == (name, m)], 3
            )
    return Findings(
        parameters={"repeats": len(draws), "folds": 1, "alpha": 0.3, "parties": list(parties)},
        tables=(
            ResultTable(
                name="scores",
                title="Label skew, Dirichlet .3",
                columns=("set", "parties", *_columns(3)),
                rows=tuple(rows),
                caption="Means over draws of a stratified half for the test; every party has at "
                "least one row. 95 % intervals of the difference to FedPNN, corrected for "
                "overlapping training sets. All settings are defaults; thresholds are chosen on "
                "held-out training rows.",
            ),
        ),
        figures=tuple(
            Figure(
                name=name,
                kind="line",
                title=f"{y[0].upper()}{y[1:]} over the number of parties",
                table="scores",
                x="parties",
                y=y,
                hue="method",
                facet="set",
                caption="Dirichlet label skew with concentration .3; not in the paper.",
            )
            for name, y in zip(
                ("balanced-accuracy", "roc-auc", "chosen-threshold"), SCORES[:3], strict=True
            )
        ),
    )


REAL = Study(
    name="fedpnn.real",
    title="Real rows",
    description="Trained and tested on real rows, with all baselines, two parties.",
    work=_compare,
    keeps_journal=True,
)
NONIID = Study(
    name="fedpnn.noniid",
    title="Label skew",
    description="Dirichlet .3 label skew over 2 to 20 parties, with all baselines.",
    work=_compare_skewed,
    keeps_journal=True,
)
