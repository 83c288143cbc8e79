"""Who takes part: parties that answer, coordinators that ask, and what passes between them.

A coordinator is a generator. It yields an :class:`Ask`, is sent the :class:`Replies`, and returns
its result, so that it reads from top to bottom like the algorithm box of a paper. It knows nothing
of how messages travel; a party knows nothing of who asks.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

import numpy as np

from fedneighbors.errors import PartyMissing, ProtocolError, WireError
from fedneighbors.federation.messages import Message, decode, encode, message

__all__ = [
    "Ask",
    "Coordinator",
    "Party",
    "Refusal",
    "Refuse",
    "Replies",
    "add_up",
    "gather",
    "serve",
    "total",
]

R = TypeVar("R")


class Party(Protocol):
    """One organisation and the data that it holds.

    Attributes
    ----------
    name : str
        How the federation calls it.
    accepts : tuple of message classes
        Requests that it answers. Each request class names its reply class in ``reply``.
    """

    name: str
    accepts: tuple[type[Any], ...]

    def answer(self, request: Message) -> Message:
        """Return the reply to a request, or raise :class:`Refuse`."""
        ...


@message
class Refusal:
    """What travels when a party cannot answer: a code and a public word, never values."""

    code: str
    detail: str


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
    """What a coordinator yields.

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
        """Return the request of each party that is asked."""
        if isinstance(self.requests, Mapping):
            unknown = sorted(set(self.requests) - set(names))
            if unknown:
                raise ProtocolError(f"requests for parties that do not take part: {unknown}")
            return dict(self.requests)
        return dict.fromkeys(names, self.requests)


def gather(requests: Message | Mapping[str, Message]) -> Ask:
    """Ask and see every reply."""
    return Ask(requests, "gather")


def total(requests: Message | Mapping[str, Message]) -> Ask:
    """Ask and see only the sum of the replies, whose fields must be integers or integer arrays."""
    return Ask(requests, "sum")


@dataclass(frozen=True)
class Replies:
    """What a coordinator is sent.

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


Coordinator = Generator[Ask, Replies, R]


def serve(party: Party, frame: bytes) -> bytes:
    """Return the frame with which a party answers a request's frame."""
    try:
        request = decode(frame, party.accepts)
        return encode(party.answer(request))
    except Refuse as refusal:
        return encode(Refusal(refusal.code, refusal.detail))
    except WireError:
        return encode(Refusal("malformed request", ""))


def add_up(replies: Mapping[str, Message]) -> Message:
    """Return the sum of replies of one type whose fields are integers or integer arrays.

    Raises
    ------
    ProtocolError
        If there is no reply, if fields differ in shape or dtype or are not integers, or if the
        sum could leave the range of its dtype.
    """
    if not replies:
        raise ProtocolError("there is no reply to add up")
    cls: type[Any] = type(next(iter(replies.values())))
    fields = {}
    for name in cls.__dataclass_fields__:
        parts = {party: getattr(reply, name) for party, reply in replies.items()}
        fields[name] = _sum_field(parts, where=f"{cls.__name__}.{name}")
    return cls(**fields)


def _sum_field(parts: Mapping[str, Any], *, where: str) -> Any:
    if all(isinstance(part, int) and not isinstance(part, bool) for part in parts.values()):
        return sum(parts.values())
    first = next(iter(parts.values()))
    for party, part in parts.items():
        if not (isinstance(part, np.ndarray) and np.issubdtype(part.dtype, np.integer)):
            raise ProtocolError(f"{where} of party {party!r} is not an integer array")
        if part.dtype != first.dtype or part.shape != first.shape:
            raise ProtocolError(
                f"{where} of party {party!r} is {part.dtype}{part.shape}, "
                f"others sent {first.dtype}{first.shape}"
            )
    low = sum(int(part.min(initial=0)) for part in parts.values())
    high = sum(int(part.max(initial=0)) for part in parts.values())
    if low < np.iinfo(first.dtype).min or high > np.iinfo(first.dtype).max:
        raise ProtocolError(f"the sum of {where} could leave the range of {first.dtype}")
    result = first.copy()
    for part in list(parts.values())[1:]:
        result += part
    return result
