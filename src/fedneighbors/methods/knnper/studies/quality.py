"""Figures 3, 12 and 13: how much the memory owes to the network whose embeddings it keeps."""

from typing import Any

import numpy as np

from fedneighbors.methods.knnper.studies.crowds import crowd
from fedneighbors.methods.knnper.studies.scenes import Scene, Scope, seen_through, trained
from fedneighbors.methods.knnper.studies.sweeps import Rows, jobs_of, label
from fedneighbors.records import Figure, Scalar, Table
from fedneighbors.records.jobs import run_each
from fedneighbors.records.study import Findings, Progress, Study

__all__ = ["QUALITY"]

ROUNDS = (1, 2, 4, 8, 16, 32)
QUICK_ROUNDS = (1, 20, 60)


def _answers(here: Scene, name: str) -> dict[str, Any]:
    """Return what network, memory and their mixture say of a client's test rows."""
    asked = here.split(name)[1]
    keys, scores = here.keys(asked), here.scores[asked]
    personal = here.model.clients_[name]
    return {
        "network": np.exp(scores),
        "memory": personal.votes(keys, np.exp(scores)),
        "mixture": personal.predict_proba(keys, scores),
    }


def _stages(scope: Scope, alpha: float, seed: int, rounds: tuple[int, ...]) -> Rows:
    """Return accuracy of the parts under networks that were trained for longer and longer."""
    people = crowd("label skew", scope, seed, alpha=alpha)
    rows: Rows = []
    for n_rounds in rounds:
        here = seen_through(trained(people, n_rounds, seed), people)
        right: dict[str, dict[str, tuple[int, int]]] = {}
        for name in here.bank.names:
            if len(here.split(name)[1]) and name in here.model.clients_:
                for part, shares in _answers(here, name).items():
                    right.setdefault(part, {})[name] = here.right(name, shares)
        found = {part: here.accuracy(each) for part, each in right.items()}
        for who in ("seen", "unseen"):
            parts = (found[part][who][0] for part in ("network", "memory", "mixture"))
            rows.append((alpha, seed, who, n_rounds, *parts))
    return rows


def _table(rows: Rows, who: str) -> Table:
    cells: dict[tuple[Scalar, Scalar], list[Any]] = {}
    for alpha, _, whose, n_rounds, *parts in rows:
        if whose == who:
            cells.setdefault((alpha, n_rounds), []).append(parts)
    return Table(
        name=who,
        title=f"Accuracy under networks of some rounds: clients that were {who} in training",
        columns=("alpha", "rounds", "network", "memory", "mixture"),
        rows=tuple(
            (f"alpha = {alpha}", n_rounds, *np.mean(found, axis=0).tolist())
            for (alpha, n_rounds), found in cells.items()
        ),
    )


def _lines(table: Table) -> Table:
    """Return for each skew how well a line tells the memory's accuracy from the network's."""
    rows: list[tuple[Scalar, ...]] = []
    for alpha in dict.fromkeys(row[0] for row in table.rows):
        pairs = [(row[2], row[3], row[4]) for row in table.rows if row[0] == alpha]
        network, memory, mixture = np.array(pairs, np.float64).T
        for part, accuracy in (("memory", memory), ("mixture", mixture)):
            slope = float(np.polyfit(network, accuracy, 1)[0])
            rows.append((alpha, part, slope, float(np.corrcoef(network, accuracy)[0, 1])))
    return Table(
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
    rows = [row for found in each for row in found]
    tables = tuple(_table(rows, who) for who in ("seen", "unseen"))
    return Findings(
        parameters={"data": scope.data, "clients": scope.n_clients, "rounds": list(rounds)},
        tables=(*tables, _lines(tables[1])),
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
            for who in ("seen", "unseen")
            for part in ("memory", "mixture")
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
