"""Speed-ups of DANN on fixed lists of queries, compared with target values."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.fedknn.measurement.federation import Setting
from experiments.fedknn.measurement.measure import MeasureOptions, Task, measure
from experiments.fedknn.measurement.trials import DELAY_S, Trial
from experiments.fedknn.summaries import LATE_NOTE, Axis, median_of, overview, ratio_in_time
from experiments.fedknn.sweeps import COMPARED, MEASURED
from experiments.harness import Findings, Study
from fedneighbors.records import ResultTable, Scalar

K = 128


@dataclass(frozen=True)
class Plan:
    """Settings of one run.

    Parameters
    ----------
    lists : tuple of (str, int, tuple of int)
        Collection, number of queries and numbers of providers of each list.
    limit_s : float
        CPU seconds that a query may take: the slowest providers of all exchanges together.
    """

    lists: tuple[tuple[str, int, tuple[int, ...]], ...]
    limit_s: float


FULL = Plan((("titles", 40, (8, 16)), ("molecules", 40, (16,))), limit_s=60.0)
QUICK = Plan((("titles", 4, (8, 16)),), limit_s=1.0)


@dataclass(frozen=True)
class Target:
    """A target for a measured value.

    Parameters
    ----------
    label : str
        Description in tables.
    collection : str
        Name of the collection.
    n_parties : int
        Number of providers.
    bound : float
        Minimum or maximum of the value.
    is_minimum : bool
        True if ``bound`` is a minimum, False if it is a maximum.
    measure : callable
        Computes the value from trials; returns None if all searches were late.
    """

    label: str
    collection: str
    n_parties: int
    bound: float
    is_minimum: bool
    measure: Callable[[Sequence[Trial]], float | None]


def _latency_factor_over(competitor: str) -> Callable[[Sequence[Trial]], float | None]:
    """Return a function that divides a competitor's mean latency by DANN's."""

    def factor(trials: Sequence[Trial]) -> float | None:
        competing = {t.query: t for t in trials if t.algorithm == competitor}
        ours = {t.query: t for t in trials if t.algorithm == "dann"}
        return ratio_in_time(competing, ours, lambda trial: trial.latency_s())

    return factor


def _work_factor_over(competitor: str) -> Callable[[Sequence[Trial]], float | None]:
    """Return a function for the median ratio of CPU seconds to DANN's."""

    def factor(trials: Sequence[Trial]) -> float | None:
        dann_values = {
            t.query: t.local_sum_s for t in trials if t.algorithm == "dann" and not t.late
        }
        competitor_values = {
            t.query: t.local_sum_s for t in trials if t.algorithm == competitor and not t.late
        }
        common = sorted(set(dann_values) & set(competitor_values))
        ratios = [competitor_values[query] / dann_values[query] for query in common]
        return float(np.median(ratios)) if ratios else None

    return factor


def _verified_ratio(trials: Sequence[Trial]) -> float | None:
    in_time = [t for t in trials if t.algorithm == "dann" and not t.late and t.verified]
    return median_of(in_time, lambda trial: trial.verified / max(trial.possible, 1))


def _broker_ms_of(algorithm: str) -> Callable[[Sequence[Trial]], float | None]:
    """Return a function for the median milliseconds of an algorithm's broker."""

    def milliseconds(trials: Sequence[Trial]) -> float | None:
        in_time = [t for t in trials if t.algorithm == algorithm and not t.late]
        return median_of(in_time, lambda trial: 1e3 * trial.broker_s)

    return milliseconds


def predict_latency(noisy: Trial, noiseless: Trial) -> float:
    """Predict the latency of DANN* from a search without noise.

    Parameters
    ----------
    noisy, noiseless : Trial
        DANN* and DANN on the same query. Work other than on lower bounds is assumed to be
        proportional to the number of returned objects.
    """
    share = noisy.asked / max(noiseless.asked, 1)
    work_s = noiseless.bounds_s + (noiseless.search_s - noiseless.bounds_s) * share
    return work_s + noisy.n_exchanges * DELAY_S


def _star_over_predicted(trials: Sequence[Trial]) -> float | None:
    noiseless = {t.query: t for t in trials if t.algorithm == "dann" and not t.late}
    stars = [t for t in trials if t.algorithm == "dann*" and not t.late and t.query in noiseless]
    return median_of(
        stars, lambda noisy: noisy.latency_s() / predict_latency(noisy, noiseless[noisy.query])
    )


