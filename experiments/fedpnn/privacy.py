"""FedPNN under different privacy budgets, on real rows with declared bounds."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold
from threadpoolctl import threadpool_limits

from experiments.fedpnn.real import load_set
from experiments.harness import Findings, Study, run_each
from fedneighbors._typing import Floats, Progress
from fedneighbors.datasets import load
from fedneighbors.errors import PrivacyError
from fedneighbors.federation._loop import FrameTransport, run_rounds
from fedneighbors.federation._roles import serve
from fedneighbors.methods.fedpnn.estimator import FedPNNClassifier
from fedneighbors.methods.fedpnn.private._party import PrivateFedPNNParty
from fedneighbors.methods.fedpnn.private.protocol import coordinate_private
from fedneighbors.metrics import balanced_accuracy
from fedneighbors.partition import iid
from fedneighbors.privacy._policy import Privacy
from fedneighbors.privacy.ledger._ledger import Ledger
from fedneighbors.records import Figure, ResultTable, Scalar
from fedneighbors.tabular._ownership import rows_by_party

EXACT = "without privacy"
DELTA = "1e-5"

GUARDS: Mapping[str, Privacy] = {
    "Gaussian": Privacy(epsilon=1, delta=DELTA),
    "Laplace": Privacy(epsilon=1),
}
"""Noise that each party adds by itself; :func:`score_private` replaces epsilon.

Masked sums of two parties need the same noise: a party can subtract its own noise share."""

_EPSILONS = ("1/10", "1/4", "1/2", "1", "2", "4", "8")
_N_PARTIES = 2
_COLUMNS = ("balanced accuracy", "deviation", "ROC-AUC", "deviation (AUC)")

_Bound = float | tuple[float, ...]


@dataclass(frozen=True)
class Case:
    """A data set and its declared bounds.

    Parameters
    ----------
    source : str
        A key of :data:`~.real.SETS`, or the name of a scikit-learn data set.
    low, high : float or tuple of float
        Lowest and highest value, one for all columns or one per column.
    wider : float
        Factor by which the ranges are widened around their centers.
    marks_missing : bool
        True adds a column of 0 and 1 per column that marks missing cells.
    """

    source: str
    low: _Bound
    high: _Bound
    wider: float = 1.0
    marks_missing: bool = False


# Lowest and highest values as the description of scikit-learn's load_breast_cancer lists them.
DIAGNOSTIC = Case(
    "breast_cancer",
    low=(
        6.981, 9.71, 43.79, 143.5, 0.053, 0.019, 0.0, 0.0, 0.106, 0.05,
        0.112, 0.36, 0.757, 6.802, 0.002, 0.002, 0.0, 0.0, 0.008, 0.001,
        7.93, 12.02, 50.41, 185.2, 0.071, 0.027, 0.0, 0.0, 0.156, 0.055,
    ),
    high=(
        28.11, 39.28, 188.5, 2501.0, 0.163, 0.345, 0.427, 0.201, 0.304, 0.097,
        2.873, 4.885, 21.98, 542.2, 0.031, 0.135, 0.396, 0.053, 0.079, 0.03,
        36.04, 49.54, 251.2, 4254.0, 0.223, 1.058, 1.252, 0.291, 0.664, 0.208,
    ),
)  # fmt: skip
_GRADES = Case("Breast Cancer Wisconsin", low=1.0, high=10.0)  # documented: grades of 1 to 10
_RATIOS = Case("Polish bankruptcy, year 1", low=-1.0, high=1.0)
_COMPONENTS = Case("Credit card, subset", low=-5.0, high=5.0)

CASES: Mapping[str, Case] = {
    "Breast Cancer Wisconsin": _GRADES,
    "the same, bounds twice as wide": replace(_GRADES, wider=2.0),
    "Breast Cancer, diagnostic": DIAGNOSTIC,
    "diagnostic, bounds twice as wide": replace(DIAGNOSTIC, wider=2.0),
    "Polish bankruptcy, year 1": _RATIOS,
    "Polish, missing cells told": replace(_RATIOS, marks_missing=True),
    "Credit card, subset": _COMPONENTS,
}
"""Cases to measure. The bounds of the last three are rough guesses.

