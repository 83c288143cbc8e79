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
import types
import typing
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakSet

import numpy as np
import numpy.typing as npt

from fedneighbors.errors import WireError

MAX_FRAME_BYTES = (4 << 30) - 1  # so that every length fits its 32 bits
MAX_VALUES = 1 << 20  # per frame: 200 MiB of Python objects, at about 200 bytes each
MAX_DEPTH = 6  # fields nest at most 3, as in MaskedInput.layout; far below the recursion limit
MAX_DIMS = 4  # a batch of images has samples, channels, height and width
# the position of a dtype is its code on the wire
_DTYPES = ("|u1", "<u2", "<u4", "<u8", "|i1", "<i2", "<i4", "<i8", "<f4", "<f8", "|b1")
_CODES = {np.dtype(name): code for code, name in enumerate(_DTYPES)}


class Writer:
    """Encoder of values into the bytes of a frame."""

    def __init__(self) -> None:
        self._parts: list[bytes | memoryview] = []
        self._n_values = 0

    def join_parts(self) -> bytes:
        """Return all bytes written; raise ValueError beyond ``MAX_FRAME_BYTES``."""
        n_bytes = sum(memoryview(part).nbytes for part in self._parts)
        if n_bytes > MAX_FRAME_BYTES:
            raise ValueError(f"frame of {n_bytes} bytes is over the limit of {MAX_FRAME_BYTES}")
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
        if value is None:
            self.write_raw(b"N")
        elif isinstance(value, bool | np.bool_):
            self.write_raw(b"T" if value else b"F")
        elif isinstance(value, int | np.integer) and not isinstance(value, np.timedelta64):
            self._write_integer(int(value), where)
        elif isinstance(value, float | np.floating) and not isinstance(value, np.longdouble):
            self._write_float(float(value), where)
        elif isinstance(value, str):
            self.write_raw(b"s")
            self.write_string(value)
        elif isinstance(value, bytes):
            self.write_raw(b"b")
            self._write_sized(value, where=where)
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
        self.write_raw(struct.pack("<I", len(content)))
        self.write_raw(content)

    def _write_integer(self, number: int, where: str) -> None:
        if not -(2**63) <= number < 2**63:
            raise ValueError(f"{where} does not fit into 64 bits")
        self.write_raw(b"i" + struct.pack("<q", number))

    def _write_float(self, number: float, where: str) -> None:
        if not math.isfinite(number):
            raise ValueError(f"{where} is not finite; send None for an absent number")
        self.write_raw(b"f" + struct.pack("<d", number))

    def _write_array(self, array: npt.NDArray[Any], where: str) -> None:
        code = _CODES.get(array.dtype.newbyteorder("<"), -1)
        if code < 0 or array.ndim > MAX_DIMS:
            raise TypeError(
                f"{where} is an array of {array.dtype}, {array.ndim} dimensions; "
                f"a frame carries numbers in at most {MAX_DIMS} dimensions"
            )
        _check_shape(array.shape, array.itemsize, ValueError)
        self.write_raw(struct.pack(f"<cBB{array.ndim}Q", b"a", code, array.ndim, *array.shape))
        self.write_raw(np.ascontiguousarray(array, dtype=_DTYPES[code]).data)

    def _write_collection(self, value: Any, where: str, depth: int) -> None:
        if dataclasses.is_dataclass(value):
            self.write_raw(b"b")
            self._write_sized(encode(value), where=where)
            return
        if not isinstance(value, tuple | Mapping):
            raise TypeError(f"{where} is a {type(value).__name__}; a frame cannot carry it")
        self.write_raw((b"t" if isinstance(value, tuple) else b"d") + struct.pack("<I", len(value)))
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

    def __init__(self, frame: bytes) -> None:
        if len(frame) > MAX_FRAME_BYTES:
            raise WireError(f"frame of {len(frame)} bytes is over the limit of {MAX_FRAME_BYTES}")
        self._frame = memoryview(frame)
        self._position = 0
        self._n_values = 0

    @property
    def n_left(self) -> int:
        """Return the number of unread bytes."""
        return len(self._frame) - self._position

    def read_bytes(self, n_bytes: int) -> bytes:
        """Return the next bytes."""
        return bytes(self._advance(n_bytes))

    def read_string(self) -> str:
        """Return the next string."""
        try:
            return str(self._advance(self._read_number("I")), "utf-8")
        except UnicodeDecodeError:
            raise WireError("a string is not UTF-8") from None

    def read_value(self, *, depth: int = 0) -> Any:
        """Return the next tagged value; an array is a read-only copy."""
        self._count_value(depth)
        tag = self.read_bytes(1)
        if tag == b"a":
            return self._read_array()
        if tag in (b"N", b"T", b"F"):
            return {b"N": None, b"T": True, b"F": False}[tag]
        if tag == b"i":
            return self._read_number("q")
        if tag == b"f":
            return self._read_float()
        if tag == b"s":
            return self.read_string()
        if tag == b"b":
            return self.read_bytes(self._read_number("I"))
        if tag == b"t":
            return tuple(self.read_value(depth=depth + 1) for _ in range(self._read_n_items()))
        if tag == b"d":
            return self._read_mapping(depth)
        raise WireError(f"unknown tag {tag!r}")

    def _advance(self, n_bytes: int) -> memoryview:
        if n_bytes > self.n_left:
            raise WireError(f"frame ends early: {n_bytes} bytes expected, {self.n_left} left")
        self._position += n_bytes
        return self._frame[self._position - n_bytes : self._position]

    def _read_number(self, code: str) -> int:
        return int(struct.unpack("<" + code, self._advance(struct.calcsize("<" + code)))[0])

    def _count_value(self, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise WireError(f"nested deeper than {MAX_DEPTH}")
        self._n_values += 1
        if self._n_values > MAX_VALUES:
            raise WireError(f"more than {MAX_VALUES} values in a frame")

    def _read_n_items(self) -> int:
        n_items = self._read_number("I")
        if n_items > self.n_left:  # an item takes at least one byte
            raise WireError(f"{n_items} items announced, {self.n_left} bytes left")
        return n_items

    def _read_float(self) -> float:
        value = float(struct.unpack("<d", self._advance(8))[0])
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

    def _read_array(self) -> npt.NDArray[Any]:
        code, n_dims = self._advance(2)
        if code >= len(_DTYPES) or n_dims > MAX_DIMS:
            raise WireError(f"array of unknown dtype {code} or of {n_dims} dimensions")
        dtype = np.dtype(_DTYPES[code])
        shape = struct.unpack(f"<{n_dims}Q", self._advance(8 * n_dims))
        _check_shape(shape, dtype.itemsize, WireError)
        raw = self._advance(math.prod(shape) * dtype.itemsize)
        if dtype == np.bool_ and np.frombuffer(raw, np.uint8).max(initial=0) > 1:
            raise WireError("a boolean is neither 0 nor 1")
        array = np.frombuffer(raw, dtype).reshape(shape).copy()  # a view might not be aligned
        array.flags.writeable = False
        return array


def _check_shape(shape: tuple[int, ...], itemsize: int, error: type[Exception]) -> None:
    """Check the size of an array, ignoring zero-length dimensions.

    An array with such a dimension is empty, but numpy limits the product of the other lengths.
    """
    if math.prod(side for side in shape if side) * itemsize > MAX_FRAME_BYTES:
        raise error(f"an array of shape {shape} is over the limit of {MAX_FRAME_BYTES} bytes")


_SCALARS: dict[Any, tuple[type[Any], ...]] = {
    type(None): (type(None),),
    bool: (bool, np.bool_),
    int: (int, np.integer),
    float: (float, np.floating),
    str: (str,),
    bytes: (bytes,),
}

_field_types: WeakKeyDictionary[type[Any], dict[str, Any]] = WeakKeyDictionary()  # slow hints


def field_types(cls: type[Any]) -> dict[str, Any]:
    """Return the declared type of each field of a class.

    Raises TypeError if a field is declared with a type that a frame cannot carry.
    """
    if cls not in _field_types:
        hints = typing.get_type_hints(cls)
        fields = {field.name: hints[field.name] for field in dataclasses.fields(cls)}
        for name, hint in fields.items():
            _check_hint(hint, where=f"{cls.__name__}.{name}")
        _field_types[cls] = fields
    return _field_types[cls]


def _check_hint(hint: Any, *, where: str) -> None:
    origin = typing.get_origin(hint)
    if hint in _SCALARS or origin in (np.ndarray, typing.Literal):
        return
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        field_types(hint)
        return
    if origin in (typing.Union, types.UnionType, tuple):
        inner = [choice for choice in typing.get_args(hint) if choice is not Ellipsis]
    elif _is_mapping(origin) and typing.get_args(hint)[0] is str:
        inner = [typing.get_args(hint)[1]]
    else:
        raise TypeError(
            f"{where} is declared as {hint}; a frame carries None, bool, int, float, str, bytes, "
            "Literal, NDArray, dataclasses, and tuples and string-keyed mappings of these"
        )
    if bytes in (kinds := set(_bytes_types(hint))) and len(kinds) > 1:
        raise TypeError(
            f"{where} is declared as {hint}; bytes and dataclasses have the same encoding"
        )
    for choice in inner:
        _check_hint(choice, where=where)


def has_type(value: Any, hint: Any) -> bool:
    """Return whether a value has a declared type.

    numpy scalars count as the corresponding Python types.

    Examples
    --------
    >>> has_type((1, 2), tuple[int, ...]), has_type((1, 2), tuple[int, str]), has_type(True, int)
    (True, False, False)
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(has_type(value, choice) for choice in arguments)
    if origin is typing.Literal:
        return any(type(value) is type(choice) and value == choice for choice in arguments)
    if origin is tuple:
        return isinstance(value, tuple) and _fits_tuple(value, arguments)
    if origin is np.ndarray:
        return isinstance(value, np.ndarray) and _fits_dtype(value.dtype, arguments[1])
    if _is_mapping(origin):
        return isinstance(value, Mapping) and all(has_type(x, arguments[1]) for x in value.values())
    if hint is int and isinstance(value, bool):
        return False
    return isinstance(value, _SCALARS.get(hint, hint))


@lru_cache(maxsize=1024)
def _bytes_types(hint: Any) -> tuple[type[Any], ...]:
    """Return ``bytes`` and the dataclasses in a hint; both encode to bytes."""
    if hint is bytes or (isinstance(hint, type) and dataclasses.is_dataclass(hint)):
        return (hint,)
    return tuple(kind for inner in typing.get_args(hint) for kind in _bytes_types(inner))


def _decode_nested(value: Any, hint: Any) -> Any:
    """Decode the nested frames in a value of a declared type."""
    kinds = _bytes_types(hint)
    if not kinds or bytes in kinds:
        return value
    if isinstance(value, bytes):
        return decode(value, kinds)
    if isinstance(value, tuple):
        return tuple(_decode_nested(entry, hint) for entry in value)
    if isinstance(value, Mapping):
        return {key: _decode_nested(entry, hint) for key, entry in value.items()}
    return value


def _is_mapping(origin: Any) -> bool:
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _fits_tuple(value: tuple[Any, ...], arguments: tuple[Any, ...]) -> bool:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        if arguments[0] is str:  # fast: answers name many objects
            return set(map(type, value)) <= {str}
        return all(has_type(entry, arguments[0]) for entry in value)
    return len(value) == len(arguments) and all(map(has_type, value, arguments))


@lru_cache(maxsize=1024)
def _fits_dtype(dtype: np.dtype[Any], hint: Any) -> bool:
    scalar = typing.get_args(hint)[0]
    scalar = typing.get_origin(scalar) or scalar  # np.integer of np.integer[Any]
    return scalar is Any or bool(np.issubdtype(dtype, scalar))


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
    name = type(item).__name__
    hints = field_types(type(item))
    writer = Writer()
    writer.write_raw(_PREFIX)
    writer.write_string(name)
    writer.write_raw(bytes([len(hints)]))
    for field, hint in hints.items():
        value = getattr(item, field)
        if hint is float and type(value) is int and type(item) not in _messages:
            value = float(value)  # a field of a saved model may be set to 1 instead of 1.0
        writer.write_value(value, where=f"{name}.{field}")
        if not has_type(value, hint):
            raise TypeError(f"{name}.{field} is declared as {hint}, got {type(value).__name__}")
    return writer.join_parts()


def decode(frame: bytes, expected: tuple[type[Any], ...]) -> Message:
    """Decode a frame into a message of an expected class.

    Parameters
    ----------
    frame : bytes
        Untrusted bytes from the wire.
    expected : tuple of message classes
        Classes that the receiver accepts at this point of the protocol.

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
    classes = {cls.__name__: cls for cls in expected}
    if len(classes) < len(set(expected)):
        raise ValueError(f"expected message classes with distinct names, got {expected}")
    reader = Reader(frame)
    if reader.read_bytes(len(_PREFIX)) != _PREFIX:
        raise WireError(f"not a frame of version {VERSION}: it begins with {frame[:4]!r}")
    name = reader.read_string()
    if name not in classes:
        raise WireError(f"unexpected message {name[:40]!r}; expected one of {sorted(classes)}")
    try:
        return _build(classes[name], _read_fields(reader, classes[name]))
    except MemoryError:
        raise WireError(f"{name}: no memory for a frame of {len(frame)} bytes") from None


def _read_fields(reader: Reader, cls: type[Any]) -> dict[str, Any]:
    name = cls.__name__
    hints = field_types(cls)
    if reader.read_bytes(1)[0] != len(hints):
        raise WireError(f"{name}: wrong number of fields, expected {len(hints)}")
    values = {}
    for field, hint in hints.items():
        values[field] = _decode_nested(reader.read_value(), hint)
        if not has_type(values[field], hint):
            raise WireError(f"{name}.{field} is not of the declared type")
    if reader.n_left:
        raise WireError(f"{name}: {reader.n_left} unexpected bytes after the last field")
    return values


def _build(cls: type[Any], values: dict[str, Any]) -> Message:
    try:
        return cls(**values)
    except (TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise WireError(f"{cls.__name__}: {error}") from None
