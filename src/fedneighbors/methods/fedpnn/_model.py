"""The trained model and its file; its metric, from moments, and its smoothing, from losses."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats, Integers
from fedneighbors.kernels.clustering._kerneldensity import log_sums
from fedneighbors.methods.fedpnn._scaling import QUANTA, Frame, MomentsReply
from fedneighbors.methods.fedpnn._selection import Selection
from fedneighbors.methods.fedpnn.algorithm import (
    SIGMAS,
    class_log_densities,
    log_posteriors,
    majority,
    nearest_centers,
)
from fedneighbors.tabular._model_file import ModelFile
from fedneighbors.tabular._schema import Label

WORST_LOSS = 20.0
"""Most that one row may cost, in nats: without its class's only center it would cost infinity."""


@dataclass(frozen=True)
class FedPNNModel(ModelFile):
    """Centers of all classes, the way of a row to them, and the smoothing.

    Parameters
    ----------
    frame : Frame
        How rows become points.
    metric : float64 array of shape (n_coordinates, n_dimensions)
        What points are multiplied with.
    classes : tuple of labels
        Ascending.
    centers : float64 array of shape (n_centers, n_dimensions)
        In canonical order.
    counts : int64 array of shape (n_centers, n_classes)
        Records of each class that a center stands for.
    sigma : float
        Smoothing, in the unit of normalized distance.
    activation : str
        Kernel of the network.
    feature_names : tuple of str or None
        Names of the columns, where they have any.
    selection : Selection or None
        The columns that the frame is of; None for all.
    """

    magic: ClassVar[bytes] = b"FNPNNET3"

    frame: Frame
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
            raise ValueError("centers do not lie where the metric leads")
        if not 0 < self.sigma < np.inf or (self.counts < 0).any():
            raise ValueError("smoothing or counts are out of range")
        if len(self.metric) != self.frame.n_coordinates:
            raise ValueError("the metric does not fit the frame")
        if self.selection is not None and self.frame.n_features != len(self.selection.columns):
            raise ValueError("the frame does not fit the columns")

    @property
    def n_features(self) -> int:
        """Columns of a table, also of those that were not kept."""
        return self.frame.n_features if self.selection is None else self.selection.n_features

    @cached_property
    def center_labels(self) -> Integers:
        """The class of each center: the most frequent among its records, ties to the lower."""
        return majority(self.counts)

    @property
    def has_centers(self) -> npt.NDArray[np.bool_]:
        """Whether there is a center of each class."""
        return np.bincount(self.center_labels, minlength=len(self.classes)) > 0

    def log_densities(self, x: Floats, *, n_threads: int = 1) -> Floats:
        """Return log f_k of each row for each class, shape (n_rows, n_classes).

        A class without centers has -inf.

        Parameters
        ----------
        x : float64 array of shape (n_rows, n_features)
            Missing cells are NaN.
        n_threads : int
            The result does not depend on it.
        """
        kept = x if self.selection is None else x[:, self.selection.columns]
        points = self.frame.apply(kept) @ self.metric
        return class_log_densities(
            points,
            self.centers,
            self.center_labels,
            n_classes=len(self.classes),
            sigma=self.sigma,
            activation=self.activation,
            n_threads=n_threads,
        )


def covariance_within(moments: MomentsReply) -> tuple[Floats, Floats]:
    """Return the means of the classes that have rows, and the covariance within classes.

    Parameters
    ----------
    moments : MomentsReply
        Of at least one row.

    Returns
    -------
    means : float64 array of shape (n_present, n_coordinates)
        In the order of the classes.
    within : float64 array of shape (n_coordinates, n_coordinates)
        Symmetric.
    """
    counts = moments.counts
    present = counts > 0
    means = moments.sums[present] / (counts[present, None] * float(QUANTA))
    between = (means * counts[present, None]).T @ means
    within = (moments.products / float(QUANTA) ** 2 - between) / int(counts.sum())
    return means, (within + within.T) / 2


def supervised_metric(moments: MomentsReply, *, ridge: float, boost: float) -> Floats:
    """Return a linear map after which Euclidean distance tells classes apart.

    Coordinates are whitened by the covariance within classes; the directions between the means of
    the classes are then stretched.

    Parameters
    ----------
    moments : MomentsReply
        Of all parties.
    ridge : float
        Added to every variance within classes, in units of the mean variance.
    boost : float
        Factor of the directions between class means; 1 for none.

    Returns
    -------
    float64 array of shape (n_coordinates, n_coordinates)
        To multiply points with from the right.
    """
    means, within = covariance_within(moments)
    spread, directions = np.linalg.eigh(within)
    unit = float(np.trace(within)) / len(within) or 1.0  # where nothing varies within classes
    whiten = directions / np.sqrt(np.maximum(spread, 0.0) + ridge * unit)
    apart = (means - means.mean(axis=0)) @ whiten
    _, sizes, rows = np.linalg.svd(apart, full_matrices=False)
    told = rows[sizes > 1e-9 * max(float(sizes.max(initial=0.0)), 1.0)]
    stretched: Floats = whiten + (boost - 1.0) * (whiten @ told.T) @ told
    return stretched


