"""Roles of a federation: parties, coordinators, and the requests and replies between them.

A coordinator is a generator. It yields an :class:`Ask`, is sent the :class:`Replies`, and returns
its result, so that it reads from top to bottom like the algorithm box of a paper. It knows nothing
of how messages travel; a party knows nothing of who asks.
"""

import logging
import traceback
import types
import typing
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from fedneighbors.errors import PartyMissing, ProtocolError, WireError
from fedneighbors.federation._messages import Message, declared, decode, encode, message

log = logging.getLogger(__name__)
R = TypeVar("R")

MAX_CODE = 100
MAX_DETAIL = 400

MALFORMED = "malformed request"
"""The code of a request that a party cannot read or does not accept."""

MASKED_SUM = "masked sum: "
"""How the codes begin with which a party refuses a step of a masked sum."""


@dataclass(frozen=True)
class MaskedRound:
    """Description of the masked sum that a party's reply is added to.

    Parameters
    ----------
    id : str
        Digest of everything that the parties agreed on, in hexadecimal; new in every attempt.
    n_parties : int
        Parties whose replies may be in the sum.
    n_asked : int
        Parties with which it was opened; of those that hold shares of secrets, some may have left.
    threshold : int
        Least number of parties whose sum is ever unmasked.
    """

    id: str
    n_parties: int
    n_asked: int
    threshold: int


class Party(Protocol):
    """One organisation and the data that it holds.

    A request class that says ``masked_only = True`` is never answered by :meth:`answer`: a party
    that accepts it has a method ``contribute(request, masked)``, which is told the
    :class:`MaskedRound` and returns what goes into the masked sum. ``noised = True`` says that this
    carries noise, so that a sum of two parties may be formed. ``one_by_one = True`` says that
    replies of integers are meant to be seen one by one, also where sums are masked.

    Attributes
    ----------
    name : str
        How the federation calls it.
    accepts : tuple of message classes
        Requests that it answers. Each request class names its reply class in ``reply``.
    """

    @property
    def name(self) -> str: ...

    @property
    def accepts(self) -> tuple[type[Any], ...]: ...

    def answer(self, request: Message) -> Message:
        """Return the reply to a request, or raise :class:`Refuse`."""
        ...


@message
class Refusal:
    """Refusal of a party as sent on the wire: a code and a public word, never values.

    Both are printable and short, so that a hostile party cannot write into a log.
    """

    code: str
    detail: str

    def __post_init__(self) -> None:
        if not (0 < len(self.code) <= MAX_CODE and self.code.isprintable()):
            raise ValueError(f"a code has 1 to {MAX_CODE} printable characters")
        if len(self.detail) > MAX_DETAIL or not self.detail.isprintable():
            raise ValueError(f"a detail has at most {MAX_DETAIL} printable characters")


class Refuse(Exception):  # noqa: N818 - raised as a sentence: the party will refuse
    """Raised inside a party; it reaches the coordinator as a :class:`Refusal`.

    Parameters
    ----------
    code : str
        What is wrong, in a few fixed words without values or row numbers.
    detail : str
        A column name or another public word.
    """

    def __init__(self, code: str, detail: str = "") -> None:
        super().__init__(code, detail)
        self.code = code
        self.detail = detail


@dataclass(frozen=True)
class Ask:
    """Request that a coordinator yields.

    Parameters
    ----------
    requests : message or mapping of str to message
        One request for all parties, or one for each named party.
    reduce : {"gather", "sum"}
        How replies come back: one by one, or as their sum alone.
    """

    requests: Message | Mapping[str, Message]
    reduce: Literal["gather", "sum"]

    def for_parties(self, names: tuple[str, ...]) -> dict[str, Message]:
        """Return the request of each party that is asked.

        Raises
        ------
        ProtocolError
            If no party is asked, or one that does not take part.
        """
        if not isinstance(self.requests, Mapping):
            return dict.fromkeys(names, self.requests)
        unknown = sorted(set(self.requests) - set(names))
        if unknown:
            raise ProtocolError(f"requests for parties that do not take part: {unknown}")
        if not self.requests:
            raise ProtocolError("the coordinator asks no party")
        return dict(self.requests)


def gather(requests: Message | Mapping[str, Message]) -> Ask:
    """Ask and see every reply."""
    return Ask(requests, "gather")


def total(requests: Message | Mapping[str, Message]) -> Ask:
    """Ask and see only the sum of the replies, whose fields must be integers or integer arrays."""
    return Ask(requests, "sum")


@dataclass(frozen=True)
class Replies:
    """Replies that are sent to a coordinator.

    Parameters
    ----------
    each : mapping of str to message
        Replies by party, in the order of the party names; empty under ``sum``.
    total : message or None
        Sum of the replies under ``sum``, else None.
    missing : mapping of str to str
        Parties that did not answer, and why.
    """

    each: Mapping[str, Message]
    total: Message | None
    missing: Mapping[str, str]

    def complete(self, during: str) -> "Replies":
        """Return self, or raise :class:`PartyMissing` if a party did not answer."""
        if self.missing:
            raise PartyMissing(self.missing, during)
        return self

    def summed(self, during: str) -> Message:
        """Return the sum of all parties' replies.

        Raises
        ------
        PartyMissing
            If a party did not answer.
        ProtocolError
            If no sum was asked for.
        """
        if self.complete(during).total is None:
            raise ProtocolError(f"{during} were not asked for as a sum")
        return self.total


Coordinator = Generator[Ask, Replies, R]


def serve(party: Party, frame: bytes) -> bytes:
    """Return the frame with which a party answers a request's frame.

    A party that refuses, or a request that it cannot read, is answered by a :class:`Refusal`; so is
    a request that is answered inside a masked sum only. Any other exception of the party is let
    through.
    """
    try:
        request = decode(frame, party.accepts)
    except WireError:
        return encode(Refusal(MALFORMED, ""))
    if getattr(type(request), "masked_only", False):
        return encode(Refusal("this reply leaves only inside a masked sum", type(request).__name__))
    try:
        return encode(party.answer(request))
    except Refuse as refuse:
        return encode(refusal(refuse))


def serve_apart(party: Party, frame: bytes) -> bytes:
    """Return what :func:`serve` returns, for a party whose exceptions cannot reach the user.

    The coordinator learns that the party failed and the type of the exception, nothing of its
    text. The log of the party's own process gets where it happened, again without the text, which
    may hold values.
    """
    try:
        return serve(party, frame)
    except Exception as error:
        return encode(failure(error))


def refusal(refuse: Refuse) -> Refusal:
    """Return what travels of a refusal: its words, cut and made printable."""
    code = _printable(refuse.code, MAX_CODE) or "no reason given"
    return Refusal(code, _printable(refuse.detail, MAX_DETAIL))


def failure(error: Exception) -> Refusal:
    """Return what may travel of an exception, and log where it happened."""
    kind = type(error).__name__
    places = "".join(traceback.format_tb(error.__traceback__))
    log.error(
        "a party failed with %s (its text is not logged: it may hold values)\n%s", kind, places
    )
    return Refusal("internal error", _printable(kind, MAX_DETAIL))


def _printable(text: str, limit: int) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in str(text)[:limit])


def is_summable(cls: type[Any]) -> bool:
    """Return whether replies of a class could be added up: every field may be of integers.

    Examples
    --------
    >>> from fedneighbors.federation import message
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
