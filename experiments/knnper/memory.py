"""Figures 2, 5, 7 and 8: effects of the memory's weight, number of neighbors and scale."""

import numpy as np

from experiments.bootstrap import ENDS, clustered_interval
from experiments.harness import Findings, Study, run_each
from experiments.knnper.federations import Scope
from experiments.knnper.fixtures import EmbeddedClients, train_and_embed
from experiments.knnper.sweeps import (
    Answer,
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
from fedneighbors.methods.knnper.algorithm import local_votes, mix, nearest
from fedneighbors.methods.knnper.memory._rows import RowFeatures
from fedneighbors.methods.knnper.personal._client_state import join_client
from fedneighbors.records import Figure, ResultTable, Scalar

Chosen = tuple[str, int, float]
"""Client, number of its rows, and chosen weight."""

WEIGHTS = tuple(round(0.1 * step, 1) for step in range(11))
NEIGHBORS = (1, 3, 5, 7, 10, 14, 20, 30, 50)
UNITS = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
SHARES = (0.1, 0.33, 1.0)
SIZES = (0, 20, 50, 100, 200, 500)


def _votes(embedded: EmbeddedClients, name: str, *, k: int = 10, sigma: float = 1.0) -> Floats:
    """Return the votes of a client's memory for its test rows."""
    known, asked = embedded.split(name)
    found = nearest(embedded.keys(known), embedded.keys(asked), k)
    return local_votes(found, embedded.bank.labels[known], embedded.scores.shape[1], sigma=sigma)


def _at_weight(embedded: EmbeddedClients, name: str, weight: float) -> Floats:
    return mix(_votes(embedded, name), np.exp(embedded.scores[embedded.split(name)[1]]), weight)


def _at_k(embedded: EmbeddedClients, name: str, k: int) -> Floats:
    return mix_equally(embedded, name, _votes(embedded, name, k=k))


def _at_sigma(embedded: EmbeddedClients, name: str, sigma: float) -> Floats:
    return mix_equally(embedded, name, _votes(embedded, name, sigma=sigma))


def _study(
    name: str,
    title: str,
    axis: str,
    values: tuple[float, ...],
    answer: Answer,
    *,
    reference: float,
    figures: str,
    note: str,
) -> Study:
    """Return an experiment that varies one setting of the memory."""

    def work(*, quick: bool, seed: int, n_jobs: int, progress: Progress) -> Findings:
        scope, jobs = jobs_of(quick, seed)
        each = run_each(
            sweep,
            [(*job, values, answer) for job in jobs],
            n_jobs=n_jobs,
            progress=progress,
            label=label,
        )
        return Findings(
            parameters={"data": scope.data, "clients": scope.n_clients, "rounds": scope.n_rounds},
            tables=sweep_tables(
                (point for points in each for point in points), axis, title, reference=reference
            ),
            figures=tuple(sweep_figure(who, axis, title) for who in ("seen", "unseen")),
            notes=(note,),
        )

    return Study(name=name, title=title, description=f"{figures} of the paper.", work=work)


def _weighed(scope: Scope, alpha: float, seed: int) -> tuple[list[Point], list[Chosen]]:
    """Return the accuracy at every weight and the chosen weights."""
    embedded = train_and_embed(scope, alpha=alpha, seed=seed)
    return [measure_point(embedded, alpha, w, _at_weight) for w in WEIGHTS], _chosen(
        embedded, alpha, seed
    )


def _chosen(embedded: EmbeddedClients, alpha: float, seed: int) -> list[Chosen]:
    """Return the weights chosen by unseen clients with shares of their rows.

    The weight is chosen on held-out rows; the paper's Figure 8 chooses it on test rows.
    """
    found = []
    overall = np.full(embedded.scores.shape[1], 1 / embedded.scores.shape[1])
    settings = MemorySettings(seed=seed)
    for name in embedded.unseen:
        known, _ = embedded.split(name)
        for share in SHARES:
            rows = known[: max(1, round(share * len(known)))]
            personal = join_client(
                name,
                RowFeatures(embedded.keys(rows)),
                embedded.scores[rows],
                embedded.bank.labels[rows],
                overall=overall,
                pool=None,
                settings=settings,
            )
            found.append((f"{name} {alpha} {seed}", len(rows), personal.weight))
    return found


def _sizes(chosen: list[Chosen]) -> ResultTable:
    """Return the weights that clients choose, by their number of rows."""
    rows: list[tuple[Scalar, ...]] = []
    for least, beyond in zip(SIZES, (*SIZES[1:], 10**9), strict=True):
        own: dict[str, list[float]] = {}
        for client, n, weight in chosen:
            if least <= n < beyond:
                own.setdefault(client, []).append(weight)
        if own:
            name = f"{least} to {beyond - 1}" if beyond < 10**9 else f"{least} or more"
            mean, low, high = clustered_interval(own)
            n_chosen = sum(map(len, own.values()))
            rows.append((name, n_chosen, mean, low, high, (high - low) / 2))
    return ResultTable(
        name="chosen",
        title="The weight that unseen clients choose, by their rows",
        columns=("rows", "clients", "mean weight", *ENDS, "half the interval"),
        rows=tuple(rows),
        caption="Chosen on held-out rows; clients with a tenth, a third and all of their rows. "
        "Intervals (95 %): clients drawn again, each with all its choices.",
    )


def _lambda_work(*, quick: bool, seed: int, n_jobs: int, progress: Progress) -> Findings:
    scope, jobs = jobs_of(quick, seed)
    each = run_each(_weighed, jobs, n_jobs=n_jobs, progress=progress, label=label)
    title = "Weight of the memory"
    sizes = _sizes([pair for _, chosen in each for pair in chosen])
    points = [point for found, _ in each for point in found]
    return Findings(
        parameters={"data": scope.data, "clients": scope.n_clients, "rounds": scope.n_rounds},
        tables=(*sweep_tables(points, "lambda", title, reference=0.0), sizes),
        figures=(
            *(sweep_figure(who, "lambda", title) for who in ("seen", "unseen")),
            Figure(
                name="chosen",
                kind="bar",
                title="Weight of the memory that clients choose",
                table="chosen",
                x="rows",
                y="mean weight",
                error="half the interval",
                caption="Figure 8 of the paper, whose weights are chosen on test rows.",
            ),
        ),
        notes=("In figures by weight all clients have the same; at 0 the network answers alone.",),
    )


LAMBDA = Study(
    name="knnper.lambda",
    title="Weight of the memory",
    description="Figures 2 and 8 of the paper.",
    work=_lambda_work,
)
K = _study(
    "knnper.k",
    "Neighbors that vote",
    "k",
    NEIGHBORS,
    _at_k,
    reference=10,
    figures="Figure 5",
    note="Network and memory weigh alike. The paper: less than .2 points between k = 7 and 14.",
)
SIGMA = _study(
    "knnper.sigma",
    "Unit of the distances",
    "sigma",
    UNITS,
    _at_sigma,
    reference=1.0,
    figures="Figure 7",
    note="Network and memory weigh alike. The paper: almost no effect between .1 and 100.",
)
