"""Edit distance of labelled graphs: graphs as arrays, and an exact search."""

import math
import time
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats, Integers
from fedneighbors.datasets._graphs import Graph
from fedneighbors.kernels.graph_edit._bounds import Counts, table_bounds
from fedneighbors.kernels.graph_edit._search import GraphTable, find_twins, new_search, verify_many
from fedneighbors.kernels.graph_edit._tree import GedSearch
from fedneighbors.methods.fedknn.metrics._sessions import (
    SessionBatch,
    check_ranks,
    check_request,
    end_at,
)

_Int32s = npt.NDArray[np.int32]
_MAX_PARTS = np.iinfo(np.uint16).max  # nodes or edges; counts of them are stored as uint16


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

    def numbers(self, labels: Iterable[str]) -> _Int32s:
        """Return each label's number; new labels get the next numbers."""
        known = self._numbers
        return np.array([known.setdefault(label, len(known)) for label in labels], np.int32)

    def copy(self) -> "Alphabet":
        """Return a copy to which labels can be added independently."""
        return Alphabet(self._numbers)


def pack(graphs: Sequence[Graph], labels: Alphabet, bonds: Alphabet) -> GraphTable:
    """Convert graphs to arrays.

    Parameters
    ----------
    graphs : sequence of Graph
    labels, bonds : Alphabet
        Numbers of the labels of nodes, and of those of edges (bonds); new labels are added.
    """
    first_node = np.zeros(len(graphs) + 1, np.int64)
    np.cumsum([graph.n_nodes for graph in graphs], out=first_node[1:])
    owner = np.repeat(np.arange(len(graphs)), [graph.n_edges for graph in graphs])
    pairs = np.array(list(chain.from_iterable(graph.edges for graph in graphs)), np.int64).reshape(
        -1, 2
    )
    bond = bonds.numbers(chain.from_iterable(graph.edge_labels for graph in graphs))
    shift = first_node[owner]
    start = np.concatenate([pairs[:, 0] + shift, pairs[:, 1] + shift])
    end = np.concatenate([pairs[:, 1], pairs[:, 0]])
    order = np.lexsort((end, start))
    first_arc = np.zeros(first_node[-1] + 1, np.int64)
    np.cumsum(np.bincount(start, minlength=first_node[-1]), out=first_arc[1:])
    table = GraphTable(
        first_node=first_node,
        label=labels.numbers(chain.from_iterable(graph.node_labels for graph in graphs)),
        first_arc=first_arc,
        end=end[order].astype(np.int32),
        bond=np.concatenate([bond, bond])[order],
        twin=np.empty(0, np.int32),
    )
    return table._replace(twin=find_twins(*table[:5]))


