"""Speed-ups of DANN over its rivals on fixed lists of queries, with the target values."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.fedknn.measurement.cells import Place
from experiments.fedknn.measurement.measuring import Measuring, Task, measure
from experiments.fedknn.measurement.trials import DELAY_S, Trial
from experiments.fedknn.summaries import LATE_NOTE, Axis, middle, overview
from experiments.fedknn.sweeps import MEASURED, RIVALS
from experiments.harness import Findings, Study
from fedneighbors.records import ResultTable, Scalar

K = 128


@dataclass(frozen=True)
class Plan:
    """Settings of one run.

    Parameters
    ----------
    lists : tuple of (str, int, tuple of int)
        Collections, their numbers of queries, and the numbers of providers.
    limit_s : float
        CPU seconds that a provider may spend on a query.
    """

    lists: tuple[tuple[str, int, tuple[int, ...]], ...]
    limit_s: float


FULL = Plan((("titles", 40, (8, 16)), ("molecules", 40, (16,))), limit_s=60.0)
QUICK = Plan((("titles", 4, (8, 16)),), limit_s=1.0)


@dataclass(frozen=True)
class Goal:
    """A target for a measured number.

    Parameters
    ----------
    what : str
        For people.
    collection : str
        Where.
    n_parties : int
        Providers.
    wanted : float
        Bound.
    at_least : bool
        Whether the bound is one from below.
    measure : callable
        From the trials of the collection and place to the number; None if nothing was in time.
    """

    what: str
    collection: str
    n_parties: int
    wanted: float
    at_least: bool
    measure: Callable[[Sequence[Trial]], float | None]


def _over(rival: str) -> Callable[[Sequence[Trial]], float | None]:
    """Return a function that divides a rival's mean latency by DANN's."""

    def factor(trials: Sequence[Trial]) -> float | None:
        theirs = [t.latency_s() for t in trials if t.algorithm == rival]
        ours = [t.latency_s() for t in trials if t.algorithm == "dann"]
        return sum(theirs) / sum(ours) if ours and theirs else None

    return factor


def _local_over(rival: str) -> Callable[[Sequence[Trial]], float | None]:
    """Return the ratio of local seconds where both finished in time."""

    def factor(trials: Sequence[Trial]) -> float | None:
        ours = {t.query: t.local_sum_s for t in trials if t.algorithm == "dann" and not t.late}
        theirs = {t.query: t.local_sum_s for t in trials if t.algorithm == rival and not t.late}
        both = sorted(set(ours) & set(theirs))
        ratios = [theirs[query] / ours[query] for query in both]
        return float(np.median(ratios)) if ratios else None

    return factor


def _verified(trials: Sequence[Trial]) -> float | None:
    done = [t for t in trials if t.algorithm == "dann" and not t.late and t.verified]
    return middle(done, lambda trial: trial.verified / max(trial.possible, 1))


def _broker_of(algorithm: str) -> Callable[[Sequence[Trial]], float | None]:
    """Return a function that reads the milliseconds of an algorithm's coordinator."""

    def milliseconds(trials: Sequence[Trial]) -> float | None:
        done = [t for t in trials if t.algorithm == algorithm and not t.late]
        return middle(done, lambda trial: 1e3 * trial.broker_s)

    return milliseconds


def predicted_s(star: Trial, plain: Trial) -> float:
    """Predict DANN*'s latency from its objects and a noise-free search.

    Parameters
    ----------
    star, plain : Trial
        DANN* and DANN on the same query. Work other than on the bounds is taken to grow with the
        objects that are returned.
    """
    share = star.asked / max(plain.asked, 1)
    work_s = plain.bounds_s + (plain.search_s - plain.bounds_s) * share
    return work_s + star.n_exchanges * DELAY_S


def _star_over_predicted(trials: Sequence[Trial]) -> float | None:
    plain = {t.query: t for t in trials if t.algorithm == "dann" and not t.late}
    stars = [t for t in trials if t.algorithm == "dann*" and not t.late and t.query in plain]
    return middle(stars, lambda star: star.latency_s() / predicted_s(star, plain[star.query]))


