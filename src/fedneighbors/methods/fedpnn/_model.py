"""Centers that a party releases, and the model built from them.

This module also computes the leave-one-out losses for choosing the smoothing, and the exposure of
single rows by the released centers.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Booleans, Floats, Integers
from fedneighbors.kernels.clustering._kerneldensity import log_sums
from fedneighbors.methods.fedpnn._scaling import TableScaling
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
"""Maximum loss of a row, in nats: without the only center of its class, a loss is infinite."""


@dataclass(frozen=True)
class FedPNNModel(ModelFile):
    """Trained FedPNN model: scaling, linear map, centers and smoothing.

    Parameters
    ----------
    scaling : TableScaling
        Scaling of the columns.
    linear_map : float64 array of shape (n_coordinates, n_dimensions)
        Matrix that scaled rows are multiplied with from the right.
    classes : tuple of labels
        Labels, ascending.
    centers : float64 array of shape (n_centers, n_dimensions)
        Centers in canonical order.
    counts : int64 array of shape (n_centers, n_classes)
        Number of rows of each class behind each center.
    sigma : float
        Smoothing, in units of normalized distance.
    activation : str
        Kernel of the network.
    feature_names : tuple of str or None
        Names of the columns, if they have any.
    selection : Selection or None
        Columns that are used; None for all.
    """

    magic: ClassVar[bytes] = b"FNPNNET3"

    scaling: TableScaling
    linear_map: Floats
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
        if not (np.isfinite(self.linear_map).all() and np.isfinite(self.centers).all()):
            raise ValueError("a number is not finite")
        if self.linear_map.ndim != 2 or self.centers.shape[1:] != self.linear_map.shape[1:]:
            raise ValueError("centers and linear map differ in their number of dimensions")
        if not 0 < self.sigma < np.inf or (self.counts < 0).any():
            raise ValueError("smoothing or counts are out of range")
        if len(self.linear_map) != self.scaling.n_coordinates:
            raise ValueError("the linear map does not fit the scaling")
        if self.selection is not None and self.scaling.n_features != len(self.selection.columns):
            raise ValueError("the scaling does not fit the selected columns")

    @property
    def n_features(self) -> int:
        """Return the number of columns of a table, including those not selected."""
        return self.scaling.n_features if self.selection is None else self.selection.n_features

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
        points = self.scaling.apply(selected) @ self.linear_map
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
    """Exposure of single rows: sizes of a party's clusters and centers.

    Parameters
    ----------
    n_rows : int
        Rows of the party.
    n_withheld : int
        Rows of suppressed classes, about which nothing is sent.
    n_clusters : int
        Clusters before small ones were merged.
    n_single : int
        Clusters of a single row, whose center is that row.
    n_small : int
        Clusters of fewer than ``min_count`` rows, single rows included.
    n_centers : int
        Centers that are sent, after small clusters were merged.
    min_center_size : int
        Records of the smallest center that is sent; 0 if none is sent.
    """

    n_rows: int
    n_withheld: int
    n_clusters: int
    n_single: int
    n_small: int
    n_centers: int
    min_center_size: int

    @property
    def largest_risk(self) -> float:
        """Return the risk of a row of the smallest center.

        It is ``1 / min_center_size``, or 0 without centers.
        """
        return 1 / self.min_center_size if self.min_center_size else 0.0

    def __str__(self) -> str:
        """Return the numbers as sentences."""
        if not self.n_centers:
            return f"Nothing is sent: no class has enough of the {self.n_rows} rows."
        withheld = (
            f" {self.n_withheld} rows of rare classes are withheld." if self.n_withheld else ""
        )
        return (
            f"{self.n_centers} centers of {self.min_center_size} rows or more each. Of "
            f"{self.n_clusters} clusters, {self.n_single} were single rows and {self.n_small} "
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
        Number of rows of each class behind each center.
    rows : int64 array of shape (n_rows,)
        Index of the center of each row, -1 for none.
    suppressed : bool array of shape (n_classes,)
        True for classes of fewer than ``min_count`` rows, about which nothing is sent.
    exposure : Exposure
        Exposure of single rows.
    advice : str
        Advice about an unsuitable threshold, see :func:`~.algorithm.describe_threshold`; empty for
        a suitable one. It is not sent.
    """

    centers: Floats
    counts: Integers
    rows: Integers
    suppressed: Booleans
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
        Rows after the scaling and the linear map.
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
        Minimum number of rows of a center. Smaller clusters are merged into the nearest cluster
        of their class, and nothing is sent about a class of fewer rows.
    means : bool
        Send the means of the clusters' rows. If False, send the final centers of the clustering,
        each of which may lie halfway between two rows and not depend on the others.
    n_threads : int
        Number of threads. The result does not depend on it.
    """
    suppressed = np.bincount(labels, minlength=n_classes) < min_count
    centers, counts = [np.zeros((0, points.shape[1]))], [np.zeros((0, n_classes), np.int64)]
    all_sizes, groups, n_sent = [np.zeros(0, np.int64)], [], 0
    center_of = np.full(len(points), -1)
    for rows in _group_rows(labels, suppressed, classwise=classwise):
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
    sizes, center_sizes = np.concatenate(all_sizes), all_counts.sum(axis=1)
    exposure = Exposure(
        n_rows=len(points),
        n_withheld=len(points) - int(all_counts.sum()),
        n_clusters=len(sizes),
        n_single=int((sizes == 1).sum()),
        n_small=int((sizes < min_count).sum()),
        n_centers=len(all_counts),
        min_center_size=int(center_sizes.min()) if len(all_counts) else 0,
    )
    advice = ""
    if threshold is not None:
        advice = describe_threshold(groups, threshold=threshold, factor=factor)
    all_centers = np.concatenate(centers)
    return ReleasedCenters(all_centers, all_counts, center_of, suppressed, exposure, advice)


def _group_rows(labels: Integers, suppressed: Booleans, *, classwise: bool) -> list[Integers]:
    """Return groups of rows to cluster together, without rows of suppressed classes."""
    if classwise:
        return [np.flatnonzero(labels == label) for label in np.flatnonzero(~suppressed)]
    rows = np.flatnonzero(~suppressed[labels])
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


def assign_centers(x: Floats, y: Integers, centers: Floats, counts: Integers) -> Integers:
    """Assign each row to the nearest center that counts its class.

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
    assigned = np.full(len(x), -1)
    for label in np.unique(y):
        rows, candidates = np.flatnonzero(y == label), np.flatnonzero(counts[:, label])
        if len(candidates):
            assigned[rows] = candidates[nearest_centers(x[rows], centers[candidates])[0]]
    return assigned


