"""Requests and replies of coordinators, and the loop that runs every coordinator.

A coordinator is a generator. It yields an :class:`Ask`, is sent the :class:`Replies`, and returns
its result, so that its code reads from top to bottom like the pseudocode of a paper. It does not
depend on the runtime: a :class:`Transport` delivers its messages.
"""

import logging
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Protocol, TypeVar

import numpy as np

from fedneighbors.errors import PartyMissing, PartyRefused, ProtocolError, WireError
from fedneighbors.federation._messages import Message, decode, encode
from fedneighbors.federation._roles import Refusal
from fedneighbors.records import Round

if TYPE_CHECKING:
    from fedneighbors.federation._masked_sums import MaskedSums  # which needs an extra


log = logging.getLogger(__name__)
R = TypeVar("R")
N = TypeVar("N", int, float)
Reduce = Literal["gather", "sum"]


@dataclass(frozen=True)
class Ask:
    """Request yielded by a coordinator.

    Parameters
    ----------
    requests : message or mapping of str to message
        One request for all parties, or one for each named party.
    reduce : {"gather", "sum"}
        ``"gather"`` returns each reply, ``"sum"`` only their sum.
    """

    requests: Message | Mapping[str, Message]
    reduce: Literal["gather", "sum"]

    def for_parties(self, names: tuple[str, ...]) -> dict[str, Message]:
        """Return the request for each party that is asked.

        Raises
        ------
        ProtocolError
            If no party is asked, or if a party is asked that does not take part.
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
    """Return a request for every party's reply."""
    return Ask(requests, "gather")


def total(requests: Message | Mapping[str, Message]) -> Ask:
    """Return a request for the sum of the replies.

    The fields of the replies must be integers or integer arrays.
    """
    return Ask(requests, "sum")


@dataclass(frozen=True)
class Replies:
    """Replies sent to a coordinator.

    Parameters
    ----------
    each : mapping of str to message
        Reply of each party that answered, in the order of the names; empty for ``"sum"``.
    total : message or None
        Sum of the replies for ``"sum"``, else None; None also if no party answered.
    missing : mapping of str to str
        Reason for each party that did not answer.
    """

    each: Mapping[str, Message]
    total: Message | None
    missing: Mapping[str, str]

    def complete(self, during: str) -> "Replies":
        """Return self if every party answered, else raise :class:`PartyMissing`.

        ``during`` names the exchange in the error, such as ``"the counts"``.
        """
        if self.missing:
            raise PartyMissing(self.missing, during)
        return self

    def summed(self, during: str) -> Message:
        """Return the sum of all parties' replies; ``during`` as for :meth:`complete`.

        Raises
        ------
        PartyMissing, ProtocolError
            If a party did not answer, or the replies were not requested as a sum.
        """
        if self.complete(during).total is None:
            raise ProtocolError(f"{during} were not requested as a sum")
        return self.total


Coordinator = Generator[Ask, Replies, R]


@dataclass(frozen=True)
class Delivery:
    """Replies of one exchange and their cost.

    Parameters
    ----------
    replies : Replies
        Passed on to the coordinator.
    upload_bytes, download_bytes : mapping of str to int
        Frame sizes in bytes, from and to each party.
    busy_s : mapping of str to float
        Seconds of work of each party; empty if unknown.
    """

    replies: Replies
    upload_bytes: Mapping[str, int]
    download_bytes: Mapping[str, int]
    busy_s: Mapping[str, float] = field(default_factory=dict)


