"""Comparison of replays with real runs in threads over emulated links."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.fedknn.measurement.algorithms import find_algorithm
from experiments.fedknn.measurement.collections import load_collection
from experiments.fedknn.measurement.federation import MeasuredFederation, Setting
from experiments.fedknn.measurement.trials import BYTES_PER_S, DELAY_S
from experiments.harness import Findings, Study
from fedneighbors._typing import Progress
from fedneighbors.federation._inprocess import connected
from fedneighbors.federation._links import Link
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
        Names of the collections.
    ks : tuple of int
        Numbers of neighbors.
    n_queries : int
        Number of queries of each collection.
    max_objects : int
        Size of the sample of a larger collection.
    limit_s : float
        CPU seconds that a provider may spend; late queries are skipped.
    delay_s : float
        Round trip of every link.
    """

    collections: tuple[str, ...]
    ks: tuple[int, ...] = (16, 128)
    n_queries: int = 6
    max_objects: int = 20_000
    limit_s: float = 2.0
    delay_s: float = DELAY_S


FULL = Plan(("titles", "genomes", "places", "SYN"))
QUICK = Plan(("titles",), (16,), 2)


@dataclass(frozen=True)
class Pair:
    """Replayed and real seconds of one search.

    Parameters
    ----------
    linked_s, linked_real_s : float
        Seconds with links and parallel providers: replayed, and of the wall clock.
    chained_s, chained_real_s : float
        Seconds without links and one provider after another: replayed, and CPU time.
    """

    linked_s: float
    linked_real_s: float
    chained_s: float
    chained_real_s: float


def examine(plan: Plan, *, seed: int, progress: Progress) -> Findings:
    """Compare replayed and real times."""
    rows: list[tuple[Scalar, ...]] = []
    for name in plan.collections:
        collection = load_collection(name).sample(plan.max_objects, seed=seed)
        federation = MeasuredFederation(
            collection, Setting("uniform", N_PARTIES), seed=seed, limit_s=plan.limit_s
        )
        queries = collection.queries(plan.n_queries, seed=seed)
        for algorithm in ALGORITHMS:
            for k in plan.ks:
                results = [
                    _measure_pair(federation, row, k, algorithm, plan.delay_s) for row in queries
                ]
                pairs = [pair for pair in results if pair is not None]
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
                title="Ratio of replayed to real seconds",
                columns=(
                    "collection", "k", "algorithm", "queries", "linked_s", "linked, real_s",
                    "linked, ratio", "chained_s", "chained, real_s", "chained, ratio",
                ),
                rows=tuple(rows),
                caption="Medians over the queries. Linked: threads with links that sleep, "
                "wall-clock seconds. Chained: one thread without links, CPU seconds.",
            ),
        ),
        notes=(
            "Providers of linked runs compete for the cores and the interpreter lock. Replays do "
            "not model this, which lowers the ratio.",
        ),
    )  # fmt: skip


def _measure_pair(
    federation: MeasuredFederation, row: int, k: int, algorithm: str, delay_s: float
) -> Pair | None:
    costs = federation.search(row, k, algorithm)
    if costs.answer is None:
        return None
    link = Link(delay_s, BYTES_PER_S)
    chained_s = costs.broker_s + costs.carrying_s + sum(costs.local_s.values())
    linked_real_s = _run(federation, row, k, algorithm, link=link)
    chained_real_s = _run(federation, row, k, algorithm, link=None)
    return Pair(costs.seconds(link), linked_real_s, chained_s, chained_real_s)


def _run(
    federation: MeasuredFederation, row: int, k: int, algorithm: str, *, link: Link | None
) -> float:
    """Return a run's wall-clock seconds with links, otherwise its CPU seconds."""
    with connected(federation.providers, link=link) as runtime:
        request = federation.make_request(row, k)
        clock = time.perf_counter if link else time.process_time
        start = clock()
        runtime.run(find_algorithm(algorithm)(request))
        seconds = clock() - start
        runtime.run(close_queries([request.name]))
        return seconds


def _ratios(pairs: Sequence[Pair]) -> tuple[Scalar, ...]:
    if not pairs:
        return (None,) * 6
    values = [list(column) for column in zip(*(vars(pair).values() for pair in pairs), strict=True)]
    linked, linked_real, chained, chained_real = (
        sorted(column)[len(column) // 2] for column in values
    )
    return (
        linked, linked_real, linked / linked_real, chained, chained_real, chained / chained_real,
    )  # fmt: skip


def _work(*, quick: bool, seed: int, n_jobs: int, progress: Progress) -> Findings:  # noqa: ARG001
    # one process, because real runs must not compete for the cores
    return examine(QUICK if quick else FULL, seed=seed, progress=progress)


STUDY = Study(
    name="fedknn.replay",
    title="Replays and real runs",
    description="Ratio of replayed seconds to those of threads with links that sleep.",
    work=_work,
)
