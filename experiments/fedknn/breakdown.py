"""Figure 11 and Table 4: costs of round trips, and seconds of a search by step."""

from collections.abc import Sequence
from typing import Any

from experiments.fedknn.measurement.cells import SPLITS, Place
from experiments.fedknn.measurement.measuring import Measuring, Task, measure
from experiments.fedknn.measurement.trials import DELAY_S, Trial
from experiments.fedknn.summaries import middle
from experiments.fedknn.sweeps import FULL, MEASURED, QUICK, RIVALS, Effort
from experiments.harness import Findings, Study
from fedneighbors.records import Figure, ResultTable, Scalar

DELAYS_S = (0.0, 0.007, 0.064, 0.243)

# Table 4 of the paper: seconds of network, local search, lower bounds and aggregation on SYN.
PAPER = {
    ("uniform", "hufu"): (0.76, 13.69, None, 0.01),
    ("uniform", "baseline"): (0.15, 27.13, None, 0.03),
    ("uniform", "dann"): (0.43, 4.57, 0.08, 0.04),
    ("uniform", "dann*"): (0.45, 4.95, 0.08, 0.04),
    ("skewed", "hufu"): (0.84, 15.04, None, 0.01),
    ("skewed", "baseline"): (0.14, 31.31, None, 0.03),
    ("skewed", "dann"): (0.46, 5.13, 0.10, 0.04),
    ("skewed", "dann*"): (0.45, 5.70, 0.09, 0.04),
}


def _measured(collections: Sequence[str], effort: Effort, how: Measuring) -> list[Trial]:
    tasks = [
        Task(name, Place(split, 8), (128,), RIVALS, effort.n_queries[name], effort.limit_s)
        for name in collections
        if name in effort.n_queries
        for split in SPLITS
    ]
    return measure(tasks, how)


def _groups(trials: Sequence[Trial]) -> dict[tuple[str, str, str], list[Trial]]:
    groups: dict[tuple[str, str, str], list[Trial]] = {}
    for trial in trials:
        groups.setdefault((trial.collection, trial.split, trial.algorithm), []).append(trial)
    return groups


def latency_table(trials: Sequence[Trial]) -> ResultTable:
    """Return the latencies of the same searches over links of different length."""
    rows: list[tuple[Scalar, ...]] = []
    for (collection, split, algorithm), own in _groups(trials).items():
        nearest = _mean(own, DELAYS_S[1])
        for delay_s in DELAYS_S:
            mean = _mean(own, delay_s)
            where = f"{collection}, {split}"
            rows.append((where, algorithm, 1e3 * delay_s, mean, mean / nearest - 1))
    return ResultTable(
        name="latency",
        title="Mean latency over the round trip",
        columns=("collection", "algorithm", "round trip, ms", "latency_s", "rise over 7 ms"),
        rows=tuple(rows),
        caption="From 7 to 243 ms the paper's rise on SYN by 3 % (baseline), 41 % (HuFu-Ext), 34 % "
        "(DANN) and 36 % (DANN*) on even splits, by 3, 33, 28 and 23 % on skewed ones.",
    )


def _mean(own: Sequence[Trial], delay_s: float) -> float:
    return sum(trial.latency_s(delay_s) for trial in own) / len(own)


def breakdown_table(trials: Sequence[Trial]) -> ResultTable:
    """Return the seconds of a search by step."""
    late = {(t.collection, t.split, t.query) for t in trials if t.late}
    rows: list[tuple[Scalar, ...]] = []
    for (collection, split, algorithm), own in _groups(trials).items():
        common = [t for t in own if (t.collection, t.split, t.query) not in late]
        paper = PAPER.get((split, algorithm)) if collection == "SYN" else None
        rows.append((collection, split, algorithm, len(common), *_shares(common), *_paper(paper)))
    return ResultTable(
        name="breakdown",
        title="Where the seconds go",
        columns=(
            "collection", "split", "algorithm", "queries", "network_s", "local_s", "bounds_s",
            "broker_s", "messages_s", "network, paper", "local, paper", "bounds, paper",
            "broker, paper",
        ),
        rows=tuple(rows),
        caption="Means over the queries that no algorithm was late with, at a round trip of 64 ms. "
        "Local: the slowest provider of every exchange, without its bounds.",
    )  # fmt: skip


def _shares(common: Sequence[Trial]) -> tuple[Scalar, ...]:
    if not common:
        return (None,) * 5
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


def _paper(cells: tuple[float | None, ...] | None) -> tuple[Scalar, ...]:
    return cells or (None,) * 4


def _latency(*, quick: bool, **how: Any) -> Findings:
    effort = QUICK if quick else FULL
    trials = _measured(("SYN", "titles"), effort, Measuring(**how))
    return Findings(
        parameters={"k": 128, "parties": 8, "limit_s": effort.limit_s},
        tables=(latency_table(trials),),
        figures=(
            Figure(
                name="latency",
                kind="line",
                title="Seconds over the round trip between broker and providers",
                table="latency",
                x="round trip, ms",
                y="latency_s",
                hue="algorithm",
                facet="collection",
                log_y=True,
                caption="Figure 11 of the paper.",
            ),
        ),
        notes=(MEASURED, "The same searches, with another round trip put in."),
    )


def _breakdown(*, quick: bool, **how: Any) -> Findings:
    effort = QUICK if quick else FULL
    trials = _measured(("SYN", "titles", "genomes"), effort, Measuring(**how))
    compute = middle((t for t in trials if not t.late), lambda trial: trial.broker_s)
    return Findings(
        parameters={"k": 128, "parties": 8, "limit_s": effort.limit_s},
        tables=(breakdown_table(trials),),
        notes=(MEASURED, f"Median broker compute of all searches: {1e3 * (compute or 0):.2f} ms."),
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
    title="Where the seconds go (Table 4)",
    description="Network, local search, lower bounds and broker of every algorithm.",
    work=_breakdown,
    keeps_journal=True,
)
