"""Runtime in the caller's thread: parties receive messages themselves, in place of their bytes.

Requests and replies are checked and counted as if they were encoded, so that results, records and
errors equal those of :func:`~fedneighbors.federation._inprocess.run`.
"""

import time
from collections.abc import Mapping, Sequence
from typing import TypeVar

from fedneighbors.federation._loop import (
    Coordinator,
    Delivery,
    Outcome,
    Reduce,
    Replies,
    check_reply,
    read_reply,
    run_rounds,
    sum_replies,
)
from fedneighbors.federation._messages import Message, encode, measure
from fedneighbors.federation._roles import (
    MALFORMED,
    MASKED_ONLY,
    Party,
    Refusal,
    Refused,
    make_refusal,
)

R = TypeVar("R")


class DirectTransport:
    """Transport that passes messages to parties in the caller's thread.

    Parameters
    ----------
    parties : sequence of Party
        They share the arrays of a request with the coordinator and must not change or keep them;
        those of a reply must be their own.
    """

    def __init__(self, parties: Sequence[Party]) -> None:
        self._party_of = {party.name: party for party in parties}
        self.names = tuple(self._party_of)

    def deliver(self, requests: Mapping[str, Message], *, reduce: Reduce) -> Delivery:
        """Deliver the requests and return the replies or their sum."""
        sizes: dict[int, int] = {}
        each, upload, download, busy_s = dict[str, Message](), {}, {}, {}
        for name, request in requests.items():
            key = id(request)
            if key not in sizes:
                sizes[key] = measure(request)
            started = time.perf_counter()
            each[name] = reply = _answer(self._party_of[name], request)
            upload[name], download[name] = measure(reply), sizes[key]
            busy_s[name] = time.perf_counter() - started
        for name in sorted(each):
            each[name] = _read(name, requests[name], each.pop(name))
        if reduce == "sum":
            return Delivery(Replies({}, sum_replies(each), {}), upload, download, busy_s)
        return Delivery(Replies(each, None, {}), upload, download, busy_s)


def _answer(party: Party, request: Message) -> Message:
    """Return a party's reply, as :func:`~fedneighbors.federation._roles.serve` encodes it."""
    kind = type(request)
    if kind not in party.accepts:
        return Refusal(MALFORMED, "")
    if getattr(kind, "masked_only", False):
        return Refusal(MASKED_ONLY, kind.__name__)
    try:
        return party.answer(request)
    except Refused as refused:
        return make_refusal(refused)
    except Exception as error:
        error.add_note(f"raised by party {party.name!r}")
        raise


def _read(name: str, request: Message, reply: Message) -> Message:
    """Check a party's reply."""
    if type(reply) in (type(request).reply, Refusal):
        return check_reply(name, request, reply)
    return read_reply(name, request, encode(reply))  # names the unexpected class


def run_here(coordinator: Coordinator[R], parties: Sequence[Party]) -> Outcome[R]:
    """Run a coordinator and its parties in the caller's thread.

    This is faster than :func:`~fedneighbors.federation._inprocess.run`, but an interrupt may stop a
    party at any point: it is for requests that change nothing at a party.
    """
    return run_rounds(coordinator, DirectTransport(parties))
