"""Queries of a user: encoding, open queries, checks of answers, and records.

Queries are closed at the providers in groups, after the last query of a call or when many are open,
so that closing does not delay each answer.
"""

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats, Integers
from fedneighbors.datasets._graphs import Graph
from fedneighbors.datasets._object_cells import METRIC_KINDS, object_from_json
from fedneighbors.errors import PartyMissing, ProtocolError, WireError
from fedneighbors.federation._inprocess import ConnectedParties
from fedneighbors.federation._loop import Coordinator, Outcome
from fedneighbors.federation._messages import decode, encode, message
from fedneighbors.methods.fedknn._filters import Where, filter_text
from fedneighbors.methods.fedknn.algorithm import Merged
from fedneighbors.methods.fedknn.metrics._interfaces import Metric
from fedneighbors.methods.fedknn.metrics._mixed import SetRow, TabularMetric
from fedneighbors.methods.fedknn.protocol import Answer, close_queries

EncodedQuery = tuple[Any, bytes]
"""A query as the user gave it, and its bytes for providers."""


@message
class VectorQuery:
    """A point, float64."""

    point: Floats


@message
class BytesQuery:
    """Packed bits, or other numbers from 0 to 255."""

    row: npt.NDArray[np.uint8]


@message
class TextQuery:
    """A string."""

    text: str


@message
class SetQuery:
    """A set of strings and integers: first the integers, then the strings, each ascending."""

    elements: tuple[str | int, ...]


@message
class RowQuery:
    """A coded row with sets: the number of elements of each set, and all elements.

    Those of each set are ascending.
    """

    cells: Floats
    sizes: tuple[int, ...]
    elements: tuple[str, ...]


@message
class GraphQuery:
    """A labelled graph."""

    node_labels: tuple[str, ...]
    edges: Integers
    edge_labels: tuple[str, ...]


@message
class FilteredQuery:
    """The frame of a query, and a filter of objects as canonical JSON."""

    query: bytes
    where: str


_KINDS = (VectorQuery, BytesQuery, TextQuery, SetQuery, RowQuery, GraphQuery, FilteredQuery)


def check_sequence(objects: Any) -> None:
    """Raise TypeError for a mapping, whose keys would become the objects."""
    is_sparse = hasattr(objects, "tocsr")  # some sparse arrays are mappings; refused by name later
    if isinstance(objects, Mapping) and not is_sparse:
        raise TypeError("expected a table or a list of objects, got a mapping; pass its values")


def query_list(queries: Any) -> list[Any]:
    """Return the user's queries as a list.

    A single string, set or graph is one query.

    Examples
    --------
    >>> query_list("a word")
    ['a word']
    """
    check_sequence(queries)
    is_single = isinstance(queries, str | set | frozenset | Graph | SetRow)
    return [queries] if is_single else list(queries)


