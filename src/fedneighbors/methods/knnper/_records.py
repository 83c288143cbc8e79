"""Records of clients' state in model files: conversion from and to memories, and checks."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Array, Floats
from fedneighbors.methods.knnper._settings import MemorySettings
from fedneighbors.methods.knnper._task import task_of
from fedneighbors.methods.knnper.memory._codes import Codebook, ProductCodec
from fedneighbors.methods.knnper.memory._compressed import ClassCenters, CodedDatastore, Memory
from fedneighbors.methods.knnper.memory._datastore import Datastore
from fedneighbors.methods.knnper.personal._client_state import ClientState

MIN_LONG_NAME = 19
"""Names with this many digits, which may overflow int64, are stored as texts."""


@dataclass(frozen=True, eq=False)
class RowMemory:
    """A memory that stores rows, as keys or codes.

    Parameters
    ----------
    n_dimensions : int
        Width of a key.
    keys : float array of shape (n_rows, n_dimensions) or uint8 array of shape (n_rows, n_bytes)
        Keys or their codes.
    labels : array of shape (n_rows,) or (n_rows, n_outputs)
        Class indices, or standardized targets.
    ids : str
        JSON of the list of row names, or of the first name if they are consecutive numbers.
    state : str
        JSON of the memory's counts and random state, from its method ``state``.
    book : Codebook or None
        The memory's own codebook; None if there is none or it is shared.
    extras : tuple of float arrays of shape (n_rows, n_columns)
        Additional features of the rows.
    """

    n_dimensions: int
    keys: Array
    labels: Array
    ids: str
    state: str
    book: Codebook | None = None
    extras: tuple[Array, ...] = ()


@dataclass(frozen=True, eq=False)
class CenterMemory:
    """Centers with eight bits per coordinate, their classes and row counts."""

    n_dimensions: int
    codes: npt.NDArray[np.uint8]
    classes: npt.NDArray[np.unsignedinteger[Any]]
    counts: npt.NDArray[np.unsignedinteger[Any]]


MemoryRecord = RowMemory | CenterMemory


@dataclass(frozen=True, eq=False)
class ClientRecord:
    """State of one client: memory, weight of the memory, and settings.

    Parameters
    ----------
    memory : RowMemory or CenterMemory
        The memory.
    weight : float
        Weight of the memory in Eq 7 (lambda).
    settings : MemorySettings
        The client's settings, without a shared codec.
    """

    memory: RowMemory | CenterMemory
    weight: float
    settings: MemorySettings

    @classmethod
    def of(cls, state: ClientState) -> "ClientRecord":
        """Return the record of a client's state."""
        settings = replace(state.settings, codec=None)
        return cls(memory_record(state.memory), float(state.weight), settings)


def read_client(
    record: ClientRecord, overall: Floats, pool: Floats | None, codec: ProductCodec | None = None
) -> ClientState:
    """Return the client state of a record.

    Parameters
    ----------
    record : ClientRecord
        Record from :meth:`ClientRecord.of`.
    overall : float64 array of shape (n_classes,) or (2, n_outputs)
        Class shares, or means and deviations of the targets, over all clients.
    pool : float64 array of shape (n_experts,) or None
        Weights of the experts.
    codec : ProductCodec, optional
        Codec shared by all clients.

    Raises
    ------
    ValueError, DataError
        If the record is invalid.
    """
    settings = replace(record.settings, codec=codec)
    task_of(overall).check_settings(settings)
    if not 0 <= record.weight <= 1:
        raise ValueError("the weight of a memory must be from 0 to 1")
    if pool is not None and settings.combine != "pool":
        raise ValueError("the model has a pool, but the memory is for the paper's mixture")
    memory = read_memory(record.memory, settings, overall)
    return ClientState(memory, record.weight, overall, pool, settings)


