"""The trained model: frame, metric, centers and smoothing, and the fields of its file."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats, Integers
from fedneighbors.federation._messages import message
from fedneighbors.methods.fedpnn._frame import Frame
from fedneighbors.methods.fedpnn._messages import check_columns, frame_bytes, read_frame
from fedneighbors.methods.fedpnn._selection import Selection
from fedneighbors.methods.fedpnn.algorithm import class_log_densities, majority
from fedneighbors.records._files import replace_file
from fedneighbors.tabular._model_file import open_model, read_model_file, sealed_model, usable
from fedneighbors.tabular._schema import Label

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
