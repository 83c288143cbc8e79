"""What a code of keys is: fixed bytes for each row, from which its distances are told."""

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats, Integers
from fedneighbors.errors import DataError
from fedneighbors.methods.knnper.memory._neighbors import Neighbors

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
