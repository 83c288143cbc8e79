"""Owns what clients and rows are for: seen or unseen, training, validation or test."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedneighbors.partition.assignment import generator

__all__ = ["RowRoles", "row_roles", "unseen_parties"]

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class RowRoles:
    """Which rows are for what; every row is for one thing.

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
        If a share is negative, or nothing is left to train on.
    """
    if min(validation, test) < 0 or validation + test >= 1:
        raise ValueError(
            f"expected shares that leave rows to train on, got validation={validation} and "
            f"test={test}"
        )
    names, owner = np.unique(np.asarray(parties).astype(np.str_), return_inverse=True)
    shuffled = generator(seed).permutation(len(owner))
    order = shuffled[np.argsort(owner[shuffled], kind="stable")]
    sizes = np.bincount(owner, minlength=len(names))
    rank = np.empty(len(owner), np.int64)
    rank[order] = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    n_test = np.minimum(np.floor(test * sizes + 0.5), sizes - 1)[owner]
    n_held = np.minimum(np.floor((validation + test) * sizes + 0.5), sizes - 1)[owner]
    tested = rank < n_test
    held = (rank < np.maximum(n_held, n_test)) & ~tested
    return RowRoles(~tested & ~held, held, tested)


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
    """
    if not 0 <= share < 1:
        raise ValueError(f"expected a share of parties from 0 up to 1, got {share!r}")
    names = np.unique(np.asarray(parties).astype(np.str_))
    n = min(int(np.floor(share * len(names) + 0.5)), len(names) - 1)
    return tuple(sorted(names[generator(seed).permutation(len(names))[:n]].tolist()))
