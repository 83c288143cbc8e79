"""Simulated clients: groups with shifted labels or features, unseen parties, row roles."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Array, Booleans, Integers
from fedneighbors.partition._assignment import generator, index_parties, rank_in_groups


def groups(parties: npt.ArrayLike, n_groups: int, *, seed: int) -> Integers:
    """Assign parties at random to groups of nearly equal size.

    The sizes of the groups, in parties, differ by at most one.

    Parameters
    ----------
    parties : array-like of shape (n_rows,)
        Party that owns each row.
    n_groups : int
        Number of groups, at most the number of parties.
    seed : int
        Seed of the assignment.

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
) -> Array:
    """Permute the labels of each group of parties (concept shift).

    The first group keeps its labels; every other group has its own permutation.

    Parameters
    ----------
    y : array-like of shape (n_rows,)
        Labels.
    parties : array-like of shape (n_rows,)
        Party that owns each row.
    n_groups : int
        Number of groups of parties.
    seed : int
        Seed of groups and permutations.

    Returns
    -------
    array of shape (n_rows,)
        Labels of the type of ``y``.

    Raises
    ------
    ValueError
        If there are fewer parties than groups, or not as many labels as rows.
    """
    labels = np.asarray(y)
    group = groups(parties, n_groups, seed=seed)
    if labels.shape != group.shape:
        raise ValueError(f"expected {len(group)} labels, one for each row, got {labels.shape}")
    classes, index = np.unique(labels, return_inverse=True)
    rng = generator(seed + 1)
    permutations = [np.arange(len(classes))]
    permutations += [rng.permutation(len(classes)) for _ in range(n_groups - 1)]
    return np.asarray(classes[np.array(permutations)[group, index]])


def shift_features(
    x: npt.ArrayLike, parties: npt.ArrayLike, *, n_groups: int = 4, size: float = 1.0, seed: int
) -> Array:
    """Shift the features of each group of parties (feature shift).

    Square images of group ``g`` are rotated by ``g`` quarter turns. To each column of a table, a
    normal random number is added, one for each group but the first, scaled by ``size`` and the
    column's standard deviation.

    Parameters
    ----------
    x : array-like of shape (n_rows, ...)
        A two-dimensional table with finite columns, or images of at least three dimensions whose
        last two have the same length.
    parties : array-like of shape (n_rows,)
        Party that owns each row.
    n_groups : int
        Number of groups of parties, at most four for images. The first group keeps its features.
    size : float
        Scale of the column shifts, in standard deviations; finite.
    seed : int
        Seed of groups and shifts.

    Returns
    -------
    array of the shape of ``x``

    Raises
    ------
    ValueError
        If ``x`` is one-dimensional or its length differs from that of ``parties``, a column or
        ``size`` is not finite, images are not square, or there are more than four groups of images.
    """
    if not np.isfinite(size):
        raise ValueError(f"expected a finite size, got {size!r}")
    rows = np.asarray(x)
    group = groups(parties, n_groups, seed=seed)
    if rows.ndim < 2 or len(rows) != len(group):
        raise ValueError(
            f"expected a table or images with {len(group)} rows, one per entry of parties, got "
            f"shape {rows.shape}"
        )
    if rows.ndim == 2:
        return _shift_columns(rows, group, n_groups, size=size, seed=seed + 1)
    if rows.shape[-1] != rows.shape[-2] or n_groups > 4:
        raise ValueError(
            f"expected square images and at most 4 groups, got {rows.shape} and {n_groups} groups"
        )
    rotated = rows.copy()
    for number in range(1, n_groups):
        in_group = group == number
        rotated[in_group] = np.rot90(rows[in_group], number, axes=(-2, -1))
    return rotated


def _shift_columns(rows: Array, group: Integers, n_groups: int, *, size: float, seed: int) -> Array:
    """Shift the columns of a table for each group but the first."""
    deviations = rows.std(axis=0)
    if not np.isfinite(deviations).all():
        raise ValueError("expected finite columns, found missing or infinite cells")
    shifts = size * generator(seed).normal(size=(n_groups, rows.shape[1])) * deviations
    shifts[0] = 0
    return np.asarray(rows + shifts[group])


Mask = Booleans


@dataclass(frozen=True)
class RowRoles:
    """Disjoint roles of rows.

    Parameters
    ----------
    train, validation, test : bool array of shape (n_rows,)
        True for the rows of each role.
    """

    train: Mask
    validation: Mask
    test: Mask


