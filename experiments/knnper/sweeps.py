"""Sweeps over the values of one setting: accuracy of seen and of unseen clients."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.bootstrap import (
    ENDS,
    HitCounts,
    accuracy_interval,
    paired_difference,
)
from experiments.knnper.federations import Scope
from experiments.knnper.fixtures import EmbeddedClients, train_and_embed
from fedneighbors._typing import Floats
from fedneighbors.methods.knnper.algorithm import mix
from fedneighbors.metrics import bottom_decile
from fedneighbors.records import Figure, ResultTable, Scalar

Answer = Callable[[EmbeddedClients, str, Any], Floats]
"""Returns class shares for the test rows of a client at one value of the setting."""

WHO = ("seen", "unseen")
INTERVALS = (
    "Intervals: 95 %, bootstrap over clients, paired for differences; the trained networks are "
    "fixed."
)

FULL = Scope("mnist", 20_000, 100, 60, (0, 1, 2))
QUICK = Scope("digits", 700, 12, 8, (0,))
SKEWS = (0.1, 0.3, 1.0)


def list_jobs(quick: bool, seed: int) -> tuple[Scope, list[tuple[Scope, float, int]]]:
    """Return the scope, and one job per label skew and seed."""
    scope = QUICK if quick else FULL
    skews = SKEWS[1:2] if quick else SKEWS
    return scope, [(scope, alpha, seed + s) for alpha in skews for s in scope.seeds]


def label(scope: Scope, alpha: float, seed: int, *_: object) -> str:
    """Return the name of a job."""
    return f"{scope.data}, {scope.n_clients} clients, alpha = {alpha:g}, seed {seed}"


def mix_equally(embedded: EmbeddedClients, name: str, votes: Floats) -> Floats:
    """Mix votes and network output with equal weights."""
    return mix(votes, np.exp(embedded.scores[embedded.split(name)[1]]), 0.5)


@dataclass(frozen=True, eq=False)
class Point:
    """Hits of clients at one value of a setting, under one network.

    Parameters
    ----------
    alpha : float
        Concentration of the label skew.
    value : object
        Value of the varied setting.
    right : dict of str to mapping
        Hits of the ``"seen"`` and of the ``"unseen"`` clients.
    """

    alpha: float
    value: Any
    right: dict[str, HitCounts]


def sweep(
    scope: Scope, alpha: float, seed: int, values: Sequence[float], answer: Answer
) -> list[Point]:
    """Return the hits of clients at every value, with one network."""
    embedded = train_and_embed(scope, alpha=alpha, seed=seed)
    return [measure_point(embedded, alpha, value, answer) for value in values]


def measure_point(embedded: EmbeddedClients, alpha: float, value: Any, answer: Answer) -> Point:
    """Return the hits of clients at one value."""
    hits = {}
    for name in embedded.bank.names:
        train, test = embedded.split(name)
        if len(train) and len(test):
            hits[name] = embedded.right(name, answer(embedded, name, value))
    return Point(alpha, value, embedded.by_role(hits))


def sweep_tables(
    points: Iterable[Point], axis: str, title: str, *, reference: Any, who: Sequence[str] = WHO
) -> tuple[ResultTable, ...]:
    """Return accuracy by value, each compared with the reference value.

    Parameters
    ----------
    points : iterable of Point
        Points of all seeds, in the same order of seeds for every value.
    axis : str
        Name of the varied setting.
    title : str
        Title of the tables.
    reference : object
        Value with which the others are compared.
    who : sequence of str
        One table is returned for each of these: ``"seen"``, ``"unseen"``.
    """
    cells: dict[tuple[float, Any], list[Point]] = {}
    for point in points:
        cells.setdefault((point.alpha, point.value), []).append(point)

    def row(role: str, alpha: float, value: Any) -> tuple[Scalar, ...]:
        hits = [point.right[role] for point in cells[alpha, value]]
        reference_hits = [point.right[role] for point in cells[alpha, reference]]
        mean, low, high = accuracy_interval(hits)
        lowest = float(np.mean([bottom_decile(right, list(right)) for right in hits]))
        gain = paired_difference(list(zip(hits, reference_hits, strict=True)))
        return (
            f"alpha = {alpha}", value, mean, low, high, (high - low) / 2, lowest, *gain,
        )  # fmt: skip

    return tuple(
        ResultTable(
            name=role,
            title=f"{title}: clients {role} in training",
            columns=(
                "alpha", axis, "accuracy", *ENDS, "half the interval", "bottom decile",
                f"better than {reference:g} by", "from", "to",
            ),
            rows=tuple(row(role, *key) for key in cells),
            caption=INTERVALS,
        )
        for role in who
    )  # fmt: skip


def sweep_figure(who: str, axis: str, title: str) -> Figure:
    """Return the figure of one table of :func:`sweep_tables`."""
    return Figure(
        name=who,
        kind="line",
        title=f"{title}, {who} clients",
        table=who,
        x=axis,
        y="accuracy",
        hue="alpha",
        error="half the interval",
        caption="Lower alpha: labels are more skewed over the clients. Bands: width of the 95 % "
        "bootstrap interval over clients.",
    )
