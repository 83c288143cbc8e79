"""The privately trained model: bounds, noised origin, neurons, and the fields of its file."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats
from fedneighbors.federation._messages import message
from fedneighbors.methods.fedpnn.private._neurons import Neurons
from fedneighbors.methods.fedpnn.private._release import directions, in_cube
from fedneighbors.records._storage import replace_file
from fedneighbors.tabular._model_file import open_model, read_model_file, sealed_model, usable
from fedneighbors.tabular._schema import Label

MAGIC = b"FNPNNDP1"
"""How the files of these models begin."""


@message
class PrivateParts:
    """The fields of a model as they stand in its file."""

    classes: tuple[str | int | float | bool, ...]
    feature_names: tuple[str, ...] | None
    low: Floats
    high: Floats
    origin: Floats
    axes: Floats
    positions: Floats
    weights: Floats
    noise: Floats
    totals: Floats
    fewest: float
    sigma: float
    guarantee: str

    def __post_init__(self) -> None:
        n_features, n_axes = self.axes.shape if self.axes.ndim == 2 else (-1, -1)
        n_neurons, n_classes = len(self.positions), len(self.classes)
        expected = (
            (self.low, (n_features,)),
            (self.high, (n_features,)),
            (self.origin, (n_features,)),
            (self.positions, (n_neurons, n_axes)),
            (self.weights, (n_neurons, n_classes)),
            (self.noise, (n_neurons,)),
            (self.totals, (n_classes,)),
        )
        if any(part.shape != shape for part, shape in expected) or not n_neurons or not n_classes:
            raise ValueError("its parts do not fit one another")
        if not all(np.isfinite(part).all() for part in (self.axes, *(p for p, _ in expected))):
            raise ValueError("a number is not finite")
        if (self.low > self.high).any() or (self.noise < 0).any() or (self.totals <= 0).any():
            raise ValueError("bounds, noise or totals are out of range")
        if not (0 < self.sigma < np.inf and 0 <= self.fewest < np.inf and self.guarantee):
            raise ValueError("smoothing, floor or guarantee are missing")


@dataclass(frozen=True)
class PrivateFedPNNModel:
    """Neurons and the way of a row to them; every number is public, noised or made of such.

    Parameters
    ----------
    classes : tuple of labels
        Ascending.
    low, high : float64 arrays of shape (n_features,)
        Public bounds of the columns.
    origin : float64 array of shape (n_features,)
        Noised mean of the rows in the cube.
    neurons : Neurons
        In the space of directions as seen from there.
    guarantee : str
        The privacy of what it is made of, in words.
    feature_names : tuple of str or None
        Names of the columns, where they have any.
    """

    classes: tuple[Label, ...]
    low: Floats
    high: Floats
    origin: Floats
    neurons: Neurons
    guarantee: str
    feature_names: tuple[str, ...] | None = None

    @property
    def n_features(self) -> int:
        """Columns of a row."""
        return len(self.low)

    @property
    def has_centers(self) -> npt.NDArray[np.bool_]:
        """Whether the model tells of each class; this one always does."""
        return np.ones(len(self.classes), bool)

    def log_densities(self, x: Floats, *, n_threads: int = 1) -> Floats:  # noqa: ARG002 - as of FedPNNModel
        """Return log f_k of each row for each class, shape (n_rows, n_classes).

        Parameters
        ----------
        x : float64 array of shape (n_rows, n_features)
            Missing cells are NaN and count as the middle of the bounds.
        n_threads : int
            Not used; so few neurons need none.
        """
        cube = in_cube(x, (self.low, self.high))
        return self.neurons.log_densities(directions(cube, self.origin))

    def to_bytes(self) -> bytes:
        """Return the model as the bytes of its file, the same for the same model."""
        parts = PrivateParts(
            classes=self.classes,
            feature_names=self.feature_names,
            low=self.low,
            high=self.high,
            origin=self.origin,
            axes=self.neurons.axes,
            positions=self.neurons.positions,
            weights=self.neurons.weights,
            noise=self.neurons.noise,
            totals=self.neurons.totals,
            fewest=self.neurons.fewest,
            sigma=self.neurons.sigma,
            guarantee=self.guarantee,
        )
        return sealed_model(MAGIC, parts)

    @classmethod
    def from_bytes(cls, raw: bytes, *, source: str = "the model") -> "PrivateFedPNNModel":
        """Return the model that :meth:`to_bytes` wrote.

        Raises
        ------
        ModelFileError
            If the bytes are truncated, altered, not a model or of another version.
        """
        with usable(source):
            return cls._from_parts(open_model(MAGIC, raw, PrivateParts, source=source))

    @classmethod
    def _from_parts(cls, parts: PrivateParts) -> "PrivateFedPNNModel":
        neurons = Neurons(
            axes=parts.axes,
            positions=parts.positions,
            weights=parts.weights,
            noise=parts.noise,
            totals=parts.totals,
            fewest=parts.fewest,
            sigma=parts.sigma,
        )
        return cls(
            classes=parts.classes,
            low=parts.low,
            high=parts.high,
            origin=parts.origin,
            neurons=neurons,
            guarantee=parts.guarantee,
            feature_names=parts.feature_names,
        )

    def save(self, path: str | Path) -> None:
        """Write the model file; an interrupted write leaves nothing behind."""
        replace_file(path, self.to_bytes())

    @classmethod
    def load(cls, path: str | Path) -> "PrivateFedPNNModel":
        """Read a model file.

        Raises
        ------
        ModelFileError
            If the file is missing, truncated, altered or of another version.
        """
        return cls.from_bytes(read_model_file(path), source=str(path))
