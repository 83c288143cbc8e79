"""A provider's objects for sealed queries."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np

from fedneighbors.errors import MissingExtraError, WireError
from fedneighbors.federation._messages import Message, decode, encode
from fedneighbors.federation._roles import Refused
from fedneighbors.methods.fedknn._filters import filter_text
from fedneighbors.methods.fedknn._names import Names
from fedneighbors.methods.fedknn._payloads import MAX_PAYLOAD_BYTES, PayloadReply, PayloadRequest
from fedneighbors.methods.fedknn._provider import MAX_OPEN_BYTES, PrivateRequest, refuse_invalid
from fedneighbors.methods.fedknn._queries import FilteredQuery, encode_queries
from fedneighbors.methods.fedknn.algorithm import check_query
from fedneighbors.methods.fedknn.protocol import NearestReply, NearestRequest
from fedneighbors.service._oidc import IssuerFailed, OidcUsers
from fedneighbors.service._policy import OTHER_QUERY, PolicyParty
from fedneighbors.service._sealed import NameCipher, SealedQuery
from fedneighbors.service._state import ApiUser

WRONG_KEY = "the query is not sealed for the provider's present key"
"""Code of the refusal of a query that cannot be decrypted."""

WRONG_TOKEN = "the sealed query has no valid token for the provider"
"""Code of the refusal of a query whose user is not known."""

ISSUER_FAILED = "the keys of the provider's login service cannot be read"

NOT_RETURNED = "the provider returned no such object for this query"


@dataclass
class _OpenQuery:
    sealed: bytes
    frame: bytes
    cipher: NameCipher
    user: ApiUser | None
    n_returned: int = 0


class SealedParty:
    """A provider's objects, for sealed queries.

    Parameters
    ----------
    party : PolicyParty
        The objects behind the policy of their owner, which sees readable queries and names.
    collection : str
        Name of the collection.
    secret : bytes
        The provider's secret, of which the sealing key is made.
    read_query : callable
        Takes a JSON value; returns an object of the metric.
    users : OidcUsers, optional
        Login service whose tokens queries must contain; by default, the broker's word is taken.
    """

    def __init__(
        self,
        party: PolicyParty,
        collection: str,
        *,
        secret: bytes,
        read_query: Callable[[Any], Any],
        users: OidcUsers | None = None,
    ) -> None:
        self.name = party.name
        # replies of fixed size have readable names
        self.accepts = tuple(one for one in party.accepts if one not in get_args(PrivateRequest))
        self._party, self._collection, self._read_query = party, collection, read_query
        self._secret, self._users = secret, users
        self._open: dict[str, _OpenQuery] = {}

    def answer(self, request: Any) -> Message:
        """Return the reply to a request, with encrypted names."""
        if request.name != self._party.query:  # only open queries are kept
            raise Refused(OTHER_QUERY)
        self._party.sealed = request.query
        try:
            query = self._unseal(request.name, request.query)
            if query.user is not None:
                self._party.user, self._party.groups = query.user.name, query.user.groups
            readable = _open_request(request, query)
        except Refused as refused:
            self._party.log_request(request, refused.code)
            raise
        return _seal_reply(self._party.answer(readable), readable, query)

    def finish(self, names: tuple[str, ...]) -> None:
        """Close queries."""
        for name in names:
            self._open.pop(name, None)
        self._party.finish(names)

    def _unseal(self, name: str, sealed: bytes) -> _OpenQuery:
        """Return an open query; decrypt a new one."""
        known = self._open.get(name)
        if known is not None:
            if known.sealed != sealed:
                raise Refused("another query has this name")
            return known
        try:
            parts = decode(sealed, (SealedQuery,))
            content, cipher, token = parts.unseal(self.name, self._collection, self._secret)
        except (ValueError, WireError):
            raise Refused(WRONG_KEY) from None
        user = self._verify(token)
        try:
            with refuse_invalid():
                frame = self._encode_query(content)
        except MissingExtraError:  # a query of SMILES
            raise Refused("the provider lacks a package that reads such queries") from None
        n_bytes = sum(len(one.sealed) + len(one.frame) for one in self._open.values())
        if n_bytes + len(sealed) + len(frame) > MAX_OPEN_BYTES:
            raise Refused("too many queries are open; close some")
        self._open[name] = _OpenQuery(sealed, frame, cipher, user)
        return self._open[name]

    def _verify(self, token: str) -> ApiUser | None:
        """Return the user of a token; None without a login service."""
        if self._users is None:
            return None
        try:
            user = asyncio.run(self._users.user_of(token))  # in the thread of the collection
        except IssuerFailed:
            raise Refused(ISSUER_FAILED) from None
        if user is None:
            raise Refused(WRONG_TOKEN)
        return user

    def _encode_query(self, content: bytes) -> bytes:
        """Return the frame of a query and its filter."""
        fields = dict(json.loads(content))
        query, where = fields.get("query"), fields.get("where")
        if query is None:
            return encode(FilteredQuery(b"", filter_text(fields["where"])))
        ((_, frame),) = encode_queries([self._read_query(query)], where)
        check_query(frame)
        return frame


def _open_request(request: Any, query: _OpenQuery) -> Any:
    """Return a request with a readable query and names."""
    changes: dict[str, Any] = {"query": query.frame}
    if isinstance(request, PayloadRequest):
        try:
            changes["ids"] = tuple(map(query.cipher.read, request.ids))
        except ValueError:
            raise Refused(NOT_RETURNED) from None
    if isinstance(request, NearestRequest):
        changes["tie"] = None  # a number of this query is no tie key
    return replace(request, **changes)


def _seal_reply(reply: Message, request: Any, query: _OpenQuery) -> Message:
    """Return a reply with encrypted names and payloads.

    Tie keys are the same in all queries, and would show the broker which objects are found again.
    The objects are numbered instead, in their order.
    """
    if isinstance(reply, PayloadReply):
        pairs = zip(reply.rows, request.ids, strict=True)
        rows = tuple(query.cipher.hide_payload(row, name) for row, name in pairs)
        if any(len(row) > MAX_PAYLOAD_BYTES for row in rows):
            raise Refused("a payload is too long to be encrypted")
        return PayloadReply(rows)
    if isinstance(reply, NearestReply):
        first = query.n_returned
        query.n_returned += len(reply.ids)
        return replace(
            reply,
            ids=Names.pack(map(query.cipher.hide, reply.ids)),
            ties=np.arange(first, query.n_returned, dtype=np.int64),
        )
    return reply