def count_parts(table: GraphTable, n_labels: int, n_bonds: int) -> Counts:
    """Count the labels, bonds and degrees of each graph, for bounds.

    Parameters
    ----------
    table : GraphTable
    n_labels, n_bonds : int
        Numbers of distinct node and edge labels.

    Raises
    ------
    ValueError
        If a graph has 65,536 or more nodes or edges.
    """
    n_graphs = len(table.first_node) - 1
    n_nodes = np.diff(table.first_node).astype(np.int32)
    n_edges = (np.diff(table.first_arc[table.first_node]) // 2).astype(np.int32)
    for what, sizes in (("nodes", n_nodes), ("edges", n_edges)):
        if n_graphs and sizes.max() > _MAX_PARTS:
            raise ValueError(
                f"graph {sizes.argmax()} has {sizes.max()} {what}, and at most {_MAX_PARTS} "
                "are supported; remove it"
            )
    owner, degree = np.repeat(np.arange(n_graphs), n_nodes), np.diff(table.first_arc)
    arcs = _counts(table.bond, np.repeat(owner, degree), n_bonds, n_graphs)
    exact = _counts(degree, owner, int(degree.max(initial=0)) + 1, n_graphs)
    return Counts(
        n_nodes,
        n_edges,
        labels=_counts(table.label, owner, n_labels, n_graphs).astype(np.uint16),
        bonds=(arcs // 2).astype(np.uint16),
        degrees=np.ascontiguousarray(exact[:0:-1].cumsum(axis=0)[::-1], dtype=np.uint16),
    )


def bound_distances(table: Counts, query: Counts) -> _Int32s:
    """Compute lower bounds of each graph's distance to the query."""
    n_degrees = max(len(table.degrees), len(query.degrees))
    bounds: _Int32s = table_bounds(
        table._replace(degrees=_pad(table.degrees, n_degrees)),
        query._replace(degrees=_pad(query.degrees, n_degrees)),
    )
    return bounds


def _counts(
    values: npt.NDArray[Any], owner: npt.NDArray[np.int64], n_values: int, n_owners: int
) -> npt.NDArray[np.int64]:
    """Return how often each owner has each value, shape (n_values, n_owners)."""
    counts = np.bincount(values * np.int64(n_owners) + owner, minlength=n_values * n_owners)
    return counts.reshape(n_values, n_owners)


def _pad(rows: npt.NDArray[np.uint16], n_rows: int) -> npt.NDArray[np.uint16]:
    if len(rows) == n_rows:
        return rows
    return np.concatenate([rows, np.zeros((n_rows - len(rows), rows.shape[1]), np.uint16)])


_UNKNOWN = np.int32(1 << 30)  # upper bound of an unknown distance
_CLOCK_CHECK_WORK = 20_000  # units of verify_many between two clock checks
_SHORT_WORK = 300  # units of verify_many for an upper bound after the deadline


class GraphEditMetric:
    """Edit distance of labelled undirected graphs with unit costs.

    An edit inserts, deletes or relabels one node or one edge; only a node without edges can be
    deleted. The distance is a metric: the triangle inequality holds.

    Examples
    --------
    >>> ethanol = Graph(["C", "C", "O"], [(0, 1), (1, 2)])
    >>> acetaldehyde = Graph(["C", "C", "O"], [(0, 1), (1, 2)], [1, 2])
    >>> GraphEditMetric().distance(ethanol, acetaldehyde)
    1.0
    """

    name = "graph_edit"
    step = 1.0  # distances are integers

    def distance(self, first: Graph, second: Graph) -> float:
        """Return the distance of two graphs.

        The time grows exponentially with size and distance: two different molecules of 30 atoms
        can take seconds or practically forever. A session's ``next`` accepts a deadline.

        Raises
        ------
        TypeError
            If one is not a `Graph`.
        """
        found = self.index([first], ranks=np.zeros(1, np.int64)).open(second).next(1)
        return float(found.distances[0])

    def index(self, objects: Sequence[Graph], *, ranks: Integers) -> "_GraphIndex":
        """Return an index of graphs.

        Parameters
        ----------
        objects : sequence of Graph
            May be empty, and so may each graph.
        ranks : int64 array of shape (n_objects,)
            Distinct ranks; of graphs of equal distance, those of lower rank come first.

        Raises
        ------
        TypeError
            If an object is not a `Graph`; the error names its position.
        ValueError
            If the ranks are not one distinct integer per object, or a graph has more than 65,535
            nodes or edges.
        """
        for position, graph in enumerate(objects):
            _check(graph, f"object {position}")
        return _GraphIndex(objects, check_ranks(ranks, len(objects)))


class _GraphIndex:
    def __init__(self, graphs: Sequence[Graph], ranks: Integers) -> None:
        self.n_objects = len(graphs)
        self.ranks = ranks
        self.labels, self.bonds = Alphabet(), Alphabet()
        self.table = pack(graphs, self.labels, self.bonds)
        self.counts = count_parts(self.table, len(self.labels), len(self.bonds))

    def open(self, query: Graph) -> "_GraphSession":
        _check(query, "the query")
        return _GraphSession(self, query)


class _GraphSession:
    """Session that emits all graphs of distance 0 in order of rank, then those of 1, and so on.

    The *level* is the distance of the graphs that are emitted now. Each graph with this lower bound
    is verified with the level as threshold, which yields its distance or a higher lower bound.
    """

    exact = True

    def __init__(self, index: _GraphIndex, query: Graph) -> None:
        self._index = index
        labels, bonds = index.labels.copy(), index.bonds.copy()
        self._query = pack([query], labels, bonds)
        counts = count_parts(self._query, len(labels), len(bonds))
        self._lower = bound_distances(index.counts, counts)
        self._upper = np.full(index.n_objects, _UNKNOWN)
        self._emitted = np.zeros(index.n_objects, np.bool_)
        self._level = -1
        self._members: Integers = np.empty(0, np.int64)  # graphs with this lower bound, by rank
        self._n_passed = 0  # number of members that were verified

    @cached_property  # bounds do not need the buffers
    def _level_search(self) -> GedSearch:
        """Return the search buffers for members of the level.

        They preserve the state of an interrupted verification.
        """
        return new_search(self._index.table, self._query)

    @cached_property
    def _count_search(self) -> GedSearch:
        """Return the search buffers for range counts."""
        return new_search(self._index.table, self._query)

    @property
    def n_verified(self) -> int:
        return int((self._upper < _UNKNOWN).sum())

    def bounds(self) -> Floats:
        return self._lower.astype(np.float64)

    def separate_bounds(self) -> Floats:
        return self.bounds()  # each depends on one graph and the query only

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
        certified = np.concatenate(batches)
        rest = np.empty(0, np.int64) if in_time else self._uncertified(n_left, cutoff)
        positions = np.concatenate([certified, rest])
        return SessionBatch(
            positions=positions,
            distances=self._upper[positions].astype(np.float64),
            exhausted=not self._enter_level(cutoff),
            n_certified=len(certified),
        )

    def count(self, radius: float) -> int:
        if not radius >= 0:
            return 0
        tau = int(min(radius, float(_UNKNOWN - 1)))
        self._verify(np.flatnonzero(self._lower <= tau), tau, self._count_search)
        return int((self._upper <= tau).sum())

    def _enter_level(self, cutoff: float) -> bool:
        """Continue with the next level if this is completed.

        Returns whether there is a level within the cutoff.
        """
        if self._n_passed == len(self._members):
            rest = np.flatnonzero(~self._emitted)
            if not len(rest):
                return False
            self._level = int(self._lower[rest].min())
            members = rest[self._lower[rest] == self._level]
            self._members = members[np.argsort(self._index.ranks[members])]
            self._n_passed = 0
        return self._level <= cutoff

    def _emit(self, n_wanted: int, end: float) -> Integers:
        """Emit up to ``n_wanted`` graphs of this level; fewer at ``end``."""
        budget = None if end == math.inf else _CLOCK_CHECK_WORK
        batches: list[Integers] = [np.empty(0, np.int64)]
        n_left, in_time = n_wanted, True
        while in_time and n_left > 0 and self._n_passed < len(self._members):
            first = self._n_passed
            self._n_passed, n_found = self._verify(
                self._members,
                self._level,
                self._level_search,
                start=first,
                n_wanted=n_left,
                budget=budget,
            )
            verified = self._members[first : self._n_passed]
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

    def _uncertified(self, k: int, cutoff: float) -> Integers:
        """Return the ``k`` graphs of lowest upper bound among probable ones.

        These are 2 k + 8 graphs of lowest lower bound.
        """
        rest = np.flatnonzero(~self._emitted & (self._lower <= cutoff))
        ranks = self._index.ranks
        rest = rest[np.lexsort((ranks[rest], self._lower[rest]))][: 2 * k + 8]
        search = new_search(self._index.table, self._query, patience=int(_UNKNOWN))
        for position in rest.tolist():
            self._tighten(position, search)
        rest = rest[self._upper[rest] <= cutoff]
        return rest[np.lexsort((ranks[rest], self._upper[rest]))][:k]

    def _tighten(self, position: int, search: GedSearch) -> None:
        """Lower a graph's upper bound by bisection with short searches."""
        graph = np.array([position])
        if self._upper[position] == _UNKNOWN:  # any assignment of nodes is within this threshold
            self._verify(graph, int(_UNKNOWN) - 1, search)
        low = int(self._lower[position])
        while low < self._upper[position]:
            tau = (low + int(self._upper[position])) // 2
            _, n_found = self._verify(graph, tau, search, budget=_SHORT_WORK)
            low = low if n_found else tau + 1


def _check(graph: Any, what: str) -> None:
    if not isinstance(graph, Graph):
        raise TypeError(f"expected a Graph as {what}, got {type(graph).__name__}")
