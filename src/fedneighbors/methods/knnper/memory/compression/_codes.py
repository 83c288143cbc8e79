"""What a code of keys is: fixed bytes for each row, from which its distances are told."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats, Integers
from fedneighbors.errors import DataError
from fedneighbors.methods.knnper.memory._search import Neighbors, nearest

Bytes = npt.NDArray[np.uint8]

WIDEST = float(np.finfo(np.float32).max)

MOST_ROWS = 1 << 22
"""So many rows no summary stands for: each took a search among a ninth of them when it was made.

A file that claims more would have a pool's heads ask for room that nobody has.
"""


class Codec(Protocol):
    """Turns keys into codes, and finds the nearest among codes.

    Attributes
    ----------
    n_bytes : int
        Of the code of one row.
    nbytes : int
        Of what all codes share, such as a codebook.
    learned_here : bool
        Whether what they share was learned from the rows of the memory itself, so that a row is not
        gone when its code is.
    """

    @property
    def n_bytes(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def learned_here(self) -> bool: ...

    def fitted(self, rows: Floats) -> "Codec":
        """Return a codec that suits rows; itself if it needs none."""

    def encode(self, rows: Floats) -> Bytes:
        """Return a code for each row, shape (n_rows, n_bytes)."""

    def decode(self, codes: Bytes) -> Floats:
        """Return the keys that codes stand for, shape (n_rows, n_dimensions)."""

    def refuse_codes(self, codes: npt.NDArray[Any]) -> None:
        """Raise ValueError for an array that is no table of codes."""

    def nearest(
        self, codes: Bytes, queries: Floats, k: int, *, own: Integers | None = None
    ) -> Neighbors:
        """Return the k nearest of the keys that codes stand for; ties to the earlier row."""


def checked_rows(
    keys: npt.ArrayLike, labels: npt.ArrayLike, n_dimensions: int, n_classes: int
) -> tuple[Floats, Integers]:
    """Return keys and classes as arrays, if a memory that keeps no rows can take them.

    Parameters
    ----------
    keys : array of shape (n_rows, n_dimensions)
        Embeddings.
    labels : array of shape (n_rows,)
        Their classes, from 0.
    n_dimensions, n_classes : int
        What the memory holds.

    Raises
    ------
    ValueError
        If shapes disagree or a label is none of the classes.
    DataError
        If a key is not finite, or beyond what 32 bits hold.
    """
    rows, classes = np.ascontiguousarray(keys, np.float64), np.asarray(labels)
    if rows.ndim != 2 or rows.shape[1] != n_dimensions or classes.shape != (len(rows),):
        raise ValueError(
            f"expected keys of width {n_dimensions} and a class for each, got shapes "
            f"{rows.shape} and {classes.shape}"
        )
    refuse_foreign(classes, n_classes)
    if not np.isfinite(rows).all():
        raise DataError("some keys are not finite; embed rows whose cells are all finite")
    refuse_wide(rows)
    return rows, classes.astype(np.int64)


def refuse_foreign(classes: npt.NDArray[Any], n_classes: int) -> None:
    """Refuse labels that are not numbers of classes.

    Raises
    ------
    ValueError
        If one is no integer from 0 to ``n_classes - 1``.
    """
    if not len(classes):
        return
    if classes.dtype.kind not in "iu":
        raise ValueError(f"expected classes from 0 to {n_classes - 1}, got {classes[:5].tolist()}")
    if not 0 <= classes.min() <= classes.max() < n_classes:
        foreign = np.unique(classes[(classes < 0) | (classes >= n_classes)])
        raise ValueError(f"expected classes from 0 to {n_classes - 1}, got {foreign[:5].tolist()}")


def refuse_wide(rows: npt.NDArray[np.floating[Any]]) -> None:
    """Refuse keys whose cells are beyond what 32 bits hold.

    Parameters
    ----------
    rows : float array of shape (n_rows, n_dimensions)
        Finite.

    Raises
    ------
    DataError
        If a cell is larger than the largest number of 32 bits.
    """
    if len(rows) and np.abs(rows).max() > WIDEST:
        raise DataError(
            "a key is beyond the numbers of 32 bits, which compressed memories keep; use "
            "memory='exact', or lower the learning rate of the network that gives such keys"
        )


def refuse_table(codes: npt.NDArray[Any], n_bytes: int) -> None:
    """Refuse an array that is no table of bytes, a row of them for each key.

    Parameters
    ----------
    codes : array
        What came from elsewhere.
    n_bytes : int
        Of a row.

    Raises
    ------
    ValueError
        If its type or shape is another.
    """
    if codes.dtype != np.uint8 or codes.ndim != 2 or codes.shape[1] != n_bytes:
        raise ValueError(
            f"expected codes of {n_bytes} bytes a row, got {codes.dtype} of shape {codes.shape}"
        )


def refuse_counts(counts: npt.NDArray[Any], n: int) -> None:
    """Refuse what cannot say how many rows each of ``n`` things stands for.

    Parameters
    ----------
    counts : array of shape (n,)
        What came from elsewhere.
    n : int
        Things that stand for rows.

    Raises
    ------
    ValueError
        If they are no unsigned integers, not one for each, one is 0, or they are too many rows.
    """
    if counts.shape != (n,) or counts.dtype.kind != "u":
        raise ValueError(f"expected {n} counts of rows, got {counts.dtype} of {counts.shape}")
    if n and not (counts.min() > 0 and sum(counts.tolist()) < MOST_ROWS):
        raise ValueError(f"counts of rows are not from 1 on, or add up to {MOST_ROWS} or more")


SCALE_BYTES = 8
"""Lowest cell and step of a row, as two floats of 32 bits."""


@dataclass(frozen=True)
class EightBitCodec:
    """The nearest of 256 values between the lowest and the highest cell of a row.

    The scale is the row's own: a code depends on nothing but its row, so that rows come and go
    without touching others, and a row whose code is deleted has left nothing.

    Parameters
    ----------
    n_dimensions : int
        Cells of a row.

    Examples
    --------
    >>> codec = EightBitCodec(3)
    >>> codec.decode(codec.encode(np.array([[0.0, 127.6, 255.0]]))).tolist()
    [[0.0, 128.0, 255.0]]
    """

    n_dimensions: int

    @property
    def n_bytes(self) -> int:
        """Bytes of a row."""
        return SCALE_BYTES + self.n_dimensions

    @property
    def nbytes(self) -> int:
        """Bytes that rows share: none."""
        return 0

    @property
    def learned_here(self) -> bool:
        """Whether a deleted row leaves a trace: no."""
        return False

    def fitted(self, rows: Floats) -> "EightBitCodec":  # noqa: ARG002 - it learns nothing
        """Return itself."""
        return self

    def encode(self, rows: Floats) -> Bytes:
        """Return a code for each row.

        Parameters
        ----------
        rows : float64 array of shape (n_rows, n_dimensions)
            Finite.

        Returns
        -------
        uint8 array of shape (n_rows, n_bytes)
            Scale, little-endian, then a byte for each cell.

        Raises
        ------
        DataError
            If a cell does not fit into 32 bits.
        """
        refuse_wide(rows)
        low = rows.min(axis=1, initial=0.0 if not self.n_dimensions else np.inf)
        scale = np.empty((len(rows), 2), "<f4")
        scale[:, 0] = low
        # Halves first: the difference of two floats of 32 bits may be twice the largest.
        scale[:, 1] = rows.max(axis=1, initial=-np.inf) / 255 - low / 255
        start, step = (column[:, None].astype(np.float64) for column in scale.T)
        steps = np.divide(rows - start, step, out=np.zeros_like(rows), where=step > 0)
        codes = np.clip(np.rint(steps), 0, 255).astype(np.uint8)
        return np.concatenate([scale.view(np.uint8).reshape(len(rows), SCALE_BYTES), codes], axis=1)

    def decode(self, codes: Bytes) -> Floats:
        """Return the keys that codes stand for, float64 of shape (n_rows, n_dimensions)."""
        scale = np.ascontiguousarray(codes[:, :SCALE_BYTES]).view("<f4").astype(np.float64)
        return np.asarray(scale[:, :1] + scale[:, 1:] * codes[:, SCALE_BYTES:])

    def refuse_codes(self, codes: npt.NDArray[Any]) -> None:
        """Refuse an array that is no table of codes.

        Raises
        ------
        ValueError
            If its type or shape is another, or a scale is not finite or falls.
        """
        refuse_table(codes, self.n_bytes)
        scale = np.ascontiguousarray(codes[:, :SCALE_BYTES]).view("<f4")
        if not np.isfinite(scale).all() or (scale[:, 1:] < 0).any():
            raise ValueError("the scale of a code is not finite, or falls")

    def nearest(
        self, codes: Bytes, queries: Floats, k: int, *, own: Integers | None = None
    ) -> Neighbors:
        """Return the k nearest of the keys that codes stand for, which are decoded for it.

        Parameters
        ----------
        codes : uint8 array of shape (n_keys, n_bytes)
            As :meth:`encode` gives them.
        queries : float64 array of shape (n_queries, n_dimensions)
            Finite.
        k : int
            1 or more.
        own : int64 array of shape (n_queries,), optional
            A key for each query that does not count.
        """
        return nearest(self.decode(codes), queries, k, own=own)
