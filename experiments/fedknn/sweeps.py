"""Figures 5 to 8, 10, 12 and 13: neighbors, providers, size and lower bounds are varied."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from experiments.fedknn.measurement.cells import SPLITS, Place
from experiments.fedknn.measurement.collections import SYN
from experiments.fedknn.measurement.measuring import Measuring, Task, measure
from experiments.fedknn.measurement.trials import Trial
from experiments.fedknn.summaries import (
    Axis,
    Claim,
    bars,
    curve_tables,
    curves,
    overview,
    speedups,
)
from experiments.harness import Findings, Study, Work
from fedneighbors.records import Figure

RIVALS = ("baseline", "hufu", "hufu+", "dann", "dann*")
LOCAL = ("titles", "genomes", "SYN", "molecules")
"""The collections whose searches cost more than their messages, as the paper's four."""

N_QUERIES = {"titles": 12, "genomes": 8, "SYN": 6, "molecules": 4, "places": 12}


@dataclass(frozen=True)
class Effort:
    """Thoroughness of an experiment.

    Parameters
    ----------
    n_queries : mapping of str to int
        By collection; one that is not named is left out.
    limit_s : float
        CPU seconds that a provider may spend on a query.
    """

    n_queries: Mapping[str, int] = field(default_factory=lambda: N_QUERIES)
    limit_s: float = 5.0


FULL = Effort()
QUICK = Effort({"titles": 3, "SYN": 2}, limit_s=1.0)


@dataclass(frozen=True)
class Sweep:
    """One experiment in which one parameter is varied.

    Parameters
    ----------
    axis : Axis
        Name of the setting.
    collections, splits, algorithms : tuple of str
        Measurement of the setting.
    ks, parties, shares : tuple
        Neighbors, providers, and the share of each collection's objects.
    claims : mapping
        The paper's figures, by collection and split.
    title, caption : str
        Of the pictures.
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
    def rivals(self) -> tuple[str, ...]:
        """Return the algorithms that DANN and DANN* are compared with."""
        return tuple(name for name in self.algorithms if name not in ("dann", "dann*"))

    @property
    def varies(self) -> bool:
        """Return whether the axis has several values."""
        return max(len(self.ks), len(self.parties), len(self.shares)) > 1

    def tasks(self, effort: Effort) -> list[Task]:
        """Return the measurements to make."""
        return [
            Task(
                collection=name,
                place=Place(split, n_parties),
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


def examine(sweep: Sweep, effort: Effort, how: Measuring) -> Findings:
    """Return the costs of the algorithms at every point of a sweep."""
    trials = measure(sweep.tasks(effort), how)
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
            speedups(trials, sweep.axis, rivals=sweep.rivals, claims=sweep.claims),
            *(t for t in curve_tables(table, sweep.axis) if t.rows),
        ),
        figures=_figures(sweep),
        notes=(MEASURED, *_late_notes(trials)),
    )


def _figures(sweep: Sweep) -> tuple[Figure, ...]:
    if not sweep.varies:
        return (bars(title=sweep.title, caption=sweep.caption),)
    pictures = curves(sweep.axis, title=sweep.title, caption=sweep.caption)
    return tuple(f for f in pictures if f.table.removeprefix("curves-") in sweep.splits)


MEASURED = (
    "Providers are measured one after another in CPU seconds of one thread; a query's latency is "
    "the broker's own seconds and, for every exchange, those of the slowest provider, a round "
    "trip, and the bytes at 100 Mbit/s. Costly searches (graphs) are recorded once as sessions "
    "emit, and every coordinator runs against the recording; hufu's range counts are run "
    "themselves."
)


def _late_notes(trials: Sequence[Trial]) -> tuple[str, ...]:
    late = sum(trial.late for trial in trials)
    return (
        f"{late} of {len(trials)} searches were late. Where DANN is late, HuFu and HuFu+, which "
        "verify all that it verifies, are counted as late without being run; so is an algorithm "
        "that was late with fewer neighbors.",
    )


K = Axis("k", lambda trial: trial.k)
PARTIES = Axis("providers", lambda trial: trial.n_parties)
OBJECTS = Axis("objects", lambda trial: trial.n_objects)

NEIGHBORS_SWEEP = Sweep(
    axis=K,
    collections=LOCAL,
    splits=tuple(SPLITS),
    algorithms=RIVALS,
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
    algorithms=RIVALS,
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
    algorithms=RIVALS,
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
    algorithms=RIVALS,
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
    algorithms=("hufu", "dann", "dann, no bounds"),
    ks=(128,),
    parties=(8,),
    claims={},
    title="Seconds with and without lower bounds",
    caption="Figure 13 of the paper; k = 128.",
)


def sweeping(sweep: Sweep, quick_effort: Effort = QUICK) -> Work:
    """Return the measuring function of a sweep."""

    def work(*, quick: bool, **how: Any) -> Findings:
        effort = quick_effort if quick else FULL
        return examine(sweep, effort, Measuring(**how))

    return work


NEIGHBORS = Study(
    name="fedknn.k",
    title="Neighbors (Figures 5 and 6)",
    description="Latency and work of every algorithm for k = 4 to 256, over 8 providers.",
    work=sweeping(NEIGHBORS_SWEEP),
    keeps_journal=True,
)
PROVIDERS = Study(
    name="fedknn.providers",
    title="Providers (Figures 7 and 8)",
    description="Latency and work of every algorithm over 4 to 16 providers, k = 128.",
    work=sweeping(PROVIDERS_SWEEP),
    keeps_journal=True,
)
LOCAL_COST = Study(
    name="fedknn.local_cost",
    title="Cheap searches (Figure 10)",
    description="Places, whose distances cost next to nothing, so that exchanges decide.",
    work=sweeping(PLACES_SWEEP, Effort({"places": 3})),
    keeps_journal=True,
)
SCALABILITY = Study(
    name="fedknn.scalability",
    title="Size (Figure 12)",
    description="20 % to 100 % of the generated graphs, k = 128, 8 providers.",
    work=sweeping(SCALABILITY_SWEEP),
    keeps_journal=True,
)
ABLATION = Study(
    name="fedknn.ablation",
    title="Without lower bounds (Figure 13)",
    description="DANN that asks every provider for its even share at first, skewed splits.",
    work=sweeping(ABLATION_SWEEP),
    keeps_journal=True,
)
