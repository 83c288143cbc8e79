"""One setting varied over its values: accuracy of seen and of unseen clients, drawn as lines."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors.methods.knnper.algorithm import mixed
from fedneighbors.methods.knnper.studies.scenes import Scene, Scope, scene
from fedneighbors.records import Figure, Scalar, Table

__all__ = [
    "FULL", "QUICK", "SKEWS", "Answer", "Rows", "half", "jobs_of", "label", "sweep_figure",
    "sweep_tables", "swept", "swept_rows",
]  # fmt: skip

Floats = npt.NDArray[np.float64]
Answer = Callable[[Scene, str, Any], Floats]
"""Returns the shares of the classes for the test rows of a client, at one value."""

Rows = list[tuple[Scalar, ...]]

FULL = Scope("mnist", 20_000, 100, 60, (0, 1, 2))
QUICK = Scope("digits", 700, 12, 8, (0,))
SKEWS = (0.1, 0.3, 1.0)


def jobs_of(quick: bool, seed: int) -> tuple[Scope, list[tuple[Scope, float, int]]]:
    """Return the scope, and every skew with every seed."""
    scope = QUICK if quick else FULL
    skews = SKEWS[1:2] if quick else SKEWS
    return scope, [(scope, alpha, seed + s) for alpha in skews for s in scope.seeds]


def label(scope: Scope, alpha: float, seed: int, *_: object) -> str:
    """Return what a job is called while it runs."""
    return f"{scope.data}, {scope.n_clients} clients, alpha = {alpha:g}, seed {seed}"


def half(here: Scene, name: str, votes: Floats) -> Floats:
    """Mix memory and network in equal shares: no weight is chosen, the axis alone changes."""
    return mixed(votes, np.exp(here.scores[here.split(name)[1]]), 0.5)


def swept(scope: Scope, alpha: float, seed: int, values: Sequence[float], answer: Answer) -> Rows:
    """Return average and bottom decile at every value, under one network."""
    here = scene(scope, alpha=alpha, seed=seed)
    return [row for value in values for row in swept_rows(here, alpha, seed, value, answer)]


def swept_rows(here: Scene, alpha: float, seed: int, value: Any, answer: Answer) -> Rows:
    """Return average and bottom decile at one value, for seen and unseen clients."""
    right = {}
    for name in here.bank.names:
        known, asked = here.split(name)
        if len(known) and len(asked):
            right[name] = here.right(name, answer(here, name, value))
    found = here.accuracy(right)
    return [(alpha, seed, who, value, *found[who]) for who in ("seen", "unseen")]


def sweep_tables(rows: Rows, axis: str, title: str) -> tuple[Table, ...]:
    """Return the mean over the seeds for clients that took part, and for those that did not."""
    made = []
    for who in ("seen", "unseen"):
        cells: dict[tuple[Scalar, Scalar], list[tuple[Any, Any]]] = {}
        for alpha, _, whose, value, mean, low in rows:
            if whose == who:
                cells.setdefault((alpha, value), []).append((mean, low))
        made.append(
            Table(
                name=who,
                title=f"{title}: clients that were {who} in training",
                columns=("alpha", axis, "accuracy", "deviation over seeds", "bottom decile"),
                rows=tuple(
                    (
                        f"alpha = {alpha}",
                        value,
                        float(np.mean([mean for mean, _ in found])),
                        float(np.std([mean for mean, _ in found])),
                        float(np.mean([low for _, low in found])),
                    )
                    for (alpha, value), found in cells.items()
                ),
            )
        )
    return tuple(made)


def sweep_figure(who: str, axis: str, title: str) -> Figure:
    """Return the lines of one table of :func:`sweep_tables`."""
    return Figure(
        name=who,
        kind="line",
        title=f"{title}, {who} clients",
        table=who,
        x=axis,
        y="accuracy",
        hue="alpha",
        caption="Lower alpha: labels are more skewed over the clients.",
    )
