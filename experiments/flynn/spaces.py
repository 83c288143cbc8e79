"""Choice of FlyNN's search space for small sets, made on other tables."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.model_selection import StratifiedKFold

from experiments.flynn.comparison import sample_rows
from experiments.flynn.tuning import Split
from experiments.harness import Findings, Study, run_each
from fedneighbors._typing import Array, Progress
from fedneighbors.datasets import load
from fedneighbors.methods.flynn._scoring import Candidate, list_candidates
from fedneighbors.methods.flynn._selection import FlyNNSearchCV
from fedneighbors.metrics import accuracy
from fedneighbors.records import Figure, ResultTable

Spaces = Mapping[str, Mapping[str, Any]]

SCREEN_UNITS = 20_000
LARGE = {"max_units": 200_000, "units_per_row": 120}
SPACES: dict[str, dict[str, Any]] = {
    "40 units a row": {},
    "120 units a row": LARGE,
    "40 units a row, density .3": {"densities": (0.3,)},
    "120 units a row, density .3": {**LARGE, "densities": (0.3,)},
    "120 units a row, densities .15 and .3": {**LARGE, "densities": (0.15, 0.3)},
    "120 units a row, densities .15 and .3, 4 finalists": {
        **LARGE,
        "densities": (0.15, 0.3),
        "n_finalists": 4,
    },
}
"""Search spaces to compare, from the smallest to the largest.

``densities`` are additional fractions of the hashed features that a unit sums, tried with mirrored
features (the paper's Table 6 uses .3 for digits); the others are arguments of the search.
"""

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


def search_space(
    space: Mapping[str, Any], n_features: int, folds: Sequence[Split], seed: int, *, n_units: int
) -> FlyNNSearchCV:
    """Return the search over a space, with ``n_units`` in the first stage."""
    options = dict(space)
    width = 2 * n_features
    dense = [
        Candidate(scaling, "mirror", n_units, max(2, round(share * width)))
        for share in options.pop("densities", ())
        for scaling in ("feature", "global")
    ]
    candidates = [*list_candidates(n_features, n_units=n_units), *dense]
    return FlyNNSearchCV(folds, candidates=candidates, random_state=seed, **options)


def score_spaces(name: str, fold: int, seed: int, spaces: Spaces) -> dict[str, float]:
    """Return each space's accuracy on one outer fold."""
    data = sample_rows(load(name), MAX_ROWS, seed)
    x = data.x.astype(np.float64)
    outer = StratifiedKFold(N_OUTER, shuffle=True, random_state=seed).split(x, data.y)
    train, test = list(outer)[fold]
    y: Array = data.y[train]
    inner = list(StratifiedKFold(N_INNER, shuffle=True, random_state=seed).split(y, y))
    return {
        name: accuracy(
            data.y[test],
            search_space(space, x.shape[1], inner, seed, n_units=SCREEN_UNITS)
            .fit(x[train], y)
            .predict(x[test]),
        )
        for name, space in spaces.items()
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
