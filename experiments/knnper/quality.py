"""Figures 3, 12 and 13: dependence of the memory on the network of its embeddings."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.bootstrap import (
    ENDS,
    HitCounts,
    accuracy_interval,
    paired_difference,
)
from experiments.harness import Findings, Study, run_each
from experiments.knnper.federations import Scope, make_clients
from experiments.knnper.fixtures import EmbeddedClients, embed_clients, train_clients
from experiments.knnper.sweeps import DRAWN, WHO, jobs_of, label
from fedneighbors._typing import Progress
from fedneighbors.methods.knnper.memory._rows import RowFeatures
from fedneighbors.metrics import average_accuracy
from fedneighbors.records import Figure, ResultTable, Scalar

ROUNDS = (1, 2, 4, 8, 16, 32)
QUICK_ROUNDS = (1, 20, 60)
PARTS = ("network", "memory", "mixture")


def _answers(embedded: EmbeddedClients, name: str) -> dict[str, Any]:
    """Return the answers of network, memory and mixture to test rows."""
    asked = embedded.split(name)[1]
    view, scores = RowFeatures(embedded.keys(asked)), embedded.scores[asked]
    personal = embedded.model.clients_[name]
    return {
        "network": np.exp(scores),
        "memory": personal.votes(view, np.exp(scores)),
        "mixture": personal.predict(view, scores),
    }


@dataclass(frozen=True, eq=False)
class Stage:
    """Accuracy of the parts under a network after some rounds.

    Parameters
    ----------
    alpha : float
        Concentration of the label skew.
    n_rounds : int
        Of training.
    right : dict of str to dict of str to mapping
        For each of :data:`PARTS`, of seen and of unseen clients.
    """

    alpha: float
    n_rounds: int
    right: dict[str, dict[str, HitCounts]]


def _stages(scope: Scope, alpha: float, seed: int, rounds: tuple[int, ...]) -> list[Stage]:
    """Return the parts' accuracy after more and more rounds."""
    clients = make_clients("label skew", scope, seed, alpha=alpha)
    stages = []
    for n_rounds in rounds:
        embedded = embed_clients(train_clients(clients, n_rounds, seed), clients)
        right: dict[str, dict[str, tuple[int, int]]] = {part: {} for part in PARTS}
        for name in embedded.bank.names:
            if len(embedded.split(name)[1]) and name in embedded.model.clients_:
                for part, shares in _answers(embedded, name).items():
                    right[part][name] = embedded.right(name, shares)
        found = {part: embedded.by_role(each) for part, each in right.items()}
        stages.append(Stage(alpha, n_rounds, found))
    return stages


Cells = dict[tuple[float, int], list[Stage]]


def _cells(stages: Iterable[Stage]) -> Cells:
    """Return the stages of all seeds, by skew and rounds."""
    cells: Cells = {}
    for stage in stages:
        cells.setdefault((stage.alpha, stage.n_rounds), []).append(stage)
    return cells


def _table(cells: Cells, who: str) -> ResultTable:
    return ResultTable(
        name=who,
        title=f"Accuracy under networks of some rounds: clients that were {who} in training",
        columns=("alpha", "rounds", *PARTS),
        rows=tuple(
            (f"alpha = {alpha}", n_rounds, *(_accuracy(found, part, who) for part in PARTS))
            for (alpha, n_rounds), found in cells.items()
        ),
    )


def _accuracy(stages: Sequence[Stage], part: str, who: str) -> float:
    each = [stage.right[part][who] for stage in stages]
    return float(np.mean([average_accuracy(right, list(right)) for right in each]))


def _intervals(cells: Cells, who: str) -> ResultTable:
    """Return intervals of the accuracies and of gains over the network."""
    rows: list[tuple[Scalar, ...]] = []
    for (alpha, n_rounds), stages in cells.items():
        network = [each.right["network"][who] for each in stages]
        for part in PARTS:
            found = [each.right[part][who] for each in stages]
            gain = paired_difference(list(zip(found, network, strict=True)))
            rows.append((f"alpha = {alpha}", n_rounds, part, *accuracy_interval(found), *gain))
    return ResultTable(
        name=f"{who}-intervals",
        title=f"How sure these are: clients that were {who} in training",
        columns=(
            "alpha", "rounds", "part", "accuracy", *ENDS, "better than the network by", "from",
            "to",
        ),
        rows=tuple(rows),
        caption=DRAWN,
    )  # fmt: skip


def _lines(table: ResultTable) -> ResultTable:
    """Fit the memory's accuracy on the network's, per skew."""
    rows: list[tuple[Scalar, ...]] = []
    for alpha in dict.fromkeys(row[0] for row in table.rows):
        pairs = [(row[2], row[3], row[4]) for row in table.rows if row[0] == alpha]
        network, memory, mixture = np.array(pairs, np.float64).T
        for part, accuracy in (("memory", memory), ("mixture", mixture)):
            slope = float(np.polyfit(network, accuracy, 1)[0])
            rows.append((alpha, part, slope, float(np.corrcoef(network, accuracy)[0, 1])))
    return ResultTable(
        name="lines",
        title="Accuracy against that of the network, as a line (unseen clients)",
        columns=("alpha", "part", "slope", "correlation"),
        rows=tuple(rows),
    )


def _work(*, quick: bool, seed: int, n_jobs: int, progress: Progress) -> Findings:
    scope, jobs = jobs_of(quick, seed)
    rounds = QUICK_ROUNDS if quick else ROUNDS
    each = run_each(
        _stages, [(*job, rounds) for job in jobs], n_jobs=n_jobs, progress=progress, label=label
    )
    cells = _cells(stage for stages in each for stage in stages)
    tables = tuple(_table(cells, who) for who in WHO)
    return Findings(
        parameters={"data": scope.data, "clients": scope.n_clients, "rounds": list(rounds)},
        tables=(*tables, _lines(tables[1]), *(_intervals(cells, who) for who in WHO)),
        figures=tuple(
            Figure(
                name=f"{who}-{part}",
                kind="line",
                title=f"{part.capitalize()} against network, {who} clients",
                table=who,
                x="network",
                y=part,
                hue="alpha",
                caption="Each point is a network that was trained for 1 to 32 rounds.",
            )
            for who in WHO
            for part in PARTS[1:]
        ),
        notes=(
            "The memory alone has weight 1 (Figures 3 and 12); in the mixture each client chooses "
            "its weight on held-out rows (Figure 13). Networks are trained federatedly, each for "
            "its number of rounds; the paper trains one centrally and keeps stages of it.",
        ),
    )


QUALITY = Study(
    name="knnper.quality",
    title="Quality of the network",
    description="Figures 3, 12 and 13 of the paper.",
    work=_work,
)
