"""Keys in eight bits a cell, each row with a scale of its own."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats, Integers
from fedneighbors.methods.knnper.memory._neighbors import Neighbors, nearest
from fedneighbors.methods.knnper.memory.compression._codes import Bytes, refuse_table, refuse_wide

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
