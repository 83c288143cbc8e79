"""Owns `Graph`, the labelled undirected graph that readers, writers and the graph metric share."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

Label = str | int


class Graph:
    """Labelled undirected graph without loops and without parallel edges; it never changes.

    Parameters
    ----------
    node_labels : sequence of str or int
        One per node; nodes are numbered from 0. A whole number counts as its decimal digits, so
        6 and "6" are the same label.
    edges : iterable of pairs of int
        Nodes that an edge joins, in any order.
    edge_labels : sequence of str or int, optional
        One per edge, "1" for all of them by default.

    Attributes
    ----------
    node_labels : tuple of str
    edges : tuple of pairs of int
        The lower node first, ascending. Equal graphs have equal attributes.
    edge_labels : tuple of str
        In the order of ``edges``.

    Raises
    ------
    TypeError
        If a label is neither a string nor a whole number, or a node number is not whole.
    ValueError
        If an edge is a loop, a double or names no node, or the number of labels does not fit.

    Examples
    --------
    >>> water = Graph(["H", "O", "H"], [(1, 0), (1, 2)])
    >>> water.n_nodes, water.edges, water.edge_labels
    (3, ((0, 1), (1, 2)), ('1', '1'))
    """

    __slots__ = ("_hash", "edge_labels", "edges", "node_labels")

    node_labels: tuple[str, ...]
    edges: tuple[tuple[int, int], ...]
    edge_labels: tuple[str, ...]
    _hash: int

    def __init__(
        self,
        node_labels: Sequence[Label],
        edges: Iterable[tuple[int, int]] = (),
        edge_labels: Sequence[Label] | None = None,
    ) -> None:
        nodes = tuple(_label(label, "node", i) for i, label in enumerate(node_labels))
        pairs = [_pair(edge, i, len(nodes)) for i, edge in enumerate(edges)]
        if edge_labels is None:
            bonds = ["1"] * len(pairs)
        else:
            bonds = [_label(label, "edge", i) for i, label in enumerate(edge_labels)]
        if len(bonds) != len(pairs):
            raise ValueError(f"expected one label per edge: {len(pairs)}, got {len(bonds)}")
        order = sorted(range(len(pairs)), key=pairs.__getitem__)
        for first, second in pairwise(order):
            if pairs[first] == pairs[second]:
                raise ValueError(f"edge {pairs[first]} stands twice; name each edge once")
        self._set("node_labels", nodes)
        self._set("edges", tuple(pairs[i] for i in order))
        self._set("edge_labels", tuple(bonds[i] for i in order))
        self._set("_hash", hash((self.node_labels, self.edges, self.edge_labels)))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a graph does not change; make another one with the new {name}")

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        return len(self.node_labels)

    @property
    def n_edges(self) -> int:
        """Number of edges."""
        return len(self.edges)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Graph):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Graph({list(self.node_labels)}, {list(self.edges)}, {list(self.edge_labels)})"

    def __reduce__(self) -> tuple[type["Graph"], tuple[object, ...]]:
        return Graph, self._key()  # copies are made by the constructor, which checks

    def _key(self) -> tuple[object, ...]:
        return self.node_labels, self.edges, self.edge_labels


class GraphSet:
    """Graphs of one file with what the file says of them.

    Parameters
    ----------
    graphs : sequence of Graph
    names : sequence of str
        One per graph, no two equal.
    classes : sequence of str, optional
        One per graph, empty where the file names none.

    Raises
    ------
    ValueError
        If the lengths differ or two names are equal.
    """

    def __init__(
        self, graphs: Sequence[Graph], names: Sequence[str], classes: Sequence[str] | None = None
    ) -> None:
        self.graphs = list(graphs)
        self.names = list(names)
        self.classes = [""] * len(self.graphs) if classes is None else list(classes)
        if not len(self.graphs) == len(self.names) == len(self.classes):
            raise ValueError(
                f"expected one name and one class per graph, got {len(self.graphs)} graphs, "
                f"{len(self.names)} names, {len(self.classes)} classes"
            )
        if len(set(self.names)) < len(self.names):
            raise ValueError("two graphs have the same name; give each its own")

    def __len__(self) -> int:
        return len(self.graphs)


def _label(label: object, what: str, place: int) -> str:
    if isinstance(label, str):
        return label
    if isinstance(label, int | np.integer) and not isinstance(label, bool):
        return str(int(label))
    raise TypeError(
        f"expected a string or a whole number as the label of {what} {place}, "
        f"got {type(label).__name__}"
    )


def _pair(edge: tuple[int, int], place: int, n_nodes: int) -> tuple[int, int]:
    try:
        first, second = edge
    except (TypeError, ValueError):
        raise TypeError(f"expected a pair of nodes as edge {place}, got {edge!r}") from None
    for end in (first, second):
        if not isinstance(end, int | np.integer) or isinstance(end, bool):
            raise TypeError(f"expected whole numbers as the nodes of edge {place}, got {edge!r}")
        if not 0 <= end < n_nodes:
            raise ValueError(f"edge {place} names node {end}, but the nodes are 0 to {n_nodes - 1}")
    if first == second:
        raise ValueError(f"edge {place} joins node {first} with itself; loops are not allowed")
    return (int(first), int(second)) if first < second else (int(second), int(first))
