"""Cells outside of a schema: counted in rows, refused in queries."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from fedneighbors._typing import Booleans
from fedneighbors.datasets._schema_columns import (
    CategoricalColumn,
    Cells,
    Column,
    SetColumn,
    cell_text,
)
from fedneighbors.datasets._table import join_names
from fedneighbors.errors import DataError

_JOINED = re.compile("[;,|]")  # separators of codes in other programs
_MAX_EXAMPLE = 60  # characters


@dataclass(frozen=True)
class CellFaults:
    """Cells of a column that are not empty, but outside of the schema.

    Parameters
    ----------
    n_invalid : int
        Number of cells that count as missing.
    n_joined : int
        Number of texts whose codes have a separator other than spaces.
    n_garbled : int
        Number of invalid texts with bytes of another encoding than the file's.
    example : str
        First such cell or clipped number, for the owner of the rows alone; empty for none.
    """

    n_invalid: int = 0
    n_joined: int = 0
    n_garbled: int = 0
    example: str = ""


def find_faults(
    column: Column,
    cells: Cells,
    *,
    missing: Booleans,
    clipped: Booleans,
) -> CellFaults:
    """Return the faults of a column's cells.

    Parameters
    ----------
    column : Column
        The column.
    cells : sequence of length n_rows
        Its cells.
    missing, clipped : bool arrays of shape (n_rows,)
        Masks that it returned.
    """
    is_numeric = isinstance(cells, np.ndarray) and cells.dtype.kind in "biuf"  # NaN is no fault
    # not a list, which takes four times the memory
    places = np.flatnonzero(missing)[: 0 if is_numeric else None]
    n_garbled = sum("\ufffd" in str(cells[i]) for i in places)
    first_invalid, n_invalid = _count(i for i in places if cell_text(cells[i]) is not None)
    sets = cells if isinstance(column, SetColumn) else ()
    first_joined, n_joined = _count(i for i, cell in enumerate(sets) if _is_joined(cell))
    rows = [*first_invalid, *first_joined, *np.flatnonzero(clipped)[:1].tolist()]
    example = str(cell_text(cells[rows[0]]))[:_MAX_EXAMPLE] if rows else ""
    return CellFaults(n_invalid, n_joined, n_garbled, example)


def _count(rows: Iterator[int]) -> tuple[list[int], int]:
    """Return the first of some rows, if any, and their number."""
    first = list(islice(rows, 1))
    return first, len(first) + sum(1 for _ in rows)


def _is_joined(cell: Any) -> bool:
    """Return whether a text of codes has another separator than spaces."""
    is_text = isinstance(cell, str) and cell.lstrip()[:1] != "["
    return is_text and _JOINED.search(cell) is not None


def note_cells(
    column: Column, n_missing: int, n_clipped: int, faults: CellFaults, *, is_row: bool
) -> list[str]:
    """Return sentences about cells that are missing, clipped or joined, without values.

    In a row, cells that the schema keeps missing stay so; otherwise, they get features of 0.
    """
    name, notes = f"column {column.name!r}", []
    if column.missing != "keep":
        rule = "drop their rows" if column.missing == "drop" else f"become {column.missing}"
        if n_missing:
            notes.append(f"{name}: {n_missing} cells are missing or invalid and {rule}")
        if faults.n_invalid:
            notes.append(f"{name}: {faults.n_invalid} of these are not empty, but {_deny(column)}")
    elif is_row and faults.n_invalid:
        notes.append(f"{name}: {faults.n_invalid} cells are {_deny(column)} and stay missing")
    elif not is_row and n_missing and isinstance(column, CategoricalColumn):
        default = repr(column.categories[0]) if len(column.categories) == 2 else "no category"
        notes.append(f"{name}: {n_missing} cells are {_deny(column)} and count as {default}")
    elif faults.n_invalid:
        notes.append(
            f"{name}: {faults.n_invalid} cells are {_deny(column)} and count as missing; if they "
            "have decimal commas, state it (--decimal ,)"
        )
    if faults.n_garbled:
        notes.append(
            f"{name}: {faults.n_garbled} cells are text of another encoding; state it "
            "(--encoding), often cp1252"
        )
    if n_clipped:
        notes.append(f"{name}: {n_clipped} cells are clipped to its range")
    if faults.n_joined:
        notes.append(
            f"{name}: {faults.n_joined} texts have a comma, semicolon or bar within a code; codes "
            "are separated by spaces"
        )
    return notes


def _deny(column: Column) -> str:
    if isinstance(column, CategoricalColumn):
        return f"none of {join_names(column.categories, most=10)}"
    return "no numbers"


def check_row(columns: Sequence[Column], row: Any) -> None:
    """Raise unless the cells of a query are empty or allowed.

    Of a query, nothing is clipped or left out silently.

    Parameters
    ----------
    columns : sequence of Column
        Columns of the schema.
    row : object
        The query.

    Raises
    ------
    DataError
        If it is no mapping, has another column, or a cell is outside of the schema. The error names
        what is allowed, but not the cell.
    """
    names = [column.name for column in columns]
    if not isinstance(row, Mapping):
        raise DataError(f"expected a mapping of the columns {join_names(names)} to cells")
    if unknown := [name for name in row if name not in names]:
        raise DataError(f"expected the columns {join_names(names)}, got {join_names(unknown)}")
    for column in columns:
        _check_cell(column, row.get(column.name))


def _check_cell(column: Column, cell: Any) -> None:
    if isinstance(column, SetColumn) and _is_joined(cell):
        raise DataError(f"column {column.name!r}: expected a list of codes, or spaces between them")
    if isinstance(column, SetColumn):
        elements = cell if isinstance(cell, list | tuple | set | frozenset) else ()
        if any(isinstance(one, bool) for one in elements):
            raise DataError(f"column {column.name!r}: expected texts and whole numbers as codes")
        return
    if cell_text(cell) is None:
        return
    _, missing, clipped = column.encode([cell])
    is_flag = isinstance(cell, bool) and not isinstance(column, CategoricalColumn)
    if missing[0] or clipped[0] or is_flag:
        allowed = (
            f"one of {join_names(column.categories)}"
            if isinstance(column, CategoricalColumn)
            else f"a number from {column.low:g} to {column.high:g}"
        )
        raise DataError(f"column {column.name!r}: expected {allowed}, or an empty cell")
