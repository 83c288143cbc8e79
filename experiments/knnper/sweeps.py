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

Predictor = Callable[[EmbeddedClients, str, Any], Floats]
"""Returns class probabilities of a client's test rows at one value of the setting."""

CLIENT_GROUPS = ("seen", "unseen")
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
    hits : dict of str to mapping
        Hits of the ``"seen"`` and of the ``"unseen"`` clients.
    """

    alpha: float
    value: Any
    hits: dict[str, HitCounts]


def sweep(
    scope: Scope, alpha: float, seed: int, values: Sequence[float], predictor: Predictor
) -> list[Point]:
    """Return the hits of clients at every value, with one network."""
    embedded = train_and_embed(scope, alpha=alpha, seed=seed)
    return [measure_point(embedded, alpha, value, predictor) for value in values]


def measure_point(
    embedded: EmbeddedClients, alpha: float, value: Any, predictor: Predictor
) -> Point:
    """Return the hits of clients at one value."""
    hits = {}
    for name in embedded.bank.names:
        train, test = embedded.split(name)
        if len(train) and len(test):
            hits[name] = embedded.count_hits(name, predictor(embedded, name, value))
    return Point(alpha, value, embedded.by_group(hits))


def sweep_tables(
    points: Iterable[Point],
    axis: str,
    title: str,
    *,
    reference: Any,
    groups: Sequence[str] = CLIENT_GROUPS,
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
    groups : sequence of {"seen", "unseen"}
        Groups of clients; one table is returned for each.
    """
    cells: dict[tuple[float, Any], list[Point]] = {}
    for point in points:
        cells.setdefault((point.alpha, point.value), []).append(point)

    def row(group: str, alpha: float, value: Any) -> tuple[Scalar, ...]:
        hits = [point.hits[group] for point in cells[alpha, value]]
        reference_hits = [point.hits[group] for point in cells[alpha, reference]]
        mean, low, high = accuracy_interval(hits)
        lowest = float(np.mean([bottom_decile(counts, list(counts)) for counts in hits]))
        gain = paired_difference(list(zip(hits, reference_hits, strict=True)))
        return (
            f"alpha = {alpha}", value, mean, low, high, (high - low) / 2, lowest, *gain,
        )  # fmt: skip

    return tuple(
        ResultTable(
            name=group,
            title=f"{title}: clients {group} in training",
            columns=(
                "alpha", axis, "accuracy", *ENDS, "half the interval", "bottom decile",
                f"better than {reference:g} by", "from", "to",
            ),
            rows=tuple(row(group, *key) for key in cells),
            caption=INTERVALS,
        )
        for group in groups
    )  # fmt: skip


def sweep_figure(group: str, axis: str, title: str) -> Figure:
    """Return the figure of one table of :func:`sweep_tables`."""
    return Figure(
        name=group,
        kind="line",
        title=f"{title}, {group} clients",
        table=group,
        x=axis,
        y="accuracy",
        hue="alpha",
        error="half the interval",
        caption="Lower alpha: labels are more skewed over the clients. Bands: width of the 95 % "
        "bootstrap interval over clients.",
    )
