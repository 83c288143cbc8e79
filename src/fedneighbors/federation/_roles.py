"""Parties: what an organisation answers, and what of its refusals and failures travels."""

import logging
import traceback
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from fedneighbors.errors import WireError
from fedneighbors.federation._messages import Message, decode, encode, message

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
    """Serve a request like :func:`serve`, without passing on exceptions.

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
