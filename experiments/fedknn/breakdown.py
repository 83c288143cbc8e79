"""Figure 11 and Table 4: latency by round trip, and seconds of a search by step."""

from collections.abc import Iterator, Sequence
from typing import Any

from experiments.fedknn.measurement.algorithms import PAPER_NAMES
from experiments.fedknn.measurement.federation import SPLITS, Setting
from experiments.fedknn.measurement.measure import MeasureOptions, Task, measure
from experiments.fedknn.measurement.trials import DELAY_S, Trial, drop_late_queries
from experiments.fedknn.summaries import (
    LATE_NOTE,
    Axis,
    count_notes,
    group_by_algorithm,
    group_by_axis,
    median_of,
)
from experiments.fedknn.sweeps import COMPARED, FULL, MEASURED, QUICK, Effort
from experiments.harness import Findings, Study
from fedneighbors.records import Figure, ResultTable, Scalar

DELAYS_S = (0.0, 0.007, 0.064, 0.243)

# Table 4 of the paper: seconds of network, local search, lower bounds and aggregation on SYN.
PAPER = {
    ("uniform", "HuFu-Ext"): (0.76, 13.69, None, 0.01),
    ("uniform", "baseline"): (0.15, 27.13, None, 0.03),
    ("uniform", "DANN"): (0.43, 4.57, 0.08, 0.04),
    ("uniform", "DANN*"): (0.45, 4.95, 0.08, 0.04),
    ("skewed", "HuFu-Ext"): (0.84, 15.04, None, 0.01),
    ("skewed", "baseline"): (0.14, 31.31, None, 0.03),
    ("skewed", "DANN"): (0.46, 5.13, 0.10, 0.04),
    ("skewed", "DANN*"): (0.45, 5.70, 0.09, 0.04),
}


def _measure(collections: Sequence[str], effort: Effort, options: MeasureOptions) -> list[Trial]:
    tasks = [
        Task(name, Setting(split, 8), (128,), COMPARED, effort.n_queries[name], effort.limit_s)
        for name in collections
        if name in effort.n_queries
        for split in SPLITS
    ]
    return measure(tasks, options)


K = Axis("k", lambda trial: trial.k)


def _compare(trials: Sequence[Trial]) -> Iterator[tuple[str, str, str, list[Trial]]]:
    """Yield each algorithm's searches, without queries with a late one."""
    for group in group_by_axis(trials, K).values():
        for algorithm, searches in group_by_algorithm(drop_late_queries(group)).items():
            yield group[0].collection, group[0].split, algorithm, searches


def latency_table(trials: Sequence[Trial]) -> ResultTable:
    """Return the latency of the same searches for several round trips."""
    rows: list[tuple[Scalar, ...]] = []
    for collection, split, algorithm, searches in _compare(trials):
        shortest = _mean_latency(searches, DELAYS_S[1])
        for delay_s in DELAYS_S:
            mean = _mean_latency(searches, delay_s)
            rows.append(
                (f"{collection}, {split}", algorithm, 1e3 * delay_s, mean, mean / shortest - 1)
            )
    return ResultTable(
        name="latency",
        title="Mean latency by round trip",
        columns=("collection", "algorithm", "round trip, ms", "latency_s", "rise over 7 ms"),
        rows=tuple(rows),
        caption="From 7 to 243 ms, the paper's latencies on SYN rise by 3 % (baseline), 41 % "
        "(HuFu-Ext), 34 % (DANN) and 36 % (DANN*, as printed) on even splits, and by 3, 33, 28 and "
        "23 % on skewed splits.",
    )


def _mean_latency(searches: Sequence[Trial], delay_s: float) -> float:
    return sum(trial.latency_s(delay_s) for trial in searches) / len(searches)


def breakdown_table(trials: Sequence[Trial]) -> ResultTable:
    """Return the seconds of a search by step."""
    rows: list[tuple[Scalar, ...]] = []
    for collection, split, algorithm, searches in _compare(trials):
        name = PAPER_NAMES.get(algorithm)
        paper = PAPER.get((split, name)) if collection == "SYN" and name else None
        cells: tuple[Scalar, ...] = (name, *paper) if paper else (None,) * 5
        rows.append((collection, split, algorithm, len(searches), *_mean_steps(searches), *cells))
    return ResultTable(
        name="breakdown",
        title="Seconds of a search by step",
        columns=(
            "collection", "split", "algorithm", "queries", "network_s", "local_s", "bounds_s",
            "broker_s", "messages_s", "the paper's algorithm", "network, paper",
            "local, paper", "bounds, paper", "broker, paper",
        ),
        rows=tuple(rows),
        caption="Means over the queries on which no algorithm was late. Round trip 64 ms. Local: "
        "the slowest provider of every exchange, without lower bounds. The paper's DANN* "
        "is the one as printed; it stands next to both forms of DANN*.",
    )  # fmt: skip


def _mean_steps(common: Sequence[Trial]) -> tuple[Scalar, ...]:
    parts = [
        (
            trial.n_exchanges * DELAY_S + trial.way_s - trial.search_s,
            trial.search_s - trial.bounds_s,
            trial.bounds_s,
            trial.broker_s,
            trial.carrying_s,
        )
        for trial in common
    ]
    return tuple(sum(column) / len(common) for column in zip(*parts, strict=True))


def _latency(*, quick: bool, **options: Any) -> Findings:
    effort = QUICK if quick else FULL
    trials = _measure(("SYN", "titles"), effort, MeasureOptions(**options))
    return Findings(
        parameters={"k": 128, "parties": 8, "limit_s": effort.limit_s},
        tables=(latency_table(trials),),
        figures=(
            Figure(
                name="latency",
                kind="line",
                title="Latency by round trip between broker and providers",
                table="latency",
                x="round trip, ms",
                y="latency_s",
                hue="algorithm",
                facet="collection",
                log_y=True,
                caption="Figure 11 of the paper.",
            ),
        ),
        notes=(
            MEASURED,
            "All round trips use the same searches; latencies are recomputed.",
            LATE_NOTE,
            *count_notes(trials, K),
        ),
    )


def _breakdown(*, quick: bool, **options: Any) -> Findings:
    effort = QUICK if quick else FULL
    trials = _measure(("SYN", "titles", "genomes"), effort, MeasureOptions(**options))
    compute = median_of((t for t in trials if not t.late), lambda trial: trial.broker_s)
    return Findings(
        parameters={"k": 128, "parties": 8, "limit_s": effort.limit_s},
        tables=(breakdown_table(trials),),
        notes=(
            MEASURED,
            f"Median CPU time of the broker over all searches: {1e3 * (compute or 0):.2f} ms.",
            LATE_NOTE,
            *count_notes(trials, K),
        ),
    )


LATENCY = Study(
    name="fedknn.latency",
    title="Round trips (Figure 11)",
    description="Round trips of 0, 7, 64 and 243 ms between broker and providers.",
    work=_latency,
    keeps_journal=True,
)
BREAKDOWN = Study(
    name="fedknn.breakdown",
    title="Seconds by step (Table 4)",
    description="Seconds of network, local search, lower bounds and broker by algorithm.",
    work=_breakdown,
    keeps_journal=True,
)
