"""Choice of FlyNN's search space for small sets, made on other tables."""

import numpy as np
from sklearn.model_selection import StratifiedKFold

from experiments.flynn.comparison import Effort, sample_rows, two_stage_search
from experiments.harness import Findings, Study, run_each
from fedneighbors._typing import Array, Progress
from fedneighbors.datasets import load
from fedneighbors.metrics import accuracy
from fedneighbors.records import Figure, ResultTable

SPACES = {
    "40 units a row": Effort(units=120_000, units_per_row=40),
    "120 units a row": Effort(units=200_000, units_per_row=120),
    "40 units a row, density .3": Effort(units=120_000, units_per_row=40, densities=(0.3,)),
    "120 units a row, density .3": Effort(units=200_000, units_per_row=120, densities=(0.3,)),
    "120 units a row, densities .15 and .3": Effort(
        units=200_000, units_per_row=120, densities=(0.15, 0.3)
    ),
    "120 units a row, densities .15 and .3, 4 finalists": Effort(
        units=200_000, units_per_row=120, densities=(0.15, 0.3), n_finalists=4
    ),
}
"""Search spaces to compare, from the smallest to the largest."""

TABLES = (
    "USPS",
    "mfeat-karhunen",
    "mfeat-fourier",
    "mfeat-pixel",
    "semeion",
    "satimage",
    "texture",
    "segment",
)
"""Images and image features; without optdigits, of which digits is a part."""

MAX_ROWS = 1800
N_OUTER = 5
N_SCORED = 3
N_INNER = 5


def score_spaces(name: str, fold: int, seed: int, spaces: dict[str, Effort]) -> dict[str, float]:
    """Return each space's accuracy on one outer fold."""
    data = sample_rows(load(name), MAX_ROWS, seed)
    x = data.x.astype(np.float64)
    outer = StratifiedKFold(N_OUTER, shuffle=True, random_state=seed).split(x, data.y)
    train, test = list(outer)[fold]
    y: Array = data.y[train]
    inner = list(StratifiedKFold(N_INNER, shuffle=True, random_state=seed).split(y, y))
    return {
        space: accuracy(
            data.y[test], two_stage_search(x[train], y, inner, effort, seed).predict(x[test])
        )
        for space, effort in spaces.items()
    }


def _compare(*, quick: bool, seed: int, n_jobs: int, progress: Progress) -> Findings:
    tables = TABLES[4:5] if quick else TABLES
    spaces = dict(list(SPACES.items())[:2]) if quick else SPACES
    jobs = [
        (name, fold, seed, spaces) for name in tables for fold in range(1 if quick else N_SCORED)
    ]
    scores = run_each(
        score_spaces,
        jobs,
        n_jobs=n_jobs,
        progress=progress,
        label=lambda name, fold, *_: f"{name}, fold {fold + 1}",
    )
    means = {
        (name, space): float(
            np.mean([s[space] for s, job in zip(scores, jobs, strict=True) if job[0] == name])
        )
        for name in tables
        for space in spaces
    }
    overall = {space: float(np.mean([means[name, space] for name in tables])) for space in spaces}
    best = max(overall, key=overall.__getitem__)
    table = ResultTable(
        name="spaces",
        title="Held-out accuracy by search space",
        columns=("set", "space", "accuracy"),
        rows=(
            *((name, space, score) for (name, space), score in means.items()),
            *(("mean of all", space, score) for space, score in overall.items()),
        ),
        caption="All settings are chosen by cross-validation within the training folds.",
    )
    figure = Figure(
        name="spaces",
        kind="bar",
        title="Held-out accuracy by search space",
        table="spaces",
        x="set",
        y="accuracy",
        hue="space",
        caption="flynn.bundled uses the space with the best mean.",
    )
    return Findings(
        {"n_outer": N_OUTER, "n_scored": N_SCORED, "n_inner": N_INNER, "most_rows": MAX_ROWS},
        (table,),
        (figure,),
        (f"Best on average: {best}.",),
    )


STUDY = Study(
    name="flynn.spaces",
    title="Search spaces",
    description="Accuracy by search space on tables other than the small well-known sets.",
    work=_compare,
)
