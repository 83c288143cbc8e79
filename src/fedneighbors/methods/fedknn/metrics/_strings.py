"""Edit distance: how many letters to insert, delete or replace to turn one string into another."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors.methods.fedknn.metrics._strings_session import StringSession
from fedneighbors.methods.fedknn.metrics._strings_table import StringTable, lay_out


class EditMetric:
    """Levenshtein distance of Unicode strings.

    A letter is a code point: composed and decomposed forms of one character differ, so normalize
    strings beforehand if they may come in both (``unicodedata.normalize``). The bounds of strings
    of 256 letters or fewer are their distances.

    Examples
    --------
    >>> import numpy as np
    >>> metric = EditMetric()
    >>> session = metric.index(["kitten", "mitten", "sitting"], ranks=np.arange(3)).open("sitten")
    >>> found = session.next(2)
    >>> found.positions.tolist(), found.distances.tolist()
    ([0, 1], [1.0, 1.0])
    >>> session.next(2).distances.tolist()
    [2.0]
    """

    name = "edit"
    step = 1.0  # distances are whole numbers

    def distance(self, first: Any, second: Any) -> float:
        """Return the distance of two strings.

        Raises
        ------
        TypeError
            If one of them is not a string.
        """
        index = self.index([first], ranks=np.zeros(1, np.int64))
        return float(index.open(second).next(1).distances[0])

    def index(self, objects: Sequence[Any], *, ranks: npt.NDArray[np.int64]) -> "StringIndex":
        """Return an index of strings.

        Raises
        ------
        TypeError
            If an object is not a string; its position is named.
        """
        table = lay_out(objects)
        return StringIndex(table, np.asarray(ranks, np.int64)[table.order])


class StringIndex:
    """Strings of one party, ready for queries.

    Parameters
    ----------
    table : StringTable
        The strings.
    ranks : int64 array of shape (n_strings,)
        Order of strings of equal distance, in the order of the table.
    """

    def __init__(self, table: StringTable, ranks: npt.NDArray[np.int64]) -> None:
        self.n_objects = len(table.order)
        self._table = table
        self._ranks = ranks

    def open(self, query: Any) -> StringSession:
        """Begin a search.

        Raises
        ------
        TypeError
            If the query is not a string.
        """
        if not isinstance(query, str):
            raise TypeError(f"expected a string as the query, got {type(query).__name__}")
        return StringSession(self._table, self._ranks, query)
