"""Canonical binary encoding of messages.

Each value has exactly one encoding, every length is bounded, and decoding executes no code.

A message is a frozen dataclass whose fields are None, booleans, integers, finite floats, strings,
bytes, numeric arrays, further dataclasses, and tuples and string-keyed mappings of these. A field
that is a dataclass is written as the bytes of a nested frame. A frame is::

    frame  = b"FNM" version:u8 name:str count:u8 value*       fields in the order of the class
    value  = b"N" | b"T" | b"F" | b"i" i64 | b"f" f64 | b"s" str | b"b" bytes
           | b"t" count:u32 value* | b"d" count:u32 (str value)* in ascending order of the keys
           | b"a" dtype:u8 n_dims:u8 length:u64* items         little-endian, C order
    str    = length:u32 UTF-8            bytes = length:u32 raw

All integers are little-endian. The items of an array are copied bit for bit, including NaN and
infinities; the receiver checks the values that it needs. Decoding checks each length against the
remaining bytes before it allocates, and raises :class:`~fedneighbors.errors.WireError` for anything
but the exact frame that encoding would have produced.
"""

import dataclasses
import math
import struct
import typing
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NoReturn, TypeVar
from weakref import WeakSet

import numpy as np

from fedneighbors._typing import Array
from fedneighbors.errors import WireError
from fedneighbors.federation._message_types import fields_of

MAX_FRAME_BYTES = (4 << 30) - 1  # so that every length fits its 32 bits
MAX_VALUES = 1 << 20  # per frame: 200 MiB of Python objects, at about 200 bytes each
MAX_DEPTH = 6  # fields nest at most 3, as in MaskedInput.layout; far below the recursion limit
MAX_DIMS = 4  # a batch of images has samples, channels, height and width
# the position of a dtype is its code on the wire
_DTYPES = [
    np.dtype(name)
    for name in ("|u1", "<u2", "<u4", "<u8", "|i1", "<i2", "<i4", "<i8", "<f4", "<f8", "|b1")
]
_CODES = {dtype: code for code, dtype in enumerate(_DTYPES)}
_BOOLEAN = _CODES[np.dtype(bool)]
_LENGTH, _INTEGER, _FLOAT = struct.Struct("<I"), struct.Struct("<q"), struct.Struct("<d")
_BOOLEANS, _INTEGERS, _FLOATS = (bool, np.bool_), (int, np.integer), (float, np.floating)
_ARRAY_HEADS = [struct.Struct(f"<cBB{n_dims}Q") for n_dims in range(MAX_DIMS + 1)]


