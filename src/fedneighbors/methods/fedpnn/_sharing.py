"""Rows that nobody owns are dealt to parties and server, as in the paper's experiments."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


def dealt(
    y: npt.NDArray[Any],
    parties: Sequence[Any] | npt.NDArray[Any] | None,
    *,
    share: int | None,
    holdout: float,
    seed: int,
) -> tuple[Sequence[Any] | npt.NDArray[Any] | None, npt.NDArray[np.bool_]]:
    """Return the owner of each row that is trained on, and which rows the server keeps.

    Rows are dealt class by class in random order, so that all have the same share of every class
    (section 4.1 of the paper, step b).

    Parameters
    ----------
    y : array of shape (n_rows,)
        Labels.
    parties : sequence of shape (n_rows,) or None
        Owners, where they are known.
    share : int or None
        Parties to deal to, where they are not; None where they are.
    holdout : float
        Share of the rows that the server keeps, in [0, 1).
    seed : int
        Of the dealing.

    Raises
    ------
    ValueError
        If a number is out of range, owners are not one for each row, or both are given.
    """
    if not 0 <= holdout < 1:
        raise ValueError(f"expected holdout in [0, 1), got {holdout!r}")
    if share is not None and share < 1:
        raise ValueError(f"expected share of 1 or more parties, or None; got {share!r}")
    if share is not None and parties is not None:
        raise ValueError(
            f"share={share} deals rows that nobody owns, and parties names their owners; leave "
            "parties out, or use share=None"
        )
    rng = np.random.Generator(np.random.PCG64(seed))
    kept, place = np.zeros(len(y), bool), np.zeros(len(y), np.int64)
    for label in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == label))
        n_kept = round(holdout * len(rows))
        kept[rows[:n_kept]] = True
        place[rows[n_kept:]] = np.arange(len(rows) - n_kept)
    if parties is not None:
        owner = np.asarray(parties, dtype=object)
        if owner.shape != (len(y),):
            raise ValueError(
                f"expected one party for each of {len(y)} rows, got shape {owner.shape}"
            )
        return owner[~kept], kept
    if share is None:
        return None, kept
    return np.array([f"client {number + 1}" for number in place[~kept] % share]), kept
