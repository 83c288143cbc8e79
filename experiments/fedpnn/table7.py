"""Tables 3 to 7 of the paper, and models trained on real rows as an addition to Table 7."""

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path

from experiments.fedpnn.generated import (
    GENERATORS,
    Labeled,
    RealRows,
    real_rows,
    synthetic_rows,
)
from experiments.fedpnn.nodes import REAL, NodeScore, score_model, score_nodes
from experiments.fedpnn.printed import PRINTED
from experiments.fedpnn.real import ignore_threshold_warnings
from experiments.fedpnn.table7_tables import FIGURES, NOTES, Trial, tables
from experiments.harness import Findings, Journal, Study, run_each
from fedneighbors._typing import Progress
from fedneighbors.methods.fedpnn.estimator import FedPNNClassifier
from fedneighbors.methods.fedpnn.synthesis import correlation_similarity, ks_complement, utility

_N_DRAWS: Mapping[str, int] = {
    "Breast Cancer Wisconsin": 5,
    "Polish bankruptcy, year 1": 2,
    "Credit card, subset": 2,
    "OVA Omentum": 1,
}
"""By what a draw costs: from seconds to minutes."""
_QUICK: Mapping[str, int] = {"Breast Cancer Wisconsin": 1}


def measure(name: str, generator: str, seed: int, quick: bool) -> Trial:
    """Measure one generator on one draw of a set.

    Parameters
    ----------
    name : str
        A name in :data:`~.printed.PRINTED`.
    generator : str
        A name in :data:`~.generated.GENERATORS`.
    seed : int
        Of the split, the training, the rows and the dealing.
    quick : bool
        A single epoch.

    Raises
    ------
    MissingExtraError
        If PyTorch is not installed.
    """
    real = real_rows(name, seed)
    made = synthetic_rows(name, generator, real, seed=seed, quick=quick)
    with ignore_threshold_warnings():
        return Trial(
            name=name,
            generator=generator,
            title=real.title,
            n_real=len(real.train[1]) + len(real.test[1]),
            n_features=real.train[0].shape[1],
            n_made=len(made[1]),
            positive_share=float(made[1].mean()),
            similarity=_similarity(real.train, made),
            nodes=tuple(score_nodes(made, real.test, PRINTED[name].thresholds, seed=seed)),
            trained_on_real=_trained_on_real(name, real, seed),
            boosting=utility(real.train, made, real.test, random_state=seed),
        )


def _similarity(real: Labeled, made: Labeled) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return each class's mean KSComplement and correlation similarity."""
    shapes, pairs = [], []
    for label in (0, 1):
        own = [x[y == label] for x, y in (real, made)]
        columns = ks_complement(*own).values()
        shapes.append(sum(columns) / len(columns))
        pairs.append(correlation_similarity(*own).mean)
    return (shapes[0], shapes[1]), (pairs[0], pairs[1])


def _trained_on_real(name: str, real: RealRows, seed: int) -> NodeScore:
    """Fit the paper's FedPNN over two parties with real rows."""
    model = FedPNNClassifier.paper(*PRINTED[name].thresholds, holdout=0.0, random_state=seed)
    return score_model(model.fit(*real.train), real.test, node=REAL, stage="trained on real rows")


def _recalled(name: str, generator: str, seed: int, quick: bool, journal: Path | None) -> Trial:
    return Journal(journal).recall(
        ("table7", name, generator, seed, quick),
        measure=partial(measure, name, generator, seed, quick),
        encode=asdict,
        decode=Trial.from_dict,
    )


def _label(name: str, generator: str, seed: int, _quick: bool, _journal: Path | None) -> str:
    return f"{name}, {generator}, draw {seed}"


def _work(
    *, quick: bool, seed: int, n_jobs: int, progress: Progress, journal: Path | None
) -> Findings:
    draws = _QUICK if quick else _N_DRAWS
    Journal(journal).mend()
    jobs = [
        (name, generator, seed + draw, quick, journal)
        for draw in range(max(draws.values()))
        for name, n_draws in draws.items()
        for generator in GENERATORS
        if draw < n_draws
    ]
    trials = run_each(_recalled, jobs, n_jobs=n_jobs, progress=progress, label=_label)
    return Findings(
        parameters={"draws": [f"{name}: {n}" for name, n in draws.items()]},
        tables=tables(trials),
        figures=FIGURES,
        notes=NOTES,
    )


TABLE7 = Study(
    name="fedpnn.table7",
    title="Tables 3 to 7",
    description="The paper's two phases: synthetic rows and FedPNN on them; then real rows.",
    work=_work,
    keeps_journal=True,
)
