"""Owns `graph_edit`: the edit distance of labelled graphs, searched exactly."""

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors.datasets.graphs import Graph
from fedneighbors.kernels.ged import verify_many
from fedneighbors.kernels.gedroom import new_search
from fedneighbors.methods.fedknn.metrics.graphs_packing import Alphabet, GraphCounts, pack
from fedneighbors.methods.fedknn.sessions import Found

__all__ = ["GraphEdit"]

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

_UNKNOWN = np.int32(1 << 30)  # upper bound of a distance that nothing is known of
_NO_LIMIT = 1 << 62
_SLICE = 20_000  # work between two looks at the clock, a few milliseconds


class GraphEdit:
    """Edit distance of labelled undirected graphs, every edit at a cost of 1.

    An edit inserts, deletes or relabels one node or one edge; a node that is deleted must have no
    edges left. The distance is a metric: the triangle inequality holds.

    Examples
    --------
    >>> ethanol = Graph(["C", "C", "O"], [(0, 1), (1, 2)])
    >>> acetaldehyde = Graph(["C", "C", "O"], [(0, 1), (1, 2)], [1, 2])
    >>> GraphEdit().distance(ethanol, acetaldehyde)
    1.0
    """

    name = "graph_edit"

    def distance(self, first: Graph, second: Graph) -> float:
        """Return the distance of two graphs.

        Its time grows exponentially with their size and distance: seconds to forever for two
        unlike molecules of 30 atoms. Open a session to set a deadline.

        Raises
        ------
        TypeError
            If one is no `Graph`.
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
            If an object is no `Graph`; its position is named.
        ValueError
            If the number of ranks does not fit, or a graph has more than 65,535 nodes or edges.
        """
        for position, graph in enumerate(objects):
            _check(graph, f"object {position}")
        if len(ranks) != len(objects):
            raise ValueError(f"expected {len(objects)} ranks, one per object, got {len(ranks)}")
        return _GraphIndex(objects, ranks)


class _GraphIndex:
    def __init__(self, graphs: Sequence[Graph], ranks: Integers) -> None:
        self.n_objects = len(graphs)
        self.ranks = np.asarray(ranks, np.int64)
        self.labels, self.bonds = Alphabet(), Alphabet()
        self.table = pack(graphs, self.labels, self.bonds)
        self.counts = GraphCounts(self.table, len(self.labels), len(self.bonds))

    def open(self, query: Graph) -> "_GraphSession":
        _check(query, "the query")
        return _GraphSession(self, query)


class _GraphSession:
    """Emits level by level: all graphs of distance 0 in order of rank, then those of 1, and so on.

    A graph whose lower bound is the level is verified with the level as threshold, so the answer
    is either exact or a new lower bound above the level.
    """

    exact = True

    def __init__(self, index: _GraphIndex, query: Graph) -> None:
        self._index = index
        labels, bonds = index.labels.extended(), index.bonds.extended()
        self._query = pack([query], labels, bonds)
        counts = GraphCounts(self._query, len(labels), len(bonds))
        self._lower = index.counts.bounds(counts)
        self._upper = np.full(index.n_objects, _UNKNOWN)
        self._given = np.zeros(index.n_objects, np.bool_)
        self._search = new_search(index.table, self._query)
        self._level = -1
        self._members: Integers = np.empty(0, np.int64)
        self._place = 0

    @property
    def n_verified(self) -> int:
        return int((self._upper < _UNKNOWN).sum())

    def bounds(self) -> Floats:
        return self._lower.astype(np.float64)

    def next(self, k: int, *, cutoff: float = math.inf, deadline_s: float | None = None) -> Found:
        if k < 0:
            raise ValueError(f"expected k of 0 or more, got {k}")
        end = math.inf if deadline_s is None else time.monotonic() + deadline_s
        chosen: list[Integers] = []
        wanted, in_time = k, True
        while wanted > 0 and in_time and self._enter(cutoff):
            found, in_time = self._emit(wanted, end)
            chosen.append(found)
            wanted -= len(found)
        certified = np.concatenate([*chosen, np.empty(0, np.int64)])
        rest = np.empty(0, np.int64) if in_time else self._guess(wanted, cutoff)
        positions = np.concatenate([certified, rest])
        return Found(
            positions=positions,
            distances=self._upper[positions].astype(np.float64),
            exhausted=in_time and not self._enter(cutoff),
            n_certified=len(certified),
        )

    def count(self, radius: float) -> int:
        if not radius >= 0:
            return 0
        tau = int(min(radius, float(_UNKNOWN - 1)))
        near = np.flatnonzero(self._lower <= tau)
        self._verify(near, 0, tau, len(near) + 1, _NO_LIMIT)
        return int((self._upper <= tau).sum())

    def _enter(self, cutoff: float) -> bool:
        """Go to the level of the next graph that may come; return whether there is one."""
        if self._place < len(self._members):
            return self._level <= cutoff
        open_ones = np.flatnonzero(~self._given)
        if not len(open_ones):
            return False
        lower = self._lower[open_ones]
        level = int(lower.min())
        if level > cutoff:
            return False
        members = open_ones[lower == level]
        self._level, self._place = level, 0
        self._members = members[np.argsort(self._index.ranks[members])]
        return True

    def _emit(self, n_wanted: int, end: float) -> tuple[Integers, bool]:
        """Return graphs of this level, and whether the deadline has not passed."""
        budget = _NO_LIMIT if end == math.inf else _SLICE
        found: list[Integers] = [np.empty(0, np.int64)]
        n_found, in_time = 0, True
        while in_time and n_found < n_wanted and self._place < len(self._members):
            first = self._place
            self._place = self._verify(
                self._members, first, self._level, n_wanted - n_found, budget
            )
            seen = self._members[first : self._place]
            found.append(seen[self._upper[seen] <= self._level])
            n_found += len(found[-1])
            in_time = time.monotonic() < end
        emitted = np.concatenate(found)
        self._given[emitted] = True
        return emitted, in_time or n_found == n_wanted

    def _verify(self, positions: Integers, start: int, tau: int, wanted: int, budget: int) -> int:
        place, _, _ = verify_many(
            self._index.table, self._query, positions, start, tau, wanted, budget,
            self._lower, self._upper, self._search,
        )  # fmt: skip
        return int(place)

    def _guess(self, k: int, cutoff: float) -> Integers:
        """Return the graphs of the least upper bound, among those of the least lower bounds."""
        left = np.flatnonzero(~self._given & (self._lower <= cutoff))
        ranks = self._index.ranks
        left = left[np.lexsort((ranks[left], self._lower[left]))][: 4 * k + 16]
        everything = int(_UNKNOWN) - 1  # the first assignment is within it: no search
        unknown = left[self._upper[left] == _UNKNOWN]
        self._verify(unknown, 0, everything, len(unknown) + 1, _NO_LIMIT)
        left = left[self._upper[left] <= cutoff]
        return left[np.lexsort((ranks[left], self._upper[left]))][:k]


def _check(graph: Any, what: str) -> None:
    if not isinstance(graph, Graph):
        raise TypeError(f"expected a Graph as {what}, got {type(graph).__name__}")
