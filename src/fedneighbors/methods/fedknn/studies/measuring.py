"""Measures every algorithm on the same queries, over processes if there are several."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from fedneighbors.methods.fedknn.studies.cells import Cell, Place
from fedneighbors.methods.fedknn.studies.collections import Collection, load_collection
from fedneighbors.methods.fedknn.studies.trials import Trial
from fedneighbors.records.study import Progress, run_each

__all__ = ["Task", "measure"]


@dataclass(frozen=True)
class Task:
    """One collection in one place, and what to ask of it.

    Parameters
    ----------
    collection : str
        Its name.
    place : Place
        Split and number of providers.
    ks : tuple of int
        Neighbors, ascending.
    algorithms : tuple of str
        Who is asked.
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


def measure(tasks: Sequence[Task], *, seed: int, n_jobs: int, progress: Progress) -> list[Trial]:
    """Return a trial of every algorithm, k and query of every task.

    Parameters
    ----------
    tasks : sequence of Task
        What to measure.
    seed : int
        Of splits and queries.
    n_jobs : int
        Processes; each takes its share of the queries.
    progress : callable
        Told what is done.
    """
    n_parts = max(n_jobs, 1)
    jobs = [(task, seed, part, n_parts) for task in tasks for part in range(n_parts)]
    parts = run_each(_measured, jobs, n_jobs=n_jobs, progress=progress, label=_label)
    return [trial for part in parts for trial in part]


def _label(task: Task, _seed: int, part: int, n_parts: int) -> str:
    where = f"{task.collection}, {task.place.split}, {task.place.n_parties} providers"
    return f"{where}, part {part + 1} of {n_parts}"


def _measured(task: Task, seed: int, part: int, n_parts: int) -> list[Trial]:
    collection = _part(task, seed)
    rows = collection.queries(task.n_queries, seed=seed)[part::n_parts]
    if not rows:
        return []
    cell = Cell(collection, task.place, seed=seed, limit_s=task.limit_s)
    _compile(cell, rows[0], task)
    return [trial for row in rows for trial in _of_query(cell, row, task)]


def _part(task: Task, seed: int) -> Collection:
    whole = _loaded(task.collection)
    return whole if task.n_objects is None else whole.part(task.n_objects, seed=seed)


@lru_cache(maxsize=1)
def _loaded(name: str) -> Collection:
    """Return a collection; the tasks of one follow one another and share it."""
    return load_collection(name)


def _compile(cell: Cell, row: int, task: Task) -> None:
    """Run each algorithm once, so that no kernel is compiled while the clock runs."""
    for algorithm in task.algorithms:
        if not cell.needs_a_process(algorithm):
            cell.trial(row, 1, algorithm)
    cell.forget()


def _of_query(cell: Cell, row: int, task: Task) -> list[Trial]:
    """Measure one query; a search that cannot be in time is not begun.

    The first algorithm that is late with k neighbors is late with more of them; and HuFu, whose
    range counts need all that DANN verifies, is late wherever DANN is.
    """
    cell.forget()
    found: list[Trial] = []
    late: set[str] = set()
    for k in task.ks:
        for algorithm in sorted(task.algorithms, key=_last_the_slow):
            rivals = {algorithm, "dann"} if algorithm.startswith("hufu") else {algorithm}
            if late & rivals:
                trial = cell.late_trial(row, k, algorithm)
            elif cell.needs_a_process(algorithm):
                trial = cell.trial_apart(row, k, algorithm)
            else:
                trial = cell.trial(row, k, algorithm)
            if trial.late:
                late.add(algorithm)
            found.append(trial)
    return found


def _last_the_slow(algorithm: str) -> int:
    """Order the algorithms so that DANN comes first, whose verdicts tell of others."""
    return 0 if algorithm == "dann" else 1
