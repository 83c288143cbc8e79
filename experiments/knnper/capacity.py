"""Figures 1, 6 and 10: clients with fewer rows."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from experiments.bootstrap import (
    ENDS,
    HitCounts,
    accuracy_interval,
    paired_difference,
)
from experiments.harness import Findings, Study, run_each
from experiments.knnper.comparison import OURS, PAPER, fit_method, score_method
from experiments.knnper.federations import ClientRows, Scope, make_clients
from experiments.knnper.fixtures import (
    HIDDEN,
    EmbeddedClients,
    embed_clients,
    train_network,
)
from experiments.knnper.memory import first_rows, memory_votes
from experiments.knnper.sweeps import (
    INTERVALS,
    Point,
    describe,
    label,
    list_jobs,
    measure_point,
    mix_equally,
    sweep,
    sweep_figure,
    sweep_tables,
)
from fedneighbors._typing import Floats, Progress
from fedneighbors.records import Figure, ResultTable

FRACTIONS = (0.1, 0.2, 0.33, 0.5, 0.75, 1.0)
TRAINED_FRACTIONS = (0.1, 0.33, 1.0)
METHODS = (
    "FedAvg", "FedAvg+", "ClusteredFL", "Ditto", "FedRep", "APFL", PAPER, OURS,
)  # fmt: skip


def _predict_at_fraction(embedded: EmbeddedClients, name: str, fraction: float) -> Floats:
    """Predict with a memory of a fraction of a client's rows."""
    return mix_equally(embedded, name, memory_votes(embedded, name, fraction=fraction))


def _shorten(clients: ClientRows, fraction: float, *, seen: bool = True) -> ClientRows:
    """Keep the first fraction of each client's training rows.

    If ``seen`` is false, clients that took part in training keep all of their rows.
    """
    mask = clients.test | (~np.isin(clients.owners, clients.unseen) & (not seen))
    for name in clients.names if seen else clients.unseen:
        train = clients.rows(name, test=False)
        mask[first_rows(train, fraction)] = True
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
        embedded = embed_clients(train_network(shortened, scope.n_rounds, seed), shortened)
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
    untuned = {"learning_rate": 0.05}
    fitted = {
        method: fit_method(method, clients, settings, parameters=untuned)[0] for method in METHODS
    }
    hits: dict[tuple[str, float], HitCounts] = {}
    for fraction in TRAINED_FRACTIONS:
        shortened = _shorten(clients, fraction, seen=False)
        for method in METHODS:
            test_hits = score_method(fitted[method], shortened).test
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
        parameters=describe(scope),
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


CAPACITY = Study(
    name="knnper.capacity",
    title="Size of the memory",
    description="Figures 1, 6 and 10 of the paper.",
    work=_capacity_work,
)
