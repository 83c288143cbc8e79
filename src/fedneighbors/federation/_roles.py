"""The party interface, and the refusals and failures that a party sends."""

import logging
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from fedneighbors.errors import WireError
from fedneighbors.federation._messages import Message, decode, encode, message

log = logging.getLogger(__name__)
R = TypeVar("R")

MAX_CODE_LENGTH = 100  # characters; the longest code of this package has 99
MAX_DETAIL_LENGTH = 400  # characters: four names of MAX_NAME_LENGTH, in one line of a log

MALFORMED = "malformed request"
"""Code for a request that a party cannot decode or does not accept."""

FAILED = "internal error"
"""Code for every failure of a party's program."""

MASKED_ONLY = "this reply is sent only as part of a masked sum"
"""Code for a request outside a masked sum whose reply the coordinator must not see."""

MASKED_SUM_PREFIX = "masked sum: "
"""Prefix of the codes of refusals by the protocol of masked sums."""


@dataclass(frozen=True)
class MaskedRound:
    """Masked sum to which a party's reply is added.

    Parameters
    ----------
    id : str
        Hexadecimal digest of the opening, all keys and the parties; new for every masked sum.
    n_parties : int
        Number of parties whose replies may be in the sum.
    n_invited : int
        Number of parties invited to the sum, including those that have dropped out.
    threshold : int
        Minimum number of parties in the sum; a sum of fewer is never unmasked.
    """

    id: str
    n_parties: int
    n_invited: int
    threshold: int


class Party(Protocol):
    """One organisation and its data.

    Requests of a class with ``masked_only = True`` are never answered by :meth:`answer`: a party
    that accepts the class has a method ``contribute(request, masked)``, which receives the
    :class:`MaskedRound` and returns the party's part of the masked sum. ``noised = True`` declares
    that this part contains noise, so that a sum of two parties is allowed. ``one_by_one = True``
    declares that the coordinator may receive each party's reply although its fields are integers,
    which a party with masked sums otherwise sends only masked.

    A private party has an attribute ``reply_grid_s``: in a process of its own, its replies wait for
    a grid of times with this step in seconds. A party that can stop its work early has an attribute
    ``end``, the monotonic time of the deadline, which the runtime sets.

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
    """A party's refusal as sent on the wire: a code and a detail, never values of rows.

    Both are printable and short, so that a hostile party cannot forge lines of a log.
    """

    code: str
    detail: str

    def __post_init__(self) -> None:
        if not (0 < len(self.code) <= MAX_CODE_LENGTH and self.code.isprintable()):
            raise ValueError(f"a code must have 1 to {MAX_CODE_LENGTH} printable characters")
        if len(self.detail) > MAX_DETAIL_LENGTH or not self.detail.isprintable():
            raise ValueError(f"a detail must have at most {MAX_DETAIL_LENGTH} printable characters")


class Refused(Exception):  # noqa: N818 - named like PartyRefused
    """Raised inside a party to refuse a request; sent to the coordinator as a :class:`Refusal`.

    Parameters
    ----------
    code : str
        Fixed phrase that gives the reason, without values or row numbers.
    detail : str
        Name of a column, or another public text.
    """

    def __init__(self, code: str, detail: str = "") -> None:
        super().__init__(code, detail)
        self.code = code
        self.detail = detail


class SharedRequests:
    """Requests of one exchange, decoded once for all parties that accept the same classes."""

    def __init__(self) -> None:
        self._decoded: dict[tuple[int, tuple[type[Any], ...]], Message] = {}

    def decode(self, frame: bytes, expected: tuple[type[Any], ...]) -> Message:
        """Return the message in a frame, which must not be deleted."""
        key = id(frame), expected
        if key not in self._decoded:
            self._decoded[key] = decode(frame, expected)
        return self._decoded[key]


def serve(
    party: Party,
    frame: bytes,
    *,
    decode: Callable[[bytes, tuple[type[Any], ...]], Message] = decode,
) -> bytes:
    """Answer a request frame with the party's reply frame.

    The reply is a :class:`Refusal` if the party refuses, if the request cannot be decoded, or if
    its class may only be answered inside a masked sum. Any other exception of the party propagates.
    ``decode`` may return the same request to several parties.
    """
    try:
        request = decode(frame, party.accepts)
    except WireError:
        return encode(Refusal(MALFORMED, ""))
    if getattr(type(request), "masked_only", False):
        return encode(Refusal(MASKED_ONLY, type(request).__name__))
    try:
        return encode(party.answer(request))
    except Refused as refused:
        return encode(make_refusal(refused))


def set_end(party: Party, end: float) -> None:
    """Set the end of a party's work, if it has one."""
    if hasattr(party, "end"):
        party.end = end


def serve_timed(party: Party, frame: bytes, requests: SharedRequests) -> tuple[bytes, float]:
    """Return a party's reply frame and the seconds that it worked."""
    started = time.perf_counter()
    try:
        answer = serve(party, frame, decode=requests.decode)
    except Exception as error:
        error.add_note(f"raised by party {party.name!r}")
        raise
    return answer, time.perf_counter() - started


def serve_safely(party: Party, frame: bytes) -> bytes:
    """Answer a request frame; turn exceptions into refusals.

    Used for a party in a process of its own. The coordinator learns only that the party failed: the
    type of the exception may depend on a row, and its text may contain values. The log of the
    party's process gets the type and the traceback, without the text.
    """
    try:
        return serve(party, frame)
    except Exception as error:
        return encode(report_failure(error))


def make_refusal(refused: Refused) -> Refusal:
    """Return a refusal as a message, truncated and made printable."""
    code = _make_printable(refused.code, MAX_CODE_LENGTH) or "no reason given"
    return Refusal(code, _make_printable(refused.detail, MAX_DETAIL_LENGTH))


def report_failure(error: Exception) -> Refusal:
    """Log an exception's traceback; return the same refusal for all exceptions."""
    stack = "".join(traceback.format_tb(error.__traceback__))
    log.error(
        "a party failed with %s (its text is not logged: it may contain values)\n%s",
        type(error).__name__,
        stack,
    )
    return Refusal(FAILED, "")


def _make_printable(text: str, max_length: int) -> str:
    return "".join(char if char.isprintable() else "?" for char in str(text)[:max_length])
