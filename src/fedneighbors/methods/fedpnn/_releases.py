"""What a party lets out of its rows: centers that each stand for many records."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats, Integers
from fedneighbors.methods.fedpnn._exposure import Exposure
from fedneighbors.methods.fedpnn._thresholds import advice_on, chosen_threshold
from fedneighbors.methods.fedpnn.algorithm import evolve_rows


@dataclass(frozen=True)
class Released:
    """Centers of a party.

    Parameters
    ----------
    centers : float64 array of shape (n_centers, n_dimensions)
        Points.
    counts : int64 array of shape (n_centers, n_classes)
        Records of each class that a center stands for.
    rows : int64 array of shape (n_rows,)
        Center that stands for each row, -1 for none.
    silent : bool array of shape (n_classes,)
        Classes of fewer records than a center needs: nothing of them is sent.
    exposure : Exposure
        What it tells of single records.
    advice : str
        What a threshold does that leaves one center or all rows; it stays at the party.
    """

    centers: Floats
    counts: Integers
    rows: Integers
    silent: npt.NDArray[np.bool_]
    exposure: Exposure
    advice: str


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
    n_threads: int = 1,
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
        Dthr. None chooses one for each class, see :func:`~.thresholds.chosen_threshold`.
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
    n_threads : int
        The result does not depend on it.
    """
    silent = np.bincount(labels, minlength=n_classes) < min_count
    centers, counts = [np.zeros((0, points.shape[1]))], [np.zeros((0, n_classes), np.int64)]
    grown_sizes, clustered, n_sent = [np.zeros(0, np.int64)], [], 0
    center_of = np.full(len(points), -1)
    for rows in _together(labels, silent, classwise=classwise):
        own = points[rows]
        limit = threshold or chosen_threshold(own, factor=factor, n_threads=n_threads)
        grown = evolve_rows(
            own, labels[rows], n_classes, threshold=limit, factor=factor, n_threads=n_threads
        )
        sizes = grown.counts.sum(axis=1)
        grown_sizes.append(sizes)
        clustered.append((own, len(sizes)))
        places = group_means(own, grown.rows) if means else grown.centers
        kept, merged, into = merge_small(places, grown.counts, min_count=min_count)
        center_of[rows] = n_sent + into[grown.rows]
        n_sent += len(kept)
        centers.append(kept)
        counts.append(_without_few(merged, min_count=min_count))
    sent = np.concatenate(counts)
    exposure = Exposure.of(
        n_records=len(points),
        grown=np.concatenate(grown_sizes),
        sent=sent.sum(axis=1),
        min_count=min_count,
    )
    advice = ""
    if threshold is not None:
        advice = advice_on(clustered, threshold=threshold, factor=factor)
    return Released(np.concatenate(centers), sent, center_of, silent, exposure, advice)


def _together(
    labels: Integers, silent: npt.NDArray[np.bool_], *, classwise: bool
) -> list[Integers]:
    """Return the rows that are clustered together: of each class that is told, or of all."""
    if classwise:
        return [np.flatnonzero(labels == label) for label in np.flatnonzero(~silent)]
    rows = np.flatnonzero(~silent[labels])
    return [rows] if len(rows) else []


def group_means(points: Floats, rows: Integers) -> Floats:
    """Return the mean of the points of each group, of shape (n_groups, n_dimensions).

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


def _without_few(counts: Integers, *, min_count: int) -> Integers:
    """Return the counts without those that tell of few records of a class.

    They are added to the most frequent class of the center, which they would not outvote.
    """
    top = counts.argmax(axis=1)
    kept = np.where(counts < min_count, 0, counts)
    kept[np.arange(len(counts)), top] = 0
    kept[np.arange(len(counts)), top] = counts.sum(axis=1) - kept.sum(axis=1)
    return np.asarray(kept, np.int64)


def merge_small(
    centers: Floats, counts: Integers, *, min_count: int
) -> tuple[Floats, Integers, Integers]:
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
        classes = counts.argmax(axis=1)
        near = _nearest(centers, small, alive & (classes == classes[small]))
        near = _nearest(centers, small, alive) if near is None else near
        assert near is not None
        both = sizes[near] + sizes[small]
        centers[near] += (centers[small] - centers[near]) * (sizes[small] / both)
        counts[near] += counts[small]
        sizes[near], alive[small] = both, False
        into[into == small] = near
    return centers[alive], counts[alive], np.asarray(np.cumsum(alive)[into] - 1, np.int64)


def _nearest(centers: Floats, own: int, among: npt.NDArray[np.bool_]) -> int | None:
    """Return the nearest other center, ties to the lower; None if there is none."""
    others = np.flatnonzero(among)
    others = others[others != own]
    if len(others) == 0:
        return None
    squares = ((centers[others] - centers[own]) ** 2).sum(axis=1)
    return int(others[np.argmin(squares)])
