"""Rules by which a party limits the requests of a coordinator that it does not trust.

Answers to two different requests about the same rows, or to one request about two versions of the
table, disclose the rows in which they differ, even if every number describes many rows. A party
therefore answers a *single-use* request class once: the same request gets the same reply, another
one is refused, also after a restart. The class declares ``single_use = "always"``, or
``single_use = "masked"`` if its reply is protected only in masked sums.

A request that follows from earlier replies *quotes* them: the parties sign these replies, and each
party checks the signatures and recomputes the request.
"""

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fedneighbors.federation._messages import Message, encode
from fedneighbors.federation._roles import MaskedRound, Refused
from fedneighbors.federation._stores import POLICY, MaskStore

if TYPE_CHECKING:
    from fedneighbors.secure_sum._keys import Identity, Roster  # which needs an extra


def remember(store: MaskStore, topic: str, content: bytes, *, refusal: str) -> None:
    """Store content for a topic; refuse other content later."""
    if store.keep(POLICY, topic, content) != content:
        raise Refused(refusal)


class SingleUseParty:
    """Wrapper that answers each single-use request class for one request and one table.

    The minimum number of rows behind a reply, ``min_count``, is the same in all requests, because
    the difference of replies with two minimums describes fewer rows.

    Parameters
    ----------
    party : Party
        The wrapped party; its attribute ``table_digest`` is a digest of its table.
    store : MaskStore
        Memory of the answered requests. Erase it only to accept that the coordinator can compare
        new answers with the earlier ones.
    """

    def __init__(self, party: Any, *, store: MaskStore) -> None:
        self.name = party.name
        self.accepts = party.accepts
        self._party = party
        self._store = store

    @property
    def table_digest(self) -> bytes:
        """Return the digest of the wrapped party's table."""
        digest: bytes = self._party.table_digest
        return digest

    def answer(self, request: Message) -> Message:
        """Return the reply to a request, or raise :class:`~fedneighbors.federation.Refused`."""
        if getattr(type(request), "single_use", None) == "always":
            self._remember(request)
        reply: Message = self._party.answer(request)
        return reply

    def contribute(self, request: Message, masked: MaskedRound) -> Message:
        """Return this party's part of a masked sum."""
        reply: Message = self._party.contribute(request, masked)
        return reply

    def _remember(self, request: Any) -> None:
        remember(
            self._store,
            "table",
            self.table_digest,
            refusal="the table differs from the one about which this party has answered before",
        )
        if hasattr(request, "min_count"):
            remember(
                self._store,
                "min-count",
                str(request.min_count).encode(),
                refusal="requests with another min_count were answered before",
            )
        remember(
            self._store,
            type(request).__name__,
            hashlib.sha256(encode(request)).digest(),
            refusal="another request of this kind was answered before",
        )


def sign_reply(reply: Any, *, name: str, identity: "Identity") -> Message:
    """Return a reply with the party's signature, if its class has one."""
    if not hasattr(reply, "signature"):
        return reply
    return replace(reply, signature=identity.sign(_reply_digest(name, reply)))


def check_quoted(request: Any, *, name: str, roster: "Roster") -> None:
    """Refuse a request that does not follow from signed replies.

    Parameters
    ----------
    request : message
        A request that depends on earlier replies has them in the attribute ``quoted``, by party,
        and a method ``check_quoted()``, which raises ValueError if it does not follow from them.
    name : str
        Enrolled name of the party that checks the request.
    roster : Roster
        The enrolled parties.

    Raises
    ------
    Refused
        If the party's own reply is not quoted, fewer than two thirds of the enrolled parties are, a
        signature is wrong, or the request does not follow from the replies.
    """
    quoted = getattr(request, "quoted", None)
    if quoted is None:
        return
    if name not in quoted:
        raise Refused("the request does not quote the reply of this party")
    if 3 * len(quoted) < 2 * len(roster.keys):  # the minimum threshold of a masked sum
        raise Refused("the request quotes fewer than two thirds of the enrolled parties")
    for party, reply in quoted.items():
        if not roster.has_signed(party, _reply_digest(party, reply), reply.signature):
            raise Refused("the request quotes a reply not signed by the enrolled party", party)
    try:
        request.check_quoted()
    except ValueError as error:
        raise Refused("the request does not follow from the replies that it quotes") from error


def _reply_digest(name: str, reply: Any) -> bytes:
    from fedneighbors.secure_sum._keys import digest

    unsigned = encode(replace(reply, signature=b""))
    return digest("reply of a party", name, type(reply).__name__, unsigned)
