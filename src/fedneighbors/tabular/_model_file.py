"""The one safe file format of trained models: magic, the SHA-256 of the rest, a canonical frame.

It holds numbers, strings and arrays only, so that opening a foreign file cannot run code. The last
byte of the magic is the version of a method's format.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from fedneighbors.errors import ModelFileError, WireError
from fedneighbors.federation._messages import Message, decode, encode

M = TypeVar("M")
_DIGEST_BYTES = 32


def sealed_model(magic: bytes, parts: Message) -> bytes:
    """Return the bytes of a model file, the same for the same model.

    Parameters
    ----------
    magic : bytes
        Of the method, ending in its version.
    parts : message
        The fields of the model.
    """
    frame = encode(parts)
    return magic + hashlib.sha256(frame).digest() + frame


def open_model(
    magic: bytes,
    raw: bytes,
    kind: type[Any] | tuple[type[Any], ...],
    make: Callable[[Any], M],
    *,
    source: str,
) -> M:
    """Return the model whose bytes :func:`sealed_model` made.

    Parameters
    ----------
    magic : bytes
        As it was sealed with.
    raw : bytes
        What was read.
    kind : message class, or tuple of them
        The fields of the model; of several the one that is in the file.
    make : callable
        From the fields to the model; may raise ValueError.
    source : str
        Where the bytes came from, for errors.

    Raises
    ------
    ModelFileError
        If the bytes are truncated, altered, not a model of this method or of another version.
    """
    start, version = len(magic) + _DIGEST_BYTES, len(magic) - 1
    if raw[:version] != magic[:version]:
        raise ModelFileError(f"{source} is not a fedneighbors model; give a file made by save")
    if raw[: len(magic)] != magic:
        raise ModelFileError(
            f"{source} has format version {raw[version : len(magic)]!r}, this release reads "
            f"{magic[version:]!r}; update fedneighbors or train again"
        )
    if hashlib.sha256(raw[start:]).digest() != raw[len(magic) : start]:
        raise ModelFileError(f"{source} is truncated or altered; copy or save it again")
    kinds = kind if isinstance(kind, tuple) else (kind,)
    try:
        return make(decode(raw[start:], kinds))
    except (WireError, ValueError) as error:
        raise ModelFileError(f"{source} holds no usable model: {error}") from None


def read_model_file(path: str | Path) -> bytes:
    """Return the bytes of a model file.

    Raises
    ------
    ModelFileError
        If it cannot be read.
    """
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ModelFileError(f"cannot read the model {path}: {error.strerror}") from error
