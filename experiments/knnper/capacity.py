"""Figures 1, 6, 9 and 10: clients with fewer rows, all methods on them, weak and strong clients."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from experiments.bootstrap import (
    ENDS,
    Right,
    accuracy_interval,
    paired_difference,
)
from experiments.harness import Findings, Study, run_each
from experiments.knnper.comparison import OURS, PAPER, entrants, scored
from experiments.knnper.federations import Crowd, Scope, crowd
from experiments.knnper.fixtures import HIDDEN, Scene, scene, seen_through, trained
from experiments.knnper.sweeps import (
    DRAWN,
    Point,
    half,
    jobs_of,
    label,
    measured,
    sweep_figure,
    sweep_tables,
    swept,
)
from fedneighbors._typing import Floats, Progress
from fedneighbors.methods.knnper._settings import MemorySettings
from fedneighbors.methods.knnper.algorithm import local_votes, nearest
from fedneighbors.methods.knnper.memory._rows import RowFeatures
from fedneighbors.methods.knnper.personal._client_state import join_client
from fedneighbors.records import Figure, ResultTable

SHARES = (0.1, 0.2, 0.33, 0.5, 0.75, 1.0)
TRAINED_SHARES = (0.1, 0.33, 1.0)
METHODS = (
    "FedAvg", "FedAvg+", "ClusteredFL", "Ditto", "FedRep", "APFL", PAPER, OURS,
)  # fmt: skip
SPREADS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)


def _at_share(here: Scene, name: str, share: float) -> Floats:
    """Answer with a memory of a client's first rows."""
    known, asked = here.split(name)
    known = known[: max(1, round(share * len(known)))]
    found = nearest(here.keys(known), here.keys(asked), 10)
    votes = local_votes(found, here.bank.labels[known], here.scores.shape[1])
    return half(here, name, votes)


def _cut(people: Crowd, share: float, *, seen: bool = True) -> Crowd:
    """Return clients with only their first training rows.

    Without ``seen``, training clients keep all of their rows.
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


def _retrained(scope: Scope, alpha: float, seed: int) -> list[Point]:
    """Return the accuracy with the network trained on fewer rows."""
    people = crowd("label skew", scope, seed, alpha=alpha)
    points = []
    for share in TRAINED_SHARES:
        cut = _cut(people, share)
        here = seen_through(trained(cut, scope.n_rounds, seed), cut)
        points.append(replace(measured(here, alpha, 1.0, _at_share), value=share))
    return points


def _all_methods(scope: Scope, alpha: float, seed: int) -> dict[tuple[str, float], Right]:
    """Score all methods on unseen clients with fewer rows (Figure 10)."""
    people = crowd("label skew", scope, seed, alpha=alpha)
    settings = {"hidden": HIDDEN, "n_rounds": scope.n_rounds, "random_state": seed}
    untuned: dict[str, Any] = {method: {} for method in METHODS}
    untuned["rate"] = {"learning_rate": 0.05}
    fitted, _ = entrants(people, settings, chosen=untuned, methods=METHODS)
    found: dict[tuple[str, float], Right] = {}
    for share in TRAINED_SHARES:
        cut = _cut(people, share, seen=False)
        for method in METHODS:
            test = scored(method, fitted[method], cut).test
            found[method, share] = {name: test[name] for name in people.unseen}
    return found


def _methods_table(each: Sequence[dict[tuple[str, float], Right]]) -> ResultTable:
    rows = []
    for method, share in each[0]:
        right = [found[method, share] for found in each]
        ours = [found[OURS, share] for found in each]
        mean, low, high = accuracy_interval(right)
        gain = paired_difference(list(zip(ours, right, strict=True)))
        rows.append((method, share, mean, low, high, (high - low) / 2, *gain))
    return ResultTable(
        name="methods",
        title="Unseen clients with a share of their rows, under all methods",
        columns=(
            "method", "share of the rows", "accuracy", *ENDS, "half the interval",
            "pool is better by", "from", "to",
        ),
        rows=tuple(rows),
        caption="Figure 10 of the paper; label skew of alpha = .3, no method is tuned. " + DRAWN,
    )  # fmt: skip


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
        (point for points in again for point in points),
        axis,
        "Network and memory of fewer rows",
        reference=1.0,
    )
    in_memory = (point for points in cut for point in points)
    return Findings(
        parameters={"data": scope.data, "clients": scope.n_clients, "rounds": scope.n_rounds},
        tables=(
            *sweep_tables(in_memory, axis, title, reference=1.0),
            *(replace(table, name=f"{table.name}-retrained") for table in retrained),
            _methods_table(alike),
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
                error="half the interval",
                caption="Figure 10 of the paper. FedAvg makes no use of their rows. Bands: as wide "
                "as the interval (95 %) for which clients are drawn again.",
            ),
        ),
        notes=(
            "Network and memory weigh alike. Figure 1: the network is the same, the memories are "
            "cut; the paper: a third of the rows keeps most of the gain. Figure 6 (retrained): "
            "the network has seen no other rows either.",
        ),
    )


def _capable(here: Scene, seed: int, spread: float) -> Right:
    """Score unseen clients when every other device is weak."""
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
        personal = join_client(
            name,
            RowFeatures(here.keys(known)),
            here.scores[known],
            here.bank.labels[known],
            overall=overall,
            pool=None,
            settings=settings,
        )
        shares = personal.predict(RowFeatures(here.keys(asked)), here.scores[asked])
        right[name] = here.right(name, shares)
    return right


def _spread(scope: Scope, alpha: float, seed: int) -> list[Point]:
    here = scene(scope, alpha=alpha, seed=seed)
    return [Point(alpha, each, here.by_role(_capable(here, seed, each))) for each in SPREADS]


def _hardware_work(*, quick: bool, seed: int, n_jobs: int, progress: Progress) -> Findings:
    scope, jobs = jobs_of(quick, seed)
    each = run_each(_spread, jobs, n_jobs=n_jobs, progress=progress, label=label)
    points = (point for found in each for point in found)
    axis, title = "spread of capacities", "Weak and strong clients"
    return Findings(
        parameters={"data": scope.data, "clients": scope.n_clients, "rounds": scope.n_rounds},
        tables=sweep_tables(points, axis, title, reference=0.0, who=("unseen",)),
        figures=(sweep_figure("unseen", axis, title),),
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
