"""Figure 9: costs of DANN* by privacy budget."""

from dataclasses import dataclass
from typing import Any

from experiments.fedknn.measurement.algorithms import DELTA, LAMBDA
from experiments.fedknn.measurement.federation import SPLITS, Setting
from experiments.fedknn.measurement.measure import MeasureOptions, Task, measure
from experiments.fedknn.measurement.trials import Trial
from experiments.fedknn.summaries import Axis, median_of, overview
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
        CPU seconds that a provider may spend on a query.
    """

    n_queries: tuple[tuple[str, int], ...]
    epsilons: tuple[str, ...] = EPSILONS
    limit_s: float = 5.0

    @property
    def algorithms(self) -> tuple[str, ...]:
        """Return DANN* with each budget and guarantee, and the reference algorithms."""
        exact = tuple(f"dann* {epsilon}" for epsilon in self.epsilons)
        certified = tuple(f"dann* certified {epsilon}" for epsilon in self.epsilons)
        return ("baseline", "dann", *exact, *certified)


FULL = Plan((("SYN", 6), ("titles", 12)))
QUICK = Plan((("titles", 3),), ("0.1", "1", "8"))


def examine(plan: Plan, options: MeasureOptions) -> Findings:
    """Measure DANN* with every budget."""
    tasks = [
        Task(name, Setting(split, 8), (128,), plan.algorithms, n_queries, plan.limit_s)
        for name, n_queries in plan.n_queries
        for split in SPLITS
    ]
    trials = measure(tasks, options)
    return Findings(
        parameters={"k": 128, "parties": 8, "limit_s": plan.limit_s, "epsilon": [*plan.epsilons]},
        tables=(_curves(trials, plan), overview(trials, Axis("k", lambda trial: trial.k))),
        figures=(_figure("latency_s", "Seconds"), _figure("objects asked", "Objects asked")),
        notes=(
            f"dann*: answers are always exact, delta = {DELTA}. dann* certified: an answer is not "
            f"exact, and flagged, with probability at most {LAMBDA}. The noise is not charged to a "
            "ledger. The paper's DANN* as printed is not exact and costs more than stated; its "
            "curve cannot be reproduced under the stated guarantee.",
        ),
    )


def _curves(trials: list[Trial], plan: Plan) -> ResultTable:
    rows: list[tuple[Scalar, ...]] = []
    for collection, _ in plan.n_queries:
        for split in SPLITS:
            measured = [t for t in trials if (t.collection, t.split) == (collection, split)]
            for kind in ("baseline", "dann", "dann*", "dann* certified"):
                for epsilon in plan.epsilons:
                    name = kind if kind in ("baseline", "dann") else f"{kind} {epsilon}"
                    searches = [trial for trial in measured if trial.algorithm == name]
                    where = f"{collection}, {split}"
                    rows.append((where, float(epsilon), kind, *_median_costs(searches)))
    return ResultTable(
        name="budgets",
        title="Costs of DANN* by privacy budget",
        columns=(
            "collection", "epsilon", "algorithm", "latency_s", "local_sum_s", "objects asked",
            "late",
        ),
        rows=tuple(rows),
        caption="Medians over the queries. The latency of a late search counts as the limit.",
    )  # fmt: skip


def _median_costs(trials: list[Trial]) -> tuple[Scalar, ...]:
    return (
        median_of(trials, lambda trial: trial.latency_s()),
        median_of([t for t in trials if not t.late], lambda trial: trial.local_sum_s),
        median_of([t for t in trials if not t.late], lambda trial: trial.asked),
        sum(trial.late for trial in trials),
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
    description="DANN* with epsilon from .001 to 8 and both guarantees; DANN; the baseline.",
    work=_work,
    keeps_journal=True,
)
