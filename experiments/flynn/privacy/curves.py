"""Curves of figures 7 to 9 of the paper: means over repetitions, and the best T."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from experiments.flynn.privacy.sets import (
    CENTRAL,
    DEFAULT_PICKS,
    EXACT,
    EXACT_PRINTED,
    LOCAL,
    N_PARTIES,
    PICKED,
    Grid,
    Point,
)
from fedneighbors.records import Figure, ResultTable, Scalar

BEST = "paper's mechanism, best T on test rows"
BEST_DIVIDED = "the same, epsilon / 2 a party as printed"
NO_PRIVACY = (EXACT_PRINTED, EXACT)


class Key(NamedTuple):
    """Key of a mean; see :class:`~experiments.flynn.privacy.sets.Point`."""

    data: str
    setting: str
    line: str
    epsilon: float = 0.0
    n_picks: int = 0


class Mean(NamedTuple):
    """A mean over repetitions, its standard error (0 for a single one), and their number."""

    value: float
    error: float
    n: int


Means = Mapping[Key, Mean]


def compute_means(points: Iterable[Point]) -> dict[Key, Mean]:
    """Compute means over the repetitions."""
    values: dict[Key, list[float]] = defaultdict(list)
    for p in points:
        values[Key(p.data, p.setting, p.line, p.epsilon, p.n_picks)].append(p.value)
    return {key: _mean(scores) for key, scores in values.items()}


def _mean(values: list[float]) -> Mean:
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return Mean(float(np.mean(values)), deviation / len(values) ** 0.5, len(values))


def mean_difference(points: Iterable[Point], first: Key, second: Key) -> Mean | None:
    """Return the mean of ``second`` minus ``first`` over common repetitions."""
    values: dict[Key, dict[int, float]] = {first: {}, second: {}}
    for p in points:
        key = Key(p.data, p.setting, p.line, p.epsilon, p.n_picks)
        if key in values:
            values[key][p.seed] = p.value
    both = sorted(set(values[first]) & set(values[second]))
    return _mean([values[second][s] - values[first][s] for s in both]) if both else None


def slug(data: str) -> str:
    """Convert a data set's name to part of a file name."""
    return data.removeprefix("n=").replace(",", "").replace(" ", "-")


def report_picks(means: Means, data: str, grid: Grid, number: str) -> tuple[ResultTable, Figure]:
    """Tabulate accuracy by T; each party spends all of epsilon."""
    rows: list[tuple[Scalar, ...]] = []
    for setting in _settings(means, data):
        for epsilon in grid.epsilons:
            for n_picks in _picks(means, data, setting):
                mean = means[Key(data, setting, PICKED, epsilon, n_picks)]
                rows.append((setting, f"epsilon = {epsilon:g}", n_picks, mean.value, mean.error))
        exact = means[Key(data, setting, EXACT_PRINTED)]
        for n_picks in _picks(means, data, setting):
            rows.append((setting, EXACT_PRINTED, n_picks, exact.value, exact.error))
    table = ResultTable(
        name=f"picks-{slug(data)}",
        title=f"{data}: T against balanced accuracy under the paper's mechanism",
        columns=("setting", "line", "T", "balanced accuracy", "standard error"),
        rows=tuple(rows),
        caption=(
            "Each of the two parties spends epsilon. Under the printed accounting, a line is that "
            "of twice its epsilon."
        ),
    )
    figure = Figure(
        name=table.name,
        kind="line",
        title=f"{data}: number of picks and accuracy",
        table=table.name,
        x="T",
        y="balanced accuracy",
        hue="line",
        facet="setting" if len(_settings(means, data)) > 1 else "",
        error="standard error",
        log_x=True,
        caption=f"Figure {number} of the paper. Bands: one standard error.",
    )
    return table, figure


def report_epsilon(means: Means, data: str, grid: Grid, number: str) -> tuple[ResultTable, Figure]:
    """Tabulate accuracy of all mechanisms by epsilon, with the paper's sizes."""
    rows: list[tuple[Scalar, ...]] = []
    for setting in _settings(means, data):
        for line in (*NO_PRIVACY, CENTRAL, LOCAL, BEST, BEST_DIVIDED, DEFAULT_PICKS):
            for epsilon in grid.epsilons:
                mean, n_picks = _score_at(means, data, setting, line, epsilon)
                rows.append((setting, line, epsilon, mean.value, mean.error, n_picks))
    table = ResultTable(
        name=f"epsilon-{slug(data)}",
        title=f"{data}: epsilon against balanced accuracy with the paper's sizes",
        columns=("setting", "line", "epsilon", "balanced accuracy", "standard error", "T"),
        rows=tuple(rows),
        caption=(
            "'Best T on test rows' uses for each epsilon the T of the best mean, as the paper "
            "does. This is an upper bound, because the choice of T costs no budget."
        ),
    )
    figure = Figure(
        name=table.name,
        kind="line",
        title=f"{data}: privacy and accuracy",
        table=table.name,
        x="epsilon",
        y="balanced accuracy",
        hue="line",
        facet="setting" if len(_settings(means, data)) > 1 else "",
        error="standard error",
        log_x=True,
        caption=f"Figure {number} of the paper. Bands: one standard error.",
    )
    return table, figure


def _settings(means: Means, data: str) -> list[str]:
    """Return the measured settings of the paper for a data set."""
    return [key.setting for key in means if key.data == data and key.line == EXACT_PRINTED]


def _picks(means: Means, data: str, setting: str) -> list[int]:
    """Return the measured values of T, ascending."""
    return sorted({key.n_picks for key in means if key[:3] == (data, setting, PICKED)})


def _score_at(
    means: Means, data: str, setting: str, line: str, epsilon: float
) -> tuple[Mean, int | None]:
    """Return a line's mean score at an epsilon, and its T."""
    if line in NO_PRIVACY:
        return means[Key(data, setting, line)], None
    if line in (LOCAL, CENTRAL):
        return means[Key(data, setting, line, epsilon)], None
    if line == DEFAULT_PICKS:
        (n_picks,) = {k.n_picks for k in means if k[:4] == (data, setting, line, epsilon)}
        return means[Key(data, setting, line, epsilon, n_picks)], n_picks
    party_epsilon = epsilon / N_PARTIES if line == BEST_DIVIDED else epsilon
    by_picks = {
        n_picks: means[Key(data, setting, PICKED, party_epsilon, n_picks)]
        for n_picks in _picks(means, data, setting)
    }
    best = max(by_picks, key=lambda n_picks: by_picks[n_picks].value)
    return by_picks[best], best