class Transport(Protocol):
    """Connection of a coordinator to its parties; the only part that depends on the runtime.

    Attributes
    ----------
    names : tuple of str
        The parties.
    """

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the parties."""
        ...

    def deliver(self, requests: Mapping[str, Message], *, reduce: Reduce) -> Delivery:
        """Deliver the requests and return the replies or their sum."""
        ...


@dataclass(frozen=True)
class Outcome(Generic[R]):
    """Result of a federated run.

    Parameters
    ----------
    result : object
        Return value of the coordinator.
    rounds : tuple of Round
        Records of its exchanges, with bytes and seconds.
    """

    result: R
    rounds: tuple[Round, ...]


def run_rounds(
    coordinator: Coordinator[R],
    transport: Transport,
    *,
    on_round: Callable[[Round], None] | None = None,
    sums: "MaskedSums | None" = None,
    watch: AbstractContextManager[Any] | None = None,
    log_level: int = logging.INFO,
) -> Outcome[R]:
    """Run a coordinator; return its result and the record of each round.

    Parameters
    ----------
    coordinator : generator
        Yields :class:`Ask` objects and is sent :class:`Replies`; closed on return and on any error.
    transport : Transport
        Delivers requests to the parties.
    on_round : callable, optional
        Called with each round's record.
    sums : MaskedSums, optional
        Secure aggregation. If None, the coordinator receives the replies and adds them up.
    watch : context manager, optional
        Entered for each step of the coordinator, for instance to time its work.
    log_level : int
        Level at which rounds are logged.

    Raises
    ------
    AggregationError
        If a masked sum cannot be formed.
    PartyRefused, WireError, ProtocolError
        As for :func:`read_reply`; also ProtocolError if the coordinator asks no party or an unknown
        one, replies cannot be added up, or the runtime reports wrong parties.
    """
    exchanges = _RecordedExchanges(transport, on_round, log_level)
    steps, replies = Steps(coordinator), None
    watch = nullcontext() if watch is None else watch
    try:
        while True:
            with watch:
                ask = steps.advance(replies)
            if ask is None:
                return Outcome(steps.result, tuple(exchanges.rounds))
            replies = exchanges.perform(ask, sums)
    finally:
        coordinator.close()


class Steps(Generic[R]):
    """Steps of a coordinator, and then its ``result``. The first step has no replies."""

    result: R

    def __init__(self, coordinator: Coordinator[R]) -> None:
        self._coordinator: Generator[Ask, Any, R] = coordinator

    def advance(self, replies: Replies | None) -> Ask | None:
        """Return the next ask, or None at the end."""
        try:
            return self._coordinator.send(replies)
        except StopIteration as stop:
            self.result = stop.value
            return None


class _RecordedExchanges:
    """Performs the exchanges of a run and records each as a round."""

    def __init__(
        self, transport: Transport, on_round: Callable[[Round], None] | None, log_level: int
    ) -> None:
        self.rounds: list[Round] = []
        self._transport = transport
        self._on_round = on_round
        self._log_level = log_level

    def perform(self, ask: Ask, sums: "MaskedSums | None") -> Replies:
        """Perform the exchanges that an ask needs; return its replies."""
        requests = ask.for_parties(self._transport.names)
        if ask.reduce == "sum" and sums is not None:
            during = f"{request_name(requests)}: "
            return sums.total(requests, partial(self._deliver, label="masked", during=during))
        return self._deliver(requests, reduce=ask.reduce)

    def _deliver(
        self,
        requests: Mapping[str, Message],
        *,
        reduce: Reduce = "gather",
        label: str = "",
        during: str = "",
    ) -> Replies:
        started = time.perf_counter()
        delivery = self._transport.deliver(requests, reduce=reduce)
        seconds, name = time.perf_counter() - started, during + request_name(requests)
        record = make_round(len(self.rounds), name, label or reduce, delivery, seconds)
        self.rounds.append(record)
        _log_round(record, self._log_level)
        if self._on_round is not None:
            self._on_round(record)
        return delivery.replies


def make_round(index: int, request: str, reduce: str, delivery: Delivery, seconds: float) -> Round:
    """Return the record of an exchange."""
    return Round(
        index=index,
        request=request,
        reduce=reduce,
        upload_bytes=_sort_by_name(delivery.upload_bytes),
        download_bytes=_sort_by_name(delivery.download_bytes),
        seconds=seconds,
        missing=dict(delivery.replies.missing),
        busy_s=_sort_by_name(delivery.busy_s),
    )


def request_name(requests: Mapping[str, Message]) -> str:
    """Return the name of the requests' class."""
    return type(next(iter(requests.values()))).__name__


def _sort_by_name(values: Mapping[str, N]) -> dict[str, N]:
    return dict(values) if len(values) < 2 else {name: values[name] for name in sorted(values)}


class ExchangeResult(NamedTuple):
    """Frames returned by one exchange.

    Parameters
    ----------
    answers : mapping of str to bytes
        Frame of each party that answered.
    missing : mapping of str to str
        Reason for each party that did not answer.
    busy_s : mapping of str to float
        Seconds of work of each party, without transport; empty if not measured.
    """

    answers: Mapping[str, bytes]
    missing: Mapping[str, str]
    busy_s: Mapping[str, float] = {}


Exchange = Callable[
    [Mapping[str, bytes]], ExchangeResult | tuple[Mapping[str, bytes], Mapping[str, str]]
]
"""Deliver one frame to each party; return an :class:`ExchangeResult`, or its first two fields."""


class FrameTransport:
    """Transport of canonical bytes: encode, exchange, decode and check.

    Parameters
    ----------
    exchange : callable
        Delivers the frames and returns those of the replies.
    names : tuple of str
        The parties.
    """

    def __init__(self, exchange: Exchange, names: tuple[str, ...]) -> None:
        self.names = names
        self._exchange = exchange

    def deliver(self, requests: Mapping[str, Message], *, reduce: Reduce) -> Delivery:
        """Deliver the requests and return the replies or their sum."""
        frames = encode_once(requests)
        return read_delivery(
            requests, frames, ExchangeResult(*self._exchange(frames)), reduce=reduce
        )


