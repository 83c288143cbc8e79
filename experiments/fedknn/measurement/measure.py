"""Measurement of all algorithms on the same queries, optionally in several processes.

A journal stores every measured search, so that an interrupted run can resume and experiments with
the same searches share the measurements.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from experiments.fedknn.measurement.collections import Collection, load_collection
from experiments.fedknn.measurement.federation import MeasuredFederation, Setting
from experiments.fedknn.measurement.trials import Trial
from experiments.harness import Journal, run_each
from fedneighbors._typing import Progress, silent


@dataclass(frozen=True)
class Task:
    """Searches to measure in one collection.

    Parameters
    ----------
    collection : str
        Name of the collection.
    setting : Setting
        Split and number of providers.
    ks : tuple of int
        Neighbors, ascending.
    algorithms : tuple of str
        Names of the algorithms.
    n_queries : int
        Number of queries.
    limit_s : float
        CPU seconds that a query may take: the slowest providers of all exchanges together.
    n_objects : int, optional
        Size of a random sample of the collection; default: all objects.
    """

    collection: str
    setting: Setting
    ks: tuple[int, ...]
    algorithms: tuple[str, ...]
    n_queries: int
    limit_s: float = 20.0
    n_objects: int | None = None


@dataclass(frozen=True)
class MeasureOptions:
    """Settings for measuring searches.

    Parameters
    ----------
    seed : int
        Seed of splits, samples and queries.
    n_jobs : int
        Number of processes; a job is one query.
    progress : callable
        Function called after each query.
    journal : Path, optional
        File of measurements; those in it are not repeated, new ones are added.
    """

    seed: int = 0
    n_jobs: int = 1
    progress: Progress = silent
    journal: Path | None = None


def measure(tasks: Sequence[Task], options: MeasureOptions) -> list[Trial]:
    """Return a trial of every algorithm, k and query of every task."""
    Journal(options.journal).repair()
    jobs = [
        (task, options.seed, number, options.journal)
        for task in tasks
        for number in range(task.n_queries)
    ]
    results = run_each(
        _measure_query, jobs, n_jobs=options.n_jobs, progress=options.progress, label=_label
    )
    return [trial for trials in results for trial in trials]


def _label(task: Task, _seed: int, number: int, _journal: Path | None) -> str:
    where = f"{task.collection}, {task.setting.split}, {task.setting.n_parties} providers"
    return f"{where}, query {number + 1} of {task.n_queries}"


def _measure_query(task: Task, seed: int, number: int, path: Path | None) -> list[Trial]:
    collection = _load_sample(task.collection, task.n_objects, seed)
    row = collection.queries(task.n_queries, seed=seed)[number]
    journal = Journal(path)
    known = known_trials(journal, task, row, n_objects=len(collection.objects), seed=seed)
    searches = _list_searches(task)
    if all(search in known for search in searches):
        return [known[search] for search in searches]
    return _complete_query(_prepare(task, seed), row, task, known, journal, seed=seed)


def known_trials(
    journal: Journal, task: Task, row: int, *, n_objects: int, seed: int
) -> dict[tuple[int, str], Trial]:
    """Return a query's trials from a journal, by neighbors and algorithm.

    Raises
    ------
    RecordError
        If a line of the journal is invalid.
    """
    labels = (task.collection, task.setting.split, n_objects, task.setting.n_parties, row)
    return {
        (trial.k, trial.algorithm): trial
        for trial in journal.outcomes([seed], decode=lambda fields: Trial(**fields))
        if trial.k in task.ks
        and trial.algorithm in task.algorithms
        and trial.limit_s == task.limit_s
        and labels == (trial.collection, trial.split, trial.n_objects, trial.n_parties, trial.query)
    }


_MAX_UNMEASURED = 20
"""Maximum number of queries, after the measured ones, to try for HuFu's first radius."""


@lru_cache(maxsize=1)
def _load_sample(name: str, n_objects: int | None, seed: int) -> Collection:
    collection = _load(name)
    return collection if n_objects is None else collection.sample(n_objects, seed=seed)


@lru_cache(maxsize=1)
def _load(name: str) -> Collection:
    """Load a collection; cached for consecutive tasks."""
    return load_collection(name)


@lru_cache(maxsize=1)
def _prepare(task: Task, seed: int) -> MeasuredFederation:
    """Build a task's federation and run each algorithm once to compile kernels."""
    collection = _load_sample(task.collection, task.n_objects, seed)
    federation = MeasuredFederation(collection, task.setting, seed=seed, limit_s=task.limit_s)
    first, *rest = collection.queries(task.n_queries + _MAX_UNMEASURED, seed=seed)
    if "hufu" in task.algorithms:
        federation.calibrate(rest[task.n_queries - 1 :], (1, *task.ks))
    for algorithm in task.algorithms:
        if not federation.needs_process(algorithm):
            federation.trial(first, 1, algorithm)
    return federation


def _complete_query(
    federation: MeasuredFederation,
    row: int,
    task: Task,
    known: Mapping[tuple[int, str], Trial],
    journal: Journal,
    *,
    seed: int,
) -> list[Trial]:
    """Measure the missing searches of a query."""
    federation.clear_recordings()
    trials: list[Trial] = []
    for k, algorithm in _list_searches(task):
        if (k, algorithm) in known:
            trial = known[k, algorithm]
        elif federation.needs_process(algorithm):
            trial = federation.trial_in_process(row, k, algorithm)
        else:
            trial = federation.trial(row, k, algorithm)
        if (k, algorithm) not in known:
            journal.add([seed], asdict(trial))
        trials.append(trial)
    return trials


def _list_searches(task: Task) -> list[tuple[int, str]]:
    """Return neighbors and algorithm of each search, in order."""
    return [(k, name) for k in task.ks for name in task.algorithms]
