"""The loop around a coordinator that every runtime shares: encode, exchange, count, decode."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from fedneighbors.errors import PartyRefused, ProtocolError, WireError
from fedneighbors.federation._messages import Message, decode, encode
from fedneighbors.federation._roles import Ask, Coordinator, Refusal, Replies
from fedneighbors.federation._sums import add_up
from fedneighbors.records import Round

if TYPE_CHECKING:
    from fedneighbors.federation._masked_sums import MaskedSums  # which needs an extra


log = logging.getLogger(__name__)
R = TypeVar("R")


@dataclass(frozen=True)
class Carried:
    """What came of one exchange.

    Parameters
    ----------
    answers : mapping of str to bytes
        Frame of each party that answered.
    missing : mapping of str to str
        Parties that did not, and why.
    busy_s : mapping of str to float
        Wall seconds that a party was at work on its answer, without the way there and back; empty
        where the runtime cannot tell.
    """

    answers: Mapping[str, bytes]
    missing: Mapping[str, str]
    busy_s: Mapping[str, float] = field(default_factory=dict)


Exchange = Callable[[Mapping[str, bytes]], Carried | tuple[Mapping[str, bytes], Mapping[str, str]]]
"""Carry one frame to each party; return answers and missing alone, or all that is known."""


@dataclass(frozen=True)
class Outcome(Generic[R]):
    """What a federated run returns.

    Parameters
    ----------
    result : object
        What the coordinator returned.
    rounds : tuple of Round
        Its exchanges, with bytes and seconds.
    """

    result: R
    rounds: tuple[Round, ...]


def run_rounds(
    coordinator: Coordinator[R],
    exchange: Exchange,
    parties: tuple[str, ...],
    *,
    on_round: Callable[[Round], None] | None = None,
    sums: "MaskedSums | None" = None,
) -> Outcome[R]:
    """Drive a coordinator to its end and return its result with a record of each round.

    Parameters
    ----------
    coordinator : generator
        Yields asks, is sent replies; closed on return and on any error.
    exchange : callable
        How frames travel; all that differs between runtimes.
    parties : tuple of str
        Names of the parties that take part.
    on_round : callable, optional
        Called with each round's record.
    sums : MaskedSums, optional
        How sums are masked. Without it they are formed of replies that reach the coordinator.

    Raises
    ------
    AggregationError
        If a masked sum cannot be formed.
    PartyRefused
        If a party answers with an error code.
    WireError
        If a party answers with a frame that is not the declared reply; the message names it.
    ProtocolError
        If the coordinator asks nobody, or replies cannot be added up.
    """
    exchanges = _Exchanges(exchange, on_round)
    replies: Replies | None = None
    try:
        while True:
            try:
                ask = next(coordinator) if replies is None else coordinator.send(replies)
            except StopIteration as stop:
                return Outcome(stop.value, tuple(exchanges.rounds))
            replies = _replies(ask, parties, exchanges, sums)
    finally:
        coordinator.close()


class _Exchanges:
    """Carries requests for a run and records each exchange as a round."""

    def __init__(self, exchange: Exchange, on_round: Callable[[Round], None] | None) -> None:
        self.rounds: list[Round] = []
        self._exchange = exchange
        self._on_round = on_round

    def carry(
        self, requests: Mapping[str, Message], *, reduce: str, during: str = ""
    ) -> tuple[dict[str, Message], dict[str, str]]:
        """Return the replies in the order of the names, and the parties that are missing."""
        started = time.perf_counter()
        frames = _encode_once(requests)
        came = self._exchange(frames)
        carried = came if isinstance(came, Carried) else Carried(*came)
        answers, missing = carried.answers, carried.missing
        if sorted([*answers, *missing]) != sorted(requests):
            raise ProtocolError("the runtime lost a party: each is to answer or to be missing")
        each = {name: read_reply(name, requests[name], answers[name]) for name in sorted(answers)}
        record = Round(
            index=len(self.rounds),
            request=during + type(next(iter(requests.values()))).__name__,
            reduce=reduce,
            upload_bytes={name: len(answers[name]) for name in sorted(answers)},
            download_bytes={name: len(frames[name]) for name in sorted(frames)},
            seconds=time.perf_counter() - started,
            missing=dict(missing),
            busy_s={name: carried.busy_s[name] for name in sorted(carried.busy_s)},
        )
        self.rounds.append(record)
        _report(record)
        if self._on_round is not None:
            self._on_round(record)
        return each, dict(missing)


def _replies(
    ask: Ask, parties: tuple[str, ...], exchanges: _Exchanges, sums: "MaskedSums | None"
) -> Replies:
    requests = ask.for_parties(parties)
    if ask.reduce == "sum" and sums is not None:
        during = f"{type(next(iter(requests.values()))).__name__}: "
        return sums.total(requests, partial(exchanges.carry, reduce="masked", during=during))
    each, missing = exchanges.carry(requests, reduce=ask.reduce)
    if ask.reduce == "sum":
        return Replies({}, add_up(each) if each else None, missing)
    return Replies(each, None, missing)


def _encode_once(requests: Mapping[str, Message]) -> dict[str, bytes]:
    frames: dict[int, bytes] = {}
    for request in requests.values():
        if id(request) not in frames:
            frames[id(request)] = encode(request)
    return {name: frames[id(request)] for name, request in requests.items()}


def read_reply(party: str, request: Message, frame: bytes) -> Message:
    """Return the reply that a party's frame holds.

    Raises
    ------
    PartyRefused
        If it is a refusal.
    WireError
        If it is not the reply that the request's class names; the message names the party.
    ProtocolError
        If the request has a method ``check(party, reply)`` that refuses the reply with
        ``ValueError``; the message names the party.
    """
    try:
        reply = decode(frame, (type(request).reply, Refusal))
    except WireError as error:
        raise WireError(f"party {party!r}: {error}") from error
    if isinstance(reply, Refusal):
        raise PartyRefused(party, reply.code, reply.detail)
    if hasattr(request, "check"):
        try:
            request.check(party, reply)
        except ValueError as error:
            raise ProtocolError(f"party {party!r}: {error}") from None
    return reply


def _report(record: Round) -> None:
    log.info(
        "round %d, %s: %d replies, %d missing, %d bytes up, %d bytes down, %.2f s",
        record.index,
        record.request,
        len(record.upload_bytes),
        len(record.missing),
        sum(record.upload_bytes.values()),
        sum(record.download_bytes.values()),
        record.seconds,
    )
