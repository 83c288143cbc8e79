"""Membership inference from kNN-Per's predictions, with and without private training."""

import warnings
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from experiments.attacks.limits import largest_auc
from experiments.attacks.membership import (
    likelihood_scores,
    log_odds,
    loss_scores,
    true_positive_rate,
)
from experiments.attacks.scores import auc
from experiments.bootstrap import ENDS, Interval, mean_interval
from experiments.harness import Findings, Study, run_each
from fedneighbors._typing import Floats, Integers, Progress
from fedneighbors.datasets import load
from fedneighbors.methods.knnper.estimator import KNNPerClassifier
from fedneighbors.privacy._policy import Privacy
from fedneighbors.records import Figure, ResultTable, Scalar

N_CLIENTS = 4
FALSE_POSITIVE_RATE = 0.01
MISLABELLED = 0.1
DELTA = "1e-4"

TARGETS = ("network", "own client", "another client")
"""Queried models: the network, the client that may store the row, and another client."""

BUDGETS: dict[str, Privacy | None] = {
    "none": None,
    "epsilon 8": Privacy(epsilon=8, delta=DELTA, classes=tuple(range(10)), bounds=(0.0, 16.0)),
    "epsilon 1": Privacy(epsilon=1, delta=DELTA, classes=tuple(range(10)), bounds=(0.0, 16.0)),
}

