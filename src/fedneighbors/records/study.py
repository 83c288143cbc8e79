"""Named experiments of any method: how one is described, run, timed and turned to a record."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from fedneighbors.records.environment import environment
from fedneighbors.records.schema import Figure, RunRecord, Scalar, Table

__all__ = ["Findings", "Progress", "Study", "Work", "silent"]

Progress = Callable[[int, int, str], None]
"""Called with steps done, steps in all, and what is going on."""


def silent(done: int, total: int, message: str) -> None:
    """Report nothing."""


@dataclass(frozen=True)
class Findings:
    """What an experiment found out.

    Parameters
    ----------
    parameters : mapping
        Settings of the run.
    tables, figures : tuple
        Results and the pictures to draw from them.
    notes : tuple of str
        Sentences for the reader: what was reached, what was left out, and why.
    """

    parameters: Mapping[str, Scalar | list[Scalar]]
    tables: tuple[Table, ...]
    figures: tuple[Figure, ...] = ()
    notes: tuple[str, ...] = field(default=())


Work = Callable[..., Findings]
"""Measures: takes ``quick``, ``seed``, ``n_jobs`` and ``progress``, and ``journal`` if it can."""


@dataclass(frozen=True)
class Study:
    """A named experiment.

    Parameters
    ----------
    name : str
        What a user types, such as ``"flynn.synthetic"``.
    title, description : str
        What a list of experiments shows.
    work : callable
        Does the measuring.
    keeps_journal : bool
        Whether ``work`` takes ``journal``: a file that remembers every measurement as it is made,
        so that an interrupted run goes on where it was.
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
        """Return the record of one run.

        Parameters
        ----------
        quick : bool
            Fewer repetitions and smaller tables.
        seed : int
            Seed of data, splits, folds and hashes.
        n_jobs : int
            Processes; scores do not depend on it.
        progress : callable
            Told what is going on.
        journal : Path, optional
            Measurements that it holds are not made again; those that are made go into it.

        Raises
        ------
        ValueError
            If there is a journal and the experiment keeps none.
        """
        if journal is not None and not self.keeps_journal:
            raise ValueError(f"the experiment {self.name!r} keeps no journal; run it without")
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