def log_kernel(distances: Floats, *, sigma: float, activation: str) -> Floats:
    """Return the log of the kernel at normalized distances.

    See :func:`~fedneighbors.methods.fedpnn.algorithm.class_log_densities`.
    """
    u = distances / sigma
    if activation == "gaussian":
        return np.asarray(-0.5 * u * u)
    if activation == "logistic":
        return np.asarray(-u - 2.0 * np.log1p(np.exp(-u)))
    return np.asarray(-np.log1p(u * u))


def best_sigma(losses: npt.NDArray[np.number[Any]], sigmas: Floats = SIGMAS) -> float:
    """Return the smoothing of least loss, the widest of equals: it says the least beyond the rows.

    Parameters
    ----------
    losses : array of shape (n_sigmas,)
        Of all rows, or summed over parties.
    sigmas : float64 array of shape (n_sigmas,)
        Ascending.
    """
    return float(sigmas[len(sigmas) - 1 - int(np.argmin(losses[::-1]))])


def own_centers(x: Floats, y: Integers, centers: Floats, counts: Integers) -> Integers:
    """Return the nearest center that counts rows of a row's class; -1 where none does.

    Parameters
    ----------
    x : float64 array of shape (n_rows, n_features)
        Rows that the centers stand for.
    y : int64 array of shape (n_rows,)
        Their classes as positions.
    centers, counts
        As of :class:`~fedneighbors.methods.fedpnn.algorithm.Clusters`.
    """
    own = np.full(len(x), -1)
    for label in np.unique(y):
        rows, places = np.flatnonzero(y == label), np.flatnonzero(counts[:, label])
        if len(places):
            own[rows] = places[nearest_centers(x[rows], centers[places])[0]]
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
    """Return the sum over rows of -log p(class) for each smoothing, each row without its own count.

    A row is taken out of the counts of its own center: a center that stood for it alone is left
    out, and one whose majority changes without it changes its class. Centers stay where they are. A
    row costs :data:`WORST_LOSS` at most. Sums of several parties add up.

    Parameters
    ----------
    x : float64 array of shape (n_rows, n_features)
        Rows that the centers stand for.
    y : int64 array of shape (n_rows,)
        Their classes as positions.
    centers, counts
        As of :class:`~fedneighbors.methods.fedpnn.algorithm.Clusters`.
    own : int64 array of shape (n_rows,), optional
        Center that counts each row, -1 for none; by default :func:`own_centers`.
    sigmas : float64 array of shape (n_sigmas,)
        Smoothings.
    activation : {"gaussian", "logistic", "cauchy"}
        Kernel of the network.
    log_priors : float64 array of shape (n_classes,), optional
        Equal by default.
    n_threads : int
        The result does not depend on it.

    Returns
    -------
    float64 array of shape (n_sigmas,)
        In nats.

    Examples
    --------
    >>> x, y = np.array([[0.0], [0.1], [1.0], [1.1]]), np.array([0, 0, 1, 1])
    >>> losses = leave_one_out_losses(x, y, x, np.eye(2, dtype=int)[y], sigmas=[0.01, 0.1, 10.0])
    >>> losses.round(2).tolist()
    [0.0, 0.0, 2.76]
    """
    own = own_centers(x, y, centers, counts) if own is None else own
    log_priors = np.zeros(counts.shape[1]) if log_priors is None else log_priors
    labels, left = _without(y, counts, own)
    order = np.argsort(labels, kind="stable")
    starts = np.append(0, np.bincount(labels, minlength=counts.shape[1]).cumsum())
    position = np.append(np.argsort(order), -1)  # the last is that of no center
    n_present = np.log(np.maximum(_present(labels, own, left, counts.shape[1]), 1))
    distances = np.sqrt(np.mean((x - centers[own]) ** 2, axis=1))[left >= 0]
    rows = np.arange(len(x))
    back = rows[left >= 0], left[left >= 0]
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
        sums[back] = np.logaddexp(sums[back], kernel)
        log_p = log_posteriors(sums - n_present, log_priors)[rows, y]
        losses.append(np.minimum(-log_p, WORST_LOSS).sum())
    return np.array(losses)


def _present(labels: Integers, own: Integers, left: Integers, n_classes: int) -> Integers:
    """Return how many centers each class has, for each row without its own count."""
    present = np.tile(np.bincount(labels, minlength=n_classes), (len(own), 1))
    rows = np.arange(len(own))
    held, again = own >= 0, left >= 0
    present[rows[held], labels[own[held]]] -= 1
    present[rows[again], left[again]] += 1
    return present


def _without(y: Integers, counts: Integers, own: Integers) -> tuple[Integers, Integers]:
    """Return the class of each center, and that of each row's own center without the row.

    The latter is -1 where nothing is left of the center, or the row has none.
    """
    rest = counts[own].copy()
    rest[np.arange(len(y)), y] -= 1
    gone = (own < 0) | (rest.sum(axis=1) <= 0)
    return majority(counts), np.where(gone, -1, majority(rest))
