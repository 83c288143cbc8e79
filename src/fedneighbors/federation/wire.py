"""The bytes of single values: what :mod:`~fedneighbors.federation.messages` strings together."""

import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors.errors import WireError

__all__ = ["MAX_FRAME_BYTES", "Reader", "Writer"]

MAX_FRAME_BYTES = (4 << 30) - 1  # so that every length fits its 32 bits
MAX_VALUES = 1 << 20  # in one frame; a value takes up to 200 bytes of memory beside its own bytes
MAX_DEPTH = 6
MAX_DIMS = 4
_DTYPES = ("|u1", "<u2", "<u4", "<u8", "|i1", "<i2", "<i4", "<i8", "<f4", "<f8", "|b1")


class Writer:
    """Collects the bytes of values; the one encoding of each."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._n_values = 0

    def frame(self) -> bytes:
        """Return all that was written.

        Raises
        ------
        ValueError
            If it is longer than a frame may be.
        """
        n_bytes = sum(map(len, self._parts))
        if n_bytes > MAX_FRAME_BYTES:
            raise ValueError(f"frame of {n_bytes} bytes is over the limit of {MAX_FRAME_BYTES}")
        return b"".join(self._parts)

    def raw(self, content: bytes) -> None:
        """Append bytes as they are."""
        self._parts.append(content)

    def string(self, text: str) -> None:
        """Append a string with its length in bytes."""
        self._sized(text.encode("utf-8"), where="a string")

    def value(self, value: Any, *, where: str, depth: int = 0) -> None:
        """Append a tagged value.

        Parameters
        ----------
        value : object
            Anything that a frame can carry.
        where : str
            Message and field, for the error.
        depth : int
            How many collections hold it.

        Raises
        ------
        TypeError
            If a frame cannot carry it.
        ValueError
            If it is out of range.
        """
        self._count(where, depth)
        if value is None:
            self.raw(b"N")
        elif isinstance(value, bool | np.bool_):
            self.raw(b"T" if value else b"F")
        elif isinstance(value, int | np.integer) and not isinstance(value, np.timedelta64):
            self._integer(int(value), where)
        elif isinstance(value, float | np.floating) and not isinstance(value, np.longdouble):
            self._float(float(value), where)
        elif isinstance(value, str):
            self.raw(b"s")
            self.string(value)
        elif isinstance(value, bytes):
            self.raw(b"b")
            self._sized(value, where=where)
        elif isinstance(value, np.ndarray) and not isinstance(value, np.ma.MaskedArray):
            self._array(value, where)
        else:
            self._collection(value, where, depth)

    def _count(self, where: str, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise ValueError(f"{where} is nested deeper than {MAX_DEPTH}")
        self._n_values += 1
        if self._n_values > MAX_VALUES:
            raise ValueError(f"{where}: a frame carries {MAX_VALUES} values at most; send an array")

    def _sized(self, content: bytes, *, where: str) -> None:
        if len(content) > MAX_FRAME_BYTES:
            raise ValueError(f"{where} of {len(content)} bytes does not fit into a frame")
        self.raw(struct.pack("<I", len(content)))
        self.raw(content)

    def _integer(self, number: int, where: str) -> None:
        if not -(2**63) <= number < 2**63:
            raise ValueError(f"{where} does not fit into 64 bits")
        self.raw(b"i" + struct.pack("<q", number))

    def _float(self, number: float, where: str) -> None:
        if not math.isfinite(number):
            raise ValueError(f"{where} is not finite; send None for an absent number")
        self.raw(b"f" + struct.pack("<d", number))

    def _array(self, array: npt.NDArray[Any], where: str) -> None:
        code = array.dtype.newbyteorder("<").str
        if code not in _DTYPES or array.ndim > MAX_DIMS:
            raise TypeError(
                f"{where} is an array of {array.dtype}, {array.ndim} dimensions; "
                f"a frame carries numbers in at most {MAX_DIMS} dimensions"
            )
        _check_shape(array.shape, array.itemsize, ValueError)
        self.raw(b"a" + bytes([_DTYPES.index(code), array.ndim]))
        self.raw(struct.pack(f"<{array.ndim}Q", *array.shape))
        self.raw(np.ascontiguousarray(array, dtype=code).tobytes())

    def _collection(self, value: Any, where: str, depth: int) -> None:
        if not isinstance(value, tuple | Mapping):
            raise TypeError(f"{where} is a {type(value).__name__}; a frame cannot carry it")
        self.raw((b"t" if isinstance(value, tuple) else b"d") + struct.pack("<I", len(value)))
        if isinstance(value, tuple):
            for entry in value:
                self.value(entry, where=where, depth=depth + 1)
            return
        if not all(isinstance(key, str) for key in value):
            raise TypeError(f"{where} has keys that are not strings")
        for key in sorted(value):
            self.string(key)
            self.value(value[key], where=where, depth=depth + 1)


class Reader:
    """A cursor over an untrusted frame; it raises nothing but :class:`WireError`."""

    def __init__(self, frame: bytes) -> None:
        if len(frame) > MAX_FRAME_BYTES:
            raise WireError(f"frame of {len(frame)} bytes is over the limit of {MAX_FRAME_BYTES}")
        self._frame = memoryview(frame)
        self._at = 0
        self._n_values = 0

    @property
    def left(self) -> int:
        """Bytes that were not read yet."""
        return len(self._frame) - self._at

    def take(self, n_bytes: int) -> bytes:
        """Return the next bytes."""
        return bytes(self._view(n_bytes))

    def string(self) -> str:
        """Return the next string."""
        try:
            return str(self._view(self._number("I")), "utf-8")
        except UnicodeDecodeError:
            raise WireError("a string is not UTF-8") from None

    def value(self, *, depth: int = 0) -> Any:
        """Return the next tagged value; an array is a read-only copy."""
        self._count(depth)
        tag = self.take(1)
        if tag in (b"N", b"T", b"F"):
            return {b"N": None, b"T": True, b"F": False}[tag]
        if tag == b"i":
            return self._number("q")
        if tag == b"f":
            return self._float()
        if tag == b"s":
            return self.string()
        if tag == b"b":
            return self.take(self._number("I"))
        if tag == b"t":
            return tuple(self.value(depth=depth + 1) for _ in range(self._n_items()))
        if tag == b"d":
            return self._mapping(depth)
        if tag == b"a":
            return self._array()
        raise WireError(f"unknown tag {tag!r}")

    def _view(self, n_bytes: int) -> memoryview:
        if n_bytes > self.left:
            raise WireError(f"frame ends early: {n_bytes} bytes wanted, {self.left} left")
        self._at += n_bytes
        return self._frame[self._at - n_bytes : self._at]

    def _number(self, code: str) -> int:
        return int(struct.unpack("<" + code, self._view(struct.calcsize("<" + code)))[0])

    def _count(self, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise WireError(f"nested deeper than {MAX_DEPTH}")
        self._n_values += 1
        if self._n_values > MAX_VALUES:
            raise WireError(f"more than {MAX_VALUES} values in a frame")

    def _n_items(self) -> int:
        n_items = self._number("I")
        if n_items > self.left:  # an item takes at least one byte
            raise WireError(f"{n_items} items announced, {self.left} bytes left")
        return n_items

    def _float(self) -> float:
        value = float(struct.unpack("<d", self._view(8))[0])
        if not math.isfinite(value):
            raise WireError("a float is not finite")
        return value

    def _mapping(self, depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        last: str | None = None
        for _ in range(self._n_items()):
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
        shape = tuple(self._number("Q") for _ in range(n_dims))
        _check_shape(shape, dtype.itemsize, WireError)
        raw = self._view(math.prod(shape) * dtype.itemsize)
        if dtype == np.bool_ and np.frombuffer(raw, np.uint8).max(initial=0) > 1:
            raise WireError("a boolean is neither 0 nor 1")
        array = np.frombuffer(raw, dtype).reshape(shape).copy()  # aligned, which a view need not be
        array.flags.writeable = False
        return array


def _check_shape(shape: tuple[int, ...], itemsize: int, error: type[Exception]) -> None:
    """Bound what an array could take, sides of zero left aside: numpy has limits of its own."""
    if math.prod(side for side in shape if side) * itemsize > MAX_FRAME_BYTES:
        raise error(f"an array of shape {shape} is over the limit of {MAX_FRAME_BYTES} bytes")
