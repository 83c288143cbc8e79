"""A file of what was measured, one measurement on a line, so that none is made twice."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fedneighbors.errors import RecordError
from fedneighbors.records import Scalar

Outcome = TypeVar("Outcome")


def mend(journal: Path | None) -> None:
    """Make the file ready for lines: there, and without the torn one of an interrupted run."""
    if journal is None:
        return
    journal.parent.mkdir(parents=True, exist_ok=True)
    journal.touch()
    whole = journal.read_bytes()
    end = whole.rfind(b"\n") + 1
    if end < len(whole):
        os.truncate(journal, end)


def recalled(
    journal: Path | None,
    job: Sequence[Scalar],
    *,
    measure: Callable[[], Outcome],
    encode: Callable[[Outcome], Any],
    decode: Callable[[Any], Outcome],
) -> Outcome:
    """Return what the journal holds of a job; else measure it, and write it down.

    Parameters
    ----------
    journal : Path or None
        The file; None remembers nothing.
    job : sequence of scalars
        What tells one measurement from another.
    measure : callable
        Makes it.
    encode, decode : callable
        To what JSON can hold, and back.

    Raises
    ------
    RecordError
        If a line of the file is no measurement.
    """
    if journal is None:
        return measure()
    for number, line in enumerate(_whole_lines(journal), start=1):
        try:
            entry = json.loads(line)
            if entry["job"] == list(job):
                return decode(entry["outcome"])
        except (ValueError, KeyError, TypeError) as error:
            raise RecordError(
                f"{journal}, line {number}: expected a measurement of an experiment; remove the "
                "line, or begin a new journal"
            ) from error
    outcome = measure()
    entry = {"job": list(job), "outcome": encode(outcome)}
    with journal.open("ab", buffering=0) as file:  # processes may write side by side
        file.write(json.dumps(entry).encode() + b"\n")
    return outcome


def _whole_lines(journal: Path) -> list[bytes]:
    if not journal.exists():
        return []
    whole, _, _torn = journal.read_bytes().rpartition(b"\n")  # another may be writing
    return whole.splitlines()
