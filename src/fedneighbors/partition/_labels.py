"""Splits with label skew: Dirichlet, few classes per party, pachinko allocation."""

import heapq

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Booleans, Floats, Integers
from fedneighbors.errors import PartitionError
from fedneighbors.partition._assignment import (
    Parties,
    check_enough_rows,
    generator,
    index_classes,
    party_names,
    rank_in_groups,
)


def dirichlet(
    y: npt.ArrayLike,
    n_parties: int,
    *,
    alpha: float = 0.5,
    min_rows: int = 1,
    max_tries: int = 100,
    seed: int,
) -> Parties:
    """Split each class over the parties by Dirichlet shares.

    For each class, in ascending order, the shares of the parties are drawn from
    ``Dirichlet(alpha, ..., alpha)`` [1]_; the class's rows are permuted and split at the cumulative
    shares. If any party has fewer than ``min_rows`` rows, all shares are drawn again.

    Parameters
    ----------
    y : array-like of shape (n_rows,)
        Labels.
    n_parties : int
        Number of parties, at most the number of rows.
    alpha : float, default=0.5
        Concentration, in [1e-9, 1e9]. The smaller it is, the fewer classes a party has.
    min_rows : int, default=1
        Minimum number of rows per party. With 0, a party may get no rows; it is then absent from
        the result.
    max_tries : int, default=100
        Maximum number of draws.
    seed : int
        Seed of shares and permutations.

    Returns
    -------
    str array of shape (n_rows,)
        Party that owns each row.

    Raises
    ------
    ValueError
        If an argument is out of range.
    PartitionError
        If there are too few rows, or none of ``max_tries`` draws gave each party its minimum.

    References
    ----------
    .. [1] Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution for
       Federated Visual Classification", 2019.

    Examples
    --------
    >>> from fedneighbors.partition import dirichlet
    >>> import numpy as np
    >>> parties = dirichlet(np.repeat([0, 1], 50), 3, alpha=100.0, seed=1)
    >>> len(parties), sorted(set(parties.tolist()))
    (100, ['party-0', 'party-1', 'party-2'])
    """
    classes = index_classes(y)
    check_enough_rows(len(classes), n_parties, min_rows=min_rows)
    _check_concentration("alpha", alpha)
    if max_tries < 1:
        raise ValueError(f"max_tries must be at least 1, got {max_tries}")
    rng = generator(seed)
    class_sizes = np.bincount(classes)
    largest_minimum = 0
    for _ in range(max_tries):
        counts = _dirichlet_counts(class_sizes, n_parties, alpha=alpha, rng=rng)
        minimum = int(counts.sum(axis=0).min())
        if minimum >= min_rows:
            return _assign_rows(classes, counts, rng=rng)
        largest_minimum = max(largest_minimum, minimum)
    raise PartitionError(
        f"found no partition into {n_parties} parties with at least {min_rows} rows each at "
        f"alpha={alpha}; in {max_tries} draws the smallest party had at most {largest_minimum} of "
        f"{len(classes)} rows. Raise alpha, lower n_parties or min_rows, or allow empty parties "
        "with min_rows=0"
    )


def pathological(
    y: npt.ArrayLike, n_parties: int, *, classes_per_party: int = 2, seed: int
) -> Parties:
    """Split rows into shards of one class, a few for each party.

    This is similar to the split of the FedAvg paper [1]_. Each class starts with one shard. The
    class with the largest shards (ties go to the lower class) is divided into one shard more,
    repeatedly, until there are ``n_parties * classes_per_party`` shards. Shards are assigned at
    random, ``classes_per_party`` to each party, so that a party has at most that many classes.

    Parameters
    ----------
    y : array-like of shape (n_rows,)
        Labels.
    n_parties : int
        Number of parties.
    classes_per_party : int, default=2
        Maximum number of classes per party.
    seed : int
        Seed of the assignment.

    Returns
    -------
    str array of shape (n_rows,)
        Party that owns each row.

    Raises
    ------
    ValueError
        If an argument is out of range.
    PartitionError
        If there are fewer shards than classes or fewer rows than shards.

    References
    ----------
    .. [1] McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized
       Data", AISTATS 2017, section 3.
    """
    classes = index_classes(y)
    class_sizes = np.bincount(classes)
    _check_capacity(len(classes), len(class_sizes), n_parties, classes_per_party)
    n_shards = n_parties * classes_per_party
    rng = generator(seed)
    shards_of_class = _shards_per_class(class_sizes, n_shards)
    owner = np.empty(n_shards, dtype=np.int64)
    owner[rng.permutation(n_shards)] = np.repeat(np.arange(n_parties), classes_per_party)
    counts = np.zeros((len(class_sizes), n_parties), dtype=np.int64)
    shard_classes = np.repeat(np.arange(len(class_sizes)), shards_of_class)
    np.add.at(counts, (shard_classes, owner), _shard_sizes(class_sizes, shards_of_class))
    return _assign_rows(classes, counts, rng=rng)


