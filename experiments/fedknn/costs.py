"""Table 1 and Figure 4: costs of local searches, and DANN's requests in the second round."""

from collections.abc import Mapping
from typing import Any

from experiments.fedknn.measurement.algorithms import PAPER_NAMES
from experiments.fedknn.measurement.federation import SPLITS, Setting
from experiments.fedknn.measurement.measure import MeasureOptions, Task, measure
from experiments.fedknn.measurement.trials import DELAY_S, Trial, drop_late_queries
from experiments.fedknn.summaries import LATE_NOTE, median_of
from experiments.fedknn.sweeps import FULL, LOCAL, MEASURED, QUICK, Effort
from experiments.harness import Findings, Study
from fedneighbors.records import Figure, ResultTable, Scalar

KS = (4, 8, 16, 32, 64, 128, 256)

# Table 1 of the paper: local and other seconds of the baseline and of HuFu-Ext.
PAPER: Mapping[tuple[str, str], tuple[float, float]] = {
    ("molecules", "baseline"): (42.72, 0.21),
    ("molecules", "hufu"): (15.62, 0.73),
    ("SYN", "baseline"): (27.18, 0.18),
    ("SYN", "hufu"): (13.69, 0.77),
    ("titles", "baseline"): (4.29, 0.20),
    ("titles", "hufu"): (5.61, 0.67),
    ("genomes", "baseline"): (700.94, 0.22),
    ("genomes", "hufu"): (751.13, 0.71),
}


def examine(effort: Effort, options: MeasureOptions) -> Findings:
    """Measure local searches, their growth with k, and DANN's second round."""
    names = [name for name in LOCAL if name in effort.n_queries]
    tasks = [
        Task(name, Setting("uniform", 8), (128,), ("baseline", "hufu", "dann"), n, effort.limit_s)
        for name, n in effort.n_queries.items()
        if name in names
    ]
    tasks += [
        Task(name, Setting("uniform", 1), KS, ("baseline",), n, effort.limit_s)
        for name, n in effort.n_queries.items()
        if name in names
    ]
    tasks += [
        Task(name, Setting(split, 8), KS, ("dann",), n, effort.limit_s)
        for name, n in effort.n_queries.items()
        if name in names
        for split in SPLITS
    ]
    trials = measure(tasks, options)
    single = [trial for trial in trials if trial.n_parties == 1]
    federated = [trial for trial in trials if trial.n_parties > 1]
    rounds = [trial for trial in federated if trial.algorithm == "dann"]
    return Findings(
        parameters={"limit_s": effort.limit_s, "k": list(KS)},
        tables=(_costs(federated), _growth(single), _second_round(rounds)),
        figures=(
            _figure("growth", "local_s", "Local search of one provider with all objects, over k"),
            _figure("second", "second round", "Objects requested in DANN's second round, over k"),
        ),
        notes=(
            MEASURED,
            "Growth: seconds with k neighbors over seconds with 4; for k = 256 the paper has 95 on "
            "AIDS and 19 on SYN.",
            LATE_NOTE,
        ),
    )


def _costs(trials: list[Trial]) -> ResultTable:
    """Return Table 1: seconds of local search, and all other seconds."""
    rows: list[tuple[Scalar, ...]] = []
    for (name, algorithm), paper in PAPER.items():
        group = [t for t in trials if (t.collection, t.split, t.k) == (name, "uniform", 128)]
        searches = [trial for trial in group if trial.algorithm == algorithm]
        if searches:
            late = sum(trial.late for trial in searches)
            common = [t for t in drop_late_queries(group) if t.algorithm == algorithm]
            seconds = _mean_search(common), median_of(common, _other_seconds)
            counts = len(searches), late, len(common)
            rows.append((name, algorithm, *counts, *seconds, PAPER_NAMES[algorithm], *paper))
    return ResultTable(
        name="costs",
        title="Local and other seconds of a search, k = 128, 8 providers, uniform (Table 1)",
        columns=(
            "collection", "algorithm", "queries", "late", "compared", "local_s", "other_s",
            "the paper's algorithm", "local, paper", "other, paper",
        ),
        rows=tuple(rows),
        caption="Local: mean; other: median; both over the queries on which neither of the two nor "
        "DANN was late (compared). Round trip 64 ms.",
    )  # fmt: skip


def _other_seconds(trial: Trial) -> float:
    return trial.latency_s(DELAY_S) - trial.search_s


def _growth(single: list[Trial]) -> ResultTable:
    """Return Figure 4 (a): local search over k."""
    rows: list[tuple[Scalar, ...]] = []
    for name in dict.fromkeys(trial.collection for trial in single):
        searches = [trial for trial in single if trial.collection == name]
        late = {trial.query for trial in searches if trial.late}
        common = [trial for trial in searches if trial.query not in late]
        means = {k: _mean_search([t for t in common if t.k == k]) for k in KS}
        first = means[KS[0]]
        for k, mean in means.items():
            factor = mean / first if mean is not None and first else None
            rows.append((name, k, len(common) // len(KS), mean, factor))
    return ResultTable(
        name="growth",
        title="Local search over k (Figure 4 a)",
        columns=("collection", "k", "queries", "local_s", "over k = 4"),
        rows=tuple(rows),
        caption="Means over the queries that are not late for any k.",
    )


def _mean_search(searches: list[Trial]) -> float | None:
    return sum(trial.search_s for trial in searches) / len(searches) if searches else None


def _second_round(trials: list[Trial]) -> ResultTable:
    """Return Figure 4 (b): DANN's requests over k."""
    rows: list[tuple[Scalar, ...]] = []
    for name, split in dict.fromkeys((trial.collection, trial.split) for trial in trials):
        for k in KS:
            searches = [t for t in trials if (t.collection, t.split, t.k) == (name, split, k)]
            in_time = [trial for trial in searches if not trial.late]
            first = median_of(in_time, lambda trial: trial.wanted_first)
            second = median_of(in_time, lambda trial: trial.wanted_second)
            asked = median_of(in_time, lambda trial: trial.asked)
            rows.append(
                (f"{name}, {split}", k, len({t.query for t in in_time}), first, second, asked)
            )
    return ResultTable(
        name="second",
        title="Objects that DANN requests (Figure 4 b, Lemma 4.7)",
        columns=("collection", "k", "queries", "first round", "second round", "returned in all"),
        rows=tuple(rows),
        caption="Medians. Lemma 4.7 predicts m^2 = 64 objects in the second round. The request "
        "contains the distance of the k-th object found so far, so fewer objects are returned.",
    )


def _figure(table: str, column: str, title: str) -> Figure:
    return Figure(
        name=table,
        kind="line",
        title=title,
        table=table,
        x="k",
        y=column,
        hue="collection",
        log_x=True,
        log_y=table == "growth",
        caption="Figure 4 of the paper.",
    )


def _work(*, quick: bool, **options: Any) -> Findings:
    return examine(QUICK if quick else FULL, MeasureOptions(**options))


STUDY = Study(
    name="fedknn.costs",
    title="Local costs (Table 1, Figure 4)",
    description="Seconds of local searches, growth with k, and DANN's second round.",
    work=_work,
    keeps_journal=True,
)
