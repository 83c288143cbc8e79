"""Radius search: all objects within a distance, which no provider needs to be told a count for."""

from fedneighbors.federation._roles import Coordinator, gather
from fedneighbors.methods.fedknn._answers import Answer, Roll, read_parts
from fedneighbors.methods.fedknn._claims import require_count_kept
from fedneighbors.methods.fedknn._messages import CountRequest, NearestRequest
from fedneighbors.methods.fedknn.algorithm import merge


def within(
    query: bytes, radius: float, *, name: str, allow_partial: bool = False
) -> Coordinator[Answer]:
    """Find all objects within a distance of the query.

    Each provider is asked for as many objects as it says that it holds there; it learns nothing of
    the others.

    Parameters
    ----------
    query : bytes
        As providers decode it.
    radius : float
        0 or more, in the unit of the metric; objects at this very distance count.
    name : str
        Names the query at the providers, new for each.
    allow_partial : bool
        Leave out a provider that is missing, and say so in the answer.

    Raises
    ------
    PartyMissing
        If a provider is missing and must not be.
    ProtocolError
        If a provider returns less than it counted, or breaks the protocol in another way.
    """
    roll = Roll(allow_partial=allow_partial)
    replies = yield roll.ask(CountRequest(name, query, radius))
    counts = {provider: reply.count for provider, reply in roll.read(replies, "the counts").items()}
    requests = {
        provider: NearestRequest(name, query, count + 1, radius)  # one more, to see the end
        for provider, count in counts.items()
    }
    parts, verified = read_parts(
        (yield gather(requests)), "the objects within the radius", roll=roll, within=radius
    )
    for provider, part in parts.items():
        require_count_kept(provider, part, counts[provider])
    return Answer(
        merged=merge(parts, sum(len(part) for part in parts.values())),
        exact=not roll.missing and all(part.exact for part in parts.values()),
        asked={provider: len(part) for provider, part in parts.items()},
        verified={provider: verified[provider] for provider in parts},
        algorithm="radius",
        answered=tuple(sorted(parts)),
        missing=dict(roll.missing),
    )
