"""FedPNN trained and tested on real rows, with every baseline on the same splits."""

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import t as student
from sklearn.base import clone
from sklearn.metrics import roc_auc_score, roc_curve
from sklearn.model_selection import StratifiedKFold
from threadpoolctl import threadpool_limits

from experiments.fedpnn.printed import PRINTED
from experiments.harness import Findings, Study, run_each
from fedneighbors._typing import Progress
from fedneighbors.baselines._tabular import BASELINES
from fedneighbors.datasets import load_columns
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

OURS, PAPER = "FedPNN", "FedPNN, the paper's settings"
SCORES = ("balanced accuracy", "ROC-AUC", "balanced accuracy, chosen threshold")
N_INNER_FOLDS = 3


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


def choose_threshold(
    model: Any, x: npt.NDArray[np.float64], y: npt.NDArray[np.int64], owners: Any, *, seed: int
) -> float:
    """Return the best threshold of the shares predicted for held-out training rows."""
    shares = np.empty(len(y))
    folds = StratifiedKFold(N_INNER_FOLDS, shuffle=True, random_state=seed)
    for kept, held_out in folds.split(x, y):
        fitted = clone(model).fit(x[kept], y[kept], parties=owners[kept])
        shares[held_out] = fitted.predict_proba(x[held_out])[:, 1]
    return best_threshold(shares, y)


def score_split(
    name: str, seed: int, fold: int, n_parties: int, alpha: float | None
) -> dict[str, tuple[float, ...]]:
    """Score every method on half of a set.

    Scores have the order of :data:`SCORES`. The chosen threshold of each method is the best one on
    held-out training rows.

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
    """
    x, y = load_set(name)
    halves = StratifiedKFold(2, shuffle=True, random_state=seed).split(x, y)
    train, test = list(halves)[fold]
    owners = _assign_owners(y[train], n_parties, alpha, seed)
    client, server = PRINTED[name].thresholds
    methods: dict[str, Any] = {
        OURS: FedPNNClassifier(classes=(0, 1)),
        PAPER: FedPNNClassifier.paper(client, server, holdout=0.0, share=None, classes=(0, 1)),
        **{name: build() for name, build in BASELINES.items()},
    }
    found: dict[str, tuple[float, ...]] = {}
    for method, model in methods.items():
        with ignore_threshold_warnings(), threadpool_limits(1):  # splits are measured side by side
            model.fit(x[train], y[train], parties=owners)
            shares = model.predict_proba(x[test])[:, 1]
            threshold = choose_threshold(model, x[train], y[train], owners, seed=seed)
        halved, chosen = (
            balanced_accuracy(y[test], (shares > cut).astype(int)) for cut in (0.5, threshold)
        )
        found[method] = (halved, float(roc_auc_score(y[test], shares)), chosen)
    return found


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
    key: tuple[Scalar, ...], each: Sequence[Mapping[str, tuple[float, ...]]]
) -> list[tuple[Scalar, ...]]:
    rows: list[tuple[Scalar, ...]] = []
    for method in each[0]:
        cells: list[Scalar] = []
        for place in range(len(SCORES)):
            scores = [found[method][place] for found in each]
            gaps = [found[method][place] - found[OURS][place] for found in each]
            low, high = interval(gaps) if method != OURS and len(gaps) > 1 else (None, None)
            cells += [float(np.mean(scores)), low, high]
        rows.append((*key, method, *cells))
    return rows


_COLUMNS = (
    "method", "balanced accuracy", "less ours, low", "less ours, high", "ROC-AUC",
    "less ours, low (AUC)", "less ours, high (AUC)", SCORES[2],
    "less ours, low (chosen)", "less ours, high (chosen)",
)  # fmt: skip


def _compare(*, quick: bool, seed: int, n_jobs: int, progress: Progress) -> Findings:
    names = list(SETS)[:1] if quick else list(SETS)
    n_repeats = 1 if quick else 10
    splits = [(draw, fold) for draw in range(seed, seed + n_repeats) for fold in (0, 1)]
    jobs = [(name, draw, fold, 2, None) for name in names for draw, fold in splits]
    scores = run_each(score_split, jobs, n_jobs=n_jobs, progress=progress, label=_label)
    rows = []
    for name in names:
        scores_of_set = [found for found, job in zip(scores, jobs, strict=True) if job[0] == name]
        rows += _method_rows((name,), scores_of_set)
    return Findings(
        parameters={"repeats": n_repeats, "folds": 2, "parties": 2},
        tables=(
            ResultTable(
                name="scores",
                title="Real rows, two parties",
                columns=("set", *_COLUMNS),
                rows=tuple(rows),
                caption="Means over repeated stratified halves; 95 % intervals of the difference "
                "to FedPNN, corrected for overlapping training sets. All settings are defaults. "
                "Chosen thresholds are the best ones on held-out training rows, for every method.",
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
                caption="FedPNN and baselines on the same splits.",
            ),
        ),
    )


def _label(name: str, seed: int, fold: int, n_parties: int, _alpha: float | None) -> str:
    return f"{name}, {n_parties} parties, split {seed}.{fold + 1}"


def _compare_skewed(*, quick: bool, seed: int, n_jobs: int, progress: Progress) -> Findings:
    names = list(SETS)[:1] if quick else list(SETS)[:2]
    parties = (5,) if quick else (2, 5, 10, 20)
    n_repeats = 1 if quick else 3
    splits = [(draw, fold) for draw in range(seed, seed + n_repeats) for fold in (0, 1)]
    jobs = [(name, draw, fold, m, 0.3) for name in names for m in parties for draw, fold in splits]
    scores = run_each(score_split, jobs, n_jobs=n_jobs, progress=progress, label=_label)
    rows = []
    for name in names:
        for m in parties:
            pairs = zip(scores, jobs, strict=True)
            rows += _method_rows(
                (name, m), [found for found, job in pairs if (job[0], job[3]) == (name, m)]
            )
    return Findings(
        parameters={"repeats": n_repeats, "folds": 2, "alpha": 0.3, "parties": list(parties)},
        tables=(
            ResultTable(
                name="scores",
                title="Label skew, Dirichlet .3",
                columns=("set", "parties", *_COLUMNS),
                rows=tuple(rows),
                caption="Means over repeated stratified halves; every party has at least one row. "
                "95 % intervals of the difference to FedPNN, corrected for overlapping training "
                "sets.",
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
                ("balanced-accuracy", "roc-auc", "chosen-threshold"), SCORES, strict=True
            )
        ),
    )


REAL = Study(
    name="fedpnn.real",
    title="Real rows",
    description="Trained and tested on real rows, with all baselines, two parties.",
    work=_compare,
)
NONIID = Study(
    name="fedpnn.noniid",
    title="Label skew",
    description="Dirichlet .3 label skew over 2 to 20 parties, with all baselines.",
    work=_compare_skewed,
)
