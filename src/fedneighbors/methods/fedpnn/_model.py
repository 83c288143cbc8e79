"""Centers that a party releases, and the model built from them.

This module also computes the leave-one-out losses for choosing the smoothing, and the exposure: how
few records the released centers describe.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats, Integers
from fedneighbors.kernels.clustering._kerneldensity import log_sums
from fedneighbors.methods.fedpnn._scaling import Booleans, TableScaling
from fedneighbors.methods.fedpnn._selection import Selection
from fedneighbors.methods.fedpnn.algorithm import (
    SIGMAS,
    choose_threshold,
    class_log_densities,
    describe_threshold,
    evolve_rows,
    group_means,
    log_posteriors,
    majority,
    merge_small,
    nearest_centers,
)
from fedneighbors.tabular._model_file import ModelFile
from fedneighbors.tabular._schema import Label

MAX_LOSS = 20.0
"""Maximum loss of a row, in nats: the loss is infinite without the only center of its class."""


@dataclass(frozen=True)
class FedPNNModel(ModelFile):
    """Trained FedPNN model: transformation of rows, centers and smoothing.

    Parameters
    ----------
    frame : TableScaling
        Transformation of rows to points.
    metric : float64 array of shape (n_coordinates, n_dimensions)
        Matrix that points are multiplied with from the right.
    classes : tuple of labels
        Labels, ascending.
    centers : float64 array of shape (n_centers, n_dimensions)
        Centers in canonical order.
    counts : int64 array of shape (n_centers, n_classes)
        Number of records of each class behind each center.
    sigma : float
        Smoothing, in units of normalized distance.
    activation : str
        Kernel of the network.
    feature_names : tuple of str or None
        Names of the columns, if they have any.
    selection : Selection or None
        Columns to which the frame applies; None for all.
    """

    magic: ClassVar[bytes] = b"FNPNNET3"

    frame: TableScaling
    metric: Floats
    classes: tuple[Label, ...]
    centers: Floats
    counts: Integers
    sigma: float
    activation: str = "gaussian"
    feature_names: tuple[str, ...] | None = None
    selection: Selection | None = None

    def __post_init__(self) -> None:
        if not self.classes or self.counts.shape != (len(self.centers), len(self.classes)):
            raise ValueError("counts do not fit centers and classes")
        if not (np.isfinite(self.metric).all() and np.isfinite(self.centers).all()):
            raise ValueError("a number is not finite")
        if self.metric.ndim != 2 or self.centers.shape[1:] != self.metric.shape[1:]:
            raise ValueError("centers and metric differ in their number of dimensions")
        if not 0 < self.sigma < np.inf or (self.counts < 0).any():
            raise ValueError("smoothing or counts are out of range")
        if len(self.metric) != self.frame.n_coordinates:
            raise ValueError("the metric does not fit the frame")
        if self.selection is not None and self.frame.n_features != len(self.selection.columns):
            raise ValueError("the frame does not fit the selected columns")

    @property
    def n_features(self) -> int:
        """Return the number of columns of a table, including those not selected."""
        return self.frame.n_features if self.selection is None else self.selection.n_features

    @cached_property
    def center_labels(self) -> Integers:
        """Return each center's most frequent class, ties to the lower class."""
        return majority(self.counts)

    @property
    def has_centers(self) -> Booleans:
        """Return a mask of the classes that have a center."""
        return np.bincount(self.center_labels, minlength=len(self.classes)) > 0

    def log_densities(self, x: Floats, *, n_threads: int = 1) -> Floats:
        """Return the log densities of the classes, shape (n_rows, n_classes).

        The density of class k is f_k in the paper. It is -inf for a class without centers.

        Parameters
        ----------
        x : float64 array of shape (n_rows, n_features)
            Rows; missing cells are NaN.
        n_threads : int
            Number of threads. The result does not depend on it.
        """
        selected = x if self.selection is None else x[:, self.selection.columns]
        points = self.frame.apply(selected) @ self.metric
        return class_log_densities(
            points,
            self.centers,
            self.center_labels,
            n_classes=len(self.classes),
            sigma=self.sigma,
            activation=self.activation,
            n_threads=n_threads,
        )


