"""Owns the writing of columns as delimited text (CSV)."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedneighbors.datasets._table import Column, Table

_WHOLE = 2.0**53  # up to here every whole number is a float64


def delimited(columns: Mapping[str, Sequence[Any]]) -> bytes:
    r"""Return columns of equal length as CSV text with a header row, in UTF-8.

    Parameters
    ----------
    columns : mapping of str to sequence
        Cells of each column; None becomes an empty cell.

    Raises
    ------
    ValueError
        If columns differ in length.

    Examples
    --------
    >>> delimited({"name": ["a", None], "size": [1, 2.5]})
    b'name,size\na,1\n,2.5\n'
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue().encode("utf-8")


def table_cells(table: Table) -> dict[str, list[Any]]:
    """Return the cells of a table as a reader of text would want them.

    A column of whole numbers has integers, a missing cell is None.

    Parameters
    ----------
    table : Table
        Numbers and words.

    Examples
    --------
    >>> table_cells(Table({"age": np.array([3.0, np.nan]), "dose": np.array([1.0, 0.5])}, "here"))
    {'age': [3, None], 'dose': [1.0, 0.5]}
    """
    return {name: _cells(column) for name, column in table.columns.items()}


def _cells(column: Column) -> list[Any]:
    if column.dtype == np.object_:
        return list(column)
    numbers = column.astype(np.float64)
    gone = np.isnan(numbers)
    whole = ((np.rint(numbers) == numbers) & (np.abs(numbers) < _WHOLE))[~gone].all()
    kept = [int(value) if whole and value == value else value for value in numbers.tolist()]
    return [None if lost else value for value, lost in zip(kept, gone.tolist(), strict=True)]
