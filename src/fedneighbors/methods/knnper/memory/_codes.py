"""Codes of keys: one byte per coordinate, or indices of codebook entries."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Array, Floats, Integers, Singles
from fedneighbors.errors import DataError
from fedneighbors.methods.knnper.algorithm import Neighbors, fill_skip, nearest
from fedneighbors.methods.knnper.memory._clusters import cluster

Bytes = npt.NDArray[np.uint8]

MAX_FLOAT32 = float(np.finfo(np.float32).max)


def check_float32(rows: npt.NDArray[np.floating[Any]]) -> None:
    """Raise DataError if a coordinate overflows float32."""
    if len(rows) and np.abs(rows).max() > MAX_FLOAT32:
        raise DataError(
            "a key overflows float32, the precision of compressed memories; use memory='exact', or "
            "lower the learning rate of the network"
        )


def check_codes(codes: Array, n_bytes: int) -> None:
    """Raise ValueError unless codes are a table with ``n_bytes`` columns of bytes."""
    if codes.dtype != np.uint8 or codes.ndim != 2 or codes.shape[1] != n_bytes:
        raise ValueError(
            f"expected codes of {n_bytes} bytes per row, got {codes.dtype} of shape {codes.shape}"
        )


SCALE_BYTES = 8
"""Bytes of a row's scale: its lowest coordinate and the step, two float32 numbers."""


@dataclass(frozen=True)
class EightBitCodec:
    """Codec with 256 levels between the lowest and the highest coordinate of a row.

    Each row has its own scale, so its code depends on no other row. Rows can be added and deleted
    without changing others, and deleting a code removes all information about its row.

    Parameters
    ----------
    n_dimensions : int
        Number of coordinates per row.

    Examples
    --------
    >>> codec = EightBitCodec(3)
    >>> codec.decode(codec.encode(np.array([[0.0, 127.6, 255.0]]))).tolist()
    [[0.0, 128.0, 255.0]]
    """

    n_dimensions: int
    nbytes: ClassVar[int] = 0
    """Bytes of the codebook; this codec has none."""
    learned_here: ClassVar[bool] = False
    """True if a codebook was fitted on rows of the memory; this codec has none."""

    @property
    def n_bytes(self) -> int:
        """Return the bytes per row."""
        return SCALE_BYTES + self.n_dimensions

    def fit(self, rows: Floats) -> "EightBitCodec":  # noqa: ARG002 - nothing to fit
        """Return the codec itself."""
        return self

    def encode(self, rows: Floats) -> Bytes:
        """Return a code for each row.

        Parameters
        ----------
        rows : float64 array of shape (n_rows, n_dimensions)
            Finite rows.

        Returns
        -------
        uint8 array of shape (n_rows, n_bytes)
            Scale, little-endian, then one byte per coordinate.

        Raises
        ------
        DataError
            If a coordinate overflows float32.
        """
        check_float32(rows)
        low = rows.min(axis=1, initial=0.0 if not self.n_dimensions else np.inf)
        scale = np.empty((len(rows), 2), "<f4")
        scale[:, 0] = low
        # Divide before subtracting: the difference of two float32 numbers may overflow.
        scale[:, 1] = rows.max(axis=1, initial=-np.inf) / 255 - low / 255
        start, step = (column[:, None].astype(np.float64) for column in scale.T)
        levels = np.divide(rows - start, step, out=np.zeros_like(rows), where=step > 0)
        codes = np.clip(np.rint(levels), 0, 255).astype(np.uint8)
        return np.concatenate([scale.view(np.uint8).reshape(len(rows), SCALE_BYTES), codes], axis=1)

    def decode(self, codes: Bytes) -> Floats:
        """Return the keys of codes, float64 of shape (n_rows, n_dimensions)."""
        scale = np.ascontiguousarray(codes[:, :SCALE_BYTES]).view("<f4").astype(np.float64)
        return np.asarray(scale[:, :1] + scale[:, 1:] * codes[:, SCALE_BYTES:])

    def check_codes(self, codes: Array) -> None:
        """Raise ValueError unless codes have valid shape, type and scales.

        A scale must be finite, and its step not negative.
        """
        check_codes(codes, self.n_bytes)
        scale = np.ascontiguousarray(codes[:, :SCALE_BYTES]).view("<f4")
        if not np.isfinite(scale).all() or (scale[:, 1:] < 0).any():
            raise ValueError("the scale of a code is not finite, or its step is negative")

    def nearest(
        self, codes: Bytes, queries: Floats, k: int, *, skip: Integers | None = None
    ) -> Neighbors:
        """Return the k nearest decoded keys of each query."""
        return nearest(self.decode(codes), queries, k, skip=skip)