@dataclass(frozen=True)
class Exposure:
    """Numbers of records behind the centers of a party.

    Parameters
    ----------
    n_records : int
        Rows of the party.
    n_withheld : int
        Rows of classes about which nothing is sent.
    n_clusters : int
        Clusters before small ones were merged.
    n_single : int
        Clusters of a single record, whose center is that record.
    n_small : int
        Clusters of fewer than ``min_count`` records, single records included.
    n_centers : int
        Centers that are sent, after small clusters were merged.
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

    @property
    def largest_risk(self) -> float:
        """Return ``1 / fewest``; 0 without centers."""
        return 1 / self.fewest if self.fewest else 0.0

    def __str__(self) -> str:
        """Return the numbers as sentences."""
        if not self.n_centers:
            return f"Nothing is sent: no class has enough of the {self.n_records} records."
        withheld = (
            f" {self.n_withheld} records of rare classes are withheld." if self.n_withheld else ""
        )
        return (
            f"{self.n_centers} centers of {self.fewest} records or more each. Of "
            f"{self.n_clusters} clusters, {self.n_single} were single records and {self.n_small} "
            f"were too small; these were merged into others.{withheld}"
        )


@dataclass(frozen=True)
class ReleasedCenters:
    """Centers that a party releases.

    Parameters
    ----------
    centers : float64 array of shape (n_centers, n_dimensions)
        Points.
    counts : int64 array of shape (n_centers, n_classes)
        Number of records of each class behind each center.
    rows : int64 array of shape (n_rows,)
        Index of the center of each row, -1 for none.
    silent : bool array of shape (n_classes,)
        Classes of fewer than ``min_count`` records, about which nothing is sent.
    exposure : Exposure
        Exposure of single records.
    advice : str
        Advice about an unsuitable threshold, see :func:`~.algorithm.describe_threshold`. It is not
        sent.
    """

    centers: Floats
    counts: Integers
    rows: Integers
    silent: Booleans
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
) -> ReleasedCenters:
    """Cluster the rows of a party and return the centers to send.

    Parameters
    ----------
    points : float64 array of shape (n_rows, n_dimensions)
        Rows, transformed by the frame and the metric.
    labels : int64 array of shape (n_rows,)
        Class of each row as a position.
    n_classes : int
        Number of classes of the federation.
    threshold : float or None
        Dthr. None chooses one for each group of rows that are clustered together, see
        :func:`~.algorithm.choose_threshold`.
    factor : float
        A ball may grow to contain a row if distance plus radius is at most ``factor`` times Dthr.
    classwise : bool
        Cluster each class separately.
    min_count : int
        Minimum number of records of a center. Smaller clusters are merged into the nearest of their
        class, and nothing is sent about a class of fewer records.
    means : bool
        Send the means of the clusters' records. If False, send the final centers of the clustering,
        which may be halfway between two records and unaffected by the others.
    n_threads : int
        Number of threads. The result does not depend on it.
    """
    silent = np.bincount(labels, minlength=n_classes) < min_count
    centers, counts = [np.zeros((0, points.shape[1]))], [np.zeros((0, n_classes), np.int64)]
    all_sizes, groups, n_sent = [np.zeros(0, np.int64)], [], 0
    center_of = np.full(len(points), -1)
    for rows in _group_rows(labels, silent, classwise=classwise):
        group = points[rows]
        dthr = threshold or choose_threshold(group, factor=factor, n_threads=n_threads)
        found = evolve_rows(
            group, labels[rows], n_classes, threshold=dthr, factor=factor, n_threads=n_threads
        )
        sizes = found.counts.sum(axis=1)
        all_sizes.append(sizes)
        groups.append((group, len(sizes)))
        evolved = group_means(group, found.rows) if means else found.centers
        merged, merged_counts, into = merge_small(evolved, found.counts, min_count=min_count)
        center_of[rows] = n_sent + into[found.rows]
        n_sent += len(merged)
        centers.append(merged)
        counts.append(_suppress_few_counts(merged_counts, min_count=min_count))
    all_counts = np.concatenate(counts)
    sizes, fewest = np.concatenate(all_sizes), all_counts.sum(axis=1).min(initial=len(points))
    exposure = Exposure(
        n_records=len(points),
        n_withheld=len(points) - int(all_counts.sum()),
        n_clusters=len(sizes),
        n_single=int((sizes == 1).sum()),
        n_small=int((sizes < min_count).sum()),
        n_centers=len(all_counts),
        fewest=int(fewest) if len(all_counts) else 0,
    )
    advice = ""
    if threshold is not None:
        advice = describe_threshold(groups, threshold=threshold, factor=factor)
    return ReleasedCenters(np.concatenate(centers), all_counts, center_of, silent, exposure, advice)


def _group_rows(labels: Integers, silent: Booleans, *, classwise: bool) -> list[Integers]:
    """Return groups of rows to cluster together, without rows of silent classes."""
    if classwise:
        return [np.flatnonzero(labels == label) for label in np.flatnonzero(~silent)]
    rows = np.flatnonzero(~silent[labels])
    return [rows] if len(rows) else []


def _suppress_few_counts(counts: Integers, *, min_count: int) -> Integers:
    """Add counts below ``min_count`` to the center's majority class.

    The majority class of a center does not change.
    """
    top_class = counts.argmax(axis=1)
    result = np.where(counts < min_count, 0, counts)
    result[np.arange(len(counts)), top_class] = 0
    result[np.arange(len(counts)), top_class] = counts.sum(axis=1) - result.sum(axis=1)
    return np.asarray(result, np.int64)


def log_kernel(distances: Floats, *, sigma: float, activation: str) -> Floats:
    """Return the log kernel at normalized distances.

    See :func:`~fedneighbors.methods.fedpnn.algorithm.class_log_densities`.
    """
    u = distances / sigma
    if activation == "gaussian":
        return np.asarray(-0.5 * u * u)
    if activation == "logistic":
        return np.asarray(-u - 2.0 * np.log1p(np.exp(-u)))
    return np.asarray(-np.log1p(u * u))


def best_sigma(losses: npt.NDArray[np.number[Any]], sigmas: Floats = SIGMAS) -> float:
    """Return the smoothing with the lowest loss, ties to the largest.

    Among equally good smoothings, the largest gives the least confident predictions.

    Parameters
    ----------
    losses : array of shape (n_sigmas,)
        Loss of each smoothing, summed over the rows of one or several parties.
    sigmas : float64 array of shape (n_sigmas,)
        Smoothings, ascending.
    """
    return float(sigmas[len(sigmas) - 1 - int(np.argmin(losses[::-1]))])


def find_own_centers(x: Floats, y: Integers, centers: Floats, counts: Integers) -> Integers:
    """Return the index of the nearest center that contains each row's class.

    The index is -1 if no center counts rows of the class.

    Parameters
    ----------
    x : float64 array of shape (n_rows, n_features)
        Rows that the centers were computed from.
    y : int64 array of shape (n_rows,)
        Class of each row as a position.
    centers, counts
        As in :class:`~fedneighbors.methods.fedpnn.algorithm.Clusters`.
    """
    own = np.full(len(x), -1)
    for label in np.unique(y):
        rows, candidates = np.flatnonzero(y == label), np.flatnonzero(counts[:, label])
        if len(candidates):
            own[rows] = candidates[nearest_centers(x[rows], centers[candidates])[0]]
    return own


def leave_one_out_losses(
    x: Floats,
    y: Integers,
    centers: Floats,
    counts: Integers,
    *,
    own: Integers | None = None,
    sigmas: Floats = SIGMAS,
    activation: str = "gaussian",
    log_priors: Floats | None = None,
    n_threads: int = 1,
) -> Floats:
    """Return the leave-one-out log loss of each smoothing, summed over rows.

    The loss of a row is computed without the row in the counts of its center: a center of that row
    alone is omitted, and a center may get another majority class. The points of the centers do not
    change. The loss of a row is at most :data:`MAX_LOSS`. Losses of several parties can be added.

    Parameters
    ----------
    x : float64 array of shape (n_rows, n_features)
        Rows that the centers were computed from.
    y : int64 array of shape (n_rows,)
        Class of each row as a position.
    centers, counts
        As in :class:`~fedneighbors.methods.fedpnn.algorithm.Clusters`.
    own : int64 array of shape (n_rows,), optional
        Index of the center that counts each row, -1 for none; by default the result of
        :func:`find_own_centers`.
    sigmas : float64 array of shape (n_sigmas,)
        Smoothings.
    activation : {"gaussian", "logistic", "cauchy"}
        Kernel of the network.
    log_priors : float64 array of shape (n_classes,), optional
        Log class priors; equal by default.
    n_threads : int
        Number of threads. The result does not depend on it.

    Returns
    -------
    float64 array of shape (n_sigmas,)
        Sums of -log p(class), in nats.

    Examples
    --------
    >>> x, y = np.array([[0.0], [0.1], [1.0], [1.1]]), np.array([0, 0, 1, 1])
    >>> losses = leave_one_out_losses(x, y, x, np.eye(2, dtype=int)[y], sigmas=[0.01, 0.1, 10.0])
    >>> losses.round(2).tolist()
    [0.0, 0.0, 2.76]
    """
    own = find_own_centers(x, y, centers, counts) if own is None else own
    log_priors = np.zeros(counts.shape[1]) if log_priors is None else log_priors
    labels, new_class = _leave_out_rows(y, counts, own)
    order = np.argsort(labels, kind="stable")
    starts = np.append(0, np.bincount(labels, minlength=counts.shape[1]).cumsum())
    # the last entry is for rows without a center, which have own == -1
    position = np.append(np.argsort(order), -1)
    log_n_centers = np.log(np.maximum(_count_centers(labels, own, new_class, counts.shape[1]), 1))
    distances = np.sqrt(np.mean((x - centers[own]) ** 2, axis=1))[new_class >= 0]
    rows = np.arange(len(x))
    row_and_class = rows[new_class >= 0], new_class[new_class >= 0]
    losses = []
    for sigma in map(float, sigmas):
        sums = log_sums(
            x,
            centers[order],
            starts,
            sigma=sigma,
            activation=activation,
            without=position[own],
            n_threads=n_threads,
        )
        kernel = log_kernel(distances, sigma=sigma, activation=activation)
        sums[row_and_class] = np.logaddexp(sums[row_and_class], kernel)
        log_p = log_posteriors(sums - log_n_centers, log_priors)[rows, y]
        losses.append(np.minimum(-log_p, MAX_LOSS).sum())
    return np.array(losses)


def _count_centers(labels: Integers, own: Integers, new: Integers, n_classes: int) -> Integers:
    """Count the centers of each class, without each row in turn.

    ``new`` is the class of the row's own center without the row, see :func:`_leave_out_rows`.
    """
    present = np.tile(np.bincount(labels, minlength=n_classes), (len(own), 1))
    rows = np.arange(len(own))
    has_center, has_class = own >= 0, new >= 0
    present[rows[has_center], labels[own[has_center]]] -= 1
    present[rows[has_class], new[has_class]] += 1
    return present


def _leave_out_rows(y: Integers, counts: Integers, own: Integers) -> tuple[Integers, Integers]:
    """Return center classes, and those of rows' centers without them.

    The second array has the class of each row's own center if the row is left out. It is -1 if the
    center has no other records, or the row has no center.
    """
    others = counts[own].copy()
    others[np.arange(len(y)), y] -= 1
    empty = (own < 0) | (others.sum(axis=1) <= 0)
    return majority(counts), np.where(empty, -1, majority(others))
