"""FedPNN as pure functions: evolve centers, merge those of parties, estimate densities from them.

Letters of the paper: CC (``centers``), Ru (``radii``), freq (``counts``), Dthr (``threshold``),
d or q features (``n_features``), X_A the pattern neurons, which are centers, sigma (``sigma``).

A threshold below the distances of rows makes each row a center of its own, one above all of them a
single center of all rows; neither says anything of where the rows lie.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedneighbors._typing import Floats, Integers
from fedneighbors.kernels.clustering._evolving import evolve, nearest
from fedneighbors.kernels.clustering._kerneldensity import ACTIVATIONS, log_sums

Rule = Literal["modified", "original"]

SIGMAS: Floats = np.geomspace(1e-3, 10.0, 20)
"""Smoothings to choose from, in units of normalized distance: the same for all parties."""

_RULES: tuple[Rule, ...] = ("modified", "original")


@dataclass(frozen=True)
class Clusters:
    """Balls and what they hold.

    Parameters
    ----------
    centers : float64 array of shape (n_centers, n_features)
        CC of the paper.
    radii : float64 array of shape (n_centers,)
        Ru of the paper, in units of normalized distance.
    counts : int64 array of shape (n_centers, n_classes)
        freq of the paper: rows of each class.
    """

    centers: Floats
    radii: Floats
    counts: Integers


@dataclass(frozen=True)
class Grown(Clusters):
    """Balls after a pass over rows.

    Parameters
    ----------
    centers, radii, counts
        As those of :class:`Clusters`.
    rows : int64 array of shape (n_rows,)
        Center for which each row of the pass was counted.
    n_outside : int
        Rows of the pass that would have founded a center beyond ``max_centers``.
    """

    rows: Integers
    n_outside: int


def evolve_rows(
    x: Floats,
    y: Integers,
    n_classes: int,
    *,
    threshold: float,
    factor: float = 2.0,
    rule: Rule = "modified",
    max_centers: int | None = None,
    start: Clusters | None = None,
    n_threads: int = 1,
) -> Grown:
    """Cluster rows in one pass, in their order (Algorithm 2).

    Parameters
    ----------
    x : float64 array of shape (n_rows, n_features)
        Finite.
    y : int64 array of shape (n_rows,)
        Classes as positions; they do not touch the centers.
    n_classes : int
        Columns of the counts.
    threshold : float
        Dthr, in units of normalized distance (equation 3); with factor 2 the largest radius.
    factor : float
        A ball is stretched to a row whose distance plus radius is at most this times Dthr. The
        text of the paper says 2, its pseudo-code 1.
    rule : {"modified", "original"}
        A row joins its nearest center, if that one's ball holds it (the paper, lines 8 to 10), or
        the nearest among the centers whose balls hold it (Song and Kasabov).
    max_centers : int, optional
        When so many are there, a row that would found another is counted for its nearest center.
    start : Clusters, optional
        What earlier rows left.
    n_threads : int
        The result does not depend on it.

    Raises
    ------
    ValueError
        If an argument is out of range or a value is not finite.

    Examples
    --------
    >>> x = np.array([[0, 0], [0.2, 0], [0.9, 0.9], [0.9, 0.7], [0.5, 0.5]])
    >>> grown = evolve_rows(x, np.array([0, 0, 1, 1, 0]), 2, threshold=0.1)
    >>> grown.centers.round(3).tolist(), grown.radii.round(4).tolist(), grown.counts.tolist()
    ([[0.1, 0.0], [0.9, 0.8], [0.5, 0.5]], [0.0707, 0.0707, 0.0], [[2, 0], [0, 2], [1, 0]])
    """
    if rule not in _RULES:
        raise ValueError(f"expected rule as one of {_RULES}, got {rule!r}")
    for name, value in {"threshold": threshold, "factor": factor}.items():
        if not 0 < value < math.inf:
            raise ValueError(f"expected a finite {name} above 0, got {value!r}")
    if start is None:
        start = Clusters(x[:0], np.empty(0), np.zeros((0, n_classes), np.int64))
    centers, radii, rows, n_outside = evolve(
        x,
        start.centers,
        start.radii,
        limit=factor * threshold,
        original=rule == "original",
        max_centers=max_centers,
        n_threads=n_threads,
    )
    counts = np.bincount(rows * n_classes + y, minlength=len(centers) * n_classes)
    counts = counts.reshape(len(centers), n_classes).astype(np.int64)
    counts[: len(start.counts)] += start.counts
    return Grown(centers, radii, counts, rows, n_outside)


def nearest_centers(x: Floats, centers: Floats, *, n_threads: int = 1) -> tuple[Integers, Floats]:
    """Find each row's nearest center and its normalized distance.

    Ties go to the lower center.
    """
    return nearest(x, centers, n_threads=n_threads)


def majority(counts: Integers) -> Integers:
    """Return each center's most frequent class, ties to the lower."""
    return np.asarray(counts.argmax(axis=1), np.int64)


