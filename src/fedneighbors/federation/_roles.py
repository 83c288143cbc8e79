"""The party interface, and the refusals and failures that a party sends."""

import logging
import traceback
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from fedneighbors.errors import WireError
from fedneighbors.federation._messages import Message, decode, encode, message

log = logging.getLogger(__name__)
R = TypeVar("R")

MAX_CODE = 100  # a short phrase; a party must not send rows as text
MAX_DETAIL = 400  # a few names, in one line of a log

MALFORMED = "malformed request"
"""Code for a request that a party cannot decode or does not accept."""

MASKED_SUM = "masked sum: "
"""Prefix of the codes that refuse a step of a masked sum."""


@dataclass(frozen=True)
class MaskedRound:
    """Masked sum to which a party's reply is added.

    Parameters
    ----------
    id : str
        Hexadecimal digest of everything that the parties agreed on; new for every attempt.
    n_parties : int
        Number of parties whose replies may be in the sum.
    n_asked : int
        Number of parties with which the sum was opened; some may have dropped out since, including
        parties that hold shares of secrets.
    threshold : int
        Minimum number of parties whose sum is ever unmasked.
    """

    id: str
    n_parties: int
    n_asked: int
    threshold: int


class Party(Protocol):
    """One organisation and its data.

    Requests of a class with ``masked_only = True`` are never answered by :meth:`answer`: a party
    that accepts the class has a method ``contribute(request, masked)``, which receives the
    :class:`MaskedRound` and returns the party's part of the masked sum. ``noised = True`` declares
    that this part contains noise, so that a sum of two parties is allowed. ``one_by_one = True``
    declares that the coordinator may receive each reply of integers, even when sums are masked.

    Attributes
    ----------
    name : str
        Name in the federation.
    accepts : tuple of message classes
        Classes of the requests that it answers. Each has its reply class in ``reply``.
    """

    @property
    def name(self) -> str: ...

    @property
    def accepts(self) -> tuple[type[Any], ...]: ...

    def answer(self, request: Message) -> Message:
        """Return the reply to a request, or raise :class:`Refused`."""
        ...


@message
class Refusal:
    """A party's refusal as sent on the wire: a code and a public word, never values.

    Both are printable and short, so that a hostile party cannot inject text into a log.
    """

    code: str
    detail: str

    def __post_init__(self) -> None:
        if not (0 < len(self.code) <= MAX_CODE and self.code.isprintable()):
            raise ValueError(f"a code must have 1 to {MAX_CODE} printable characters")
        if len(self.detail) > MAX_DETAIL or not self.detail.isprintable():
            raise ValueError(f"a detail must have at most {MAX_DETAIL} printable characters")


class Refused(Exception):  # noqa: N818 - named like PartyRefused
    """Raised inside a party to refuse a request; sent to the coordinator as a :class:`Refusal`.

    Parameters
    ----------
    code : str
        Reason in a few fixed words, without values or row numbers.
    detail : str
        A column name or another public word.
    """

    def __init__(self, code: str, detail: str = "") -> None:
        super().__init__(code, detail)
        self.code = code
        self.detail = detail


def serve(party: Party, frame: bytes) -> bytes:
    """Answer a request frame with the party's reply frame.

    The reply is a :class:`Refusal` if the party refuses, if the request cannot be decoded, or if
    its class may only be answered inside a masked sum. Any other exception of the party propagates.
    """
    try:
        request = decode(frame, party.accepts)
    except WireError:
        return encode(Refusal(MALFORMED, ""))
    if getattr(type(request), "masked_only", False):
        return encode(Refusal("this reply leaves only inside a masked sum", type(request).__name__))
    try:
        return encode(party.answer(request))
    except Refused as refuse:
        return encode(make_refusal(refuse))


def serve_safely(party: Party, frame: bytes) -> bytes:
    """Answer a request frame; turn exceptions into refusals.

    Used where a party's exceptions cannot reach the user. The coordinator learns the type of the
    exception but not its text. The log of the party's own process gets the traceback, also without
    the text, which may contain values.
    """
    try:
        return serve(party, frame)
    except Exception as error:
        return encode(report_failure(error))


def make_refusal(refuse: Refused) -> Refusal:
    """Return a refusal as a message, truncated and made printable."""
    code = _make_printable(refuse.code, MAX_CODE) or "no reason given"
    return Refusal(code, _make_printable(refuse.detail, MAX_DETAIL))


def report_failure(error: Exception) -> Refusal:
    """Log an exception's traceback and return its type as a refusal."""
    kind = type(error).__name__
    places = "".join(traceback.format_tb(error.__traceback__))
    log.error(
        "a party failed with %s (its text is not logged: it may hold values)\n%s", kind, places
    )
    return Refusal("internal error", _make_printable(kind, MAX_DETAIL))


def _make_printable(text: str, limit: int) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in str(text)[:limit])
