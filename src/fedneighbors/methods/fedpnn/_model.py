"""The trained model, its file, and the leave-one-out losses by which its smoothing is chosen."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats, Integers
from fedneighbors.federation._messages import message
from fedneighbors.kernels.clustering._kerneldensity import log_sums
from fedneighbors.methods.fedpnn._messages import check_columns, frame_bytes, read_frame
from fedneighbors.methods.fedpnn._scaling import Frame
from fedneighbors.methods.fedpnn._selection import Selection
from fedneighbors.methods.fedpnn.algorithm import (
    SIGMAS,
    class_log_densities,
    log_posteriors,
    majority,
    nearest_centers,
)
from fedneighbors.records._storage import replace_file
from fedneighbors.tabular._model_file import open_model, read_model_file, sealed_model, usable
from fedneighbors.tabular._schema import Label

WORST_LOSS = 20.0
"""Most that one row may cost, in nats: without its class's only center it would cost infinity."""


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


_MAGIC = b"FNPNNET2"


@message
class ModelParts:
    """The fields of a model as they stand in its file."""

    classes: tuple[str | int | float | bool, ...]
    feature_names: tuple[str, ...] | None
    frame: bytes
    metric: Floats
    centers: Floats
    counts: Integers
    sigma: float
    activation: str
    guarantee: str
    n_features: int
    selected: Integers | None
    statistics: Floats | None

    def __post_init__(self) -> None:
        if not self.classes or self.counts.shape != (len(self.centers), len(self.classes)):
            raise ValueError("counts do not fit centers and classes")
        if not (np.isfinite(self.metric).all() and np.isfinite(self.centers).all()):
            raise ValueError("a number is not finite")
        if self.metric.ndim != 2 or self.centers.shape[1:] != self.metric.shape[1:]:
            raise ValueError("centers do not lie where the metric leads")
        if not 0 < self.sigma < np.inf or (self.counts < 0).any():
            raise ValueError("smoothing or counts are out of range")
        check_columns(self.selected, self.n_features)


@dataclass(frozen=True)
class FedPNNModel:
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
    guarantee : str
        The privacy of what it is made of, in words; empty where it is exact.
    selection : Selection or None
        The columns that the frame is of; None for all.
    """

    frame: Frame
    metric: Floats
    classes: tuple[Label, ...]
    centers: Floats
    counts: Integers
    sigma: float
    activation: str = "gaussian"
    feature_names: tuple[str, ...] | None = None
    guarantee: str = ""
    selection: Selection | None = None

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

    def to_bytes(self) -> bytes:
        """Return the model as the bytes of its file, the same for the same model."""
        parts = ModelParts(
            classes=self.classes,
            feature_names=self.feature_names,
            frame=frame_bytes(self.frame),
            metric=self.metric,
            centers=self.centers,
            counts=self.counts,
            sigma=self.sigma,
            activation=self.activation,
            guarantee=self.guarantee,
            n_features=self.n_features,
            selected=None if self.selection is None else self.selection.columns,
            statistics=None if self.selection is None else self.selection.statistics,
        )
        return sealed_model(_MAGIC, parts)

    @classmethod
    def from_bytes(cls, raw: bytes, *, source: str = "the model") -> "FedPNNModel":
        """Return the model that :meth:`to_bytes` wrote.

        Raises
        ------
        ModelFileError
            If the bytes are truncated, altered, not a model or of another version.
        """
        with usable(source):
            return cls._from_parts(open_model(_MAGIC, raw, ModelParts, source=source))

    @classmethod
    def _from_parts(cls, parts: ModelParts) -> "FedPNNModel":
        frame = read_frame(parts.frame)
        if len(parts.metric) != frame.n_coordinates:
            raise ValueError("the metric does not fit the frame")
        selection = None
        if parts.selected is not None and parts.statistics is not None:
            selection = Selection(parts.n_features, parts.selected, parts.statistics)
        n_kept = parts.n_features if selection is None else len(selection.columns)
        if frame.n_features != n_kept or (selection and len(selection.statistics) != n_kept):
            raise ValueError("the frame does not fit the columns")
        return cls(
            frame=frame,
            metric=parts.metric,
            classes=parts.classes,
            centers=parts.centers,
            counts=parts.counts,
            sigma=parts.sigma,
            activation=parts.activation,
            feature_names=parts.feature_names,
            guarantee=parts.guarantee,
            selection=selection,
        )

    def save(self, path: str | Path) -> None:
        """Write the model file; an interrupted write leaves nothing behind."""
        replace_file(path, self.to_bytes())

    @classmethod
    def load(cls, path: str | Path) -> "FedPNNModel":
        """Read a model file.

        Raises
        ------
        ModelFileError
            If the file is missing, truncated, altered or of another version.
        """
        return cls.from_bytes(read_model_file(path), source=str(path))