def memory_record(memory: Memory) -> MemoryRecord:
    """Return the record of a memory, without a shared codebook."""
    if isinstance(memory, ClassCenters):
        return CenterMemory(memory.n_dimensions, memory.codes, memory.classes, memory.counts)
    codec = memory.codec if isinstance(memory, CodedDatastore) else None
    return RowMemory(
        n_dimensions=memory.n_dimensions,
        keys=memory.codes if isinstance(memory, CodedDatastore) else narrow_keys(memory.keys),
        labels=memory.labels,
        ids=names_to_json(memory.ids),
        state=json.dumps(memory.state(), sort_keys=True),
        book=codec.book if isinstance(codec, ProductCodec) and codec.learned_here else None,
        extras=tuple(map(narrow_keys, memory.extras)),
    )


def read_memory(record: MemoryRecord, settings: MemorySettings, overall: Floats) -> Memory:
    """Return the memory of a record.

    Parameters
    ----------
    record : RowMemory or CenterMemory
        Record from :func:`memory_record`.
    settings : MemorySettings
        Settings of the client, with the shared codec if any.
    overall : float64 array of shape (n_classes,) or (2, n_outputs)
        Class shares, or means and deviations of the targets, over all clients.

    Raises
    ------
    ValueError, DataError
        If the record is invalid, or does not match the settings.
    """
    if isinstance(record, CenterMemory) != (settings.memory == "centers"):
        raise ValueError(f"a stored memory does not match memory={settings.memory!r}")
    if record.n_dimensions < 1:
        raise ValueError("a memory has keys without coordinates")
    if isinstance(record, CenterMemory):
        centers = ClassCenters(record.n_dimensions, len(overall), random_state=settings.seed)
        return centers.restore(record.codes, record.classes, record.counts)
    return _row_memory(record, settings, overall)


def _row_memory(record: RowMemory, settings: MemorySettings, overall: Floats) -> Datastore:
    task = task_of(overall)
    task.check_values(record.labels, overall)
    memory = settings.new_datastore(record.n_dimensions, task.n_classes(overall))
    coded = isinstance(memory, CodedDatastore)
    if record.keys.dtype.kind != ("u" if coded else "f") or record.keys.ndim > 2:
        raise ValueError(f"keys have the wrong type or shape for memory={settings.memory!r}")
    if any(extra.dtype.kind != "f" or extra.ndim != 2 or coded for extra in record.extras):
        raise ValueError("features of rows are not float tables, or a memory of codes has some")
    names, state = read_names(record.ids, len(record.keys)), _from_json(record.state)
    if not isinstance(memory, CodedDatastore):
        keys, *extras = (each.astype(np.float64) for each in (record.keys, *record.extras))
        return memory.restore(keys, record.labels, names, state, extras=extras)
    if record.book is not None:
        if not isinstance(memory.codec, ProductCodec) or memory.codec.book is not None:
            raise ValueError("a memory has its own codebook, but its codes use another")
        codec = replace(memory.codec, book=record.book, learned_here=True)
        memory = replace(memory, codec=codec)
    return memory.restore_codes(record.keys, record.labels, names, state)


def narrow_keys(keys: Floats) -> npt.NDArray[np.floating[Any]]:
    """Convert keys to float32 if that does not change a value."""
    with np.errstate(over="ignore"):
        narrow = keys.astype(np.float32)
    return narrow if np.array_equal(narrow, keys) else np.ascontiguousarray(keys)


def names_to_json(ids: Sequence[str]) -> str:
    """Return row names as JSON; consecutive numbers as the first one."""
    if ids and ids[0].isdecimal() and len(ids[0]) < MIN_LONG_NAME:
        first = int(ids[0])
        if list(ids) == [str(first + i) for i in range(len(ids))]:
            return json.dumps(first)
    return json.dumps(list(ids))


def read_names(text: str, n_rows: int) -> list[str]:
    """Return the names of rows from JSON.

    Parameters
    ----------
    text : str
        JSON from :func:`names_to_json`.
    n_rows : int
        Number of rows.

    Raises
    ------
    ValueError
        If the JSON is of another form.
    """
    names = _from_json(text)
    if type(names) is int and names >= 0:
        return [str(names + i) for i in range(n_rows)]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("names of rows are not a list of texts")
    return names


def _from_json(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("the JSON of a memory is nested too deeply") from None
