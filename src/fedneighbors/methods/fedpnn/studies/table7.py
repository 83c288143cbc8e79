"""Tables 3 to 7 of the paper, and what its Table 7 does not ask: how the models do on real rows."""

import warnings

from fedneighbors.methods.fedpnn.estimator import FedPNNClassifier
from fedneighbors.methods.fedpnn.studies.generated import (
    GENERATORS,
    Labeled,
    RealRows,
    real_rows,
    synthetic_rows,
)
from fedneighbors.methods.fedpnn.studies.nodes import REAL, NodeScore, score_model, score_nodes
from fedneighbors.methods.fedpnn.studies.printed import PRINTED
from fedneighbors.methods.fedpnn.studies.table7_tables import FIGURES, NOTES, Trial, tables
from fedneighbors.methods.fedpnn.synthesis import correlation_similarity, ks_complement, utility
from fedneighbors.records.study import Findings, Progress, Study, run_each

__all__ = ["TABLE7", "measure"]

_N_DRAWS = 3
_QUICK_SETS = ("Breast Cancer Wisconsin",)


def measure(name: str, generator: str, seed: int, quick: bool) -> Trial:
    """Return what comes of one generator on one draw of a set.

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
    with warnings.catch_warnings():
        # some of the paper's thresholds make every row a center; the tables count centers
        warnings.filterwarnings("ignore", message="(client|server)_threshold", category=UserWarning)
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
    """Mean KSComplement and correlation similarity of each class."""
    shapes, pairs = [], []
    for label in (0, 1):
        own = [x[y == label] for x, y in (real, made)]
        columns = ks_complement(*own).values()
        shapes.append(sum(columns) / len(columns))
        pairs.append(correlation_similarity(*own).mean)
    return (shapes[0], shapes[1]), (pairs[0], pairs[1])


def _trained_on_real(name: str, real: RealRows, seed: int) -> NodeScore:
    """FedPNN of the paper over two parties that have the real rows themselves."""
    model = FedPNNClassifier.paper(*PRINTED[name].thresholds, holdout=0.0, random_state=seed)
    return score_model(model.fit(*real.train), real.test, node=REAL, stage="trained on real rows")


def _label(name: str, generator: str, seed: int, _quick: bool) -> str:
    return f"{name}, {generator}, draw {seed}"


def _work(*, quick: bool, seed: int, n_jobs: int, progress: Progress) -> Findings:
    names = _QUICK_SETS if quick else tuple(PRINTED)
    draws = range(seed, seed + (1 if quick else _N_DRAWS))
    jobs = [(name, kind, draw, quick) for name in names for kind in GENERATORS for draw in draws]
    trials = run_each(measure, jobs, n_jobs=n_jobs, progress=progress, label=_label)
    return Findings(
        parameters={"draws": len(draws), "sets": [trial.title for trial in trials[:: len(draws)]]},
        tables=tables(trials),
        figures=FIGURES,
        notes=NOTES,
    )


TABLE7 = Study(
    name="fedpnn.table7",
    title="Tables 3 to 7",
    description="The paper's two phases: synthetic rows and FedPNN on them; then real rows.",
    work=_work,
)
