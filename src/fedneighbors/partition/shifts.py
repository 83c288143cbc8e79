"""Owns what makes parties differ beyond their labels: concepts, features and time."""

from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors.partition.assignment import Parties, generator, party_names, refuse_too_few_rows

__all__ = ["by_time", "groups", "permute_labels", "shift_features"]


def groups(parties: npt.ArrayLike, n_groups: int, *, seed: int) -> npt.NDArray[np.int64]:
    """Put parties into groups whose sizes differ by at most one.

    Parameters
    ----------
    parties : array-like of shape (n_rows,)
        Party that owns each row.
    n_groups : int
        Groups, at most as many as parties.
    seed : int
        Of the drawing.

    Returns
    -------
    int64 array of shape (n_rows,)
        Group of the party of each row, from 0.

    Raises
    ------
    ValueError
        If there are fewer parties than groups.
    """
    names, owner = np.unique(np.asarray(parties).astype(np.str_), return_inverse=True)
    if not 1 <= n_groups <= len(names):
        raise ValueError(f"expected 1 to {len(names)} groups of parties, got {n_groups}")
    group = np.empty(len(names), np.int64)
    group[generator(seed).permutation(len(names))] = np.arange(len(names)) % n_groups
    return group[owner]


def permute_labels(
    y: npt.ArrayLike, parties: npt.ArrayLike, *, n_groups: int = 4, seed: int
) -> npt.NDArray[Any]:
    """Let groups of parties mean different things by the same labels (concept shift).

    The first group keeps its labels; every other has a permutation of its own.

    Parameters
    ----------
    y : array-like of shape (n_rows,)
        Labels.
    parties : array-like of shape (n_rows,)
        Party that owns each row.
    n_groups : int
        Groups of parties.
    seed : int
        Of groups and permutations.

    Returns
    -------
    array of shape (n_rows,)
        Labels of the type of ``y``.
    """
    labels = np.asarray(y)
    classes, place = np.unique(labels, return_inverse=True)
    group = groups(parties, n_groups, seed=seed)
    rng = generator(seed + 1)
    meanings = [np.arange(len(classes))]
    meanings += [rng.permutation(len(classes)) for _ in range(n_groups - 1)]
    return np.asarray(classes[np.array(meanings)[group, place]])


def shift_features(
    x: npt.NDArray[Any], parties: npt.ArrayLike, *, n_groups: int = 4, size: float = 1.0, seed: int
) -> npt.NDArray[Any]:
    """Let groups of parties measure differently (feature shift).

    Images (rows of two dimensions or more, the last two of one length) are turned by a quarter for
    each group; columns of tables are moved by normal draws of ``size`` deviations.

    Parameters
    ----------
    x : array of shape (n_rows, ...)
        Rows.
    parties : array-like of shape (n_rows,)
        Party that owns each row.
    n_groups : int
        Groups of parties; images have four at most. The first keeps its features.
    size : float
        Of the shifts of columns.
    seed : int
        Of groups and shifts.

    Returns
    -------
    array of the shape of ``x``

    Raises
    ------
    ValueError
        If images are not square, or there are more than four groups of them.
    """
    group = groups(parties, n_groups, seed=seed)
    if x.ndim == 2:
        moves = size * generator(seed + 1).normal(size=(n_groups, x.shape[1])) * x.std(axis=0)
        moves[0] = 0
        return np.asarray(x + moves[group])
    if x.shape[-1] != x.shape[-2] or n_groups > 4:
        raise ValueError(
            f"expected square images and at most 4 groups, got {x.shape} and {n_groups} groups"
        )
    turned = x.copy()
    for number in range(1, n_groups):
        rows = group == number
        turned[rows] = np.rot90(x[rows], number, axes=(-2, -1))
    return turned


def by_time(times: npt.ArrayLike, n_parties: int) -> Parties:
    """Split rows into stretches of time that follow one another, of nearly equal numbers of rows.

    Parameters
    ----------
    times : array-like of shape (n_rows,)
        When each row came; rows of one time keep their order.
    n_parties : int
        Parties; the first has the earliest rows.

    Returns
    -------
    str array of shape (n_rows,)
        Party that owns each row.

    Raises
    ------
    ValueError
        If a time is missing.
    PartitionError
        If there are more parties than rows.
    """
    when = np.asarray(times)
    if when.ndim != 1 or (when != when).any():
        raise ValueError("expected a time for each row, got missing ones")
    refuse_too_few_rows(len(when), n_parties, min_rows=1)
    index = np.empty(len(when), np.int64)
    index[np.argsort(when, kind="stable")] = np.arange(len(when)) * n_parties // len(when)
    return party_names(index)
