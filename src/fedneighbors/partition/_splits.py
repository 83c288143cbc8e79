"""Splits that ignore labels (by size, owner or time), and ``split``, which takes a name."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Array, Floats, Integers
from fedneighbors.errors import DataError
from fedneighbors.partition._assignment import (
    Parties,
    apportion,
    check_enough_rows,
    generator,
    party_names,
)
from fedneighbors.partition._labels import dirichlet, pachinko, pathological, pathological_v2


def iid(n_rows: int, n_parties: int, *, seed: int) -> Parties:
    """Split rows at random into parties of nearly equal size.

    Parameters
    ----------
    n_rows : int
        Number of rows to split.
    n_parties : int
        Number of parties, at most ``n_rows``.
    seed : int
        Seed of the permutation.

    Returns
    -------
    str array of shape (n_rows,)
        Party that owns each row. The parties' sizes differ by at most one; the first parties are
        the larger ones.

    Raises
    ------
    ValueError
        If an argument is out of range.
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
    """Split rows at random into parties of Zipf-distributed sizes.

    The party with index ``i`` gets a share proportional to ``(i + 1) ** -factor``. Parties
    whose share is below ``min_rows`` get exactly ``min_rows``; the remaining rows are divided among
    the others in proportion. Fractions are rounded by the largest-remainder method; ties go to the
    lower index.

    Parameters
    ----------
    n_rows : int
        Number of rows to split.
    n_parties : int
        Number of parties, at most ``n_rows``.
    factor : float, default=1.0
        Exponent of Zipf's law, non-negative; 0 gives equal shares.
    min_rows : int, default=1
        Minimum number of rows per party.
    seed : int
        Seed of the permutation.

    Returns
    -------
    str array of shape (n_rows,)
        Party that owns each row.

    Raises
    ------
    ValueError
        If an argument is out of range.
    PartitionError
        If there are too few rows.
    """
    check_enough_rows(n_rows, n_parties, min_rows=min_rows)
    if not 0 <= factor < np.inf:
        raise ValueError(f"factor must be finite and non-negative, got {factor!r}")
    weights = np.arange(1, n_parties + 1, dtype=np.float64) ** -factor
    sizes = _zipf_sizes(n_rows, weights, min_rows=max(min_rows, 1))
    index = np.empty(n_rows, dtype=np.int64)
    index[generator(seed).permutation(n_rows)] = np.repeat(np.arange(n_parties), sizes)
    return party_names(index)


def natural(ids: npt.ArrayLike) -> Parties:
    """Split rows by a column of owner ids.

    Parameters
    ----------
    ids : array-like of shape (n_rows,)
        Strings or integers, such as a site, writer or client.

    Returns
    -------
    str array of shape (n_rows,)
        The ids as strings.

    Raises
    ------
    DataError
        If the column is empty, not one-dimensional, or has missing cells.
    """
    column: Array = np.asarray(ids)
    if column.ndim != 1 or len(column) == 0:
        raise DataError(f"the id column must hold one id per row, got shape {column.shape}")
    _check_no_missing(column, "id column", DataError)
    cells = column.tolist()
    keys = (int(cell) if isinstance(cell, float) and cell.is_integer() else cell for cell in cells)
    return np.array([str(cell) for cell in keys], dtype=np.str_)


def by_time(times: npt.ArrayLike, n_parties: int) -> Parties:
    """Split rows into consecutive periods with nearly equal row counts.

    Parameters
    ----------
    times : array-like of shape (n_rows,)
        Time of each row: numbers, dates or strings. Rows with equal times keep their order.
    n_parties : int
        Number of parties; the first has the earliest rows.

    Returns
    -------
    str array of shape (n_rows,)
        Party that owns each row.

    Raises
    ------
    ValueError
        If a time is missing: None, NaN or empty text.
    TypeError
        If the times cannot be ordered, such as dates mixed with numbers.
    PartitionError
        If there are more parties than rows.
    """
    column = np.asarray(times)
    if column.ndim != 1:
        raise ValueError(f"expected a time for each row, got shape {column.shape}")
    _check_no_missing(column, "time", ValueError)
    check_enough_rows(len(column), n_parties, min_rows=1)
    try:
        order = np.argsort(column, kind="stable")
    except TypeError as error:
        raise TypeError(f"expected times that can be ordered, found {error}") from error
    index = np.empty(len(column), np.int64)
    index[order] = np.arange(len(column)) * n_parties // len(column)
    return party_names(index)


