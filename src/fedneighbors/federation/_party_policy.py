"""Rules by which a party limits the requests of a coordinator that it does not trust.

Answers to two different requests about the same rows, or to one request about two versions of the
table, disclose the rows in which they differ, even if every number describes many rows. A party
therefore answers a *single-use* request class once: the same request gets the same reply, another
one is refused, also after a restart. The class declares ``single_use = "always"``, or
``single_use = "masked"`` if its reply is protected only in masked sums. All requests of one run are
answered about one table.

A request that follows from earlier replies *quotes* them: the parties sign these replies, and each
party checks the signatures and recomputes the request.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fedneighbors.federation._messages import Message, encode
from fedneighbors.federation._roles import Refused
from fedneighbors.federation._stores import POLICY, MaskStore

if TYPE_CHECKING:
    from fedneighbors.secure_sum._keys import Identity, Roster  # which needs an extra


_REMEDY = "; delete the folder answers to allow it"


def remember(store: MaskStore, topic: str, content: bytes, *, refusal: str) -> None:
    """Store content for a topic; refuse other content later."""
    if store.keep(POLICY, topic, content) != content:
        raise Refused(refusal)


class SingleUseParty:
    """Wrapper that answers a run about one table, and single-use request classes only once.

    A single-use request class is answered for one request and one table in all runs; all other
    requests of one run are answered about one table, because the difference of two replies to one
    request describes the rows in which the tables differ.

    A request whose reply depends on that of another request has the latter in its attribute
    ``implied``, and counts as both. Of the request classes in its attribute ``excluded``, none is
    answered before or after it. The minimum number of rows behind a reply, ``min_count``, is the
    same in all requests, because the difference of replies with two minimums describes fewer rows.
    A request that the wrapped party refuses does not count.

    Parameters
    ----------
    party : Party
        The wrapped party; its attribute ``table_digest`` is a digest of its table.
    store : MaskStore
        Memory of the answered requests. Erase it only to accept that the coordinator can compare
        new answers with the earlier ones.
    run : str
        Name of the run.
    """

    def __init__(self, party: Any, *, store: MaskStore, run: str = "") -> None:
        self.name = party.name
        self.accepts = party.accepts
        self._party = party
        self._store = store
        self._run = run

    def __getattr__(self, name: str) -> Any:
        return getattr(self._party, name)

    def answer(self, request: Message) -> Message:
        """Return the reply to a request, or raise :class:`~fedneighbors.federation.Refused`."""
        entries = tuple(self._entries(request))
        for topic, content, refusal in entries:
            if self._store.get(POLICY, topic) not in (None, content):
                raise Refused(refusal)
        reply: Message = self._party.answer(request)
        for topic, content, refusal in entries:  # before the reply leaves
            remember(self._store, topic, content, refusal=refusal)
        return reply

    def _entries(self, request: Any) -> Iterator[tuple[str, bytes, str]]:
        """Yield topics to remember, their contents, and the refusals of other contents."""
        refusal = "requests about another table were answered before"
        if not is_single_use(type(request)):
            topic = f"{type(self._party).__name__}-{self._run}"
            yield topic, self._party.table_digest, refusal + _REMEDY
            return
        yield "table", self._party.table_digest, refusal + _REMEDY
        if hasattr(request, "min_count"):
            refusal = "requests with another min_count were answered before"
            yield "min-count", str(request.min_count).encode(), refusal + _REMEDY
        refusal = "another request of this kind was answered before"
        for each in (request, *getattr(request, "implied", ())):
            yield type(each).__name__, hashlib.sha256(encode(each)).digest(), refusal + _REMEDY
        refusal = "a request that this one excludes was answered before"
        for excluded in getattr(request, "excluded", ()):
            yield excluded.__name__, b"none", refusal + _REMEDY


def is_single_use(request_class: type[Any]) -> bool:
    """Return whether requests of a class are answered only once."""
    return getattr(request_class, "single_use", None) == "always"


def sign_reply(request: Any, reply: Any, *, name: str, identity: "Identity") -> Message:
    """Return a reply with the party's signature, if its class has one."""
    if not hasattr(reply, "signature"):
        return reply
    return replace(reply, signature=identity.sign(_reply_digest(name, request, reply)))


def check_quoted(request: Any, *, name: str, roster: "Roster") -> None:
    """Refuse a request that does not follow from signed replies.

    Parameters
    ----------
    request : message
        A request that depends on earlier replies has them in the attribute ``quoted``, by party,
        the request to which they are replies in ``quoted_request``, and a method
        ``check_quoted()``, which raises ValueError if it does not follow from them.
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
    try:
        earlier = request.quoted_request
        for party, reply in quoted.items():
            signed = _reply_digest(party, earlier, reply)
            if not roster.has_signed(party, signed, reply.signature):
                raise Refused("the request quotes a reply not signed by the enrolled party", party)
        request.check_quoted()
    except ValueError as error:
        raise Refused("the request does not follow from the replies that it quotes") from error


def _reply_digest(name: str, request: Any, reply: Any) -> bytes:
    from fedneighbors.secure_sum._keys import digest

    parts = encode(request), encode(replace(reply, signature=b""))
    return digest("reply of a party", name, type(request).__name__, *parts)
