"""The canonical byte form of messages: one value, one encoding, every length bounded, no pickle.

A message is a frozen dataclass whose fields are None, booleans, integers, finite floats, strings,
bytes, numeric arrays, tuples of these and string-keyed mappings of these. A frame is::

    frame  = b"FNM" version:u8 name:str count:u8 value*       fields in the order of the class
    value  = b"N" | b"T" | b"F" | b"i" i64 | b"f" f64 | b"s" str | b"b" bytes
           | b"t" count:u32 value* | b"d" count:u32 (str value)* in ascending order of the keys
           | b"a" dtype:u8 n_dims:u8 length:u64* items         little-endian, C order
    str    = length:u32 UTF-8            bytes = length:u32 raw

All integers are little-endian. Decoding checks each length against what is left before it
allocates, and raises :class:`~fedneighbors.errors.WireError` for anything that is not exactly the
frame that encoding would have made.
"""

import dataclasses
import math
import struct
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from fedneighbors.errors import WireError

__all__ = ["MAX_FRAME_BYTES", "Message", "decode", "encode", "message"]

MAX_FRAME_BYTES = 4 << 30
MAX_ITEMS = 1 << 20
MAX_DEPTH = 6
MAX_DIMS = 4
VERSION = 1
_PREFIX = b"FNM" + bytes([VERSION])
_DTYPES = ("|u1", "<u2", "<u4", "<u8", "|i1", "<i2", "<i4", "<i8", "<f4", "<f8", "|b1")

Message = Any
"""A frozen dataclass made by :func:`message`; frames carry nothing else."""

T = TypeVar("T")


@typing.dataclass_transform(frozen_default=True, eq_default=False)
def message(cls: type[T]) -> type[T]:
    """Make a class a message: a frozen dataclass, compared by its canonical bytes."""
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
        If a field holds something that a frame cannot carry.
    ValueError
        If a number or length is out of range.
    """
    fields = dataclasses.fields(item)
    parts = [_PREFIX, _string(type(item).__name__), bytes([len(fields)])]
    for entry in fields:
        _put(parts, getattr(item, entry.name), where=f"{type(item).__name__}.{entry.name}", depth=0)
    frame = b"".join(parts)
    if len(frame) > MAX_FRAME_BYTES:
        raise ValueError(f"frame of {len(frame)} bytes is over the limit of {MAX_FRAME_BYTES}")
    return frame


def _string(text: str) -> bytes:
    raw = text.encode("utf-8")
    return struct.pack("<I", len(raw)) + raw


def _put(parts: list[bytes], value: Any, *, where: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ValueError(f"{where} is nested deeper than {MAX_DEPTH}")
    if value is None:
        parts.append(b"N")
    elif isinstance(value, bool | np.bool_):
        parts.append(b"T" if value else b"F")
    elif isinstance(value, int | np.integer):
        if not -(2**63) <= int(value) < 2**63:
            raise ValueError(f"{where}={value} does not fit into 64 bits")
        parts.append(b"i" + struct.pack("<q", int(value)))
    elif isinstance(value, float | np.floating):
        if not math.isfinite(value):
            raise ValueError(f"{where} is not finite; send None for an absent number")
        parts.append(b"f" + struct.pack("<d", float(value)))
    elif isinstance(value, str):
        parts.append(b"s" + _string(value))
    elif isinstance(value, bytes):
        parts.append(b"b" + struct.pack("<I", len(value)) + value)
    elif isinstance(value, np.ndarray):
        _put_array(parts, value, where=where)
    else:
        _put_collection(parts, value, where=where, depth=depth)


def _put_collection(parts: list[bytes], value: Any, *, where: str, depth: int) -> None:
    if not isinstance(value, tuple | Mapping):
        raise TypeError(f"{where} is a {type(value).__name__}; a frame cannot carry it")
    if len(value) > MAX_ITEMS:
        raise ValueError(f"{where} has {len(value)} items, the limit is {MAX_ITEMS}")
    parts.append((b"t" if isinstance(value, tuple) else b"d") + struct.pack("<I", len(value)))
    if isinstance(value, tuple):
        for entry in value:
            _put(parts, entry, where=where, depth=depth + 1)
        return
    if not all(isinstance(key, str) for key in value):
        raise TypeError(f"{where} has keys that are not strings")
    for key in sorted(value):
        parts.append(_string(key))
        _put(parts, value[key], where=where, depth=depth + 1)


def _put_array(parts: list[bytes], array: npt.NDArray[Any], *, where: str) -> None:
    code = array.dtype.newbyteorder("<").str
    if code not in _DTYPES or array.ndim > MAX_DIMS:
        raise TypeError(
            f"{where} is an array of {array.dtype}, {array.ndim} dimensions; "
            f"a frame carries numbers in at most {MAX_DIMS} dimensions"
        )
    parts.append(b"a" + bytes([_DTYPES.index(code), array.ndim]))
    parts.append(struct.pack(f"<{array.ndim}Q", *array.shape))
    parts.append(np.ascontiguousarray(array, dtype=code).tobytes())


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
        An instance of one of ``expected``. Arrays are read-only views of ``frame``.

    Raises
    ------
    WireError
        If the frame is malformed, not canonical, of another type, or has a field of another kind
        than its class declares.
    """
    reader = _Reader(frame)
    if reader.take(len(_PREFIX)) != _PREFIX:
        raise WireError(f"not a frame of version {VERSION}: it begins with {frame[:4]!r}")
    name = reader.string()
    classes = {cls.__name__: cls for cls in expected}
    if name not in classes:
        raise WireError(f"unexpected message {name[:40]!r}; expected one of {sorted(classes)}")
    cls = classes[name]
    fields = dataclasses.fields(cls)
    if reader.take(1)[0] != len(fields):
        raise WireError(f"{name}: wrong number of fields, expected {len(fields)}")
    hints = typing.get_type_hints(cls)
    values = {}
    for entry in fields:
        values[entry.name] = reader.value(depth=0)
        if not _conforms(values[entry.name], hints[entry.name]):
            raise WireError(f"{name}.{entry.name} is not of the declared type")
    if reader.left:
        raise WireError(f"{name}: {reader.left} bytes too many")
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:
        raise WireError(f"{name}: {error}") from None


