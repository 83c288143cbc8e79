"""Figures 2, 5, 7 and 8: effects of the memory's weight, number of neighbors and scale."""

import numpy as np

from experiments.bootstrap import ENDS, clustered_interval
from experiments.harness import Findings, Study, run_each
from experiments.knnper.federations import Scope
from experiments.knnper.fixtures import EmbeddedClients, train_and_embed
from experiments.knnper.sweeps import (
    Point,
    Predictor,
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
from fedneighbors.methods.knnper.algorithm import local_votes, mix, nearest
from fedneighbors.methods.knnper.memory._rows import RowFeatures
from fedneighbors.methods.knnper.personal._client_state import join_client
from fedneighbors.records import Figure, ResultTable, Scalar

ChosenWeight = tuple[str, int, float]
"""Client, its number of rows, and the weight it chose."""

WEIGHTS = tuple(round(0.1 * step, 1) for step in range(11))
NEIGHBORS = (1, 3, 5, 7, 10, 14, 20, 30, 50)
SIGMAS = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
FRACTIONS = (0.1, 0.33, 1.0)
SIZES = (0, 20, 50, 100, 200, 500)


def _votes(embedded: EmbeddedClients, name: str, *, k: int = 10, sigma: float = 1.0) -> Floats:
    """Return the votes of a client's memory for its test rows."""
    train, test = embedded.split(name)
    neighbors = nearest(embedded.keys(train), embedded.keys(test), k)
    return local_votes(
        neighbors, embedded.bank.labels[train], embedded.scores.shape[1], sigma=sigma
    )


def _predict_at_weight(embedded: EmbeddedClients, name: str, weight: float) -> Floats:
    return mix(_votes(embedded, name), np.exp(embedded.scores[embedded.split(name)[1]]), weight)


def _predict_at_k(embedded: EmbeddedClients, name: str, k: int) -> Floats:
    return mix_equally(embedded, name, _votes(embedded, name, k=k))


def _predict_at_sigma(embedded: EmbeddedClients, name: str, sigma: float) -> Floats:
    return mix_equally(embedded, name, _votes(embedded, name, sigma=sigma))


def _study(
    name: str,
    title: str,
    axis: str,
    values: tuple[float, ...],
    predictor: Predictor,
    *,
    reference: float,
    figures: str,
    note: str,
) -> Study:
    """Return an experiment that varies one setting of the memory."""

    def work(*, quick: bool, seed: int, n_jobs: int, progress: Progress) -> Findings:
        scope, jobs = list_jobs(quick, seed)
        each = run_each(
            sweep,
            [(*job, values, predictor) for job in jobs],
            n_jobs=n_jobs,
            progress=progress,
            label=label,
        )
        return Findings(
            parameters={"data": scope.data, "clients": scope.n_clients, "rounds": scope.n_rounds},
            tables=sweep_tables(
                (point for points in each for point in points), axis, title, reference=reference
            ),
            figures=tuple(sweep_figure(group, axis, title) for group in ("seen", "unseen")),
            notes=(note,),
        )

    return Study(name=name, title=title, description=f"{figures} of the paper.", work=work)


def _sweep_weights(scope: Scope, alpha: float, seed: int) -> tuple[list[Point], list[ChosenWeight]]:
    """Return the hits at every weight, and the chosen weights."""
    embedded = train_and_embed(scope, alpha=alpha, seed=seed)
    return [
        measure_point(embedded, alpha, w, _predict_at_weight) for w in WEIGHTS
    ], _choose_weights(embedded, alpha, seed)


def _choose_weights(embedded: EmbeddedClients, alpha: float, seed: int) -> list[ChosenWeight]:
    """Choose the weights of unseen clients from fractions of their rows.

    Weights are chosen on held-out rows; the paper's Figure 8 chooses them on test rows.
    """
    weights = []
    overall = np.full(embedded.scores.shape[1], 1 / embedded.scores.shape[1])
    settings = MemorySettings(seed=seed)
    for name in embedded.unseen:
        train, _ = embedded.split(name)
        for fraction in FRACTIONS:
            rows = train[: max(1, round(fraction * len(train)))]
            state = join_client(
                name,
                RowFeatures(embedded.keys(rows)),
                embedded.scores[rows],
                embedded.bank.labels[rows],
                overall=overall,
                pool=None,
                settings=settings,
            )
            weights.append((f"{name} {alpha} {seed}", len(rows), state.weight))
    return weights


def _chosen_table(chosen: list[ChosenWeight]) -> ResultTable:
    """Return the mean chosen weight, by number of rows."""
    rows: list[tuple[Scalar, ...]] = []
    for start, end in zip(SIZES, (*SIZES[1:], 10**9), strict=True):
        weights_by_client: dict[str, list[float]] = {}
        for client, n, weight in chosen:
            if start <= n < end:
                weights_by_client.setdefault(client, []).append(weight)
        if weights_by_client:
            name = f"{start} to {end - 1}" if end < 10**9 else f"{start} or more"
            mean, low, high = clustered_interval(weights_by_client)
            n_chosen = sum(map(len, weights_by_client.values()))
            rows.append((name, n_chosen, mean, low, high, (high - low) / 2))
    return ResultTable(
        name="chosen",
        title="Weight chosen by unseen clients, by number of rows",
        columns=("rows", "clients", "mean weight", *ENDS, "half the interval"),
        rows=tuple(rows),
        caption="Chosen on held-out rows, from a tenth, a third and all of the client's rows. "
        "Intervals: 95 %, bootstrap over clients.",
    )


def _lambda_work(*, quick: bool, seed: int, n_jobs: int, progress: Progress) -> Findings:
    scope, jobs = list_jobs(quick, seed)
    each = run_each(_sweep_weights, jobs, n_jobs=n_jobs, progress=progress, label=label)
    title = "Weight of the memory"
    sizes = _chosen_table([pair for _, chosen in each for pair in chosen])
    points = [point for found, _ in each for point in found]
    return Findings(
        parameters={"data": scope.data, "clients": scope.n_clients, "rounds": scope.n_rounds},
        tables=(*sweep_tables(points, "lambda", title, reference=0.0), sizes),
        figures=(
            *(sweep_figure(group, "lambda", title) for group in ("seen", "unseen")),
            Figure(
                name="chosen",
                kind="bar",
                title="Weight of the memory, chosen by clients",
                table="chosen",
                x="rows",
                y="mean weight",
                error="half the interval",
                caption="Figure 8 of the paper; the paper chooses the weights on test rows.",
            ),
        ),
        notes=("In figures over lambda all clients have the same weight. 0 is the network alone.",),
    )


LAMBDA = Study(
    name="knnper.lambda",
    title="Weight of the memory",
    description="Figures 2 and 8 of the paper.",
    work=_lambda_work,
)
K = _study(
    "knnper.k",
    "Number of neighbors",
    "k",
    NEIGHBORS,
    _predict_at_k,
    reference=10,
    figures="Figure 5",
    note="Equal weights of network and memory. The paper: k = 7 to 14 differ by under .2 points.",
)
SIGMA = _study(
    "knnper.sigma",
    "Scale of the distances",
    "sigma",
    SIGMAS,
    _predict_at_sigma,
    reference=1.0,
    figures="Figure 7",
    note="Equal weights of network and memory. The paper: almost no effect between .1 and 100.",
)