Bits = Literal[4, 8]

_MAX_DISTANCES = 1 << 21
"""Maximum number of distances computed at once: 16 MiB."""


@dataclass(frozen=True, eq=False)
class Codebook:
    """Codebook entries for each segment of a key.

    Parameters
    ----------
    entries : float32 array of shape (n_stretches, n_entries, width)
        Segments are adjacent; the last is padded with zeros if it extends beyond the key. If a
        segment has fewer distinct entries than others, its last entry is repeated.
    n_dimensions : int
        Number of coordinates per key.
    """

    entries: Singles
    n_dimensions: int

    def __post_init__(self) -> None:
        shape = self.entries.shape
        if self.entries.dtype != np.float32 or len(shape) != 3 or not self.entries.size:
            raise ValueError(f"expected float32 entries in three axes, got shape {shape}")
        if self.n_dimensions < 1 or -(-self.n_dimensions // shape[2]) != shape[0]:
            raise ValueError(
                f"expected segments that cover a key of width {self.n_dimensions}, got "
                f"{shape[0]} of width {shape[2]}"
            )
        if not np.isfinite(self.entries).all():
            raise ValueError("an entry of the codebook is not finite")

    @property
    def nbytes(self) -> int:
        """Return the bytes of the entries."""
        return int(self.entries.nbytes)

    def squares(self, queries: Floats) -> Floats:
        """Return squared distances of each query's segments to their entries.

        Parameters
        ----------
        queries : float64 array of shape (n_queries, n_dimensions)

        Returns
        -------
        float64 array of shape (n_stretches, n_queries, n_entries)
        """
        entries = self.entries.astype(np.float64)
        segments = _split_segments(queries, len(entries), entries.shape[2])
        squares = np.zeros((*segments.shape[:2], entries.shape[1]))
        for i in range(entries.shape[2]):  # by coordinate: a fixed order of additions
            squares += (segments[:, :, None, i] - entries[:, None, :, i]) ** 2
        return squares


def fit_codebook(
    rows: npt.NDArray[np.floating[Any]],
    *,
    n_stretches: int = 16,
    bits: Bits = 8,
    random_state: int = 0,
) -> Codebook:
    """Return a codebook whose entries are the centers of the rows' segments.

    Parameters
    ----------
    rows : float array of shape (n_rows, n_dimensions)
        Keys; the codebook reveals information about these rows.
    n_stretches : int
        Number of segments per key; at most ``n_dimensions`` are used.
    bits : {4, 8}
        Bits per index: 16 or 256 entries per segment, or fewer for few rows.
    random_state : int
        Seed of the initial centers.

    Raises
    ------
    DataError
        If a coordinate overflows float32.
    ValueError
        If there are no rows, or ``n_stretches`` is not an integer of 1 or more.
    """
    check_float32(rows)
    is_integer = isinstance(n_stretches, int | np.integer) and not isinstance(n_stretches, bool)
    if rows.ndim != 2 or not rows.size or not is_integer or n_stretches < 1:
        raise ValueError(
            f"expected rows and at least one segment, got shape {rows.shape} and {n_stretches!r}"
        )
    n_dimensions = rows.shape[1]
    width = -(-n_dimensions // min(n_stretches, n_dimensions))
    segments = _split_segments(np.asarray(rows, np.float64), -(-n_dimensions // width), width)
    entries = [cluster(part, 1 << bits, random_state=random_state)[0] for part in segments]
    n = max(map(len, entries))
    padded = [np.concatenate([e, np.repeat(e[-1:], n - len(e), axis=0)]) for e in entries]
    return Codebook(np.array(padded, np.float32), n_dimensions)


def _split_segments(rows: Floats, n: int, width: int) -> Floats:
    padded = np.zeros((len(rows), n * width))
    padded[:, : rows.shape[1]] = rows
    return np.ascontiguousarray(padded.reshape(len(rows), n, width).transpose(1, 0, 2))


@dataclass(frozen=True, eq=False)
class ProductCodec:
    """Product quantization: codebook indices of four or eight bits per segment.

    Parameters
    ----------
    n_stretches : int
        Number of segments per key.
    bits : {4, 8}
        Bits per index.
    random_state : int
        Seed for fitting a codebook.
    book : Codebook, optional
        The codebook. None: one is fitted on the first rows of the memory. It contains means of
        their segments, or in small memories the segments themselves.
    learned_here : bool
        True if the codebook was fitted on rows of the memory.
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
                f"expected a codebook of at most {1 << self.bits} entries for {self.bits} bits, "
                f"got {self.book.entries.shape[1]}"
            )

    @property
    def n_bytes(self) -> int:
        """Return the bytes per row."""
        n = self.n_stretches if self.book is None else len(self.book.entries)
        return -(-n * self.bits // 8)

    @property
    def nbytes(self) -> int:
        """Return the bytes of the codebook."""
        return 0 if self.book is None else self.book.nbytes

    def fit(self, rows: npt.NDArray[np.floating[Any]]) -> "ProductCodec":
        """Return the codec, with a codebook fitted on ``rows`` if missing."""
        if self.book is not None:
            return self
        book = fit_codebook(
            rows, n_stretches=self.n_stretches, bits=self.bits, random_state=self.random_state
        )
        return replace(self, book=book, learned_here=True)

    def encode(self, rows: Floats) -> Bytes:
        """Return a code for each row; ties go to the first entry.

        Parameters
        ----------
        rows : float64 array of shape (n_rows, n_dimensions)
            Finite rows.

        Returns
        -------
        uint8 array of shape (n_rows, n_bytes)
            With four bits, each byte has two indices: the first in the four low bits.
        """
        check_float32(rows)
        indices = self._book.squares(rows).argmin(axis=2).astype(np.uint8).T
        if self.bits == 8:
            return np.ascontiguousarray(indices)
        low, high = indices[:, ::2], np.zeros((len(rows), self.n_bytes), np.uint8)
        high[:, : indices.shape[1] // 2] = indices[:, 1::2]
        return np.asarray(low | high << 4, np.uint8)

    def decode(self, codes: Bytes) -> Floats:
        """Return the keys of codes, float64 of shape (n_rows, n_dimensions)."""
        entries = self._book.entries.astype(np.float64)
        indices = self._unpack(codes)
        segments = [entries[s][indices[:, s]] for s in range(len(entries))]
        return np.concatenate(segments, axis=1)[:, : self._book.n_dimensions]

    def check_codes(self, codes: Array) -> None:
        """Raise ValueError unless codes are valid for this codebook."""
        if len(codes) and self.book is None:
            raise ValueError("codes have no codebook")
        check_codes(codes, self.n_bytes)
        if not len(codes):
            return
        if self._unpack(codes).max() >= self._book.entries.shape[1]:
            raise ValueError("a code has an index beyond the codebook")
        if self.bits == 4 and len(self._book.entries) % 2 and (codes[:, -1] >> 4).any():
            raise ValueError("unused bits of a code must be zero")

    def nearest(
        self, codes: Bytes, queries: Floats, k: int, *, skip: Integers | None = None
    ) -> Neighbors:
        """Return the k nearest keys of each query, from tables of distances.

        Queries are not encoded; only keys are approximate (asymmetric distances). Ties go to the
        earlier key; ``skip`` is as in :func:`~.algorithm.nearest`.
        """
        if k < 1:
            raise ValueError(f"expected k of 1 or more, got {k}")
        skip, n_found = fill_skip(skip, len(queries), len(codes), k)
        positions = np.empty((len(queries), n_found), np.int64)
        squares = np.empty(positions.shape)
        indices = self._unpack(codes)
        step = max(1, _MAX_DISTANCES // max(len(codes), 1))
        for first in range(0, len(queries) if n_found else 0, step):
            rows = slice(first, first + step)
            tables = self._book.squares(queries[rows])
            sums = np.zeros((tables.shape[1], len(indices)))
            for segment, table in enumerate(tables):
                sums += table[:, indices[:, segment]]
            with_skip = np.flatnonzero(skip[rows] >= 0)
            sums[with_skip, skip[rows][with_skip]] = np.inf
            positions[rows] = np.argsort(sums, axis=1, kind="stable")[:, :n_found]
            squares[rows] = np.take_along_axis(sums, positions[rows], axis=1)
        return Neighbors(positions, np.sqrt(squares))

    def _unpack(self, codes: Bytes) -> Bytes:
        if self.bits == 8:
            return codes
        indices = np.stack([codes & 15, codes >> 4], axis=2).reshape(len(codes), -1)
        return indices[:, : len(self._book.entries)]

    @property
    def _book(self) -> Codebook:
        if self.book is None:
            raise ValueError("the codec has no codebook yet; fit it on rows first")
        return self.book


def shared_codec(
    rows: npt.NDArray[np.floating[Any]], *, n_stretches: int, bits: Bits, random_state: int = 0
) -> ProductCodec:
    """Return a codec for many memories, fitted on external rows.

    Parameters and errors are those of :func:`fit_codebook`.
    """
    codec = ProductCodec(n_stretches, bits, random_state)
    return replace(codec.fit(rows), learned_here=False)


Codec = EightBitCodec | ProductCodec
"""Encoder of keys, with nearest-neighbor search among codes."""
