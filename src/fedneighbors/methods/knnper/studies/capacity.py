"""Figures 1, 6, 9 and 10: clients with fewer rows, all methods on them, weak and strong clients."""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors.methods.knnper.algorithm import local_votes
from fedneighbors.methods.knnper.memory.neighbors import nearest
from fedneighbors.methods.knnper.personal.mixtures import joined
from fedneighbors.methods.knnper.settings import MemorySettings
from fedneighbors.methods.knnper.studies.contest import OURS, PAPER, entrants, scored
from fedneighbors.methods.knnper.studies.crowds import Crowd, crowd
from fedneighbors.methods.knnper.studies.scenes import (
    HIDDEN,
    Scene,
    Scope,
    scene,
    seen_through,
    trained,
)
from fedneighbors.methods.knnper.studies.sweeps import (
    Rows,
    half,
    jobs_of,
    label,
    sweep_figure,
    sweep_tables,
    swept,
    swept_rows,
)
from fedneighbors.metrics import average_accuracy
from fedneighbors.records import Figure, Table
from fedneighbors.records.jobs import run_each
from fedneighbors.records.study import Findings, Progress, Study

__all__ = ["CAPACITY", "HARDWARE"]

Floats = npt.NDArray[np.float64]

SHARES = (0.1, 0.2, 0.33, 0.5, 0.75, 1.0)
TRAINED_SHARES = (0.1, 0.33, 1.0)
METHODS = (
    "FedAvg", "FedAvg+", "ClusteredFL", "Ditto", "FedRep", "APFL", PAPER, OURS,
)  # fmt: skip
SPREADS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)


def _at_share(here: Scene, name: str, share: float) -> Floats:
    """Answer by a memory of the first rows of a client."""
    known, asked = here.split(name)
    known = known[: max(1, round(share * len(known)))]
    found = nearest(here.keys(known), here.keys(asked), 10)
    votes = local_votes(found, here.bank.labels[known], here.scores.shape[1])
    return half(here, name, votes)


def _cut(people: Crowd, share: float, *, seen: bool = True) -> Crowd:
    """Return a crowd whose clients have only the first rows of those that are not for a test.

    Without ``seen`` those who train keep all of theirs.
    """
    kept = people.test | (~np.isin(people.owners, people.unseen) & (not seen))
    for name in people.names if seen else people.unseen:
        known = people.rows(name, test=False)
        kept[known[: max(1, round(share * len(known)))]] = True
    return replace(
        people,
        x=people.x[kept],
        y=people.y[kept],
        owners=people.owners[kept],
        test=people.test[kept],
    )


def _retrained(scope: Scope, alpha: float, seed: int) -> Rows:
    """Return accuracy where the network, too, is trained on a share of the rows."""
    people = crowd("label skew", scope, seed, alpha=alpha)
    rows: Rows = []
    for share in TRAINED_SHARES:
        cut = _cut(people, share)
        here = seen_through(trained(cut, scope.n_rounds, seed), cut)
        for row in swept_rows(here, alpha, seed, 1.0, _at_share):
            rows.append((*row[:3], share, *row[4:]))
    return rows


def _all_methods(scope: Scope, alpha: float, seed: int) -> list[tuple[Any, ...]]:
    """Return what methods make of unseen clients with fewer and fewer rows (Figure 10)."""
    people = crowd("label skew", scope, seed, alpha=alpha)
    settings = {"hidden": HIDDEN, "n_rounds": scope.n_rounds, "random_state": seed}
    untuned: dict[str, Any] = {method: {} for method in METHODS}
    untuned["rate"] = {"learning_rate": 0.05}
    fitted, _ = entrants(people, settings, chosen=untuned, methods=METHODS)
    rows: list[tuple[Any, ...]] = []
    for share in TRAINED_SHARES:
        cut = _cut(people, share, seen=False)
        for method in METHODS:
            test = scored(method, fitted[method], cut).test
            rows.append((method, share, average_accuracy(test, list(people.unseen))))
    return rows


def _methods_table(rows: list[tuple[Any, ...]]) -> Table:
    cells: dict[tuple[str, float], list[float]] = {}
    for method, share, accuracy in rows:
        cells.setdefault((method, share), []).append(accuracy)
    return Table(
        name="methods",
        title="Unseen clients with a share of their rows, under all methods",
        columns=("method", "share of the rows", "accuracy", "deviation over seeds"),
        rows=tuple(
            (*key, float(np.mean(found)), float(np.std(found))) for key, found in cells.items()
        ),
        caption="Figure 10 of the paper; label skew of alpha = .3, no method is tuned.",
    )


