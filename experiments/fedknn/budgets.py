"""Figure 9: costs of DANN* by privacy budget."""

from dataclasses import dataclass
from typing import Any

from experiments.fedknn.measurement.algorithms import DELTA, LAMBDA, PRINTED
from experiments.fedknn.measurement.federation import SPLITS, Setting
from experiments.fedknn.measurement.measure import MeasureOptions, Task, measure
from experiments.fedknn.measurement.trials import Trial, count_wrong, drop_late_queries
from experiments.fedknn.summaries import LATE_NOTE, Axis, count_notes, median_of, overview
from experiments.harness import Findings, Study
from fedneighbors.records import Figure, ResultTable, Scalar

EPSILONS = ("0.001", "0.01", "0.1", "0.2", "0.4", "0.8", "1", "2", "4", "8")


@dataclass(frozen=True)
class Plan:
    """Settings of one run.

    Parameters
    ----------
    n_queries : tuple of (str, int)
        Number of queries by collection.
    epsilons : tuple of str
        Privacy budgets of a query.
    limit_s : float
        CPU seconds that a query may take: the slowest providers of all exchanges together.
    """

    n_queries: tuple[tuple[str, int], ...]
    epsilons: tuple[str, ...] = EPSILONS
    limit_s: float = 5.0

    @property
    def algorithms(self) -> tuple[str, ...]:
        """Return each form of DANN* with each budget, and the reference algorithms."""
        exact = tuple(f"dann* {epsilon}" for epsilon in self.epsilons)
        certified = tuple(f"dann* certified {epsilon}" for epsilon in self.epsilons)
        printed = tuple(f"{PRINTED} {epsilon}" for epsilon in self.epsilons)
        return ("baseline", "dann", *exact, *certified, *printed)


FULL = Plan((("SYN", 6), ("titles", 12)))
QUICK = Plan((("titles", 3),), ("0.1", "1", "8"))


def examine(plan: Plan, options: MeasureOptions) -> Findings:
    """Measure DANN* with every budget."""
    tasks = [
        Task(name, Setting(split, 8), (128,), plan.algorithms, n_queries, plan.limit_s)
        for name, n_queries in plan.n_queries
        for split in SPLITS
    ]
    trials, axis = measure(tasks, options), Axis("k", lambda trial: trial.k)
    return Findings(
        parameters={"k": 128, "parties": 8, "limit_s": plan.limit_s, "epsilon": [*plan.epsilons]},
        tables=(_curves(trials, plan), overview(trials, axis)),
        figures=(_figure("latency_s", "Seconds"), _figure("objects asked", "Objects asked")),
        notes=(
            f"dann*: answers are always exact, delta = {DELTA}. dann* certified: an answer is not "
            f"exact, and flagged, with probability at most {LAMBDA}. The noise is not charged to a "
            "ledger. DANN* as printed is not exact and costs up to 2 epsilon; its noise is raised "
            f"so that a single count is too low with probability {LAMBDA}.",
            LATE_NOTE,
            *count_notes(trials, axis),
        ),
    )


def _curves(trials: list[Trial], plan: Plan) -> ResultTable:
    rows: list[tuple[Scalar, ...]] = []
    for collection, _ in plan.n_queries:
        for split in SPLITS:
            measured = [t for t in trials if (t.collection, t.split) == (collection, split)]
            compared = drop_late_queries(measured)
            for kind in ("baseline", "dann", "dann*", "dann* certified", PRINTED):
                for epsilon in plan.epsilons:
                    name = kind if kind in ("baseline", "dann") else f"{kind} {epsilon}"
                    searches = [trial for trial in measured if trial.algorithm == name]
                    counts = sum(t.late for t in searches), count_wrong(searches, measured)
                    costs = _median_costs([t for t in compared if t.algorithm == name])
                    where = f"{collection}, {split}"
                    rows.append((where, float(epsilon), kind, *costs, *counts))
    return ResultTable(
        name="budgets",
        title="Costs of DANN* by privacy budget",
        columns=(
            "collection", "epsilon", "algorithm", "latency_s", "local_sum_s", "objects asked",
            "compared", "late", "wrong",
        ),
        rows=tuple(rows),
        caption="Medians over the queries on which no algorithm was late (compared).",
    )  # fmt: skip


def _median_costs(trials: list[Trial]) -> tuple[Scalar, ...]:
    return (
        median_of(trials, lambda trial: trial.latency_s()),
        median_of(trials, lambda trial: trial.local_sum_s),
        median_of(trials, lambda trial: trial.asked),
        len(trials),
    )


def _figure(column: str, label: str) -> Figure:
    return Figure(
        name="asked" if "asked" in column else "latency",
        kind="line",
        title=f"{label} over the privacy budget",
        table="budgets",
        x="epsilon",
        y=column,
        hue="algorithm",
        facet="collection",
        log_x=True,
        log_y=True,
        caption="Figure 9 of the paper; 8 providers, k = 128.",
    )


def _work(*, quick: bool, **options: Any) -> Findings:
    return examine(QUICK if quick else FULL, MeasureOptions(**options))


STUDY = Study(
    name="fedknn.epsilon",
    title="Privacy budgets (Figure 9)",
    description="Forms of DANN* with epsilon from .001 to 8; DANN; the baseline.",
    work=_work,
    keeps_journal=True,
)
