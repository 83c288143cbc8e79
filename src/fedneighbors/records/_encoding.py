"""JSON encoding of run records: scalars, checks of each line's fields, and small images."""

import base64
import binascii
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from fedneighbors.errors import RecordError
from fedneighbors.records._schema import Figure, ResultTable, Round, Scalar

SCHEMA = "fedneighbors.run"
VERSION = 1
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_CELL = re.compile(r"([1-9]\d{0,3})x([1-9]\d{0,3}):([A-Za-z0-9+/=]*)")


def encode(value: object) -> Any:
    """Encode a scalar, or a list or mapping of values, for JSON.

    numpy scalars and arrays are converted to Python values.

    Raises
    ------
    TypeError
        If a record cannot hold a value of this type.
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": repr(float(value))}
    if isinstance(value, list | tuple):
        return [encode(part) for part in value]
    if isinstance(value, Mapping):
        return {_key(name): encode(part) for name, part in value.items()}
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return encode(value.tolist())
    raise TypeError(
        f"a record holds strings, numbers, booleans and None, got {type(value).__name__}; "
        "convert it first"
    )


def decode(value: object) -> Scalar:
    """Decode a scalar written by ``encode``.

    Raises
    ------
    ValueError
        If the value is not an encoded scalar.
    """
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, dict) and list(value) == ["float"] and value["float"] in _NON_FINITE:
        return _NON_FINITE[value["float"]]
    raise ValueError('expected a string, number, boolean, null or {"float": "nan"}')


def _key(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"expected keys that are strings, got {type(name).__name__}")
    return name


_T = TypeVar("_T", str, bool, int)


def _make_check(kind: type[_T], expected: str) -> Callable[[object], _T]:
    def check(value: object) -> _T:
        if type(value) is not kind:  # isinstance would accept true as an integer
            raise ValueError(f"expected {expected}")
        return value

    return check


_text = _make_check(str, "a string")
_flag = _make_check(bool, "true or false")
_integer = _make_check(int, "an integer")


def _number(value: object) -> float:
    number = decode(value)
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise ValueError("expected a number")
    return number


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("expected a list")
    return value


def _texts(value: object) -> tuple[str, ...]:
    return tuple(_text(part) for part in _list(value))


def _rows(value: object) -> tuple[tuple[Scalar, ...], ...]:
    return tuple(tuple(decode(cell) for cell in _list(row)) for row in _list(value))


def _parameter(value: object) -> Scalar | list[Scalar]:
    return [decode(part) for part in value] if isinstance(value, list) else decode(value)


def _mapping(check: Callable[[object], Any]) -> Callable[[object], dict[str, Any]]:
    def check_each(value: object) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ValueError("expected an object")
        return {name: check(part) for name, part in value.items()}

    return check_each


FIELDS: Mapping[str, Mapping[str, Callable[[object], Any]]] = {
    "header": {
        "schema": _text,
        "version": _integer,
        "name": _text,
        "parameters": _mapping(_parameter),
        "started": _text,
        "environment": _mapping(_text),
    },
    "round": {
        "index": _integer,
        "request": _text,
        "reduce": _text,
        "upload_bytes": _mapping(_integer),
        "download_bytes": _mapping(_integer),
        "seconds": _number,
        "missing": _mapping(_text),
        "busy_s": _mapping(_number),
    },
    "table": {"name": _text, "title": _text, "columns": _texts, "rows": _rows, "caption": _text},
    "figure": {
        **dict.fromkeys(("name", "kind", "title", "table", "x", "y"), _text),
        **dict.fromkeys(("hue", "facet", "error"), _text),
        **dict.fromkeys(("log_x", "log_y", "diagonal"), _flag),
        "caption": _text,
    },
    "note": {"text": _text},
    "end": {"seconds": _number, "privacy": _mapping(decode), "lines": _integer},
}
"""Check of each field, by kind of line. A check returns the decoded value or raises ValueError."""

OPTIONAL: Mapping[str, frozenset[str]] = {"round": frozenset({"busy_s"})}
"""Fields that may be absent, as in older records; they are then empty."""

PARTS: Mapping[str, Callable[..., Round | ResultTable | Figure | str]] = {
    "round": Round,
    "table": ResultTable,
    "figure": Figure,
    "note": lambda text: str(text),
}
"""Constructor of the object for each kind of line between header and end."""


def check_fields(kind: str, entry: Mapping[str, object]) -> dict[str, Any]:
    """Check the fields of a line and return their values.

    Parameters
    ----------
    kind : str
        A key of ``FIELDS``.
    entry : mapping
        The parsed JSON line; ``"line"`` is its kind.

    Raises
    ------
    ValueError
        If a field is missing, unknown or of the wrong type.
    """
    checks = FIELDS[kind]
    for name in entry.keys() - checks.keys() - {"line"}:
        raise ValueError(f"expected no field {name!r} in a {kind} line")
    for name in checks.keys() - entry.keys() - OPTIONAL.get(kind, frozenset()):
        raise ValueError(f"expected a field {name!r} in a {kind} line")
    return {name: _field(kind, name, entry[name]) for name in checks if name in entry}


def _field(kind: str, name: str, value: object) -> Any:
    try:
        return FIELDS[kind][name](value)
    except ValueError as error:
        raise ValueError(f"{error} in field {name!r} of a {kind} line") from error


def encode_pixels(image: Iterable[Iterable[int]]) -> str:
    """Encode an image as text for a cell of a table.

    Parameters
    ----------
    image : rows of pixels, such as an integer array of shape (n_rows, n_columns)
        Gray values from 0 (black) to 255 (white).

    Raises
    ------
    ValueError
        If a value is outside 0 to 255, rows differ in length, or the image is empty.

    Examples
    --------
    >>> encode_pixels([[0, 255], [128, 64]])
    '2x2:AP+AQA=='
    """
    rows = [bytes(int(pixel) for pixel in row) for row in image]
    widths = {len(row) for row in rows}
    if len(widths) != 1 or not rows[0]:
        raise ValueError(f"expected image rows of one length, at least 1, got {sorted(widths)}")
    return f"{len(rows)}x{len(rows[0])}:{base64.b64encode(b''.join(rows)).decode('ascii')}"


def decode_pixels(cell: object) -> list[bytes]:
    """Decode an image written by `encode_pixels`.

    Returns
    -------
    list of bytes
        Rows of the image, one byte per pixel.

    Raises
    ------
    RecordError
        If the cell is not an encoded image.

    Examples
    --------
    >>> [list(row) for row in decode_pixels("2x2:AP+AQA==")]
    [[0, 255], [128, 64]]
    """
    match = _CELL.fullmatch(cell) if isinstance(cell, str) else None
    if match is None:
        raise RecordError(f"expected an image as 'ROWSxCOLUMNS:base64', found {cell!r:.40}")
    n_rows, n_columns = int(match[1]), int(match[2])
    try:
        pixels = base64.b64decode(match[3], validate=True)
    except binascii.Error as error:
        raise RecordError(f"expected the pixels of an image in base64: {error}") from error
    if len(pixels) != n_rows * n_columns:
        raise RecordError(f"expected {n_rows} x {n_columns} pixels, found {len(pixels)}")
    return [pixels[row * n_columns : (row + 1) * n_columns] for row in range(n_rows)]
