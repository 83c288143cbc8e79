"""Clients of a simulation: groups with shifted labels or features, unseen ones, roles of rows."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Integers
from fedneighbors.partition._assignment import generator, index_parties, rank_in_groups


def groups(parties: npt.ArrayLike, n_groups: int, *, seed: int) -> Integers:
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
    names, owner = index_parties(parties)
    if not 1 <= n_groups <= len(names):
        raise ValueError(f"expected 1 to {len(names)} groups of parties, got {n_groups}")
    group = np.empty(len(names), np.int64)
    group[generator(seed).permutation(len(names))] = np.arange(len(names)) % n_groups
    return group[owner]


def permute_labels(
    y: npt.ArrayLike, parties: npt.ArrayLike, *, n_groups: int = 4, seed: int
) -> npt.NDArray[Any]:
    """Permute label meanings for groups of parties (concept shift).

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
        return _shift_columns(rows, group, n_groups, size=size, seed=seed + 1)
    if rows.shape[-1] != rows.shape[-2] or n_groups > 4:
        raise ValueError(
            f"expected square images and at most 4 groups, got {rows.shape} and {n_groups} groups"
        )
    turned = rows.copy()
    for number in range(1, n_groups):
        own = group == number
        turned[own] = np.rot90(rows[own], number, axes=(-2, -1))
    return turned


def _shift_columns(
    rows: npt.NDArray[Any], group: Integers, n_groups: int, *, size: float, seed: int
) -> npt.NDArray[Any]:
    """Shift the columns of every group but the first."""
    deviations = rows.std(axis=0)
    if not np.isfinite(deviations).all():
        raise ValueError("expected finite columns, found cells that are missing or infinite")
    moves = size * generator(seed).normal(size=(n_groups, rows.shape[1])) * deviations
    moves[0] = 0
    return np.asarray(rows + moves[group])


Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class RowRoles:
    """Disjoint roles of rows.

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
    """Split each party's rows into training, validation and test rows.

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
    _check_shares(validation, test)
    _, owner = index_parties(parties)
    sizes, rank = np.bincount(owner), np.empty(len(owner), np.int64)
    shuffled = generator(seed).permutation(len(owner))
    rank[shuffled[np.argsort(owner[shuffled], kind="stable")]] = rank_in_groups(sizes)
    n_test, n_held_out = _count_roles(sizes, validation, test)
    is_test = rank < n_test[owner]
    is_validation = (rank < n_held_out[owner]) & ~is_test
    return RowRoles(~is_test & ~is_validation, is_validation, is_test)


def ordered_roles(
    parties: npt.ArrayLike, *, validation: float = 0.0, test: float = 0.2, gap: int = 0
) -> RowRoles:
    """Assign roles in time order: train first, test last.

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
    _check_shares(validation, test)
    if not (gap >= 0 and float(gap).is_integer()):
        raise ValueError(f"expected a gap of 0 rows or more, got {gap}")
    _, owner = index_parties(parties)
    sizes, rank = np.bincount(owner), np.empty(len(owner), np.int64)
    rank[np.argsort(owner, kind="stable")] = rank_in_groups(sizes)
    n_test, n_held_out = (counts[owner] for counts in _count_roles(sizes, validation, test))
    left = sizes[owner] - 1 - rank  # rows of the party that come after it
    is_test, held_out = left < n_test, left < n_held_out
    in_gap = np.zeros(len(owner), bool)
    for later in (n_test, n_held_out):
        in_gap |= (later > 0) & (left >= later) & (left < later + gap)
    return RowRoles(~held_out & ~in_gap, held_out & ~is_test & ~in_gap, is_test)


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
    names, _ = index_parties(parties)
    n = min(int(np.floor(share * len(names) + 0.5)), len(names) - 1)
    return tuple(sorted(names[generator(seed).permutation(len(names))[:n]].tolist()))


def _check_shares(validation: float, test: float) -> None:
    if not (validation >= 0 and test >= 0 and validation + test < 1):  # NaN is refused
        raise ValueError(
            f"expected shares that leave rows to train on, got validation={validation} and "
            f"test={test}"
        )


def _count_roles(sizes: Integers, validation: float, test: float) -> tuple[Integers, Integers]:
    """Return the numbers of test and other rows per party."""
    n_test = np.minimum(np.floor(test * sizes + 0.5), sizes - 1).astype(np.int64)
    n_held_out = np.minimum(np.floor((validation + test) * sizes + 0.5), sizes - 1).astype(np.int64)
    return n_test, np.maximum(n_held_out, n_test)
