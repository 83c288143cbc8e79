"""The trained model as it stands in a file: the shared network, and own parts of clients."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors.federation.messages import message
from fedneighbors.methods.knnper.files.clients import (
    client_bytes,
    read_client,
    read_settings,
    settings_parts,
)
from fedneighbors.methods.knnper.networks.blueprint import Blueprint
from fedneighbors.methods.knnper.protocol import Shared
from fedneighbors.methods.knnper.settings import MemorySettings
from fedneighbors.records.files import replace_file
from fedneighbors.tables.modelfile import open_model, read_model_file, sealed_model
from fedneighbors.tables.schema import Agreed

__all__ = ["MAGIC", "KNNPerModel"]

MAGIC = b"FNKNPER1"


@message
class ModelParts:
    """The fields of a model as they stand in its file."""

    network: str
    layout: str
    weights: npt.NDArray[np.floating]
    classes: tuple[str | int | float | bool, ...]
    feature_names: tuple[str, ...] | None
    n_features: int
    overall: npt.NDArray[np.float64]
    pool: npt.NDArray[np.float64] | None
    center: npt.NDArray[np.float64]
    scale: npt.NDArray[np.float64]
    settings: Mapping[str, str | int | float | bool | None]
    clients: tuple[bytes, ...]
    guarantee: str

    def __post_init__(self) -> None:
        if not np.isfinite(self.weights).all() or self.weights.ndim != 1:
            raise ValueError("weights of the network are not finite")
        if len(self.classes) < 2 or self.overall.shape != (len(self.classes),):
            raise ValueError("shares do not fit the classes")
        if not (np.isfinite(self.overall).all() and (self.overall > 0).all()):
            raise ValueError("shares of the classes are out of range")
        if self.center.shape != self.scale.shape or not (self.scale > 0).all():
            raise ValueError("center and scale of the columns do not fit")
        if not np.isfinite(self.center).all() or not np.isfinite(self.scale).all():
            raise ValueError("center or scale of a column is not finite")
        if self.pool is not None and not np.isfinite(self.pool).all():
            raise ValueError("weights of the pool are not finite")


@dataclass(frozen=True, eq=False)
class KNNPerModel:
    """A shared network and, of none, some or all clients, what they made of it.

    Parameters
    ----------
    blueprint : Blueprint
        Of the network.
    layout : str
        Digest of the network's weights by name and shape.
    shared : Shared
        What all clients have in common.
    settings : MemorySettings
        Of the memories of clients that come later.
    clients : mapping of str to own part
        What each client has for itself.
    guarantee : str
        The privacy of the shared network in words; empty for an exact training.
    """

    blueprint: Blueprint
    layout: str
    shared: Shared
    settings: MemorySettings
    clients: Mapping[str, Any] = field(default_factory=dict)
    guarantee: str = ""

    def to_bytes(self) -> bytes:
        """Return the model as the bytes of its file, the same for the same model."""
        shared = self.shared
        parts = ModelParts(
            network=self.blueprint.words,
            layout=self.layout,
            weights=shared.weights,
            classes=shared.classes,
            feature_names=shared.agreed.feature_names,
            n_features=shared.agreed.n_features,
            overall=shared.overall,
            pool=shared.pool,
            center=shared.center,
            scale=shared.scale,
            settings=settings_parts(self.settings),
            clients=tuple(client_bytes(name, self.clients[name]) for name in sorted(self.clients)),
            guarantee=self.guarantee,
        )
        return sealed_model(MAGIC, parts)

    @classmethod
    def from_bytes(cls, raw: bytes, *, source: str = "the model") -> "KNNPerModel":
        """Return the model that :meth:`to_bytes` wrote.

        Raises
        ------
        ModelFileError
            If the bytes are truncated, altered, not a model or of another version.
        """
        return open_model(MAGIC, raw, ModelParts, cls._from_parts, source=source)

    @classmethod
    def _from_parts(cls, parts: ModelParts) -> "KNNPerModel":
        blueprint = Blueprint.read(parts.network)
        if blueprint.n_outputs != len(parts.classes):
            raise ValueError("the network does not fit the classes")
        if len(parts.center) not in (0, int(np.prod(blueprint.shape))):
            raise ValueError("center and scale do not fit the rows")
        agreed = Agreed(parts.n_features, parts.feature_names, parts.classes)
        shared = Shared(
            weights=parts.weights,
            classes=parts.classes,
            overall=parts.overall,
            pool=parts.pool,
            center=parts.center,
            scale=parts.scale,
            agreed=agreed,
        )
        clients = dict(read_client(raw, parts.overall, parts.pool) for raw in parts.clients)
        settings = read_settings(parts.settings)
        return cls(blueprint, parts.layout, shared, settings, clients, parts.guarantee)

    def save(self, path: str | Path) -> None:
        """Write the model file; an interrupted write leaves nothing behind."""
        replace_file(path, self.to_bytes())

    @classmethod
    def load(cls, path: str | Path) -> "KNNPerModel":
        """Read a model file.

        Raises
        ------
        ModelFileError
            If the file is missing, truncated, altered or of another version.
        """
        return cls.from_bytes(read_model_file(path), source=str(path))
