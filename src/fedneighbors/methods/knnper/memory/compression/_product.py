"""Product quantization: each stretch of a key is replaced by the number of an entry in a book."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats, Integers
from fedneighbors.methods.knnper.memory._search import Neighbors
from fedneighbors.methods.knnper.memory.compression._centers import clustered
from fedneighbors.methods.knnper.memory.compression._codes import Bytes, refuse_table, refuse_wide

Bits = Literal[4, 8]

_BLOCK = 1 << 21
"""Most distances that are held at once: 16 MiB."""


@dataclass(frozen=True, eq=False)
class Codebook:
    """Entries for each stretch of a key.

    Parameters
    ----------
    entries : float32 array of shape (n_stretches, n_entries, width)
        Stretches lie side by side; the last may reach beyond the key, with zeros. A stretch with
        fewer entries than others repeats its last.
    n_dimensions : int
        Cells of a key.
    """

    entries: npt.NDArray[np.float32]
    n_dimensions: int

    def __post_init__(self) -> None:
        shape = self.entries.shape
        if self.entries.dtype != np.float32 or len(shape) != 3 or not self.entries.size:
            raise ValueError(f"expected three axes of 32-bit entries, got shape {shape}")
        if self.n_dimensions < 1 or -(-self.n_dimensions // shape[2]) != shape[0]:
            raise ValueError(
                f"expected stretches that make up a key of {self.n_dimensions} cells, got "
                f"{shape[0]} of {shape[2]}"
            )
        if not np.isfinite(self.entries).all():
            raise ValueError("an entry of the book is not finite")

    @property
    def nbytes(self) -> int:
        """Bytes of the entries."""
        return int(self.entries.nbytes)

    def stretches(self, rows: Floats) -> Floats:
        """Return rows cut into stretches, shape (n_stretches, n_rows, width)."""
        return _cut(rows, len(self.entries), self.entries.shape[2])

    def squares(self, queries: Floats) -> Floats:
        """Return squared distances of each stretch of queries to all its entries.

        Parameters
        ----------
        queries : float64 array of shape (n_queries, n_dimensions)

        Returns
        -------
        float64 array of shape (n_stretches, n_queries, n_entries)
        """
        cut, entries = self.stretches(queries), self.entries.astype(np.float64)
        found = np.zeros((*cut.shape[:2], entries.shape[1]))
        for cell in range(entries.shape[2]):  # one cell after another: one order of additions
            found += (cut[:, :, None, cell] - entries[:, None, :, cell]) ** 2
        return found


def learned_codebook(
    rows: npt.NDArray[np.floating[Any]],
    *,
    n_stretches: int = 16,
    bits: Bits = 8,
    random_state: int = 0,
) -> Codebook:
    """Return the book whose entries are the centers of the rows' stretches.

    Parameters
    ----------
    rows : float array of shape (n_rows, n_dimensions)
        Keys; what the book reveals, it reveals of these.
    n_stretches : int
        Into how many parts a key is cut, at most one for each dimension.
    bits : {4, 8}
        Of the number of an entry: 16 or 256 entries for a stretch, or as many as there are rows.
    random_state : int
        Of the first centers.

    Raises
    ------
    DataError
        If a cell does not fit into 32 bits.
    ValueError
        If there are no rows or ``n_stretches`` is below 1.
    """
    refuse_wide(rows)
    whole = isinstance(n_stretches, int | np.integer) and not isinstance(n_stretches, bool)
    if rows.ndim != 2 or not rows.size or not whole or n_stretches < 1:
        raise ValueError(
            f"expected rows and a stretch or more, got shape {rows.shape} and {n_stretches!r}"
        )
    n_dimensions = rows.shape[1]
    width = -(-n_dimensions // min(n_stretches, n_dimensions))
    cut = _cut(np.asarray(rows, np.float64), -(-n_dimensions // width), width)
    each = [clustered(part, 1 << bits, random_state=random_state)[0] for part in cut]
    most = max(map(len, each))
    padded = [np.concatenate([e, np.repeat(e[-1:], most - len(e), axis=0)]) for e in each]
    return Codebook(np.array(padded, np.float32), n_dimensions)


def _cut(rows: Floats, n: int, width: int) -> Floats:
    wide = np.zeros((len(rows), n * width))
    wide[:, : rows.shape[1]] = rows
    return np.ascontiguousarray(wide.reshape(len(rows), n, width).transpose(1, 0, 2))


@dataclass(frozen=True, eq=False)
class ProductCodec:
    """Numbers of entries in a codebook, four or eight bits a stretch.

    Parameters
    ----------
    n_stretches : int
        Into how many parts a key is cut.
    bits : {4, 8}
        Of a number.
    random_state : int
        Of a book that is learned.
    book : Codebook, optional
        A book learned elsewhere. None: it is learned from the first rows of the memory; then it
        holds means of them, and in small memories rows themselves.
    learned_here : bool
        Whether the book was learned from the rows of the memory.
    """

    n_stretches: int = 16
    bits: Bits = 8
    random_state: int = 0
    book: Codebook | None = None
    learned_here: bool = False

    def __post_init__(self) -> None:
        if self.bits not in (4, 8):
            raise ValueError(f"expected bits of 4 or 8, got {self.bits!r}")
        if self.book is not None and self.book.entries.shape[1] > 1 << self.bits:
            raise ValueError(
                f"expected a book of at most {1 << self.bits} entries for {self.bits} bits, got "
                f"{self.book.entries.shape[1]}"
            )

    @property
    def n_bytes(self) -> int:
        """Bytes of a row."""
        n = self.n_stretches if self.book is None else len(self.book.entries)
        return -(-n * self.bits // 8)

    @property
    def nbytes(self) -> int:
        """Bytes of the book."""
        return 0 if self.book is None else self.book.nbytes

    def fitted(self, rows: Floats) -> "ProductCodec":
        """Return a codec with a book: itself if it has one, else one that learns it from rows."""
        if self.book is not None:
            return self
        book = learned_codebook(
            rows, n_stretches=self.n_stretches, bits=self.bits, random_state=self.random_state
        )
        return self.with_book(book, learned_here=True)

    def with_book(self, book: Codebook, *, learned_here: bool) -> "ProductCodec":
        """Return the same codec with a book.

        Parameters
        ----------
        book : Codebook
            Of at most as many entries as a number can tell.
        learned_here : bool
            Whether it was learned from the rows of the memory.
        """
        return replace(self, book=book, learned_here=learned_here)

    def encode(self, rows: Floats) -> Bytes:
        """Return a code for each row: of equally near entries the first.

        Parameters
        ----------
        rows : float64 array of shape (n_rows, n_dimensions)
            Finite.

        Returns
        -------
        uint8 array of shape (n_rows, n_bytes)
            With four bits, the even stretches lie in the low halves of the bytes.
        """
        refuse_wide(rows)
        numbers = self._book.squares(rows).argmin(axis=2).astype(np.uint8).T
        if self.bits == 8:
            return np.ascontiguousarray(numbers)
        even, odd = numbers[:, ::2], np.zeros((len(rows), self.n_bytes), np.uint8)
        odd[:, : numbers.shape[1] // 2] = numbers[:, 1::2]
        return np.asarray(even | odd << 4, np.uint8)

    def decode(self, codes: Bytes) -> Floats:
        """Return the keys that codes stand for, float64 of shape (n_rows, n_dimensions)."""
        entries = self._book.entries.astype(np.float64)
        numbers = self._numbers(codes)
        parts = [entries[s][numbers[:, s]] for s in range(len(entries))]
        return np.concatenate(parts, axis=1)[:, : self._book.n_dimensions]

    def refuse_codes(self, codes: npt.NDArray[Any]) -> None:
        """Refuse an array that is no table of codes.

        Raises
        ------
        ValueError
            If its type or shape is another, a number is beyond the book, or half a byte that no
            stretch uses is not 0.
        """
        refuse_table(codes, self.n_bytes)
        if not len(codes):
            return
        if self._numbers(codes).max() >= self._book.entries.shape[1]:
            raise ValueError("a code has a number that is beyond the book")
        if self.bits == 4 and len(self._book.entries) % 2 and (codes[:, -1] >> 4).any():
            raise ValueError("a code says something of a stretch that is none")

    def nearest(
        self, codes: Bytes, queries: Floats, k: int, *, own: Integers | None = None
    ) -> Neighbors:
        """Return the k nearest of the keys that codes stand for, from tables of distances.

        Parameters
        ----------
        codes : uint8 array of shape (n_keys, n_bytes)
            As :meth:`encode` gives them.
        queries : float64 array of shape (n_queries, n_dimensions)
            Finite; they are not coded, so that only keys are off (asymmetric distances).
        k : int
            1 or more.
        own : int64 array of shape (n_queries,), optional
            A key for each query that does not count; -1 for none.

        Returns
        -------
        Neighbors
            Ties to the earlier row.
        """
        if k < 1:
            raise ValueError(f"expected k of 1 or more, got {k}")
        own = np.full(len(queries), -1) if own is None else own
        n_found = max(0, min(k, len(codes) - int(len(own) > 0 and own.max() >= 0)))
        positions = np.empty((len(queries), n_found), np.int64)
        squares = np.empty(positions.shape)
        numbers = self._numbers(codes)
        step = max(1, _BLOCK // max(len(codes), 1))
        for first in range(0, len(queries) if n_found else 0, step):
            rows = slice(first, first + step)
            near = self._squares(numbers, queries[rows])
            told = np.flatnonzero(own[rows] >= 0)
            near[told, own[rows][told]] = np.inf
            positions[rows] = np.argsort(near, axis=1, kind="stable")[:, :n_found]
            squares[rows] = np.take_along_axis(near, positions[rows], axis=1)
        return Neighbors(positions, np.sqrt(squares))

    def _squares(self, numbers: Bytes, queries: Floats) -> Floats:
        table = self._book.squares(queries)
        near = np.zeros((len(queries), len(numbers)))
        for stretch in range(len(table)):
            near += table[stretch][:, numbers[:, stretch]]
        return near

    def _numbers(self, codes: Bytes) -> Bytes:
        if self.bits == 8:
            return codes
        both = np.stack([codes & 15, codes >> 4], axis=2).reshape(len(codes), -1)
        return both[:, : len(self._book.entries)]

    @property
    def _book(self) -> Codebook:
        if self.book is None:
            raise ValueError("no codebook yet; it is learned from the first rows that come")
        return self.book


def shared_codec(
    rows: npt.NDArray[np.floating[Any]],
    *,
    n_stretches: int = 8,
    bits: Bits = 8,
    random_state: int = 0,
) -> ProductCodec:
    """Return a codec for many memories, whose book is learned on rows that none of them holds.

    Parameters
    ----------
    rows, n_stretches, bits, random_state
        As :func:`learned_codebook` takes them.

    Raises
    ------
    DataError
        If a cell does not fit into 32 bits.
    ValueError
        If there are no rows, or ``n_stretches`` or ``bits`` is out of range.
    """
    codec = ProductCodec(n_stretches, bits, random_state)  # refuses bits before a book is learned
    book = learned_codebook(rows, n_stretches=n_stretches, bits=bits, random_state=random_state)
    return codec.with_book(book, learned_here=False)
