"""Centers that a party releases, each of many records, and their exposure.

Nothing that stands for few records may leave a party: fewer than ``min_count`` and more than none.
That goes for the rows of a class, for the cells of a class that a column has, for those that it
lacks, and for the records of a center. An exposure says, before a release leaves, what it would
tell of single records.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats, Integers
from fedneighbors.methods.fedpnn.algorithm import advice_on, chosen_threshold, evolve_rows

Booleans = npt.NDArray[np.bool_]


def in_usual_classes(y: npt.NDArray[np.generic], *, min_count: int) -> Booleans:
    """Return which rows are of classes that have at least ``min_count`` of them."""
    _, label, sizes = np.unique(y, return_inverse=True, return_counts=True)
    return np.asarray(sizes[label] >= min_count)


def without_few_cells(x: Floats, labels: Integers, *, min_count: int) -> Floats:
    """Return the table without the cells of a class in columns that have few of it.

    Parameters
    ----------
    x : float64 array of shape (n_rows, n_features)
        Missing cells are NaN.
    labels : int64 array of shape (n_rows,)
        Positions of the classes, each of at least ``min_count`` rows.
    min_count : int
        Fewer cells are few.

    Returns
    -------
    float64 array of shape (n_rows, n_features)
        NaN where few cells were.

    Examples
    --------
    >>> x = np.array([[1.0, 1.0], [np.nan, 2.0], [np.nan, 3.0]])
    >>> without_few_cells(x, np.zeros(3, int), min_count=2).tolist()
    [[nan, 1.0], [nan, 2.0], [nan, 3.0]]
    """
    kept = x.copy()
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        held = (~np.isnan(x[rows])).sum(axis=0)
        few = np.flatnonzero((held > 0) & (held < min_count))
        kept[np.ix_(rows, few)] = np.nan
    return kept


def cells_left_out(gone: Booleans, *, min_count: int) -> Booleans:
    """Return which cells of one class sums leave out, so that their number tells of few nowhere.

    Where few are missing, the first of the others are left out with them, up to ``min_count``; a
    column of which few would remain is left out whole.

    Parameters
    ----------
    gone : bool array of shape (n_rows, n_features)
        Missing cells.
    min_count : int
        Fewer cells are few.

    Examples
    --------
    >>> gone = np.array([[0, 0], [0, 0], [1, 0], [0, 0], [0, 0]], bool)
    >>> cells_left_out(gone, min_count=2).T.astype(int).tolist()
    [[1, 0, 1, 0, 0], [0, 0, 0, 0, 0]]
    """
    out = gone.copy()
    n_gone = gone.sum(axis=0)
    wanting = np.flatnonzero((n_gone > 0) & (n_gone < min_count))
    others = ~gone[:, wanting]
    out[:, wanting] |= others & (others.cumsum(axis=0) <= min_count - n_gone[wanting])
    out[:, len(gone) - out.sum(axis=0) < min_count] = True
    return out


def without_few_told(told: Floats, labels: Integers, *, min_count: int) -> Floats:
    """Return coordinates that tell missing cells, made equal where they differ for few of a class.

    Parameters
    ----------
    told : float64 array of shape (n_rows, n_coordinates)
        1 where a cell is missing, else 0.
    labels : int64 array of shape (n_rows,)
        Positions of the classes.
    min_count : int
        Fewer rows are few.

    Examples
    --------
    >>> told = np.array([[1.0, 1.0], [0.0, 1.0], [0.0, 1.0], [0.0, 0.0]])
    >>> without_few_told(told, np.zeros(4, int), min_count=2).T.tolist()
    [[0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]]
    """
    even = told.copy()
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        n_told = told[rows].sum(axis=0)
        few, all_but_few = n_told < min_count, len(rows) - n_told < min_count
        even[np.ix_(rows, np.flatnonzero(few))] = 0.0
        even[np.ix_(rows, np.flatnonzero(all_but_few & ~few))] = 1.0
    return even


@dataclass(frozen=True)
class Exposure:
    """How many records the centers of a party stand for.

    Parameters
    ----------
    n_records : int
        Rows of the party.
    n_withheld : int
        Rows of classes that send nothing.
    n_clusters : int
        Clusters as they evolved.
    n_single : int
        Clusters of a single record, which are that record.
    n_small : int
        Clusters of fewer records than a center must stand for, single ones included.
    n_centers : int
        Centers that are sent, after small clusters went into others.
    fewest : int
        Records of the smallest center that is sent; 0 if none is.
    """

    n_records: int
    n_withheld: int
    n_clusters: int
    n_single: int
    n_small: int
    n_centers: int
    fewest: int

    @classmethod
    def of(cls, *, n_records: int, grown: Integers, sent: Integers, min_count: int) -> "Exposure":
        """Return the exposure of a release.

        Parameters
        ----------
        n_records : int
            Rows of the party.
        grown : int64 array of shape (n_clusters,)
            Records of each cluster as they evolved.
        sent : int64 array of shape (n_centers,)
            Records of each center that is sent.
        min_count : int
            Records that a center must stand for.
        """
        return cls(
            n_records=n_records,
            n_withheld=n_records - int(sent.sum()),
            n_clusters=len(grown),
            n_single=int((grown == 1).sum()),
            n_small=int((grown < min_count).sum()),
            n_centers=len(sent),
            fewest=int(sent.min(initial=np.iinfo(np.int64).max)) if len(sent) else 0,
        )

    def beside(self, n_withheld: int) -> "Exposure":
        """Return it with so many further rows that nothing is sent of."""
        return replace(
            self,
            n_records=self.n_records + n_withheld,
            n_withheld=self.n_withheld + n_withheld,
        )

    @property
    def largest_risk(self) -> float:
        """One over the records of the smallest center that is sent, 0 if none is."""
        return 1 / self.fewest if self.fewest else 0.0

    def __str__(self) -> str:
        """Say it in sentences."""
        if not self.n_centers:
            return f"Nothing is sent: none of the {self.n_records} records is in a class of enough."
        withheld = (
            f" {self.n_withheld} records of rare classes are withheld." if self.n_withheld else ""
        )
        return (
            f"{self.n_centers} centers stand for {self.fewest} records or more each. Of "
            f"{self.n_clusters} clusters {self.n_single} were single records and {self.n_small} "
            f"too small; these went into others.{withheld}"
        )


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
        Dthr. None chooses one for each class, see :func:`~.algorithm.chosen_threshold`.
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
