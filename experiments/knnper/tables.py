"""Tables 2 and 3: all methods, over federations of several kinds, seen and unseen clients."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from experiments.bootstrap import paired_difference
from experiments.harness import Findings, Study, run_with_followups
from experiments.knnper.comparison import (
    BASELINES,
    ONE_NETWORK_METHODS,
    OURS,
    PAPER,
    RATES,
    Scores,
    compare_methods,
)
from experiments.knnper.federations import FEDERATIONS, ClientRows, Scope, load_roles, make_clients
from experiments.knnper.fixtures import HIDDEN
from fedneighbors._typing import Progress
from fedneighbors.metrics import average_accuracy, bottom_decile
from fedneighbors.records import Figure, ResultTable, Scalar

PAPER_METHODS = (
    "Local", "FedAvg", "FedAvg+", "ClusteredFL", "Ditto", "FedRep", "APFL", "pFedGP", "kNN-Per",
)  # fmt: skip

# Table 2: average and bottom decile of the accuracy over the clients, in percent.
SEEN = {
    "FEMNIST": "71.0/57.5 83.4/68.9 84.3/69.4 83.7/69.4 84.3/71.3 85.3/72.7 84.1/69.4 - 88.2/78.8",
    "CIFAR-10": "57.6/41.1 72.8/59.6 75.2/62.3 73.3/61.5 80.0/66.5 77.7/65.2 78.9/68.1 - 83.0/71.4",
    "CIFAR-10 (v2)": "82.4/71.3 67.9/60.1 85.0/79.6 79.9/72.3 86.3/80.6 89.1/85.3 82.6/76.4 "
    "88.9/84.1 93.8/88.2",
    "CIFAR-100": "31.5/19.8 47.4/36.0 51.4/41.1 47.2/36.2 52.0/41.4 53.2/41.7 51.7/41.1 - "
    "55.0/43.6",
    "CIFAR-100 (v2)": "45.7/38.2 42.3/34.8 48.1/41.9 43.5/37.2 48.7/40.3 70.1/65.2 48.3/42.1 "
    "61.1/50.0 74.6/67.3",
    "Shakespeare": "32.0/16.0 48.1/43.1 47.0/42.2 46.7/41.4 47.9/42.6 47.2/42.3 45.9/42.4 - "
    "51.4/45.4",
}

# Table 3: average accuracy on test rows and on training rows, in percent.
UNSEEN = {
    "FEMNIST": "- 83.1/83.3 84.2/88.5 83.2/86.0 83.9/86.9 85.4/88.9 84.2/85.5 - 88.1/90.5",
    "CIFAR-10": "- 72.9/72.8 75.3/78.2 73.9/76.2 79.7/84.3 76.4/79.5 79.2/80.6 - 82.4/87.1",
    "CIFAR-10 (v2)": "- 67.5/68.1 85.1/85.0 79.6/79.9 85.9/86.0 89.0/89.1 82.3/82.5 89.0/88.8 "
    "93.0/93.1",
    "CIFAR-100": "- 47.1/47.5 50.8/53.4 47.1/48.2 52.1/57.3 53.5/58.2 49.1/52.7 - 56.1/59.3",
    "CIFAR-100 (v2)": "- 42.1/42.2 47.9/48.1 43.2/43.4 48.8/48.5 69.8/70.0 48.2/48.4 61.3/61.0 "
    "74.3/74.5",
    "Shakespeare": "- 49.0/48.3 49.3/48.1 49.4/46.7 48.1/49.2 48.7/47.8 46.1/52.7 - 50.7/64.2",
}


def paper_table(group: str) -> ResultTable:
    """Return the paper's results.

    Parameters
    ----------
    group : {"seen", "unseen"}
        Seen clients (Table 2) or unseen clients (Table 3).
    """
    results, second = (SEEN, "bottom decile") if group == "seen" else (UNSEEN, "on its own rows")
    rows: list[tuple[Scalar, ...]] = []
    for data, cells in results.items():
        for method, cell in zip(PAPER_METHODS, cells.split(), strict=True):
            if cell != "-":
                first, other = (round(float(part) / 100, 3) for part in cell.split("/"))
                rows.append((data, method, first, other))
    return ResultTable(
        name=f"paper-{group}",
        title=f"The paper: clients {group} in training",
        columns=("data", "method", "accuracy", second),
        rows=tuple(rows),
        caption="MobileNet-v2 and a two-layer LSTM, 200 to 1,000 rounds, other data: compare the "
        "order of the methods, not the values.",
    )


PAPER_FEDERATIONS = ("label skew", "two classes each", "permuted labels", "drawers")
MORE_FEDERATIONS = ("turned images", "letters")
LONGEST_FIRST = ("eight meanings", "permuted labels", "turned images", "label skew")
"""Federations that are started first, so that all processes end at about the same time."""

MEANINGS = ("one meaning", "two meanings", "permuted labels", "eight meanings")

ALL = (*BASELINES, PAPER, OURS)
BEST = ("FedAvg", "FedAvg+", "head fine-tuning", "Ditto", "FedRep", PAPER, OURS)
"""The best baselines, the paper's mixture and the pool."""

