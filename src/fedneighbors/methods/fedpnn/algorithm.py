"""FedPNN as pure functions: cluster rows, merge the centers of parties, estimate densities.

Symbols of the paper: CC (``centers``), Ru (``radii``), freq (``counts``), Dthr (``threshold``),
d or q, the number of features (``n_features``), X_A, the pattern neurons (``centers``), sigma
(``sigma``).

If the threshold is below all distances between rows, every row becomes a center; if it is above all
of them, there is a single center. Neither describes the distribution of the rows.
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
"""Candidate smoothings, in units of normalized distance; the same for all parties."""

_RULES: tuple[Rule, ...] = ("modified", "original")


@dataclass(frozen=True)
class Clusters:
    """Clusters: centers, radii and class counts.

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
class EvolvedClusters(Clusters):
    """Clusters after a pass over rows.

    Parameters
    ----------
    centers, radii, counts
        As in :class:`Clusters`.
    rows : int64 array of shape (n_rows,)
        Index of the center that counts each row of the pass.
    n_outside : int
        Number of rows that did not become centers because of ``max_centers``.
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
) -> EvolvedClusters:
    """Cluster rows in one pass, in the order given (Algorithm 2).

    Parameters
    ----------
    x : float64 array of shape (n_rows, n_features)
        Finite.
    y : int64 array of shape (n_rows,)
        Class of each row, from 0 to ``n_classes - 1``; the centers do not depend on it.
    n_classes : int
        Number of columns of the counts.
    threshold : float
        Dthr, in units of normalized distance (equation 3); the maximum radius if ``factor`` is 2.
    factor : float
        A ball may grow to contain a row if distance plus radius is at most ``factor`` times Dthr.
        The text of the paper has 2, its pseudo-code 1.
    rule : {"modified", "original"}
        With ``"modified"``, a row joins its nearest center if the ball of that center contains it
        (the paper, lines 8 to 10); with ``"original"``, it joins the nearest of all centers whose
        balls contain it (Song and Kasabov).
    max_centers : int, optional
        Maximum number of centers. Once it is reached, a row that would become a new center is
        counted at its nearest center.
    start : Clusters, optional
        Clusters of earlier rows to continue from.
    n_threads : int
        Number of threads. The result does not depend on it.

    Raises
    ------
    ValueError
        If an argument is out of range or a value is not finite.

    Examples
    --------
    >>> x = np.array([[0, 0], [0.2, 0], [0.9, 0.9], [0.9, 0.7], [0.5, 0.5]])
    >>> found = evolve_rows(x, np.array([0, 0, 1, 1, 0]), 2, threshold=0.1)
    >>> found.centers.round(3).tolist(), found.radii.round(4).tolist(), found.counts.tolist()
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
    return EvolvedClusters(centers, radii, counts, rows, n_outside)


def nearest_centers(x: Floats, centers: Floats, *, n_threads: int = 1) -> tuple[Integers, Floats]:
    """Return the index and the normalized distance of each row's nearest center.

    Ties go to the lower index.
    """
    return nearest(x, centers, n_threads=n_threads)


def majority(counts: Integers) -> Integers:
    """Return the most frequent class of each center, ties to the lower."""
    return np.asarray(counts.argmax(axis=1), np.int64)


def canonical_order(centers: Floats, counts: Integers) -> Integers:
    """Return an order of centers that does not depend on their source.

    Centers ascend by the first feature, then by the second and so on, then by the counts.
    """
    keys = [*centers.T, *counts.T]
    return np.asarray(np.lexsort(keys[::-1]), np.int64)


