"""`Table`: named columns of numbers or text, before imputation and encoding."""

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Booleans, Floats, Integers
from fedneighbors.errors import DataError

Column = Floats | npt.NDArray[np.object_]

MAX_LISTED = 10
"""Maximum number of rows or lines in a message."""

DEFAULT_LABEL = "target"
"""Label column of tables whose label is not named."""


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of a source, before imputation and encoding.

    Parameters
    ----------
    columns : mapping of str to array of shape (n_rows,)
        Columns in the order of the source. A numeric column is float64 with NaN for missing cells;
        a nominal column is an object array of str with None for missing cells.
    source : str
        Source of the columns, for messages.

    Raises
    ------
    DataError
        If there are no columns or rows, or columns differ in length.
    """

    columns: Mapping[str, Column]
    source: str

    def __post_init__(self) -> None:
        lengths = {len(column) for column in self.columns.values()}
        if not lengths or lengths == {0}:
            raise DataError(f"{self.source} has no rows; expected a header and data below it")
        if len(lengths) > 1:
            raise DataError(
                f"{self.source} has columns of different lengths {sorted(lengths)}; "
                "every column needs one cell per row"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """Return the column names in the order of the source."""
        return tuple(self.columns)

    @property
    def n_rows(self) -> int:
        """Return the number of rows."""
        return len(next(iter(self.columns.values())))

    def take(self, rows: slice | Integers | Booleans) -> "Table":
        """Return the table of the given rows.

        Parameters
        ----------
        rows : slice, int64 array or bool array
            Positions to keep in this order, or a mask over all rows.

        Returns
        -------
        Table
        """
        keep = np.arange(self.n_rows)[rows]
        return Table({name: column[keep] for name, column in self.columns.items()}, self.source)

    def without(self, names: Iterable[str]) -> "Table":
        """Return the table without the named columns.

        Parameters
        ----------
        names : iterable of str
            Columns to remove; each must exist.

        Returns
        -------
        Table

        Raises
        ------
        DataError
            If a column does not exist, or none remains.
        """
        removed = list(names)
        self.require(removed)
        remaining = {name: column for name, column in self.columns.items() if name not in removed}
        if not remaining:
            raise DataError(f"{self.source} has no columns besides {sorted(removed)}")
        return Table(remaining, self.source)

    def require(self, names: Iterable[str]) -> None:
        """Raise if a column does not exist.

        Parameters
        ----------
        names : iterable of str
            Required columns.

        Raises
        ------
        DataError
            If a column is missing; the message lists the existing ones and similar names.
        """
        check_present(names, self.names, source=self.source, may_be_label=True)

    @classmethod
    def from_frame(cls, frame: Any, *, source: str = "the data frame") -> "Table":
        """Convert a pandas data frame to a table.

        Parameters
        ----------
        frame : pandas.DataFrame
            Booleans and numbers become numeric columns, all others nominal.
        source : str, default="the data frame"
            Name in messages.

        Returns
        -------
        Table

        Raises
        ------
        DataError
            If column names repeat, or there are no rows.
        """
        names = [str(name) for name in frame.columns]
        check_names(names, source=source)
        series = (frame.iloc[:, position] for position in range(len(names)))
        return cls({n: _convert_series(s) for n, s in zip(names, series, strict=True)}, source)


def word_column(cells: Iterable[str | None]) -> npt.NDArray[np.object_]:
    """Return a nominal column of text, with None for missing cells."""
    words = list(cells)
    column = np.empty(len(words), dtype=np.object_)
    column[:] = words
    return column


def missing_cells(column: Column) -> Booleans:
    """Mark the missing cells of a column.

    These are NaN in a numeric column, and None in a nominal one.
    """
    if column.dtype == np.object_:
        return np.array([cell is None for cell in column], dtype=np.bool_)
    return np.isnan(column.astype(np.float64))


def join_names(names: Iterable[str], *, most: int = 30) -> str:
    """Return at most ``most`` names as text for a message.

    Parameters
    ----------
    names : iterable of str
        Names to list.
    most : int, default=30
        Maximum number of listed names.

    Returns
    -------
    str
    """
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(repr(name) for name in listed[:most]) + more


def list_numbers(numbers: Sequence[int]) -> str:
    """Return the first of some numbers as text for a message."""
    shown = ", ".join(map(str, numbers[:MAX_LISTED]))
    rest = len(numbers) - MAX_LISTED
    return f"{shown} and {rest} more" if rest > 0 else shown


def list_others(numbers: Sequence[int], *, unit: str = "row") -> str:
    """Return the end of a message about the first of several faults."""
    return f"; other such {unit}s: {list_numbers(numbers)}" if numbers else ""


def check_present(
    names: Iterable[str], columns: Sequence[str], *, source: str, may_be_label: bool = False
) -> None:
    """Raise if a name is not among the columns; suggest similar ones.

    Parameters
    ----------
    names : iterable of str
        Required names.
    columns : sequence of str
        Columns of the table.
    source : str
        Name of the table in messages.
    may_be_label : bool
        Advise how to name the label column if only the default one is missing.

    Raises
    ------
    DataError
        If a name is missing.
    """
    missing = [name for name in names if name not in columns]
    if missing:
        advice = suggest(missing, columns)
        if not advice and missing == ["smiles"]:
            advice = "; name the column of molecules with --columns, or columns= in Python"
        if may_be_label and not advice and missing == [DEFAULT_LABEL]:
            advice = "; name the label column with --label, or label= in Python"
        raise DataError(
            f"{source} has no column {join_names(missing)}; its columns are {join_names(columns)}"
            + advice
        )


def suggest(missing: Iterable[str], known: Iterable[str]) -> str:
    """Return similar known names as the end of a message.

    Parameters
    ----------
    missing : iterable of str
        Names that are unknown.
    known : iterable of str
        Names that would be right.

    Returns
    -------
    str
        The end of a message; empty if no known name is similar.
    """
    folded = {name.casefold(): name for name in known}
    similar = dict.fromkeys(
        folded[match]
        for name in missing
        for match in difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.7)
    )
    return f"; did you mean {join_names(similar)}?" if similar else ""


def check_names(names: Iterable[str], *, source: str) -> None:
    """Raise if a column name is empty or occurs twice.

    Parameters
    ----------
    names : iterable of str
        Column names in order.
    source : str
        Name of the table in messages.

    Raises
    ------
    DataError
        If a name is empty or repeated.
    """
    ordered = list(names)
    repeated = sorted(name for name, count in Counter(ordered).items() if count > 1)
    if repeated:
        raise DataError(
            f"{source} repeats these column names: {join_names(repeated)}; rename or remove them"
        )
    if "" in ordered:
        raise DataError(
            f"{source} has no name for column {ordered.index('') + 1}; name it or remove it"
        )


def check_finite(table: Table) -> None:
    """Raise if a number is infinite.

    Parameters
    ----------
    table : Table
        Columns as read.

    Raises
    ------
    DataError
        If a number is infinite; the message has its column and data row, counted from 1.
    """
    for name, column in table.columns.items():
        if column.dtype != np.object_ and np.isinf(column.astype(np.float64)).any():
            row = int(np.isinf(column.astype(np.float64)).argmax()) + 1
            raise DataError(
                f"column {name!r} of {table.source} is infinite in data row {row}; "
                "numbers must be finite or missing"
            )


def _convert_series(series: Any) -> Column:
    if series.dtype.kind in "biuf":
        numbers: Floats = series.to_numpy(dtype=np.float64, na_value=np.nan)
        return numbers
    cells = zip(series, series.isna(), strict=True)
    return word_column(None if is_missing else str(cell) for cell, is_missing in cells)
