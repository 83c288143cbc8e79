"""Memories of fewer bytes as fields of a file: codes, centers and prototypes as they stand."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats
from fedneighbors.federation._messages import Message, decode, encode, message
from fedneighbors.methods.knnper._settings import MemorySettings
from fedneighbors.methods.knnper.files._values import n_classes_of, refuse_values
from fedneighbors.methods.knnper.memory.compression._centers import ClassCenters
from fedneighbors.methods.knnper.memory.compression._codes import Codec
from fedneighbors.methods.knnper.memory.compression._kinds import (
    CodedDatastore,
    Memory,
    new_datastore,
    new_memory,
)
from fedneighbors.methods.knnper.memory.compression._product import Codebook, ProductCodec
from fedneighbors.methods.knnper.memory.compression._protonn import PrototypeMemory
from fedneighbors.methods.knnper.memory.compression._prototypes import Prototypes

MOST_DIGITS = 19
"""Names of so many digits are no longer numbers that count up."""


@message
class CodedParts:
    """Codes with labels or targets; ``book`` are the entries of a book of the memory's own.

    ``ids`` is JSON of the rows' names, or of the first where they count up from it; ``state`` is
    JSON of what the memory needs to go on.
    """

    n_dimensions: int
    codes: npt.NDArray[np.uint8]
    labels: npt.NDArray[Any]
    ids: str
    state: str
    book: npt.NDArray[np.float32] | None


@message
class CenterParts:
    """Centers in eight bits a cell, their classes, and the rows that each stands for."""

    n_dimensions: int
    codes: npt.NDArray[np.uint8]
    classes: npt.NDArray[np.unsignedinteger]
    counts: npt.NDArray[np.unsignedinteger]


@message
class PrototypeParts:
    """Projection, places and scores of prototypes, none before training; classes and their rows."""

    n_dimensions: int
    tables: tuple[npt.NDArray[np.float32], ...]
    gamma: float
    classes: npt.NDArray[np.unsignedinteger]
    counts: npt.NDArray[np.unsignedinteger]


def memory_bytes(memory: Memory) -> bytes:
    """Return a memory of fewer bytes as a frame; a book that it shares with others is left out.

    Parameters
    ----------
    memory : CodedDatastore, ClassCenters or PrototypeMemory
        What is kept.

    Raises
    ------
    TypeError
        If it is another.
    """
    match memory:
        case CodedDatastore():
            return encode(_coded_parts(memory))
        case ClassCenters():
            return encode(
                CenterParts(memory.n_dimensions, memory.codes, memory.classes, memory.counts)
            )
        case PrototypeMemory():
            return encode(_prototype_parts(memory))
    raise TypeError(f"expected a memory of fewer bytes, got a {type(memory).__name__}")


def read_memory(raw: bytes, settings: MemorySettings, overall: Floats) -> Memory:
    """Return the memory that :func:`memory_bytes` wrote.

    Parameters
    ----------
    raw : bytes
        The frame.
    settings : MemorySettings
        Of its client, with the codec that it shares with others.
    overall : float64 array of shape (n_classes,) or (2, n_outputs)
        What is known of all clients.

    Raises
    ------
    WireError, ValueError
        If there is none, or it is not as the settings say.
    """
    kinds: dict[str, type[Any]] = {
        "8-bit": CodedParts,
        "product": CodedParts,
        "centers": CenterParts,
        "protonn": PrototypeParts,
    }
    if settings.memory not in kinds:
        raise ValueError("an exact memory has keys, not codes")
    parts: Message = decode(raw, (kinds[settings.memory],))
    if parts.n_dimensions < 1 or settings.n_beside:
        raise ValueError("a memory has no columns, or rows stand beside its codes")
    if isinstance(parts, CodedParts):
        return _coded(parts, settings, overall)
    memory = new_memory(
        settings.memory, parts.n_dimensions, len(overall), random_state=settings.seed
    )
    if isinstance(memory, ClassCenters):
        return memory.restore(parts.codes, parts.classes, parts.counts)
    assert isinstance(memory, PrototypeMemory)  # of the two that keep no rows
    return memory.restore(_prototypes(parts), parts.classes, parts.counts)


def _coded_parts(memory: CodedDatastore) -> CodedParts:
    codec = memory.codec
    own = codec.book if isinstance(codec, ProductCodec) and codec.learned_here else None
    return CodedParts(
        n_dimensions=memory.n_dimensions,
        codes=memory.codes,
        labels=memory.labels,
        ids=_names(memory.ids),
        state=json.dumps(memory.state(), sort_keys=True),
        book=None if own is None else own.entries,
    )


def _coded(parts: CodedParts, settings: MemorySettings, overall: Floats) -> CodedDatastore:
    memory = new_datastore(
        settings.memory,
        parts.n_dimensions,
        n_classes_of(overall),
        capacity=settings.capacity,
        strategy=settings.strategy,
        random_state=settings.seed,
        codec=settings.codec,
    )
    assert isinstance(memory, CodedDatastore)  # of the two kinds of codes
    refuse_values(parts.labels, overall)
    codec = memory.codec if parts.book is None else _with_own_book(memory.codec, parts)
    if isinstance(codec, ProductCodec) and codec.book is None and len(parts.codes):
        raise ValueError("codes have no book")
    names = read_names(parts.ids, len(parts.codes))
    return memory.restore_codes(
        parts.codes, parts.labels, names, read_mapping(parts.state), codec=codec
    )


def _with_own_book(codec: Codec, parts: CodedParts) -> Codec:
    if not isinstance(codec, ProductCodec) or codec.book is not None or parts.book is None:
        raise ValueError("a memory has a book of its own, which its codes do not look into")
    return codec.with_book(Codebook(parts.book, parts.n_dimensions), learned_here=True)


def _prototype_parts(memory: PrototypeMemory) -> PrototypeParts:
    found = memory.prototypes
    return PrototypeParts(
        n_dimensions=memory.n_dimensions,
        tables=() if found is None else (found.projection, found.places, found.scores),
        gamma=0.0 if found is None else found.gamma,
        classes=memory.classes,
        counts=memory.counts,
    )


def _prototypes(parts: PrototypeParts) -> Prototypes | None:
    if not parts.tables:
        return None
    if len(parts.tables) != 3:
        raise ValueError("prototypes are three tables")
    return Prototypes(*parts.tables, parts.gamma)


def _names(ids: Sequence[str]) -> str:
    """Return names as JSON: of the first alone, where they count up from it."""
    if ids and ids[0].isdecimal() and len(ids[0]) < MOST_DIGITS:
        first = int(ids[0])
        if list(ids) == [str(first + i) for i in range(len(ids))]:
            return json.dumps(first)
    return json.dumps(list(ids))


def read_names(words: str, n_rows: int) -> list[str]:
    """Return the names of rows from JSON.

    Parameters
    ----------
    words : str
        A list of texts, or the first of numbers that count up.
    n_rows : int
        Rows.

    Raises
    ------
    ValueError
        If they are none.
    """
    found = _told(words)
    if type(found) is int and found >= 0:
        return [str(found + i) for i in range(n_rows)]
    if not isinstance(found, list) or not all(isinstance(word, str) for word in found):
        raise ValueError("names of rows are no list of texts")
    return found


def read_mapping(words: str) -> dict[str, Any]:
    """Return the state of a memory from JSON.

    Raises
    ------
    ValueError
        If it is none.
    """
    found = _told(words)
    if not isinstance(found, dict):
        raise ValueError("the state of a memory is no mapping")
    return found


def _told(words: str) -> Any:
    try:
        return json.loads(words)
    except RecursionError:
        raise ValueError("words of a memory are nested too deeply") from None