def _capacity_work(*, quick: bool, seed: int, n_jobs: int, progress: Progress) -> Findings:
    scope, jobs = jobs_of(quick, seed)
    cut = run_each(
        swept,
        [(*job, SHARES, _at_share) for job in jobs],
        n_jobs=n_jobs,
        progress=progress,
        label=label,
    )
    again = run_each(_retrained, jobs, n_jobs=n_jobs, progress=progress, label=label)
    alike = run_each(
        _all_methods,
        [job for job in jobs if job[1] == 0.3],
        n_jobs=n_jobs,
        progress=progress,
        label=label,
    )
    axis, title = "share of the rows", "Size of the memory"
    retrained = sweep_tables(
        [row for rows in again for row in rows], axis, "Network and memory of fewer rows"
    )
    return Findings(
        parameters={"data": scope.data, "clients": scope.n_clients, "rounds": scope.n_rounds},
        tables=(
            *sweep_tables([row for rows in cut for row in rows], axis, title),
            *(replace(table, name=f"{table.name}-retrained") for table in retrained),
            _methods_table([row for rows in alike for row in rows]),
        ),
        figures=(
            *(sweep_figure(who, axis, title) for who in ("seen", "unseen")),
            *(
                sweep_figure(f"{who}-retrained", axis, "Network and memory of fewer rows")
                for who in ("seen", "unseen")
            ),
            Figure(
                name="methods",
                kind="line",
                title="Unseen clients with fewer rows",
                table="methods",
                x=axis,
                y="accuracy",
                hue="method",
                caption="Figure 10 of the paper. FedAvg makes no use of their rows.",
            ),
        ),
        notes=(
            "Network and memory weigh alike. Figure 1: the network is the same, the memories are "
            "cut; the paper: a third of the rows keeps most of the gain. Figure 6 (retrained): "
            "the network has seen no other rows either.",
        ),
    )


def _capable(here: Scene, seed: int, spread: float) -> dict[str, Any]:
    """Return what unseen clients get right, every other of which has a weak device."""
    right = {}
    settings = MemorySettings(seed=seed)
    overall = np.full(here.scores.shape[1], 1 / here.scores.shape[1])
    for place, name in enumerate(here.unseen):
        known, asked = here.split(name)
        share = 0.5 + (spread if place % 2 else -spread)
        known = known[: round(share * len(known))]
        if not len(asked):
            continue
        if not len(known):
            right[name] = here.right(name, here.scores[asked])
            continue
        personal = joined(
            name,
            here.keys(known),
            here.scores[known],
            here.bank.labels[known],
            overall=overall,
            pool=None,
            settings=settings,
        )
        shares = personal.predict_proba(here.keys(asked), here.scores[asked])
        right[name] = here.right(name, shares)
    return right


def _spread(scope: Scope, alpha: float, seed: int) -> Rows:
    here = scene(scope, alpha=alpha, seed=seed)
    return [
        (alpha, seed, "unseen", spread, *here.accuracy(_capable(here, seed, spread))["unseen"])
        for spread in SPREADS
    ]


def _hardware_work(*, quick: bool, seed: int, n_jobs: int, progress: Progress) -> Findings:
    scope, jobs = jobs_of(quick, seed)
    each = run_each(_spread, jobs, n_jobs=n_jobs, progress=progress, label=label)
    rows = [row for found in each for row in found]
    axis, title = "spread of capacities", "Weak and strong clients"
    tables: tuple[Table, ...] = sweep_tables(rows, axis, title)[1:]
    figures: tuple[Figure, ...] = (sweep_figure("unseen", axis, title),)
    return Findings(
        parameters={"data": scope.data, "clients": scope.n_clients, "rounds": scope.n_rounds},
        tables=tables,
        figures=figures,
        notes=(
            "Every other unseen client remembers half of its rows less the spread, every other as "
            "much more: all memories together are as large. Each chooses the weight of its memory "
            "on held-out rows. The paper: accuracy falls as the spread grows.",
        ),
    )


CAPACITY = Study(
    name="knnper.capacity",
    title="Size of the memory",
    description="Figures 1, 6 and 10 of the paper.",
    work=_capacity_work,
)
HARDWARE = Study(
    name="knnper.hardware",
    title="Weak and strong clients",
    description="Figure 9 of the paper.",
    work=_hardware_work,
)
