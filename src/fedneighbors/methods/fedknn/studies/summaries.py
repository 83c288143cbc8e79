"""Turns trials to tables: what each algorithm takes, and how much faster one is than another."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedneighbors.methods.fedknn.studies.trials import DELAY_S, Trial
from fedneighbors.records import Figure, Scalar, Table

__all__ = [
    "LATE_NOTE",
    "Axis",
    "Claim",
    "bars",
    "curve_tables",
    "curves",
    "middle",
    "overview",
    "speedups",
]

Key = tuple[Scalar, ...]

LATE_NOTE = (
    "A search that keeps a provider at work longer than the limit is late and counts at the limit, "
    "for every algorithm alike. Work, objects and verifications are medians over the queries that "
    "no algorithm of the line's group was late with."
)


@dataclass(frozen=True)
class Axis:
    """What varies in an experiment.

    Parameters
    ----------
    name : str
        Column and label.
    of : callable
        Its value for a trial.
    """

    name: str
    of: Callable[[Trial], Scalar]


@dataclass(frozen=True)
class Claim:
    """How much faster DANN* is in the paper, at most.

    Parameters
    ----------
    over : mapping of str to float
        Factor over each rival.
    """

    over: Mapping[str, float] = field(default_factory=dict)


def middle(trials: Iterable[Trial], what: Callable[[Trial], float]) -> float | None:
    """Return the median of a number over the trials; None if there is none."""
    values = [what(trial) for trial in trials]
    return float(np.median(values)) if values else None


def overview(trials: Sequence[Trial], axis: Axis, *, delay_s: float = DELAY_S) -> Table:
    """Return a line for each collection, split, value of the axis and algorithm."""
    rows = []
    for (collection, split, value), group in _grouped(trials, axis).items():
        late = {trial.query for trial in group if trial.late}
        for algorithm, own in _by_algorithm(group).items():
            common = [trial for trial in own if trial.query not in late]
            latencies = [trial.latency_s(delay_s) for trial in own]
            rows.append(
                (
                    collection,
                    split,
                    value,
                    algorithm,
                    len(own),
                    sum(trial.late for trial in own),
                    float(np.mean(latencies)),
                    float(np.median(latencies)),
                    middle(common, lambda trial: trial.local_sum_s),
                    middle(common, lambda trial: trial.local_most_s),
                    middle(common, lambda trial: trial.asked),
                    middle([t for t in common if t.verified], _over_possible),
                    middle(common, lambda trial: trial.n_exchanges),
                )
            )
    return Table(
        name="overview",
        title="What a search takes",
        columns=(
            "collection", "split", axis.name, "algorithm", "queries", "late", "mean_latency_s",
            "median_latency_s", "local_sum_s", "local_most_s", "objects asked",
            "verified / possible", "exchanges",
        ),
        rows=tuple(rows),
        caption=LATE_NOTE
        + f" Round trip {1e3 * delay_s:g} ms. Possible: objects whose bound is at most the k-th "
        "distance.",
    )  # fmt: skip


def _over_possible(trial: Trial) -> float:
    return trial.verified / max(trial.possible, 1)


def speedups(
    trials: Sequence[Trial],
    axis: Axis,
    *,
    rivals: Sequence[str] = ("baseline", "hufu", "hufu+"),
    champions: Sequence[str] = ("dann", "dann*"),
    claims: Mapping[tuple[str, str], Claim] | None = None,
) -> Table:
    """Return how much faster the champions are than their rivals, where that is most."""
    best: dict[Key, tuple[float, Scalar, float]] = {}
    for (collection, split, value), group in _grouped(trials, axis).items():
        own = _by_algorithm(group)
        for champion in champions:
            for rival in rivals:
                if not {champion, rival} <= set(own):
                    continue
                factor, typical = _factors(own[rival], own[champion])
                key = (collection, split, champion, rival)
                if key not in best or factor > best[key][0]:
                    best[key] = factor, value, typical
    rows = []
    for place, (factor, value, typical) in best.items():
        claim = (claims or {}).get((str(place[0]), str(place[1])), Claim())
        rows.append((*place, factor, value, typical, claim.over.get(str(place[3]))))
    return Table(
        name="speedups",
        title="Largest speed-up of DANN and DANN* over their rivals",
        columns=(
            "collection", "split", "algorithm", "over", "factor", f"at {axis.name}",
            "median factor there", "paper, dann*",
        ),
        rows=tuple(rows),
        caption="Factor: ratio of the mean latencies, late searches at the limit. Median factor: "
        "over the queries, each against itself.",
    )  # fmt: skip


def _factors(slow: Sequence[Trial], fast: Sequence[Trial]) -> tuple[float, float]:
    theirs = {trial.query: trial.latency_s() for trial in slow}
    ours = {trial.query: trial.latency_s() for trial in fast}
    both = sorted(set(theirs) & set(ours))
    each = [theirs[query] / ours[query] for query in both]
    total = sum(theirs[query] for query in both) / sum(ours[query] for query in both)
    return total, float(np.median(each))


def bars(*, title: str, caption: str) -> Figure:
    """Return the picture of an overview in which the collections alone vary."""
    return Figure(
        name="latency",
        kind="bar",
        title=title,
        table="overview",
        x="collection",
        y="mean_latency_s",
        hue="algorithm",
        log_y=True,
        caption=caption,
    )


def curves(axis: Axis, *, title: str, caption: str) -> tuple[Figure, ...]:
    """Return the pictures of an overview, two for each split."""
    return tuple(
        Figure(
            name=f"{what}-{split}",
            kind="line",
            title=f"{title}, {split}",
            table=f"curves-{split}",
            x=axis.name,
            y=column,
            hue="algorithm",
            facet="collection",
            log_x=True,
            log_y=True,
            caption=caption,
        )
        for split in ("uniform", "skewed")
        for what, column in (("latency", "mean_latency_s"), ("work", "local_sum_s"))
    )


def curve_tables(table: Table, axis: Axis) -> tuple[Table, ...]:
    """Return what the pictures of an overview show, one table for each split."""
    wanted = ("collection", axis.name, "algorithm", "mean_latency_s", "local_sum_s")
    places = [table.columns.index(name) for name in wanted]
    split = table.columns.index("split")
    return tuple(
        Table(
            name=f"curves-{name}",
            title=f"Curves, {name} split",
            columns=wanted,
            rows=tuple(
                tuple(row[place] for place in places) for row in table.rows if row[split] == name
            ),
        )
        for name in ("uniform", "skewed")
    )


def _grouped(trials: Iterable[Trial], axis: Axis) -> dict[Key, list[Trial]]:
    groups: dict[Key, list[Trial]] = {}
    for trial in trials:
        groups.setdefault((trial.collection, trial.split, axis.of(trial)), []).append(trial)
    return groups


def _by_algorithm(trials: Iterable[Trial]) -> dict[str, list[Trial]]:
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(trial.algorithm, []).append(trial)
    return groups