def read_delivery(
    requests: Mapping[str, Message],
    frames: Mapping[str, bytes],
    result: "ExchangeResult",
    *,
    reduce: Reduce,
) -> Delivery:
    """Decode and check the replies of an exchange.

    Parameters
    ----------
    requests, frames : mapping
        Request of each party, and its frame.
    result, reduce : ExchangeResult, {"gather", "sum"}
        Frames of the replies, and kind of the :class:`Ask`.

    Raises
    ------
    PartyRefused, WireError, ProtocolError
        As for :func:`read_reply`; also if a party is neither answering nor missing.
    """
    answers, missing, busy_s = result
    del result
    if sorted([*answers, *missing]) != sorted(requests):
        raise ProtocolError("the runtime must report each party as either answering or missing")
    upload = {name: len(frame) for name, frame in answers.items()}
    each, unread = {}, dict(answers)
    del answers
    for name in sorted(unread):  # memory of a read frame is used by the next reply
        each[name] = read_reply(name, requests[name], unread.pop(name))
    if reduce == "sum":
        replies = Replies({}, sum_replies(each) if each else None, dict(missing))
    else:
        replies = Replies(each, None, dict(missing))
    download = {name: len(frame) for name, frame in frames.items()}
    return Delivery(replies, upload, download, busy_s)


def encode_once(requests: Mapping[str, Message]) -> dict[str, bytes]:
    """Return each request's frame; encode the request of several parties once."""
    frames: dict[int, bytes] = {}
    for request in requests.values():
        if id(request) not in frames:
            frames[id(request)] = encode(request)
    return {name: frames[id(request)] for name, request in requests.items()}


def read_reply(party: str, request: Message, frame: bytes) -> Message:
    """Decode and check the reply in a party's frame.

    Raises
    ------
    PartyRefused
        If the reply is a refusal.
    WireError
        If the reply is not of the request's reply class; the error names the party.
    ProtocolError
        If the request's ``check(party, reply)`` raises ``ValueError``; the error names the party.
    """
    try:
        reply = decode(frame, (type(request).reply, Refusal))
    except WireError as error:
        raise WireError(f"party {party!r}: {error}") from error
    return check_reply(party, request, reply)


def check_reply(party: str, request: Message, reply: Message) -> Message:
    """Return a party's reply of the request's reply class; raise as :func:`read_reply`."""
    if isinstance(reply, Refusal):
        raise PartyRefused(party, reply.code, reply.detail)
    if hasattr(request, "check"):
        try:
            request.check(party, reply)
        except ValueError as error:
            raise ProtocolError(f"party {party!r}: {error}") from None
    return reply


def _log_round(record: Round, level: int) -> None:
    text = "round %d, %s: %d replies, %d missing, %d bytes up, %d bytes down, %.2f s"
    counts = len(record.upload_bytes), len(record.missing)
    n_bytes = sum(record.upload_bytes.values()), sum(record.download_bytes.values())
    log.log(level, text, record.index, record.request, *counts, *n_bytes, record.seconds)


def sum_replies(replies: Mapping[str, Message]) -> Message:
    """Add up replies whose fields are integers or integer arrays.

    Raises
    ------
    ProtocolError
        If there is no reply, replies differ in type, fields differ in shape or dtype or are not of
        integers, extreme sums exceed the dtype, or the message class rejects the sum.
    """
    if not replies:
        raise ProtocolError("there is no reply to add up")
    classes = {type(reply).__name__: type(reply) for reply in replies.values()}
    if len(classes) > 1:
        raise ProtocolError(f"replies of different types cannot be added up: {sorted(classes)}")
    ((class_name, cls),) = classes.items()
    fields = {}
    for name in cls.__dataclass_fields__:
        parts = {party: getattr(reply, name) for party, reply in replies.items()}
        fields[name] = _sum_field(parts, where=f"{class_name}.{name}")
    return build_reply(cls, fields)


def build_reply(cls: type[Any], fields: Mapping[str, Any]) -> Message:
    """Build the reply from summed fields.

    Raises
    ------
    ProtocolError
        If the reply's class rejects the fields.
    """
    try:
        return cls(**fields)
    except (TypeError, ValueError) as error:
        name = cls.__name__
        raise ProtocolError(f"the sum of {name} is not a valid {name}: {error}") from None


def _sum_field(parts: Mapping[str, Any], *, where: str) -> Any:
    first = next(iter(parts.values()))
    for party, part in parts.items():
        if not is_integral(part):
            raise ProtocolError(f"{where} of party {party!r} is not an integer or integer array")
        if _describe(part) != _describe(first):
            raise ProtocolError(
                f"{where} of party {party!r} is {_describe(part)}, others sent {_describe(first)}"
            )
    limits = np.iinfo(first.dtype if isinstance(first, np.ndarray) else np.int64)
    low = sum(int(np.min(part, initial=0)) for part in parts.values())
    high = sum(int(np.max(part, initial=0)) for part in parts.values())
    if low < limits.min or high > limits.max:
        raise ProtocolError(f"the sum of {where} could overflow {limits.dtype}")
    result = first.copy() if isinstance(first, np.ndarray) else first  # `+=` changes arrays
    for part in list(parts.values())[1:]:
        result += part
    return result


def is_integral(value: Any) -> bool:
    """Return whether a value is an integer or an integer array."""
    if isinstance(value, np.ndarray):
        return np.issubdtype(value.dtype, np.integer)
    return isinstance(value, int) and not isinstance(value, bool)


def _describe(part: Any) -> str:
    return f"{part.dtype}{part.shape}" if isinstance(part, np.ndarray) else "int"
