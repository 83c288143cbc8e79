"""Functions shared by all splits: party names and indices, checks, rounding to counts."""

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats, Integers
from fedneighbors.errors import PartitionError

Parties = npt.NDArray[np.str_]


def generator(seed: int, *stream: int) -> np.random.Generator:
    """Return the random generator of a partition, numpy's PCG64.

    Parameters
    ----------
    seed : int
        Non-negative.
    *stream : int
        Key of an independent stream of the same seed; none for the first.

    Returns
    -------
    numpy.random.Generator

    Raises
    ------
    ValueError
        If the seed is negative.
    """
    if seed < 0:
        raise ValueError(f"seed must not be negative, got {seed}")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=stream)))


def party_names(index: Integers) -> Parties:
    """Return the party name for each index.

    Parameters
    ----------
    index : int64 array of shape (n_rows,)
        Index of the party that owns each row, from 0.

    Returns
    -------
    str array of shape (n_rows,)
        ``"party-0"``, ``"party-1"`` and so on.
    """
    names = np.array([f"party-{number}" for number in range(int(index.max()) + 1)], dtype=np.str_)
    return names[index]


def index_parties(parties: npt.ArrayLike) -> tuple[Parties, Integers]:
    """Return the distinct party names and each row's party index.

    Parameters
    ----------
    parties : array-like of shape (n_rows,)
        Party that owns each row.

    Returns
    -------
    str array of shape (n_parties,)
        Party names, sorted.
    int64 array of shape (n_rows,)
        Index of each row's party in the names.

    Raises
    ------
    ValueError
        If ``parties`` is not one-dimensional.
    """
    owners = np.asarray(parties).astype(np.str_)
    if owners.ndim != 1:
        raise ValueError(f"expected one party for each row, got shape {owners.shape}")
    names, owner = np.unique(owners, return_inverse=True)
    return names, owner.astype(np.int64)


def rank_in_groups(sizes: Integers) -> Integers:
    """Return each row's position in its group; groups are consecutive."""
    return np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)


def index_classes(y: npt.ArrayLike) -> Integers:
    """Return the index of each row's class among the sorted classes.

    Parameters
    ----------
    y : array-like of shape (n_rows,)
        Labels, at least one.

    Returns
    -------
    int64 array of shape (n_rows,)

    Raises
    ------
    ValueError
        If ``y`` is empty or not one-dimensional.
    """
    labels = np.asarray(y)
    if labels.ndim != 1 or len(labels) == 0:
        raise ValueError(f"y must be a list of at least one label, got shape {labels.shape}")
    return np.unique(labels, return_inverse=True)[1].astype(np.int64)


def check_enough_rows(n_rows: int, n_parties: int, *, min_rows: int) -> None:
    """Check that there are enough rows for every party's minimum.

    Parameters
    ----------
    n_rows, n_parties : int
        Numbers of rows and parties.
    min_rows : int
        Minimum number of rows per party.

    Raises
    ------
    ValueError
        If an argument is out of range.
    PartitionError
        If there are too few rows.
    """
    if not n_parties >= 1:
        raise ValueError(f"n_parties must be at least 1, got {n_parties}")
    if n_rows < 1:
        raise ValueError(f"there must be at least one row to split, got {n_rows}")
    if not min_rows >= 0:  # also true for NaN
        raise ValueError(f"min_rows must not be negative, got {min_rows}")
    if n_parties * max(min_rows, 1) > n_rows:
        raise PartitionError(
            f"{n_parties} parties with at least {max(min_rows, 1)} rows each were requested, but "
            f"there are only {n_rows} rows; lower n_parties or min_rows"
        )


def apportion(total: int, weights: Floats | Integers) -> Integers:
    """Divide a total into integers proportional to weights.

    Fractions are rounded by the largest-remainder method; ties go to the lower index.
    """
    shares = float(total) * weights / weights.sum()  # a product of integers could overflow
    counts: Integers = np.floor(shares).astype(np.int64)
    order = np.argsort(counts - shares, kind="stable")
    counts[order[: total - int(counts.sum())]] += 1
    return counts
