"""Tables and figures of the costs of each algorithm, computed from trials."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from experiments.fedknn.measurement.algorithms import PAPER_NAMES, PRINTED
from experiments.fedknn.measurement.trials import (
    DELAY_S,
    Trial,
    count_wrong,
    drop_late_queries,
)
from fedneighbors.records import Figure, ResultTable, Scalar

Key = tuple[Scalar, ...]

LATE_NOTE = (
    "A search is late if the slowest providers of its exchanges together exceed the limit in CPU "
    "seconds. Late searches are counted and have no other value. Compared: the queries on which no "
    "algorithm of the same collection, split and parameter value was late; all seconds, objects, "
    "verifications and exchanges are of these. Wrong: answers in time whose distances differ from "
    "the exact ones."
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
        compared = group_by_algorithm(drop_late_queries(group))
        for algorithm, searches in group_by_algorithm(group).items():
            common = compared.get(algorithm, [])
            latencies = [trial.latency_s(delay_s) for trial in common]
            rows.append(
                (
                    collection,
                    split,
                    value,
                    algorithm,
                    len(searches),
                    sum(trial.late for trial in searches),
                    count_wrong(searches, group),
                    len(common),
                    float(np.mean(latencies)) if latencies else None,
                    float(np.median(latencies)) if latencies else None,
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
            "collection", "split", axis.name, "algorithm", "queries", "late", "wrong", "compared",
            "mean_latency_s", "median_latency_s", "local_sum_s", "local_most_s", "objects asked",
            "verified / possible", "exchanges",
        ),
        rows=tuple(rows),
        caption=LATE_NOTE
        + f" Round trip {1e3 * delay_s:g} ms. local_sum_s: median CPU seconds of all providers; "
        "local_most_s: of the slowest provider. Objects asked: objects returned by all providers. "
        "Verified: objects whose distance was computed, where they were counted. Possible: objects "
        "whose bound is at most the k-th distance.",
    )  # fmt: skip


def count_notes(trials: Sequence[Trial], axis: Axis) -> tuple[str, ...]:
    """Return sentences with the numbers of late searches and wrong answers."""
    groups = list(group_by_axis(trials, axis).values())
    printed = [trial for trial in trials if trial.algorithm.startswith(PRINTED) and not trial.late]
    wrong = sum(count_wrong((t for t in g if t.algorithm.startswith(PRINTED)), g) for g in groups)
    others = sum(count_wrong(group, group) for group in groups) - wrong
    return (
        f"{sum(trial.late for trial in trials)} of {len(trials)} searches were late. "
        f"{wrong} of {len(printed)} answers of DANN* as printed were wrong, "
        f"{others} of all other algorithms.",
    )


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


OURS = ("dann", "dann*", PRINTED)
"""DANN, and the two forms of DANN*: corrected, and exactly as the paper prints it."""
Cells = tuple[Scalar, ...]
Factors = list[tuple[Scalar, float | None]]
"""Speed-up at each parameter value; None if one of the two was late on each query."""


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
    """Return the largest speed-ups of each of ``OURS`` over competitors.

    Parameters
    ----------
    trials : sequence of Trial
        Searches of the same queries.
    axis : Axis
        Varied parameter.
    competitors : sequence of str
        Algorithms to compare them with.
    claims : mapping
        The paper's speed-ups, by collection and split.
    """
    pairs = _group_pairs(trials, axis, competitors)
    rows: list[Cells] = []
    for (collection, split, algorithm, competitor), measured_at in pairs.items():
        cells: Cells = ()
        for factor in (_latency_factor, _compute_factor, _work_factor):
            cells += _find_largest([(value, factor(*pair)) for value, pair in measured_at])
        rows.append((collection, split, algorithm, competitor, *cells))
        rows[-1] += _paper_cells(algorithm, competitor, claims.get((collection, split), Claim()))
    return ResultTable(
        name="speedups",
        title="Largest speed-ups of DANN and DANN* over other algorithms",
        columns=(
            "collection", "split", "algorithm", "over", "latency, factor", f"at {axis.name}",
            "without round trips, factor", f"at that {axis.name}", "work, factor",
            f"at which {axis.name}", "the paper's algorithm", "over the paper's", "paper, factor",
        ),
        rows=tuple(rows),
        caption="Each factor is followed by its parameter value. Latency: ratio of mean latencies, "
        f"with round trips of {1e3 * DELAY_S:g} ms and without. Work: ratio of the CPU seconds of "
        "all providers. All are over the queries on which neither algorithm was late. Paper: its "
        "largest speed-up in latency, and the two algorithms that it compares. Its DANN* is the "
        f"one as printed; {PRINTED!r} is the same algorithm, 'dann*' the corrected one.",
    )  # fmt: skip


def _paper_cells(algorithm: str, competitor: str, claim: Claim) -> Cells:
    """Return the paper's pair of algorithms and its speed-up."""
    factor = claim.over.get(competitor)
    if PAPER_NAMES[algorithm] != "DANN*" or factor is None:
        return (None,) * 3
    return PAPER_NAMES[algorithm], PAPER_NAMES[competitor], factor


Pair = tuple[dict[int, Trial], dict[int, Trial]]
"""The trials of a competitor, and of one of ``OURS``, by query."""


def _group_pairs(
    trials: Sequence[Trial], axis: Axis, competitors: Sequence[str]
) -> dict[tuple[str, str, str, str], list[tuple[Scalar, Pair]]]:
    pairs: dict[tuple[str, str, str, str], list[tuple[Scalar, Pair]]] = {}
    for (collection, split, value), group in group_by_axis(trials, axis).items():
        by_query = {
            name: {trial.query: trial for trial in searches}
            for name, searches in group_by_algorithm(group).items()
        }
        for algorithm in OURS:
            for competitor in competitors:
                if {algorithm, competitor} <= set(by_query):
                    key = (str(collection), str(split), algorithm, competitor)
                    pair = by_query[competitor], by_query[algorithm]
                    pairs.setdefault(key, []).append((value, pair))
    return pairs


def _find_largest(measured: Factors) -> tuple[Scalar, Scalar]:
    known = [(factor, value) for value, factor in measured if factor is not None]
    return max(known, key=lambda pair: pair[0]) if known else (None, None)


def _latency_factor(competitor: dict[int, Trial], dann: dict[int, Trial]) -> float | None:
    return _latency_ratio(competitor, dann, DELAY_S)


def _compute_factor(competitor: dict[int, Trial], dann: dict[int, Trial]) -> float | None:
    return _latency_ratio(competitor, dann, 0.0)


def _latency_ratio(
    competitor: dict[int, Trial], dann: dict[int, Trial], delay_s: float
) -> float | None:
    return ratio_in_time(competitor, dann, lambda trial: trial.latency_s(delay_s))


def _work_factor(competitor: dict[int, Trial], dann: dict[int, Trial]) -> float | None:
    return ratio_in_time(competitor, dann, lambda trial: trial.local_sum_s)


def ratio_in_time(
    competitor: Mapping[int, Trial], ours: Mapping[int, Trial], value_of: Callable[[Trial], float]
) -> float | None:
    """Return the ratio of two sums over queries in time."""
    common = [query for query in ours if not (competitor[query].late or ours[query].late)]
    if not common:
        return None
    total = sum(value_of(competitor[query]) for query in common)
    return total / sum(value_of(ours[query]) for query in common)
