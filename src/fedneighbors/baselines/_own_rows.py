"""The rows of one client, by names under which they can be taken back."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Array
from fedneighbors.tabular._ownership import new_names, row_names


@dataclass(frozen=True, eq=False)
class OwnRows:
    """The rows of a client, oldest first.

    Parameters
    ----------
    x : array of shape (n_rows, ...)
        Rows.
    labels : int64 array of shape (n_rows,)
        Positions of their labels among the classes.
    ids : tuple of str
        Their names, each once.
    n_named : int
        The first number that has not been a name yet.
    """

    x: Array
    labels: npt.NDArray[np.int64]
    ids: tuple[str, ...]
    n_named: int

    @classmethod
    def first(
        cls, x: Array, labels: npt.NDArray[np.int64], ids: Iterable[object] | None = None
    ) -> "OwnRows":
        """Return the rows with which a client comes.

        Parameters
        ----------
        x : array of shape (n_rows, ...)
            Rows.
        labels : int64 array of shape (n_rows,)
            Positions of their labels.
        ids : iterable of str or int, optional
            Their names; by default ``"0"``, ``"1"`` and so on.

        Raises
        ------
        ValueError, TypeError
            If ``ids`` are no list of one new name for each row.
        """
        return cls(x[:0], labels[:0], (), 0).with_more(x, labels, ids)

    def __len__(self) -> int:
        return len(self.ids)

    def with_more(
        self, x: Array, labels: npt.NDArray[np.int64], ids: Iterable[object] | None = None
    ) -> "OwnRows":
        """Return these rows and some that come after them.

        Parameters
        ----------
        x, labels, ids
            As :meth:`first` takes them. By default rows are numbered on, without names that are
            taken.

        Raises
        ------
        ValueError, TypeError
            If ``ids`` are no list of one new name for each row.
        """
        names = new_names(ids, len(x), set(self.ids), self.n_named)
        n_named = self.n_named + len(x)
        if ids is None and names:
            n_named = max(n_named, int(names[-1]) + 1)
        return OwnRows(
            np.concatenate([self.x, x]),
            np.concatenate([self.labels, labels]),
            self.ids + tuple(names),
            n_named,
        )

    def without(self, ids: Iterable[object]) -> "OwnRows":
        """Return these rows without some of them.

        Parameters
        ----------
        ids : iterable of str or int
            Names of those that go.

        Raises
        ------
        KeyError
            If a name is not here.
        TypeError
            If it is a single name and no list.
        """
        gone = set(row_names(ids))
        unknown = sorted(gone - set(self.ids))
        if unknown:
            raise KeyError(f"the client has no rows named {unknown[:5]}; it holds {len(self)} rows")
        kept = [place for place, name in enumerate(self.ids) if name not in gone]
        names = tuple(self.ids[place] for place in kept)
        return OwnRows(self.x[kept], self.labels[kept], names, self.n_named)
