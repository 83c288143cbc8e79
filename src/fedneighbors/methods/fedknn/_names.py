"""Names of objects: in one field of bytes, and by party."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Array, Integers
from fedneighbors.federation._messages import message
from fedneighbors.tabular._ownership import rows_by_party


@message
class Names:
    """Names of objects: their UTF-8 bytes without separators, and the position after each.

    A tuple of strings is six times slower to decode. Few names of a reply are in an answer, and
    only these become strings.
    """

    content: bytes
    ends: npt.NDArray[np.uint32]

    def __post_init__(self) -> None:
        ends, n_bytes = self.ends, len(self.content)
        last = int(ends[-1]) if ends.ndim == 1 and len(ends) else 0
        if ends.ndim != 1 or last != n_bytes or np.count_nonzero(ends[1:] < ends[:-1]):
            raise ValueError(f"the ends of names are no ascending positions up to {n_bytes}")
        if self.content.isascii():
            return
        self.content.decode()
        inside = ends[ends < n_bytes]
        first_bytes = np.frombuffer(self.content, np.uint8)[inside]
        if (first_bytes & 0xC0 == 0x80).any():  # a continuation byte
            raise ValueError("a name ends within a character")

    @classmethod
    def pack(cls, names: Iterable[str]) -> "Names":
        """Return names as one field."""
        text = "".join(names := list(names))
        parts = names if text.isascii() else [name.encode() for name in names]
        return cls(text.encode(), np.array([*accumulate(map(len, parts))], np.uint32))

    def __len__(self) -> int:
        return len(self.ends)

    def __iter__(self) -> Iterator[str]:
        return iter(self.first(len(self)))

    def __add__(self, more: "Names") -> "Names":
        ends = np.concatenate([self.ends, more.ends + np.uint32(len(self.content))])
        return Names(self.content + more.content, ends)

    def first(self, n: int) -> list[str]:
        """Return the first ``n`` names."""
        ends = self.ends[:n].tolist()
        starts = [0, *ends]
        content = self.content[: starts[-1]]
        if content.isascii():
            text = content.decode()
            return [text[a:b] for a, b in zip(starts, ends, strict=False)]
        return [content[a:b].decode() for a, b in zip(starts, ends, strict=False)]

    def are_unique(self) -> bool:
        """Return whether no two names are equal."""
        content, ends = self.content, self.ends.tolist()
        return len({content[a:b] for a, b in zip([0, *ends], ends, strict=False)}) == len(ends)


def group_by_party(
    n_objects: int,
    *,
    parties: Sequence[Any] | Array | None,
    ids: Sequence[Any] | None,
) -> tuple[dict[str, Integers], list[Any]]:
    """Group the objects by party, and name them.

    Parameters
    ----------
    n_objects : int
        Number of objects of the whole federation.
    parties : sequence of shape (n_objects,), optional
        Party of each object. None assigns all objects to one party.
    ids : sequence of shape (n_objects,), optional
        Unique names; by default positions.

    Returns
    -------
    rows_of : dict of str to int64 array
        Positions of each party's objects, ascending; one party without objects if there are none.
    names : list
        Name of each object.

    Raises
    ------
    ValueError
        If there is not one party and one unique name for each object.

    Examples
    --------
    >>> rows_of, names = group_by_party(3, parties=["b", "a", "b"], ids=None)
    >>> rows_of["b"].tolist(), names
    ([0, 2], [0, 1, 2])
    """
    owners = list(parties) if isinstance(parties, str) else parties
    if owners is not None and len(owners) != n_objects:
        raise ValueError(f"expected one party for each of {n_objects} objects, got {len(owners)}")
    rows_of = rows_by_party(owners, n_objects)
    names = list(range(n_objects)) if ids is None else list(ids)
    if len(names) != n_objects or len(set(map(str, names))) < n_objects:
        raise ValueError(f"expected ids with a unique name for each of {n_objects} objects")
    everything = np.arange(n_objects)
    return {name: everything[rows] for name, rows in rows_of.items()} or {"all": everything}, names
