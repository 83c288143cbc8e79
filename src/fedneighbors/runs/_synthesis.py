"""Run of the synthesizer on a user's table, compared with the real rows."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Integers, Progress
from fedneighbors.datasets._table import Column, Table
from fedneighbors.errors import DataError
from fedneighbors.methods.fedpnn.synthesis._report import quality_record
from fedneighbors.methods.fedpnn.synthesis._synthesizer import TabularSynthesizer
from fedneighbors.records import RunRecord
from fedneighbors.runs._figures import split_rows

Rows = Integers


@dataclass(frozen=True, eq=False)
class Synthesis:
    """Result of a synthesis.

    Parameters
    ----------
    synthesizer : TabularSynthesizer
        Trained synthesizer.
    table : Table
        Synthetic rows, with labels in the last column.
    record : RunRecord
        Quality of the rows.
    """

    synthesizer: TabularSynthesizer
    table: Table
    record: RunRecord


def synthesize(
    table: Table,
    label: str | None,
    *,
    n_rows: int | None = None,
    test_size: float = 0.25,
    seed: int = 0,
    parameters: Mapping[str, Any] | None = None,
    progress: Progress,
) -> Synthesis:
    """Train on a table, sample rows, and measure their quality.

    Parameters
    ----------
    table : Table
        Numbers, text and missing cells.
    label : str or None
        Label column; None trains one generator for all rows.
    n_rows : int, optional
        Number of rows to sample; by default as many as the table has.
    test_size : float
        Fraction of the rows to hold out from training, in [0, 1), for comparison.
    seed : int
        Seed of all random draws.
    parameters : mapping, optional
        Other arguments of :class:`TabularSynthesizer`.
    progress : callable
        Called with the number of epochs done, their total number, and the current step.

    Raises
    ------
    MissingExtraError
        If PyTorch is not installed.
    DataError
        If labels are missing, or a class or the table has too few rows.
    """
    started, clock = datetime.now(UTC), time.perf_counter()
    labels = None if label is None else _read_labels(table, label)
    features = table if label is None else table.without([label])
    rows, held_out = _split(labels, table.n_rows, test_size, seed)
    real = _take_rows(features, labels, rows)
    synthesizer = TabularSynthesizer(**(parameters or {}), random_state=seed)
    synthesizer.fit(*real, progress=progress)
    synthetic = _sample(synthesizer, n_rows or table.n_rows, seed)
    progress(1, 1, "comparing with the real rows")
    record = quality_record(
        real,
        synthetic,
        test=_take_rows(features, labels, held_out) if len(held_out) else None,
        parameters=_list_settings(synthesizer, label, seed),
        random_state=seed,
    )
    return Synthesis(
        synthesizer,
        _append_labels(*synthetic, label),
        replace(
            record,
            started=started.isoformat(timespec="seconds"),
            seconds=time.perf_counter() - clock,
        ),
    )


def sample_rows(synthesizer: TabularSynthesizer, label: str, *, n_rows: int, seed: int) -> Table:
    """Sample rows of a trained synthesizer, with labels in the last column.

    Parameters
    ----------
    synthesizer : TabularSynthesizer
        Fitted to a Table.
    label : str
        Name of the label column, if the synthesizer was fitted with labels.
    n_rows : int
        Number of rows.
    seed : int
        Seed of the rows.

    Raises
    ------
    ValueError
        If a column has the name of the label column.
    """
    x, y = _sample(synthesizer, n_rows, seed)
    if y is not None and label in x.columns:
        raise ValueError(f"the model already has a column {label!r}; give the labels another name")
    return _append_labels(x, y, label)


def _sample(synthesizer: TabularSynthesizer, n_rows: int, seed: int) -> tuple[Table, Any]:
    rows = synthesizer.sample(n_rows, random_state=seed)
    return rows if isinstance(rows, tuple) else (rows, None)


def _append_labels(x: Table, y: Any, label: str | None) -> Table:
    if y is None or label is None:
        return x
    column: Column = np.array(y.tolist(), np.object_)
    return Table({**x.columns, label: column}, x.source)


def _read_labels(table: Table, label: str) -> npt.NDArray[np.str_]:
    table.require([label])
    cells = table.columns[label].tolist()
    n_missing = sum(cell is None or cell != cell for cell in cells)
    if n_missing:
        raise DataError(
            f"column {label!r} of {table.source} is missing in {n_missing} rows; fill or drop them"
        )
    return np.array(cells, np.str_)


def _split(labels: Any, n_rows: int, test_size: float, seed: int) -> tuple[Rows, Rows]:
    """Return training and test rows, stratified by class."""
    all_rows = np.arange(n_rows)
    if test_size == 0:
        return all_rows, all_rows[:0]
    training, test = split_rows(np.zeros(n_rows) if labels is None else labels, test_size, seed)
    return np.sort(training), np.sort(test)


def _take_rows(features: Table, labels: Any, rows: Rows) -> tuple[Table, Any]:
    return features.take(rows), None if labels is None else labels[rows]


def _list_settings(synthesizer: TabularSynthesizer, label: str | None, seed: int) -> dict[str, Any]:
    """Return the settings that the report shows."""
    names = ("noise", "per_class", "epochs", "batch_size", "pac", "learning_rate", "min_count")
    return {
        "label": label or "none",
        **{name: getattr(synthesizer, name) for name in names},
        "seed": seed,
    }
