"""One setting varied over its values: accuracy of seen and of unseen clients, as lines."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.bootstrap import (
    ENDS,
    Right,
    accuracy_interval,
    paired_difference,
)
from experiments.knnper.federations import Scope
from experiments.knnper.fixtures import Scene, scene
from fedneighbors._typing import Floats
from fedneighbors.methods.knnper.algorithm import mix
from fedneighbors.metrics import bottom_decile
from fedneighbors.records import Figure, ResultTable, Scalar

Answer = Callable[[Scene, str, Any], Floats]
"""Returns the shares of the classes for the test rows of a client, at one value."""

WHO = ("seen", "unseen")
DRAWN = (
    "Intervals (95 %): clients drawn again, the same ones for both where two are compared, given "
    "these trainings."
)

FULL = Scope("mnist", 20_000, 100, 60, (0, 1, 2))
QUICK = Scope("digits", 700, 12, 8, (0,))
SKEWS = (0.1, 0.3, 1.0)


def jobs_of(quick: bool, seed: int) -> tuple[Scope, list[tuple[Scope, float, int]]]:
    """Return the scope, and every skew with every seed."""
    scope = QUICK if quick else FULL
    skews = SKEWS[1:2] if quick else SKEWS
    return scope, [(scope, alpha, seed + s) for alpha in skews for s in scope.seeds]


def label(scope: Scope, alpha: float, seed: int, *_: object) -> str:
    """Return the name of a running job."""
    return f"{scope.data}, {scope.n_clients} clients, alpha = {alpha:g}, seed {seed}"


def half(here: Scene, name: str, votes: Floats) -> Floats:
    """Mix memory and network equally; only the axis varies."""
    return mix(votes, np.exp(here.scores[here.split(name)[1]]), 0.5)


@dataclass(frozen=True, eq=False)
class Point:
    """Accuracy of clients at one value, under one network.

    Parameters
    ----------
    alpha : float
        Concentration of the label skew.
    value : object
        On the axis.
    right : dict of str to mapping
        For ``"seen"`` and for ``"unseen"`` clients.
    """

    alpha: float
    value: Any
    right: dict[str, Right]


def swept(
    scope: Scope, alpha: float, seed: int, values: Sequence[float], answer: Answer
) -> list[Point]:
    """Return the hits of clients at every value, with one network."""
    here = scene(scope, alpha=alpha, seed=seed)
    return [measured(here, alpha, value, answer) for value in values]


def measured(here: Scene, alpha: float, value: Any, answer: Answer) -> Point:
    """Return the hits of clients at one value."""
    right = {}
    for name in here.bank.names:
        known, asked = here.split(name)
        if len(known) and len(asked):
            right[name] = here.right(name, answer(here, name, value))
    return Point(alpha, value, here.by_role(right))


def sweep_tables(
    points: Iterable[Point], axis: str, title: str, *, reference: Any, who: Sequence[str] = WHO
) -> tuple[ResultTable, ...]:
    """Return accuracy over the values, each compared with one of them.

    Parameters
    ----------
    points : iterable of Point
        Of all seeds, in the same order of seeds for every value.
    axis : str
        Varied setting.
    title : str
        For people.
    reference : object
        Value with which the others are compared.
    who : sequence of str
        ``"seen"``, ``"unseen"``: a table for each.
    """
    cells: dict[tuple[float, Any], list[Point]] = {}
    for point in points:
        cells.setdefault((point.alpha, point.value), []).append(point)

    def row(whose: str, alpha: float, value: Any) -> tuple[Scalar, ...]:
        found = [point.right[whose] for point in cells[alpha, value]]
        others = [point.right[whose] for point in cells[alpha, reference]]
        mean, low, high = accuracy_interval(found)
        lowest = float(np.mean([bottom_decile(right, list(right)) for right in found]))
        gain = paired_difference(list(zip(found, others, strict=True)))
        return (
            f"alpha = {alpha}", value, mean, low, high, (high - low) / 2, lowest, *gain,
        )  # fmt: skip

    return tuple(
        ResultTable(
            name=whose,
            title=f"{title}: clients that were {whose} in training",
            columns=(
                "alpha", axis, "accuracy", *ENDS, "half the interval", "bottom decile",
                f"better than {reference:g} by", "from", "to",
            ),
            rows=tuple(row(whose, *key) for key in cells),
            caption=DRAWN,
        )
        for whose in who
    )  # fmt: skip


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
        error="half the interval",
        caption="Lower alpha: labels are more skewed over the clients. Bands: as wide as the "
        "interval (95 %) for which clients are drawn again.",
    )
