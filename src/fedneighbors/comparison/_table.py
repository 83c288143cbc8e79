"""Rows of all parties, split again and again into training and test rows."""

import hashlib
import io
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np

from fedneighbors._typing import Array, Booleans, Floats, Integers

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
    y: Array
    parties: Integers

    def __len__(self) -> int:
        return len(self.y)

    def select(self, rows: Array) -> Self:
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


def convert_targets(targets: Array) -> Floats:
    """Return the targets of a regression as numbers.

    Raises
    ------
    ValueError
        If a target is text or infinite.
    """
    try:
        numbers = targets.astype(np.float64)
    except (TypeError, ValueError):
        raise ValueError(
            "regression needs numbers to predict, got text; choose classification"
        ) from None
    if not np.isfinite(numbers).all():
        raise ValueError("a target is infinite; remove its row")
    return numbers


def hold_out(groups: Integers, fraction: float, rng: np.random.Generator) -> Booleans:
    """Choose test rows at random from every group of rows.

    Fractions of a row are rounded at random. The only row of a group is a training row, so every
    group has one. There is at least one test row.

    Parameters
    ----------
    groups : int64 array of shape (n_rows,)
        Group of each row, such as its party, or its party and class.
    fraction : float
        Fraction of test rows, in (0, 1).
    rng : Generator
        Source of randomness.

    Returns
    -------
    bool array of shape (n_rows,)
        True for test rows.
    """
    is_test = np.zeros(len(groups), bool)
    for group in np.unique(groups):
        members = rng.permutation(np.flatnonzero(groups == group))
        n_test = min(int(fraction * len(members) + rng.random()), len(members) - 1)
        is_test[members[:n_test]] = True
    if not is_test.any():
        is_test[rng.integers(len(groups))] = True
    return is_test


def split_stream(seed: int, repeat: int) -> np.random.Generator:
    """Return the random stream of a split.

    It is not that of a partition into parties with the same seed, see ``row_roles``.
    """
    return np.random.default_rng([seed, 2, repeat])


def split(rows: PartyRows, task: Task, rng: np.random.Generator) -> tuple[PartyRows, PartyRows]:
    """Split every party's rows at random into training and test rows.

    A quarter of the rows of each party, and for classification of each class of a party, are test
    rows.
    """
    groups = rows.parties
    if task == "classification":
        groups = groups * (int(rows.y.max()) + 1) + rows.y
    is_test = hold_out(groups, TEST_FRACTION, rng)
    return rows.select(~is_test), rows.select(is_test)