ROWS = ("all", "mislabelled")


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions of one model for all rows, half of which it was trained on.

    Parameters
    ----------
    members : bool array of shape (n_rows,)
        True for the rows of the training.
    probabilities : dict of str to float64 array of shape (n_rows, n_classes)
        Predictions by queried model, one of :data:`TARGETS`.
    """

    members: npt.NDArray[np.bool_]
    probabilities: dict[str, Floats]


def _load_rows(seed: int) -> tuple[Floats, Integers, npt.NDArray[np.bool_], Integers]:
    """Return digits, labels, a mask of wrong labels, and owners."""
    loaded, rng = load("digits"), np.random.default_rng(seed)
    labels = np.asarray(loaded.y, np.int64).copy()
    wrong = rng.random(len(labels)) < MISLABELLED
    labels[wrong] = (labels[wrong] + rng.integers(1, 10, int(wrong.sum()))) % 10
    owners = rng.integers(0, N_CLIENTS, len(labels))
    return np.asarray(loaded.x, np.float64), labels, wrong, owners


def train_and_predict(budget: str, number: int, seed: int, n_rounds: int) -> Predictions:
    """Return the predictions of a model trained on half the rows.

    Parameters
    ----------
    budget : str
        Privacy budget: ``"none"``, ``"epsilon 8"`` or ``"epsilon 1"``.
    number : int
        Number of the random half.
    seed : int
        Seed of rows, halves and initial weights.
    n_rounds : int
        Number of training rounds.
    """
    x, y, _, owners = _load_rows(seed)
    members = np.random.default_rng((seed, 1 + number, 1)).random(len(y)) < 0.5
    model = KNNPerClassifier(
        hidden=(64, 32),
        n_rounds=n_rounds,
        learning_rate=0.1,
        weight_decay=0.0,
        privacy=BUDGETS[budget],
        random_state=seed + number,
    )
    model.fit(x[members], y[members], parties=owners[members])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="parties= is missing")
        by_network = model.predict_proba(x)
    return Predictions(
        members,
        {
            "network": by_network,
            "own client": model.predict_proba(x, parties=owners),
            "another client": model.predict_proba(x, parties=(owners + 1) % N_CLIENTS),
        },
    )


def _score_attacks(
    models: list[Predictions], target: str, y: Integers, mask: npt.NDArray[np.bool_]
) -> list[tuple[str, Interval, float]]:
    """Return each attack's mean AUC and hit rate on masked rows.

    The likelihood-ratio attack on a model uses the others as shadow models.
    """
    odds = np.array([log_odds(model.probabilities[target], y) for model in models])
    absent = np.array([~model.members for model in models])
    each: dict[str, list[tuple[float, float]]] = {"loss": [], "likelihood ratio": []}
    for index, model in enumerate(models):
        others = np.arange(len(models)) != index
        scores = {
            "loss": loss_scores(model.probabilities[target], y),
            "likelihood ratio": likelihood_scores(odds[index], odds[others], absent[others]),
        }
        for attack, score in scores.items():
            members, nonmembers = score[model.members & mask], score[~model.members & mask]
            hits = true_positive_rate(members, nonmembers, FALSE_POSITIVE_RATE)
            each[attack].append((auc(members, nonmembers), hits))
    return [
        (
            attack,
            mean_interval([area for area, _ in results]),
            float(np.mean([h for _, h in results])),
        )
        for attack, results in each.items()
    ]


def _auc_limit(budget: str, target: str) -> float | None:
    """Return the largest AUC of any attack, if bounded."""
    privacy = BUDGETS[budget]
    return None if privacy is None or target == "own client" else largest_auc(privacy.total)


def _outside_accuracy(models: list[Predictions], target: str, y: Integers) -> Interval:
    """Return the accuracy on non-members, with noisy labels."""
    each = [(m.probabilities[target].argmax(axis=1) == y)[~m.members].mean() for m in models]
    return mean_interval([float(share) for share in each])


def _work(*, quick: bool, seed: int, n_jobs: int, progress: Progress) -> Findings:
    n_models, n_rounds = (3, 6) if quick else (8, 40)
    jobs = [(budget, number, seed, n_rounds) for budget in BUDGETS for number in range(n_models)]
    trained = run_each(
        train_and_predict,
        jobs,
        n_jobs=n_jobs,
        progress=progress,
        label=lambda budget, number, *_: f"{budget}, half {number}",
    )
    _, y, wrong, _ = _load_rows(seed)
    masks = {"all": np.ones(len(y), bool), "mislabelled": wrong}
    rows: list[tuple[Scalar, ...]] = []
    quality: list[tuple[Scalar, ...]] = []
    for budget in BUDGETS:
        models = [result for result, job in zip(trained, jobs, strict=True) if job[0] == budget]
        for target in TARGETS:
            quality.append((budget, target, *_outside_accuracy(models, target, y)))
            for kind in ROWS:
                for attack, area, hits in _score_attacks(models, target, y, masks[kind]):
                    half, panel = (area[2] - area[1]) / 2, f"{kind} rows, {attack}"
                    limit = _auc_limit(budget, target)
                    rows.append((budget, target, kind, attack, *area, hits, limit, half, panel))
    return Findings(
        parameters={"models": n_models, "rounds": n_rounds, "clients": N_CLIENTS, "delta": DELTA},
        tables=(_attacks(rows), _accuracy(quality)),
        figures=(_figure(),),
        notes=(
            "A tenth of the labels is wrong; such rows can only be memorized.",
            "A budget covers the network, but not predictions from a client's own memory. The "
            "memory of another client never contains the row.",
        ),
    )


def _attacks(rows: list[tuple[Scalar, ...]]) -> ResultTable:
    return ResultTable(
        name="attacks",
        title="Membership inference from predictions",
        columns=(
            "budget", "asked", "rows", "attack", "AUC", *ENDS, "hits at 1 % alarms", "limit",
            "half the interval", "panel",
        ),
        rows=tuple(rows),
        caption=(
            "Means over models trained on random halves; the likelihood-ratio attack uses the "
            "other models as shadow models. Intervals: 95 %, Student's t over the models. Limit: "
            "the AUC that no attack on one row can exceed under the budget."
        ),
    )  # fmt: skip


def _accuracy(rows: list[tuple[Scalar, ...]]) -> ResultTable:
    return ResultTable(
        name="accuracy",
        title="Accuracy under the budgets",
        columns=("budget", "asked", "accuracy", *ENDS),
        rows=tuple(rows),
        caption="On non-members, with wrong labels included: about .9 is the maximum. "
        "Intervals: 95 %, Student's t over the models.",
    )


def _figure() -> Figure:
    return Figure(
        name="attacks",
        kind="bar",
        title="AUC of the attacks",
        table="attacks",
        x="asked",
        y="AUC",
        hue="budget",
        facet="panel",
        error="half the interval",
        caption="An AUC of .5 is chance. Error bars: width of the 95 % interval.",
    )


MEMBERSHIP = Study(
    name="knnper.membership",
    title="Membership inference on released predictions",
    description="Loss and likelihood-ratio attacks, with and without private steps.",
    work=_work,
)
