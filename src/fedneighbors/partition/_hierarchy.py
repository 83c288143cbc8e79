"""Owns the splits that follow two levels of labels: pachinko allocation."""

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats, Integers
from fedneighbors.errors import PartitionError
from fedneighbors.partition._assignment import (
    Parties,
    checked_labels,
    generator,
    party_names,
    refuse_too_few_rows,
)


def pachinko(
    coarse: npt.ArrayLike,
    fine: npt.ArrayLike,
    n_parties: int,
    *,
    alpha: float = 0.1,
    beta: float = 10.0,
    seed: int,
) -> Parties:
    """Deal rows by shares of coarse labels, and of the fine labels under each, drawn per party.

    Each party draws its shares of the coarse labels, and under each of its fine labels, from
    Dirichlet laws [1]_; its rows are then drawn one by one without replacement [2]_. A fine label
    that is used up passes its share on to the others under its coarse one, a coarse one to the
    other coarse ones.

    Parameters
    ----------
    coarse, fine : array-like of shape (n_rows,)
        Labels of both levels; every fine label belongs to one coarse label.
    n_parties : int
        Parties; their numbers of rows differ by at most one.
    alpha, beta : float
        Concentrations of the laws of coarse and of fine labels.
    seed : int
        Of all draws.

    Returns
    -------
    str array of shape (n_rows,)
        Party that owns each row.

    Raises
    ------
    ValueError
        If an argument is out of its range, or a fine label has two coarse ones.
    PartitionError
        If there are more parties than rows.

    References
    ----------
    .. [1] Li and McCallum, "Pachinko Allocation: DAG-Structured Mixture Models of Topic
       Correlations", ICML 2006.
    .. [2] Reddi et al., "Adaptive Federated Optimization", ICLR 2021, appendix C.
    """
    above, below = checked_labels(coarse), checked_labels(fine)
    if len(above) != len(below):
        raise ValueError(f"expected two labels for each row, got {len(above)} and {len(below)}")
    refuse_too_few_rows(len(above), n_parties, min_rows=1)
    for name, value in (("alpha", alpha), ("beta", beta)):
        if not 1e-9 <= value <= 1e9:
            raise ValueError(f"{name} must lie in [1e-9, 1e9], got {value!r}")
    family = _family(above, below)
    rng = generator(seed)
    left = np.bincount(below)
    counts = np.empty((n_parties, len(left)), np.int64)
    sizes = np.diff(np.arange(n_parties + 1) * len(above) // n_parties)
    for party in rng.permutation(n_parties):
        counts[party] = _drawn(int(sizes[party]), left, family, alpha, beta, rng)
        left -= counts[party]
    return _dealt(below, counts, rng)


def _family(above: Integers, below: Integers) -> list[Integers]:
    """Return the fine labels of each coarse label."""
    parent = np.full(below.max() + 1, -1)
    parent[below] = above
    if (parent[below] != above).any():
        raise ValueError("expected one coarse label for each fine label, got several for one")
    return [np.flatnonzero(parent == label) for label in range(above.max() + 1)]


def _drawn(
    n_rows: int,
    left: Integers,
    family: list[Integers],
    alpha: float,
    beta: float,
    rng: np.random.Generator,
) -> Integers:
    """Return how many rows of each fine label one party draws.

    Draws of what is used up are drawn again from what is left, which is what one draw after another
    comes to.
    """
    shares = rng.dirichlet(np.full(len(family), alpha))
    below = [rng.dirichlet(np.full(len(fine), beta)) for fine in family]
    taken = np.zeros(len(left), np.int64)
    missing = n_rows
    while missing:
        free = np.array([int((left - taken)[fine].sum()) for fine in family])
        each = np.minimum(rng.multinomial(missing, _among(shares, free)), free)
        for label, fine in enumerate(family):
            wanted = int(each[label])
            while wanted:
                room = (left - taken)[fine]
                got = np.minimum(rng.multinomial(wanted, _among(below[label], room)), room)
                taken[fine] += got
                wanted -= int(got.sum())
        missing -= int(each.sum())
    return taken


def _among(shares: Floats, free: Integers) -> Floats:
    """Return the shares of what is not used up; equal ones where these have none at all."""
    kept = np.where(free > 0, shares, 0.0)
    if kept.sum() <= 0:
        kept = (free > 0).astype(np.float64)
    return np.asarray(kept / kept.sum())


def _dealt(below: Integers, counts: Integers, rng: np.random.Generator) -> Parties:
    """Return the party of each row: rows of a fine label go to parties at random."""
    if (counts.sum(axis=0) != np.bincount(below)).any():
        raise PartitionError("rows were lost while they were dealt")
    owner = np.empty(len(below), np.int64)
    shuffled = rng.permutation(len(below))
    by_label = shuffled[np.argsort(below[shuffled], kind="stable")]
    n_parties, n_labels = counts.shape
    owner[by_label] = np.repeat(np.tile(np.arange(n_parties), n_labels), counts.T.ravel())
    return party_names(owner)
