"""A client's own part as fields of a file: its memory, its weight, and how the memory is asked."""

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors.federation._messages import decode, encode, message
from fedneighbors.methods.knnper._settings import MemorySettings
from fedneighbors.methods.knnper.files._memories import (
    memory_bytes,
    read_mapping,
    read_memory,
    read_names,
)
from fedneighbors.methods.knnper.files._values import (
    n_classes_of,
    own_part,
    refuse_settings,
    refuse_values,
)
from fedneighbors.methods.knnper.memory._datastore import Datastore
from fedneighbors.methods.knnper.memory.compression._product import ProductCodec
from fedneighbors.methods.knnper.personal._client_state import OwnPart

Scalar = str | int | float | bool | None

LEFT_OUT = {("n_discriminants", 0)}
"""What files of the time before it do not say, and none has to."""


@message
class ClientParts:
    """One client's exact memory, and mixture; ``state`` is JSON of what it needs to go on."""

    name: str
    keys: npt.NDArray[np.floating[Any]]
    labels: npt.NDArray[Any]
    ids: str
    state: str
    weight: float
    settings: Mapping[str, str | int | float | bool | None]


@message
class CompressedParts:
    """One client's mixture, and its memory of fewer bytes as a frame of :mod:`~.memories`."""

    name: str
    memory: bytes
    weight: float
    settings: Mapping[str, str | int | float | bool | None]


def settings_parts(settings: MemorySettings) -> dict[str, Scalar]:
    """Return the settings of memories by name.

    Parameters
    ----------
    settings : MemorySettings
        Each a number, a word or None; candidates become words with commas between them. A codec
        that clients share is left out.

    Raises
    ------
    ValueError
        If one is something else, which a file does not hold.
    """
    parts = {
        name: ",".join(map(str, value)) if isinstance(value, tuple) else value
        for name, value in vars(settings).items()
        if name != "codec" and (name, value) not in LEFT_OUT
    }
    foreign = [k for k, v in parts.items() if not isinstance(v, str | int | float | None)]
    if foreign:
        raise ValueError(
            f"expected settings that a file can hold, got {foreign[0]}={parts[foreign[0]]!r}"
        )
    return parts


def read_settings(parts: Mapping[str, Scalar]) -> MemorySettings:
    """Return the settings that :func:`settings_parts` took apart.

    Raises
    ------
    ValueError
        If there is one that this release does not know, or a value is out of range.
    """
    known = {field.name for field in fields(MemorySettings)} - {"codec"}
    unknown = sorted(set(parts) - known)
    if unknown:
        raise ValueError(f"this release knows no setting {unknown[0]!r}; update fedneighbors")
    told: dict[str, Any] = dict(parts)
    if isinstance(told.get("n_neighbors"), str):
        told["n_neighbors"] = tuple(int(k) for k in told["n_neighbors"].split(","))
    if "," in str(told.get("metric")):
        told["metric"] = tuple(told["metric"].split(","))
    return MemorySettings(**told)


def client_bytes(name: str, personal: OwnPart) -> bytes:
    """Return a client's own part as bytes, the same for the same part.

    Parameters
    ----------
    name : str
        Of the client.
    personal : OwnPart
        Its memory and mixture. What it shares with all clients is left out.
    """
    memory, weight = personal.memory, float(personal.weight)
    settings = settings_parts(personal.settings)
    if type(memory) is not Datastore:
        return encode(CompressedParts(name, memory_bytes(memory), weight, settings))
    parts = ClientParts(
        name=name,
        keys=narrowed(memory.keys),
        labels=memory.labels,
        ids=json.dumps(memory.ids),
        state=json.dumps(memory.state(), sort_keys=True),
        weight=weight,
        settings=settings,
    )
    return encode(parts)


def read_client(
    raw: bytes,
    overall: npt.NDArray[np.float64],
    pool: npt.NDArray[np.float64] | None,
    codec: ProductCodec | None = None,
) -> tuple[str, OwnPart]:
    """Return name and own part of a client.

    Parameters
    ----------
    raw : bytes
        As :func:`client_bytes` made them.
    overall : float64 array of shape (n_classes,) or (2, n_outputs)
        Shares of the classes over all clients, or means and deviations of the targets.
    pool : float64 array of shape (n_experts,) or None
        Weights of the experts.
    codec : ProductCodec, optional
        The one that all clients share.

    Raises
    ------
    WireError, ValueError
        If they are none.
    """
    parts = decode(raw, (ClientParts, CompressedParts))
    settings = replace(read_settings(parts.settings), codec=codec)
    refuse_settings(settings, overall)
    if not 0 <= parts.weight <= 1:
        raise ValueError("the weight of a memory is out of range")
    if pool is not None and settings.combine != "pool":
        raise ValueError("a memory of the paper's mixture is in a pool")
    if isinstance(parts, CompressedParts):
        memory = read_memory(parts.memory, settings, overall)
    else:
        memory = _exact(parts, settings, overall)
    return parts.name, own_part(memory, parts.weight, overall, pool, settings)


def _exact(
    parts: ClientParts, settings: MemorySettings, overall: npt.NDArray[np.float64]
) -> Datastore:
    refuse_values(parts.labels, overall)
    if parts.keys.ndim != 2 or settings.memory != "exact":
        raise ValueError("keys are no table of an exact memory")
    if not 0 <= settings.n_beside <= parts.keys.shape[1]:
        raise ValueError("a memory has fewer columns than stand beside its keys")
    memory = Datastore(
        parts.keys.shape[1],
        settings.capacity,
        settings.strategy,
        settings.seed,
        n_classes_of(overall),
        n_beside=settings.n_beside,
    )
    names, state = read_names(parts.ids, len(parts.keys)), read_mapping(parts.state)
    return memory.restore(parts.keys.astype(np.float64), parts.labels, names, state)


def narrowed(keys: npt.NDArray[np.float64]) -> npt.NDArray[np.floating[Any]]:
    """Return keys as float32 where they are such numbers, as a network's embeddings are."""
    with np.errstate(over="ignore"):
        narrow = keys.astype(np.float32)
    return narrow if np.array_equal(narrow, keys) else np.ascontiguousarray(keys)
