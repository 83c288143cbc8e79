"""Effects of the two thresholds (Figures 7 to 14 of the paper), on synthetic and on real rows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from experiments.fedpnn.generated import Labeled, sample_synthetic_rows, split_real_rows
from experiments.fedpnn.nodes import NodeScore, score_model
from experiments.fedpnn.printed import MODIFIED, PRINTED
from experiments.fedpnn.real import ignore_threshold_warnings
from experiments.harness import Findings, Journal, Study, run_each
from fedneighbors._typing import Progress
from fedneighbors.methods.fedpnn.estimator import FedPNNClassifier, split_rows
from fedneighbors.records import Figure, ResultTable, Scalar

CLIENT, SERVER = "client", "server"
SYNTHETIC, CROSSED, REAL = "synthetic", "synthetic, tested on real", "real"
_STEP, _N_STEPS = 0.02, 4
_N_DRAWS: Mapping[str, int] = {
    "Breast Cancer Wisconsin": 5,
    "Polish bankruptcy, year 1": 1,
    "Credit card, subset": 1,
    "OVA Omentum": 1,
}
"""Number of draws; a draw takes from seconds to minutes."""
_QUICK: Mapping[str, int] = {"Breast Cancer Wisconsin": 1}
_SERVER_SHARE = 0.1


@dataclass(frozen=True)
class Point:
    """FedPNN at one pair of thresholds.

    Parameters
    ----------
    swept : {"client", "server"}
        Role whose threshold is varied; the other has the value of Table 4.
    threshold : float
        Threshold of that role.
    rows : {"synthetic", "synthetic, tested on real", "real"}
        Rows for training and testing.
    score : NodeScore
        Scores of the model.
    """

    swept: str
    threshold: float
    rows: str
    score: NodeScore

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        """Return the point from the result of ``dataclasses.asdict``."""
        return cls(**(dict(raw) | {"score": NodeScore.from_dict(raw["score"])}))


Sweep = tuple[str, list[Point]]
"""Title of the rows, and all points of a draw."""


def steps(best: float, *, quick: bool = False) -> list[float]:
    """Return positive thresholds around the paper's, in steps of .02.

    Parameters
    ----------
    best : float
        The paper's threshold (Table 4).
    quick : bool
        Only one step to each side.

    Examples
    --------
    >>> steps(0.05)
    [0.01, 0.03, 0.05, 0.07, 0.09, 0.11, 0.13]
    """
    reach = 1 if quick else _N_STEPS
    places = [round(best + step * _STEP, 6) for step in range(-reach, reach + 1)]
    return [place for place in places if place > 0]


def sweep(name: str, seed: int, quick: bool) -> Sweep:
    """Return the title of the rows and both sweeps on one draw.

    Synthetic rows come from the modified CTGAN; a tenth is the test set, as is the server's part in
    the paper. Real test rows were not used to train the generator.

    Parameters
    ----------
    name : str
        A name in :data:`~.printed.PRINTED`.
    seed : int
        Seed of all splits, trainings and samples.
    quick : bool
        Train the generator for one epoch; one step to each side.

    Raises
    ------
    MissingExtraError
        If PyTorch is not installed.
    """
    real = split_real_rows(name, seed)
    x, y = sample_synthetic_rows(name, MODIFIED, real, seed=seed, quick=quick)
    _, is_test = split_rows(y, None, share=2, holdout=_SERVER_SHARE, seed=seed)
    train, test = (x[~is_test], y[~is_test]), (x[is_test], y[is_test])
    client, server = PRINTED[name].thresholds
    pairs = [(SERVER, step, (client, step)) for step in steps(server, quick=quick)]
    pairs += [(CLIENT, step, (step, server)) for step in steps(client, quick=quick)]
    points: list[Point] = []
    for swept, step, thresholds in pairs:
        tests = {SYNTHETIC: test, CROSSED: real.test}
        points += _score_points(swept, step, _fit(train, thresholds, seed), tests)
        points += _score_points(swept, step, _fit(real.train, thresholds, seed), {REAL: real.test})
    return real.title, points


def _fit(rows: Labeled, thresholds: tuple[float, float], seed: int) -> FedPNNClassifier:
    """Fit the paper's FedPNN on rows split over two clients."""
    model = FedPNNClassifier.paper(*thresholds, holdout=0.0, random_state=seed)
    with ignore_threshold_warnings():
        return model.fit(*rows)


def _score_points(
    swept: str, threshold: float, model: FedPNNClassifier, tests: dict[str, Labeled]
) -> Iterator[Point]:
    for rows, test in tests.items():
        yield Point(swept, threshold, rows, score_model(model, test, node=rows, stage=swept))