def encode_query(item: Any) -> bytes:
    """Return the canonical frame of a query.

    Parameters
    ----------
    item : str, set, Graph, SetRow, vector of numbers or packed bits
        Object of a built-in metric.

    Raises
    ------
    TypeError
        If it has another type; the caller must encode objects of other metrics.

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
            raise TypeError("expected a set of strings and integers")
        ordered = sorted(item, key=lambda element: (isinstance(element, str), element))
        return encode(SetQuery(tuple(ordered)))
    if isinstance(item, SetRow):
        elements = [element for own in item.sets for element in sorted(own)]
        return encode(RowQuery(item.cells, tuple(map(len, item.sets)), tuple(elements)))
    if isinstance(item, np.ndarray) and item.dtype == np.uint8 and item.ndim == 1:
        return encode(BytesQuery(item))
    try:
        point = np.array(item, np.float64)
    except (TypeError, ValueError):
        raise TypeError(
            f"expected a vector, string, set or Graph as query, got {type(item).__name__}; encode "
            "other objects yourself"
        ) from None
    return encode(VectorQuery(np.atleast_1d(point)))


def objects_digest(objects: Sequence[Any], ids: Sequence[str], settings: str) -> bytes | None:
    """Return a digest of named objects under the settings of a search.

    None if an object has no canonical bytes, such as a list of words.
    """
    items = [objects] if isinstance(objects, np.ndarray) else objects
    digest = hashlib.sha256(repr((settings, list(ids))).encode())
    for item in items:
        is_numbers = isinstance(item, np.ndarray) and item.dtype.kind in "fiub"
        if not is_numbers and not isinstance(item, str | set | frozenset | Graph | SetRow):
            return None
        try:
            frame = encode_query(item)
        except TypeError:
            return None
        digest.update(len(frame).to_bytes(8) + frame)
    return digest.digest()


def encode_queries(queries: Any, where: Where | None = None) -> list[EncodedQuery]:
    """Return a user's queries with their frames.

    Raises
    ------
    TypeError
        If a query has an unsupported type.
    """
    frames = [(query, encode_query(query)) for query in query_list(queries)]
    if where is None:
        return frames
    text = filter_text(where)
    return [(query, encode(FilteredQuery(frame, text))) for query, frame in frames]


def read_json_query(value: Any, name: str, metric: Metric) -> Any:
    """Return the query of a JSON value.

    Parameters
    ----------
    value : object
        The JSON value.
    name, metric : str and Metric
        The metric.

    Raises
    ------
    DataError
        If the value is no object of the metric, or a cell of a row is outside of its schema.
    MissingExtraError
        If it is SMILES and RDKit is not installed.
    """
    if not isinstance(metric, TabularMetric):
        return object_from_json(value, METRIC_KINDS[name])
    return metric.read_query(object_from_json(value, "rows", sets=metric.set_names))


def decode_query(frame: bytes) -> Any:
    """Return the query of a frame, or a FilteredQuery.

    Raises
    ------
    WireError
        If it is not a frame of a query.
    """
    query = decode(frame, _KINDS)
    match query:
        case VectorQuery():
            return query.point
        case BytesQuery():
            return query.row
        case TextQuery():
            return query.text
        case SetQuery():
            return frozenset(query.elements)
        case FilteredQuery():
            return query
        case RowQuery():
            ends = np.cumsum((0, *query.sizes)).tolist()
            if min(query.sizes, default=0) < 0 or ends[-1] != len(query.elements):
                raise WireError("the sizes of the sets differ from the number of their elements")
            pairs = pairwise(ends)
            return SetRow(query.cells, tuple(frozenset(query.elements[a:b]) for a, b in pairs))
    return Graph(query.node_labels, query.edges.tolist(), query.edge_labels)


def check_ids(merged: Merged, known: Mapping[str, Collection[str]]) -> None:
    """Raise if a returned object does not exist at its provider.

    Parameters
    ----------
    merged : Merged
        Objects of an answer.
    known : mapping of str to collection of str
        Names of all objects of each provider.

    Raises
    ------
    ProtocolError
        If a name is unknown; the error names the provider, but not the object.
    """
    for owner, name in zip(merged.owners, merged.ids, strict=True):
        if name not in known.get(owner, ()):
            raise ProtocolError(f"party {owner!r}: it returned an object that it does not have")


def recheck_distances(
    metric: Metric,
    query: Any,
    objects: Sequence[Any],
    distances: Floats,
    owners: Sequence[str],
) -> None:
    """Recompute the distances of returned objects; raise if one differs.

    Parameters
    ----------
    metric : Metric
        Metric of the search.
    query : object
        The query.
    objects : sequence of shape (n,)
        Returned objects.
    distances : float64 array of shape (n,)
        Reported distances, in the unit of the metric; compared exactly.
    owners : sequence of str
        Provider of each object.

    Raises
    ------
    ValueError
        If objects, distances and owners differ in number.
    ProtocolError
        If a distance differs, or an object is invalid for the metric; the error names the provider.
    """
    if not len(objects) == len(distances) == len(owners):
        raise ValueError(
            f"expected one distance and one owner for each of {len(objects)} objects, got "
            f"{len(distances)} and {len(owners)}"
        )
    for item, reported, owner in zip(objects, distances.tolist(), owners, strict=True):
        try:
            recomputed = metric.distance(query, item)
        except (TypeError, ValueError) as error:
            raise ProtocolError(
                f"party {owner!r}: it returned an object that is invalid for {metric.name!r}"
            ) from error
        if recomputed != reported:
            raise ProtocolError(
                f"party {owner!r}: the distance of an object differs from the recomputed one; run "
                "the query again without this party"
            )


CLOSE_AFTER = 64
"""Number of queries that are closed together; far below a provider's limit of open ones."""


