"""A file of the searches that were measured, one on a line, so that none is measured twice."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.fedknn.trials import Trial
from fedneighbors.errors import RecordError

if TYPE_CHECKING:
    from experiments.fedknn.measuring import Task


class Journal:
    """Searches that were measured with one seed.

    Parameters
    ----------
    path : Path or None
        The file, which need not be there yet. None remembers nothing.
    seed : int
        Of splits and queries.
    """

    def __init__(self, path: Path | None, seed: int) -> None:
        self._path = path
        self._seed = seed

    def mend(self) -> None:
        """Make the file ready for lines: there, and without the torn one of an interrupted run."""
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.touch()
        whole = self._path.read_bytes()
        end = whole.rfind(b"\n") + 1
        if end < len(whole):
            os.truncate(self._path, end)

    def of_query(self, task: "Task", row: int, n_objects: int) -> dict[tuple[int, str], Trial]:
        """Return the trials of a query that a task wants, by neighbors and algorithm.

        Raises
        ------
        RecordError
            If a line of the file is no trial.
        """
        wanted = (task.collection, task.place.split, n_objects, task.place.n_parties, row)
        return {
            (trial.k, trial.algorithm): trial
            for trial in self._trials()
            if trial.k in task.ks
            and trial.algorithm in task.algorithms
            and trial.limit_s == task.limit_s
            and wanted
            == (trial.collection, trial.split, trial.n_objects, trial.n_parties, trial.query)
        }

    def add(self, trial: Trial) -> None:
        """Write a trial down, as a line of its own."""
        if self._path is None:
            return
        line = json.dumps({"seed": self._seed, "trial": json.loads(trial.to_bytes())}) + "\n"
        with self._path.open("ab", buffering=0) as file:  # processes may write side by side
            file.write(line.encode())

    def _trials(self) -> list[Trial]:
        if self._path is None or not self._path.exists():
            return []
        found = []
        whole, _, _torn = self._path.read_bytes().rpartition(b"\n")  # another may be writing
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                entry = json.loads(line)
                seed, trial = entry["seed"], Trial(**entry["trial"])
            except (ValueError, KeyError, TypeError) as error:
                raise RecordError(
                    f"{self._path}, line {number}: expected a trial of an experiment; remove the "
                    "line, or begin a new journal"
                ) from error
            if seed == self._seed:
                found.append(trial)
        return found