def merge_centers(
    centers: Floats,
    counts: Integers,
    *,
    threshold: float | None,
    factor: float = 2.0,
    classwise: bool = False,
) -> Clusters:
    """Cluster the centers of all parties: meta-clustering (Algorithm 4).

    The radii of the parties' centers are not used. Centers are clustered in canonical order, so
    that the order of parties does not matter.

    Parameters
    ----------
    centers : float64 array of shape (n_centers, n_features)
        Centers of all parties, concatenated.
    counts : int64 array of shape (n_centers, n_classes)
        Rows of each class; added up when centers are merged.
    threshold : float or None
        Dthr of the server. None keeps every center.
    factor : float
        As for :func:`evolve_rows`.
    classwise : bool
        Cluster the centers of each majority class separately, in ascending order of the classes.

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
    parts = []
    for group in np.unique(groups):
        mask = groups == group
        zeros = np.zeros(int(mask.sum()), np.int64)  # no labels
        part = evolve_rows(points[mask], zeros, 1, threshold=threshold, factor=factor)
        sums = np.zeros((len(part.centers), freq.shape[1]), np.int64)
        np.add.at(sums, part.rows, freq[mask])
        parts.append((part.centers, part.radii, sums))
    if not parts:
        return Clusters(points, np.zeros(0), freq)
    return Clusters(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def group_means(points: Floats, rows: Integers) -> Floats:
    """Return the mean point of each group.

    Parameters
    ----------
    points : float64 array of shape (n_rows, n_dimensions)
        Points.
    rows : int64 array of shape (n_rows,)
        Group of each point, numbered from 0; every group has a point.

    Returns
    -------
    float64 array of shape (n_groups, n_dimensions)
    """
    sizes = np.bincount(rows)
    sums = np.zeros((len(sizes), points.shape[1]))
    np.add.at(sums, rows, points)
    return np.asarray(sums / sizes[:, None])


def merge_small(
    centers: Floats, counts: Integers, *, min_count: int
) -> tuple[Floats, Integers, Integers]:
    """Merge small centers into the nearest center of their class.

    The smallest center is merged first; ties go to the lower index. The merged center is the mean
    of both, weighted by their rows. The class of a center is its majority class. If no other
    center has the same class, the center is merged into the nearest of all centers. The last
    remaining center is kept.

    Parameters
    ----------
    centers : float64 array of shape (n_centers, n_dimensions)
        Points.
    counts : int64 array of shape (n_centers, n_classes)
        Records of each class.
    min_count : int
        Centers of fewer rows are merged.

    Returns
    -------
    centers, counts : arrays of shapes (n_remaining, n_dimensions) and (n_remaining, n_classes)
        Remaining centers in their original order.
    into : int64 array of shape (n_centers,)
        Position of the remaining center that contains each original center.
    """
    centers, counts = centers.copy(), counts.copy()
    active, into = np.ones(len(centers), bool), np.arange(len(centers))
    sizes = counts.sum(axis=1)
    while active.sum() > 1:
        small = int(np.argmin(np.where(active, sizes, np.iinfo(np.int64).max)))
        if sizes[small] >= min_count:
            break
        active[small] = False
        same_class = active & (majority(counts) == majority(counts[[small]]))
        candidates = np.flatnonzero(same_class if same_class.any() else active)
        target = candidates[np.argmin(((centers[candidates] - centers[small]) ** 2).sum(axis=1))]
        size = sizes[target] + sizes[small]
        centers[target] += (centers[small] - centers[target]) * (sizes[small] / size)
        counts[target] += counts[small]
        sizes[target] = size
        into[into == small] = target
    return centers[active], counts[active], np.asarray(np.cumsum(active)[into] - 1, np.int64)


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
    """Return the log density of each class at each row (equation 1).

    The density f_k is the mean kernel of the centers of class k. The factor
    (2 pi)^(d/2) sigma^d, the same for all classes, is omitted.

    Parameters
    ----------
    x : float64 array of shape (n_rows, n_features)
        Finite.
    centers : float64 array of shape (n_centers, n_features)
        Pattern neurons.
    labels : int64 array of shape (n_centers,)
        Class of each center, from 0 to ``n_classes - 1``.
    n_classes : int
        Number of columns of the result.
    sigma : float
        Smoothing, in units of normalized distance.
    activation : {"gaussian", "logistic", "cauchy"}
        With u = d / sigma: exp(-u^2 / 2), 1 / (exp(u) + 2 + exp(-u)) or 1 / (1 + u^2).
    n_threads : int
        Number of threads. The result does not depend on it.

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
    """Return log class probabilities from log densities and log priors.

    If all log densities of a row are -inf, because it is too far from all centers, the result is
    the priors.

    Parameters
    ----------
    log_densities : float64 array of shape (n_rows, n_classes)
        Output of :func:`class_log_densities`.
    log_priors : float64 array of shape (n_classes,)
        -inf for a class that cannot occur.
    """
    joint = log_densities + log_priors
    highest = joint.max(axis=1, keepdims=True)
    underflowed = np.isneginf(highest[:, 0])
    joint[underflowed] = log_priors
    highest[underflowed] = log_priors.max()
    with np.errstate(divide="ignore"):
        total = np.log(np.exp(joint - highest).sum(axis=1, keepdims=True))
    return np.asarray(joint - highest - total)