_BY_ROWS: dict[str, Callable[..., Parties]] = {
    split.__name__: split for split in (iid, quantity_skew)
}
_BY_LABELS: dict[str, Callable[..., Parties]] = {
    split.__name__: split for split in (dirichlet, pathological, pathological_v2)
}
KINDS = tuple(sorted([*_BY_ROWS, *_BY_LABELS, "pachinko"]))


def split(
    kind: str,
    y: npt.ArrayLike,
    n_parties: int,
    *,
    seed: int,
    coarse: npt.ArrayLike | None = None,
    **parameters: float,
) -> Parties:
    """Split rows by the method with the given name.

    Deterministic splits are not available by name: call ``natural`` or ``by_time`` instead.
    ``permute_labels`` and ``shift_features`` do not split rows: they change the data of existing
    parties.

    Parameters
    ----------
    kind : str
        One of ``KINDS``: ``"dirichlet"``, ``"iid"``, ``"pachinko"``, ``"pathological"``,
        ``"pathological_v2"``, ``"quantity_skew"``.
    y : array-like of shape (n_rows,)
        Labels; the fine labels for ``"pachinko"``.
    n_parties : int
        Number of parties.
    seed : int
        Seed of the split.
    coarse : array-like of shape (n_rows,), optional
        Coarse labels, only for ``"pachinko"``.
    **parameters
        Parameters of the function with that name.

    Returns
    -------
    str array of shape (n_rows,)
        Party that owns each row.

    Raises
    ------
    ValueError
        If the kind is unknown, an argument is out of range, or coarse labels are missing.
    TypeError
        If the kind does not take a given parameter or coarse labels.
    PartitionError
        If no partition has the requested properties, or none was found.

    Examples
    --------
    >>> from fedneighbors.partition import split
    >>> sorted(set(split("dirichlet", [0, 0, 1, 1], 2, seed=0, alpha=10.0).tolist()))
    ['party-0', 'party-1']
    """
    if kind not in KINDS:
        raise ValueError(f"there is no split {kind!r}; choose one of {', '.join(KINDS)}")
    if kind == "pachinko":
        if coarse is None:
            raise ValueError("the split 'pachinko' needs coarse labels; pass coarse=")
        return pachinko(coarse, y, n_parties, seed=seed, **parameters)
    if coarse is not None:
        raise TypeError(f"the split {kind!r} takes no coarse labels; leave out coarse=")
    if kind in _BY_ROWS:
        return _BY_ROWS[kind](len(np.asarray(y)), n_parties, seed=seed, **parameters)
    return _BY_LABELS[kind](y, n_parties, seed=seed, **parameters)


def _check_no_missing(column: Array, name: str, error: type[Exception]) -> None:
    """Check that no cell is None, NaN or an empty string."""
    cells = column.tolist()
    missing = [row for row, cell in enumerate(cells) if cell is None or cell != cell or cell == ""]
    if missing:
        raise error(
            f"the {name} is missing in {len(missing)} rows, first in row {missing[0]}; "
            "fill or remove these rows"
        )


def _zipf_sizes(n_rows: int, weights: Floats, *, min_rows: int) -> Integers:
    """Return sizes proportional to descending weights, at least ``min_rows``."""
    n_parties = len(weights)
    ranks = np.arange(1, n_parties + 1)
    rows_of_head = n_rows - (n_parties - ranks) * min_rows
    last_size = rows_of_head * weights / np.cumsum(weights)
    head = int(np.flatnonzero(last_size >= min_rows)[-1]) + 1  # rank 1 always qualifies
    sizes = np.full(n_parties, min_rows, dtype=np.int64)
    sizes[:head] = apportion(int(rows_of_head[head - 1]), weights[:head])
    return sizes
