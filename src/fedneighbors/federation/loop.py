"""The loop around a coordinator that every runtime shares: encode, exchange, count, decode."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from fedneighbors.errors import PartyRefused
from fedneighbors.federation.messages import Message, decode, encode
from fedneighbors.federation.roles import Ask, Coordinator, Refusal, Replies, add_up
from fedneighbors.records import Round

__all__ = ["Exchange", "Outcome", "run_rounds"]

R = TypeVar("R")

Exchange = Callable[[Mapping[str, bytes]], tuple[Mapping[str, bytes], Mapping[str, str]]]
"""Carry one frame to each party; return their frames and the parties that are missing."""


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
) -> Outcome[R]:
    """Drive a coordinator to its end and return its result with a record of each round.

    Parameters
    ----------
    coordinator : generator
        Yields asks, is sent replies.
    exchange : callable
        How frames travel; all that differs between runtimes.
    parties : tuple of str
        Names of the parties that take part.
    on_round : callable, optional
        Called with each round's record.

    Raises
    ------
    PartyRefused
        If a party answers with an error code.
    WireError
        If a party answers with a frame that is not the declared reply.
    """
    rounds: list[Round] = []
    try:
        ask = next(coordinator)
        while True:
            replies, record = _one_round(ask, exchange, parties, index=len(rounds))
            rounds.append(record)
            if on_round is not None:
                on_round(record)
            ask = coordinator.send(replies)
    except StopIteration as stop:
        return Outcome(stop.value, tuple(rounds))
    finally:
        coordinator.close()


def _one_round(
    ask: Ask, exchange: Exchange, parties: tuple[str, ...], *, index: int
) -> tuple[Replies, Round]:
    requests = ask.for_parties(parties)
    started = time.perf_counter()
    frames = _encode_once(requests)
    answers, missing = exchange(frames)
    each = {name: _reply(name, requests[name], answers[name]) for name in sorted(answers)}
    summed = add_up(each) if ask.reduce == "sum" and each else None
    record = Round(
        index=index,
        request=type(next(iter(requests.values()))).__name__,
        reduce=ask.reduce,
        upload_bytes={name: len(answers[name]) for name in sorted(answers)},
        download_bytes={name: len(frames[name]) for name in sorted(frames)},
        seconds=time.perf_counter() - started,
        missing=dict(missing),
    )
    return Replies({} if ask.reduce == "sum" else each, summed, dict(missing)), record


def _encode_once(requests: Mapping[str, Message]) -> dict[str, bytes]:
    frames: dict[int, bytes] = {}
    for request in requests.values():
        if id(request) not in frames:
            frames[id(request)] = encode(request)
    return {name: frames[id(request)] for name, request in requests.items()}


def _reply(party: str, request: Message, frame: bytes) -> Message:
    reply = decode(frame, (type(request).reply, Refusal))
    if isinstance(reply, Refusal):
        raise PartyRefused(party, reply.code, reply.detail)
    return reply