Result = dict[str, Scores]
ByFederation = dict[str, list[tuple[Result, tuple[str, ...]]]]
"""For each federation and seed: the scores of the methods, and the unseen clients."""


@dataclass(frozen=True)
class Plan:
    """Settings of one run.

    Parameters
    ----------
    names : tuple of str
        Federations: keys of :data:`FEDERATIONS`, or ``"roles"``.
    methods : tuple of str
        Methods.
    n_seeds : int
        Number of repetitions.
    quick : bool
        True for a small run: fewer rows and two rounds.
    rates : tuple of float
        Learning rates to try; the best for federated averaging is used for all methods.
    n_rounds : int
        Number of rounds of each training.
    """

    names: tuple[str, ...]
    methods: tuple[str, ...] = ALL
    n_seeds: int = 3
    quick: bool = False
    rates: tuple[float, ...] = RATES
    n_rounds: int = 60


def _make_clients(plan: Plan, name: str, seed: int) -> ClientRows:
    if name == "roles":
        return load_roles(*((6, 40) if plan.quick else (30, 400)), seed)
    scope = Scope(FEDERATIONS[name][0], 20_000, 100, 60, ())
    return make_clients(name, Scope("digits", 240, 6, 4, ()) if plan.quick else scope, seed)


def _measure(
    plan: Plan, name: str, seed: int, chosen: Any
) -> tuple[Result, tuple[str, ...], dict[str, Any]]:
    clients = _make_clients(plan, name, seed)
    settings: dict[str, Any] = {"device": "auto", "random_state": seed}
    settings["n_rounds"] = 2 if plan.quick else plan.n_rounds
    if name == "roles":
        settings["model"] = _recurrent_network()
    else:
        settings["hidden"] = (16,) if plan.quick else HIDDEN
    scores, parameters = compare_methods(
        clients, settings, chosen=chosen, methods=plan.methods, rates=plan.rates
    )
    return scores, clients.unseen, parameters


def _recurrent_network() -> Any:
    """Return the builder of the network for roles: two recurrent layers."""
    from fedneighbors.neural._architectures import lstm

    return partial(lstm, hidden=48)


def _label(_plan: Plan, name: str, seed: int, chosen: Any) -> str:
    return f"{name}, seed {seed}" + (", with tuning" if chosen is None else "")


def measure(
    plan: Plan, *, seed: int, n_jobs: int, progress: Progress
) -> tuple[ByFederation, dict[str, dict[str, Any]]]:
    """Return the scores of all methods, and their chosen parameters.

    Methods are tuned on held-out rows of the first seed; other seeds use the same parameters.

    Parameters
    ----------
    plan : Plan
        Federations to measure.
    seed : int
        Seed of the first repetition.
    n_jobs : int
        Number of processes.
    progress : callable
        Function called with the current step.
    """
    seeds = range(seed, seed + plan.n_seeds)
    order = sorted(plan.names, key=[*LONGEST_FIRST, *plan.names].index)

    def list_followups(job: tuple[Any, ...], result: Any) -> list[tuple[Any, ...]]:
        return [(plan, job[1], other, result[2]) for other in seeds[1:]]

    def report(done: int, _: int, message: str) -> None:
        progress(done, len(order) * len(seeds), message)

    jobs = [(plan, name, seeds[0], None) for name in order]
    each = run_with_followups(
        _measure, jobs, followups=list_followups, n_jobs=n_jobs, progress=report, label=_label
    )
    chains = dict(zip(order, each, strict=True))
    by_federation = {name: [found[:2] for found in chains[name]] for name in plan.names}
    chosen = {name: chains[name][0][2] for name in plan.names}
    return by_federation, chosen


