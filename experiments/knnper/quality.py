"""Figures 3, 12 and 13: accuracy of the memory under better and worse networks."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from experiments.bootstrap import (
    ENDS,
    HitCounts,
    accuracy_interval,
    paired_difference,
)
from experiments.harness import Findings, Journal, Study, run_each
from experiments.knnper.federations import ClientRows, Scope, make_clients
from experiments.knnper.fixtures import EmbeddedClients, embed_clients, train_clients
from experiments.knnper.sweeps import (
    CLIENT_GROUPS,
    INTERVALS,
    describe,
    label,
    list_clients,
    list_jobs,
    restore_hits,
)
from fedneighbors._typing import Progress
from fedneighbors.methods.knnper.memory._rows import RowFeatures
from fedneighbors.metrics import average_accuracy
from fedneighbors.records import Figure, ResultTable, Scalar

ROUNDS = (1, 2, 4, 8, 16, 32, 200)
QUICK_ROUNDS = (1, 20, 60)
PARTS = ("network", "memory", "mixture")


def _predict_parts(embedded: EmbeddedClients, name: str) -> dict[str, Any]:
    """Predict test rows with network, memory and mixture."""
    test = embedded.split(name)[1]
    features, scores = RowFeatures(embedded.keys(test)), embedded.scores[test]
    state = embedded.model.clients_[name]
    return {
        "network": np.exp(scores),
        "memory": state.predict_from_memory(features, np.exp(scores)),
        "mixture": state.predict(features, scores),
    }


@dataclass(frozen=True, eq=False)
class Stage:
    """Accuracy of the parts under a network after some rounds.

    Parameters
    ----------
    alpha : float
        Concentration of the label skew.
    n_rounds : int
        Number of training rounds.
    hits : dict of str to dict of str to mapping
        Hits of each of :data:`PARTS`, for seen and unseen clients.
    """

    alpha: float
    n_rounds: int
    hits: dict[str, dict[str, HitCounts]]


def _train_stages(
    scope: Scope, alpha: float, seed: int, rounds: tuple[int, ...], journal: Path | None
) -> list[Stage]:
    """Return stored or measured hits for each number of rounds."""
    clients = make_clients("label skew", scope, seed, alpha=alpha)
    job = (scope.data, scope.n_rows, scope.n_clients, alpha, seed)
    return [
        Stage(
            alpha,
            n_rounds,
            Journal(journal).get_or_measure(
                (*job, n_rounds),
                measure=partial(_measure_parts, clients, n_rounds, seed),
                encode=lambda hits: hits,
                decode=_decode,
            ),
        )
        for n_rounds in rounds
    ]


def _measure_parts(
    clients: ClientRows, n_rounds: int, seed: int
) -> dict[str, dict[str, HitCounts]]:
    """Train a network, and return the hits of each part by group."""
    embedded = embed_clients(train_clients(clients, n_rounds, seed), clients)
    hits: dict[str, dict[str, tuple[int, int]]] = {part: {} for part in PARTS}
    for name in list_clients(embedded):
        for part, predicted in _predict_parts(embedded, name).items():
            hits[part][name] = embedded.count_hits(name, predicted)
    return {part: embedded.by_group(each) for part, each in hits.items()}


def _decode(stored: Mapping[str, Any]) -> dict[str, dict[str, HitCounts]]:
    return {part: restore_hits(by_group) for part, by_group in stored.items()}


Cells = dict[tuple[float, int], list[Stage]]


def _group_stages(stages: Iterable[Stage]) -> Cells:
    """Return the stages of all seeds, by skew and rounds."""
    cells: Cells = {}
    for stage in stages:
        cells.setdefault((stage.alpha, stage.n_rounds), []).append(stage)
    return cells


def _table(cells: Cells, group: str) -> ResultTable:
    return ResultTable(
        name=group,
        title=f"Accuracy by number of training rounds: clients {group} in training",
        columns=("alpha", "rounds", *PARTS),
        rows=tuple(
            (f"alpha = {alpha}", n_rounds, *(_accuracy(stages, part, group) for part in PARTS))
            for (alpha, n_rounds), stages in cells.items()
        ),
    )


def _accuracy(stages: Sequence[Stage], part: str, group: str) -> float:
    each = [stage.hits[part][group] for stage in stages]
    return float(np.mean([average_accuracy(hits, list(hits)) for hits in each]))


def _intervals_table(cells: Cells, group: str) -> ResultTable:
    """Return intervals of the accuracies and of gains over the network."""
    rows: list[tuple[Scalar, ...]] = []
    for (alpha, n_rounds), stages in cells.items():
        network = [each.hits["network"][group] for each in stages]
        for part in PARTS:
            hits = [each.hits[part][group] for each in stages]
            gain = paired_difference(list(zip(hits, network, strict=True)))
            rows.append((f"alpha = {alpha}", n_rounds, part, *accuracy_interval(hits), *gain))
    return ResultTable(
        name=f"{group}-intervals",
        title=f"Intervals: clients {group} in training",
        columns=(
            "alpha", "rounds", "part", "accuracy", *ENDS, "better than the network by", "from",
            "to",
        ),
        rows=tuple(rows),
        caption=INTERVALS,
    )  # fmt: skip


def _slopes_table(table: ResultTable) -> ResultTable:
    """Fit the accuracy of the parts on the network's, per skew."""
    rows: list[tuple[Scalar, ...]] = []
    for alpha in dict.fromkeys(row[0] for row in table.rows):
        pairs = [(row[2], row[3], row[4]) for row in table.rows if row[0] == alpha]
        network, memory, mixture = np.array(pairs, np.float64).T
        for part, accuracy in (("memory", memory), ("mixture", mixture)):
            slope = float(np.polyfit(network, accuracy, 1)[0])
            rows.append((alpha, part, slope, float(np.corrcoef(network, accuracy)[0, 1])))
    return ResultTable(
        name="lines",
        title="Linear fit of the accuracy on that of the network (unseen clients)",
        columns=("alpha", "part", "slope", "correlation"),
        rows=tuple(rows),
    )


def _work(
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
    rounds = QUICK_ROUNDS if quick else ROUNDS
    each = run_each(
        _train_stages,
        [(*job, rounds, journal) for job in jobs],
        n_jobs=n_jobs,
        progress=progress,
        label=label,
    )
    cells = _group_stages(stage for stages in each for stage in stages)
    tables = tuple(_table(cells, group) for group in CLIENT_GROUPS)
    return Findings(
        parameters=describe(scope) | {"rounds": list(rounds)},
        tables=(
            *tables,
            _slopes_table(tables[1]),
            *(_intervals_table(cells, group) for group in CLIENT_GROUPS),
        ),
        figures=tuple(
            Figure(
                name=f"{group}-{part}",
                kind="line",
                title=f"{part.capitalize()} against network, {group} clients",
                table=group,
                x="network",
                y=part,
                hue="alpha",
                caption="Each point is a network trained for 1 to 200 rounds.",
            )
            for group in CLIENT_GROUPS
            for part in PARTS[1:]
        ),
        notes=(
            "'memory' has weight 1 (Figures 3 and 12); in the mixture each client chooses its "
            "weight on held-out rows (Figure 13). A federated network is trained for each number "
            "of rounds; the paper trains one network centrally and uses checkpoints of it.",
        ),
    )


QUALITY = Study(
    name="knnper.quality",
    title="Quality of the network",
    description="Figures 3, 12 and 13 of the paper.",
    work=_work,
    keeps_journal=True,
    options=("n_seeds",),
)
