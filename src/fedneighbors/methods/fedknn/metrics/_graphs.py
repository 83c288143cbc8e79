"""Edit distance of labelled graphs: graphs as arrays, and an exact search."""

import math
import time
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Array, Floats, Integers
from fedneighbors.datasets._graphs import Graph
from fedneighbors.datasets._molecules import graph_from_smiles
from fedneighbors.errors import DataError
from fedneighbors.kernels.graph_edit._bounds import Counts, table_bounds
from fedneighbors.kernels.graph_edit._search import GraphTable, find_twins, new_search, verify_many
from fedneighbors.kernels.graph_edit._tree import GedSearch
from fedneighbors.methods.fedknn.metrics._interfaces import SessionBatch
from fedneighbors.methods.fedknn.metrics._sessions import (
    check_ranks,
    check_request,
    check_time,
    end_at,
)

_Int32s = npt.NDArray[np.int32]
_MAX_COUNT = np.iinfo(np.uint16).max  # nodes or edges of a graph; counts are uint16


class Alphabet:
    """Numbers of labels, in order of first appearance.

    Parameters
    ----------
    known : mapping of str to int, optional
        Labels with their numbers.
    """

    def __init__(self, known: dict[str, int] | None = None) -> None:
        self._numbers: dict[str, int] = dict(known or {})

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self, labels: Iterable[str]) -> _Int32s:
        """Return each label's number; new labels get the next numbers."""
        known = self._numbers
        return np.array([known.setdefault(label, len(known)) for label in labels], np.int32)

    def copy(self) -> "Alphabet":
        """Return a copy to which labels can be added independently."""
        return Alphabet(self._numbers)


def pack_graphs(graphs: Sequence[Graph], labels: Alphabet, edge_labels: Alphabet) -> GraphTable:
    """Convert graphs to arrays.

    Parameters
    ----------
    graphs : sequence of Graph
    labels, edge_labels : Alphabet
        Numbers of node and edge labels; new labels are added.
    """
    first_node = np.zeros(len(graphs) + 1, np.int64)
    np.cumsum([graph.n_nodes for graph in graphs], out=first_node[1:])
    graph_of = np.repeat(np.arange(len(graphs)), [graph.n_edges for graph in graphs])
    pairs = np.array(list(chain.from_iterable(graph.edges for graph in graphs)), np.int64).reshape(
        -1, 2
    )
    edge_label = edge_labels.number(chain.from_iterable(graph.edge_labels for graph in graphs))
    offset = first_node[graph_of]
    source = np.concatenate([pairs[:, 0] + offset, pairs[:, 1] + offset])
    target = np.concatenate([pairs[:, 1], pairs[:, 0]])
    order = np.lexsort((target, source))
    first_arc = np.zeros(first_node[-1] + 1, np.int64)
    np.cumsum(np.bincount(source, minlength=first_node[-1]), out=first_arc[1:])
    table = GraphTable(
        first_node=first_node,
        label=labels.number(chain.from_iterable(graph.node_labels for graph in graphs)),
        first_arc=first_arc,
        target=target[order].astype(np.int32),
        edge_label=np.concatenate([edge_label, edge_label])[order],
        prior_twin=np.empty(0, np.int32),
    )
    return table._replace(prior_twin=find_twins(*table[:5]))


