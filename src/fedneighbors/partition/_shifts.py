"""Owns what makes parties differ beyond their labels: concepts, features and time."""

from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors.partition._assignment import (
    Parties,
    generator,
    numbered,
    party_names,
    refuse_missing,
    refuse_too_few_rows,
)


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
    names, owner = numbered(parties)
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

    Raises
    ------
    ValueError
        If there are fewer parties than groups, or not one label for each row.
    """
    labels = np.asarray(y)
    group = groups(parties, n_groups, seed=seed)
    if labels.shape != group.shape:
        raise ValueError(f"expected {len(group)} labels, one for each row, got {labels.shape}")
    classes, place = np.unique(labels, return_inverse=True)
    rng = generator(seed + 1)
    meanings = [np.arange(len(classes))]
    meanings += [rng.permutation(len(classes)) for _ in range(n_groups - 1)]
    return np.asarray(classes[np.array(meanings)[group, place]])


def shift_features(
    x: npt.ArrayLike, parties: npt.ArrayLike, *, n_groups: int = 4, size: float = 1.0, seed: int
) -> npt.NDArray[Any]:
    """Let groups of parties measure differently (feature shift).

    Images (rows of two dimensions or more, the last two of one length) are turned by a quarter for
    each group; columns of tables are moved by normal draws of ``size`` deviations.

    Parameters
    ----------
    x : array-like of shape (n_rows, ...)
        Rows of two dimensions or more in all; columns of tables are finite.
    parties : array-like of shape (n_rows,)
        Party that owns each row.
    n_groups : int
        Groups of parties; images have four at most. The first keeps its features.
    size : float
        Of the shifts of columns, finite.
    seed : int
        Of groups and shifts.

    Returns
    -------
    array of the shape of ``x``

    Raises
    ------
    ValueError
        If ``x`` has not a row for each party's or is one-dimensional, a column or ``size`` is not
        finite, images are not square, or there are more than four groups of them.
    """
    if not np.isfinite(size):
        raise ValueError(f"expected a finite size of the shifts, got {size!r}")
    rows = np.asarray(x)
    group = groups(parties, n_groups, seed=seed)
    if rows.ndim < 2 or len(rows) != len(group):
        raise ValueError(
            f"expected a table or images of {len(group)} rows, one for each party named, got shape "
            f"{rows.shape}"
        )
    if rows.ndim == 2:
        return _moved(rows, group, n_groups, size=size, seed=seed + 1)
    if rows.shape[-1] != rows.shape[-2] or n_groups > 4:
        raise ValueError(
            f"expected square images and at most 4 groups, got {rows.shape} and {n_groups} groups"
        )
    turned = rows.copy()
    for number in range(1, n_groups):
        own = group == number
        turned[own] = np.rot90(rows[own], number, axes=(-2, -1))
    return turned


def _moved(
    rows: npt.NDArray[Any], group: npt.NDArray[np.int64], n_groups: int, *, size: float, seed: int
) -> npt.NDArray[Any]:
    """Return a table whose columns are moved for each group but the first."""
    deviations = rows.std(axis=0)
    if not np.isfinite(deviations).all():
        raise ValueError("expected finite columns, found cells that are missing or infinite")
    moves = size * generator(seed).normal(size=(n_groups, rows.shape[1])) * deviations
    moves[0] = 0
    return np.asarray(rows + moves[group])


def by_time(times: npt.ArrayLike, n_parties: int) -> Parties:
    """Split rows into stretches of time that follow one another, of nearly equal numbers of rows.

    Parameters
    ----------
    times : array-like of shape (n_rows,)
        When each row came, numbers, dates or text; rows of one time keep their order.
    n_parties : int
        Parties; the first has the earliest rows.

    Returns
    -------
    str array of shape (n_rows,)
        Party that owns each row.

    Raises
    ------
    ValueError
        If a time is missing: None, NaN or empty text.
    TypeError
        If the times cannot be put in order, such as dates among numbers.
    PartitionError
        If there are more parties than rows.
    """
    when = np.asarray(times)
    if when.ndim != 1:
        raise ValueError(f"expected a time for each row, got shape {when.shape}")
    refuse_missing(when, "time", ValueError)
    refuse_too_few_rows(len(when), n_parties, min_rows=1)
    try:
        order = np.argsort(when, kind="stable")
    except TypeError as error:
        raise TypeError(f"expected times that can be put in order, found {error}") from error
    index = np.empty(len(when), np.int64)
    index[order] = np.arange(len(when)) * n_parties // len(when)
    return party_names(index)
