"""Some rows of a table of numbers, which several indexes share without copies."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Integers

ROWS_PER_STEP = 4096
"""Number of rows that are converted at once, which limits the memory for it."""


class TableRows:
    """Rows of a table by their positions; an index or a slice returns them as an array.

    Pickling copies the rows, without the rest of the table.

    Parameters
    ----------
    table : array of shape (n_table_rows, n_columns), C order
        The table, which must not be changed.
    positions : int64 array of shape (n_rows,), optional
        Position of each row in the table; by default the rows are those of the table.
    """

    def __init__(self, table: npt.NDArray[Any], positions: Integers | None = None) -> None:
        if positions is not None and np.array_equal(positions, np.arange(len(table))):
            positions = None
        self.table, self.positions = table, positions
        self.shape = (len(table) if positions is None else len(positions), table.shape[1])
        self.dtype = table.dtype

    @classmethod
    def of(cls, rows: "npt.NDArray[Any] | TableRows") -> "TableRows":
        """Return rows of a table, all of an array."""
        return rows if isinstance(rows, TableRows) else cls(rows)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, selected: Any) -> npt.NDArray[Any]:
        return np.asarray(self.table[self.locate(selected)])

    def __reduce__(self) -> tuple[type["TableRows"], tuple[npt.NDArray[Any]]]:
        return TableRows, (self[:],)

    def locate(self, selected: Any) -> Any:
        """Return the positions in the table of selected rows."""
        return selected if self.positions is None else self.positions[selected]

    def select(self, selected: Integers) -> "TableRows":
        """Return selected rows, without a copy."""
        return TableRows(self.table, self.locate(selected))

    def blocks(self) -> Iterator[npt.NDArray[Any]]:
        """Yield arrays of adjacent rows, each of a limited size."""
        for first in range(0, len(self), ROWS_PER_STEP):
            yield self[first : first + ROWS_PER_STEP]