def canonical_order(centers: Floats, counts: Integers) -> Integers:
    """Return an order of centers that does not depend on their origin.

    Ascending by the first feature, then the second and so on, then by the counts.
    """
    keys = [*centers.T, *counts.T]
    return np.asarray(np.lexsort(keys[::-1]), np.int64)


def merge_centers(
    centers: Floats,
    counts: Integers,
    *,
    threshold: float | None,
    factor: float = 2.0,
    rule: Rule = "modified",
    classwise: bool = False,
) -> Clusters:
    """Return the clusters of the centers of all parties: meta-clustering (Algorithm 4).

    The radii that centers had at their parties are not used. Centers come in canonical order, so
    that the order of parties does not matter.

    Parameters
    ----------
    centers : float64 array of shape (n_centers, n_features)
        Of all parties, one after the other.
    counts : int64 array of shape (n_centers, n_classes)
        Rows of each class; they are added.
    threshold : float or None
        Dthr of the server. None keeps every center.
    factor : float
        As for :func:`evolve_rows`.
    rule : {"modified", "original"}
        As for :func:`evolve_rows`.
    classwise : bool
        Cluster the centers of each majority class by themselves, the lower classes first.

    Raises
    ------
    ValueError
        If an argument is out of range or a value is not finite.
    """
    order = canonical_order(centers, counts)
    points, freq = centers[order] + 0.0, counts[order]  # + 0.0: one sign for all zeros
    if threshold is None:
        return Clusters(points, np.zeros(len(points)), freq)
    groups = majority(freq) if classwise else np.zeros(len(points), np.int64)
    grown = []
    for group in np.unique(groups):
        own = groups == group
        nothing = np.zeros(int(own.sum()), np.int64)
        part = evolve_rows(points[own], nothing, 1, threshold=threshold, factor=factor, rule=rule)
        sums = np.zeros((len(part.centers), freq.shape[1]), np.int64)
        np.add.at(sums, part.rows, freq[own])
        grown.append((part.centers, part.radii, sums))
    if not grown:
        return Clusters(points, np.zeros(0), freq)
    return Clusters(*(np.concatenate(parts) for parts in zip(*grown, strict=True)))


def group_means(points: Floats, rows: Integers) -> Floats:
    """Compute the mean point of each group.

    Shape (n_groups, n_dimensions).

    Parameters
    ----------
    points : float64 array of shape (n_rows, n_dimensions)
        Points.
    rows : int64 array of shape (n_rows,)
        Group of each, from 0 on, none of them empty.
    """
    sizes = np.bincount(rows)
    sums = np.zeros((len(sizes), points.shape[1]))
    np.add.at(sums, rows, points)
    return np.asarray(sums / sizes[:, None])


