"""Owns what clients and rows are for: seen or unseen, training, validation or test."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Integers
from fedneighbors.partition._assignment import generator, numbered

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class RowRoles:
    """Which rows are for what; no row is for two things.

    Parameters
    ----------
    train, validation, test : bool array of shape (n_rows,)
        Whether a row is for it.
    """

    train: Mask
    validation: Mask
    test: Mask


def row_roles(
    parties: npt.ArrayLike, *, validation: float = 0.0, test: float = 0.2, seed: int
) -> RowRoles:
    """Split the rows of each party into those to train, to validate and to test on.

    Shares are rounded for each party, halves up; a party of two rows or more keeps one to train on.

    Parameters
    ----------
    parties : array-like of shape (n_rows,)
        Party that owns each row.
    validation, test : float
        Shares of each party's rows, together below 1.
    seed : int
        Of the drawing.

    Returns
    -------
    RowRoles

    Raises
    ------
    ValueError
        If a share is negative or no number, or nothing is left to train on.
    """
    _refuse_shares(validation, test)
    names, owner = numbered(parties)
    shuffled = generator(seed).permutation(len(owner))
    order = shuffled[np.argsort(owner[shuffled], kind="stable")]
    sizes = np.bincount(owner, minlength=len(names))
    rank = _ranks(owner, sizes, order)
    n_test, n_held = _counts(sizes, validation, test)
    tested = rank < n_test[owner]
    held = (rank < n_held[owner]) & ~tested
    return RowRoles(~tested & ~held, held, tested)


def ordered_roles(
    parties: npt.ArrayLike, *, validation: float = 0.0, test: float = 0.2, gap: int = 0
) -> RowRoles:
    """Let each party train on its first rows, and be tested on its last.

    Parameters
    ----------
    parties : array-like of shape (n_rows,)
        Party that owns each row; rows of a party come in the order of time.
    validation, test : float
        Shares of each party's rows, together below 1, rounded halves up.
    gap : int
        Rows that are left out before those of validation and before those of test, so that windows
        of a text that overlap are not on both sides. It may leave a small party none to train on.

    Returns
    -------
    RowRoles
        Rows of a gap are for nothing.

    Raises
    ------
    ValueError
        If a share is negative or no number, nothing is left to train on, or the gap is not a whole
        number from 0 up.

    Examples
    --------
    >>> ordered_roles(["a"] * 10, test=0.3, gap=2).train.nonzero()[0].tolist()
    [0, 1, 2, 3, 4]
    """
    _refuse_shares(validation, test)
    if not (gap >= 0 and float(gap).is_integer()):
        raise ValueError(f"expected a gap of 0 rows or more, got {gap}")
    names, owner = numbered(parties)
    sizes = np.bincount(owner, minlength=len(names))
    rank = _ranks(owner, sizes, np.argsort(owner, kind="stable"))
    n_test, n_held = (counts[owner] for counts in _counts(sizes, validation, test))
    left = sizes[owner] - 1 - rank  # rows of the party that come after it
    tested, held = left < n_test, left < n_held
    waits = np.zeros(len(owner), bool)
    for later in (n_test, n_held):
        waits |= (later > 0) & (left >= later) & (left < later + gap)
    return RowRoles(~held & ~waits, held & ~tested & ~waits, tested)


def unseen_parties(parties: npt.ArrayLike, share: float, *, seed: int) -> tuple[str, ...]:
    """Return the parties that come only after training.

    Parameters
    ----------
    parties : array-like of shape (n_rows,)
        Party that owns each row.
    share : float
        Of all parties, in [0, 1); at least one party is seen.
    seed : int
        Of the drawing.

    Returns
    -------
    tuple of str
        In the order of the names.

    Raises
    ------
    ValueError
        If the share is out of its range, or no number.
    """
    if not 0 <= share < 1:
        raise ValueError(f"expected a share of parties from 0 up to 1, got {share!r}")
    names, _ = numbered(parties)
    n = min(int(np.floor(share * len(names) + 0.5)), len(names) - 1)
    return tuple(sorted(names[generator(seed).permutation(len(names))[:n]].tolist()))


def _refuse_shares(validation: float, test: float) -> None:
    if not (validation >= 0 and test >= 0 and validation + test < 1):  # NaN is refused
        raise ValueError(
            f"expected shares that leave rows to train on, got validation={validation} and "
            f"test={test}"
        )


def _ranks(owner: Integers, sizes: Integers, order: Integers) -> Integers:
    """Return the place of each row among those of its party, in an order that goes by party."""
    rank = np.empty(len(owner), np.int64)
    rank[order] = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return rank


def _counts(sizes: Integers, validation: float, test: float) -> tuple[Integers, Integers]:
    """Return how many rows each party tests on, and does not train on."""
    n_test = np.minimum(np.floor(test * sizes + 0.5), sizes - 1).astype(np.int64)
    n_held = np.minimum(np.floor((validation + test) * sizes + 0.5), sizes - 1).astype(np.int64)
    return n_test, np.maximum(n_held, n_test)
