"""Figures 5 to 8, 10, 12 and 13: varied neighbors, providers, size and lower bounds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from experiments.fedknn.measurement.algorithms import PRINTED
from experiments.fedknn.measurement.collections import SYN
from experiments.fedknn.measurement.federation import SPLITS, Setting
from experiments.fedknn.measurement.measure import MeasureOptions, Task, measure
from experiments.fedknn.summaries import (
    LATE_NOTE,
    OURS,
    Axis,
    Claim,
    bar_figure,
    count_notes,
    curve_tables,
    line_figures,
    overview,
    speedups,
)
from experiments.harness import Findings, Study, Work
from fedneighbors.records import Figure

COMPARED = ("baseline", "hufu", "hufu+", "dann", "dann*", PRINTED)
LOCAL = ("titles", "genomes", "SYN", "molecules")
"""The four collections whose local searches dominate the cost in the paper."""

N_QUERIES = {"titles": 12, "genomes": 8, "SYN": 6, "molecules": 4, "places": 12}


@dataclass(frozen=True)
class Effort:
    """Number of queries and time limit of an experiment.

    Parameters
    ----------
    n_queries : mapping of str to int
        Number of queries by collection; others are skipped.
    limit_s : float
        CPU seconds that a query may take: the slowest providers of all exchanges together.
    """

    n_queries: Mapping[str, int] = field(default_factory=lambda: N_QUERIES)
    limit_s: float = 5.0


FULL = Effort()
QUICK = Effort({"titles": 3, "SYN": 2}, limit_s=1.0)


@dataclass(frozen=True)
class Sweep:
    """An experiment that varies one parameter.

    Parameters
    ----------
    axis : Axis
        The varied parameter.
    collections, splits, algorithms : tuple of str
        Collections, their splits, and the algorithms to measure.
    ks, parties, shares : tuple
        Numbers of neighbors, numbers of providers, and fractions of the graphs of SYN.
    claims : mapping
        The paper's speed-ups, by collection and split.
    title, caption : str
        Title and caption of the figures.
    """

    axis: Axis
    collections: tuple[str, ...]
    splits: tuple[str, ...]
    algorithms: tuple[str, ...]
    ks: tuple[int, ...]
    parties: tuple[int, ...]
    claims: Mapping[tuple[str, str], Claim]
    title: str
    caption: str
    shares: tuple[float, ...] = (1.0,)

    @property
    def competitors(self) -> tuple[str, ...]:
        """Return all algorithms but DANN and both forms of DANN*."""
        return tuple(name for name in self.algorithms if name not in OURS)

    @property
    def is_varied(self) -> bool:
        """Return whether the parameter has several values."""
        return max(len(self.ks), len(self.parties), len(self.shares)) > 1

    def tasks(self, effort: Effort) -> list[Task]:
        """Return the searches to measure."""
        return [
            Task(
                collection=name,
                setting=Setting(split, n_parties),
                ks=self.ks,
                algorithms=self.algorithms,
                n_queries=effort.n_queries[name],
                limit_s=effort.limit_s,
                n_objects=None if len(self.shares) == 1 else round(share * SYN.n_graphs),
            )
            for name in self.collections
            if name in effort.n_queries
            for split in self.splits
            for n_parties in self.parties
            for share in self.shares
        ]


def examine(sweep: Sweep, effort: Effort, options: MeasureOptions) -> Findings:
    """Measure the algorithms at every parameter value of a sweep."""
    trials = measure(sweep.tasks(effort), options)
    table = overview(trials, sweep.axis)
    return Findings(
        parameters={
            "limit_s": effort.limit_s,
            "queries": [f"{name}: {n}" for name, n in effort.n_queries.items()],
            "k": list(sweep.ks),
            "parties": list(sweep.parties),
        },
        tables=(
            table,
            speedups(trials, sweep.axis, competitors=sweep.competitors, claims=sweep.claims),
            *(t for t in curve_tables(table, sweep.axis) if t.rows),
        ),
        figures=_figures(sweep),
        notes=(MEASURED, LATE_NOTE, *count_notes(trials, sweep.axis)),
    )


def _figures(sweep: Sweep) -> tuple[Figure, ...]:
    if not sweep.is_varied:
        return (bar_figure(title=sweep.title, caption=sweep.caption),)
    figures = line_figures(sweep.axis, title=sweep.title, caption=sweep.caption)
    return tuple(f for f in figures if f.table.removeprefix("curves-") in sweep.splits)


MEASURED = (
    "Providers run one after another in one thread, and their CPU seconds are measured. The "
    "latency of a query is the broker's CPU seconds plus, for every exchange, a round trip and the "
    "slowest provider's seconds for work and for transfer at 100 Mbit/s. Costly searches (graphs) "
    "are recorded once per query and provider; all algorithms use the recording except hufu, whose "
    "range counts are run. Every search is run. HuFu's first radius is the k-th distance of a "
    "query that is not measured."
)


K = Axis("k", lambda trial: trial.k)
PARTIES = Axis("providers", lambda trial: trial.n_parties)
OBJECTS = Axis("objects", lambda trial: trial.n_objects)

NEIGHBORS_SWEEP = Sweep(
    axis=K,
    collections=LOCAL,
    splits=tuple(SPLITS),
    algorithms=COMPARED,
    ks=(4, 8, 16, 32, 64, 128, 256),
    parties=(8,),
    claims={
        ("molecules", "uniform"): Claim({"baseline": 7.5, "hufu": 2.3}),
        ("molecules", "skewed"): Claim({"baseline": 6.1, "hufu": 2.1}),
        ("SYN", "uniform"): Claim({"baseline": 8.2, "hufu": 3.9}),
        ("SYN", "skewed"): Claim({"baseline": 8.6, "hufu": 4.8}),
        ("titles", "uniform"): Claim({"baseline": 1.9, "hufu": 2.7}),
        ("genomes", "uniform"): Claim({"baseline": 1.29, "hufu": 1.36}),
    },
    title="Seconds over the number of neighbors",
    caption="Figures 5 and 6 of the paper; 8 providers.",
)
PROVIDERS_SWEEP = Sweep(
    axis=PARTIES,
    collections=LOCAL,
    splits=tuple(SPLITS),
    algorithms=COMPARED,
    ks=(128,),
    parties=(4, 8, 12, 16),
    claims={
        ("molecules", "uniform"): Claim({"baseline": 9.8, "hufu": 3.1}),
        ("molecules", "skewed"): Claim({"baseline": 8.3, "hufu": 3.2}),
        ("SYN", "uniform"): Claim({"baseline": 8.2, "hufu": 3.1}),
        ("SYN", "skewed"): Claim({"baseline": 9.3, "hufu": 3.3}),
        ("titles", "uniform"): Claim({"baseline": 2.4, "hufu": 2.7}),
        ("titles", "skewed"): Claim({"baseline": 1.9, "hufu": 1.9}),
        ("genomes", "uniform"): Claim({"baseline": 1.39, "hufu": 1.35}),
        ("genomes", "skewed"): Claim({"baseline": 1.26, "hufu": 1.25}),
    },
    title="Seconds over the number of providers",
    caption="Figures 7 and 8 of the paper; k = 128.",
)
SCALABILITY_SWEEP = Sweep(
    axis=OBJECTS,
    collections=("SYN",),
    splits=tuple(SPLITS),
    algorithms=COMPARED,
    ks=(128,),
    parties=(8,),
    shares=(0.2, 0.4, 0.6, 0.8, 1.0),
    claims={
        ("SYN", "uniform"): Claim({"baseline": 6.3, "hufu": 3.1}),
        ("SYN", "skewed"): Claim({"baseline": 6.5, "hufu": 2.9}),
    },
    title="Seconds over the number of graphs",
    caption="Figure 12 of the paper, on a fiftieth of its graphs; 8 providers, k = 128.",
)
PLACES_SWEEP = Sweep(
    axis=K,
    collections=("places",),
    splits=tuple(SPLITS),
    algorithms=COMPARED,
    ks=(4, 8, 16, 32, 64, 128, 256),
    parties=(8,),
    claims={},
    title="Seconds over the number of neighbors",
    caption="Figure 10 of the paper; 8 providers.",
)
ABLATION_SWEEP = Sweep(
    axis=PARTIES,
    collections=LOCAL,
    splits=("skewed",),
    algorithms=("hufu", "dann", "dann, no bounds", "dann*", "dann*, no bounds", PRINTED),
    ks=(128,),
    parties=(8,),
    claims={},
    title="Seconds with and without lower bounds",
    caption="Figure 13 of the paper; k = 128.",
)


def make_work(sweep: Sweep, quick_effort: Effort = QUICK) -> Work:
    """Return the function that runs a sweep."""

    def work(*, quick: bool, **options: Any) -> Findings:
        effort = quick_effort if quick else FULL
        return examine(sweep, effort, MeasureOptions(**options))

    return work


NEIGHBORS = Study(
    name="fedknn.k",
    title="Neighbors (Figures 5 and 6)",
    description="Latency and work of every algorithm for k = 4 to 256, over 8 providers.",
    work=make_work(NEIGHBORS_SWEEP),
    keeps_journal=True,
)
PROVIDERS = Study(
    name="fedknn.providers",
    title="Providers (Figures 7 and 8)",
    description="Latency and work of every algorithm over 4 to 16 providers, k = 128.",
    work=make_work(PROVIDERS_SWEEP),
    keeps_journal=True,
)
LOCAL_COST = Study(
    name="fedknn.local_cost",
    title="Cheap searches (Figure 10)",
    description="Places, whose distances are cheap: exchanges dominate the latency.",
    work=make_work(PLACES_SWEEP, Effort({"places": 3})),
    keeps_journal=True,
)
SCALABILITY = Study(
    name="fedknn.scalability",
    title="Size (Figure 12)",
    description="20 % to 100 % of the generated graphs, k = 128, 8 providers.",
    work=make_work(SCALABILITY_SWEEP),
    keeps_journal=True,
)
ABLATION = Study(
    name="fedknn.ablation",
    title="Without lower bounds (Figure 13)",
    description="DANN and DANN* with bounds, and with equal first requests instead; skewed splits.",
    work=make_work(ABLATION_SWEEP),
    keeps_journal=True,
)
