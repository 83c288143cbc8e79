"""Edit distance of labelled graphs: their layout as arrays, and an exact search."""

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
from fedneighbors.methods.fedknn.metrics._sessions import Found, check_ranks, check_step, end_of

_Int32s = npt.NDArray[np.int32]
_MAX_PARTS = np.iinfo(np.uint16).max


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
        """Return a copy that can grow without the original."""
        return Alphabet(self._numbers)


def pack(graphs: Sequence[Graph], labels: Alphabet, bonds: Alphabet) -> GraphTable:
    """Return graphs as arrays.

    Parameters
    ----------
    graphs : sequence of Graph
    labels, bonds : Alphabet
        Numbers of the labels of nodes and of edges; new labels are added.
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
    """Compute the counts that determine the bounds of a table.

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
    """Return lower bounds of each graph's distance to the query."""
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
_SLICE = 20_000  # work between two clock checks, a few milliseconds
_SHORT = 300  # work for an upper bound after the deadline


class GraphEdit:
    """Edit distance of labelled undirected graphs with unit costs.

    An edit inserts, deletes or relabels one node or one edge; only a node without edges can be
    deleted. The distance is a metric: the triangle inequality holds.

    Examples
    --------
    >>> ethanol = Graph(["C", "C", "O"], [(0, 1), (1, 2)])
    >>> acetaldehyde = Graph(["C", "C", "O"], [(0, 1), (1, 2)], [1, 2])
    >>> GraphEdit().distance(ethanol, acetaldehyde)
    1.0
    """

    name = "graph_edit"
    step = 1.0  # distances are integers

    def distance(self, first: Graph, second: Graph) -> float:
        """Return the distance of two graphs.

        The time grows exponentially with size and distance: two different molecules of 30 atoms
        can take seconds, or never finish. Open a session to set a deadline.

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
            Order of graphs of equal distance, lower first, no two equal.

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

    A graph whose lower bound is the level is verified with the level as threshold, so the answer
    is either exact or a new lower bound above the level.
    """

    exact = True

    def __init__(self, index: _GraphIndex, query: Graph) -> None:
        self._index = index
        labels, bonds = index.labels.copy(), index.bonds.copy()
        self._query = pack([query], labels, bonds)
        counts = count_parts(self._query, len(labels), len(bonds))
        self._lower = bound_distances(index.counts, counts)
        self._upper = np.full(index.n_objects, _UNKNOWN)
        self._given = np.zeros(index.n_objects, np.bool_)
        self._level = -1
        self._members: Integers = np.empty(0, np.int64)
        self._place = 0

    @cached_property  # bounds do not need the buffers
    def _search(self) -> GedSearch:
        """Return the buffers of the levels.

        They preserve the state of an interrupted verification.
        """
        return new_search(self._index.table, self._query)

    @cached_property
    def _aside(self) -> GedSearch:
        """Return the buffers of all other verifications."""
        return new_search(self._index.table, self._query)

    @property
    def n_verified(self) -> int:
        return int((self._upper < _UNKNOWN).sum())

    def bounds(self) -> Floats:
        return self._lower.astype(np.float64)

    def separate_bounds(self) -> Floats:
        return self.bounds()  # each depends on one graph and the query only

    def next(self, k: int, *, cutoff: float = math.inf, deadline_s: float | None = None) -> Found:
        check_step(k, cutoff)
        end = end_of(deadline_s)
        chosen: list[Integers] = [np.empty(0, np.int64)]
        n_left, in_time = k, True
        while n_left > 0 and in_time and self._enter(cutoff):
            chosen.append(self._emit(n_left, end))
            n_left -= len(chosen[-1])
            in_time = n_left == 0 or time.monotonic() < end
        certified = np.concatenate(chosen)
        rest = np.empty(0, np.int64) if in_time else self._guess(n_left, cutoff)
        positions = np.concatenate([certified, rest])
        return Found(
            positions=positions,
            distances=self._upper[positions].astype(np.float64),
            exhausted=not self._enter(cutoff),
            n_certified=len(certified),
        )

    def count(self, radius: float) -> int:
        if not radius >= 0:
            return 0
        tau = int(min(radius, float(_UNKNOWN - 1)))
        self._verify(np.flatnonzero(self._lower <= tau), tau, self._aside)
        return int((self._upper <= tau).sum())

    def _enter(self, cutoff: float) -> bool:
        """Go to the next candidate graph's level; return whether it exists."""
        if self._place == len(self._members):
            left = np.flatnonzero(~self._given)
            if not len(left):
                return False
            self._level = int(self._lower[left].min())
            members = left[self._lower[left] == self._level]
            self._members = members[np.argsort(self._index.ranks[members])]
            self._place = 0
        return self._level <= cutoff

    def _emit(self, n_wanted: int, end: float) -> Integers:
        """Return up to a number of graphs of this level.

        Fewer if the level or the time ends.
        """
        budget = None if end == math.inf else _SLICE
        found: list[Integers] = [np.empty(0, np.int64)]
        n_left, in_time = n_wanted, True
        while in_time and n_left > 0 and self._place < len(self._members):
            first = self._place
            self._place, n_found = self._verify(
                self._members,
                self._level,
                self._search,
                start=first,
                n_wanted=n_left,
                budget=budget,
            )
            seen = self._members[first : self._place]
            found.append(seen[self._upper[seen] <= self._level])
            n_left -= n_found
            in_time = time.monotonic() < end
        emitted = np.concatenate(found)
        self._given[emitted] = True
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

    def _guess(self, k: int, cutoff: float) -> Integers:
        """Return the lowest upper bounds among the lowest lower bounds."""
        left = np.flatnonzero(~self._given & (self._lower <= cutoff))
        ranks = self._index.ranks
        left = left[np.lexsort((ranks[left], self._lower[left]))][: 2 * k + 8]
        search = new_search(self._index.table, self._query, patience=int(_UNKNOWN))
        for position in left.tolist():
            self._improve(position, search)
        left = left[self._upper[left] <= cutoff]
        return left[np.lexsort((ranks[left], self._upper[left]))][:k]

    def _improve(self, position: int, search: GedSearch) -> None:
        """Lower the upper bound by short searches with decreasing thresholds."""
        here = np.array([position])
        if self._upper[position] == _UNKNOWN:  # the first assignment is within any threshold
            self._verify(here, int(_UNKNOWN) - 1, search)
        low = int(self._lower[position])
        while low < self._upper[position]:
            tau = (low + int(self._upper[position])) // 2
            _, n_found = self._verify(here, tau, search, budget=_SHORT)
            low = low if n_found else tau + 1


def _check(graph: Any, what: str) -> None:
    if not isinstance(graph, Graph):
        raise TypeError(f"expected a Graph as {what}, got {type(graph).__name__}")
