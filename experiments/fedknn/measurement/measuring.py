"""Measures every algorithm on the same queries, optionally in several processes.

A journal stores every measured search, so that an interrupted run resumes, and experiments with the
same searches share the measurements.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from experiments.fedknn.measurement.cells import Cell, Place
from experiments.fedknn.measurement.collections import Collection, load_collection
from experiments.fedknn.measurement.trials import Trial
from experiments.harness import Journal, run_each
from fedneighbors._typing import Progress, silent


@dataclass(frozen=True)
class Task:
    """A collection in a setting, and its queries.

    Parameters
    ----------
    collection : str
        Its name.
    place : Place
        Split and number of providers.
    ks : tuple of int
        Neighbors, ascending.
    algorithms : tuple of str
        Federation to query.
    n_queries : int
        How many queries.
    limit_s : float
        CPU seconds that a provider may spend on a query.
    n_objects : int, optional
        Objects drawn from a larger collection.
    """

    collection: str
    place: Place
    ks: tuple[int, ...]
    algorithms: tuple[str, ...]
    n_queries: int
    limit_s: float = 20.0
    n_objects: int | None = None


@dataclass(frozen=True)
class Measuring:
    """Settings for measuring searches.

    Parameters
    ----------
    seed : int
        Of splits and queries.
    n_jobs : int
        Processes; each takes one query after another.
    progress : callable
        Function called with each finished measurement.
    journal : Path, optional
        Searches in it are not measured again; new measurements are added.
    """

    seed: int = 0
    n_jobs: int = 1
    progress: Progress = silent
    journal: Path | None = None


def measure(tasks: Sequence[Task], how: Measuring) -> list[Trial]:
    """Return a trial of every algorithm, k and query of every task."""
    Journal(how.journal).mend()
    jobs = [
        (task, how.seed, number, how.journal) for task in tasks for number in range(task.n_queries)
    ]
    each = run_each(_measured, jobs, n_jobs=how.n_jobs, progress=how.progress, label=_label)
    return [trial for trials in each for trial in trials]


def _label(task: Task, _seed: int, number: int, _journal: Path | None) -> str:
    where = f"{task.collection}, {task.place.split}, {task.place.n_parties} providers"
    return f"{where}, query {number + 1} of {task.n_queries}"


def _measured(task: Task, seed: int, number: int, journal: Path | None) -> list[Trial]:
    collection = _part(task.collection, task.n_objects, seed)
    row = collection.queries(task.n_queries, seed=seed)[number]
    book = Journal(journal)
    known = known_trials(book, task, row, n_objects=len(collection.objects), seed=seed)
    asked = _asked(task)
    if all(each in known for each in asked):
        return [known[each] for each in asked]
    return _of_query(_ready(task, seed), row, task, known, book, seed=seed)


def known_trials(
    book: Journal, task: Task, row: int, *, n_objects: int, seed: int
) -> dict[tuple[int, str], Trial]:
    """Return a query's trials from a journal, by neighbors and algorithm.

    Raises
    ------
    RecordError
        If a line of the journal is invalid.
    """
    wanted = (task.collection, task.place.split, n_objects, task.place.n_parties, row)
    return {
        (trial.k, trial.algorithm): trial
        for trial in book.outcomes([seed], decode=lambda held: Trial(**held))
        if trial.k in task.ks
        and trial.algorithm in task.algorithms
        and trial.limit_s == task.limit_s
        and wanted == (trial.collection, trial.split, trial.n_objects, trial.n_parties, trial.query)
    }


@lru_cache(maxsize=1)
def _part(name: str, n_objects: int | None, seed: int) -> Collection:
    whole = _loaded(name)
    return whole if n_objects is None else whole.part(n_objects, seed=seed)


@lru_cache(maxsize=1)
def _loaded(name: str) -> Collection:
    """Return a collection, shared by consecutive tasks."""
    return load_collection(name)


@lru_cache(maxsize=1)
def _ready(task: Task, seed: int) -> Cell:
    """Return a task's federation with all kernels compiled."""
    collection = _part(task.collection, task.n_objects, seed)
    cell = Cell(collection, task.place, seed=seed, limit_s=task.limit_s)
    first = collection.queries(task.n_queries, seed=seed)[0]
    for algorithm in task.algorithms:
        if not cell.needs_process(algorithm):
            cell.trial(first, 1, algorithm)
    return cell


def _of_query(
    cell: Cell,
    row: int,
    task: Task,
    known: Mapping[tuple[int, str], Trial],
    book: Journal,
    *,
    seed: int,
) -> list[Trial]:
    """Measure one query; skip searches that cannot finish in time.

    An algorithm that is late with k neighbors is late with more of them; and HuFu, whose
    range counts need all that DANN verifies, is late wherever DANN is.
    """
    cell.forget()
    found: list[Trial] = []
    late: set[str] = set()
    for k, algorithm in _asked(task):
        rivals = {algorithm, "dann"} if algorithm.startswith("hufu") else {algorithm}
        if (k, algorithm) in known:
            trial = known[k, algorithm]
        elif late & rivals:
            trial = cell.late_trial(row, k, algorithm)
        elif cell.needs_process(algorithm):
            trial = cell.trial_in_process(row, k, algorithm)
        else:
            trial = cell.trial(row, k, algorithm)
        if trial.late:
            late.add(algorithm)
        if (k, algorithm) not in known:
            book.add([seed], asdict(trial))
        found.append(trial)
    return found


def _asked(task: Task) -> list[tuple[int, str]]:
    """Return the queries in order."""
    return [(k, name) for k in task.ks for name in sorted(task.algorithms, key=_dann_first)]


def _dann_first(algorithm: str) -> int:
    """Order the algorithms with DANN first.

    Its time decides whether the others can finish within the limit.
    """
    return 0 if algorithm == "dann" else 1
