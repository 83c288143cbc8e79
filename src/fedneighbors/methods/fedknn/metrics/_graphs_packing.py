"""Lays graphs out as arrays: their structure for verification, their counts for the bounds."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors.datasets._graphs import Graph
from fedneighbors.kernels.graph_edit._bounds import table_bounds
from fedneighbors.kernels.graph_edit._search import GraphTable, find_twins

Integers = npt.NDArray[np.int32]
_MOST = np.iinfo(np.uint16).max


class Alphabet:
    """Numbers for labels, in the order in which they are first met.

    Parameters
    ----------
    known : mapping of str to int, optional
        Labels that have a number.
    """

    def __init__(self, known: dict[str, int] | None = None) -> None:
        self._numbers: dict[str, int] = dict(known or {})

    def __len__(self) -> int:
        return len(self._numbers)

    def numbers(self, labels: Iterable[str]) -> Integers:
        """Return the number of each label; a new one gets the next number."""
        known = self._numbers
        return np.array([known.setdefault(label, len(known)) for label in labels], np.int32)

    def extended(self) -> "Alphabet":
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


class GraphCounts:
    """What the bounds need of each graph of a table.

    Parameters
    ----------
    table : GraphTable
    n_labels, n_bonds : int
        How many labels of nodes and of edges are numbered.

    Raises
    ------
    ValueError
        If a graph has 65,536 or more nodes or edges.
    """

    def __init__(self, table: GraphTable, n_labels: int, n_bonds: int) -> None:
        n_graphs = len(table.first_node) - 1
        self.n_nodes = np.diff(table.first_node).astype(np.int32)
        self.n_edges = (np.diff(table.first_arc[table.first_node]) // 2).astype(np.int32)
        for what, sizes in (("nodes", self.n_nodes), ("edges", self.n_edges)):
            if n_graphs and sizes.max() > _MOST:
                raise ValueError(
                    f"graph {sizes.argmax()} has {sizes.max()} {what}; at most {_MOST} are "
                    "supported, leave it out"
                )
        owner = np.repeat(np.arange(n_graphs), self.n_nodes)
        degree = np.diff(table.first_arc)
        edge_owner = np.repeat(owner, degree)
        self.labels = _counts(table.label, owner, n_labels, n_graphs).astype(np.uint16)
        arcs = _counts(table.bond, edge_owner, n_bonds, n_graphs)
        self.bonds = (arcs // 2).astype(np.uint16)
        exact = _counts(degree, owner, int(degree.max(initial=0)) + 1, n_graphs)
        above = exact[:0:-1].cumsum(axis=0)[::-1]
        self.degrees = np.ascontiguousarray(above, dtype=np.uint16)

    def bounds(self, query: "GraphCounts") -> Integers:
        """Return a lower bound of the distance of each graph to the only graph of ``query``."""
        n_degrees = max(len(self.degrees), len(query.degrees))
        return table_bounds(
            self.n_nodes, self.n_edges, self.labels, self.bonds, _padded(self.degrees, n_degrees),
            own_nodes=int(query.n_nodes[0]),
            own_edges=int(query.n_edges[0]),
            own_labels=query.labels[: len(self.labels), 0].astype(np.int32),
            own_bonds=query.bonds[: len(self.bonds), 0].astype(np.int32),
            own_degrees=_padded(query.degrees, n_degrees)[:, 0].astype(np.int32),
        )  # fmt: skip


def _counts(
    values: npt.NDArray[Any], owner: npt.NDArray[np.int64], n_values: int, n_owners: int
) -> npt.NDArray[np.int64]:
    """Return how often each owner has each value, shape (n_values, n_owners)."""
    counts = np.bincount(values * np.int64(n_owners) + owner, minlength=n_values * n_owners)
    return counts.reshape(n_values, n_owners)


def _padded(rows: npt.NDArray[np.uint16], n_rows: int) -> npt.NDArray[np.uint16]:
    if len(rows) == n_rows:
        return rows
    return np.concatenate([rows, np.zeros((n_rows - len(rows), rows.shape[1]), np.uint16)])
