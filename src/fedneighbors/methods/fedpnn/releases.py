"""What a party lets out of its rows: centers that each stand for many records."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedneighbors.methods.fedpnn.algorithm import evolve_rows
from fedneighbors.methods.fedpnn.exposure import Exposure

__all__ = ["Released", "chosen_threshold", "merge_small", "release_centers"]

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

CENTERS_PER_ROOT = 4
"""A threshold that is chosen leaves about four times the root of the rows as centers."""
_HALVINGS = 14


@dataclass(frozen=True)
class Released:
    """Centers of a party.

    Parameters
    ----------
    centers : float64 array of shape (n_centers, n_dimensions)
        Points.
    counts : int64 array of shape (n_centers, n_classes)
        Records of each class that a center stands for.
    silent : bool array of shape (n_classes,)
        Classes of fewer records than a center needs: nothing of them is sent.
    exposure : Exposure
        What it tells of single records.
    """

    centers: Floats
    counts: Integers
    silent: npt.NDArray[np.bool_]
    exposure: Exposure


def release_centers(
    points: Floats,
    labels: Integers,
    n_classes: int,
    *,
    threshold: float | None,
    factor: float,
    classwise: bool,
    min_count: int,
    means: bool = True,
) -> Released:
    """Return the centers that a party sends.

    Parameters
    ----------
    points : float64 array of shape (n_rows, n_dimensions)
        Rows in the agreed frame and metric.
    labels : int64 array of shape (n_rows,)
        Positions of the classes.
    n_classes : int
        Classes of the federation.
    threshold : float or None
        Dthr. None chooses one for each class, see :func:`chosen_threshold`.
    factor : float
        Of the threshold, up to which a ball is stretched.
    classwise : bool
        Cluster each class by itself.
    min_count : int
        Records that a center stands for at least; smaller clusters go to the nearest of their
        class, and a class of fewer records sends nothing.
    means : bool
        Send the means of the clusters' records in place of where the centers came to lie, which
        may be halfway between two records that others do not bear upon.
    """
    sizes = np.bincount(labels, minlength=n_classes)
    silent = sizes < min_count
    if not classwise and len(points) >= min_count:
        kept = ~silent[labels]
        parts = [(points[kept], labels[kept])]
    else:
        parts = [(points[labels == c], labels[labels == c]) for c in np.flatnonzero(~silent)]
    centers, counts = [np.zeros((0, points.shape[1]))], [np.zeros((0, n_classes), np.int64)]
    grown_sizes = [np.zeros(0, np.int64)]
    for own, classes in parts:
        if len(own) == 0:
            continue
        limit = chosen_threshold(own, factor=factor) if threshold is None else threshold
        grown = evolve_rows(own, classes, n_classes, threshold=limit, factor=factor)
        sizes = grown.counts.sum(axis=1)
        grown_sizes.append(sizes)
        places = _means(own, grown.rows, sizes) if means else grown.centers
        some = merge_small(places, grown.counts, min_count=min_count)
        centers.append(some[0])
        counts.append(_without_few(some[1], min_count=min_count))
    sent = np.concatenate(counts)
    exposure = Exposure.of(
        n_records=len(points),
        grown=np.concatenate(grown_sizes),
        sent=sent.sum(axis=1),
        min_count=min_count,
    )
    return Released(np.concatenate(centers), sent, silent, exposure)


def _means(points: Floats, rows: Integers, sizes: Integers) -> Floats:
    """Return the mean of the rows of each cluster."""
    sums = np.zeros((len(sizes), points.shape[1]))
    np.add.at(sums, rows, points)
    return np.asarray(sums / sizes[:, None])


def _without_few(counts: Integers, *, min_count: int) -> Integers:
    """Return the counts without those that tell of few records of a class.

    They are added to the most frequent class of the center, which they would not outvote.
    """
    top = counts.argmax(axis=1)
    kept = np.where(counts < min_count, 0, counts)
    kept[np.arange(len(counts)), top] = 0
    kept[np.arange(len(counts)), top] = counts.sum(axis=1) - kept.sum(axis=1)
    return np.asarray(kept, np.int64)


def chosen_threshold(points: Floats, *, factor: float) -> float:
    """Return the least threshold, to one part in 2**14, that leaves few enough centers.

    Few enough are :data:`CENTERS_PER_ROOT` times the root of the number of rows, before small
    clusters are merged: enough for a density, and far fewer than records.

    Parameters
    ----------
    points : float64 array of shape (n_rows, n_dimensions)
        At least one row.
    factor : float
        Of the threshold, up to which a ball is stretched.
    """
    labels = np.zeros(len(points), np.int64)
    most = CENTERS_PER_ROOT * math.sqrt(len(points))
    low = points.min(axis=0)
    spans = points.max(axis=0) - low
    high = float(np.sqrt((spans**2).mean())) or 1.0  # of the box that holds all: one center
    below, above = 0.0, high
    for _ in range(_HALVINGS):
        middle = (below + above) / 2
        grown = evolve_rows(points, labels, 1, threshold=middle, factor=factor)
        if len(grown.centers) > most:
            below = middle
        else:
            above = middle
    return above


def merge_small(centers: Floats, counts: Integers, *, min_count: int) -> tuple[Floats, Integers]:
    """Return the centers after those of few records have gone into the nearest of their class.

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
    """
    centers, counts = centers.copy(), counts.copy()
    alive = np.ones(len(centers), bool)
    sizes = counts.sum(axis=1)
    while alive.sum() > 1:
        small = int(np.argmin(np.where(alive, sizes, np.iinfo(np.int64).max)))
        if sizes[small] >= min_count:
            break
        classes = counts.argmax(axis=1)
        near = _nearest(centers, small, alive & (classes == classes[small]))
        near = _nearest(centers, small, alive) if near is None else near
        assert near is not None
        both = sizes[near] + sizes[small]
        centers[near] += (centers[small] - centers[near]) * (sizes[small] / both)
        counts[near] += counts[small]
        sizes[near], alive[small] = both, False
    return centers[alive], counts[alive]


def _nearest(centers: Floats, own: int, among: npt.NDArray[np.bool_]) -> int | None:
    """Return the nearest other center, ties to the lower; None if there is none."""
    others = np.flatnonzero(among)
    others = others[others != own]
    if len(others) == 0:
        return None
    squares = ((centers[others] - centers[own]) ** 2).sum(axis=1)
    return int(others[np.argmin(squares)])
