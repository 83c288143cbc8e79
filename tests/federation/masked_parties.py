"""Parties with masked sums, and exchanges that drop, alter or record their messages."""

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest

from fedneighbors.errors import AggregationError
from fedneighbors.federation._loop import FrameTransport, run_rounds, total
from fedneighbors.federation._masked_party import MaskedParty
from fedneighbors.federation._masked_sums import MaskedSums
from fedneighbors.federation._masking import (
    Advert,
    Confirm,
    Confirmation,
    DealShares,
    MaskedInput,
    MaskInput,
    OpenSum,
    Revealed,
    SealedShares,
    Unmask,
)
from fedneighbors.federation._messages import decode, encode, message
from fedneighbors.federation._roles import Refusal, serve
from fedneighbors.federation._stores import MemoryStore
from fedneighbors.secure_sum._keys import Identity, Roster

REQUESTS = (OpenSum, DealShares, MaskInput, Confirm, Unmask)
REPLIES = (Advert, SealedShares, MaskedInput, Confirmation, Revealed, Refusal)


@message
class Values:
    n: int
    items: np.ndarray[Any, np.dtype[np.integer[Any]]]


@message
class ValuesRequest:
    reply: ClassVar[type] = Values
    page: int = 0


@message
class SingleUseRequest:
    """Request that is answered once in masked sums."""

    reply: ClassVar[type] = Values
    single_use: ClassVar[str] = "masked"
    page: int = 0


@message
class Noised:
    items: np.ndarray[Any, np.dtype[np.integer[Any]]]


@message
class NoisedRequest:
    reply: ClassVar[type] = Noised
    masked_only: ClassVar[bool] = True
    noised: ClassVar[bool] = True


@message
class OneByOneRequest:
    """Request whose integer replies may be sent to the coordinator one by one."""

    reply: ClassVar[type] = Values
    one_by_one: ClassVar[bool] = True


class ValueParty:
    """Party that answers with its values and records the masked sums it contributed to."""

    accepts = (ValuesRequest, NoisedRequest, OneByOneRequest, SingleUseRequest)

    def __init__(self, name, items):
        self.name = name
        self.items = np.asarray(items)
        self.rounds = []

    @property
    def table_digest(self):
        return self.items.tobytes()

    def answer(self, request):
        return Values(len(self.items), self.items)

    def contribute(self, request, masked):
        self.rounds.append(masked)
        return Noised(self.items)


def make_parties(n, dtype="u4", length=5):
    return [ValueParty(f"p{k}", np.arange(length, dtype=dtype) * (k + 1)) for k in range(n)]


def enroll(parties, stores=None):
    """Wrap parties for masked sums; return them and the roster."""
    keys = {party.name: Identity.new() for party in parties}
    roster = Roster({name: key.public for name, key in keys.items()})
    masked = [
        MaskedParty(
            party,
            identity=keys[party.name],
            roster=roster,
            store=(stores or {}).get(party.name) or MemoryStore(),
        )
        for party in parties
    ]
    return masked, roster


class Wire:
    """Exchange that drops parties at given steps and lets a test alter messages.

    It records all requests and replies.

    Parameters
    ----------
    parties : sequence of Party
        The answering parties.
    silent : mapping of request class to names
        Parties that do not answer a request of the class.
    on_request, on_reply : callable, optional
        Called with the party's name and the request or reply; returns the replacement.
    """

    def __init__(self, parties, silent=None, on_request=None, on_reply=None):
        self.parties = {party.name: party for party in parties}
        self.silent = silent or {}
        self.on_request = on_request or (lambda name, request: request)
        self.on_reply = on_reply or (lambda name, reply: reply)
        self.requests, self.replies = [], []

    def __call__(self, frames):
        answers = {}
        for name, frame in frames.items():
            request = self.on_request(name, decode(frame, (*REQUESTS, *ValueParty.accepts)))
            self.requests.append((name, request))
            if name in self.silent.get(type(request), ()):
                continue
            answer = serve(self.parties[name], encode(request))
            reply = self.on_reply(name, decode(answer, (*REPLIES, Values, Noised)))
            self.replies.append((name, reply))
            answers[name] = encode(reply)
        return answers, {name: "no answer" for name in frames if name not in answers}

    def get_messages(self, kind, name=None):
        """Return the messages of a class, of one party or of all."""
        messages = self.requests + self.replies
        return [item for party, item in messages if type(item) is kind and name in (None, party)]


def request_sum(request=None):
    return (yield total(request or ValuesRequest()))


def run_masked_sum(wire, roster, *, threshold=None, request=None, names=None):
    """Run one masked sum; return the coordinator's replies and the rounds."""
    sums = MaskedSums(roster, threshold=threshold)
    outcome = run_rounds(
        request_sum(request), FrameTransport(wire, tuple(names or wire.parties)), sums=sums
    )
    return outcome.result, outcome.rounds


def lose_parties(members, step, lost, *, n_sum=0):
    """Return an exchange that loses parties from a request of the n-th masked sum on."""
    lost_names, opened = set(), []

    def exchange(frames):
        def is_sent(kind):
            return any(kind.__name__.encode() in frame[:40] for frame in frames.values())

        opened.extend([1] * is_sent(OpenSum))
        if is_sent(step) and len(opened) >= n_sum:
            lost_names.update(lost)
        answers = {
            name: serve(members[name], frame)
            for name, frame in frames.items()
            if name not in lost_names
        }
        return answers, {name: "gone" for name in frames if name not in answers}

    return exchange


class AbortError(Exception):
    """Raised by a test to abort a sum."""


def alter_reply(kind, change, name="p1"):
    """Return a hook that alters one party's replies of a class."""
    return lambda party, reply: change(reply) if (type(reply), party) == (kind, name) else reply


def alter_request(kind, change, name="p1"):
    """Return a hook that alters the requests of a class to one party."""

    def alter(party, request):
        return change(request) if (type(request), party) == (kind, name) else request

    return alter


def flip_bit(content):
    """Flip one bit of the first byte."""
    return bytes([content[0] ^ 1]) + content[1:]


def change_round(item):
    """Return a copy of a message with the id of another round."""
    return replace(item, round_id="f" * 32)


def assert_fails(*, on_reply=None, on_request=None, silent=None, n=8, party="p1", match=""):
    """Assert that a sum fails and names the party; return the wire."""
    masked, roster = enroll(make_parties(n))
    wire = Wire(masked, silent, on_request=on_request, on_reply=on_reply)
    with pytest.raises(AggregationError, match=match) as caught:
        run_masked_sum(wire, roster)
    assert caught.value.party == party
    return wire
