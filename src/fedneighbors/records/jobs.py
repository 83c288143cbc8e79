"""Many measurements in several processes: independent ones, and ones that follow from others."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from typing import Any

from joblib import Parallel, cpu_count, delayed, effective_n_jobs
from joblib.externals.loky import ProcessPoolExecutor

from fedneighbors.records.study import Progress

__all__ = ["run_each", "run_with_sequels"]

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
        A function of a module, so that other processes find it.
    jobs : sequence of tuple
        Arguments.
    n_jobs : int
        Processes.
    progress, label : callable
        Told how many are done, and the name of the job that was.
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
    """Return for every job its result and those of its sequels, which wait for no other job.

    Parameters
    ----------
    task : callable
        A function of a module, so that other processes find it.
    jobs : sequence of tuple
        Arguments; they begin in this order. Several processes begin all of them before any sequel,
        a single one does each job's sequels after it.
    sequels : callable
        Takes a job and its result; returns the arguments of the jobs that follow from it.
    n_jobs : int
        Processes.
    progress, label : callable
        Told how many are done of those that are known, and the name of the job that was.
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
    finally:  # whoever is still at work when one job has gone wrong works for nothing
        executor.shutdown(kill_workers=bool(waiting))
    return [[future.result() for future in chain] for chain in chains]


def _in_turn(
    task: Task,
    jobs: Sequence[Job],
    sequels: Callable[[Job, Any], Sequence[Job]],
    progress: Progress,
    label: Callable[..., str],
) -> list[list[Any]]:
    """Do every job, and its sequels after it, in this process."""
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
    """Return processes that share the cores, as those of :func:`run_each` do."""
    n_threads = str(max(1, cpu_count() // n_processes))
    environment = {name: os.environ.get(name, n_threads) for name in THREADS}
    return ProcessPoolExecutor(max_workers=n_processes, env=environment)
