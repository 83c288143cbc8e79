"""Figure 9: the cost of DANN*'s privacy by its budget."""

from dataclasses import dataclass
from typing import Any

from experiments.fedknn.measurement.cells import SPLITS, Place
from experiments.fedknn.measurement.contenders import DELTA, LAMBDA
from experiments.fedknn.measurement.measuring import Measuring, Task, measure
from experiments.fedknn.measurement.trials import Trial
from experiments.fedknn.summaries import Axis, middle, overview
from experiments.harness import Findings, Study
from fedneighbors.records import Figure, ResultTable, Scalar

EPSILONS = ("0.001", "0.01", "0.1", "0.2", "0.4", "0.8", "1", "2", "4", "8")


@dataclass(frozen=True)
class Plan:
    """Settings of one run.

    Parameters
    ----------
    n_queries : tuple of (str, int)
        Queries of each collection.
    epsilons : tuple of str
        Budgets of a query.
    limit_s : float
        CPU seconds that a provider may spend on a query.
    """

    n_queries: tuple[tuple[str, int], ...]
    epsilons: tuple[str, ...] = EPSILONS
    limit_s: float = 5.0

    @property
    def algorithms(self) -> tuple[str, ...]:
        """Return DANN* with each budget and promise, and the reference algorithms."""
        exact = tuple(f"dann* {epsilon}" for epsilon in self.epsilons)
        certified = tuple(f"dann* certified {epsilon}" for epsilon in self.epsilons)
        return ("baseline", "dann", *exact, *certified)


FULL = Plan((("SYN", 6), ("titles", 12)))
QUICK = Plan((("titles", 3),), ("0.1", "1", "8"))


def examine(plan: Plan, how: Measuring) -> Findings:
    """Return the requests and times of DANN* for every budget."""
    tasks = [
        Task(name, Place(split, 8), (128,), plan.algorithms, n_queries, plan.limit_s)
        for name, n_queries in plan.n_queries
        for split in SPLITS
    ]
    trials = measure(tasks, how)
    return Findings(
        parameters={"k": 128, "parties": 8, "limit_s": plan.limit_s, "epsilon": [*plan.epsilons]},
        tables=(_curves(trials, plan), overview(trials, Axis("k", lambda trial: trial.k))),
        figures=(_figure("latency_s", "Seconds"), _figure("objects asked", "Objects asked")),
        notes=(
            f"dann*: answers always exact, delta = {DELTA}; certified: not exact, and flagged, "
            f"with probability {LAMBDA} at most. Noise is drawn from the system for every search; "
            "it is not charged to a ledger here. The paper's DANN* is not exact as printed and "
            "spends more than it says, so that its curve cannot be had with the promise kept.",
        ),
    )


def _curves(trials: list[Trial], plan: Plan) -> ResultTable:
    rows: list[tuple[Scalar, ...]] = []
    for collection, _ in plan.n_queries:
        for split in SPLITS:
            here = [t for t in trials if (t.collection, t.split) == (collection, split)]
            for kind in ("baseline", "dann", "dann*", "dann* certified"):
                for epsilon in plan.epsilons:
                    name = kind if kind in ("baseline", "dann") else f"{kind} {epsilon}"
                    own = [trial for trial in here if trial.algorithm == name]
                    where = f"{collection}, {split}"
                    rows.append((where, float(epsilon), kind, *_numbers(own)))
    return ResultTable(
        name="budgets",
        title="DANN* over its budget",
        columns=(
            "collection", "epsilon", "algorithm", "latency_s", "local_sum_s", "objects asked",
            "late",
        ),
        rows=tuple(rows),
        caption="Medians over the queries; latencies of late searches at the limit.",
    )  # fmt: skip


def _numbers(own: list[Trial]) -> tuple[Scalar, ...]:
    return (
        middle(own, lambda trial: trial.latency_s()),
        middle([t for t in own if not t.late], lambda trial: trial.local_sum_s),
        middle([t for t in own if not t.late], lambda trial: trial.asked),
        sum(trial.late for trial in own),
    )


def _figure(column: str, what: str) -> Figure:
    return Figure(
        name="asked" if "asked" in column else "latency",
        kind="line",
        title=f"{what} over the privacy budget",
        table="budgets",
        x="epsilon",
        y=column,
        hue="algorithm",
        facet="collection",
        log_x=True,
        log_y=True,
        caption="Figure 9 of the paper; 8 providers, k = 128.",
    )


def _work(*, quick: bool, **how: Any) -> Findings:
    return examine(QUICK if quick else FULL, Measuring(**how))


STUDY = Study(
    name="fedknn.epsilon",
    title="Privacy budgets (Figure 9)",
    description="DANN* with epsilon from .001 to 8, both promises, with DANN and the baseline.",
    work=_work,
    keeps_journal=True,
)
