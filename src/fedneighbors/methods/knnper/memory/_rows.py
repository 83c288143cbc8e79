"""Rows in the order in which they came: new ones at the end and old ones off the front, cheaply."""

from collections import deque
from collections.abc import Container, Iterable, Sequence
from itertools import count, islice

import numpy as np

from fedneighbors._typing import Array


def row_names(ids: Iterable[object]) -> list[str]:
    """Return the names of rows as a memory keeps them: as text, so that 11 and "11" are one.

    Parameters
    ----------
    ids : iterable of str or int
        A name for each row.

    Raises
    ------
    TypeError
        If it is a single name, which would be taken apart.
    """
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
        raise TypeError(f"expected a list of names of rows, got {ids!r}; pass a list: [{ids!r}]")
    return [str(name) for name in ids]


def new_names(
    ids: Iterable[object] | None, n_rows: int, held: Container[str], first: int
) -> list[str]:
    """Return names for rows that come, none of which is taken.

    Parameters
    ----------
    ids : iterable of str or int, or None
        Their names. None: numbers, in order, without those that are taken.
    n_rows : int
        Rows that come.
    held : container of str
        Names that are taken.
    first : int
        Where numbers begin.

    Raises
    ------
    ValueError
        If there is not one name for each row, or a name is taken.
    TypeError
        If ``ids`` is a single name.
    """
    if ids is None:
        numbers = map(str, count(first))
        return list(islice((name for name in numbers if name not in held), n_rows))
    names = row_names(ids)
    if len(names) != n_rows:
        raise ValueError(f"expected a name for each of {n_rows} rows, got {len(names)}")
    twice = [name for name in names if name in held] or (
        [] if len(set(names)) == len(names) else ["the same name twice"]
    )
    if twice:
        raise ValueError(f"expected new names, got {twice[0]!r}; forget the row before")
    return names


class RowWindow:
    """Keys, labels and names side by side, in arrays with room behind the last row.

    Rows lie together, oldest first, so that they are seen without a copy. Where the room ends they
    move to arrays half as large again: a row is moved twice or so for each that comes, however many
    there are. What leaves is overwritten.

    Parameters
    ----------
    keys : array of shape (n_rows, width)
        First keys.
    labels : array of shape (n_rows, ...)
        First labels.
    ids : sequence of str
        First names, each once.
    """

    def __init__(self, keys: Array, labels: Array, ids: Sequence[str] = ()) -> None:
        self._keys, self._labels = keys.copy(), labels.copy()
        self._start, self._stop = 0, len(keys)
        self._ids, self._known = deque(ids), set(ids)

    def __len__(self) -> int:
        return self._stop - self._start

    def __contains__(self, name: object) -> bool:
        return name in self._known

    @property
    def keys(self) -> Array:
        """Keys, oldest first; a view."""
        return self._keys[self._start : self._stop]

    @property
    def labels(self) -> Array:
        """Labels, oldest first; a view."""
        return self._labels[self._start : self._stop]

    @property
    def ids(self) -> list[str]:
        """Names, oldest first."""
        return list(self._ids)

    def append(self, keys: Array, labels: Array, ids: Sequence[str]) -> None:
        """Let rows in behind the last.

        Parameters
        ----------
        keys : array of shape (n, width)
            Of the type of those before.
        labels : array of shape (n, ...)
            Where their type holds more than the one before, all labels become of it.
        ids : sequence of str
            New names.
        """
        kind = np.result_type(self._labels, labels) if len(self) else labels.dtype
        if kind != self._labels.dtype:
            self._labels = self._labels.astype(kind)
        if self._stop + len(keys) > len(self._keys):
            self._move(len(self) + len(keys))
        stop = self._stop + len(keys)
        self._keys[self._stop : stop], self._labels[self._stop : stop] = keys, labels
        self._stop = stop
        self._ids.extend(ids)
        self._known.update(ids)

    def drop_first(self, n: int) -> None:
        """Delete the n oldest rows."""
        start = self._start + min(n, len(self))
        self._keys[self._start : start], self._labels[self._start : start] = 0, 0
        for _ in range(start - self._start):
            self._known.discard(self._ids.popleft())
        self._start = start

    def vacate(self, places: Sequence[int]) -> None:
        """Delete the rows at ``places``; the last rows move there, so that no order stays."""
        for place in sorted(places, reverse=True):
            self._stop -= 1
            gone, last = self._start + place, self._stop
            self._keys[gone], self._labels[gone] = self._keys[last], self._labels[last]
            self._keys[last], self._labels[last] = 0, 0
            self._known.discard(self._ids[place])
            self._ids[place] = self._ids[-1]
            self._ids.pop()

    def keep(self, places: Sequence[int]) -> None:
        """Delete all rows but those at ``places``, which are to ascend."""
        chosen = np.asarray(places, np.int64)
        names = self.ids
        ids = [names[place] for place in chosen]
        self._keys, self._labels = self.keys[chosen], self.labels[chosen]
        self._start, self._stop = 0, len(chosen)
        self._ids, self._known = deque(ids), set(ids)

    def _move(self, n_rows: int) -> None:
        """Make room for so many rows, and half as many again."""
        room = n_rows + n_rows // 2
        keys = np.zeros((room, *self._keys.shape[1:]), self._keys.dtype)
        labels = np.zeros((room, *self._labels.shape[1:]), self._labels.dtype)
        keys[: len(self)], labels[: len(self)] = self.keys, self.labels
        self._keys, self._labels = keys, labels
        self._start, self._stop = 0, len(self)