def row_roles(
    parties: npt.ArrayLike, *, validation: float = 0.0, test: float = 0.2, seed: int
) -> RowRoles:
    """Split each party's rows at random into training, validation and test.

    The row counts are rounded for each party, halves up; every party keeps at least one training
    row.

    Parameters
    ----------
    parties : array-like of shape (n_rows,)
        Party that owns each row.
    validation, test : float
        Fractions of each party's rows; their sum is below 1.
    seed : int
        Seed of the split.

    Returns
    -------
    RowRoles

    Raises
    ------
    ValueError
        If a fraction is negative or NaN, or their sum is not below 1.
    """
    _check_shares(validation, test)
    _, owner = index_parties(parties)
    sizes, rank = np.bincount(owner), np.empty(len(owner), np.int64)
    # Permutations of one stream are alike: test rows would be of other classes than training rows
    # if the parties were drawn by class with the same seed.
    shuffled = generator(seed, 1).permutation(len(owner))
    rank[shuffled[np.argsort(owner[shuffled], kind="stable")]] = rank_in_groups(sizes)
    n_test, n_held_out = _count_roles(sizes, validation, test)
    is_test = rank < n_test[owner]
    is_validation = (rank < n_held_out[owner]) & ~is_test
    return RowRoles(~is_test & ~is_validation, is_validation, is_test)


def ordered_roles(
    parties: npt.ArrayLike, *, validation: float = 0.0, test: float = 0.2, gap: int = 0
) -> RowRoles:
    """Split each party's rows in order: training first, test last.

    Parameters
    ----------
    parties : array-like of shape (n_rows,)
        Party that owns each row; the rows of a party are in order of time.
    validation, test : float
        Fractions of each party's rows; their sum is below 1. Row counts are rounded halves up.
    gap : int
        Number of rows without a role before the validation rows and before the test rows, so that
        windows that overlap do not have different roles. A small party may get no training rows.

    Returns
    -------
    RowRoles
        The rows of a gap have no role.

    Raises
    ------
    ValueError
        If a fraction is negative or NaN, their sum is not below 1, or the gap is not a non-negative
        integer.

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
    n_later = sizes[owner] - 1 - rank  # later rows of the party
    is_test, held_out = n_later < n_test, n_later < n_held_out
    in_gap = np.zeros(len(owner), bool)
    for n_after_gap in (n_test, n_held_out):
        in_gap |= (n_after_gap > 0) & (n_later >= n_after_gap) & (n_later < n_after_gap + gap)
    return RowRoles(~held_out & ~in_gap, held_out & ~is_test & ~in_gap, is_test)


def unseen_parties(parties: npt.ArrayLike, share: float, *, seed: int) -> tuple[str, ...]:
    """Choose the parties that join only after training.

    Parameters
    ----------
    parties : array-like of shape (n_rows,)
        Party that owns each row.
    share : float
        Fraction of all parties to choose, in [0, 1); at least one party is not chosen.
    seed : int
        Seed of the choice.

    Returns
    -------
    tuple of str
        Names of the parties, sorted.

    Raises
    ------
    ValueError
        If the share is out of range or NaN.
    """
    if not 0 <= share < 1:
        raise ValueError(f"expected a share of parties from 0 up to 1, got {share!r}")
    names, _ = index_parties(parties)
    n = min(int(np.floor(share * len(names) + 0.5)), len(names) - 1)
    return tuple(sorted(names[generator(seed).permutation(len(names))[:n]].tolist()))


def _check_shares(validation: float, test: float) -> None:
    if not (validation >= 0 and test >= 0 and validation + test < 1):  # also true for NaN
        raise ValueError(
            f"expected non-negative shares with a sum below 1, got validation={validation} and "
            f"test={test}"
        )


def _count_roles(sizes: Integers, validation: float, test: float) -> tuple[Integers, Integers]:
    """Return each party's numbers of test rows and of held-out rows.

    Held-out rows are validation and test rows.
    """
    n_test = np.minimum(np.floor(test * sizes + 0.5), sizes - 1).astype(np.int64)
    n_held_out = np.minimum(np.floor((validation + test) * sizes + 0.5), sizes - 1).astype(np.int64)
    return n_test, np.maximum(n_held_out, n_test)
