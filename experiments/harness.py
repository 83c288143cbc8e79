"""Harness of the experiments: studies, their journals, and parallel jobs."""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from joblib import Parallel, cpu_count, delayed, effective_n_jobs
from joblib.externals.loky import ProcessPoolExecutor

from fedneighbors._typing import Progress, silent
from fedneighbors.errors import RecordError
from fedneighbors.records import Figure, ResultTable, RunRecord, Scalar, environment


@dataclass(frozen=True)
class Findings:
    """Results of an experiment.

    Parameters
    ----------
    parameters : mapping
        Settings of the run.
    tables, figures : tuple
        Results, and the figures to draw from them.
    notes : tuple of str
        Sentences for the reader: results, omissions, and reasons.
    """

    parameters: Mapping[str, Scalar | list[Scalar]]
    tables: tuple[ResultTable, ...]
    figures: tuple[Figure, ...] = ()
    notes: tuple[str, ...] = field(default=())


Work = Callable[..., Findings]
"""Runs an experiment; takes ``quick``, ``seed``, ``n_jobs``, ``progress``, maybe ``journal``."""


@dataclass(frozen=True)
class Study:
    """A named experiment.

    Parameters
    ----------
    name : str
        Name on the command line, such as ``"flynn.synthetic"``.
    title, description : str
        Description in the list of experiments.
    work : callable
        Function that runs the experiment.
    keeps_journal : bool
        True if ``work`` has the parameter ``journal``: a file that stores every measurement, so
        that an interrupted run resumes.
    """

    name: str
    title: str
    description: str
    work: Work
    keeps_journal: bool = False

    def run(
        self,
        *,
        quick: bool = False,
        seed: int = 0,
        n_jobs: int = 1,
        progress: Progress = silent,
        journal: Path | None = None,
    ) -> RunRecord:
        """Run the experiment and return its record.

        Parameters
        ----------
        quick : bool
            Run fewer repetitions on smaller tables.
        seed : int
            Seed of data, splits, folds and hashes.
        n_jobs : int
            Number of processes; scores do not depend on it.
        progress : callable
            Function called with the progress of the run.
        journal : Path, optional
            File of measurements; those in it are not repeated, new ones are added.

        Raises
        ------
        ValueError
            If a journal is given and the experiment does not support one.
        """
        if journal is not None and not self.keeps_journal:
            raise ValueError(f"the experiment {self.name!r} supports no journal; run it without")
        kept = {"journal": journal} if self.keeps_journal else {}
        started, clock = datetime.now(UTC), time.perf_counter()
        found = self.work(quick=quick, seed=seed, n_jobs=n_jobs, progress=progress, **kept)
        return RunRecord(
            name=self.name,
            parameters={"quick": quick, "seed": seed, **found.parameters},
            tables=found.tables,
            figures=found.figures,
            notes=found.notes,
            started=started.isoformat(timespec="seconds"),
            seconds=time.perf_counter() - clock,
            environment=environment(),
        )


Outcome = TypeVar("Outcome")


class Journal:
    """A file of measurements, one per line, so that an interrupted run can resume.

    Parameters
    ----------
    path : Path or None
        The file, which need not exist. If None, nothing is stored.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def mend(self) -> None:
        """Create the file, or remove an incomplete last line."""
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.touch()
        whole = self._path.read_bytes()
        end = whole.rfind(b"\n") + 1
        if end < len(whole):
            os.truncate(self._path, end)

    def outcomes(
        self, job: Sequence[Scalar], *, decode: Callable[[Any], Outcome]
    ) -> Iterator[Outcome]:
        """Yield the stored measurements of a job.

        Parameters
        ----------
        job : sequence of scalars
            Identifies the measurement.
        decode : callable
            Function from JSON to an outcome.

        Raises
        ------
        RecordError
            If a line of the file is invalid.
        """
        if self._path is None or not self._path.exists():
            return
        # another process may be writing the last line
        whole, _, _incomplete = self._path.read_bytes().rpartition(b"\n")
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                entry = json.loads(line)
                found = [decode(entry["outcome"])] if entry["job"] == list(job) else []
            except (ValueError, KeyError, TypeError) as error:
                raise RecordError(
                    f"{self._path}, line {number}: expected a measurement of an experiment; remove "
                    "the line, or begin a new journal"
                ) from error
            yield from found

    def add(self, job: Sequence[Scalar], outcome: Any) -> None:
        """Append a job's result as JSON."""
        if self._path is None:
            return
        line = json.dumps({"job": list(job), "outcome": outcome}) + "\n"
        # without a buffer each line is one write, so that several processes can append
        with self._path.open("ab", buffering=0) as file:
            file.write(line.encode())

    def recall(
        self,
        job: Sequence[Scalar],
        *,
        measure: Callable[[], Outcome],
        encode: Callable[[Outcome], Any],
        decode: Callable[[Any], Outcome],
    ) -> Outcome:
        """Return a job's stored result, or measure and store it."""
        for outcome in self.outcomes(job, decode=decode):
            return outcome
        found = measure()
        self.add(job, encode(found))
        return found


THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
"""Variables that tell libraries how many threads to start."""

Task = Callable[..., Any]
Job = tuple[Any, ...]


def run_each(
    task: Task,
    jobs: Sequence[Job],
    *,
    n_jobs: int,
    progress: Progress,
    label: Callable[..., str],
) -> list[Any]:
    """Return ``task(*job)`` of every job, in order.

    Parameters
    ----------
    task : callable
        A function of a module, so that other processes can import it.
    jobs : sequence of tuple
        Arguments.
    n_jobs : int
        Processes.
    progress, label : callable
        Function called with the number of finished jobs, and the name of the last one.
    """
    results = []
    for result in Parallel(n_jobs=n_jobs, return_as="generator")(
        delayed(task)(*job) for job in jobs
    ):
        results.append(result)
        progress(len(results), len(jobs), label(*jobs[len(results) - 1]))
    return results


def run_with_sequels(
    task: Task,
    jobs: Sequence[Job],
    *,
    sequels: Callable[[Job, Any], Sequence[Job]],
    n_jobs: int,
    progress: Progress,
    label: Callable[..., str],
) -> list[list[Any]]:
    """Run jobs and their sequels; return the results of each job.

    A sequel waits only for its own job. The first result of each list is that of the job.

    Parameters
    ----------
    task : callable
        A function of a module, so that other processes can import it.
    jobs : sequence of tuple
        Arguments; they begin in this order. Several processes begin all of them before any sequel,
        a single one does each job's sequels after it.
    sequels : callable
        Takes a job and its result; returns the arguments of the jobs that follow from it.
    n_jobs : int
        Processes.
    progress, label : callable
        Function called with the number of finished jobs, the number of known jobs, and the name of
        the last.
    """
    if effective_n_jobs(n_jobs) == 1:
        return _in_turn(task, jobs, sequels, progress, label)
    executor = _executor(effective_n_jobs(n_jobs))
    chains = [[executor.submit(task, *job)] for job in jobs]
    waiting = {chain[0]: (chain, job) for chain, job in zip(chains, jobs, strict=True)}
    n_done = 0
    try:
        while waiting:
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                chain, job = waiting.pop(future)
                result = future.result()
                for later in sequels(job, result) if future is chain[0] else ():
                    chain.append(executor.submit(task, *later))
                    waiting[chain[-1]] = (chain, later)
                n_done += 1
                progress(n_done, n_done + len(waiting), label(*job))
    finally:  # after an error, the results of running jobs are not needed
        executor.shutdown(kill_workers=bool(waiting))
    return [[future.result() for future in chain] for chain in chains]


def _in_turn(
    task: Task,
    jobs: Sequence[Job],
    sequels: Callable[[Job, Any], Sequence[Job]],
    progress: Progress,
    label: Callable[..., str],
) -> list[list[Any]]:
    """Run every job and then its sequels in this process."""
    chains = []
    n_done, n_known = 0, len(jobs)
    for job in jobs:
        chain = [task(*job)]
        rest = sequels(job, chain[0])
        n_done, n_known = n_done + 1, n_known + len(rest)
        progress(n_done, n_known, label(*job))
        for later in rest:
            chain.append(task(*later))
            n_done += 1
            progress(n_done, n_known, label(*later))
        chains.append(chain)
    return chains


def _executor(n_processes: int) -> ProcessPoolExecutor:
    """Return a pool of processes that share the cores as in :func:`run_each`."""
    n_threads = str(max(1, cpu_count() // n_processes))
    environment = {name: os.environ.get(name, n_threads) for name in THREADS}
    return ProcessPoolExecutor(max_workers=n_processes, env=environment)
