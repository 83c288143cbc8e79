"""Tables 3 to 7 of the paper; Table 7 also with models trained on real rows."""

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path

from experiments.fedpnn.generated import (
    GENERATORS,
    Labeled,
    RealRows,
    sample_synthetic_rows,
    split_real_rows,
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
"""Number of draws; a draw takes from seconds to minutes."""
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
        Seed of all splits, trainings and samples.
    quick : bool
        Train for one epoch.

    Raises
    ------
    MissingExtraError
        If PyTorch is not installed.
    """
    real = split_real_rows(name, seed)
    synthetic = sample_synthetic_rows(name, generator, real, seed=seed, quick=quick)
    with ignore_threshold_warnings():
        return Trial(
            name=name,
            generator=generator,
            title=real.title,
            n_real=len(real.train[1]) + len(real.test[1]),
            n_features=real.train[0].shape[1],
            n_made=len(synthetic[1]),
            positive_share=float(synthetic[1].mean()),
            similarity=_measure_similarity(real.train, synthetic),
            nodes=tuple(score_nodes(synthetic, real.test, PRINTED[name].thresholds, seed=seed)),
            trained_on_real=_score_trained_on_real(name, real, seed),
            boosting=utility(real.train, synthetic, real.test, random_state=seed),
        )


def _measure_similarity(
    real: Labeled, synthetic: Labeled
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return each class's mean KSComplement and correlation similarity."""
    ks_complements, correlations = [], []
    for label in (0, 1):
        rows_of_class = [x[y == label] for x, y in (real, synthetic)]
        columns = ks_complement(*rows_of_class).values()
        ks_complements.append(sum(columns) / len(columns))
        correlations.append(correlation_similarity(*rows_of_class).mean)
    return (ks_complements[0], ks_complements[1]), (correlations[0], correlations[1])


def _score_trained_on_real(name: str, real: RealRows, seed: int) -> NodeScore:
    """Score the paper's FedPNN, trained on real rows of two parties."""
    model = FedPNNClassifier.paper(*PRINTED[name].thresholds, holdout=0.0, random_state=seed)
    return score_model(model.fit(*real.train), real.test, node=REAL, stage="trained on real rows")


def _recall(name: str, generator: str, seed: int, quick: bool, journal: Path | None) -> Trial:
    return Journal(journal).get_or_measure(
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
    Journal(journal).repair()
    jobs = [
        (name, generator, seed + draw, quick, journal)
        for draw in range(max(draws.values()))
        for name, n_draws in draws.items()
        for generator in GENERATORS
        if draw < n_draws
    ]
    trials = run_each(_recall, jobs, n_jobs=n_jobs, progress=progress, label=_label)
    return Findings(
        parameters={"draws": [f"{name}: {n}" for name, n in draws.items()]},
        tables=tables(trials),
        figures=FIGURES,
        notes=NOTES,
    )


TABLE7 = Study(
    name="fedpnn.table7",
    title="Tables 3 to 7",
    description="The paper's two phases: synthetic rows, FedPNN on them; also FedPNN on real rows.",
    work=_work,
    keeps_journal=True,
)
