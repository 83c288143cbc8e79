"""Sweeps over the values of one setting: accuracy of seen and of unseen clients."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
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

FULL = Scope("mnist", 20_000, 100, 200, (0, 1, 2, 3, 4))
QUICK = Scope("digits", 700, 12, 8, (0,))
SKEWS = (0.1, 0.3, 1.0)


def list_jobs(
    quick: bool, seed: int, n_seeds: int | None = None
) -> tuple[Scope, list[tuple[Scope, float, int]]]:
    """Return the scope, and one job per seed and label skew."""
    scope = QUICK if quick else FULL
    if n_seeds is not None:
        scope = replace(scope, seeds=tuple(range(n_seeds)))
    skews = SKEWS[1:2] if quick else SKEWS
    return scope, [(scope, alpha, seed + s) for s in scope.seeds for alpha in skews]


def describe(scope: Scope) -> dict[str, Scalar | list[Scalar]]:
    """Return the settings of a run for its record."""
    return {
        "data": scope.data,
        "clients": scope.n_clients,
        "rounds": scope.n_rounds,
        "seeds": len(scope.seeds),
    }


def label(scope: Scope, alpha: float, seed: int, *_: object) -> str:
    """Return the name of a job."""
    return f"{scope.data}, {scope.n_clients} clients, alpha = {alpha:g}, seed {seed}"


def mix_equally(embedded: EmbeddedClients, name: str, votes: Floats) -> Floats:
    """Mix votes and network output with equal weights."""
    return mix_with_weight(embedded, name, votes, 0.5)


def mix_with_weight(embedded: EmbeddedClients, name: str, votes: Floats, weight: float) -> Floats:
    """Mix votes with a weight and the network output with the rest."""
    return mix(votes, np.exp(embedded.scores[embedded.split(name)[1]]), weight)


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
    line : str
        Name of the curve, if a figure has several for each skew.
    """

    alpha: float
    value: Any
    hits: dict[str, HitCounts]
    line: str = ""


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
    hits = {
        name: embedded.count_hits(name, predictor(embedded, name, value))
        for name in list_clients(embedded)
    }
    return Point(alpha, value, embedded.by_group(hits))


def restore_hits(stored: Mapping[str, Mapping[str, Sequence[int]]]) -> dict[str, HitCounts]:
    """Return hits by group from a journal.

    Parameters
    ----------
    stored : mapping
        For each group, correct rows and all rows of each client.
    """
    return {
        group: {name: (counts[0], counts[1]) for name, counts in each.items()}
        for group, each in stored.items()
    }


def list_clients(embedded: EmbeddedClients) -> list[str]:
    """Return the clients with training rows and test rows."""
    return [name for name in embedded.bank.names if all(map(len, embedded.split(name)))]


def sweep_tables(
    points: Iterable[Point],
    axis: str,
    title: str,
    *,
    reference: Any,
    groups: Sequence[str] = CLIENT_GROUPS,
    lines: str = "",
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
        Value with which the others of the same curve are compared.
    groups : sequence of {"seen", "unseen"}
        Groups of clients; one table is returned for each.
    lines : str
        Column with the names of the curves, if there are several for each skew. The names of these
        tables end in ``"-curves"``.
    """
    cells: dict[tuple[float, str, Any], list[Point]] = {}
    for point in points:
        cells.setdefault((point.alpha, point.line, point.value), []).append(point)

    def row(group: str, alpha: float, line: str, value: Any) -> tuple[Scalar, ...]:
        hits = [point.hits[group] for point in cells[alpha, line, value]]
        reference_hits = [point.hits[group] for point in cells[alpha, line, reference]]
        mean, low, high = accuracy_interval(hits)
        lowest = float(np.mean([bottom_decile(counts, list(counts)) for counts in hits]))
        gain = paired_difference(list(zip(hits, reference_hits, strict=True)))
        return (
            f"alpha = {alpha}", *([line] if lines else ()), value, mean, low, high,
            (high - low) / 2, lowest, *gain,
        )  # fmt: skip

    return tuple(
        ResultTable(
            name=f"{group}-curves" if lines else group,
            title=f"{title}: clients {group} in training",
            columns=(
                "alpha", *([lines] if lines else ()), axis, "accuracy", *ENDS, "half the interval",
                "bottom decile", f"better than {reference:g} by", "from", "to",
            ),
            rows=tuple(row(group, *key) for key in cells),
            caption=INTERVALS,
        )
        for group in groups
    )  # fmt: skip


def sweep_figure(
    group: str, axis: str, title: str, *, lines: str = "", log_x: bool = False
) -> Figure:
    """Return the figure of one table of :func:`sweep_tables`."""
    name = f"{group}-curves" if lines else group
    return Figure(
        name=name,
        kind="line",
        title=f"{title}, {group} clients",
        table=name,
        x=axis,
        y="accuracy",
        hue=lines or "alpha",
        facet="alpha" if lines else "",
        error="" if lines else "half the interval",
        log_x=log_x,
        caption="Lower alpha: labels are more skewed over the clients."
        + ("" if lines else " Bands: width of the 95 % bootstrap interval over clients."),
    )
