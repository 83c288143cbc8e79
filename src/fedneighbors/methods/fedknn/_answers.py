"""What a coordinator hands back, and the steps that every algorithm ends with.

Who answers is kept on a :class:`Roll`. Where the caller allows it, a provider that is missing in an
exchange is left out of all that follows, its objects too, and the answer says so: it is then the
answer of the federation of those that answered.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedneighbors.errors import PartyMissing, ProtocolError
from fedneighbors.federation._messages import Message
from fedneighbors.federation._roles import Ask, Coordinator, Replies, gather
from fedneighbors.methods.fedknn._messages import FinishRequest
from fedneighbors.methods.fedknn.algorithm import LAST_TIE, Merged, Part, certified, merge


@dataclass(frozen=True)
class Answer:
    """The neighbours of one query and how they were found.

    Parameters
    ----------
    merged : Merged
        Objects in the total order.
    exact : bool
        Whether nothing that a provider holds can come before; false where one has an approximate
        index or is missing. The certificate over what was returned is checked in any case.
    asked : mapping of str to int
        Objects that each provider returned.
    verified : mapping of str to int
        Objects whose distance each provider computed.
    algorithm : str
        What was run.
    answered : tuple of str
        Providers whose objects were searched, ascending.
    missing : mapping of str to str
        Providers that were left out, and why; empty unless partial answers are allowed.
    trust : str
        What keeps the broker from telling what it sees: ``"trusted"``, nothing but its word.
    """

    merged: Merged
    exact: bool
    asked: Mapping[str, int]
    verified: Mapping[str, int]
    algorithm: str
    answered: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    trust: str = "trusted"


class Roll:
    """Who takes part in a query, from exchange to exchange.

    Parameters
    ----------
    allow_partial : bool
        Go on without a provider that is missing. Otherwise it is an error.

    Attributes
    ----------
    missing : dict of str to str
        Providers that are left out, and why.
    """

    def __init__(self, *, allow_partial: bool = False) -> None:
        self.missing: dict[str, str] = {}
        self._allow_partial = allow_partial
        self._names: tuple[str, ...] | None = None

    def __contains__(self, name: str) -> bool:
        return name not in self.missing

    def ask(self, request: Message) -> Ask:
        """Return one request for all that are present; for all there are in the first exchange."""
        if self._names is None or not self.missing:
            return gather(request)
        return gather({name: request for name in self._names if name in self})

    def read(self, replies: Replies, during: str) -> dict[str, Any]:
        """Return the replies by provider and strike off who did not answer.

        Raises
        ------
        PartyMissing
            If a provider is missing and must not be, or nobody is left.
        """
        if replies.missing and not self._allow_partial:
            raise PartyMissing(replies.missing, during)
        if self._names is None:
            self._names = tuple(sorted([*replies.each, *replies.missing]))
        self.missing |= replies.missing
        if len(self.missing) == len(self._names):
            raise PartyMissing(self.missing, during)
        return dict(replies.each)

    def left(self, of: Mapping[str, Any]) -> dict[str, Any]:
        """Return what belongs to those that are present."""
        return {name: value for name, value in of.items() if name in self}


def read_parts(
    replies: Replies,
    during: str,
    *,
    roll: Roll | None = None,
    within: float | None = None,
    tie: int | None = None,
) -> tuple[dict[str, Part], dict[str, int]]:
    """Return what providers returned, and how many objects each has verified so far.

    Parameters
    ----------
    replies : Replies
        Of :class:`NearestReply`.
    during : str
        What was asked for, as an error would name it.
    roll : Roll, optional
        Who takes part. None: everyone must answer.
    within, tie : float and int, optional
        The cutoff that was sent along, and its tie key.

    Raises
    ------
    PartyMissing
        If a provider is missing and must not be.
    """
    each = (Roll() if roll is None else roll).read(replies, during)
    limit = math.inf if within is None else within, LAST_TIE if tie is None else tie
    parts = {
        provider: Part(reply.distances, reply.ties, reply.ids, reply.exhausted, reply.exact, *limit)
        for provider, reply in each.items()
    }
    return parts, {provider: reply.n_verified for provider, reply in each.items()}


def joined(parts: Mapping[str, Part], more: Mapping[str, Part]) -> dict[str, Part]:
    """Return each provider's part with its next one behind it.

    Raises
    ------
    ProtocolError
        If a provider's next objects do not come after its first, or one comes twice; it is named.
    """
    result = dict(parts)
    for provider, part in more.items():
        result[provider] = parts[provider].then(part) if provider in parts else part
        _require_order(provider, result[provider])
    return result


def farewell(names: Sequence[str] | Mapping[str, Sequence[str]]) -> Coordinator[None]:
    """Close queries. No answer waits for it, and who does not reply has none to lose.

    Parameters
    ----------
    names : sequence of str, or mapping of str to sequence of str
        Of the queries: to be closed everywhere, or by provider.
    """
    if isinstance(names, Mapping):
        yield gather({provider: FinishRequest(tuple(own)) for provider, own in names.items()})
    else:
        yield gather(FinishRequest(tuple(names)))


def finished(
    parts: Mapping[str, Part],
    verified: Mapping[str, int],
    k: int,
    *,
    algorithm: str,
    roll: Roll | None = None,
) -> Answer:
    """Check what was returned, and put the answer together.

    Parameters
    ----------
    parts, verified
        By provider; those of providers that are missing by now are left out.
    k : int
        Neighbours wanted.
    algorithm : str
        What was run.
    roll : Roll, optional
        Who takes part. None: everyone must answer.

    Raises
    ------
    ProtocolError
        If a provider's objects contradict each other, or the result is not certain.
    """
    present = Roll() if roll is None else roll
    used = present.left(parts)
    for provider, part in used.items():
        _require_order(provider, part)
    merged = merge(used, k)
    if not certified(used, merged, k):
        raise ProtocolError(
            "the result is not certain: a provider returned less than it was asked for; run the "
            "query again, or without it"
        )
    return Answer(
        merged=merged,
        exact=not present.missing and all(part.exact for part in used.values()),
        asked={provider: len(part) for provider, part in used.items()},
        verified={provider: verified[provider] for provider in used},
        algorithm=algorithm,
        answered=tuple(sorted(used)),
        missing=dict(present.missing),
    )


def _require_order(provider: str, part: Part) -> None:
    if len(set(part.ids)) < len(part.ids):
        raise ProtocolError(f"party {provider!r}: an object came in both rounds")
    rise = np.diff(part.distances)
    if (rise < 0).any() or ((rise == 0) & (np.diff(part.ties) <= 0)).any():
        raise ProtocolError(f"party {provider!r}: its second objects come before its first")