def _conforms(value: Any, hint: Any) -> bool:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_conforms(value, choice) for choice in typing.get_args(hint))
    if hint in (None, type(None)):
        return value is None
    if origin is tuple:
        inner = typing.get_args(hint)[0]
        return isinstance(value, tuple) and all(_conforms(entry, inner) for entry in value)
    if origin is not None and issubclass(origin, Mapping):
        inner = typing.get_args(hint)[1]
        return isinstance(value, dict) and all(_conforms(x, inner) for x in value.values())
    if origin is np.ndarray:
        wanted = typing.get_args(typing.get_args(hint)[1])[0]
        return isinstance(value, np.ndarray) and (
            wanted is Any or np.issubdtype(value.dtype, wanted)
        )
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


class _Reader:
    """A cursor over an untrusted frame."""

    def __init__(self, frame: bytes) -> None:
        if len(frame) > MAX_FRAME_BYTES:
            raise WireError(f"frame of {len(frame)} bytes is over the limit of {MAX_FRAME_BYTES}")
        self._frame = memoryview(frame)
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._frame) - self._at

    def view(self, n_bytes: int) -> memoryview:
        if n_bytes > self.left:
            raise WireError(f"frame ends early: {n_bytes} bytes wanted, {self.left} left")
        self._at += n_bytes
        return self._frame[self._at - n_bytes : self._at]

    def take(self, n_bytes: int) -> bytes:
        return bytes(self.view(n_bytes))

    def number(self, code: str) -> int:
        return int(struct.unpack("<" + code, self.view(struct.calcsize("<" + code)))[0])

    def string(self) -> str:
        try:
            return str(self.view(self.number("I")), "utf-8")
        except UnicodeDecodeError:
            raise WireError("a string is not UTF-8") from None

    def count(self) -> int:
        n_items = self.number("I")
        if n_items > min(MAX_ITEMS, self.left):  # an item takes at least one byte
            raise WireError(f"{n_items} items announced, {self.left} bytes left")
        return n_items

    def value(self, *, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise WireError(f"nested deeper than {MAX_DEPTH}")
        tag = self.take(1)
        if tag in (b"N", b"T", b"F"):
            return {b"N": None, b"T": True, b"F": False}[tag]
        if tag == b"i":
            return self.number("q")
        if tag == b"f":
            return self._float()
        if tag == b"s":
            return self.string()
        if tag == b"b":
            return self.take(self.number("I"))
        if tag == b"t":
            return tuple(self.value(depth=depth + 1) for _ in range(self.count()))
        if tag == b"d":
            return self._mapping(depth)
        if tag == b"a":
            return self._array()
        raise WireError(f"unknown tag {tag!r}")

    def _float(self) -> float:
        value = float(struct.unpack("<d", self.view(8))[0])
        if not math.isfinite(value):
            raise WireError("a float is not finite")
        return value

    def _mapping(self, depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        last: str | None = None
        for _ in range(self.count()):
            key = self.string()
            if last is not None and key <= last:
                raise WireError("the keys of a mapping are not in ascending order")
            result[key] = self.value(depth=depth + 1)
            last = key
        return result

    def _array(self) -> npt.NDArray[Any]:
        code, n_dims = self.take(2)
        if code >= len(_DTYPES) or n_dims > MAX_DIMS:
            raise WireError(f"array of unknown dtype {code} or of {n_dims} dimensions")
        dtype = np.dtype(_DTYPES[code])
        shape = tuple(self.number("Q") for _ in range(n_dims))
        if math.prod(side for side in shape if side) > MAX_FRAME_BYTES:
            raise WireError(f"array of shape {shape} is over the limit")
        raw = self.view(math.prod(shape) * dtype.itemsize)
        if dtype == np.bool_ and np.frombuffer(raw, np.uint8).max(initial=0) > 1:
            raise WireError("a boolean is neither 0 nor 1")
        array = np.frombuffer(raw, dtype).reshape(shape)
        array.flags.writeable = False
        return array
