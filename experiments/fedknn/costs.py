"""Table 1 and Figure 4: costs of local searches, and DANN's requests in the second round."""

from collections.abc import Mapping
from typing import Any

from experiments.fedknn.measurement.cells import SPLITS, Place
from experiments.fedknn.measurement.measuring import Measuring, Task, measure
from experiments.fedknn.measurement.trials import DELAY_S, Trial
from experiments.fedknn.summaries import middle
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


def examine(effort: Effort, how: Measuring) -> Findings:
    """Return seconds, growth with k, and counts of the second round."""
    names = [name for name in LOCAL if name in effort.n_queries]
    tasks = [
        Task(name, Place("uniform", 8), (128,), ("baseline", "hufu", "dann"), n, effort.limit_s)
        for name, n in effort.n_queries.items()
        if name in names
    ]
    tasks += [
        Task(name, Place("uniform", 1), KS, ("baseline",), n, effort.limit_s)
        for name, n in effort.n_queries.items()
        if name in names
    ]
    tasks += [
        Task(name, Place(split, 8), KS, ("dann",), n, effort.limit_s)
        for name, n in effort.n_queries.items()
        if name in names
        for split in SPLITS
    ]
    trials = measure(tasks, how)
    alone = [trial for trial in trials if trial.n_parties == 1]
    together = [trial for trial in trials if trial.n_parties > 1]
    rounds = [trial for trial in together if trial.algorithm == "dann"]
    return Findings(
        parameters={"limit_s": effort.limit_s, "k": list(KS)},
        tables=(_costs(together), _growth(alone), _second(rounds)),
        figures=(
            _figure("growth", "local_s", "Local search of one provider that holds all, over k"),
            _figure("second", "second round", "Objects asked for in DANN's second round, over k"),
        ),
        notes=(
            MEASURED,
            "Growth: a search with k neighbors over one with 4; the paper has 95 on AIDS and 19 "
            "on SYN for k = 256.",
        ),
    )


def _costs(trials: list[Trial]) -> ResultTable:
    """Return Table 1: seconds of the slowest provider, and all others."""
    rows: list[tuple[Scalar, ...]] = []
    for (name, algorithm), paper in PAPER.items():
        own = [t for t in trials if (t.collection, t.algorithm, t.k) == (name, algorithm, 128)]
        own = [trial for trial in own if trial.split == "uniform"]
        if own:
            late = sum(trial.late for trial in own)
            local = sum(t.limit_s if t.late else t.search_s for t in own) / len(own)
            others = middle((t for t in own if not t.late), _others)
            rows.append((name, algorithm, len(own), late, local, others, *paper))
    return ResultTable(
        name="costs",
        title="Local and other seconds of a search, k = 128, 8 providers, uniform (Table 1)",
        columns=(
            "collection", "algorithm", "queries", "late", "local_s", "other_s", "local, paper",
            "other, paper",
        ),
        rows=tuple(rows),
        caption="Local: mean, late searches at the limit. Other: median of those in time; round "
        "trip 64 ms.",
    )  # fmt: skip


def _others(trial: Trial) -> float:
    return trial.latency_s(DELAY_S) - trial.search_s


def _growth(alone: list[Trial]) -> ResultTable:
    """Return Figure 4 (a)."""
    rows: list[tuple[Scalar, ...]] = []
    for name in dict.fromkeys(trial.collection for trial in alone):
        own = [trial for trial in alone if trial.collection == name]
        late = {trial.query for trial in own if trial.late}
        common = [trial for trial in own if trial.query not in late]
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
        caption="Means over the queries that are in time for every k.",
    )


def _mean_search(own: list[Trial]) -> float | None:
    return sum(trial.search_s for trial in own) / len(own) if own else None


def _second(trials: list[Trial]) -> ResultTable:
    """Return Figure 4 (b)."""
    rows: list[tuple[Scalar, ...]] = []
    for name, split in dict.fromkeys((trial.collection, trial.split) for trial in trials):
        for k in KS:
            own = [t for t in trials if (t.collection, t.split, t.k) == (name, split, k)]
            done = [trial for trial in own if not trial.late]
            first = middle(done, lambda trial: trial.wanted_first)
            second = middle(done, lambda trial: trial.wanted_second)
            asked = middle(done, lambda trial: trial.asked)
            rows.append((f"{name}, {split}", k, len({t.query for t in done}), first, second, asked))
    return ResultTable(
        name="second",
        title="Objects that DANN asks for (Figure 4 b, Lemma 4.7)",
        columns=("collection", "k", "queries", "first round", "second round", "returned in all"),
        rows=tuple(rows),
        caption="Medians. Lemma 4.7 expects m^2 = 64 in the second round; the place of the k-th "
        "object, sent along, keeps what is returned below what is asked for.",
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


def _work(*, quick: bool, **how: Any) -> Findings:
    return examine(QUICK if quick else FULL, Measuring(**how))


STUDY = Study(
    name="fedknn.costs",
    title="Local costs (Table 1, Figure 4)",
    description="Seconds of local search, their growth with k, and DANN's second round.",
    work=_work,
    keeps_journal=True,
)
