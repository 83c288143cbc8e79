"""The trained model as it stands in a file: the shared network, and own parts of clients."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors.federation._messages import decode, encode, message
from fedneighbors.methods.knnper._settings import MemorySettings
from fedneighbors.methods.knnper.files._clients import (
    client_bytes,
    read_client,
    read_settings,
    settings_parts,
)
from fedneighbors.methods.knnper.files._discriminants import read_seen, seen_bytes
from fedneighbors.methods.knnper.files._values import n_classes_of, refuse_basis, refuse_settings
from fedneighbors.methods.knnper.memory.compression._product import Codebook, ProductCodec
from fedneighbors.methods.knnper.protocol import Shared
from fedneighbors.neural._blueprint import Blueprint
from fedneighbors.records._storage import replace_file
from fedneighbors.tabular._model_file import open_model, read_model_file, sealed_model, usable
from fedneighbors.tabular._schema import Agreed

MAGIC = b"FNKNPER1"
"""How files of models of classes begin."""

NUMBERS_MAGIC = b"FNKNNUM1"
"""How files of models of numbers begin."""


@message
class ModelParts:
    """The fields of a model as they stand in its file; of numbers there are no classes."""

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
        refuse_basis(self.classes, self.overall, self.pool)
        if self.center.shape != self.scale.shape or not (self.scale > 0).all():
            raise ValueError("center and scale of the columns do not fit")
        if self.feature_names is not None and len(self.feature_names) != self.n_features:
            raise ValueError("names of the columns do not fit them")
        if not np.isfinite(self.center).all() or not np.isfinite(self.scale).all():
            raise ValueError("center or scale of a column is not finite")


@message
class SharingParts(ModelParts):
    """The fields of a model whose clients share a codebook, whose entries come last."""

    entries: npt.NDArray[np.float32]
    n_dimensions: int
    bits: int


@message
class SeeingParts(ModelParts):
    """The fields of a model whose pool looks at rows; ``seen`` is a frame of discriminants."""

    seen: bytes


@message
class NumberParts:
    """The fields of a model of numbers: a frame of :class:`ModelParts`, and what it does not tell.

    ``flat``: targets were a column without a second dimension, and predictions are.
    """

    flat: bool
    model: bytes


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
    flat : bool
        Of a model of numbers: whether it predicts an array of shape (n_rows,).
    """

    blueprint: Blueprint
    layout: str
    shared: Shared
    settings: MemorySettings
    clients: Mapping[str, Any] = field(default_factory=dict)
    guarantee: str = ""
    flat: bool = False

    @property
    def of_numbers(self) -> bool:
        """Whether numbers are predicted in place of classes."""
        return n_classes_of(self.shared.overall) is None

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
        parts = _shared_by(parts, self.settings.codec)
        if shared.seen is not None:
            parts = SeeingParts(**vars(parts), seen=seen_bytes(shared.seen))
        if self.of_numbers:
            return sealed_model(NUMBERS_MAGIC, NumberParts(self.flat, encode(parts)))
        return sealed_model(MAGIC, parts)

    @classmethod
    def from_bytes(cls, raw: bytes, *, source: str = "the model") -> "KNNPerModel":
        """Return the model that :meth:`to_bytes` wrote.

        Raises
        ------
        ModelFileError
            If the bytes are truncated, altered, not a model or of another version.
        """
        if raw.startswith(NUMBERS_MAGIC[:-1]):
            with usable(source):
                return cls._from_numbers(open_model(NUMBERS_MAGIC, raw, NumberParts, source=source))
        kinds: Any = ModelParts | SharingParts | SeeingParts
        with usable(source):
            return cls._from_classes(open_model(MAGIC, raw, kinds, source=source))

    @classmethod
    def _from_numbers(cls, told: NumberParts) -> "KNNPerModel":
        parts = decode(told.model, (ModelParts, SharingParts))
        if parts.classes:
            raise ValueError("it has classes, in a file of a model of numbers")
        return cls._from_parts(parts, flat=told.flat)

    @classmethod
    def _from_classes(cls, parts: ModelParts) -> "KNNPerModel":
        if not parts.classes:
            raise ValueError("it has no classes")
        return cls._from_parts(parts)

    @classmethod
    def _from_parts(cls, parts: ModelParts, *, flat: bool = False) -> "KNNPerModel":
        blueprint = Blueprint.read(parts.network)
        n_outputs = parts.overall.shape[-1]
        if blueprint.n_outputs != n_outputs or (flat and n_outputs > 1):
            raise ValueError("the network does not fit the classes, or the targets")
        n_cells = math.prod(blueprint.shape)
        if len(parts.center) not in (0, n_cells) or parts.n_features != n_cells:
            raise ValueError("columns, or their center and scale, do not fit the rows")
        agreed = Agreed(parts.n_features, parts.feature_names, parts.classes)
        shared = Shared(
            weights=parts.weights,
            classes=parts.classes,
            overall=parts.overall,
            pool=parts.pool,
            center=parts.center,
            scale=parts.scale,
            agreed=agreed,
            seen=read_seen(parts.seen) if isinstance(parts, SeeingParts) else None,
        )
        codec = _codec(parts)
        told = (parts.overall, parts.pool, codec)
        clients = dict(read_client(raw, *told) for raw in parts.clients)
        settings = replace(read_settings(parts.settings), codec=codec)
        refuse_settings(settings, parts.overall)
        return cls(blueprint, parts.layout, shared, settings, clients, parts.guarantee, flat)

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


def _shared_by(parts: ModelParts, codec: ProductCodec | None) -> ModelParts:
    """Return the same fields with those of the codebook that clients share, if they do."""
    if codec is None or codec.book is None:
        return parts
    book = codec.book
    return SharingParts(
        **vars(parts), entries=book.entries, n_dimensions=book.n_dimensions, bits=codec.bits
    )


def _codec(parts: ModelParts) -> ProductCodec | None:
    """Return the codec that clients share, if they do."""
    if not isinstance(parts, SharingParts):
        return None
    bits: Any = parts.bits  # what is no number of bits the codec refuses
    book = Codebook(parts.entries, parts.n_dimensions)
    return ProductCodec(len(book.entries), bits).with_book(book, learned_here=False)
