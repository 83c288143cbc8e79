"""The codec of saved models: magic, the SHA-256 of the rest, and the canonical frame of a record.

A record is a dataclass, and its fields are the schema of the file: None, booleans, numbers,
strings, bytes, numeric arrays, further dataclasses, and tuples and string-keyed mappings of these.
No further class is needed to write or to read it. A field that is a dataclass stands in the file as
a frame of its own, see :mod:`fedneighbors.federation._messages`, so that opening a foreign file
cannot run code, each length is checked before memory is taken, and each value is of its declared
type. Limits of values belong into ``__post_init__``, as a ``ValueError``.

The last byte of the magic is the version of the schema: it goes up when a field changes.
"""

import dataclasses
import hashlib
import types
import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from fedneighbors.errors import ModelFileError, WireError
from fedneighbors.federation._messages import decode, encode
from fedneighbors.records._storage import replace_file

R = TypeVar("R")
_DIGEST_BYTES = 32
_UNUSABLE = (WireError, ValueError, TypeError, ArithmeticError, LookupError, RecursionError)


class ModelFile:
    """Base of models whose fields are the schema of their file; subclasses are dataclasses."""

    magic: ClassVar[bytes]
    """How files of the model begin, ending in the version of the schema."""

    def to_bytes(self) -> bytes:
        """Return the model as the bytes of its file, the same for the same model."""
        return sealed_model(self.magic, self)

    @classmethod
    def from_bytes(cls, raw: bytes, *, source: str = "the model") -> Self:
        """Return the model that :meth:`to_bytes` wrote.

        Raises
        ------
        ModelFileError
            If the bytes are truncated, altered, not a model or of another version.
        """
        return open_model(cls.magic, raw, cls, source=source)

    def save(self, path: str | Path) -> None:
        """Write the model file; an interrupted write leaves nothing behind."""
        replace_file(path, self.to_bytes())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a model file.

        Raises
        ------
        ModelFileError
            If the file is missing, truncated, altered or of another version.
        """
        return cls.from_bytes(read_model_file(path), source=str(path))


def sealed_model(magic: bytes, record: Any) -> bytes:
    """Return the bytes of a model file, the same for the same record.

    Parameters
    ----------
    magic : bytes
        Of the method, ending in its version.
    record : dataclass
        The model.
    """
    frame: bytes = _packed(record)
    return magic + hashlib.sha256(frame).digest() + frame


def open_model(magic: bytes, raw: bytes, kind: type[R], *, source: str) -> R:
    """Return the record whose bytes :func:`sealed_model` made.

    Parameters
    ----------
    magic : bytes
        As it was sealed with.
    raw : bytes
        Content of the file; not trusted.
    kind : dataclass
        Class of the record.
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
    with usable(source):
        record: R = _opened(raw[start:], kind)
        return record


@contextmanager
def usable(source: str) -> Iterator[None]:
    """Turn errors of values that were read from a file into ModelFileError.

    Parameters
    ----------
    source : str
        The file, for errors.
    """
    try:
        yield
    except _UNUSABLE as error:
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


def _packed(value: Any) -> Any:
    """Return a value in which frames stand for records."""
    if dataclasses.is_dataclass(value):
        kind: Any = type(value)
        named = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        for name, hint in _hints(kind).items():
            if hint is float and type(named[name]) is int:
                named[name] = float(named[name])
        return encode(_flat(kind)(**{name: _packed(each) for name, each in named.items()}))
    if isinstance(value, tuple):
        return tuple(map(_packed, value))
    if isinstance(value, Mapping):
        return {name: _packed(each) for name, each in value.items()}
    return value


def _opened(value: Any, hint: Any) -> Any:
    """Return a value of a declared type from one in which frames stand for records."""
    kinds = _records(hint)
    if not kinds or value is None:
        return value
    if isinstance(value, bytes):
        flat = decode(value, tuple(map(_flat, kinds)))
        kind = next(kind for kind in kinds if _flat(kind) is type(flat))
        return kind(**{name: _opened(getattr(flat, name), t) for name, t in _hints(kind).items()})
    if isinstance(value, Mapping):
        return {name: _opened(each, hint) for name, each in value.items()}
    return tuple(_opened(each, hint) for each in value)


@lru_cache(maxsize=256)
def _flat(kind: Any) -> type[Any]:
    """Return the message class of a record, in which bytes are declared in place of records."""
    fields = [(name, _without_records(hint)) for name, hint in _hints(kind).items()]
    return dataclasses.make_dataclass(kind.__name__, fields, frozen=True, eq=False)


@lru_cache(maxsize=256)
def _hints(kind: Any) -> dict[str, Any]:
    """Return the declared type of each field of a record."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _without_records(hint: Any) -> Any:
    """Return a declared type with bytes in place of records."""
    if dataclasses.is_dataclass(hint):
        return bytes
    if not _records(hint):
        return hint
    inner = tuple(_without_records(each) for each in typing.get_args(hint))
    if typing.get_origin(hint) is types.UnionType:
        return typing.Union[inner]  # noqa: UP007 - of types that are known at run time alone
    return typing.get_origin(hint)[inner]


def _records(hint: Any) -> tuple[Any, ...]:
    """Return the classes of records that a declared type holds."""
    if dataclasses.is_dataclass(hint):
        return (hint,)
    return tuple(kind for each in typing.get_args(hint) for kind in _records(each))