def goals() -> tuple[Goal, ...]:
    """Return the targets."""
    found = [
        Goal("dann over baseline, latency", "molecules", 16, 9.8, True, _over("baseline")),
        Goal("dann over hufu, latency", "molecules", 16, 3.2, True, _over("hufu")),
        Goal("dann over hufu+, latency", "molecules", 16, 1.0, True, _over("hufu+")),
        Goal("dann over baseline, latency", "titles", 16, 2.4, True, _over("baseline")),
        Goal("dann over hufu, latency", "titles", 16, 2.7, True, _over("hufu")),
    ]
    for name in ("molecules", "titles"):
        for n_parties in (8, 16):
            found += [
                Goal(
                    "dann over baseline, work", name, n_parties, 1.0, True, _local_over("baseline")
                ),
                Goal("verified over possible, dann", name, n_parties, 1.2, False, _verified),
                Goal("dann* over predicted", name, n_parties, 1.3, False, _star_over_predicted),
            ]
        found += [
            Goal(f"broker compute of {algorithm}, ms", name, 8, 2.0, False, _broker_of(algorithm))
            for algorithm in ("dann", "dann*")
        ]
    return tuple(found)


def examine(plan: Plan, how: Measuring) -> Findings:
    """Return the targets and the measured values."""
    tasks = [
        Task(name, Place("uniform", n_parties), (K,), RIVALS, n_queries, plan.limit_s)
        for name, n_queries, parties in plan.lists
        for n_parties in parties
    ]
    trials = measure(tasks, how)
    return Findings(
        parameters={
            "k": K,
            "limit_s": plan.limit_s,
            "queries": [f"{name}: {n}" for name, n, _ in plan.lists],
        },
        tables=(
            _goal_table(trials),
            _each(trials),
            overview(trials, Axis("providers", lambda trial: trial.n_parties)),
        ),
        notes=(MEASURED, LATE_NOTE),
    )


def _goal_table(trials: Sequence[Trial]) -> ResultTable:
    rows: list[tuple[Scalar, ...]] = []
    for goal in goals():
        place = (goal.collection, goal.n_parties)
        own = [t for t in trials if (t.collection, t.n_parties) == place]
        value = goal.measure(own) if own else None
        if value is None:
            continue
        reached = value >= goal.wanted if goal.at_least else value <= goal.wanted
        sign = ">=" if goal.at_least else "<="
        rows.append((*place, goal.what, f"{sign} {goal.wanted:g}", value, reached))
    return ResultTable(
        name="targets",
        title="What is wanted and what was reached, uniform splits, k = 128",
        columns=("collection", "providers", "what", "wanted", "measured", "reached"),
        rows=tuple(rows),
        caption="Latency: ratio of means at a round trip of 64 ms, late searches at the limit. "
        "Work: median over the queries of CPU seconds of all providers, where both were in time.",
    )


def _each(trials: Sequence[Trial]) -> ResultTable:
    """Return a table of every search, for other summaries."""
    return ResultTable(
        name="searches",
        title="Every search",
        columns=(
            "collection", "providers", "query", "algorithm", "late", "latency_s", "local_sum_s",
            "objects asked", "verified", "possible", "k-th distance",
        ),
        rows=tuple(
            (
                t.collection, t.n_parties, t.query, t.algorithm, t.late, t.latency_s(),
                t.local_sum_s, t.asked, t.verified, t.possible, t.farthest,
            )
            for t in trials
        ),
    )  # fmt: skip


def _work(*, quick: bool, **how: Any) -> Findings:
    return examine(QUICK if quick else FULL, Measuring(**how))


STUDY = Study(
    name="fedknn.targets",
    title="Fixed lists of queries",
    description="Titles and molecules, k = 128: DANN beside its rivals, work, broker.",
    work=_work,
    keeps_journal=True,
)