def warmup() -> None:
    """Compile all kernels of FedPNN, so that later calls need no compilation."""
    x = np.arange(12.0).reshape(6, 2) % 5
    labels = np.array([0, 0, 0, 1, 1, 1])
    for rule in _RULES:
        clusters = evolve_rows(x, labels, 2, threshold=1.0, rule=rule)
    evolve_rows(x, labels, 2, threshold=1.0, start=clusters)
    nearest_centers(x, clusters.centers)
    for activation in ACTIVATIONS:
        class_log_densities(x, x, labels, n_classes=2, sigma=1.0, activation=activation)


CENTERS_PER_ROOT = 4
"""An automatic threshold leaves at most this many centers times the square root of the rows."""
_HALVINGS = 14  # bisection steps: a threshold is found to one part in 2**14


def choose_threshold(points: Floats, *, factor: float, n_threads: int = 1) -> float:
    """Return the smallest threshold that leaves few enough centers.

    The maximum is :data:`CENTERS_PER_ROOT` times the square root of the number of rows, before
    small clusters are merged: enough centers for a density estimate, but far fewer than rows.
    Bisection finds the threshold to within one part in 2**14 of the size of the bounding box.

    Parameters
    ----------
    points : float64 array of shape (n_rows, n_dimensions)
        At least one row.
    factor : float
        As for :func:`evolve_rows`.
    n_threads : int
        Number of threads. The result does not depend on it.
    """
    max_centers = CENTERS_PER_ROOT * math.sqrt(len(points))
    return _find_threshold(points, max_centers, factor=factor, n_threads=n_threads)


def _find_threshold(points: Floats, max_centers: float, *, factor: float, n_threads: int) -> float:
    """Return the smallest threshold that leaves at most ``max_centers`` centers.

    The search is a bisection to one part in 2**14 of the size of the bounding box.
    """
    labels = np.zeros(len(points), np.int64)
    spans = points.max(axis=0) - points.min(axis=0)
    high = float(np.sqrt((spans**2).mean())) or 1.0  # size of the bounding box: one center
    below, above = 0.0, high
    for _ in range(_HALVINGS):
        middle = (below + above) / 2
        found = evolve_rows(points, labels, 1, threshold=middle, factor=factor, n_threads=n_threads)
        if len(found.centers) > max_centers:
            below = middle
        else:
            above = middle
    return above


def describe_threshold(
    groups: Sequence[tuple[Floats, int]], *, threshold: float, factor: float
) -> str:
    """Describe a threshold that is too large or small; suggest others.

    Parameters
    ----------
    groups : sequence of (points, n_centers)
        Rows that were clustered together, float64 of shape (n_rows, n_dimensions), and the number
        of their centers. Groups of identical rows are ignored, because no threshold splits them.
    threshold : float
        Threshold in use.
    factor : float
        As for :func:`evolve_rows`.

    Returns
    -------
    str
        Text that continues the name of the threshold; empty if the threshold is neither too large
        (one center per group) nor too small (as many centers as distinct rows).

    Examples
    --------
    >>> rows = np.arange(40.0)[:, None]
    >>> describe_threshold([(rows, 1)], threshold=99.0, factor=2.0)
    '=99 leaves a single center; try values from about 0.502 (25 centers) to 19.5 (a single one)'
    """
    varied = [(rows, n) for rows, n in groups if (rows != rows[:1]).any()]
    if varied and all(n == 1 for _, n in varied):
        effect = "a single center" if len(varied) == 1 else "a single center of each class"
    elif varied and all(2 * n > len(rows) and n >= _n_distinct(rows) for rows, n in varied):
        effect = "as many centers as distinct rows"
    else:
        return ""
    rows = max((rows for rows, _ in varied), key=len)
    max_centers = min(int(CENTERS_PER_ROOT * math.sqrt(len(rows))), _n_distinct(rows) - 1)
    lower = _find_threshold(rows, max_centers, factor=factor, n_threads=1)
    upper = _find_threshold(rows, 1, factor=factor, n_threads=1)
    if max_centers == 1:
        return f"={threshold:g} leaves {effect}; from about {upper:.3g} on, all rows share one"
    return (
        f"={threshold:g} leaves {effect}; try values from about {lower:.3g} ({max_centers} "
        f"centers) to {upper:.3g} (a single one)"
    )


def _n_distinct(rows: Floats) -> int:
    return len(np.unique(rows, axis=0))
