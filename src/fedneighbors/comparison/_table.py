"""Rows of all parties, split again and again into training and test rows."""

import hashlib
import io
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats, Integers

Task = Literal["classification", "regression"]

TEST_FRACTION = 0.25


@dataclass(frozen=True)
class PartyRows:
    """Rows with their targets and parties.

    Parameters
    ----------
    x : float64 array of shape (n_rows, n_features)
        Missing cells are NaN.
    y : array of shape (n_rows,)
        Class codes from 0, int64; or float64 numbers for regression.
    parties : int64 array of shape (n_rows,)
        Party codes from 0.
    """

    x: Floats
    y: npt.NDArray[Any]
    parties: Integers

    def __len__(self) -> int:
        return len(self.y)

    def select(self, rows: npt.NDArray[Any]) -> Self:
        """Return some of the rows, by index or mask."""
        return type(self)(self.x[rows], self.y[rows], self.parties[rows])

    def digest(self) -> str:
        """Return a digest of all rows."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def to_bytes(self) -> bytes:
        """Encode the rows as the content of an uncompressed ``.npz`` file."""
        content = io.BytesIO()
        np.savez(content, x=self.x, y=self.y, parties=self.parties)
        return content.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Decode the result of :meth:`to_bytes`."""
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            return cls(arrays["x"], arrays["y"], arrays["parties"])


def split(rows: PartyRows, task: Task, rng: np.random.Generator) -> tuple[PartyRows, PartyRows]:
    """Split every party's rows at random into training and test rows.

    A quarter of the rows of each party, and for classification of each class of a party, are test
    rows; fractions of a row are rounded at random. The only row of a group is a training row, and
    every class has a training row.
    """
    groups = rows.parties
    if task == "classification":
        groups = groups * (int(rows.y.max()) + 1) + rows.y
    is_test = np.zeros(len(rows), bool)
    for group in np.unique(groups):
        members = rng.permutation(np.flatnonzero(groups == group))
        n_test = min(int(TEST_FRACTION * len(members) + rng.random()), len(members) - 1)
        is_test[members[:n_test]] = True
    if not is_test.any():
        is_test[rng.integers(len(rows))] = True
    return rows.select(~is_test), rows.select(is_test)
