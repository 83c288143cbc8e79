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
        Sentences about results, omissions and reasons.
    """

    parameters: Mapping[str, Scalar | list[Scalar]]
    tables: tuple[ResultTable, ...]
    figures: tuple[Figure, ...] = ()
    notes: tuple[str, ...] = field(default=())


Work = Callable[..., Findings]
"""Function of ``quick``, ``seed``, ``n_jobs``, ``progress`` and, if supported, ``journal``."""


@dataclass(frozen=True)
class Study:
    """A named experiment.

    Parameters
    ----------
    name : str
        Name on the command line, such as ``"flynn.synthetic"``.
    title, description : str
        Texts of the list of experiments.
    work : callable
        Function that runs the experiment.
    keeps_journal : bool
        True if ``work`` has the parameter ``journal``: a file that stores every measurement, so
        that an interrupted run resumes.
    options : tuple of str
        Further parameters of ``work`` that the command line can set: ``"n_seeds"``, ``"data"``,
        ``"model"``.
    """

    name: str
    title: str
    description: str
    work: Work
    keeps_journal: bool = False
    options: tuple[str, ...] = ()

    def run(
        self,
        *,
        quick: bool = False,
        seed: int = 0,
        n_jobs: int = 1,
        progress: Progress = silent,
        journal: Path | None = None,
        **options: Any,
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
            File of measurements; stored ones are not repeated, and new ones are appended.
        **options
            Values of :attr:`options`.

        Raises
        ------
        ValueError
            If the experiment does not support the journal or an option.
        """
        if journal is not None and not self.keeps_journal:
            raise ValueError(
                f"the experiment {self.name!r} does not support a journal; run it without"
            )
        if unknown := sorted(set(options) - set(self.options)):
            raise ValueError(
                f"the experiment {self.name!r} does not support {', '.join(unknown)}; run it "
                "without"
            )
        if self.keeps_journal:
            options["journal"] = journal
        started, clock = datetime.now(UTC), time.perf_counter()
        findings = self.work(quick=quick, seed=seed, n_jobs=n_jobs, progress=progress, **options)
        return RunRecord(
            name=self.name,
            parameters={"quick": quick, "seed": seed, **findings.parameters},
            tables=findings.tables,
            figures=findings.figures,
            notes=findings.notes,
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

    def repair(self) -> None:
        """Create the file, or remove an incomplete last line."""
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.touch()
        content = self._path.read_bytes()
        end = content.rfind(b"\n") + 1
        if end < len(content):
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
        complete, _, _incomplete = self._path.read_bytes().rpartition(b"\n")
        for number, line in enumerate(complete.splitlines(), start=1):
            try:
                entry = json.loads(line)
                matching = [decode(entry["outcome"])] if entry["job"] == list(job) else []
            except (ValueError, KeyError, TypeError) as error:
                raise RecordError(
                    f"{self._path}, line {number}: expected a measurement of an experiment; remove "
                    "the line, or begin a new journal"
                ) from error
            yield from matching

    def add(self, job: Sequence[Scalar], outcome: Any) -> None:
        """Append a job's result as JSON."""
        if self._path is None:
            return
        line = json.dumps({"job": list(job), "outcome": outcome}) + "\n"
        # without a buffer each line is one write, so that several processes can append
        with self._path.open("ab", buffering=0) as file:
            file.write(line.encode())

    def get_or_measure(
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
        result = measure()
        self.add(job, encode(result))
        return result


THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)
"""Environment variables with the number of threads of libraries."""

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
        Module-level function, so that other processes can import it.
    jobs : sequence of tuple
        Arguments of each job.
    n_jobs : int
        Number of processes.
    progress, label : callable
        ``progress`` is called with the numbers of finished jobs and of all jobs and the label of
        the last finished job.
    """
    results = []
    for result in Parallel(n_jobs=n_jobs, return_as="generator")(
        delayed(task)(*job) for job in jobs
    ):
        results.append(result)
        progress(len(results), len(jobs), label(*jobs[len(results) - 1]))
    return results


def run_with_followups(
    task: Task,
    jobs: Sequence[Job],
    *,
    followups: Callable[[Job, Any], Sequence[Job]],
    n_jobs: int,
    progress: Progress,
    label: Callable[..., str],
) -> list[list[Any]]:
    """Run jobs and their follow-ups; return the results of each job.

    A follow-up waits only for its own job. The first result in each list is that of the job.

    Parameters
    ----------
    task : callable
        Module-level function, so that other processes can import it.
    jobs : sequence of tuple
        Arguments of each job, in the order of their start. Several processes start all jobs before
        any follow-up; a single process runs the follow-ups of each job directly after it.
    followups : callable
        Function of a job and its result that returns the arguments of its follow-ups.
    n_jobs : int
        Number of processes.
    progress, label : callable
        ``progress`` is called with the numbers of finished and of known jobs and the label of the
        last finished job.
    """
    if effective_n_jobs(n_jobs) == 1:
        return _run_sequentially(task, jobs, followups, progress, label)
    executor = _create_executor(effective_n_jobs(n_jobs))
    chains = [[executor.submit(task, *job)] for job in jobs]
    waiting = {chain[0]: (chain, job) for chain, job in zip(chains, jobs, strict=True)}
    n_done = 0
    try:
        while waiting:
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                chain, job = waiting.pop(future)
                result = future.result()
                for followup in followups(job, result) if future is chain[0] else ():
                    chain.append(executor.submit(task, *followup))
                    waiting[chain[-1]] = (chain, followup)
                n_done += 1
                progress(n_done, n_done + len(waiting), label(*job))
    finally:  # after an error, the results of running jobs are not needed
        executor.shutdown(kill_workers=bool(waiting))
    return [[future.result() for future in chain] for chain in chains]


def _run_sequentially(
    task: Task,
    jobs: Sequence[Job],
    followups: Callable[[Job, Any], Sequence[Job]],
    progress: Progress,
    label: Callable[..., str],
) -> list[list[Any]]:
    """Run every job and then its follow-ups in this process."""
    chains = []
    n_done, n_known = 0, len(jobs)
    for job in jobs:
        chain = [task(*job)]
        remaining = followups(job, chain[0])
        n_done, n_known = n_done + 1, n_known + len(remaining)
        progress(n_done, n_known, label(*job))
        for followup in remaining:
            chain.append(task(*followup))
            n_done += 1
            progress(n_done, n_known, label(*followup))
        chains.append(chain)
    return chains


def _create_executor(n_processes: int) -> ProcessPoolExecutor:
    """Create a process pool that shares the cores as in :func:`run_each`."""
    n_threads = str(max(1, cpu_count() // n_processes))
    environment = {name: os.environ.get(name, n_threads) for name in THREAD_VARIABLES}
    return ProcessPoolExecutor(max_workers=n_processes, env=environment)
