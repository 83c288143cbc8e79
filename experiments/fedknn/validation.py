"""Validation of replays: the same searches in real threads over emulated links."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.fedknn.measurement.cells import Cell, Place
from experiments.fedknn.measurement.collections import load_collection
from experiments.fedknn.measurement.contenders import contender
from experiments.fedknn.measurement.trials import BYTES_PER_S, DELAY_S
from experiments.harness import Findings, Study
from fedneighbors._typing import Progress
from fedneighbors.federation._inprocess import Link, connected
from fedneighbors.methods.fedknn.protocol import close_queries
from fedneighbors.records import ResultTable, Scalar

ALGORITHMS = ("baseline", "dann", "hufu+", "dann*")
N_PARTIES = 8


@dataclass(frozen=True)
class Plan:
    """Settings of one run.

    Parameters
    ----------
    collections : tuple of str
        Where.
    ks : tuple of int
        Neighbours.
    n_queries : int
        Of each collection.
    most_objects : int
        Number of objects of larger collections.
    limit_s : float
        CPU seconds that a provider may spend; queries that are late are left out.
    delay_s : float
        Round trip of every link.
    """

    collections: tuple[str, ...]
    ks: tuple[int, ...] = (16, 128)
    n_queries: int = 6
    most_objects: int = 20_000
    limit_s: float = 2.0
    delay_s: float = DELAY_S


FULL = Plan(("titles", "genomes", "places", "SYN"))
QUICK = Plan(("titles",), (16,), 2)


@dataclass(frozen=True)
class Pair:
    """One search, replayed and in real threads.

    Parameters
    ----------
    linked_s, linked_real_s : float
        Seconds over links, providers side by side: replayed, and by the clock.
    chained_s, chained_real_s : float
        Seconds without links, providers one after another: replayed, and CPU seconds of the thread.
    """

    linked_s: float
    linked_real_s: float
    chained_s: float
    chained_real_s: float


def examine(plan: Plan, *, seed: int, progress: Progress) -> Findings:
    """Return the ratio of replayed to real times."""
    rows: list[tuple[Scalar, ...]] = []
    for name in plan.collections:
        collection = load_collection(name).part(plan.most_objects, seed=seed)
        cell = Cell(collection, Place("uniform", N_PARTIES), seed=seed, limit_s=plan.limit_s)
        queries = collection.queries(plan.n_queries, seed=seed)
        for algorithm in ALGORITHMS:
            for k in plan.ks:
                found = [_pair(cell, row, k, algorithm, plan.delay_s) for row in queries]
                pairs = [pair for pair in found if pair is not None]
                rows.append((name, k, algorithm, len(pairs), *_ratios(pairs)))
            progress(len(rows), len(plan.collections) * len(ALGORITHMS) * len(plan.ks), name)
    return Findings(
        parameters={
            "parties": N_PARTIES,
            "queries": plan.n_queries,
            "delay_s": plan.delay_s,
            "k": list(plan.ks),
        },
        tables=(
            ResultTable(
                name="ratios",
                title="Replayed over real seconds",
                columns=(
                    "collection", "k", "algorithm", "queries", "linked_s", "linked, real_s",
                    "linked, ratio", "chained_s", "chained, real_s", "chained, ratio",
                ),
                rows=tuple(rows),
                caption="Medians over the queries. Linked: threads over links that sleep, by the "
                "clock. Chained: one thread without links, CPU seconds.",
            ),
        ),
        notes=(
            "Linked runs share one machine's cores and its interpreter's lock, which replays do "
            "not have: what they add is what the ratio lacks to one.",
        ),
    )  # fmt: skip


def _pair(cell: Cell, row: int, k: int, algorithm: str, delay_s: float) -> Pair | None:
    course = cell.schedule(row, k, algorithm)
    if course.answer is None:
        return None
    link = Link(delay_s, BYTES_PER_S)
    chained_s = course.broker_s + course.carrying_s + sum(course.local_s.values())
    linked_real_s = _run(cell, row, k, algorithm, link=link)
    chained_real_s = _run(cell, row, k, algorithm, link=None)
    return Pair(course.seconds(link), linked_real_s, chained_s, chained_real_s)


def _run(cell: Cell, row: int, k: int, algorithm: str, *, link: Link | None) -> float:
    """Return a real run's seconds: wall clock with links, else CPU."""
    with connected(cell.providers, link=link) as federation:
        question = cell.question(row, k)
        clock = time.perf_counter if link else time.process_time
        start = clock()
        federation.run(contender(algorithm)(question))
        spent = clock() - start
        federation.run(close_queries([question.name]))
        return spent


def _ratios(pairs: Sequence[Pair]) -> tuple[Scalar, ...]:
    if not pairs:
        return (None,) * 6
    values = [list(column) for column in zip(*(vars(pair).values() for pair in pairs), strict=True)]
    linked, linked_real, chained, chained_real = (sorted(each)[len(each) // 2] for each in values)
    return (
        linked, linked_real, linked / linked_real, chained, chained_real, chained / chained_real,
    )  # fmt: skip


def _work(*, quick: bool, seed: int, n_jobs: int, progress: Progress) -> Findings:  # noqa: ARG001
    # one process: the real runs need the machine for themselves
    return examine(QUICK if quick else FULL, seed=seed, progress=progress)


STUDY = Study(
    name="fedknn.replay",
    title="Replays beside real runs",
    description="The seconds that replays tell, over those of threads with links that sleep.",
    work=_work,
)
