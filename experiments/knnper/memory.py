"""Figures 2, 5 and 7 to 9: weight, neighbors, scale and capacity of the memory."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments.bootstrap import ENDS, HitCounts, clustered_interval
from experiments.harness import Findings, Journal, Study, run_each
from experiments.knnper.federations import Scope
from experiments.knnper.fixtures import EmbeddedClients, train_and_embed
from experiments.knnper.sweeps import (
    CLIENT_GROUPS,
    Point,
    describe,
    label,
    list_clients,
    list_jobs,
    measure_point,
    mix_equally,
    mix_with_weight,
    restore_hits,
    sweep_figure,
    sweep_tables,
)
from fedneighbors._typing import Floats, Progress
from fedneighbors.methods.knnper._settings import MemorySettings
from fedneighbors.methods.knnper.algorithm import local_votes, nearest
from fedneighbors.methods.knnper.memory._rows import RowFeatures
from fedneighbors.methods.knnper.personal._client_state import ClientState, join_client
from fedneighbors.records import Figure, ResultTable, Scalar

ChosenWeight = tuple[str, int, float]
"""Client, its number of rows, and the weight it chose."""

Sweeps = dict[str, list[Any]]
"""Points of each experiment, and the chosen weights."""

WEIGHTS = tuple(round(0.1 * step, 1) for step in range(11))
NEIGHBORS = (1, 3, 5, 7, 10, 14, 20, 30, 50)
SIGMAS = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
FRACTIONS = (0.1, 0.33, 1.0)
SIZES = (0, 20, 50, 100, 200, 500)
SPREADS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)


def measure_sweeps(scope: Scope, alpha: float, seed: int, journal: Path | None) -> Sweeps:
    """Return the points of all sweeps under one network, stored or measured.

    Parameters
    ----------
    scope : Scope
        Size of the experiment.
    alpha : float
        Concentration of the label skew.
    seed : int
        Seed of the federation and of the network.
    journal : Path or None
        File of measurements; all sweeps use the same ones.
    """
    job = (scope.data, scope.n_rows, scope.n_clients, scope.n_rounds, alpha, seed)
    return Journal(journal).get_or_measure(
        job, measure=lambda: _measure(scope, alpha, seed), encode=_encode, decode=_decode
    )


def _measure(scope: Scope, alpha: float, seed: int) -> Sweeps:
    embedded = train_and_embed(scope, alpha=alpha, seed=seed)
    rows = scope.n_rows * 0.75 / scope.n_clients
    sizes = {f"{round(f * rows)} rows on average": {"fraction": f} for f in FRACTIONS}
    scales = {f"sigma = {sigma:g}": {"sigma": sigma} for sigma in SIGMAS}
    return {
        "sizes": _sweep_weights(embedded, alpha, sizes),
        "scales": _sweep_weights(embedded, alpha, scales),
        "k": [measure_point(embedded, alpha, k, _predict_at_k) for k in NEIGHBORS],
        "spreads": [
            Point(alpha, spread, embedded.by_group(_score_capacities(embedded, seed, spread)))
            for spread in SPREADS
        ],
        "chosen": _choose_weights(embedded, alpha, seed),
    }


def _encode(sweeps: Sweeps) -> dict[str, list[Any]]:
    return {
        name: found if name == "chosen" else [list(vars(point).values()) for point in found]
        for name, found in sweeps.items()
    }


def _decode(stored: Mapping[str, list[Any]]) -> Sweeps:
    def restore(alpha: float, value: float, hits: Any, line: str) -> Point:
        return Point(alpha, value, restore_hits(hits), line)

    return {
        name: [tuple(each) if name == "chosen" else restore(*each) for each in found]
        for name, found in stored.items()
    }


def memory_votes(
    embedded: EmbeddedClients,
    name: str,
    *,
    k: int = 10,
    sigma: float = 1.0,
    fraction: float = 1.0,
) -> Floats:
    """Return the votes of a client's memory for its test rows.

    Parameters
    ----------
    embedded : EmbeddedClients
        All clients.
    name : str
        The client.
    k : int
        Number of neighbors.
    sigma : float
        Scale of the distances.
    fraction : float
        Share of the client's rows in its memory.
    """
    train, test = embedded.split(name)
    train = first_rows(train, fraction)
    neighbors = nearest(embedded.keys(train), embedded.keys(test), k)
    return local_votes(
        neighbors, embedded.bank.labels[train], embedded.scores.shape[1], sigma=sigma
    )


def first_rows(rows: Any, fraction: float) -> Any:
    """Return the first rows of a client, at least one.

    Parameters
    ----------
    rows : int64 array of shape (n_rows,)
        Positions of the client's rows.
    fraction : float
        Share of them.
    """
    return rows[: max(1, round(fraction * len(rows)))]


def _predict_at_k(embedded: EmbeddedClients, name: str, k: int) -> Floats:
    return mix_equally(embedded, name, memory_votes(embedded, name, k=k))


def _sweep_weights(
    embedded: EmbeddedClients, alpha: float, lines: Mapping[str, Mapping[str, float]]
) -> list[Point]:
    """Return the hits at every weight, for memories of several settings."""
    points = []
    for line, settings in lines.items():
        votes: dict[str, Floats] = {
            name: memory_votes(embedded, name, **settings)  # type: ignore[arg-type]
            for name in list_clients(embedded)
        }
        for weight in WEIGHTS:
            hits = {
                name: embedded.count_hits(name, mix_with_weight(embedded, name, each, weight))
                for name, each in votes.items()
            }
            points.append(Point(alpha, weight, embedded.by_group(hits), line))
    return points


def _join(embedded: EmbeddedClients, name: str, rows: Any, seed: int) -> ClientState:
    """Return an unseen client whose memory has some of its rows."""
    n_classes = embedded.scores.shape[1]
    return join_client(
        name,
        RowFeatures(embedded.keys(rows)),
        embedded.scores[rows],
        embedded.bank.labels[rows],
        overall=np.full(n_classes, 1 / n_classes),
        pool=None,
        settings=MemorySettings(seed=seed),
    )


def _choose_weights(embedded: EmbeddedClients, alpha: float, seed: int) -> list[ChosenWeight]:
    """Choose the weights of unseen clients from fractions of their rows.

    Weights are chosen on held-out rows; the paper's Figure 8 chooses them on test rows.
    """
    return [
        (f"{name} {alpha} {seed}", len(rows), _join(embedded, name, rows, seed).weight)
        for name in embedded.unseen
        for rows in (first_rows(embedded.split(name)[0], fraction) for fraction in FRACTIONS)
    ]


def _score_capacities(embedded: EmbeddedClients, seed: int, spread: float) -> HitCounts:
    """Score unseen clients whose memories are alternately smaller and larger."""
    hits = {}
    for index, name in enumerate(embedded.unseen):
        train, test = embedded.split(name)
        fraction = 0.5 + (spread if index % 2 else -spread)
        train = train[: round(fraction * len(train))]
        if not len(test):
            continue
        predicted = embedded.scores[test]
        if len(train):
            state = _join(embedded, name, train, seed)
            predicted = state.predict(RowFeatures(embedded.keys(test)), predicted)
        hits[name] = embedded.count_hits(name, predicted)
    return hits


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


def _study(
    name: str, title: str, description: str, summarize: Callable[[Sweeps, str], Findings]
) -> Study:
    """Return an experiment that varies a setting of the memory."""

    def work(
        *,
        quick: bool,
        seed: int,
        n_jobs: int,
        progress: Progress,
        journal: Path | None,
        n_seeds: int | None = None,
    ) -> Findings:
        Journal(journal).repair()
        scope, jobs = list_jobs(quick, seed, n_seeds)
        each = run_each(
            measure_sweeps,
            [(*job, journal) for job in jobs],
            n_jobs=n_jobs,
            progress=progress,
            label=label,
        )
        joined = {axis: [one for sweeps in each for one in sweeps[axis]] for axis in each[0]}
        found = summarize(joined, title)
        return Findings(describe(scope), found.tables, found.figures, found.notes)

    return Study(name, title, description, work, keeps_journal=True, options=("n_seeds",))


def _summarize_weights(sweeps: Sweeps, title: str) -> Findings:
    axis, lines, points = "lambda", "size of the memory", sweeps["sizes"]
    all_rows = [replace(each, line="") for each in points if each.line == points[-1].line]
    return Findings(
        {},
        tables=(
            *sweep_tables(all_rows, axis, title, reference=0.0),
            *sweep_tables(points, axis, title, reference=0.0, lines=lines),
            _chosen_table(sweeps["chosen"]),
        ),
        figures=(
            *(sweep_figure(group, axis, title) for group in CLIENT_GROUPS),
            *(sweep_figure(group, axis, title, lines=lines) for group in CLIENT_GROUPS),
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
        notes=(
            "In figures over lambda all clients have the same weight. 0 is the network alone. The "
            "curves are Figure 2 of the paper: memories of a tenth, a third and all of the rows.",
        ),
    )


def _summarize_neighbors(sweeps: Sweeps, title: str) -> Findings:
    return Findings(
        {},
        tables=sweep_tables(sweeps["k"], "k", title, reference=10),
        figures=tuple(sweep_figure(group, "k", title) for group in CLIENT_GROUPS),
        notes=(
            "Equal weights of network and memory. The paper: k = 7 to 14 differ by under .2 "
            "points.",
        ),
    )


def _summarize_scales(sweeps: Sweeps, title: str) -> Findings:
    points = sweeps["scales"]
    equal_weights = [
        replace(each, value=float(each.line.removeprefix("sigma = ")), line="")
        for each in points
        if each.value == 0.5
    ]
    return Findings(
        {},
        tables=(
            *sweep_tables(equal_weights, "sigma", title, reference=1.0),
            *sweep_tables(points, "lambda", title, reference=0.0, lines="sigma"),
        ),
        figures=(
            *(sweep_figure(group, "sigma", title, log_x=True) for group in CLIENT_GROUPS),
            *(sweep_figure(group, "lambda", title, lines="sigma") for group in CLIENT_GROUPS),
        ),
        notes=(
            "In figures over sigma, network and memory have equal weights. The curves over lambda "
            "are Figure 7 of the paper: almost no effect of sigma between .1 and 1000.",
        ),
    )


def _summarize_spreads(sweeps: Sweeps, title: str) -> Findings:
    axis = "spread of capacities"
    return Findings(
        {},
        tables=sweep_tables(sweeps["spreads"], axis, title, reference=0.0, groups=("unseen",)),
        figures=(sweep_figure("unseen", axis, title),),
        notes=(
            "Unseen clients alternately store a fraction of .5 - spread and .5 + spread of their "
            "rows, so that the total is about the same. Each client chooses the weight of its "
            "memory on held-out rows. In the paper accuracy falls as the spread grows.",
        ),
    )


LAMBDA = _study(
    "knnper.lambda", "Weight of the memory", "Figures 2 and 8 of the paper.", _summarize_weights
)
K = _study("knnper.k", "Number of neighbors", "Figure 5 of the paper.", _summarize_neighbors)
SIGMA = _study(
    "knnper.sigma", "Scale of the distances", "Figure 7 of the paper.", _summarize_scales
)
HARDWARE = _study(
    "knnper.hardware", "Weak and strong clients", "Figure 9 of the paper.", _summarize_spreads
)