def _encode(found: Sweep) -> list[Any]:
    title, points = found
    return [title, [asdict(point) for point in points]]


def _decode(raw: list[Any]) -> Sweep:
    title, points = raw
    return title, [Point.from_dict(point) for point in points]


def _recall(name: str, seed: int, quick: bool, journal: Path | None) -> Sweep:
    return Journal(journal).get_or_measure(
        ("sensitivity", name, seed, quick),
        measure=partial(sweep, name, seed, quick),
        encode=_encode,
        decode=_decode,
    )


def _label(name: str, seed: int, _quick: bool, _journal: Path | None) -> str:
    return f"{name}, draw {seed}"


def _work(
    *, quick: bool, seed: int, n_jobs: int, progress: Progress, journal: Path | None
) -> Findings:
    draws = _QUICK if quick else _N_DRAWS
    Journal(journal).repair()
    jobs = [
        (name, seed + draw, quick, journal)
        for draw in range(max(draws.values()))
        for name, n_draws in draws.items()
        if draw < n_draws
    ]
    found = run_each(_recall, jobs, n_jobs=n_jobs, progress=progress, label=_label)
    return Findings(
        parameters={"draws": [f"{name}: {n}" for name, n in draws.items()], "step": _STEP},
        tables=tuple(
            table
            for swept in (SERVER, CLIENT)
            for table in _tables(swept, _group_scores(swept, found))
        ),
        figures=tuple(figure for swept in (SERVER, CLIENT) for figure in _figures(swept)),
        notes=(
            "The paper's figures show balanced accuracy and the number of centers on synthetic "
            "rows. Their ranges are not given in the text; ours extend .08 to both sides of "
            "Table 4.",
        ),
    )


_AXES = ("balanced accuracy", "ROC-AUC")
_OTHER = {CLIENT: SERVER, SERVER: CLIENT}


Groups = dict[tuple[str, str, float], list[NodeScore]]


def _group_scores(swept: str, found: Sequence[Sweep]) -> Groups:
    """Group the scores of all draws by set, rows and threshold."""
    groups: Groups = {}
    for title, points in found:
        for point in points:
            if point.swept == swept:
                groups.setdefault((title, point.rows, point.threshold), []).append(point.score)
    return groups


def _tables(swept: str, groups: Groups) -> tuple[ResultTable, ResultTable]:
    rows: list[tuple[Scalar, ...]] = []
    centers: list[tuple[Scalar, ...]] = []
    for (title, kind, threshold), scores in groups.items():
        low, high = np.mean([score.centers for score in scores], axis=0).tolist()
        accuracy = float(np.mean([score.balanced_accuracy for score in scores]))
        area = float(np.mean([score.roc_auc for score in scores]))
        rows.append((title, kind, threshold, accuracy, area, low + high, low, high))
        if kind != CROSSED:  # same model as SYNTHETIC
            centers.append((title, f"{kind}, negative", threshold, low))
            centers.append((title, f"{kind}, positive", threshold, high))
    return (
        ResultTable(
            name=swept,
            title=f"Dthr of the {swept}",
            columns=(
                "set", "rows", "Dthr", *_AXES, "centers", "negative centers", "positive centers",
            ),
            rows=tuple(rows),
            caption=f"Dthr of the {_OTHER[swept]} as in Table 4. Means over draws. "
            "omentum_surrogate is generated and has only the shape of OVA Omentum.",
        ),
        ResultTable(
            name=f"{swept}-centers",
            title=f"Centers over Dthr of the {swept}",
            columns=("set", "centers of", "Dthr", "centers"),
            rows=tuple(centers),
            caption="Grouped by training rows.",
        ),
    )  # fmt: skip


def _figures(swept: str) -> Iterator[Figure]:
    for name, y in zip(("balanced-accuracy", "roc-auc"), _AXES, strict=True):
        yield Figure(
            name=f"{swept}-{name}",
            kind="line",
            title=f"{y[0].upper()}{y[1:]} over Dthr of the {swept}",
            table=swept,
            x="Dthr",
            y=y,
            hue="rows",
            facet="set",
            caption=f"FedPNN with the paper's settings, except Dthr of the {swept}.",
        )
    yield Figure(
        name=f"{swept}-centers",
        kind="line",
        title=f"Centers over Dthr of the {swept}",
        table=f"{swept}-centers",
        x="Dthr",
        y="centers",
        hue="centers of",
        facet="set",
        log_y=True,
        caption="Both classes, on synthetic and on real rows.",
    )


SENSITIVITY = Study(
    name="fedpnn.sensitivity",
    title="Figures 7 to 14",
    description="Both thresholds in steps of .02, on synthetic and on real rows.",
    work=_work,
    keeps_journal=True,
)
