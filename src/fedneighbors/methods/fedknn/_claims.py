"""What can be held against a provider: claims that contradict each other, or the objects.

A broker sees bounds, counts, names and distances. It cannot see what a provider hides, but what a
provider said first it must keep; and where objects come back, whoever asked can measure again.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fedneighbors._typing import Floats
from fedneighbors.errors import ProtocolError
from fedneighbors.methods.fedknn._sessions import Metric
from fedneighbors.methods.fedknn.algorithm import Merged, Part


def require_bounds(bounds: Mapping[str, Floats], k: int) -> None:
    """Refuse more bounds than were asked for.

    Raises
    ------
    ProtocolError
        The provider is named.
    """
    for provider, lowest in bounds.items():
        if len(lowest) > k:
            raise ProtocolError(f"party {provider!r}: {len(lowest)} bounds came, {k} were asked")


def require_bounds_kept(parts: Mapping[str, Part], bounds: Mapping[str, Floats], *, k: int) -> None:
    """Refuse objects that the lower bounds of their own provider rule out.

    The j-th smallest distance is never below the j-th smallest bound, and there are as many bounds
    as objects if there are fewer than k of them.

    Parameters
    ----------
    parts : mapping of str to Part
        What providers returned.
    bounds : mapping of str to float64 array
        What they had sent before: the k lowest, ascending.
    k : int
        Bounds that were asked for.

    Raises
    ------
    ProtocolError
        The provider is named.
    """
    for provider, part in parts.items():
        lowest = bounds[provider]
        n = min(len(part), len(lowest))
        if (part.distances[:n] < lowest[:n]).any():
            raise ProtocolError(
                f"party {provider!r}: an object is nearer than the lower bounds it sent allow"
            )
        if len(lowest) < k and len(part) > len(lowest):
            raise ProtocolError(
                f"party {provider!r}: {len(part)} objects came, bounds of {len(lowest)}"
            )
        if part.hides_nothing and len(part) < len(lowest):
            raise ProtocolError(
                f"party {provider!r}: it has no more than {len(part)} objects, and sent bounds of "
                f"{len(lowest)}"
            )


def require_count_kept(provider: str, part: Part, count: int) -> None:
    """Refuse more or fewer objects within a radius than a provider had counted there.

    An approximate index may find fewer.

    Raises
    ------
    ProtocolError
        The provider is named.
    """
    if len(part) > count or (part.exact and len(part) < count):
        raise ProtocolError(
            f"party {provider!r}: {len(part)} objects came from within a radius in which it had "
            f"counted {count}"
        )


def require_objects_of_bounds(counts: Mapping[str, int], bounds: Mapping[str, Floats]) -> None:
    """Refuse a number of objects in all that is below the number of bounds.

    Raises
    ------
    ProtocolError
        The provider is named.
    """
    for provider, count in counts.items():
        if count < len(bounds[provider]):
            raise ProtocolError(
                f"party {provider!r}: it counts {count} objects in all, and sent bounds of "
                f"{len(bounds[provider])}"
            )


def require_known_ids(merged: Merged, known: Mapping[str, Collection[str]]) -> None:
    """Refuse names of objects that their provider does not have.

    Parameters
    ----------
    merged : Merged
        Objects of an answer.
    known : mapping of str to collection of str
        Names of the objects of each provider, where whoever asks knows them.

    Raises
    ------
    ProtocolError
        The provider is named, the object is not.
    """
    for owner, name in zip(merged.owners, merged.ids, strict=True):
        if name not in known.get(owner, ()):
            raise ProtocolError(f"party {owner!r}: it returned an object that is not one of its")


def require_true_distances(
    metric: Metric,
    query: Any,
    objects: Sequence[Any],
    distances: Floats,
    owners: Sequence[str],
) -> None:
    """Measure again, and refuse a distance that is not the one of its object.

    Parameters
    ----------
    metric : Metric
        Of the search.
    query : object
        What was asked.
    objects : sequence of shape (n,)
        What came back.
    distances : float64 array of shape (n,)
        What was said of them, in the unit of the metric; compared digit for digit.
    owners : sequence of str
        Provider of each.

    Raises
    ------
    ValueError
        If objects, distances and owners differ in number.
    ProtocolError
        If a distance is another one, or an object is none of the metric; the provider is named.
    """
    if not len(objects) == len(distances) == len(owners):
        raise ValueError(
            f"expected one distance and one owner for each of {len(objects)} objects, got "
            f"{len(distances)} and {len(owners)}"
        )
    for item, claimed, owner in zip(objects, distances.tolist(), owners, strict=True):
        try:
            real = metric.distance(query, item)
        except (TypeError, ValueError) as error:
            raise ProtocolError(
                f"party {owner!r}: it returned what is no object of {metric.name!r}"
            ) from error
        if real != claimed:
            raise ProtocolError(
                f"party {owner!r}: the distance of an object is not the one it claimed; run the "
                "query again without it"
            )