def make_targets() -> tuple[Target, ...]:
    """Return all targets."""
    targets = [
        Target(
            "dann over baseline, latency",
            "molecules",
            16,
            9.8,
            True,
            _latency_factor_over("baseline"),
        ),
        Target("dann over hufu, latency", "molecules", 16, 3.2, True, _latency_factor_over("hufu")),
        Target(
            "dann over hufu+, latency", "molecules", 16, 1.0, True, _latency_factor_over("hufu+")
        ),
        Target(
            "dann over baseline, latency", "titles", 16, 2.4, True, _latency_factor_over("baseline")
        ),
        Target("dann over hufu, latency", "titles", 16, 2.7, True, _latency_factor_over("hufu")),
    ]
    for name in ("molecules", "titles"):
        for n_parties in (8, 16):
            targets += [
                Target(
                    "dann over baseline, work",
                    name,
                    n_parties,
                    1.0,
                    True,
                    _work_factor_over("baseline"),
                ),
                Target(
                    "verified over possible, dann", name, n_parties, 1.2, False, _verified_ratio
                ),
                Target("dann* over predicted", name, n_parties, 1.3, False, _star_over_predicted),
            ]
        targets += [
            Target(
                f"broker compute of {algorithm}, ms", name, 8, 2.0, False, _broker_ms_of(algorithm)
            )
            for algorithm in ("dann", "dann*")
        ]
    return tuple(targets)


def examine(plan: Plan, options: MeasureOptions) -> Findings:
    """Measure the lists of queries and compare the results with the targets."""
    tasks = [
        Task(name, Setting("uniform", n_parties), (K,), COMPARED, n_queries, plan.limit_s)
        for name, n_queries, parties in plan.lists
        for n_parties in parties
    ]
    trials = measure(tasks, options)
    return Findings(
        parameters={
            "k": K,
            "limit_s": plan.limit_s,
            "queries": [f"{name}: {n}" for name, n, _ in plan.lists],
        },
        tables=(
            _target_table(trials),
            _searches_table(trials),
            overview(trials, Axis("providers", lambda trial: trial.n_parties)),
        ),
        notes=(MEASURED, LATE_NOTE),
    )


def _target_table(trials: Sequence[Trial]) -> ResultTable:
    rows: list[tuple[Scalar, ...]] = []
    for target in make_targets():
        setting = (target.collection, target.n_parties)
        searches = [t for t in trials if (t.collection, t.n_parties) == setting]
        value = target.measure(searches) if searches else None
        if value is None:
            continue
        reached = value >= target.bound if target.is_minimum else value <= target.bound
        sign = ">=" if target.is_minimum else "<="
        rows.append((*setting, target.label, f"{sign} {target.bound:g}", value, reached))
    return ResultTable(
        name="targets",
        title="Targets and measured values, uniform splits, k = 128",
        columns=("collection", "providers", "what", "wanted", "measured", "reached"),
        rows=tuple(rows),
        caption="Latency: ratio of means at a round trip of 64 ms. Work: median ratio of the CPU "
        "seconds of all providers. Both are over the queries on which neither algorithm was late.",
    )


def _searches_table(trials: Sequence[Trial]) -> ResultTable:
    """Return a table of all searches."""
    return ResultTable(
        name="searches",
        title="All searches",
        columns=(
            "collection", "providers", "query", "algorithm", "late", "latency_s", "local_sum_s",
            "objects asked", "verified", "possible", "k-th distance",
        ),
        rows=tuple(
            (
                t.collection, t.n_parties, t.query, t.algorithm, t.late,
                None if t.late else t.latency_s(),
                t.local_sum_s, t.asked, t.verified, t.possible, t.farthest,
            )
            for t in trials
        ),
    )  # fmt: skip


def _work(*, quick: bool, **options: Any) -> Findings:
    return examine(QUICK if quick else FULL, MeasureOptions(**options))


STUDY = Study(
    name="fedknn.targets",
    title="Fixed lists of queries",
    description="Titles and molecules, k = 128: DANN compared with targets for latency and work.",
    work=_work,
    keeps_journal=True,
)