class OpenQueries:
    """Context manager for the queries of one call, which closes them in groups.

    Parameters
    ----------
    federation : ConnectedParties
        Parties that answer the queries.
    names : iterator of str
        Iterator of new names, one for each query.
    """

    def __init__(self, federation: ConnectedParties, names: Iterator[str]) -> None:
        self._federation = federation
        self._names = names
        self._open: dict[str, Mapping[str, str]] = {}  # missing parties of each query

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or issubclass(kind, Exception):
            self._close()  # an interrupt, which is no Exception, ends the call at once

    def run(self, coordinator_of: Callable[[str], Coordinator[Answer]]) -> Outcome[Answer]:
        """Run the coordinator of a new query; close earlier ones if many.

        Parameters
        ----------
        coordinator_of : callable
            Function from the query's name to a coordinator that uses it.

        Raises
        ------
        Exception
            Any exception of the coordinator or a party.
        """
        if len(self._open) == CLOSE_AFTER:
            self._close()
        name = next(self._names)
        self._open[name] = {}
        try:
            outcome = self._federation.run(coordinator_of(name))
        except PartyMissing as error:
            self._open[name] = error.missing
            raise
        self._open[name] = outcome.result.missing
        return outcome

    def _close(self) -> None:
        """Close each query at the parties that replied to all its requests."""
        finished, self._open = self._open, {}
        names_of = {
            party: [name for name, missing in finished.items() if party not in missing]
            for party in self._federation.names
        }
        names_of = {party: names for party, names in names_of.items() if names}
        if names_of:
            with suppress(Exception):  # the answers are valid even if closing fails
                self._federation.run(close_queries(names_of))


_PHASES = {
    "BoundRequest": "bounds",
    "PaddedBoundRequest": "bounds",
    "RangeCountRequest": "counts",
    "NearestBatchRequest": "objects",
    "NearestRequest": "objects",
    "EagerRequest": "objects",
    "PaddedNearestRequest": "objects",
}


@dataclass(frozen=True)
class QueryRecord:
    """Cost of one query.

    Parameters
    ----------
    algorithm : str
        Algorithm that was run.
    why : str
        Reason for the choice of the algorithm; empty if the user chose it.
    exact : bool
        True if the answer is guaranteed to be exact over all objects of the federation.
    trust : str
        Protection against disclosure by the broker.
    answered : tuple of str
        Providers whose objects were searched.
    missing : dict of str to str
        Providers without a reply, and the reasons.
    n_returned, verified : dict of str to int
        Number of objects returned and of distances computed by each provider.
    n_rounds : int
        Number of exchanges until the answer.
    upload_bytes, download_bytes : int
        Number of bytes sent by and to all providers.
    seconds : float
        Wall time until the answer, including the broker's own time.
    phase_seconds : dict of str to float
        Wall time of the exchanges that request ``"bounds"``, ``"counts"`` and ``"objects"``.
    busy_seconds : dict of str to float
        Processing seconds of each provider.
    """

    algorithm: str
    why: str
    exact: bool
    trust: str
    answered: tuple[str, ...]
    missing: dict[str, str]
    n_returned: dict[str, int]
    verified: dict[str, int]
    n_rounds: int
    upload_bytes: int
    download_bytes: int
    seconds: float
    phase_seconds: dict[str, float]
    busy_seconds: dict[str, float]

    @classmethod
    def of(cls, outcome: Outcome[Answer], *, seconds: float, why: str = "") -> "QueryRecord":
        """Return the record of a finished query.

        Parameters
        ----------
        outcome : Outcome
            Outcome of the coordinator.
        seconds : float
            Total wall time.
        why : str
            Reason for the choice of the algorithm.
        """
        answer, rounds = outcome.result, outcome.rounds
        return cls(
            algorithm=answer.algorithm,
            why=why,
            exact=answer.exact,
            trust=answer.trust,
            answered=answer.answered,
            missing=dict(answer.missing),
            n_returned=dict(answer.n_returned),
            verified=dict(answer.verified),
            n_rounds=len(rounds),
            upload_bytes=sum(sum(r.upload_bytes.values()) for r in rounds),
            download_bytes=sum(sum(r.download_bytes.values()) for r in rounds),
            seconds=seconds,
            phase_seconds=_sum_by_name((_PHASES[r.request], r.seconds) for r in rounds),
            busy_seconds=_sum_by_name(item for r in rounds for item in r.busy_s.items()),
        )


def _sum_by_name(items: Iterable[tuple[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for name, seconds in items:
        total[name] = total.get(name, 0.0) + seconds
    return total