def pathological_v2(
    y: npt.ArrayLike, n_parties: int, *, classes_per_party: int = 2, seed: int
) -> Parties:
    """Split rows into parties of ``classes_per_party`` classes, in unequal amounts.

    This is a common benchmark split for personalization. The numbers of parties that hold each
    class differ by at most one and are at least one. Each party of a class gets one of its rows;
    the others are divided in proportion to weights drawn uniformly between 0.4 and 0.6 [1]_.

    Parameters
    ----------
    y : array-like of shape (n_rows,)
        Labels.
    n_parties : int
        Number of parties.
    classes_per_party : int, default=2
        Number of classes per party, at most all classes. Usually two of ten classes or ten of a
        hundred.
    seed : int
        Seed of the classes of each party and of the weights.

    Returns
    -------
    str array of shape (n_rows,)
        Party that owns each row.

    Raises
    ------
    ValueError
        If an argument is out of range.
    PartitionError
        If a class would have no party, or has fewer rows than parties.

    References
    ----------
    .. [1] Achituve et al., "Personalized Federated Learning with Gaussian Processes", NeurIPS 2021,
       appendix C.
    """
    classes = index_classes(y)
    sizes = np.bincount(classes)
    rng, classes_per_party = generator(seed), min(classes_per_party, len(sizes))
    _check_capacity(len(classes), len(sizes), n_parties, classes_per_party)
    holds = _assign_classes(len(sizes), n_parties, classes_per_party, rng=rng)
    counts = np.zeros((len(sizes), n_parties), np.int64)
    for label, holders in enumerate(holds.T):
        members = np.flatnonzero(holders)
        if len(members) > sizes[label]:
            raise PartitionError(
                f"{len(members)} parties would share the {sizes[label]} rows of one class; lower "
                "n_parties or classes_per_party"
            )
        weights = rng.uniform(0.4, 0.6, size=len(members))
        ends = np.floor(np.cumsum(weights) / weights.sum() * (sizes[label] - len(members)))
        ends[-1] = sizes[label] - len(members)
        counts[label, members] = 1 + np.diff(ends, prepend=0).astype(np.int64)
    return _assign_rows(classes, counts, rng=rng)