def merge_small(
    centers: Floats, counts: Integers, *, min_count: int
) -> tuple[Floats, Integers, Integers]:
    """Merge centers of few records into the nearest of their class.

    The smallest goes first, the earlier of two; two centers become the mean of both, weighted by
    their records. A center that is alone with its class goes into the nearest of any; the last one
    of all stays.

    Parameters
    ----------
    centers : float64 array of shape (n_centers, n_dimensions)
        Points.
    counts : int64 array of shape (n_centers, n_classes)
        Records of each class.
    min_count : int
        Fewer records are few.

    Returns
    -------
    centers, counts : arrays of shapes (n_left, n_dimensions) and (n_left, n_classes)
        In the order in which they were given.
    into : int64 array of shape (n_centers,)
        Where each of the given centers went.
    """
    centers, counts = centers.copy(), counts.copy()
    alive, into = np.ones(len(centers), bool), np.arange(len(centers))
    sizes = counts.sum(axis=1)
    while alive.sum() > 1:
        small = int(np.argmin(np.where(alive, sizes, np.iinfo(np.int64).max)))
        if sizes[small] >= min_count:
            break
        alive[small] = False
        alike = alive & (majority(counts) == majority(counts[[small]]))
        among = np.flatnonzero(alike if alike.any() else alive)
        near = among[np.argmin(((centers[among] - centers[small]) ** 2).sum(axis=1))]
        both = sizes[near] + sizes[small]
        centers[near] += (centers[small] - centers[near]) * (sizes[small] / both)
        counts[near] += counts[small]
        sizes[near] = both
        into[into == small] = near
    return centers[alive], counts[alive], np.asarray(np.cumsum(alive)[into] - 1, np.int64)


def class_log_densities(
    x: Floats,
    centers: Floats,
    labels: Integers,
    *,
    n_classes: int,
    sigma: float,
    activation: str = "gaussian",
    n_threads: int = 1,
) -> Floats:
    """Compute log f_k of each row and class (equation 1).

    f_k is the mean kernel of the class's centers.

    Constants that all classes share are left out: (2 pi)^(d/2) sigma^d of the equation.

    Parameters
    ----------
    x : float64 array of shape (n_rows, n_features)
        Finite.
    centers : float64 array of shape (n_centers, n_features)
        Pattern neurons.
    labels : int64 array of shape (n_centers,)
        Their classes as positions.
    n_classes : int
        Columns of the result.
    sigma : float
        Smoothing, in units of normalized distance.
    activation : {"gaussian", "logistic", "cauchy"}
        With u = d / sigma: exp(-u^2 / 2), 1 / (exp(u) + 2 + exp(-u)) or 1 / (1 + u^2).
    n_threads : int
        The result does not depend on it.

    Returns
    -------
    float64 array of shape (n_rows, n_classes)
        -inf for a class without centers.

    Raises
    ------
    ValueError
        If an argument is out of range.

    Examples
    --------
    >>> x, centers = np.array([[0.0]]), np.array([[0.0], [1.0]])
    >>> class_log_densities(x, centers, np.array([0, 1]), n_classes=3, sigma=0.5)
    array([[  0.,  -2., -inf]])
    """
    order = np.argsort(labels, kind="stable")
    sizes = np.bincount(labels, minlength=n_classes)
    sums = log_sums(
        x,
        centers[order],
        np.concatenate([[0], sizes.cumsum()]),
        sigma=sigma,
        activation=activation,
        n_threads=n_threads,
    )
    return np.asarray(sums - np.log(np.maximum(sizes, 1)))


def log_posteriors(log_densities: Floats, log_priors: Floats) -> Floats:
    """Return the logs of the classes' probabilities, given their densities and priors.

    A row that is too far from all centers for a float gets the priors.

    Parameters
    ----------
    log_densities : float64 array of shape (n_rows, n_classes)
        From :func:`class_log_densities`.
    log_priors : float64 array of shape (n_classes,)
        -inf for a class that cannot occur.
    """
    joint = log_densities + log_priors
    highest = joint.max(axis=1, keepdims=True)
    lost = np.isneginf(highest[:, 0])
    joint[lost] = log_priors
    highest[lost] = log_priors.max()
    with np.errstate(divide="ignore"):
        total = np.log(np.exp(joint - highest).sum(axis=1, keepdims=True))
    return np.asarray(joint - highest - total)