def leave_one_out_losses(
    x: Floats,
    y: Integers,
    centers: Floats,
    counts: Integers,
    *,
    assigned: Integers | None = None,
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
    assigned : int64 array of shape (n_rows,), optional
        Index of the center that counts each row, -1 for none; by default the result of
        :func:`assign_centers`.
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
    assigned = assign_centers(x, y, centers, counts) if assigned is None else assigned
    log_priors = np.zeros(counts.shape[1]) if log_priors is None else log_priors
    labels, new_class = _leave_out_rows(y, counts, assigned)
    order = np.argsort(labels, kind="stable")
    starts = np.append(0, np.bincount(labels, minlength=counts.shape[1]).cumsum())
    # the last entry is for rows without a center, whose index is -1
    position = np.append(np.argsort(order), -1)
    n_centers = _count_centers(labels, assigned, new_class, counts.shape[1])
    log_n_centers = np.log(np.maximum(n_centers, 1))
    distances = np.sqrt(np.mean((x - centers[assigned]) ** 2, axis=1))[new_class >= 0]
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
            without=position[assigned],
            n_threads=n_threads,
        )
        kernel = log_kernel(distances, sigma=sigma, activation=activation)
        sums[row_and_class] = np.logaddexp(sums[row_and_class], kernel)
        log_p = log_posteriors(sums - log_n_centers, log_priors)[rows, y]
        losses.append(np.minimum(-log_p, MAX_LOSS).sum())
    return np.array(losses)


def _count_centers(labels: Integers, assigned: Integers, new: Integers, n_classes: int) -> Integers:
    """Count the centers of each class, without each row in turn.

    ``new`` is the class of the row's assigned center without the row, see :func:`_leave_out_rows`.
    """
    present = np.tile(np.bincount(labels, minlength=n_classes), (len(assigned), 1))
    rows = np.arange(len(assigned))
    has_center, has_class = assigned >= 0, new >= 0
    present[rows[has_center], labels[assigned[has_center]]] -= 1
    present[rows[has_class], new[has_class]] += 1
    return present


def _leave_out_rows(y: Integers, counts: Integers, assigned: Integers) -> tuple[Integers, Integers]:
    """Return center classes, with all rows and without each row.

    The second array has the class of each row's assigned center if the row is left out. It is -1 if
    the center has no other rows, or the row has no center.
    """
    others = counts[assigned].copy()
    others[np.arange(len(y)), y] -= 1
    empty = (assigned < 0) | (others.sum(axis=1) <= 0)
    return majority(counts), np.where(empty, -1, majority(others))