def pachinko(
    coarse: npt.ArrayLike,
    fine: npt.ArrayLike,
    n_parties: int,
    *,
    alpha: float = 0.1,
    beta: float = 10.0,
    seed: int,
) -> Parties:
    """Split rows by pachinko allocation over two levels of labels.

    Each party draws its shares of the coarse labels, and of the fine labels under each coarse one,
    from Dirichlet distributions [1]_; its rows are then drawn one by one without replacement [2]_.
    If a fine label has no rows left, its share is divided among the other fine labels under the
    same coarse label; if a coarse label has none, among the other coarse labels.

    Parameters
    ----------
    coarse, fine : array-like of shape (n_rows,)
        Labels of both levels; every fine label belongs to one coarse label.
    n_parties : int
        Number of parties; their numbers of rows differ by at most one.
    alpha, beta : float
        Concentrations of the distributions of coarse and of fine labels.
    seed : int
        Seed of all draws.

    Returns
    -------
    str array of shape (n_rows,)
        Party that owns each row.

    Raises
    ------
    ValueError
        If an argument is out of range, or a fine label has several coarse labels.
    PartitionError
        If there are more parties than rows.

    References
    ----------
    .. [1] Li and McCallum, "Pachinko Allocation: DAG-Structured Mixture Models of Topic
       Correlations", ICML 2006.
    .. [2] Reddi et al., "Adaptive Federated Optimization", ICLR 2021, appendix C.
    """
    coarse_index, fine_index = index_classes(coarse), index_classes(fine)
    if len(coarse_index) != len(fine_index):
        raise ValueError(
            f"expected as many coarse as fine labels, got {len(coarse_index)} and {len(fine_index)}"
        )
    check_enough_rows(len(coarse_index), n_parties, min_rows=1)
    _check_concentration("alpha", alpha)
    _check_concentration("beta", beta)
    children = _group_fine_labels(coarse_index, fine_index)
    rng = generator(seed)
    remaining = np.bincount(fine_index)
    counts = np.empty((len(remaining), n_parties), np.int64)
    sizes = np.diff(np.arange(n_parties + 1) * len(coarse_index) // n_parties)
    for party in rng.permutation(n_parties):
        counts[:, party] = _draw_rows(int(sizes[party]), remaining, children, alpha, beta, rng)
        remaining -= counts[:, party]
    return _assign_rows(fine_index, counts, rng=rng)


def _check_capacity(n_rows: int, n_classes: int, n_parties: int, classes_per_party: int) -> None:
    """Check that the parties can hold all classes and have enough rows."""
    if classes_per_party < 1:
        raise ValueError(f"classes_per_party must be at least 1, got {classes_per_party}")
    check_enough_rows(n_rows, n_parties, min_rows=classes_per_party)
    if n_parties * classes_per_party < n_classes:
        raise PartitionError(
            f"{n_parties} parties with {classes_per_party} classes each cannot hold the "
            f"{n_classes} classes; raise n_parties or classes_per_party"
        )


def _check_concentration(name: str, value: float) -> None:
    """Check the concentration of a Dirichlet distribution."""
    if not 1e-9 <= value <= 1e9:  # beyond these limits, shares are 0, 1 or equal up to rounding
        raise ValueError(f"{name} must be in [1e-9, 1e9], got {value!r}")


def _assign_classes(
    n_classes: int, n_parties: int, classes_per_party: int, *, rng: np.random.Generator
) -> Booleans:
    """Assign classes to parties; return a mask of parties by classes.

    Each party takes the classes that the fewest parties hold so far, ties at random.
    """
    holds = np.zeros((n_parties, n_classes), bool)
    for party in range(n_parties):
        tie_breaker = rng.permutation(n_classes)
        rarest = np.lexsort((tie_breaker, holds.sum(axis=0)))
        holds[party, rarest[:classes_per_party]] = True
    return holds


def _dirichlet_counts(
    class_sizes: Integers, n_parties: int, *, alpha: float, rng: np.random.Generator
) -> Integers:
    """Draw how many rows of each class (row) each party (column) gets."""
    shares = rng.dirichlet(np.full(n_parties, alpha), size=len(class_sizes))
    ends = np.floor(np.cumsum(shares, axis=1) * class_sizes[:, None]).astype(np.int64)
    ends[:, -1] = class_sizes  # the cumulative shares may end a rounding error away from 1
    return np.diff(np.minimum(ends, class_sizes[:, None]), axis=1, prepend=0)


def _assign_rows(classes: Integers, counts: Integers, *, rng: np.random.Generator) -> Parties:
    """Permute each class's rows and assign them to parties by ``counts``."""
    shuffled = rng.permutation(len(classes))
    by_class = shuffled[np.argsort(classes[shuffled], kind="stable")]
    n_classes, n_parties = counts.shape
    index = np.empty(len(classes), dtype=np.int64)
    index[by_class] = np.repeat(np.tile(np.arange(n_parties), n_classes), counts.ravel())
    return party_names(index)


def _shards_per_class(class_sizes: Integers, n_shards: int) -> Integers:
    """Return each class's number of shards, minimizing the largest shard.

    Every class gets at least one shard.
    """
    shards = np.ones(len(class_sizes), dtype=np.int64)
    largest = [(-float(size), label) for label, size in enumerate(class_sizes)]
    heapq.heapify(largest)
    for _ in range(n_shards - len(class_sizes)):
        _, label = largest[0]
        shards[label] += 1
        heapq.heapreplace(largest, (-float(class_sizes[label] / shards[label]), label))
    return shards


def _shard_sizes(class_sizes: Integers, shards: Integers) -> Integers:
    """Return the number of rows of each shard, class by class.

    The shards of a class differ by at most one row.
    """
    smaller_size, n_larger = np.divmod(class_sizes, shards)
    sizes: Integers = np.repeat(smaller_size, shards) + (
        rank_in_groups(shards) < np.repeat(n_larger, shards)
    )
    return sizes


def _group_fine_labels(coarse_index: Integers, fine_index: Integers) -> list[Integers]:
    """Return the fine labels of each coarse label."""
    parent = np.full(fine_index.max() + 1, -1)
    parent[fine_index] = coarse_index
    if (parent[fine_index] != coarse_index).any():
        raise ValueError("expected one coarse label for each fine label, got several for one")
    return [np.flatnonzero(parent == label) for label in range(coarse_index.max() + 1)]


def _draw_rows(
    n_rows: int,
    remaining: Integers,
    children: list[Integers],
    alpha: float,
    beta: float,
    rng: np.random.Generator,
) -> Integers:
    """Draw how many rows of each fine label one party gets.

    Draws from labels without remaining rows are repeated among the others. This is equivalent to
    drawing the rows one by one.
    """
    shares = rng.dirichlet(np.full(len(children), alpha))
    fine_shares = [rng.dirichlet(np.full(len(fine), beta)) for fine in children]
    taken = np.zeros(len(remaining), np.int64)
    n_needed = n_rows
    while n_needed:
        by_coarse = np.array([int((remaining - taken)[fine].sum()) for fine in children])
        drawn = np.minimum(rng.multinomial(n_needed, _renormalize(shares, by_coarse)), by_coarse)
        for label, fine in enumerate(children):
            wanted = int(drawn[label])
            while wanted:
                by_fine = (remaining - taken)[fine]
                taken_here = np.minimum(
                    rng.multinomial(wanted, _renormalize(fine_shares[label], by_fine)), by_fine
                )
                taken[fine] += taken_here
                wanted -= int(taken_here.sum())
        n_needed -= int(drawn.sum())
    return taken


def _renormalize(shares: Floats, remaining: Integers) -> Floats:
    """Restrict shares to labels with remaining rows and normalize them.

    If all these shares are zero, the labels with remaining rows get equal shares.
    """
    restricted = np.where(remaining > 0, shares, 0.0)
    if restricted.sum() <= 0:
        restricted = (remaining > 0).astype(np.float64)
    return np.asarray(restricted / restricted.sum())