class Writer:
    """Encoder of values into the bytes of a frame."""

    def __init__(self) -> None:
        self._parts: list[bytes | memoryview] = []
        self._n_values = 0

    def count_bytes(self) -> int:
        """Return the number of bytes written; raise ValueError beyond ``MAX_FRAME_BYTES``."""
        n_bytes = 0
        for part in self._parts:
            n_bytes += len(part) if isinstance(part, bytes) else part.nbytes
        if n_bytes > MAX_FRAME_BYTES:
            raise ValueError(f"frame of {n_bytes} bytes is over the limit of {MAX_FRAME_BYTES}")
        return n_bytes

    def join_parts(self) -> bytes:
        """Return all bytes written; raise ValueError beyond ``MAX_FRAME_BYTES``."""
        self.count_bytes()
        return b"".join(self._parts)

    def write_raw(self, content: bytes | memoryview) -> None:
        """Append bytes unchanged."""
        self._parts.append(content)

    def write_string(self, text: str) -> None:
        """Append a string, preceded by its length in bytes."""
        self._write_sized(text.encode("utf-8"), where="a string")

    def write_value(self, value: Any, *, where: str, depth: int = 0) -> None:
        """Append a tagged value.

        Parameters
        ----------
        value : object
            Anything that a frame can carry.
        where : str
            Message and field, for error messages.
        depth : int
            Number of enclosing collections.

        Raises
        ------
        TypeError
            If a frame cannot carry the value.
        ValueError
            If the value is out of range.
        """
        self._count_value(where, depth)
        # timedelta64, longdouble and MaskedArray would lose their unit, precision or mask
        kind = type(value)
        if kind is np.ndarray:  # fast tests of frequent types come first
            self._write_array(value, where)
        elif kind is int:
            self._write_integer(value, where)
        elif isinstance(value, str):
            self._parts.append(b"s")
            self.write_string(value)
        elif isinstance(value, bytes):
            self._parts.append(b"b")
            self._write_sized(value, where=where)
        elif kind is tuple:
            self._write_collection(value, where, depth)
        elif value is None:
            self.write_raw(b"N")
        elif isinstance(value, _BOOLEANS):
            self.write_raw(b"T" if value else b"F")
        elif isinstance(value, _INTEGERS) and not isinstance(value, np.timedelta64):
            self._write_integer(int(value), where)
        elif isinstance(value, _FLOATS) and not isinstance(value, np.longdouble):
            self._write_float(float(value), where)
        elif isinstance(value, np.ndarray) and not isinstance(value, np.ma.MaskedArray):
            self._write_array(value, where)
        else:
            self._write_collection(value, where, depth)

    def _count_value(self, where: str, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise ValueError(f"{where} is nested deeper than {MAX_DEPTH}")
        self._n_values += 1
        if self._n_values > MAX_VALUES:
            raise ValueError(f"{where}: a frame carries {MAX_VALUES} values at most; send an array")

    def _write_sized(self, content: bytes, *, where: str) -> None:
        if len(content) > MAX_FRAME_BYTES:
            raise ValueError(f"{where} of {len(content)} bytes does not fit into a frame")
        self._parts += _LENGTH.pack(len(content)), content

    def _write_integer(self, number: int, where: str) -> None:
        if not -(2**63) <= number < 2**63:
            raise ValueError(f"{where} does not fit into 64 bits")
        self.write_raw(b"i" + _INTEGER.pack(number))

    def _write_float(self, number: float, where: str) -> None:
        if not math.isfinite(number):
            raise ValueError(f"{where} is not finite; send None for an absent number")
        self.write_raw(b"f" + _FLOAT.pack(number))

    def _write_array(self, array: Array, where: str) -> None:
        code = _CODES.get(array.dtype, -1)
        if code < 0:  # slower
            code = _CODES.get(array.dtype.newbyteorder("<"), -1)
        if code < 0 or array.ndim > MAX_DIMS:
            raise TypeError(
                f"{where} is an array of {array.dtype}, {array.ndim} dimensions; "
                f"a frame carries numbers in at most {MAX_DIMS} dimensions"
            )
        if not 0 < array.nbytes <= MAX_FRAME_BYTES:
            _check_shape(array.shape, array.itemsize, ValueError)
        self.write_raw(_ARRAY_HEADS[array.ndim].pack(b"a", code, array.ndim, *array.shape))
        if not array.flags.c_contiguous or array.dtype is not _DTYPES[code]:
            array = np.ascontiguousarray(array, dtype=_DTYPES[code])
        self.write_raw(array.data)

    def _write_collection(self, value: Any, where: str, depth: int) -> None:
        if dataclasses.is_dataclass(value):
            self.write_raw(b"b")
            self._write_sized(encode(value), where=where)
            return
        if not isinstance(value, tuple | Mapping):
            raise TypeError(f"{where} is a {type(value).__name__}; a frame cannot carry it")
        self.write_raw((b"t" if isinstance(value, tuple) else b"d") + _LENGTH.pack(len(value)))
        if isinstance(value, tuple):
            for entry in value:
                self.write_value(entry, where=where, depth=depth + 1)
            return
        if not all(isinstance(key, str) for key in value):
            raise TypeError(f"{where} has keys that are not strings")
        for key in sorted(value):
            self.write_string(key)
            self.write_value(value[key], where=where, depth=depth + 1)


class Reader:
    """Decoder of an untrusted frame; raises only :class:`WireError`."""

    def __init__(self, frame: bytes, max_values: int | None = None) -> None:
        if len(frame) > MAX_FRAME_BYTES:
            raise WireError(f"frame of {len(frame)} bytes is over the limit of {MAX_FRAME_BYTES}")
        self._frame, self._size = frame, len(frame)
        self._position = 0
        self._n_values, self._max_values = 0, MAX_VALUES if max_values is None else max_values

    @property
    def n_left(self) -> int:
        """Return the number of unread bytes."""
        return self._size - self._position

    def read_bytes(self, n_bytes: int) -> bytes:
        """Return the next bytes."""
        start = self._advance(n_bytes)
        return self._frame[start : start + n_bytes]

    def read_string(self) -> str:
        """Return the next string."""
        try:
            return self.read_bytes(self._read_length()).decode()
        except UnicodeDecodeError:
            raise WireError("a string is not UTF-8") from None

    def read_value(self, *, depth: int = 0, flat: str = "") -> Any:
        """Return the next tagged value; an array is a read-only copy.

        ``flat`` names the field of a value that must not be a tuple or a mapping: a long one takes
        much memory before its type is checked.
        """
        self._n_values += 1
        if depth > MAX_DEPTH:
            raise WireError(f"nested deeper than {MAX_DEPTH}")
        if self._n_values > self._max_values:
            raise WireError(f"more than {self._max_values} values in a frame")
        start = self._position if self._position < self._size else self._advance(1)
        tag, self._position = self._frame[start], start + 1
        if tag == _INTEGER_TAG:
            return _INTEGER.unpack_from(self._frame, self._advance(8))[0]
        if tag == _BYTES_TAG:
            return self.read_bytes(self._read_length())
        if tag == _ARRAY_TAG:
            return self._read_array()
        if tag in _CONSTANTS:
            return _CONSTANTS[tag]
        if tag == _STRING_TAG:
            return self.read_string()
        if tag == _FLOAT_TAG:
            return self._read_float()
        if flat and tag in (_TUPLE_TAG, _MAPPING_TAG):
            raise WireError(f"{flat} is not of the declared type")
        if tag == _TUPLE_TAG:
            return tuple([self.read_value(depth=depth + 1) for _ in range(self._read_n_items())])
        if tag == _MAPPING_TAG:
            return self._read_mapping(depth)
        raise WireError(f"unknown tag {bytes([tag])!r}")

    def _advance(self, n_bytes: int) -> int:
        """Return the position of the next bytes, and skip them."""
        start = self._position
        self._position = start + n_bytes
        if self._position > self._size:
            raise WireError(
                f"frame ends early: {n_bytes} bytes expected, {self._size - start} left"
            )
        return start

    def _read_length(self) -> int:
        length: int = _LENGTH.unpack_from(self._frame, self._advance(4))[0]
        return length

    def _read_n_items(self) -> int:
        n_items = self._read_length()
        if n_items > self.n_left:  # an item takes at least one byte
            raise WireError(f"{n_items} items announced, {self.n_left} bytes left")
        return n_items

    def _read_float(self) -> float:
        value: float = _FLOAT.unpack_from(self._frame, self._advance(8))[0]
        if not math.isfinite(value):
            raise WireError("a float is not finite")
        return value

    def _read_mapping(self, depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        previous: str | None = None
        for _ in range(self._read_n_items()):
            key = self.read_string()
            if previous is not None and key <= previous:
                raise WireError("the keys of a mapping are not in ascending order")
            result[key] = self.read_value(depth=depth + 1)
            previous = key
        return result

    def _read_array(self) -> Array:
        start = self._advance(2)
        code, n_dims = self._frame[start], self._frame[start + 1]
        if code >= len(_DTYPES) or n_dims > MAX_DIMS:
            raise WireError(f"array of unknown dtype {code} or of {n_dims} dimensions")
        dtype = _DTYPES[code]
        shape = _SHAPES[n_dims].unpack_from(self._frame, self._advance(8 * n_dims))
        n_items = shape[0] if n_dims == 1 else math.prod(shape)
        if n_dims != 1 or n_items > self.n_left:
            _check_shape(shape, dtype.itemsize, WireError)
        start = self._advance(n_items * dtype.itemsize)
        flat: Array = np.frombuffer(self._frame, dtype, n_items, start)
        if code == _BOOLEAN and flat.view(np.uint8).max(initial=0) > 1:
            raise WireError("a boolean is neither 0 nor 1")
        array = flat.copy() if n_dims == 1 else flat.reshape(shape).copy()  # it may not be aligned
        array.setflags(write=False)
        return array


_CONSTANTS = {ord("N"): None, ord("T"): True, ord("F"): False}
_INTEGER_TAG, _BYTES_TAG, _ARRAY_TAG, _STRING_TAG, _FLOAT_TAG, _TUPLE_TAG, _MAPPING_TAG = b"ibasftd"
_SHAPES = [struct.Struct(f"<{n_dims}Q") for n_dims in range(MAX_DIMS + 1)]


def _check_shape(shape: tuple[int, ...], itemsize: int, error: type[Exception]) -> None:
    """Check the size of an array, ignoring zero-length dimensions.

    An array with such a dimension is empty, but numpy limits the product of the other lengths.
    """
    if math.prod(side for side in shape if side) * itemsize > MAX_FRAME_BYTES:
        raise error(f"an array of shape {shape} is over the limit of {MAX_FRAME_BYTES} bytes")


def _decode_nested(value: Any, kinds: tuple[type[Any], ...], max_values: int | None) -> Any:
    """Decode the nested frames in a value."""
    if isinstance(value, bytes):
        return decode(value, kinds, max_values=max_values)
    if isinstance(value, tuple):
        return tuple(_decode_nested(entry, kinds, max_values) for entry in value)
    if isinstance(value, Mapping):
        return {key: _decode_nested(entry, kinds, max_values) for key, entry in value.items()}
    return value


VERSION = 1
_PREFIX = b"FNM" + bytes([VERSION])

Message = Any
"""An instance of a class decorated with :func:`message`, or a dataclass of a saved model."""

_messages: WeakSet[type[Any]] = WeakSet()
T = TypeVar("T")


@typing.dataclass_transform(frozen_default=True, eq_default=False)
def message(cls: type[T]) -> type[T]:
    """Turn a class into a message: a frozen dataclass compared by encoding.

    A ``__post_init__`` may raise ``ValueError`` or ``TypeError``; it must not change values.
    """
    result = dataclasses.dataclass(frozen=True, eq=False)(cls)

    def equals(self: Any, other: object) -> bool:
        return type(self) is type(other) and encode(self) == encode(other)

    def hash_value(self: Any) -> int:
        return hash(encode(self))

    result.__eq__ = equals  # type: ignore[method-assign]
    result.__hash__ = hash_value  # type: ignore[method-assign]
    _messages.add(result)
    return result


def encode(item: Message) -> bytes:
    """Return the canonical frame of a message.

    Raises
    ------
    TypeError
        If a field's value has a type that a frame cannot carry or that differs from the declared
        one.
    ValueError
        If a number or length is out of range.
    """
    return _write(item).join_parts()


def measure(item: Message) -> int:
    """Return the size of a message's frame, which is not made.

    Raises
    ------
    TypeError, ValueError
        As for :func:`encode`.
    """
    cls = type(item)
    n_bytes = len(_list_headers((cls,))[0][0])
    for field in fields_of(cls):
        value = getattr(item, field.name)
        if type(value) is int and field.hint is int and -(2**63) <= value < 2**63:
            n_bytes += 1 + _INTEGER.size
        elif (
            type(value) is np.ndarray
            and value.dtype in _CODES
            and 0 < value.ndim <= MAX_DIMS
            and 0 < value.nbytes <= MAX_FRAME_BYTES
            and field.has_type(value)
        ):
            n_bytes += _ARRAY_HEADS[value.ndim].size + value.nbytes
        else:  # slower, or an error
            return _write(item).count_bytes()
    return n_bytes if n_bytes <= MAX_FRAME_BYTES else _write(item).count_bytes()


def _write(item: Message) -> Writer:
    cls = type(item)
    fields = fields_of(cls)
    writer = Writer()
    ((header, _),) = _list_headers((cls,))
    writer.write_raw(header)
    for field in fields:
        value = getattr(item, field.name)
        if field.hint is float and type(value) is int and cls not in _messages:
            value = float(value)  # a field of a saved model may be set to 1 instead of 1.0
        writer.write_value(value, where=field.where)
        if type(value) is not field.hint and not field.has_type(value):
            kind = type(value).__name__
            raise TypeError(f"{field.where} is declared as {field.hint}, got {kind}")
    return writer


def decode(
    frame: bytes, expected: tuple[type[Any], ...], *, max_values: int | None = None
) -> Message:
    """Decode a frame into a message of an expected class.

    Parameters
    ----------
    frame : bytes
        Untrusted bytes from the wire.
    expected : tuple of message classes
        Classes that the receiver accepts at this point of the protocol.
    max_values : int, optional
        Maximum number of values in the frame, and in each nested one. None means ``MAX_VALUES``.

    Returns
    -------
    message
        An instance of one of ``expected``. Its arrays are read-only.

    Raises
    ------
    WireError
        If the frame is malformed, not canonical or of another class, or if the type of a field
        differs from the declared one.
    """
    reader = Reader(frame, max_values)
    for header, cls in _list_headers(expected):
        if frame.startswith(header):
            reader.read_bytes(len(header))
            try:
                return _build(cls, _read_fields(reader, cls, max_values))
            except MemoryError:
                raise WireError(
                    f"{cls.__name__}: no memory for a frame of {len(frame)} bytes"
                ) from None
    _refuse_header(reader, expected)


@lru_cache(maxsize=1024)
def _list_headers(expected: tuple[type[Any], ...]) -> tuple[tuple[bytes, type[Any]], ...]:
    """Return the first bytes of the frames of each class."""
    if len({cls.__name__ for cls in expected}) < len(set(expected)):
        raise ValueError(f"expected message classes with distinct names, got {expected}")
    headers = []
    for cls in expected:
        name = cls.__name__.encode()
        start = _PREFIX + _LENGTH.pack(len(name)) + name
        headers.append((start + bytes([len(fields_of(cls))]), cls))
    return tuple(headers)


def _refuse_header(reader: Reader, expected: tuple[type[Any], ...]) -> NoReturn:
    """Raise the error of a frame of none of the expected classes."""
    start = reader.read_bytes(len(_PREFIX))
    if start != _PREFIX:
        raise WireError(f"not a frame of version {VERSION}: it begins with {start!r}")
    name, names = reader.read_string(), sorted(cls.__name__ for cls in expected)
    if name not in names:
        raise WireError(f"unexpected message {name[:40]!r}; expected one of {names}")
    reader.read_bytes(1)
    raise WireError(f"{name}: wrong number of fields")


def _read_fields(reader: Reader, cls: type[Any], max_values: int | None) -> dict[str, Any]:
    name, values = cls.__name__, {}
    for field in fields_of(cls):
        value = reader.read_value(flat=field.where if field.is_flat else "")
        if field.nested:
            value = _decode_nested(value, field.nested, max_values)
        if type(value) is not field.hint and not field.has_type(value):
            raise WireError(f"{field.where} is not of the declared type")
        values[field.name] = value
    if reader.n_left:
        raise WireError(f"{name}: {reader.n_left} unexpected bytes after the last field")
    return values


def _build(cls: type[Any], values: dict[str, Any]) -> Message:
    item = object.__new__(cls)  # __init__ of a frozen class takes five times as long
    vars(item).update(values)
    try:
        if hasattr(cls, "__post_init__"):
            item.__post_init__()
    except (TypeError, ValueError, ArithmeticError, LookupError, RecursionError) as error:
        raise WireError(f"{cls.__name__}: {error}") from None
    return item
