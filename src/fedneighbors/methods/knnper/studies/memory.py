"""Figures 1, 2, 5 and 7: what share, neighbors, unit and size of the memory change."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors.methods.knnper.algorithm import local_votes, mixed
from fedneighbors.methods.knnper.memory.neighbors import nearest
from fedneighbors.methods.knnper.studies.scenes import Scene, Scope, scene
from fedneighbors.metrics import average_accuracy, bottom_decile
from fedneighbors.records import Figure, Scalar, Table
from fedneighbors.records.study import Findings, Progress, Study, run_each

__all__ = ["CAPACITY", "K", "LAMBDA", "SIGMA"]

Floats = npt.NDArray[np.float64]
Answer = Callable[[Scene, str, Any], Floats]
"""Returns the shares of the classes for the test rows of a client, at one value."""

FULL = Scope("mnist", 20_000, 100, 60, (0, 1, 2))
QUICK = Scope("digits", 700, 12, 8, (0,))
SKEWS = (0.1, 0.3, 1.0)

WEIGHTS = tuple(round(0.1 * step, 1) for step in range(11))
NEIGHBORS = (1, 3, 5, 7, 10, 14, 20, 30, 50)
UNITS = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
SHARES = (0.1, 0.2, 0.33, 0.5, 0.75, 1.0)


def _votes(
    here: Scene, name: str, *, k: int = 10, sigma: float = 1.0, share: float = 1.0
) -> Floats:
    """Return what the memory of a client says of its test rows, by the first of its rows."""
    known, asked = here.split(name)
    known = known[: max(1, round(share * len(known)))]
    keys = np.ascontiguousarray(here.bank.embeddings[known], np.float64)
    queries = np.ascontiguousarray(here.bank.embeddings[asked], np.float64)
    found = nearest(keys, queries, k)
    return local_votes(found, here.bank.labels[known], here.scores.shape[1], sigma=sigma)


def _at_weight(here: Scene, name: str, weight: float) -> Floats:
    return mixed(_votes(here, name), np.exp(here.scores[here.split(name)[1]]), weight)


def _at_k(here: Scene, name: str, k: int) -> Floats:
    return _half(here, name, _votes(here, name, k=k))


def _at_sigma(here: Scene, name: str, sigma: float) -> Floats:
    return _half(here, name, _votes(here, name, sigma=sigma))


def _at_share(here: Scene, name: str, share: float) -> Floats:
    return _half(here, name, _votes(here, name, share=share))


def _half(here: Scene, name: str, votes: Floats) -> Floats:
    """Mix in equal shares: no weight is chosen, so that the axis alone changes."""
    return mixed(votes, np.exp(here.scores[here.split(name)[1]]), 0.5)


def _swept(
    scope: Scope, alpha: float, seed: int, values: tuple[float, ...], answer: Answer
) -> list[tuple[Scalar, ...]]:
    """Return average and bottom decile at every value, for seen and unseen clients."""
    here = scene(scope, alpha=alpha, seed=seed)
    rows: list[tuple[Scalar, ...]] = []
    for value in values:
        right = {}
        for name in here.bank.names:
            known, asked = here.split(name)
            if len(known) and len(asked):
                guess = answer(here, name, value).argmax(axis=1)
                right[name] = (int((guess == here.bank.labels[asked]).sum()), len(asked))
        for who, names in (("seen", here.seen), ("unseen", here.unseen)):
            own = [name for name in names if name in right]
            rows.append(
                (alpha, seed, who, value, average_accuracy(right, own), bottom_decile(right, own))
            )
    return rows


def _label(scope: Scope, alpha: float, seed: int, *_: object) -> str:
    return f"{scope.data}, {scope.n_clients} clients, alpha = {alpha:g}, seed {seed}"


def _study(
    name: str,
    title: str,
    axis: str,
    values: tuple[float, ...],
    answer: Answer,
    *,
    figures: str,
    note: str,
) -> Study:
    """Return the experiment that varies one thing of the memory."""

    def work(*, quick: bool, seed: int, n_jobs: int, progress: Progress) -> Findings:
        scope = QUICK if quick else FULL
        skews = SKEWS[1:2] if quick else SKEWS
        jobs = [(scope, a, seed + s, values, answer) for a in skews for s in scope.seeds]
        each = run_each(_swept, jobs, n_jobs=n_jobs, progress=progress, label=_label)
        return Findings(
            parameters={"data": scope.data, "clients": scope.n_clients, "rounds": scope.n_rounds},
            tables=_tables([row for rows in each for row in rows], axis, title),
            figures=tuple(_figure(who, axis, title) for who in ("seen", "unseen")),
            notes=(note,),
        )

    return Study(name=name, title=title, description=f"{figures} of the paper.", work=work)


def _tables(rows: Sequence[tuple[Scalar, ...]], axis: str, title: str) -> tuple[Table, ...]:
    """Return the mean over the seeds for clients that took part, and for those that did not."""
    made = []
    for who in ("seen", "unseen"):
        cells: dict[tuple[Scalar, Scalar], list[tuple[Any, Any]]] = {}
        for alpha, _, whose, value, mean, low in rows:
            if whose == who:
                cells.setdefault((alpha, value), []).append((mean, low))
        made.append(
            Table(
                name=who,
                title=f"{title}: clients that were {who} in training",
                columns=("alpha", axis, "accuracy", "deviation over seeds", "bottom decile"),
                rows=tuple(
                    (
                        f"alpha = {alpha}",
                        value,
                        float(np.mean([mean for mean, _ in found])),
                        float(np.std([mean for mean, _ in found])),
                        float(np.mean([low for _, low in found])),
                    )
                    for (alpha, value), found in cells.items()
                ),
            )
        )
    return tuple(made)


def _figure(who: str, axis: str, title: str) -> Figure:
    return Figure(
        name=who,
        kind="line",
        title=f"{title}, {who} clients",
        table=who,
        x=axis,
        y="accuracy",
        hue="alpha",
        caption="Lower alpha: labels are more skewed over the clients.",
    )


LAMBDA = _study(
    "knnper.lambda",
    "Weight of the memory",
    "lambda",
    WEIGHTS,
    _at_weight,
    figures="Figure 2",
    note="One weight for all clients; at 0 the network answers alone, at 1 the memory.",
)
K = _study(
    "knnper.k",
    "Neighbors that vote",
    "k",
    NEIGHBORS,
    _at_k,
    figures="Figure 5",
    note="Network and memory weigh alike. The paper: less than .2 points between k = 7 and 14.",
)
SIGMA = _study(
    "knnper.sigma",
    "Unit of the distances",
    "sigma",
    UNITS,
    _at_sigma,
    figures="Figure 7",
    note="Network and memory weigh alike. The paper: almost no effect between .1 and 100.",
)
CAPACITY = _study(
    "knnper.capacity",
    "Size of the memory",
    "share of the rows",
    SHARES,
    _at_share,
    figures="Figure 1",
    note="Network and memory weigh alike; the network is the same, the memories are cut. The "
    "paper: a third of the rows keeps most of the gain.",
)
