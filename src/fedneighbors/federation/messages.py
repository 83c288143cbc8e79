"""The canonical byte form of messages: one value, one encoding, every length bounded, nothing runs.

A message is a frozen dataclass whose fields are None, booleans, integers, finite floats, strings,
bytes, numeric arrays, tuples of these and string-keyed mappings of these. A frame is::

    frame  = b"FNM" version:u8 name:str count:u8 value*       fields in the order of the class
    value  = b"N" | b"T" | b"F" | b"i" i64 | b"f" f64 | b"s" str | b"b" bytes
           | b"t" count:u32 value* | b"d" count:u32 (str value)* in ascending order of the keys
           | b"a" dtype:u8 n_dims:u8 length:u64* items         little-endian, C order
    str    = length:u32 UTF-8            bytes = length:u32 raw

All integers are little-endian. The items of an array travel bit for bit, NaN and infinities
included; who receives them checks what it needs. Decoding checks each length against what is left
before it allocates, and raises :class:`~fedneighbors.errors.WireError` for anything that is not
exactly the frame that encoding would have made.
"""

import dataclasses
import typing
from typing import Any, TypeVar

from fedneighbors.errors import WireError
from fedneighbors.federation.fields import declared, fits
from fedneighbors.federation.wire import MAX_FRAME_BYTES, Reader, Writer

__all__ = ["MAX_FRAME_BYTES", "Message", "decode", "encode", "message"]

VERSION = 1
_PREFIX = b"FNM" + bytes([VERSION])

Message = Any
"""A frozen dataclass made by :func:`message`; frames carry nothing else."""

T = TypeVar("T")


@typing.dataclass_transform(frozen_default=True, eq_default=False)
def message(cls: type[T]) -> type[T]:
    """Make a class a message: a frozen dataclass, compared by its canonical bytes.

    A ``__post_init__`` may refuse values with ``ValueError`` or ``TypeError``; it must not change
    them.
    """
    made = dataclasses.dataclass(frozen=True, eq=False)(cls)

    def same(self: Any, other: object) -> bool:
        return type(self) is type(other) and encode(self) == encode(other)

    def digest(self: Any) -> int:
        return hash(encode(self))

    made.__eq__ = same  # type: ignore[method-assign]
    made.__hash__ = digest  # type: ignore[method-assign]
    return made


def encode(item: Message) -> bytes:
    """Return the one frame that stands for a message.

    Raises
    ------
    TypeError
        If a field holds something that a frame cannot carry or that it is not declared to hold.
    ValueError
        If a number or length is out of range.
    """
    name = type(item).__name__
    hints = declared(type(item))
    writer = Writer()
    writer.raw(_PREFIX)
    writer.string(name)
    writer.raw(bytes([len(hints)]))
    for field, hint in hints.items():
        value = getattr(item, field)
        writer.value(value, where=f"{name}.{field}")
        if not fits(value, hint):
            raise TypeError(f"{name}.{field} is declared as {hint}, got {type(value).__name__}")
    return writer.frame()


def decode(frame: bytes, expected: tuple[type[Any], ...]) -> Message:
    """Return the message in a frame, which must be of one of the expected types.

    Parameters
    ----------
    frame : bytes
        What came over the wire; not trusted.
    expected : tuple of message classes
        What the receiver is ready to take at this point of the protocol.

    Returns
    -------
    message
        An instance of one of ``expected``. Its arrays are read-only.

    Raises
    ------
    WireError
        If the frame is malformed, not canonical, of another type, or has a field of another kind
        than its class declares.
    """
    classes = {cls.__name__: cls for cls in expected}
    if len(classes) < len(set(expected)):
        raise ValueError(f"expected messages of different names, got {expected}")
    reader = Reader(frame)
    if reader.take(len(_PREFIX)) != _PREFIX:
        raise WireError(f"not a frame of version {VERSION}: it begins with {frame[:4]!r}")
    name = reader.string()
    if name not in classes:
        raise WireError(f"unexpected message {name[:40]!r}; expected one of {sorted(classes)}")
    try:
        return _built(classes[name], _fields(reader, classes[name]))
    except MemoryError:
        raise WireError(f"{name}: no memory for a frame of {len(frame)} bytes") from None


def _fields(reader: Reader, cls: type[Any]) -> dict[str, Any]:
    name = cls.__name__
    hints = declared(cls)
    if reader.take(1)[0] != len(hints):
        raise WireError(f"{name}: wrong number of fields, expected {len(hints)}")
    values = {}
    for field, hint in hints.items():
        values[field] = reader.value()
        if not fits(values[field], hint):
            raise WireError(f"{name}.{field} is not of the declared type")
    if reader.left:
        raise WireError(f"{name}: {reader.left} bytes too many")
    return values


def _built(cls: type[Any], values: dict[str, Any]) -> Message:
    try:
        return cls(**values)
    except (TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise WireError(f"{cls.__name__}: {error}") from None
