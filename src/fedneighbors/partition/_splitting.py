"""Owns the choice of a split by name, for command lines and experiments."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from fedneighbors.partition._assignment import Parties
from fedneighbors.partition._dealing import iid, quantity_skew
from fedneighbors.partition._hierarchy import pachinko
from fedneighbors.partition._labels import dirichlet, pathological, pathological_v2

_BY_ROWS: Mapping[str, Callable[..., Parties]] = MappingProxyType(
    {"iid": iid, "quantity_skew": quantity_skew}
)
_BY_LABELS: Mapping[str, Callable[..., Parties]] = MappingProxyType(
    {"dirichlet": dirichlet, "pathological": pathological, "pathological_v2": pathological_v2}
)
_PACHINKO = "pachinko"
KINDS = tuple(sorted([*_BY_ROWS, *_BY_LABELS, _PACHINKO]))


def split(
    kind: str,
    y: npt.ArrayLike,
    n_parties: int,
    *,
    seed: int,
    coarse: npt.ArrayLike | None = None,
    **parameters: float,
) -> Parties:
    """Split the rows with these labels in the way of that name.

    Splits that draw nothing have no name here: call ``natural`` with owners, ``by_time`` with
    times. ``permute_labels`` and ``shift_features`` deal no rows: they change the data of parties
    that have theirs.

    Parameters
    ----------
    kind : str
        One of ``KINDS``: ``"dirichlet"``, ``"iid"``, ``"pachinko"``, ``"pathological"``,
        ``"pathological_v2"``, ``"quantity_skew"``.
    y : array-like of shape (n_rows,)
        Labels; the fine ones for ``"pachinko"``.
    n_parties : int
        Parties.
    seed : int
        Seed of the split.
    coarse : array-like of shape (n_rows,), optional
        Coarse labels, for ``"pachinko"`` alone.
    **parameters
        Parameters of the function of that name.

    Returns
    -------
    str array of shape (n_rows,)
        Party that owns each row.

    Raises
    ------
    ValueError
        If there is no such kind, an argument is out of its range, or coarse labels are missing.
    TypeError
        If the kind has no such parameter, or takes no coarse labels.
    PartitionError
        If no such partition was found.

    Examples
    --------
    >>> from fedneighbors.partition import split
    >>> sorted(set(split("dirichlet", [0, 0, 1, 1], 2, seed=0, alpha=10.0).tolist()))
    ['party-0', 'party-1']
    """
    if kind not in KINDS:
        raise ValueError(f"there is no split {kind!r}; choose one of {', '.join(KINDS)}")
    if kind == _PACHINKO:
        if coarse is None:
            raise ValueError("the split 'pachinko' needs the coarse label of each row, as coarse=")
        return pachinko(coarse, y, n_parties, seed=seed, **parameters)
    if coarse is not None:
        raise TypeError(f"the split {kind!r} takes no coarse labels; leave out coarse=")
    if kind in _BY_ROWS:
        return _BY_ROWS[kind](len(np.asarray(y)), n_parties, seed=seed, **parameters)
    return _BY_LABELS[kind](y, n_parties, seed=seed, **parameters)
