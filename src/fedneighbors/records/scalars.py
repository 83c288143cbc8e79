"""How a single value of a record is written in JSON, with NaN and the infinities spelled out.

JSON has no word for NaN or infinity: these become ``{"float": "nan"}``, ``{"float": "inf"}`` or
``{"float": "-inf"}``. Every other float is written with as many digits as it needs to come back
bit for bit, and ``1.0`` stays apart from ``1``.
"""

import math
from collections.abc import Mapping
from typing import Any

from fedneighbors.records.schema import Scalar

__all__ = ["decode", "encode"]

_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def encode(value: object) -> Any:
    """JSON form of a value: a scalar, or a list or mapping of values.

    Scalars and arrays of numpy are taken as the Python values that they stand for.

    Raises
    ------
    TypeError
        If the value is of no type that a record may hold.
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
    """Scalar that ``encode`` wrote.

    Raises
    ------
    ValueError
        If the value is not the JSON form of a scalar.
    """
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, dict) and list(value) == ["float"] and value["float"] in _NON_FINITE:
        return _NON_FINITE[value["float"]]
    raise ValueError('expected a string, number, boolean, null or {"float": "nan"}')


def _key(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"a record names its entries by strings, got {type(name).__name__}")
    return name
