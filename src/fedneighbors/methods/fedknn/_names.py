"""Names of objects in one field of bytes."""

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from fedneighbors.federation._messages import message


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
        parts = [name.encode() for name in names]
        return cls(b"".join(parts), np.cumsum([len(part) for part in parts], dtype=np.uint32))

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
