"""Sums of replies: what can be added up, in the plain and as a list of integer arrays."""

import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors.errors import ProtocolError
from fedneighbors.federation._messages import Message, declared


def is_summable(cls: type[Any]) -> bool:
    """Return whether replies of a class could be added up: every field may be of integers.

    Examples
    --------
    >>> from fedneighbors.federation._messages import message
    >>> @message
    ... class Counted:
    ...     n_rows: int
    >>> @message
    ... class Named:
    ...     n_rows: int
    ...     name: str
    >>> is_summable(Counted), is_summable(Named)
    (True, False)
    """
    hints = declared(cls).values()
    return bool(hints) and all(map(_may_be_integers, hints))


def _may_be_integers(hint: Any) -> bool:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return any(map(_may_be_integers, typing.get_args(hint)))
    if typing.get_origin(hint) is not np.ndarray:
        return hint is int
    wanted = typing.get_args(typing.get_args(hint)[1])[0]
    wanted = typing.get_origin(wanted) or wanted
    return wanted is Any or issubclass(wanted, np.integer) or issubclass(np.integer, wanted)


def integer_fields(reply: Message) -> list[npt.NDArray[np.integer[Any]]]:
    """Return the fields of a reply as integer arrays, an integer as an int64 array without sides.

    Raises
    ------
    ProtocolError
        If a field is neither an integer nor an array of integers.
    """
    arrays = []
    for name in type(reply).__dataclass_fields__:
        part = getattr(reply, name)
        if not _is_integer(part) and not _is_integer_array(part):
            raise ProtocolError(f"{type(reply).__name__}.{name} cannot be added up")
        arrays.append(part if isinstance(part, np.ndarray) else np.array(part, np.int64))
    return arrays


def summed_reply(cls: type[Any], arrays: Sequence[npt.NDArray[np.integer[Any]]]) -> Message:
    """Return the reply whose fields are summed arrays, in the order of the class.

    Raises
    ------
    ProtocolError
        If they are not as many as the class has fields, or it refuses them.
    """
    hints = declared(cls)
    if len(hints) != len(arrays):
        raise ProtocolError(f"{cls.__name__} has {len(hints)} fields, the parties sent others")
    fields = {
        name: int(array) if hint is int and array.ndim == 0 else array
        for (name, hint), array in zip(hints.items(), arrays, strict=True)
    }
    return _made(cls, fields)


def _made(cls: type[Any], fields: Mapping[str, Any]) -> Message:
    try:
        return cls(**fields)
    except (TypeError, ValueError) as error:
        name = cls.__name__
        raise ProtocolError(f"the sum of {name} is not a valid {name}: {error}") from None


def add_up(replies: Mapping[str, Message]) -> Message:
    """Return the sum of replies of one type whose fields are integers or integer arrays.

    Raises
    ------
    ProtocolError
        If there is no reply; if replies differ in type, fields in shape or dtype; if a field is
        not of integers; if the sum could leave the range of its dtype, judged by the extremes of
        each part; or if the message type refuses the sum.
    """
    if not replies:
        raise ProtocolError("there is no reply to add up")
    kinds = {type(reply).__name__: type(reply) for reply in replies.values()}
    if len(kinds) > 1:
        raise ProtocolError(f"replies of different types cannot be added up: {sorted(kinds)}")
    ((kind, cls),) = kinds.items()
    fields = {}
    for name in cls.__dataclass_fields__:
        parts = {party: getattr(reply, name) for party, reply in replies.items()}
        fields[name] = _sum_field(parts, where=f"{kind}.{name}")
    return _made(cls, fields)


def _sum_field(parts: Mapping[str, Any], *, where: str) -> Any:
    first = next(iter(parts.values()))
    for party, part in parts.items():
        if not _is_integer(part) and not _is_integer_array(part):
            raise ProtocolError(f"{where} of party {party!r} is not an integer or integer array")
        if _layout(part) != _layout(first):
            raise ProtocolError(
                f"{where} of party {party!r} is {_layout(part)}, others sent {_layout(first)}"
            )
    limits = np.iinfo(first.dtype if isinstance(first, np.ndarray) else np.int64)
    low = sum(int(np.min(part, initial=0)) for part in parts.values())
    high = sum(int(np.max(part, initial=0)) for part in parts.values())
    if low < limits.min or high > limits.max:
        raise ProtocolError(f"the sum of {where} could leave the range of {limits.dtype}")
    result = first.copy() if isinstance(first, np.ndarray) else first
    for part in list(parts.values())[1:]:
        result += part
    return result


def _is_integer(part: Any) -> bool:
    return isinstance(part, int) and not isinstance(part, bool)


def _is_integer_array(part: Any) -> bool:
    return isinstance(part, np.ndarray) and np.issubdtype(part.dtype, np.integer)


def _layout(part: Any) -> str:
    return f"{part.dtype}{part.shape}" if isinstance(part, np.ndarray) else "int"
