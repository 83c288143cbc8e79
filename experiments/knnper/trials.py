"""Trials of methods on federations, over several seeds, stored in a journal."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from experiments.harness import Journal, run_with_followups
from experiments.knnper.comparison import (
    METHODS,
    MORE_RATES,
    RATES,
    RIVALS,
    Scores,
    add_discriminants,
    fit_method,
    score_method,
)
from experiments.knnper.federations import FEDERATIONS, ClientRows, Scope, load_roles, make_clients
from experiments.knnper.fixtures import HIDDEN
from fedneighbors._typing import Progress

LONGEST_FIRST = ("eight meanings", "permuted labels", "turned images", "label skew")
"""Federations that are started first, so that all processes end at about the same time."""


@dataclass(frozen=True)
class Plan:
    """Settings of one run.

    Parameters
    ----------
    names : tuple of str
        Federations: keys of :data:`FEDERATIONS`, or ``"roles"``.
    methods : tuple of str
        Methods.
    with_discriminants : bool
        Measure the rivals a second time, with discriminants as further columns of their rows.
    n_seeds : int
        Number of repetitions.
    quick : bool
        True for a small run: fewer rows and two rounds.
    rates, more_rates : tuple of float
        Learning rates that all methods try, and those without settings of their own.
    n_rounds : int
        Number of rounds of each training.
    data : str
        Image set in place of that of the federation; empty for none.
    model : str
        ``"cnn"`` or ``"mobilenet"``, on images of full size; empty for a perceptron.
    """

    names: tuple[str, ...]
    methods: tuple[str, ...] = METHODS
    with_discriminants: bool = True
    n_seeds: int = 5
    quick: bool = False
    rates: tuple[float, ...] = RATES
    more_rates: tuple[float, ...] = MORE_RATES
    n_rounds: int = 200
    data: str = ""
    model: str = ""


@dataclass(frozen=True)
class Task:
    """A method on one federation, with or without discriminants.

    Parameters
    ----------
    name : str
        The federation.
    method : str
        The method.
    has_discriminants : bool
        Rows have discriminants as further columns.
    """

    name: str
    method: str
    has_discriminants: bool = False


@dataclass(frozen=True)
class Outcome:
    """Result of a method on one federation and seed.

    Parameters
    ----------
    scores : Scores
        Hits of all clients.
    unseen : tuple of str
        Clients that joined after training.
    chosen : mapping
        Parameters of the method.
    experts : tuple of (str, float, float)
        Experts of its pool, their weights, and the rise of the held-out loss without each; empty
        without a pool.
    """

    scores: Scores
    unseen: tuple[str, ...]
    chosen: Mapping[str, Any]
    experts: tuple[tuple[str, float, float], ...] = ()


def _make_clients(plan: Plan, name: str, seed: int) -> ClientRows:
    if name == "roles":
        return load_roles(*((6, 40) if plan.quick else (30, 400)), seed)
    data, as_images = plan.data or FEDERATIONS[name][0], bool(plan.model)
    if plan.quick:
        return make_clients(name, Scope(plan.data or "digits", 240, 6, 4, (), as_images), seed)
    return make_clients(name, Scope(data, 20_000, 100, plan.n_rounds, (), as_images), seed)


def _recall(
    plan: Plan, task: Task, seed: int, chosen: Mapping[str, Any] | None, journal: Path | None
) -> Outcome:
    """Return a stored outcome, or measure and store it."""
    n_rounds = 2 if plan.quick else plan.n_rounds
    settings = repr((plan.rates, plan.more_rates) if chosen is None else sorted(chosen.items()))
    job = (*vars(task).values(), seed, n_rounds, plan.quick, plan.data, plan.model, settings)
    return Journal(journal).get_or_measure(
        job,
        measure=lambda: _measure(plan, task, seed, chosen, n_rounds),
        encode=lambda outcome: vars(outcome) | {"scores": vars(outcome.scores)},
        decode=_decode,
    )


def _measure(
    plan: Plan, task: Task, seed: int, chosen: Mapping[str, Any] | None, n_rounds: int
) -> Outcome:
    clients = _make_clients(plan, task.name, seed)
    if task.has_discriminants:
        clients = add_discriminants(clients)
    settings: dict[str, Any] = {"device": "auto", "random_state": seed, "n_rounds": n_rounds}
    if task.name == "roles":
        settings["model"] = _recurrent_network()
    elif plan.model:
        settings["model"] = plan.model
    else:
        settings["hidden"] = (16,) if plan.quick else HIDDEN
    estimator, parameters = fit_method(
        task.method,
        clients,
        settings,
        parameters=chosen,
        rates=plan.rates[1:] if plan.quick else plan.rates,
        more_rates=plan.more_rates,
        n_own=2 if plan.quick else 4,
    )
    scores = score_method(estimator, clients)
    pool = getattr(estimator, "pool_", None)
    experts = () if pool is None else tuple(
        (expert, float(weight), float(loss - pool.loss))
        for expert, weight, loss in zip(
            pool.experts, pool.weights, pool.losses_without, strict=True
        )
    )  # fmt: skip
    return Outcome(scores, clients.unseen, dict(parameters), experts)


def _decode(stored: Any) -> Outcome:
    scores = {
        rows: {name: (hits[0], hits[1]) for name, hits in each.items()}
        for rows, each in stored["scores"].items()
    }
    experts = tuple((each[0], each[1], each[2]) for each in stored["experts"])
    return Outcome(Scores(**scores), tuple(stored["unseen"]), stored["chosen"], experts)


def _recurrent_network() -> Any:
    """Return the builder of the network for roles: two recurrent layers."""
    from fedneighbors.neural._architectures import lstm

    return partial(lstm, hidden=48)


def _label(_plan: Plan, task: Task, seed: int, chosen: Any, _journal: Path | None) -> str:
    return f"{task.name}, {task.method}, seed {seed}" + (", with tuning" if chosen is None else "")


Outcomes = dict[Task, list[Outcome]]
"""Outcomes of each task, one per seed."""


def measure(
    plan: Plan, *, seed: int, n_jobs: int, progress: Progress, journal: Path | None = None
) -> Outcomes:
    """Return the outcomes of all methods.

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
    journal : Path, optional
        File of measurements.
    """
    Journal(journal).repair()
    seeds = range(seed, seed + plan.n_seeds)
    order = sorted(plan.names, key=[*LONGEST_FIRST, *plan.names].index)
    tasks = [task for name in order for task in _list_tasks(plan, name)]

    def list_followups(job: tuple[Any, ...], result: Any) -> list[tuple[Any, ...]]:
        return [(plan, job[1], other, result.chosen, journal) for other in seeds[1:]]

    def report(done: int, _: int, message: str) -> None:
        progress(done, len(tasks) * len(seeds), message)

    jobs = [(plan, task, seeds[0], None, journal) for task in tasks]
    each = run_with_followups(
        _recall, jobs, followups=list_followups, n_jobs=n_jobs, progress=report, label=_label
    )
    outcomes = dict(zip(tasks, each, strict=True))
    return {task: outcomes[task] for name in plan.names for task in _list_tasks(plan, name)}


def _list_tasks(plan: Plan, name: str) -> Iterator[Task]:
    for method in plan.methods:
        yield Task(name, method)
        if plan.with_discriminants and method in RIVALS:
            yield Task(name, method, True)
