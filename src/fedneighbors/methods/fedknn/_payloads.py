"""Payloads: columns of found objects, read after the search and for its result alone."""

import json
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, cast

from fedneighbors.federation._loop import Coordinator, gather
from fedneighbors.federation._messages import message
from fedneighbors.methods.fedknn.algorithm import check_query
from fedneighbors.methods.fedknn.protocol import Answer

MAX_PAYLOAD_BYTES = 1 << 16
"""Maximum size of the payload of an object."""


@message
class PayloadReply:
    """Columns of each object that was asked for, as a JSON object."""

    rows: tuple[str, ...]

    def __post_init__(self) -> None:
        if not all(map(_is_object, self.rows)):
            raise ValueError(f"expected JSON objects of at most {MAX_PAYLOAD_BYTES} bytes")


def _is_object(row: str) -> bool:
    """Return whether a text is a JSON object for answers."""
    try:
        content = json.loads(row) if len(row) <= MAX_PAYLOAD_BYTES else None
        # answers have no NaN, infinity or lone surrogate, which json reads
        json.dumps(content, ensure_ascii=False, allow_nan=False).encode()
    except (RecursionError, ValueError):
        return False
    return isinstance(content, dict)


@message
class PayloadRequest:
    """Request for the columns of objects that an open query has returned."""

    reply: ClassVar[type] = PayloadReply
    name: str
    query: bytes
    ids: tuple[str, ...]

    def __post_init__(self) -> None:
        check_query(self.query, self.name, len(self.ids))

    def check(self, party: str, reply: PayloadReply) -> None:  # noqa: ARG002 - passed by runtimes
        """Raise for a reply of another size."""
        if len(reply.rows) != len(self.ids):
            raise ValueError(f"expected {len(self.ids)} rows, got {len(reply.rows)}")


def with_payloads(
    coordinator: Coordinator[Answer],
    query: bytes,
    *,
    name: str,
    receive: Callable[[list[Mapping[str, Any]]], None],
) -> Coordinator[Answer]:
    """Run a search, then read the payloads of its result.

    Parameters
    ----------
    coordinator : generator
        The search.
    query, name : bytes and str
        Those of the search.
    receive : callable
        Called with the payload of each neighbour.
    """
    answer = yield from coordinator
    merged = answer.merged
    ids_of: dict[str, list[str]] = {}
    for owner, one in zip(merged.owners, merged.ids, strict=True):
        ids_of.setdefault(owner, []).append(one)
    rows: dict[str, list[str]] = {}
    if ids_of:
        requests = {owner: PayloadRequest(name, query, tuple(ids)) for owner, ids in ids_of.items()}
        replies = (yield gather(requests)).complete("the payloads").each
        rows = {owner: list(cast(PayloadReply, reply).rows) for owner, reply in replies.items()}
    receive([json.loads(rows[owner].pop(0)) for owner in merged.owners])
    return answer