def results_table(by_federation: ByFederation, group: str) -> ResultTable:
    """Return every method's scores on seen or unseen clients."""
    rows: list[tuple[Scalar, ...]] = []
    for name, each in by_federation.items():
        for method in each[0][0]:
            hits = [_select_clients(scores[method], unseen, group) for scores, unseen in each]
            pool_hits = [_select_clients(scores[OURS], unseen, group) for scores, unseen in each]
            means = [average_accuracy(test, list(test)) for test, _ in hits]
            lows = [bottom_decile(test, list(test)) for test, _ in hits]
            train_means = [average_accuracy(train, list(train)) for _, train in hits]
            gain = paired_difference(
                [(pool, other) for (pool, _), (other, _) in zip(pool_hits, hits, strict=True)]
            )
            rows.append(
                (name, method, float(np.mean(means)), float(np.mean(lows)), float(np.std(means)),
                 float(np.mean(train_means)), *gain)
            )  # fmt: skip
    return ResultTable(
        name=group,
        title=f"Accuracy of clients {group} in training",
        columns=(
            "clients", "method", "accuracy", "bottom decile", "deviation over seeds",
            "on its own rows", "pool is better by", "from", "to",
        ),
        rows=tuple(rows),
        caption="Average over the clients' test rows. Intervals: 95 %, paired bootstrap over "
        "clients.",
    )  # fmt: skip


def _select_clients(scores: Scores, unseen: tuple[str, ...], group: str) -> tuple[Any, Any]:
    """Return the test and training hits of seen or unseen clients."""

    def select(hits: Any) -> Any:
        return {name: n for name, n in hits.items() if (name in unseen) == (group == "unseen")}

    return select(scores.test), select(scores.train)


def chosen_table(chosen: Mapping[str, Mapping[str, Any]]) -> ResultTable:
    """Return the chosen parameters of the methods."""
    return ResultTable(
        name="chosen",
        title="Parameters chosen on held-out rows of the first repetition",
        columns=("clients", "method", "parameters"),
        rows=tuple(
            (name, method, ", ".join(f"{k} = {v:g}" for k, v in parameters.items()) or "nothing")
            for name, methods in chosen.items()
            for method, parameters in methods.items()
        ),
    )


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
            caption="All methods have the same network, number of rounds and tuning budget.",
        )
        for value in ("accuracy", "bottom decile")
    )


def _study(
    name: str,
    title: str,
    description: str,
    plan: Plan,
    groups: tuple[str, ...],
    paper_groups: tuple[str, ...] = (),
) -> Study:
    def work(*, quick: bool, seed: int, n_jobs: int, progress: Progress) -> Findings:
        effective = plan
        if quick:
            quick_name = plan.names[min(2, len(plan.names) - 1)]
            effective = replace(plan, names=(quick_name,), n_seeds=1, quick=True)
        by_federation, chosen = measure(effective, seed=seed, n_jobs=n_jobs, progress=progress)
        results = tuple(results_table(by_federation, group) for group in groups)
        return Findings(
            parameters={"crowds": list(effective.names), "seeds": effective.n_seeds},
            tables=(
                *results,
                chosen_table(chosen),
                *(paper_table(group) for group in paper_groups),
            ),
            figures=tuple(figure for table in results for figure in _figures(table)),
            notes=(
                "Each method is tuned over at most four settings on held-out rows of the training "
                "clients, in the first repetition. The learning rate is the best for federated "
                "averaging. No test row is used for tuning.",
            ),
        )

    return Study(name=name, title=title, description=description, work=work)


ROLES = _study(
    "knnper.shakespeare",
    "Next characters of Shakespeare's roles",
    "The paper's Shakespeare, smaller: 30 roles, two recurrent layers, five repetitions.",
    Plan(("roles",), (*ONE_NETWORK_METHODS, *BEST[3:]), 5, rates=(1.0, 2.0, 4.0)),
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
    Plan((*PAPER_FEDERATIONS, *MORE_FEDERATIONS), BEST, 5),
    ("seen", "unseen"),
)
CONCEPT = _study(
    "knnper.concept_shift",
    "Labels with client-specific meanings",
    "Ours: clients in one, two, four and eight groups, each with its own label permutation.",
    Plan(MEANINGS, ("Local", *BEST[:3], "ClusteredFL", *BEST[3:]), 5),
    ("seen", "unseen"),
)
