"""Comparison of methods and baselines on a user's rows."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils import check_array

from fedneighbors._typing import Array, Floats, Progress
from fedneighbors.comparison._candidates import CANDIDATES, private_name
from fedneighbors.comparison._schedule import ResultFile, Schedule, Worker, task_settings
from fedneighbors.comparison._scores import primary_metric
from fedneighbors.comparison._summary import Summary
from fedneighbors.comparison._table import PartyRows, Task, convert_targets
from fedneighbors.datasets._dataset import Dataset
from fedneighbors.datasets._party_files import note_equal_rows
from fedneighbors.datasets._table import join_names
from fedneighbors.errors import DataError
from fedneighbors.records import RunRecord, environment
from fedneighbors.tabular._ownership import (
    check_labels,
    check_numbers,
    plain_targets,
    rows_by_party,
)

_MIN_ROWS = 20  # a test quarter of 5


@dataclass(frozen=True)
class Comparison:
    """Result of :func:`fedneighbors.compare`.

    Parameters
    ----------
    recommended : str
        Name of the recommended method.
    reason : str
        The recommendation and its reason, in one sentence.
    record : RunRecord
        Tables of scores, parties and disclosures, figures and notes, such as one about two parties
        with equal rows.
    recommended_private : str
        Name of the method with the best score under a privacy budget; empty if none was trained.
    """

    recommended: str
    reason: str
    record: RunRecord
    recommended_private: str = ""

    def __str__(self) -> str:
        return self.reason


def compare(
    X: Any,
    y: Any,
    *,
    parties: Sequence[Any] | Array,
    task: Task = "classification",
    minutes: float = 10.0,
    candidates: Sequence[str] | None = None,
    seed: int = 0,
    path: str | Path | None = None,
    progress: Progress = lambda *_: None,
) -> Comparison:
    """Compare methods on the rows of all parties and recommend one.

    Each candidate is trained on three quarters of every party's rows and scored on the others, in
    up to ten random splits; after three, only candidates that may be the best. All choices within a
    method are made on training rows. The candidate with the best mean score is recommended:
    ROC-AUC for two classes, accuracy for more, R² for regression. Training alone may be
    recommended, pooling the rows never. FlyNN, FedPNN and kNN-Per are also trained under a privacy
    budget, to show its cost. The comparison itself is not private.

    Parameters
    ----------
    X : array-like of shape (n_rows, n_features)
        Numbers; missing cells are NaN. A method that needs complete rows gets medians of training
        rows.
    y : array-like of shape (n_rows,)
        Labels, or numbers for regression.
    parties : sequence of shape (n_rows,)
        Party of each row; at least two parties.
    task : {"classification", "regression"}
        Kind of the targets.
    minutes : float
        Time budget, without the compilation of kernels at their first use. The number of splits is
        reduced first, then candidates are dropped; the notes of the record say so. A candidate that
        takes too long is stopped.
    candidates : sequence of str, optional
        Names of the methods, which include their private variants; by default all that fit the
        task.
    seed : int
        Seed of splits and models.
    path : path, optional
        File of finished results. A comparison of the same rows and settings resumes from it.
    progress : callable
        Called with the finished trainings, their expected number, and the current step.

    Returns
    -------
    Comparison
        The recommendation, and a record with the tables ``scores``, ``parties``, ``disclosures``
        and, if a method has no scores, ``failures``.

    Raises
    ------
    ValueError
        If shapes do not match, there are fewer than 20 rows, two parties or two classes, a target
        is missing, or a candidate is unknown.
    DataError
        If ``path`` has results of other rows or settings, or no candidate has scores.

    Examples
    --------
    >>> from fedneighbors import compare
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> result = compare(X, y, parties=["a", "b", "c"] * 50, minutes=1,
    ...                  candidates=["alone", "averaged linear models"])
    >>> result.reason.startswith("Recommended: ")
    True
    """
    started = datetime.now(UTC)
    rows, party_names, n_classes = _encode(X, y, parties, task)
    chosen = _choose_candidates(candidates, task)
    settings = task_settings(task, n_classes, seed)
    metric = primary_metric(task, n_classes)
    names = tuple(candidate.name for candidate in chosen)
    digest = hashlib.sha256(f"{rows.digest()} {settings} {names} losses".encode()).hexdigest()
    file = ResultFile(None if path is None else Path(path), digest)
    kept = frozenset(one.name for one in chosen if one.kind in ("alone", "pooled"))
    dropped_first = frozenset(one.name for one in chosen if one.kind == "private")
    with Worker(rows, 60 * minutes) as worker:
        schedule = Schedule(names, kept, dropped_first, settings, metric, worker, file, progress)
        schedule.run()
    summary = Summary(
        chosen,
        schedule.file.results,
        task,
        metric,
        party_names,
        np.bincount(rows.parties).tolist(),
    )
    _check_scores(summary)
    record = RunRecord(
        name="compare",
        parameters={"task": task, "minutes": minutes, "seed": seed, "n_parties": len(party_names)},
        rounds=(),
        tables=summary.tables(),
        figures=summary.figures(),
        notes=(
            summary.sentence,
            summary.next_step,
            *_note_equal_rows(rows, party_names),
            *schedule.notes,
            *_note_compilation(worker.compilation_s),
        ),
        started=started.isoformat(timespec="seconds"),
        seconds=(datetime.now(UTC) - started).total_seconds(),
        environment=environment(),
    )
    name, private = summary.recommended.name, summary.recommended_private
    return Comparison(name, summary.sentence, record, private)


def _encode(
    X: Any, y: Any, parties: Sequence[Any] | Array, task: Task
) -> tuple[PartyRows, list[str], int]:
    """Return rows with codes, party names, and the number of classes."""
    if task not in ("classification", "regression"):
        raise ValueError(f"expected the task classification or regression, got {task!r}")
    try:
        x: Floats = check_array(X, dtype=np.float64, ensure_2d=False, ensure_all_finite=False)
    except (ValueError, TypeError):
        check_numbers(X)
        raise
    targets = np.asarray(plain_targets(y, parties))
    if x.ndim != 2 or targets.shape != (len(x),):
        raise ValueError(
            f"expected X of shape (n_rows, n_features) and y of shape (n_rows,), got {x.shape} and "
            f"{targets.shape}"
        )
    if len(x) < _MIN_ROWS:
        raise ValueError(f"expected at least {_MIN_ROWS} rows, got {len(x)}")
    if np.isinf(x).any():
        raise ValueError("X has infinite cells; replace them, or mark them as missing by NaN")
    owned = rows_by_party(parties, len(x))
    if len(owned) < 2:
        raise ValueError("expected rows of at least two parties; name the party of each row")
    codes = np.zeros(len(x), np.int64)
    for code, rows in enumerate(owned.values()):
        codes[rows] = code
    if task == "regression":
        return PartyRows(x, convert_targets(targets), codes), list(owned), 0
    check_labels(targets)
    classes, inverse = np.unique(targets, return_inverse=True)
    if len(classes) < 2:
        raise ValueError("expected at least two classes, got one")
    return PartyRows(x, np.asarray(inverse, np.int64), codes), list(owned), len(classes)


def _check_scores(summary: Summary) -> None:
    """Raise if no method has a score, with the reason of each."""
    if not summary.ranking:
        reasons = "; ".join(
            f"{name}: {result.get('failure', f'no {summary.metric}')}"
            for (name, repeat), result in summary.results.items()
            if repeat == 0
        )
        raise DataError(f"no method has a score, allow more minutes or check the data: {reasons}")


def _note_compilation(seconds: float) -> tuple[str, ...]:
    """Return a sentence about the time of compilation, if it is noticeable."""
    if seconds < 1:
        return ()
    return (f"Kernels were compiled for {seconds:.0f} s, once; the minutes do not include it.",)


def _note_equal_rows(rows: PartyRows, party_names: Sequence[str]) -> tuple[str, ...]:
    """Return a sentence about two parties with equal rows, if any."""
    columns, owners = tuple(map(str, range(rows.x.shape[1]))), np.array(party_names)[rows.parties]
    return note_equal_rows(Dataset("rows", rows.x, rows.y, columns, "rows", parties=owners))


def _choose_candidates(names: Sequence[str] | None, task: Task) -> list[Any]:
    able = [candidate for candidate in CANDIDATES if task in candidate.fits]
    if names is None:
        return able
    known = {candidate.name: candidate for candidate in able}
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise ValueError(
            f"expected candidates among {join_names(known)}; got {join_names(unknown) or 'none'}"
        )
    wanted = {*names, *map(private_name, names)}
    return [candidate for candidate in able if candidate.name in wanted]