def warmup() -> None:
    """Compile every kernel of FedPNN in advance."""
    x = np.arange(12.0).reshape(6, 2) % 5
    labels = np.array([0, 0, 0, 1, 1, 1])
    for rule in _RULES:
        grown = evolve_rows(x, labels, 2, threshold=1.0, rule=rule)
    evolve_rows(x, labels, 2, threshold=1.0, start=grown)
    nearest_centers(x, grown.centers)
    for activation in ACTIVATIONS:
        class_log_densities(x, x, labels, n_classes=2, sigma=1.0, activation=activation)


CENTERS_PER_ROOT = 4
"""A threshold that is chosen leaves about four times the root of the rows as centers."""
_HALVINGS = 14


def chosen_threshold(points: Floats, *, factor: float, n_threads: int = 1) -> float:
    """Find the least threshold that leaves few enough centers.

    To one part in 2**14.

    Few enough are :data:`CENTERS_PER_ROOT` times the root of the number of rows, before small
    clusters are merged: enough for a density, and far fewer than records.

    Parameters
    ----------
    points : float64 array of shape (n_rows, n_dimensions)
        At least one row.
    factor : float
        Of the threshold, up to which a ball is stretched.
    n_threads : int
        The result does not depend on it.
    """
    most = CENTERS_PER_ROOT * math.sqrt(len(points))
    return _least(points, most, factor=factor, n_threads=n_threads)


def _least(points: Floats, most: float, *, factor: float, n_threads: int) -> float:
    """Find the least threshold with at most so many centers.

    To one part in 2**14.
    """
    labels = np.zeros(len(points), np.int64)
    spans = points.max(axis=0) - points.min(axis=0)
    high = float(np.sqrt((spans**2).mean())) or 1.0  # the bounding box of all rows: one center
    below, above = 0.0, high
    for _ in range(_HALVINGS):
        middle = (below + above) / 2
        grown = evolve_rows(points, labels, 1, threshold=middle, factor=factor, n_threads=n_threads)
        if len(grown.centers) > most:
            below = middle
        else:
            above = middle
    return above


def advice_on(groups: Sequence[tuple[Floats, int]], *, threshold: float, factor: float) -> str:
    """Describe a threshold that leaves one center or all rows.

    Also suggests thresholds that do not.

    Parameters
    ----------
    groups : sequence of (points, n_centers)
        Rows that were clustered together, float64 of shape (n_rows, n_dimensions), and how many
        centers they left. Rows that are all the same are no matter of a threshold.
    threshold : float
        What was given.
    factor : float
        Of the threshold, up to which a ball is stretched.

    Returns
    -------
    str
        To follow the name of the threshold; empty where there is nothing to say.

    Examples
    --------
    >>> rows = np.arange(40.0)[:, None]
    >>> advice_on([(rows, 1)], threshold=99.0, factor=2.0)
    '=99 leaves a single center; between about 0.502 (25 centers) and 19.5 (one) lie others'
    """
    spread = [(rows, n) for rows, n in groups if (rows != rows[:1]).any()]
    if spread and all(n == 1 for _, n in spread):
        what = "a single center" if len(spread) == 1 else "a single center of each class"
    elif spread and all(2 * n > len(rows) and n >= _n_distinct(rows) for rows, n in spread):
        what = "every distinct row as a center of its own"
    else:
        return ""
    rows = max((rows for rows, _ in spread), key=len)
    most = min(int(CENTERS_PER_ROOT * math.sqrt(len(rows))), _n_distinct(rows) - 1)
    few = _least(rows, most, factor=factor, n_threads=1)
    one = _least(rows, 1, factor=factor, n_threads=1)
    if most == 1:
        return f"={threshold:g} leaves {what}; two rows are one center from about {one:.3g} on"
    return (
        f"={threshold:g} leaves {what}; between about {few:.3g} ({most} centers) and {one:.3g} "
        "(one) lie others"
    )


def _n_distinct(rows: Floats) -> int:
    return len(np.unique(rows, axis=0))
