"""Tables 2 and 3: all methods, over federations of several kinds, seen and unseen clients."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments.bootstrap import paired_difference
from experiments.harness import Findings, Study
from experiments.knnper.comparison import OURS, PAPER, WITHOUT_NETWORK
from experiments.knnper.federations import DATA_FEDERATIONS
from experiments.knnper.printed import paper_table
from experiments.knnper.trials import Outcome, Outcomes, Plan, Task, measure
from fedneighbors._typing import Progress
from fedneighbors.metrics import average_accuracy, bottom_decile
from fedneighbors.records import Figure, ResultTable, Scalar

PAPER_FEDERATIONS = ("label skew", "two classes each", "permuted labels", "drawers")
MORE_FEDERATIONS = ("turned images", "letters")
MEANINGS = ("one meaning", "two meanings", "permuted labels", "eight meanings")

BEST = ("FedAvg", "FedAvg+", "head fine-tuning", "Ditto", "FedRep", PAPER, OURS, *WITHOUT_NETWORK)
"""The best baselines, and all methods of this project."""


def results_table(outcomes: Outcomes, group: str) -> ResultTable:
    """Return every method's scores on seen or unseen clients.

    Parameters
    ----------
    outcomes : dict
        Result of :func:`measure`; the pool is among the methods.
    group : {"seen", "unseen"}
        Clients that took part in training, or that joined later.
    """
    rows: list[tuple[Scalar, ...]] = []
    for task in outcomes:
        if task.has_discriminants:
            continue
        hits = [_select_clients(outcome, group) for outcome in outcomes[task]]
        pool = outcomes[Task(task.name, OURS)]
        gain = paired_difference(
            [
                (_select_clients(ours, group)[0], test)
                for ours, (test, _) in zip(pool, hits, strict=True)
            ]
        )
        means = [average_accuracy(test, list(test)) for test, _ in hits]
        lows = [bottom_decile(test, list(test)) for test, _ in hits]
        train_means = [average_accuracy(train, list(train)) for _, train in hits]
        augmented = outcomes.get(replace(task, has_discriminants=True))
        rows.append(
            (task.name, task.method, float(np.mean(means)), float(np.mean(lows)),
             float(np.std(means)), float(np.mean(train_means)), *gain,
             None if augmented is None else _mean_accuracy(augmented, group))
        )  # fmt: skip
    return ResultTable(
        name=group,
        title=f"Accuracy of clients {group} in training",
        columns=(
            "clients", "method", "accuracy", "bottom decile", "deviation over seeds",
            "on its own rows", "pool is better by", "from", "to", "with discriminants",
        ),
        rows=tuple(rows),
        caption="Average over the clients' test rows. Intervals: 95 %, paired bootstrap over "
        "clients. With discriminants: accuracy if the rows have discriminants, which the methods "
        "of this project use by themselves, as further columns.",
    )  # fmt: skip


def _mean_accuracy(each: list[Outcome], group: str) -> float:
    hits = [_select_clients(outcome, group)[0] for outcome in each]
    return float(np.mean([average_accuracy(test, list(test)) for test in hits]))


def _select_clients(outcome: Outcome, group: str) -> tuple[Any, Any]:
    """Return the test and training hits of seen or unseen clients."""

    def select(hits: Any) -> Any:
        return {
            name: n for name, n in hits.items() if (name in outcome.unseen) == (group == "unseen")
        }

    return select(outcome.scores.test), select(outcome.scores.train)


def chosen_table(outcomes: Outcomes) -> ResultTable:
    """Return the chosen parameters of the methods.

    Parameters
    ----------
    outcomes : dict
        Result of :func:`measure`.
    """
    return ResultTable(
        name="chosen",
        title="Parameters chosen on held-out rows of the first repetition",
        columns=("clients", "method", "with discriminants", "parameters"),
        rows=tuple(
            (task.name, task.method, "yes" if task.has_discriminants else "no",
             ", ".join(f"{k} = {v:g}" for k, v in each[0].chosen.items()) or "nothing")
            for task, each in outcomes.items()
        ),
    )  # fmt: skip


def experts_table(outcomes: Outcomes) -> ResultTable:
    """Return the weights of the pools' experts.

    Parameters
    ----------
    outcomes : dict
        Result of :func:`measure`.
    """
    rows: list[tuple[Scalar, ...]] = []
    for task, each in outcomes.items():
        for index, (expert, _, _) in enumerate(each[0].experts):
            weights = [outcome.experts[index][1] for outcome in each]
            rises = [outcome.experts[index][2] for outcome in each]
            rows.append(
                (task.name, task.method, expert, float(np.mean(weights)), min(weights),
                 max(weights), float(np.mean(rises)))
            )  # fmt: skip
    return ResultTable(
        name="experts",
        title="Experts of the pools",
        columns=(
            "clients", "method", "expert", "weight", "lowest", "highest", "rise of the loss",
        ),
        rows=tuple(rows),
        caption="Mean, lowest and highest weight over the repetitions. The last column is the rise "
        "of the loss of held-out rows in a pool without the expert, in nats.",
    )  # fmt: skip


def _figures(table: ResultTable) -> tuple[Figure, ...]:
    return tuple(
        Figure(
            name=f"{table.name}-{value.replace(' ', '-')}",
            kind="bar",
            title=f"{value.capitalize()}, {table.name} clients",
            table=table.name,
            x="clients",
            y=value,
            hue="method",
            caption="All methods with networks have the same layers, number of rounds and tuning "
            "budget.",
        )
        for value in ("accuracy", "bottom decile")
    )


def _adapt(plan: Plan, *, quick: bool, n_seeds: int | None, data: str, model: str) -> Plan:
    """Return the plan for the options of the command line."""
    names = DATA_FEDERATIONS[data] if data else plan.names
    if quick:
        names = (names[min(2, len(names) - 1)],)
    return replace(
        plan,
        names=names,
        n_seeds=n_seeds or (1 if quick else plan.n_seeds),
        quick=quick,
        data=data,
        model=model,
        with_discriminants=plan.with_discriminants and not model,
    )


def _study(
    name: str,
    title: str,
    description: str,
    plan: Plan,
    groups: tuple[str, ...],
    paper_groups: tuple[str, ...] = (),
) -> Study:
    def work(
        *,
        quick: bool,
        seed: int,
        n_jobs: int,
        progress: Progress,
        journal: Path | None,
        n_seeds: int | None = None,
        data: str = "",
        model: str = "",
    ) -> Findings:
        effective = _adapt(plan, quick=quick, n_seeds=n_seeds, data=data, model=model)
        outcomes = measure(effective, seed=seed, n_jobs=n_jobs, progress=progress, journal=journal)
        results = tuple(results_table(outcomes, group) for group in groups)
        return Findings(
            parameters={
                "crowds": list(effective.names),
                "seeds": effective.n_seeds,
                "rounds": effective.n_rounds,
                "data": data or "of each federation",
                "model": model or "perceptron",
            },
            tables=(
                *results,
                chosen_table(outcomes),
                experts_table(outcomes),
                *(paper_table(group) for group in paper_groups),
            ),
            figures=tuple(figure for table in results for figure in _figures(table)),
            notes=(
                "Each method with a network tries three learning rates, and at the best of them at "
                "most four settings of its own (or four more rates), on held-out rows of the "
                "training clients, in the first repetition. No test row is used for tuning. "
                "KNNPerClassifier() has default settings, and kNN-Per on discriminants those of "
                "the paper's mixture; neither is tuned. Discriminants as further columns come from "
                "all rows of the training clients, including those held out for tuning.",
            ),
        )

    options = ("n_seeds", "data", "model") if paper_groups else ("n_seeds",)
    return Study(name, title, description, work, keeps_journal=True, options=options)


ROLES = _study(
    "knnper.shakespeare",
    "Next characters of Shakespeare's roles",
    "The paper's Shakespeare, smaller: 30 roles, two recurrent layers, five repetitions.",
    Plan(
        ("roles",),
        ("FedAvg", "FedAvg, local class shares", *BEST[1:7]),
        with_discriminants=False,
        rates=(1.0, 2.0, 4.0),
        more_rates=(0.5, 1.5, 3.0, 6.0),
        n_rounds=60,
    ),
    ("seen", "unseen"),
)
TABLE2 = _study(
    "knnper.table2",
    "All methods, clients that train",
    "Table 2 of the paper.",
    Plan(PAPER_FEDERATIONS),
    ("seen",),
    ("seen",),
)
TABLE3 = _study(
    "knnper.table3",
    "All methods, clients that join later",
    "Table 3 of the paper.",
    Plan(PAPER_FEDERATIONS),
    ("unseen",),
    ("unseen",),
)
CLAIMS = _study(
    "knnper.claims",
    "All methods, all clients",
    "Tables 2 and 3 of the paper at once.",
    Plan(PAPER_FEDERATIONS),
    ("seen", "unseen"),
    ("seen", "unseen"),
)
POOL = _study(
    "knnper.pool",
    "The pool and the best other methods",
    "Ours: six kinds of clients, five repetitions.",
    Plan((*PAPER_FEDERATIONS, *MORE_FEDERATIONS), BEST),
    ("seen", "unseen"),
)
CONCEPT = _study(
    "knnper.concept_shift",
    "Labels with client-specific meanings",
    "Ours: clients in one, two, four and eight groups, each with its own label permutation.",
    Plan(
        MEANINGS,
        ("Local", *BEST[:3], "ClusteredFL", *BEST[3:]),
        with_discriminants=False,
    ),
    ("seen", "unseen"),
)
