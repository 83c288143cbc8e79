"""Declared types of the fields of messages, and the checks of their values."""

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

_SCALARS: dict[Any, tuple[type[Any], ...]] = {
    type(None): (type(None),),
    bool: (bool, np.bool_),
    int: (int, np.integer),
    float: (float, np.floating),
    str: (str,),
    bytes: (bytes,),
}


class MessageField(typing.NamedTuple):
    """Field of a message: its declared type, its check, and the classes of nested frames.

    A field is flat if its type contains no tuple and no mapping.
    """

    name: str
    where: str
    hint: Any
    has_type: Callable[[Any], bool]
    nested: tuple[type[Any], ...]
    is_flat: bool


_fields: dict[type[Any], tuple[MessageField, ...]] = {}  # resolving hints is slow


def fields_of(cls: type[Any]) -> tuple[MessageField, ...]:
    """Return the fields of a class; raise TypeError for unknown types."""
    found = _fields.get(cls)
    if found is None:
        hints = typing.get_type_hints(cls)
        names = [field.name for field in dataclasses.fields(cls)]
        for name in names:
            _check_hint(hints[name], where=f"{cls.__name__}.{name}")
        found = tuple(
            MessageField(
                name,
                f"{cls.__name__}.{name}",
                hints[name],
                make_type_check(hints[name]),
                tuple(kind for kind in _bytes_types(hints[name]) if kind is not bytes),
                _is_flat(hints[name]),
            )
            for name in names
        )
        _fields[cls] = found
    return found


def field_types(cls: type[Any]) -> dict[str, Any]:
    """Return the declared type of each field of a class.

    Raises TypeError if a field is declared with a type that a frame cannot carry.
    """
    return {field.name: field.hint for field in fields_of(cls)}


def _check_hint(hint: Any, *, where: str) -> None:
    origin = typing.get_origin(hint)
    if hint in _SCALARS or origin in (np.ndarray, typing.Literal):
        return
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        fields_of(hint)
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


@lru_cache(maxsize=1024)
def make_type_check(hint: Any) -> Callable[[Any], bool]:
    """Return a function that tells whether a value has a declared type.

    numpy scalars count as the corresponding Python types.

    Examples
    --------
    >>> is_whole = make_type_check(tuple[int, ...])
    >>> is_whole((1, 2)), is_whole((1, "2")), is_whole((1, True))
    (True, False, False)
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        checks = [make_type_check(choice) for choice in arguments]
        return lambda value: any(check(value) for check in checks)
    if origin is typing.Literal:
        return lambda value: any(
            type(value) is type(choice) and value == choice for choice in arguments
        )
    if origin is tuple:
        return _make_tuple_check(arguments)
    if origin is np.ndarray:
        return lambda value: (
            isinstance(value, np.ndarray) and _fits_dtype(value.dtype, arguments[1])
        )
    if _is_mapping(origin):
        check = make_type_check(arguments[1])
        return lambda value: isinstance(value, Mapping) and all(map(check, value.values()))
    kinds = _SCALARS.get(hint, hint)
    if hint is int:
        return lambda value: isinstance(value, kinds) and not isinstance(value, bool)
    return lambda value: isinstance(value, kinds)


@lru_cache(maxsize=1024)
def _bytes_types(hint: Any) -> tuple[type[Any], ...]:
    """Return ``bytes`` and the dataclasses in a hint; both encode to bytes."""
    if hint is bytes or (isinstance(hint, type) and dataclasses.is_dataclass(hint)):
        return (hint,)
    return tuple(kind for inner in typing.get_args(hint) for kind in _bytes_types(inner))


def _is_flat(hint: Any) -> bool:
    """Return whether a type contains no tuple and no mapping."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return all(map(_is_flat, typing.get_args(hint)))
    return origin is not tuple and not _is_mapping(origin)


def _is_mapping(origin: Any) -> bool:
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _make_tuple_check(arguments: tuple[Any, ...]) -> Callable[[Any], bool]:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        if arguments[0] is str:  # fast: messages may name many objects
            return lambda value: isinstance(value, tuple) and set(map(type, value)) <= {str}
        check = make_type_check(arguments[0])
        return lambda value: isinstance(value, tuple) and all(map(check, value))
    checks = [make_type_check(argument) for argument in arguments]
    return lambda value: (
        isinstance(value, tuple)
        and len(value) == len(checks)
        and all(check(entry) for check, entry in zip(checks, value, strict=True))
    )


@lru_cache(maxsize=1024)
def _fits_dtype(dtype: np.dtype[Any], hint: Any) -> bool:
    scalar = typing.get_args(hint)[0]
    scalar = typing.get_origin(scalar) or scalar  # np.integer of np.integer[Any]
    return scalar is Any or bool(np.issubdtype(dtype, scalar))
