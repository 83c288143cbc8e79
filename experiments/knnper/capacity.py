"""Figures 1, 6, 9 and 10: clients with fewer rows, and clients of unequal memory size."""

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
    INTERVALS,
    Point,
    label,
    list_jobs,
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

FRACTIONS = (0.1, 0.2, 0.33, 0.5, 0.75, 1.0)
TRAINED_FRACTIONS = (0.1, 0.33, 1.0)
METHODS = (
    "FedAvg", "FedAvg+", "ClusteredFL", "Ditto", "FedRep", "APFL", PAPER, OURS,
)  # fmt: skip
SPREADS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)


def _predict_at_fraction(embedded: EmbeddedClients, name: str, fraction: float) -> Floats:
    """Predict with a memory of a fraction of a client's rows."""
    train, test = embedded.split(name)
    train = train[: max(1, round(fraction * len(train)))]
    neighbors = nearest(embedded.keys(train), embedded.keys(test), 10)
    votes = local_votes(neighbors, embedded.bank.labels[train], embedded.scores.shape[1])
    return mix_equally(embedded, name, votes)


def _shorten(clients: ClientRows, fraction: float, *, seen: bool = True) -> ClientRows:
    """Keep the first fraction of each client's training rows.

    If ``seen`` is false, clients that took part in training keep all of their rows.
    """
    mask = clients.test | (~np.isin(clients.owners, clients.unseen) & (not seen))
    for name in clients.names if seen else clients.unseen:
        train = clients.rows(name, test=False)
        mask[train[: max(1, round(fraction * len(train)))]] = True
    return replace(
        clients,
        x=clients.x[mask],
        y=clients.y[mask],
        owners=clients.owners[mask],
        test=clients.test[mask],
    )


def _retrain_on_fewer(scope: Scope, alpha: float, seed: int) -> list[Point]:
    """Train networks on fewer rows; return the hits."""
    clients = make_clients("label skew", scope, seed, alpha=alpha)
    points = []
    for fraction in TRAINED_FRACTIONS:
        shortened = _shorten(clients, fraction)
        embedded = embed_clients(train_clients(shortened, scope.n_rounds, seed), shortened)
        points.append(
            replace(measure_point(embedded, alpha, 1.0, _predict_at_fraction), value=fraction)
        )
    return points


def _score_on_fewer_rows(
    scope: Scope, alpha: float, seed: int
) -> dict[tuple[str, float], HitCounts]:
    """Score all methods on unseen clients with fewer rows (Figure 10)."""
    clients = make_clients("label skew", scope, seed, alpha=alpha)
    settings = {"hidden": HIDDEN, "n_rounds": scope.n_rounds, "random_state": seed}
    untuned: dict[str, Any] = {method: {} for method in METHODS}
    untuned["rate"] = {"learning_rate": 0.05}
    fitted, _ = fit_methods(clients, settings, chosen=untuned, methods=METHODS)
    hits: dict[tuple[str, float], HitCounts] = {}
    for fraction in TRAINED_FRACTIONS:
        shortened = _shorten(clients, fraction, seen=False)
        for method in METHODS:
            test_hits = score_method(method, fitted[method], shortened).test
            hits[method, fraction] = {name: test_hits[name] for name in clients.unseen}
    return hits


def _methods_table(each: Sequence[dict[tuple[str, float], HitCounts]]) -> ResultTable:
    rows = []
    for method, fraction in each[0]:
        hits = [result[method, fraction] for result in each]
        pool_hits = [result[OURS, fraction] for result in each]
        mean, low, high = accuracy_interval(hits)
        gain = paired_difference(list(zip(pool_hits, hits, strict=True)))
        rows.append((method, fraction, mean, low, high, (high - low) / 2, *gain))
    return ResultTable(
        name="methods",
        title="Unseen clients with a share of their rows, under all methods",
        columns=(
            "method", "share of the rows", "accuracy", *ENDS, "half the interval",
            "pool is better by", "from", "to",
        ),
        rows=tuple(rows),
        caption="Figure 10 of the paper. Label skew (alpha = .3), without tuning. " + INTERVALS,
    )  # fmt: skip


def _capacity_work(*, quick: bool, seed: int, n_jobs: int, progress: Progress) -> Findings:
    scope, jobs = list_jobs(quick, seed)
    shortened = run_each(
        sweep,
        [(*job, FRACTIONS, _predict_at_fraction) for job in jobs],
        n_jobs=n_jobs,
        progress=progress,
        label=label,
    )
    retrained_points = run_each(
        _retrain_on_fewer, jobs, n_jobs=n_jobs, progress=progress, label=label
    )
    method_scores = run_each(
        _score_on_fewer_rows,
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
            *(sweep_figure(group, axis, title) for group in ("seen", "unseen")),
            *(
                sweep_figure(f"{group}-retrained", axis, "Network and memory of fewer rows")
                for group in ("seen", "unseen")
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
                caption="Figure 10 of the paper. FedAvg does not use their rows. Bands: width "
                "of the 95 % bootstrap interval over clients.",
            ),
        ),
        notes=(
            "Network and memory have equal weights. Figure 1: only the memories have fewer rows; "
            "in the paper a third of the rows keeps most of the gain. Figure 6 (retrained): the "
            "network is trained on the same fewer rows.",
        ),
    )


def _score_capacities(embedded: EmbeddedClients, seed: int, spread: float) -> HitCounts:
    """Score unseen clients whose memories are alternately smaller and larger."""
    hits = {}
    settings = MemorySettings(seed=seed)
    overall = np.full(embedded.scores.shape[1], 1 / embedded.scores.shape[1])
    for index, name in enumerate(embedded.unseen):
        train, test = embedded.split(name)
        fraction = 0.5 + (spread if index % 2 else -spread)
        train = train[: round(fraction * len(train))]
        if not len(test):
            continue
        if not len(train):
            hits[name] = embedded.count_hits(name, embedded.scores[test])
            continue
        state = join_client(
            name,
            RowFeatures(embedded.keys(train)),
            embedded.scores[train],
            embedded.bank.labels[train],
            overall=overall,
            pool=None,
            settings=settings,
        )
        predicted = state.predict(RowFeatures(embedded.keys(test)), embedded.scores[test])
        hits[name] = embedded.count_hits(name, predicted)
    return hits


def _sweep_spreads(scope: Scope, alpha: float, seed: int) -> list[Point]:
    embedded = train_and_embed(scope, alpha=alpha, seed=seed)
    return [
        Point(alpha, spread, embedded.by_group(_score_capacities(embedded, seed, spread)))
        for spread in SPREADS
    ]


def _hardware_work(*, quick: bool, seed: int, n_jobs: int, progress: Progress) -> Findings:
    scope, jobs = list_jobs(quick, seed)
    results = run_each(_sweep_spreads, jobs, n_jobs=n_jobs, progress=progress, label=label)
    points = (point for result in results for point in result)
    axis, title = "spread of capacities", "Weak and strong clients"
    return Findings(
        parameters={"data": scope.data, "clients": scope.n_clients, "rounds": scope.n_rounds},
        tables=sweep_tables(points, axis, title, reference=0.0, groups=("unseen",)),
        figures=(sweep_figure("unseen", axis, title),),
        notes=(
            "Unseen clients alternately store a fraction of .5 - spread and .5 + spread of their "
            "rows, so that the total is about the same. Each client chooses the weight of its "
            "memory on held-out rows. In the paper accuracy falls as the spread grows.",
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
