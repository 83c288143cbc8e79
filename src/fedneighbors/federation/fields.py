"""What the fields of a message may be declared as, and which values fit a declaration."""

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

__all__ = ["declared", "fits"]

_SCALARS: dict[Any, tuple[type[Any], ...]] = {
    type(None): (type(None),),
    bool: (bool, np.bool_),
    int: (int, np.integer),
    float: (float, np.floating),
    str: (str,),
    bytes: (bytes,),
}


_known: WeakKeyDictionary[type[Any], dict[str, Any]] = WeakKeyDictionary()  # resolving is slow


def declared(cls: type[Any]) -> dict[str, Any]:
    """Return the declared type of each field of a message class, in order.

    Parameters
    ----------
    cls : dataclass
        A message class.

    Raises
    ------
    TypeError
        If a field is declared as something that a frame cannot carry.
    """
    if cls not in _known:
        hints = typing.get_type_hints(cls)
        fields = {field.name: hints[field.name] for field in dataclasses.fields(cls)}
        for name, hint in fields.items():
            _check(hint, where=f"{cls.__name__}.{name}")
        _known[cls] = fields
    return _known[cls]


def _check(hint: Any, *, where: str) -> None:
    origin = typing.get_origin(hint)
    if hint in _SCALARS or origin in (np.ndarray, typing.Literal):
        return
    if origin in (typing.Union, types.UnionType, tuple):
        inner = [choice for choice in typing.get_args(hint) if choice is not Ellipsis]
    elif _is_mapping(origin) and typing.get_args(hint)[0] is str:
        inner = [typing.get_args(hint)[1]]
    else:
        raise TypeError(
            f"{where} is declared as {hint}; a frame carries None, bool, int, float, str, bytes, "
            "Literal, NDArray, and tuples and string-keyed mappings of these"
        )
    for choice in inner:
        _check(choice, where=where)


def fits(value: Any, hint: Any) -> bool:
    """Return whether a value is of a declared type; numpy's scalars count as Python's.

    Examples
    --------
    >>> fits((1, 2), tuple[int, ...]), fits((1, 2), tuple[int, str]), fits(True, int)
    (True, False, False)
    """
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, choice) for choice in arguments)
    if origin is typing.Literal:
        return any(type(value) is type(choice) and value == choice for choice in arguments)
    if origin is tuple:
        return isinstance(value, tuple) and _fits_tuple(value, arguments)
    if origin is np.ndarray:
        return isinstance(value, np.ndarray) and _fits_dtype(value.dtype, arguments[1])
    if _is_mapping(origin):
        return isinstance(value, Mapping) and all(fits(x, arguments[1]) for x in value.values())
    if hint is int and isinstance(value, bool):
        return False
    return isinstance(value, _SCALARS[hint])


def _is_mapping(origin: Any) -> bool:
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _fits_tuple(value: tuple[Any, ...], arguments: tuple[Any, ...]) -> bool:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return all(fits(entry, arguments[0]) for entry in value)
    return len(value) == len(arguments) and all(map(fits, value, arguments))


def _fits_dtype(dtype: np.dtype[Any], hint: Any) -> bool:
    wanted = typing.get_args(hint)[0]
    wanted = typing.get_origin(wanted) or wanted  # np.integer[Any] is declared as np.integer
    return wanted is Any or np.issubdtype(dtype, wanted)
