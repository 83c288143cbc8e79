"""Owns the splits that ignore labels: equal shares, skewed shares, and a given id column."""

from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors.errors import DataError
from fedneighbors.partition._assignment import (
    Parties,
    generator,
    party_names,
    refuse_missing,
    refuse_too_few_rows,
)


def iid(n_rows: int, n_parties: int, *, seed: int) -> Parties:
    """Split rows at random into parts whose sizes differ by at most one.

    Parameters
    ----------
    n_rows : int
        Rows to split.
    n_parties : int
        Parties, at most ``n_rows``.
    seed : int
        Seed of the permutation.

    Returns
    -------
    str array of shape (n_rows,)
        Party that owns each row; the first parties are the larger ones.

    Raises
    ------
    ValueError
        If an argument is out of its range.
    PartitionError
        If there are more parties than rows.

    Examples
    --------
    >>> from fedneighbors.partition import iid
    >>> import numpy as np
    >>> names, rows = np.unique(iid(10, 3, seed=0), return_counts=True)
    >>> dict(zip(names.tolist(), rows.tolist()))
    {'party-0': 4, 'party-1': 3, 'party-2': 3}
    """
    return quantity_skew(n_rows, n_parties, factor=0.0, seed=seed)


def quantity_skew(
    n_rows: int, n_parties: int, *, factor: float = 1.0, min_rows: int = 1, seed: int
) -> Parties:
    """Split rows at random into parts whose sizes follow Zipf's law.

    The party with index ``i`` gets a share proportional to ``(i + 1) ** -factor``. Parties
    whose share falls below ``min_rows`` get exactly ``min_rows``; the others divide the rest in
    proportion. Fractions are rounded by largest remainder, ties to the lower index.

    Parameters
    ----------
    n_rows : int
        Rows to split.
    n_parties : int
        Parties, at most ``n_rows``.
    factor : float, default=1.0
        Exponent of Zipf's law, not negative; 0 gives equal shares.
    min_rows : int, default=1
        Fewest rows of a party.
    seed : int
        Seed of the permutation.

    Returns
    -------
    str array of shape (n_rows,)
        Party that owns each row.

    Raises
    ------
    ValueError
        If an argument is out of its range.
    PartitionError
        If there are too few rows.
    """
    refuse_too_few_rows(n_rows, n_parties, min_rows=min_rows)
    if not 0 <= factor < np.inf:
        raise ValueError(f"factor must be a finite number, not negative, got {factor!r}")
    weights = np.arange(1, n_parties + 1, dtype=np.float64) ** -factor
    sizes = _zipf_sizes(n_rows, weights, min_rows=max(min_rows, 1))
    index = np.empty(n_rows, dtype=np.int64)
    index[generator(seed).permutation(n_rows)] = np.repeat(np.arange(n_parties), sizes)
    return party_names(index)


def natural(ids: npt.ArrayLike) -> Parties:
    """Take the parties from a column that names the owner of each row.

    Parameters
    ----------
    ids : array-like of shape (n_rows,)
        Text or whole numbers: site, writer, client.

    Returns
    -------
    str array of shape (n_rows,)
        The same ids as text.

    Raises
    ------
    DataError
        If the column is empty, not one-dimensional, or has missing cells.
    """
    column: npt.NDArray[Any] = np.asarray(ids)
    if column.ndim != 1 or len(column) == 0:
        raise DataError(f"the id column must hold one id per row, got shape {column.shape}")
    refuse_missing(column, "id column", DataError)
    cells = column.tolist()
    whole = (int(cell) if isinstance(cell, float) and cell.is_integer() else cell for cell in cells)
    return np.array([str(cell) for cell in whole], dtype=np.str_)


def _zipf_sizes(
    n_rows: int, weights: npt.NDArray[np.float64], *, min_rows: int
) -> npt.NDArray[np.int64]:
    """Sizes in proportion to descending weights, none below ``min_rows``."""
    n_parties = len(weights)
    ranks = np.arange(1, n_parties + 1)
    left_for_head = n_rows - (n_parties - ranks) * min_rows
    last_share = left_for_head * weights / np.cumsum(weights)
    head = int(np.flatnonzero(last_share >= min_rows)[-1]) + 1  # rank 1 always qualifies
    sizes = np.full(n_parties, min_rows, dtype=np.int64)
    sizes[:head] = _apportioned(int(left_for_head[head - 1]), weights[:head])
    return sizes


def _apportioned(total: int, weights: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Whole numbers in proportion to the weights that add up to ``total``, largest remainder."""
    shares = total * weights / weights.sum()
    whole: npt.NDArray[np.int64] = np.floor(shares).astype(np.int64)
    order = np.argsort(whole - shares, kind="stable")
    whole[order[: total - int(whole.sum())]] += 1
    return whole
