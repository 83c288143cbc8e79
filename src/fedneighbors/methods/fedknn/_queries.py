"""Queries: what counts as one, and the canonical frame of a vector, a text, a set or a graph."""

from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors.datasets._graphs import Graph
from fedneighbors.federation._messages import decode, encode, message

EncodedQuery = tuple[Any, bytes]
"""A query as the caller gave it, and as providers are sent it."""


@message
class VectorQuery:
    """A point, float64."""

    point: npt.NDArray[np.float64]


@message
class TextQuery:
    """A string."""

    text: str


@message
class SetQuery:
    """A set of strings and whole numbers, in ascending order of kind and value."""

    elements: tuple[str | int, ...]


@message
class GraphQuery:
    """A labelled graph."""

    node_labels: tuple[str, ...]
    edges: npt.NDArray[np.int64]
    edge_labels: tuple[str, ...]


_KINDS = (VectorQuery, TextQuery, SetQuery, GraphQuery)


def listed(queries: Any) -> list[Any]:
    """Return the queries that a caller gave: a single string, set or graph is one.

    Examples
    --------
    >>> listed("a word")
    ['a word']
    """
    one = isinstance(queries, str | set | frozenset | Graph)
    return [queries] if one else list(queries)


def encode_query(item: Any) -> bytes:
    """Return the one frame that stands for a query.

    Parameters
    ----------
    item : str, set, Graph or vector of numbers
        What a metric of this library takes.

    Raises
    ------
    TypeError
        If it is none of these; a metric on other objects needs an encoding of its own.

    Examples
    --------
    >>> decode_query(encode_query({"b", 3})) == {3, "b"}
    True
    """
    if isinstance(item, str):
        return encode(TextQuery(item))
    if isinstance(item, Graph):
        edges = np.array(item.edges, np.int64).reshape(-1, 2)
        return encode(GraphQuery(item.node_labels, edges, item.edge_labels))
    if isinstance(item, set | frozenset):
        if not all(type(element) in (str, int) for element in item):
            raise TypeError("expected a set of strings and whole numbers")
        ordered = sorted(item, key=lambda element: (isinstance(element, str), element))
        return encode(SetQuery(tuple(ordered)))
    try:
        point = np.array(item, np.float64)
    except (TypeError, ValueError):
        raise TypeError(
            f"expected a vector, string, set or Graph as query, got {type(item).__name__}; give "
            "other objects an encoding of their own"
        ) from None
    return encode(VectorQuery(np.atleast_1d(point)))


def encoded(queries: Any) -> list[EncodedQuery]:
    """Return the queries that a caller gave, each with its frame.

    Raises
    ------
    TypeError
        If one is nothing that a frame carries.
    """
    return [(query, encode_query(query)) for query in listed(queries)]


def decode_query(frame: bytes) -> Any:
    """Return the query that a frame stands for.

    Raises
    ------
    WireError
        If it is no such frame.
    """
    found = decode(frame, _KINDS)
    match found:
        case VectorQuery():
            return found.point
        case TextQuery():
            return found.text
        case SetQuery():
            return frozenset(found.elements)
    return Graph(found.node_labels, found.edges.tolist(), found.edge_labels)
