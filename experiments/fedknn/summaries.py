"""Tables and figures of the costs of each algorithm, computed from trials."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from experiments.fedknn.measurement.trials import DELAY_S, Trial
from fedneighbors.records import Figure, ResultTable, Scalar

Key = tuple[Scalar, ...]

LATE_NOTE = (
    "A search is late if a provider exceeds the limit on its CPU seconds; its latency then counts "
    "as the limit. CPU seconds, objects, verifications and exchanges are medians over the queries "
    "on which no algorithm of the same collection, split and parameter value was late."
)


@dataclass(frozen=True)
class Axis:
    """Varied parameter of an experiment.

    Parameters
    ----------
    name : str
        Name of the parameter in columns of tables and labels of figures.
    value_of : callable
        Returns the value of the parameter in a trial.
    """

    name: str
    value_of: Callable[[Trial], Scalar]


def median_of(trials: Iterable[Trial], value_of: Callable[[Trial], float]) -> float | None:
    """Return the median of a value over trials; None without trials."""
    values = [value_of(trial) for trial in trials]
    return float(np.median(values)) if values else None


def overview(trials: Sequence[Trial], axis: Axis, *, delay_s: float = DELAY_S) -> ResultTable:
    """Return a row per collection, split, axis value and algorithm."""
    rows = []
    for (collection, split, value), group in group_by_axis(trials, axis).items():
        late_queries = {trial.query for trial in group if trial.late}
        for algorithm, searches in group_by_algorithm(group).items():
            common = [trial for trial in searches if trial.query not in late_queries]
            latencies = [trial.latency_s(delay_s) for trial in searches]
            rows.append(
                (
                    collection,
                    split,
                    value,
                    algorithm,
                    len(searches),
                    sum(trial.late for trial in searches),
                    float(np.mean(latencies)),
                    float(np.median(latencies)),
                    median_of(common, lambda trial: trial.local_sum_s),
                    median_of(common, lambda trial: trial.local_most_s),
                    median_of(common, lambda trial: trial.asked),
                    median_of([t for t in common if t.verified], _verified_ratio),
                    median_of(common, lambda trial: trial.n_exchanges),
                )
            )
    return ResultTable(
        name="overview",
        title="Cost of a search",
        columns=(
            "collection", "split", axis.name, "algorithm", "queries", "late", "mean_latency_s",
            "median_latency_s", "local_sum_s", "local_most_s", "objects asked",
            "verified / possible", "exchanges",
        ),
        rows=tuple(rows),
        caption=LATE_NOTE
        + f" Round trip {1e3 * delay_s:g} ms. local_sum_s: CPU seconds of all providers; "
        "local_most_s: of the slowest provider. Objects asked: objects returned by all providers. "
        "Verified: objects whose distance was computed, where they were counted. Possible: objects "
        "whose bound is at most the k-th distance.",
    )  # fmt: skip


def _verified_ratio(trial: Trial) -> float:
    return trial.verified / max(trial.possible, 1)


def bar_figure(*, title: str, caption: str) -> Figure:
    """Return a bar chart of an overview, by collection."""
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


def line_figures(axis: Axis, *, title: str, caption: str) -> tuple[Figure, ...]:
    """Return line charts of latency and CPU seconds for each split."""
    return tuple(
        Figure(
            name=f"{measure}-{split}",
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
        for measure, column in (("latency", "mean_latency_s"), ("work", "local_sum_s"))
    )


def curve_tables(table: ResultTable, axis: Axis) -> tuple[ResultTable, ...]:
    """Return the tables of the figures of :func:`line_figures`, one per split."""
    names = ("collection", axis.name, "algorithm", "mean_latency_s", "local_sum_s")
    columns = [table.columns.index(name) for name in names]
    split_column = table.columns.index("split")
    return tuple(
        ResultTable(
            name=f"curves-{split}",
            title=f"Curves, {split} split",
            columns=names,
            rows=tuple(
                tuple(row[column] for column in columns)
                for row in table.rows
                if row[split_column] == split
            ),
        )
        for split in ("uniform", "skewed")
    )


def group_by_axis(trials: Iterable[Trial], axis: Axis) -> dict[Key, list[Trial]]:
    """Group trials by collection, split and parameter value."""
    groups: dict[Key, list[Trial]] = {}
    for trial in trials:
        groups.setdefault((trial.collection, trial.split, axis.value_of(trial)), []).append(trial)
    return groups


def group_by_algorithm(trials: Iterable[Trial]) -> dict[str, list[Trial]]:
    """Group trials by algorithm."""
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(trial.algorithm, []).append(trial)
    return groups


PAPER_ALGORITHMS = ("dann", "dann*")
Cells = tuple[Scalar, ...]
Factors = list[tuple[Scalar, float | None]]
"""Speed-up at each parameter value; None if one of the two was late on every query."""


@dataclass(frozen=True)
class Claim:
    """The paper's largest speed-ups of DANN*.

    Parameters
    ----------
    over : mapping of str to float
        Speed-up over each algorithm.
    """

    over: Mapping[str, float] = field(default_factory=dict)


def speedups(
    trials: Sequence[Trial],
    axis: Axis,
    *,
    competitors: Sequence[str],
    claims: Mapping[tuple[str, str], Claim],
) -> ResultTable:
    """Return the largest speed-ups of DANN and DANN* over competitors.

    Parameters
    ----------
    trials : sequence of Trial
        Searches of the same queries.
    axis : Axis
        Varied parameter.
    competitors : sequence of str
        Algorithms to compare DANN and DANN* with.
    claims : mapping
        The paper's speed-ups, by collection and split.
    """
    pairs = _group_pairs(trials, axis, competitors)
    rows: list[Cells] = []
    for (collection, split, algorithm, competitor), measured_at in pairs.items():
        cells: Cells = ()
        for factor in (_latency_factor, _compute_factor, _work_factor):
            cells += _find_largest([(value, factor(*pair)) for value, pair in measured_at])
        claim = claims.get((collection, split), Claim()).over.get(competitor)
        rows.append((collection, split, algorithm, competitor, *cells, claim))
    return ResultTable(
        name="speedups",
        title="Largest speed-ups of DANN and DANN* over other algorithms",
        columns=(
            "collection", "split", "algorithm", "over", "latency, factor", f"at {axis.name}",
            "without round trips, factor", f"at that {axis.name}", "work, factor",
            f"at which {axis.name}", "paper, dann*",
        ),
        rows=tuple(rows),
        caption="Each factor is followed by its parameter value. Latency: ratio of mean latencies, "
        f"with round trips of {1e3 * DELAY_S:g} ms and without; a late search counts as the limit. "
        "Work: ratio of the CPU seconds of all providers, over the queries on which neither "
        "algorithm was late. Paper: its largest speed-up in latency.",
    )  # fmt: skip


Pair = tuple[dict[int, Trial], dict[int, Trial]]
"""The trials of a competitor, and of DANN or DANN*, by query."""


def _group_pairs(
    trials: Sequence[Trial], axis: Axis, competitors: Sequence[str]
) -> dict[tuple[str, str, str, str], list[tuple[Scalar, Pair]]]:
    pairs: dict[tuple[str, str, str, str], list[tuple[Scalar, Pair]]] = {}
    for (collection, split, value), group in group_by_axis(trials, axis).items():
        by_query = {
            name: {trial.query: trial for trial in searches}
            for name, searches in group_by_algorithm(group).items()
        }
        for algorithm in PAPER_ALGORITHMS:
            for competitor in competitors:
                if {algorithm, competitor} <= set(by_query):
                    key = (str(collection), str(split), algorithm, competitor)
                    pair = by_query[competitor], by_query[algorithm]
                    pairs.setdefault(key, []).append((value, pair))
    return pairs


def _find_largest(measured: Factors) -> tuple[Scalar, Scalar]:
    known = [(factor, value) for value, factor in measured if factor is not None]
    return max(known, key=lambda pair: pair[0]) if known else (None, None)


def _latency_factor(competitor: dict[int, Trial], dann: dict[int, Trial]) -> float:
    return _latency_ratio(competitor, dann, DELAY_S)


def _compute_factor(competitor: dict[int, Trial], dann: dict[int, Trial]) -> float:
    return _latency_ratio(competitor, dann, 0.0)


def _latency_ratio(competitor: dict[int, Trial], dann: dict[int, Trial], delay_s: float) -> float:
    total = sum(trial.latency_s(delay_s) for trial in competitor.values())
    return total / max(sum(trial.latency_s(delay_s) for trial in dann.values()), 1e-9)


def _work_factor(competitor: dict[int, Trial], dann: dict[int, Trial]) -> float | None:
    common = [query for query in dann if not (competitor[query].late or dann[query].late)]
    if not common:
        return None
    total = sum(competitor[query].local_sum_s for query in common)
    return total / sum(dann[query].local_sum_s for query in common)