For the ratios of "Polish bankruptcy", -5 to 5 did worse on three fifths of the rows; no others were
tried."""


def load_case(case: Case) -> tuple[Floats, npt.NDArray[np.int64], Floats]:
    """Return rows, binary labels (1: rarer class), and bounds.

    Bounds have shape (n_features, 2).
    """
    if case.source == "breast_cancer":
        loaded = load(case.source)
        x, y = loaded.x, (loaded.y == 0).astype(np.int64)
    else:
        x, y = load_set(case.source)
    low, high = (np.broadcast_to(bound, x.shape[1]) for bound in (case.low, case.high))
    middle, half = (low + high) / 2, (high - low) / 2 * case.wider
    bounds = np.stack([middle - half, middle + half], axis=1)
    if case.marks_missing:
        x = np.hstack([x, np.isnan(x).astype(np.float64)])
        bounds = np.vstack([bounds, np.tile([0.0, 1.0], (len(bounds), 1))])
    return x, y, bounds


def score_private(
    name: str, seed: int, fold: int, guard: str, epsilon: str
) -> tuple[float, float] | None:
    """Return balanced accuracy and ROC-AUC on half a data set.

    The result is None if the release is refused.

    Parameters
    ----------
    name : str
        A name in :data:`CASES`.
    seed, fold : int
        Seed of the halves and of the owners of rows; index of the half for the test.
    guard : str
        A name in :data:`GUARDS`, or ``"without privacy"``.
    epsilon : str
        Exact text of the number; empty without privacy.

    Notes
    -----
    Noise is seeded by seed and fold, so that the figures are reproducible.
    """
    x, y, bounds = _load_cached(name)
    train, test = list(StratifiedKFold(2, shuffle=True, random_state=seed).split(x, y))[fold]
    owners = iid(len(train), _N_PARTIES, seed=seed)
    with threadpool_limits(1):  # splits are measured side by side
        if guard == EXACT:
            model = FedPNNClassifier().fit(x[train], y[train], parties=owners)
            shares = model.predict_proba(x[test])[:, 1]
        else:
            privacy_bounds = (tuple(bounds[:, 0].tolist()), tuple(bounds[:, 1].tolist()))
            classes = tuple(np.unique(y).tolist())
            privacy = replace(
                GUARDS[guard], epsilon=epsilon, bounds=privacy_bounds, classes=classes
            )
            try:
                private = _train(x[train], y[train], owners, privacy, [seed, fold])
            except PrivacyError:  # epsilon is too small: noise would exceed the sums
                return None
            densities = private.log_densities(x[test])
            shares = 1 / (1 + np.exp(densities[:, 0] - densities[:, 1]))
    accuracy = balanced_accuracy(y[test], (shares > 0.5).astype(int))
    return accuracy, float(roc_auc_score(y[test], shares))


@lru_cache(maxsize=2)
def _load_cached(name: str) -> tuple[Floats, npt.NDArray[np.int64], Floats]:
    return load_case(CASES[name])


def _train(x: Floats, y: Any, owners: Any, privacy: Privacy, seeds: list[int]) -> Any:
    with ExitStack() as stack:
        parties = {}
        for place, (name, rows) in enumerate(rows_by_party(owners, len(y)).items()):
            ledger = stack.enter_context(Ledger(":memory:", party=name))
            ledger.set_budget("table", privacy.total)
            bits = np.random.default_rng([*seeds, place]).bytes
            parties[name] = PrivateFedPNNParty(
                name, x[rows], y[rows], privacy=privacy, ledger=ledger, bits=bits
            )

        def exchange(frames: Mapping[str, bytes]) -> tuple[dict[str, bytes], dict[str, str]]:
            return {name: serve(parties[name], frame) for name, frame in frames.items()}, {}

        return run_rounds(
            coordinate_private(privacy), FrameTransport(exchange, tuple(parties))
        ).result


def _jobs(
    names: list[str], epsilons: tuple[str, ...], splits: list[tuple[int, int]]
) -> list[tuple[str, int, int, str, str]]:
    budgets = [(EXACT, ""), *((guard, epsilon) for guard in GUARDS for epsilon in epsilons)]
    return [
        (name, seed, fold, guard, epsilon)
        for name in names
        for guard, epsilon in budgets
        for seed, fold in splits
    ]


def _work(*, quick: bool, seed: int, n_jobs: int, progress: Progress) -> Findings:
    names = list(CASES)[:1] if quick else list(CASES)
    epsilons = ("1", "8") if quick else _EPSILONS
    n_repeats = 1 if quick else 10
    splits = [(each, fold) for each in range(seed, seed + n_repeats) for fold in (0, 1)]
    jobs = _jobs(names, epsilons, splits)
    scores = run_each(score_private, jobs, n_jobs=n_jobs, progress=progress, label=_label)
    found: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for (name, _, _, guard, epsilon), score in zip(jobs, scores, strict=True):
        if score is not None:
            found.setdefault((name, guard, epsilon), []).append(score)
    return Findings(
        parameters={
            "repeats": n_repeats,
            "folds": 2,
            "parties": _N_PARTIES,
            "delta of Gaussian noise": float(DELTA),
        },
        tables=(
            ResultTable(
                name="scores",
                title="Balanced accuracy by privacy budget, two parties",
                columns=("set", "noise", "epsilon", *_COLUMNS),
                rows=tuple(
                    (name, guard, float(Fraction(epsilon)), *_summarize(each))
                    for (name, guard, epsilon), each in found.items()
                    if guard != EXACT
                ),
                caption="Means and standard deviations over repeated stratified halves, each with "
                "its own noise. Gaussian: delta 1e-5. Laplace: delta 0; refused releases are left "
                "out. Bounds: grades of 1 to 10; as scikit-learn documents them (diagnostic); "
                "guesses of -1 to 1 (Polish) and -5 to 5 (credit card).",
            ),
            ResultTable(
                name="exact",
                title="FedPNN without privacy on the same halves",
                columns=("set", *_COLUMNS),
                rows=tuple((name, *_summarize(found[name, EXACT, ""])) for name in names),
                caption="Uses clusters and quantiles of the rows; bounds have no effect.",
            ),
        ),
        figures=(
            Figure(
                name="epsilon",
                kind="line",
                title="Balanced accuracy by epsilon",
                table="scores",
                x="epsilon",
                y="balanced accuracy",
                hue="noise",
                facet="set",
                log_x=True,
                caption="Means over halves.",
            ),
        ),
    )


def _summarize(each: list[tuple[float, float]]) -> tuple[Scalar, ...]:
    scores = np.array(each)
    cells: list[Scalar] = []
    for place in (0, 1):
        cells += [float(scores[:, place].mean()), float(scores[:, place].std())]
    return tuple(cells)


def _label(name: str, seed: int, fold: int, guard: str, epsilon: str) -> str:
    return f"{name}, {guard} {epsilon}, split {seed}.{fold + 1}"


PRIVACY = Study(
    name="fedpnn.privacy",
    title="Privacy budgets",
    description="Balanced accuracy for epsilon from .1 to 8, public bounds, two parties.",
    work=_work,
)
