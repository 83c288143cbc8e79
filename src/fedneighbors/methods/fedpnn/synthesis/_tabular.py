"""Conversion of a user's rows to a table, and of a synthetic table to the same format."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from sklearn.utils.validation import check_array

from fedneighbors._lazy import optional_module
from fedneighbors._typing import Array
from fedneighbors.datasets._table import Column, Table, word_column

Kind = Literal["table", "frame", "numbers", "objects"]
ColumnKeys = Sequence[str | int]


@dataclass(frozen=True)
class InputFormat:
    """Format of the input rows; synthetic rows are returned in the same format.

    Parameters
    ----------
    kind : {"table", "frame", "numbers", "objects"}
        A :class:`~fedneighbors.datasets.Table`, a pandas data frame, an array of numbers or an
        array of objects.
    coded : tuple of str
        Names of numeric columns that are treated as nominal. Their categories are texts of numbers,
        which :meth:`restore` converts back to numbers.
    """

    kind: Kind
    coded: tuple[str, ...]

    def restore(self, table: Table) -> Any:
        """Convert a table to the input format.

        Parameters
        ----------
        table : Table
            Synthetic rows.

        Returns
        -------
        Table, pandas.DataFrame or array of shape (n_rows, n_columns)
            Numbers as float64; missing cells are NaN in numeric columns, None in nominal ones.

        Raises
        ------
        MissingExtraError
            If the format is a data frame and pandas is not installed.
        """
        columns = {
            name: np.array([np.nan if cell is None else float(cell) for cell in column])
            if name in self.coded
            else column
            for name, column in table.columns.items()
        }
        if self.kind == "table":
            return Table(columns, table.source)
        if self.kind == "frame":
            return optional_module("pandas", "data").DataFrame(columns)
        dtype = np.float64 if self.kind == "numbers" else np.object_
        return np.stack([column.astype(dtype) for column in columns.values()], axis=1)


def as_table(X: Any, categorical: ColumnKeys | None = None) -> tuple[Table, InputFormat]:
    """Convert rows to a table.

    Parameters
    ----------
    X : Table, data frame or array of shape (n_rows, n_columns)
        Rows; missing cells are NaN or None. The columns of an array are named ``x0``, ``x1``...
    categorical : sequence of names or positions, optional
        Numeric columns to treat as nominal; text columns are always nominal.

    Returns
    -------
    table : Table
        The rows.
    input_format : InputFormat
        Format of ``X``.

    Raises
    ------
    ValueError
        If an array ``X`` is empty or not two-dimensional, or a column in ``categorical`` does not
        exist.
    """
    kind: Kind
    if isinstance(X, Table):
        table, kind = X, "table"
    elif hasattr(X, "iloc") and hasattr(X, "columns"):
        table, kind = Table.from_frame(X), "frame"
    else:
        table, kind = _from_array(X)
    nominal = _column_names(categorical or (), table)
    coded = tuple(name for name in nominal if table.columns[name].dtype != np.object_)
    columns = {  # a cell that differs from itself is NaN
        name: word_column(None if cell != cell else repr(cell) for cell in column.tolist())
        if name in coded
        else column
        for name, column in table.columns.items()
    }
    return Table(columns, table.source), InputFormat(kind, coded)


def _from_array(X: Any) -> tuple[Table, Kind]:
    array = check_array(X, dtype=None, ensure_all_finite=False)
    numeric = array.dtype.kind in "biuf"
    columns = {
        f"x{index}": column.astype(np.float64) if numeric else _convert_objects(column)
        for index, column in enumerate(array.T)
    }
    return Table(columns, "the array"), "numbers" if numeric else "objects"


def _convert_objects(cells: Array) -> Column:
    """Convert object cells to numbers if all are numeric, else to text."""
    values = [None if cell is None or cell != cell else cell for cell in cells.tolist()]
    present = [cell for cell in values if cell is not None]
    if all(isinstance(cell, bool | int | float | np.number | np.bool_) for cell in present):
        return np.array([np.nan if cell is None else cell for cell in values], np.float64)
    return word_column(None if cell is None else str(cell) for cell in values)


def _column_names(categorical: ColumnKeys, table: Table) -> tuple[str, ...]:
    names = []
    for name in categorical:
        if isinstance(name, int | np.integer) and not isinstance(name, bool):
            if not 0 <= name < len(table.names):
                raise ValueError(f"there is no column {name}; X has {len(table.names)} columns")
            names.append(table.names[name])
        elif name in table.columns:
            names.append(str(name))
        else:
            raise ValueError(f"there is no column {name!r} among {list(table.names)[:30]}")
    return tuple(names)
