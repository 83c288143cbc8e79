"""Figures 1, 6, 9 and 10: clients with fewer rows, all methods on them, weak and strong clients."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from experiments.bootstrap import (
    ENDS,
    HitCounts,
    accuracy_interval,
    paired_difference,
)
from experiments.harness import Findings, Study, run_each
from experiments.knnper.comparison import OURS, PAPER, fit_methods, score_method
from experiments.knnper.federations import ClientRows, Scope, make_clients
from experiments.knnper.fixtures import (
    HIDDEN,
    EmbeddedClients,
    embed_clients,
    train_and_embed,
    train_clients,
)
from experiments.knnper.sweeps import (
    DRAWN,
    Point,
    jobs_of,
    label,
    measure_point,
    mix_equally,
    sweep,
    sweep_figure,
    sweep_tables,
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


def _at_share(embedded: EmbeddedClients, name: str, share: float) -> Floats:
    """Predict with a memory of a client's first rows."""
    known, asked = embedded.split(name)
    known = known[: max(1, round(share * len(known)))]
    found = nearest(embedded.keys(known), embedded.keys(asked), 10)
    votes = local_votes(found, embedded.bank.labels[known], embedded.scores.shape[1])
    return mix_equally(embedded, name, votes)


def _shorten(clients: ClientRows, share: float, *, seen: bool = True) -> ClientRows:
    """Keep only a share of each client's training rows, the first ones.

    If ``seen`` is false, clients that took part in training keep all of their rows.
    """
    kept = clients.test | (~np.isin(clients.owners, clients.unseen) & (not seen))
    for name in clients.names if seen else clients.unseen:
        known = clients.rows(name, test=False)
        kept[known[: max(1, round(share * len(known)))]] = True
    return replace(
        clients,
        x=clients.x[kept],
        y=clients.y[kept],
        owners=clients.owners[kept],
        test=clients.test[kept],
    )


def _retrain_on_fewer(scope: Scope, alpha: float, seed: int) -> list[Point]:
    """Return the accuracy with networks trained on fewer rows."""
    clients = make_clients("label skew", scope, seed, alpha=alpha)
    points = []
    for share in TRAINED_SHARES:
        shortened = _shorten(clients, share)
        embedded = embed_clients(train_clients(shortened, scope.n_rounds, seed), shortened)
        points.append(replace(measure_point(embedded, alpha, 1.0, _at_share), value=share))
    return points


def _all_methods(scope: Scope, alpha: float, seed: int) -> dict[tuple[str, float], HitCounts]:
    """Score all methods on unseen clients with fewer rows (Figure 10)."""
    clients = make_clients("label skew", scope, seed, alpha=alpha)
    settings = {"hidden": HIDDEN, "n_rounds": scope.n_rounds, "random_state": seed}
    untuned: dict[str, Any] = {method: {} for method in METHODS}
    untuned["rate"] = {"learning_rate": 0.05}
    fitted, _ = fit_methods(clients, settings, chosen=untuned, methods=METHODS)
    found: dict[tuple[str, float], HitCounts] = {}
    for share in TRAINED_SHARES:
        shortened = _shorten(clients, share, seen=False)
        for method in METHODS:
            test = score_method(method, fitted[method], shortened).test
            found[method, share] = {name: test[name] for name in clients.unseen}
    return found


def _methods_table(each: Sequence[dict[tuple[str, float], HitCounts]]) -> ResultTable:
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
    shortened = run_each(
        sweep,
        [(*job, SHARES, _at_share) for job in jobs],
        n_jobs=n_jobs,
        progress=progress,
        label=label,
    )
    retrained_points = run_each(
        _retrain_on_fewer, jobs, n_jobs=n_jobs, progress=progress, label=label
    )
    method_scores = run_each(
        _all_methods,
        [job for job in jobs if job[1] == 0.3],
        n_jobs=n_jobs,
        progress=progress,
        label=label,
    )
    axis, title = "share of the rows", "Size of the memory"
    retrained = sweep_tables(
        (point for points in retrained_points for point in points),
        axis,
        "Network and memory of fewer rows",
        reference=1.0,
    )
    in_memory = (point for points in shortened for point in points)
    return Findings(
        parameters={"data": scope.data, "clients": scope.n_clients, "rounds": scope.n_rounds},
        tables=(
            *sweep_tables(in_memory, axis, title, reference=1.0),
            *(replace(table, name=f"{table.name}-retrained") for table in retrained),
            _methods_table(method_scores),
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


def _score_capacities(embedded: EmbeddedClients, seed: int, spread: float) -> HitCounts:
    """Score unseen clients with alternately fewer and more rows."""
    right = {}
    settings = MemorySettings(seed=seed)
    overall = np.full(embedded.scores.shape[1], 1 / embedded.scores.shape[1])
    for place, name in enumerate(embedded.unseen):
        known, asked = embedded.split(name)
        share = 0.5 + (spread if place % 2 else -spread)
        known = known[: round(share * len(known))]
        if not len(asked):
            continue
        if not len(known):
            right[name] = embedded.right(name, embedded.scores[asked])
            continue
        personal = join_client(
            name,
            RowFeatures(embedded.keys(known)),
            embedded.scores[known],
            embedded.bank.labels[known],
            overall=overall,
            pool=None,
            settings=settings,
        )
        shares = personal.predict(RowFeatures(embedded.keys(asked)), embedded.scores[asked])
        right[name] = embedded.right(name, shares)
    return right


def _sweep_spreads(scope: Scope, alpha: float, seed: int) -> list[Point]:
    embedded = train_and_embed(scope, alpha=alpha, seed=seed)
    return [
        Point(alpha, each, embedded.by_role(_score_capacities(embedded, seed, each)))
        for each in SPREADS
    ]


def _hardware_work(*, quick: bool, seed: int, n_jobs: int, progress: Progress) -> Findings:
    scope, jobs = jobs_of(quick, seed)
    each = run_each(_sweep_spreads, jobs, n_jobs=n_jobs, progress=progress, label=label)
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