def count_labels(table: GraphTable, n_labels: int, n_edge_labels: int) -> Counts:
    """Count the node labels, edge labels and degrees of each graph.

    Parameters
    ----------
    table : GraphTable
    n_labels, n_edge_labels : int
        Numbers of distinct node and edge labels.

    Raises
    ------
    ValueError
        If a graph has 65,536 or more nodes or edges.
    """
    n_graphs = len(table.first_node) - 1
    n_nodes = np.diff(table.first_node).astype(np.int32)
    n_edges = (np.diff(table.first_arc[table.first_node]) // 2).astype(np.int32)
    for kind, sizes in (("nodes", n_nodes), ("edges", n_edges)):
        if n_graphs and sizes.max() > _MAX_COUNT:
            raise ValueError(
                f"graph {sizes.argmax()} has {sizes.max()} {kind}, and at most {_MAX_COUNT} "
                "are supported; remove it"
            )
    graph_of, degree = np.repeat(np.arange(n_graphs), n_nodes), np.diff(table.first_arc)
    arcs = _count_values(table.edge_label, np.repeat(graph_of, degree), n_edge_labels, n_graphs)
    degree_counts = _count_values(degree, graph_of, int(degree.max(initial=0)) + 1, n_graphs)
    return Counts(
        n_nodes,
        n_edges,
        labels=_count_values(table.label, graph_of, n_labels, n_graphs).astype(np.uint16),
        edge_labels=(arcs // 2).astype(np.uint16),
        degrees=np.ascontiguousarray(degree_counts[:0:-1].cumsum(axis=0)[::-1], dtype=np.uint16),
    )


def bound_distances(table: Counts, query: Counts) -> _Int32s:
    """Return a lower bound of each graph's distance to the query."""
    n_degrees = max(len(table.degrees), len(query.degrees))
    bounds: _Int32s = table_bounds(
        table._replace(degrees=_pad(table.degrees, n_degrees)),
        query._replace(degrees=_pad(query.degrees, n_degrees)),
    )
    return bounds


def _count_values(values: Array, owners: Integers, n_values: int, n_owners: int) -> Integers:
    """Count the values of each owner, shape (n_values, n_owners)."""
    counts = np.bincount(values * np.int64(n_owners) + owners, minlength=n_values * n_owners)
    return counts.reshape(n_values, n_owners)


def _pad(rows: npt.NDArray[np.uint16], n_rows: int) -> npt.NDArray[np.uint16]:
    if len(rows) == n_rows:
        return rows
    return np.concatenate([rows, np.zeros((n_rows - len(rows), rows.shape[1]), np.uint16)])


_UNKNOWN = np.int32(1 << 30)  # upper bound of an unknown distance
_CLOCK_CHECK_WORK = 20_000  # budget of verify_many between two clock checks


class GraphEditMetric:
    """Edit distance of labelled undirected graphs with unit costs.

    An edit inserts, deletes or relabels one node or one edge; only a node without edges can be
    deleted. The distance is a metric: the triangle inequality holds. A string is the SMILES of a
    molecule, and needs the extra ``chem``.

    Examples
    --------
    >>> ethanol = Graph(["C", "C", "O"], [(0, 1), (1, 2)])
    >>> acetaldehyde = Graph(["C", "C", "O"], [(0, 1), (1, 2)], [1, 2])
    >>> GraphEditMetric().distance(ethanol, acetaldehyde)
    1.0
    """

    name = "graph_edit"
    step = 1.0  # distances are integers

    def distance(self, first: Graph | str, second: Graph | str) -> float:
        """Return the distance of two graphs or SMILES.

        The time grows exponentially with size and distance: for two different molecules of 30
        atoms it can be seconds or too long to wait for. A session's ``next`` accepts a deadline.

        Raises
        ------
        TypeError
            If an argument is neither a `Graph` nor a string.
        """
        batch = self.index([first], ranks=np.zeros(1, np.int64)).open(second).next(1)
        return float(batch.distances[0])

    def index(self, objects: Sequence[Graph | str], *, ranks: Integers) -> "_GraphIndex":
        """Return an index of graphs.

        Parameters
        ----------
        objects : sequence of Graph or str
            Graphs, or SMILES of molecules. May be empty, and so may each graph.
        ranks : int64 array of shape (n_objects,)
            Distinct ranks; graphs of equal distance are ordered by rank.

        Raises
        ------
        TypeError
            If an object is neither a `Graph` nor a string; the error names its position.
        DataError
            If a string is no SMILES.
        MissingExtraError
            If RDKit, for SMILES, is not installed.
        ValueError
            If the ranks are not one distinct integer per object, or a graph has more than 65,535
            nodes or edges.
        """
        graphs = [_as_graph(item, f"object {position}") for position, item in enumerate(objects)]
        return _GraphIndex(graphs, check_ranks(ranks, len(graphs)))


class _GraphIndex:
    def __init__(self, graphs: Sequence[Graph], ranks: Integers) -> None:
        self.n_objects = len(graphs)
        self.ranks = ranks
        self.labels, self.edge_labels = Alphabet(), Alphabet()
        self.table = pack_graphs(graphs, self.labels, self.edge_labels)
        self.counts = count_labels(self.table, len(self.labels), len(self.edge_labels))

    def open(self, query: Graph | str) -> "_GraphSession":
        return _GraphSession(self, _as_graph(query, "the query"))


class _GraphSession:
    """Session that returns all graphs of distance 0 by rank, then those of distance 1, and so on.

    The *level* is the distance of the graphs that are returned next. Each graph whose lower bound
    equals the level is verified with the level as threshold, which yields its distance or a higher
    lower bound.
    """

    exact = True

    def __init__(self, index: _GraphIndex, query: Graph) -> None:
        self._index = index
        labels, edge_labels = index.labels.copy(), index.edge_labels.copy()
        self._query = pack_graphs([query], labels, edge_labels)
        counts = count_labels(self._query, len(labels), len(edge_labels))
        self._lower = bound_distances(index.counts, counts)
        self._upper = np.full(index.n_objects, _UNKNOWN)
        self._emitted = np.zeros(index.n_objects, np.bool_)
        self._level = -1
        # graphs whose lower bound is the level, by rank, and the number of those verified so far
        self._members: Integers = np.empty(0, np.int64)
        self._n_verified_members = 0

    @cached_property  # allocated late, since bounds do not need it
    def _level_search(self) -> GedSearch:
        """Return the working memory for members of the level.

        It preserves the state of an interrupted verification.
        """
        return new_search(self._index.table, self._query)

    @cached_property
    def _count_search(self) -> GedSearch:
        """Return the working memory for range counts."""
        return new_search(self._index.table, self._query)

    @property
    def n_verified(self) -> int:
        return int((self._upper < _UNKNOWN).sum())

    def bounds(self, *, deadline_s: float | None = None) -> Floats:  # noqa: ARG002 - known
        return self._lower.astype(np.float64)

    def separate_bounds(self, *, deadline_s: float | None = None) -> Floats:
        # each bound depends only on one graph and the query
        return self.bounds(deadline_s=deadline_s)

    def next(
        self, k: int, *, cutoff: float = math.inf, deadline_s: float | None = None
    ) -> SessionBatch:
        check_request(k, cutoff)
        end = end_at(deadline_s)
        batches: list[Integers] = [np.empty(0, np.int64)]
        n_left, in_time = k, True
        while n_left > 0 and in_time and self._enter_level(cutoff):
            batches.append(self._emit(n_left, end))
            n_left -= len(batches[-1])
            in_time = n_left == 0 or time.monotonic() < end
        positions = np.concatenate(batches)
        exhausted = not self._enter_level(cutoff)
        return SessionBatch(
            positions=positions,
            distances=self._upper[positions].astype(np.float64),
            exhausted=exhausted,
            n_certified=len(positions),
            frontier=float(self._level) if n_left and not exhausted else 0.0,
        )

    def count(self, radius: float, *, deadline_s: float | None = None) -> int:
        if not radius >= 0:
            return 0
        end, tau = end_at(deadline_s), int(min(radius, float(_UNKNOWN - 1)))
        budget = None if end == math.inf else _CLOCK_CHECK_WORK
        unknown = np.flatnonzero((self._lower <= tau) & (self._upper > tau))
        first, search = 0, self._count_search
        while first < len(unknown):
            check_time(end)
            first, _ = self._verify(unknown, tau, search, start=first, budget=budget)
        return int((self._upper <= tau).sum())

    def _enter_level(self, cutoff: float) -> bool:
        """Begin the next level if the current one is completed.

        Returns whether the level is within the cutoff; False if no graph is left.
        """
        if self._n_verified_members == len(self._members):
            rest = np.flatnonzero(~self._emitted)
            if not len(rest):
                return False
            self._level = int(self._lower[rest].min())
            members = rest[self._lower[rest] == self._level]
            self._members = members[np.argsort(self._index.ranks[members])]
            self._n_verified_members = 0
        return self._level <= cutoff

    def _emit(self, n_wanted: int, end: float) -> Integers:
        """Emit up to ``n_wanted`` graphs of this level, fewer after ``end``."""
        budget = None if end == math.inf else _CLOCK_CHECK_WORK
        batches: list[Integers] = [np.empty(0, np.int64)]
        n_left, in_time = n_wanted, True
        while in_time and n_left > 0 and self._n_verified_members < len(self._members):
            first = self._n_verified_members
            self._n_verified_members, n_found = self._verify(
                self._members,
                self._level,
                self._level_search,
                start=first,
                n_wanted=n_left,
                budget=budget,
            )
            verified = self._members[first : self._n_verified_members]
            batches.append(verified[self._upper[verified] <= self._level])
            n_left -= n_found
            in_time = time.monotonic() < end
        emitted = np.concatenate(batches)
        self._emitted[emitted] = True
        return emitted

    def _verify(
        self, positions: Integers, tau: int, search: GedSearch, **limits: int | None
    ) -> tuple[int, int]:
        return verify_many(
            self._index.table,
            self._query,
            positions,
            tau=tau,
            lower=self._lower,
            upper=self._upper,
            search=search,
            **limits,  # type: ignore[arg-type]
        )


def _as_graph(item: Any, name: str) -> Graph:
    """Return a graph; parse SMILES."""
    if isinstance(item, str):
        try:
            return graph_from_smiles(item)
        except DataError as error:
            raise DataError(f"{name}: {error}") from None
    if not isinstance(item, Graph):
        raise TypeError(f"expected a Graph or SMILES as {name}, got {type(item).__name__}")
    return item
